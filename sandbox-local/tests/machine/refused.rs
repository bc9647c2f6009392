//! Specs that cannot be had here, and working directories in odd places: refused at once, with the reason, or made.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use sandbox::{Effect, Error, ErrorKind, Networking, Provider, SandboxPath, Spec};
use sandbox_local::LocalProvider;

use crate::bed::{Bed, Needs, Trial, ok, sh, spec};
use crate::outside::make_image;

pub(crate) const TRIALS: &[Trial] = &[
    ("refused::images_that_are_none", Needs::Nothing, images_that_are_none),
    ("refused::images_out_of_reach", Needs::Root, images_out_of_reach),
    ("refused::workdirs_anywhere", Needs::Nothing, workdirs_anywhere),
    ("refused::workdirs_nowhere", Needs::Nothing, workdirs_nowhere),
    ("refused::workdirs_of_images", Needs::Nothing, workdirs_of_images),
];

/// Provisions what cannot be had: at once, with nothing left.
async fn refused(bed: &Bed, provider: &LocalProvider, spec: &Spec) -> Error {
    let begun = Instant::now();
    let error = provider.provision(spec).await.expect_err("it cannot be had");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}: {error}", begun.elapsed());
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    assert!(!bed.state.join(spec.session.as_str()).exists(), "{error}: nothing is left");
    error
}

fn images_that_are_none(bed: &Bed) {
    let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir_in("/var/tmp").unwrap();
    fs::write(place.path().join("file"), "").unwrap();
    fs::create_dir(place.path().join("empty")).unwrap();
    fs::create_dir_all(place.path().join("dangling/bin")).unwrap();
    std::os::unix::fs::symlink("/usr/bin/nothing", place.path().join("dangling/bin/bash")).unwrap();
    for (name, content, mode) in
        [("text", "no program", 0o755), ("plain", "#!/bin/sh", 0o644), ("other", "#!/bin/bash", 0o755)]
    {
        let bash = place.path().join(name).join("bin/bash");
        fs::create_dir_all(bash.parent().unwrap()).unwrap();
        fs::write(&bash, content).unwrap();
        fs::set_permissions(&bash, fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::create_dir_all(place.path().join("dir/bin/bash")).unwrap();
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    bed.block(async {
        let provider = bed.provider();
        for (image, kind, rule) in [
            ("debian:stable-slim".to_owned(), ErrorKind::InvalidSpec, "the absolute path of a directory"),
            ("./x".to_owned(), ErrorKind::InvalidSpec, "the absolute path of a directory"),
            ("/".to_owned(), ErrorKind::InvalidSpec, "a directory other than this machine's own root"),
            (at("file"), ErrorKind::InvalidSpec, "it must be a directory"),
            (at("absent"), ErrorKind::ImagePull, "No such file or directory"),
            (at("empty"), ErrorKind::ImagePull, "it has no program /bin/bash"),
            (at("dangling"), ErrorKind::ImagePull, "it has no program /bin/bash"),
            (at("dir"), ErrorKind::ImagePull, "its /bin/bash is not a file"),
            (at("plain"), ErrorKind::ImagePull, "its /bin/bash cannot be executed"),
            (at("text"), ErrorKind::ImagePull, "its /bin/bash does not work: exit status: "),
            (at("other"), ErrorKind::ImagePull, "its /bin/bash does not work: exit status: "),
        ] {
            let error = refused(bed, &provider, &Spec::new(spec("a").session, image.clone())).await;
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(&image) && error.to_string().contains(rule), "{error}");
        }
        // Whatever the image is called, a sandbox that is there is not touched.
        let s = provider.provision(&spec("a")).await.unwrap();
        for image in ["debian:stable-slim", "/absent"] {
            let error = provider.provision(&Spec::new(spec("a").session, image)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SpecMismatch, "{error}");
        }
        ok(&s, "true").await;
        provider.reap(s.id()).await.unwrap();
    });
}

fn workdirs_anywhere(bed: &Bed) {
    for workdir in ["/home/me/project", "/usr/src/of/mine", "/usr/local", "/etc/mine", "/opt/a", "/var/tmp", "/a b"] {
        for read_only in [false, true] {
            let mut spec = spec("a").with_workdir(SandboxPath::new(workdir).unwrap());
            spec.hardening.read_only_root = read_only;
            bed.with(&spec, |s| async move {
                assert_eq!(ok(&s, "pwd; touch f; ls").await, format!("{workdir}\nf\n"));
                assert_ne!(sh(&s, "touch /usr/bin/x || touch /usr/lib/x").await.exit_code, 0);
                ok(&s, "ls /usr/bin/env /usr/lib").await;
            });
        }
    }
    bed.block(async {
        let provider = bed.provider();
        for workdir in ["/bin/x", "/usr/bin/env/x"] {
            if fs::symlink_metadata("/bin").unwrap().is_symlink() || workdir != "/bin/x" {
                let spec = spec("a").with_workdir(SandboxPath::new(workdir).unwrap());
                let error = provider.provision(&spec).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{error}");
            }
        }
        assert!(!bed.state.join("a").exists());
    });
}

fn images_out_of_reach(bed: &Bed) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o700)).tempdir_in("/var/tmp").unwrap();
    let image = place.path().join("image");
    make_image(&image);
    let image = image.to_str().unwrap();
    bed.block(async {
        let provider = bed.provider();
        let error = refused(bed, &provider, &Spec::new(spec("a").session, image)).await;
        assert_eq!(error.kind(), ErrorKind::Forbidden);
        let rule = format!("may not search {} (mode 0700): let others search it", place.path().display());
        assert!(error.to_string().contains(image) && error.to_string().contains(&rule), "{error}");
        let provider = LocalProvider::new(bed.config().with_shown(image)).unwrap();
        let error = refused(bed, &provider, &spec("a")).await;
        assert!(error.to_string().contains(&rule), "{error}");
    });
}

