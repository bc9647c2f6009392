use super::*;
use crate::parse::{mountinfo, visible};

/// An image with a bit of everything.
fn image() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["bin", "dev", "etc/ssl", "proc", "srv/app", "tmp", "usr/share", "var/tmp", "a b"] {
        fs::create_dir_all(directory.path().join(name)).unwrap();
    }
    for name in ["etc/hosts", "etc/passwd", "top", "srv/file"] {
        fs::write(directory.path().join(name), "x").unwrap();
    }
    std::os::unix::fs::symlink("usr/lib", directory.path().join("lib")).unwrap();
    directory
}

const MOUNTS: &str =
    "1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /proc rw - proc proc rw\n3 1 0:3 / /dev rw,nosuid - devtmpfs d rw\n";

fn with<T>(
    image: &Path,
    workdir: &str,
    more_mounts: &str,
    read_only: bool,
    show: &[PathBuf],
    then: impl FnOnce(Result<Plan, Error>) -> T,
) -> T {
    let mounts = mountinfo(format!("{MOUNTS}{more_mounts}").as_bytes()).unwrap();
    let mounts = visible(&mounts);
    let layout = Layout {
        image: Some(image),
        workdir: Path::new(workdir),
        read_only,
        host_network: false,
        show,
        mounts: &mounts,
        uid: 1000,
        gid: 1000,
        programs: &[],
    };
    then(plan(&layout))
}

/// The table with the image's place cut out, and without what every sandbox has.
fn table(image: &Path, plan: &Plan) -> String {
    let text = String::from_utf8(plan.fstab()).unwrap().replace(image.to_str().unwrap(), "IMAGE");
    let common = |line: &&str| {
        ["/dev/", "devpts ", "tmpfs ", "proc ", "fs/proc/sys "].iter().all(|start| !line.starts_with(start))
    };
    text.lines().filter(common).map(|line| format!("{line}\n")).collect()
}

#[test]
fn an_image() {
    let image = image();
    with(image.path(), "/workspace", "", false, &[], |plan| {
        let plan = plan.unwrap();
        assert_eq!(
            table(image.path(), &plan),
            "fs fs none rbind,nosuid,nodev 0 0\n\
             IMAGE/a\\040b fs/a\\040b none rbind,ro,nosuid,nodev 0 0\n\
             IMAGE/bin fs/bin none rbind,ro,nosuid,nodev 0 0\n\
             IMAGE/etc fs/etc none rbind,ro,nosuid,nodev 0 0\n\
             IMAGE/srv fs/srv none rbind,ro,nosuid,nodev 0 0\n\
             IMAGE/top fs/top none rbind,ro,nosuid,nodev 0 0\n\
             IMAGE/usr fs/usr none rbind,ro,nosuid,nodev 0 0\n\
             IMAGE/var fs/var none rbind,ro,nosuid,nodev 0 0\n\
             hosts fs/etc/hosts none rbind,ro,nosuid,nodev 0 0\n\
             rw/var-tmp fs/var/tmp none rbind,nosuid,nodev 0 0\n"
        );
        assert_eq!(plan.links[Path::new("lib")], Path::new("usr/lib"));
        assert_eq!(plan.dirs[Path::new("tmp")], 0o1777);
        assert!(plan.dirs.contains_key(Path::new("workspace")) && !plan.dirs.contains_key(Path::new("usr/share")));
    });
}

#[test]
fn what_every_sandbox_has() {
    let image = tempfile::tempdir().unwrap();
    with(image.path(), "/w", "", false, &[], |plan| {
        let text = String::from_utf8(plan.unwrap().fstab()).unwrap();
        for line in [
            "/dev/null fs/dev/null none rbind,nosuid,noexec 0 0\n",
            "devpts fs/dev/pts devpts newinstance,ptmxmode=0666,mode=0620,nosuid,noexec 0 0\n",
            "tmpfs fs/dev/shm tmpfs size=64m,mode=1777,nosuid,nodev 0 0\n",
            "proc fs/proc proc nosuid,nodev,noexec 0 0\nfs/proc/sys fs/proc/sys none rbind,ro,nosuid,nodev,noexec 0 0\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    });
}

#[test]
fn a_read_only_root_comes_last_and_leaves_three_places() {
    let image = image();
    with(image.path(), "/workspace", "", true, &[], |plan| {
        let text = table(image.path(), &plan.unwrap());
        let tail = "rw/var-tmp fs/var/tmp none rbind,ro,nosuid,nodev 0 0\n\
                    fs/workspace fs/workspace none rbind,nosuid,nodev 0 0\n\
                    fs/tmp fs/tmp none rbind,nosuid,nodev 0 0\n\
                    fs/mnt fs/mnt none rbind,nosuid,nodev 0 0\n\
                    none fs none remount,bind,ro,nosuid,nodev 0 0\n";
        assert!(text.ends_with(tail), "{text}");
    });
}

#[test]
fn a_working_directory_in_the_image() {
    let image = image();
    // One that is there is covered; for one that is not, what is around it is shown piece by piece.
    with(image.path(), "/srv/app", "", false, &[], |plan| {
        let plan = plan.unwrap();
        assert!(table(image.path(), &plan).contains("rw/workdir fs/srv/app none rbind,nosuid,nodev 0 0\n"));
        assert!(plan.dirs.contains_key(Path::new("../rw/workdir")));
    });
    with(image.path(), "/srv/new/deep", "", false, &[], |plan| {
        let plan = plan.unwrap();
        let text = table(image.path(), &plan);
        assert!(
            text.contains("IMAGE/srv/app fs/srv/app none") && text.contains("IMAGE/srv/file fs/srv/file none"),
            "{text}"
        );
        assert!(!text.contains("IMAGE/srv fs/srv "), "{text}");
        assert!(plan.dirs.contains_key(Path::new("srv/new/deep")) && plan.dirs.contains_key(Path::new("srv/new")));
    });
    for (workdir, why) in
        [("/lib/x", "/lib is a link"), ("/srv/file/x", "/srv/file is not a directory"), ("/lib", "/lib is a link")]
    {
        with(image.path(), workdir, "", false, &[], |plan| {
            let error = plan.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            assert!(error.to_string().contains(why), "{error}");
        });
    }
}

#[test]
fn what_is_mounted_in_a_tree_is_locked_too_and_keeps_what_the_kernel_holds_on_to() {
    let image = image();
    let at = image.path().display();
    let more = format!(
        "4 1 0:4 / {at}/usr rw,noexec - tmpfs a rw\n5 4 0:5 / {at}/usr/share rw,noexec - tmpfs a rw\n\
         6 5 0:6 / {at}/usr/share/x\\040y rw - tmpfs a rw\n7 1 0:7 / {at}/usrx rw - tmpfs a rw\n"
    );
    with(image.path(), "/w", &more, false, &[], |plan| {
        let text = table(image.path(), &plan.unwrap());
        let want = "IMAGE/usr fs/usr none rbind,ro,nosuid,nodev,noexec 0 0\n\
                    none fs/usr/share none remount,bind,ro,nosuid,nodev,noexec 0 0\n\
                    none fs/usr/share/x\\040y none remount,bind,ro,nosuid,nodev 0 0\n";
        assert!(text.contains(want), "{text}");
        assert!(!text.contains("usrx"), "{text}");
    });
}

#[test]
fn shown_trees_have_their_parents_and_limits() {
    let image = image();
    let data = tempfile::tempdir().unwrap();
    let real = fs::canonicalize(data.path()).unwrap();
    let show = [real.clone()];
    with(image.path(), "/w", "", false, &show, |plan| {
        let text = String::from_utf8(plan.unwrap().fstab()).unwrap();
        let line = format!("{0} fs{0} none rbind,ro,nosuid,nodev 0 0\n", real.display());
        assert!(text.contains(&line), "{text}");
    });
    for tree in ["/usr/share", "/absent-tree", "/w"] {
        let show = [PathBuf::from(tree)];
        with(image.path(), "/w/x", "", false, &show, |plan| {
            assert!(plan.unwrap_err().to_string().contains(tree));
        });
    }
}

#[test]
fn this_machine_shows_programs_and_no_secrets() {
    let text = fs::read("/proc/self/mountinfo").unwrap();
    let mounts = mountinfo(&text).unwrap();
    let mounts = visible(&mounts);
    let layout = Layout {
        image: None,
        workdir: Path::new("/workspace"),
        read_only: false,
        host_network: false,
        show: &[],
        mounts: &mounts,
        uid: 7,
        gid: 8,
        programs: &[],
    };
    let plan = plan(&layout).unwrap();
    let sources = plan.mounts.iter().filter_map(|m| if let Source::Host(path) = &m.source { Some(path) } else { None });
    for source in sources {
        let known = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/dev", "/etc"];
        assert!(known.iter().any(|k| source.starts_with(k)), "{}", source.display());
        assert!(!["/usr", "/bin"].iter().any(|_| source == Path::new("/etc")));
    }
    assert!(plan.files[Path::new("etc/passwd")].ends_with(b"sandbox:x:7:8:sandbox:/workspace:/bin/bash\n"));
    assert!(!plan.files.keys().any(|f| f.ends_with("shadow") || f.ends_with("machine-id")));
    let without = plan.mounts.iter().all(|m| m.point != Path::new("etc/resolv.conf"));
    assert!(without, "without a network there is no name service");
}

/// Each way in which a working directory cannot be made: named before anything is.
#[test]
fn working_directories_that_cannot_be() {
    let image = image();
    let programs = [PathBuf::from("/usr/bin/bash"), PathBuf::from("/opt/x/bash")];
    let mounts = mountinfo(MOUNTS.as_bytes()).unwrap();
    let long = format!("/w/{}", "x".repeat(256));
    for (own, workdir, rule) in [
        (true, "/etc/passwd", "/etc/passwd is a file in the sandbox"),
        (true, "/etc/passwd/x", "/etc/passwd is a file in the sandbox"),
        (true, "/etc/hosts", "/etc/hosts is a file in the sandbox"),
        (true, "/etc/hosts/x", "/etc/hosts is a file in the sandbox"),
        (true, "/usr", "it would hide /usr/bin/bash, which the sandbox needs"),
        (true, "/usr/bin", "it would hide /usr/bin/bash, which the sandbox needs"),
        (true, "/.old", "/.old is needed for making the sandbox"),
        (true, "/.old/x", "/.old is needed for making the sandbox"),
        (true, &long, "it has a component of 256 bytes, and no name may have more than 255"),
        (false, "/opt", "it would hide /opt/x/bash, which the sandbox needs"),
        (false, "/top", "/top is not a directory in the image"),
        (false, "/top/x", "/top is not a directory in the image"),
        (false, "/etc/hosts/x", "/etc/hosts is not a directory in the image"),
        (false, "/lib/x", "/lib is a link in the image"),
        (false, "/.old", "/.old is needed for making the sandbox"),
    ] {
        let error = plan(&Layout {
            image: (!own).then_some(image.path()),
            workdir: Path::new(workdir),
            read_only: false,
            host_network: false,
            show: &[],
            mounts: &visible(&mounts),
            uid: 1000,
            gid: 1000,
            programs: &programs,
        })
        .expect_err(workdir);
        assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{error}");
        assert_eq!(error.reason(), Some(format!("workdir \"{workdir}\": {rule}").as_str()));
    }
}

/// One that the image has at its top is the tenant's own, not a mount over another.
#[test]
fn a_working_directory_that_is_shown_gives_way() {
    let image = image();
    with(image.path(), "/srv", "9 1 0:9 / IMAGE/srv/app rw - tmpfs t rw\n", false, &[], |plan| {
        let plan = plan.unwrap();
        assert!(!table(image.path(), &plan).contains("fs/srv"), "{}", table(image.path(), &plan));
        assert!(plan.dirs.contains_key(Path::new("srv")));
    });
}