fn workdirs_nowhere(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let long = format!("/{}", "x".repeat(256));
        let deep = "/x".repeat(2030);
        for (workdir, rule) in [
            ("/etc/passwd", "/etc/passwd is a file in the sandbox"),
            ("/etc/hosts/x", "/etc/hosts is a file in the sandbox"),
            ("/usr", "it would hide /usr/bin/"),
            ("/usr/bin", "it would hide /usr/bin/"),
            ("/.old/x", "/.old is needed for making the sandbox"),
            (&long, "no name may have more than 255"),
            (&deep, "the kernel takes 4095"),
        ] {
            let spec = spec("a").with_workdir(SandboxPath::new(workdir).unwrap());
            let error = refused(bed, &provider, &spec).await;
            assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{error}");
            assert!(error.to_string().contains(rule), "{error}");
        }
        // What cannot be known beforehand is told by who was there: without its libraries no program starts.
        let libraries = fs::canonicalize("/lib").unwrap();
        let spec = spec("a").with_workdir(SandboxPath::new(libraries.to_str().unwrap()).unwrap());
        let error = refused(bed, &provider, &spec).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let text = error.to_string();
        assert!(text.contains("the set-up failed: ") && !text.contains(": line "), "{text}");
        assert!(text.contains("umount"), "{text}");
    });
}

fn workdirs_of_images(bed: &Bed) {
    let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir_in("/var/tmp").unwrap();
    make_image(place.path());
    fs::write(place.path().join("srv/app/file"), "of the image").unwrap();
    fs::create_dir(place.path().join("workspace")).unwrap();
    let image = place.path().to_str().unwrap();
    for workdir in ["/workspace", "/srv", "/srv/app", "/srv/new/deep", "/etc", "/home/me"] {
        for read_only in [false, true] {
            let mut spec = Spec::new(spec("a").session, image).with_networking(Networking::None);
            spec = spec.with_workdir(SandboxPath::new(workdir).unwrap());
            spec.hardening.read_only_root = read_only;
            bed.with(&spec, |s| async move {
                assert_eq!(ok(&s, "pwd; touch f && ls").await, format!("{workdir}\nf\n"));
                assert_ne!(sh(&s, "touch /bin/x").await.exit_code, 0);
            });
        }
    }
    assert!(!place.path().join("workspace/f").exists() && place.path().join("srv/app/file").exists());
    bed.block(async {
        let provider = bed.provider();
        for workdir in ["/bin", "/etc/motd/x"] {
            let spec = Spec::new(spec("a").session, image).with_workdir(SandboxPath::new(workdir).unwrap());
            let error = refused(bed, &provider, &spec).await;
            assert!(error.to_string().contains(workdir), "{error}");
        }
    });
}
