//! Other processes, images, and machines that forbid it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandbox::{ErrorKind, Provider, Spec};
use sandbox_local::{Cgroup, LocalConfig, LocalProvider};

use crate::bed::{Bed, Needs, Part, Trial, ok, owned, sh, spec};

pub(crate) const TRIALS: &[Trial] = &[
    ("outside::racing_processes_converge", Needs::Nothing, racing_processes_converge),
    ("outside::odd_places", Needs::Nothing, odd_places),
    ("outside::values_stay_across_processes", Needs::Nothing, values_stay_across_processes),
    ("outside::deployments_know_nothing_of_each_other", Needs::Nothing, deployments_know_nothing_of_each_other),
    ("outside::an_image_is_a_directory", Needs::Nothing, an_image_is_a_directory),
    ("outside::shown_trees", Needs::Nothing, shown_trees),
    ("outside::configurations_that_cannot_be", Needs::Nothing, configurations_that_cannot_be),
    ("outside::root_of_a_user_namespace", Needs::Nothing, root_of_a_user_namespace),
    ("outside::users_of_root_are_nobody", Needs::Root, users_of_root_are_nobody),
];

pub(crate) const PARTS: &[Part] =
    &[("race_part", race_part), ("env_part", env_part), ("namespace_part", namespace_part)];

fn race_part(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let s = provider.provision(&spec("a")).await.unwrap();
        ok(&s, "echo x >> /workspace/racers").await;
    });
}

fn racing_processes_converge(bed: &Bed) {
    for _ in 0..4 {
        let mut racers: Vec<_> = (0..6).map(|_| bed.again("race_part", &[]).spawn().unwrap()).collect();
        assert!(racers.iter_mut().all(|r| r.wait().unwrap().success()));
        bed.block(async {
            let provider = bed.provider();
            assert_eq!(owned(&provider).await.len(), 1);
            let s = provider.attach(&spec("a").session).await.unwrap();
            assert_eq!(s.recreated(), None);
            assert_eq!(ok(&s, "wc -l < /workspace/racers").await, "6\n", "all were in the same sandbox");
            provider.reap(s.id()).await.unwrap();
        });
    }
}

fn odd_places(bed: &Bed) {
    for name in
        ["a b", "tab\tline\nend", "back\\slash", "#hash", "'quote\"", "\u{e9}\u{4e2d}", "-rf", "$(id)", "x,y=z:w"]
    {
        let place = bed.state.parent().unwrap().join(name);
        bed.block(async {
            let provider = LocalProvider::new(bed.config().with_state_dir(&place)).unwrap();
            for read_only in [false, true] {
                let mut spec = spec("a");
                spec.hardening.read_only_root = read_only;
                let s = provider.provision(&spec).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
                assert_eq!(ok(&s, "echo here > f; cat f").await, "here\n");
                provider.reap(s.id()).await.unwrap();
            }
            assert!(owned(&provider).await.is_empty());
        });
        fs::remove_dir(&place).unwrap();
    }
}

fn env_part(bed: &Bed) {
    bed.block(async {
        let env = sandbox::Env::new().with("BOUND", "second").unwrap().with("NEW", "1").unwrap();
        let s = bed.provider().provision(&spec("a").with_env(env)).await.unwrap();
        assert_eq!(ok(&s, "echo $BOUND $NEW").await, "first\n");
    });
}

fn values_stay_across_processes(bed: &Bed) {
    let odd = "a b\nc'd\"e$(x)\\ \u{e9}";
    let env = sandbox::Env::new().with("BOUND", "first").unwrap().with("ODD", odd).unwrap();
    let env = env.with("LD_PRELOAD", "/nonexistent.so").unwrap();
    bed.with(&spec("a").with_env(env), |s| async move {
        assert_eq!(ok(&s, "printf %s \"$ODD\"").await, odd);
        assert!(bed.again("env_part", &[]).status().unwrap().success());
        // What belongs to the tenant never meets a program of the host: none of them could have loaded it.
        let said = sh(&s, "true").await;
        assert_eq!(said.exit_code, 0);
        assert!(!ok(&s, "cat /proc/1/environ | tr '\\0' '\\n'").await.contains("BOUND"));
    });
}

fn deployments_know_nothing_of_each_other(bed: &Bed) {
    bed.block(async {
        let one = bed.provider();
        let other = LocalProvider::new(bed.config().with_state_dir(bed.state.join("../state2"))).unwrap();
        let s = one.provision(&spec("a")).await.unwrap();
        assert_eq!(other.attach(s.id()).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert!(owned(&other).await.is_empty());
        other.reap(s.id()).await.unwrap();
        ok(&s, "true").await;
        one.reap(s.id()).await.unwrap();
    });
}

/// A small root file system: bash and what it needs, a few programs, and traps where the host's programs would be looked for.
pub(crate) fn make_image(at: &Path) {
    let programs = ["bash", "cat", "ls", "id", "dd", "touch", "mkdir", "stat", "wc"];
    for directory in ["bin", "etc", "lib", "opt/tool", "srv/app/data", "tmp", "var/tmp", "usr/bin"] {
        fs::create_dir_all(at.join(directory)).unwrap();
    }
    for program in programs {
        let from = ["/bin", "/usr/bin"].map(|d| Path::new(d).join(program));
        let from = from.iter().find(|p| p.exists()).unwrap();
        fs::copy(from, at.join("bin").join(program)).unwrap();
        let listed = Command::new("ldd").arg(from).output().unwrap();
        for word in String::from_utf8(listed.stdout).unwrap().split_ascii_whitespace().filter(|w| w.starts_with('/')) {
            let to = at.join(word.trim_start_matches('/'));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(word, to).unwrap();
        }
    }
    for trap in ["umount", "mount", "unshare", "nsenter", "sleep", "env", "setpriv", "setsid", "pivot_root", "ip"] {
        let text = "#!/bin/bash\necho trapped > /tmp/trapped; echo trapped > /workspace/trapped\n";
        for place in ["bin", "usr/bin"] {
            fs::write(at.join(place).join(trap), text).unwrap();
            fs::set_permissions(at.join(place).join(trap), fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    fs::write(at.join("etc/hosts"), "image").unwrap();
    fs::write(at.join("etc/motd"), "an image").unwrap();
    fs::write(at.join("opt/tool/file"), "tool").unwrap();
    std::os::unix::fs::symlink("opt/tool", at.join("tool")).unwrap();
}

fn an_image_is_a_directory(bed: &Bed) {
    let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir_in("/var/tmp").unwrap();
    make_image(place.path());
    let image = place.path().to_str().unwrap();
    let mut spec = Spec::new(spec("a").session, image).with_networking(sandbox::Networking::None);
    for read_only in [false, true] {
        spec.hardening.read_only_root = read_only;
        bed.with(&spec, |s| async move {
            assert_eq!(
                ok(&s, "cat /etc/motd; cat tool/file /tool/file 2>/dev/null; id -u").await,
                "an imagetool1000\n"
            );
            assert_eq!(
                ok(&s, "ls /tmp /workspace /var/tmp").await,
                "/tmp:\n\n/var/tmp:\n\n/workspace:\n",
                "no trap went off"
            );
            for place in ["/etc", "/bin", "/opt/tool", "/srv"] {
                let said = sh(&s, &format!("touch {place}/x")).await;
                assert!(said.stderr.to_string_lossy().contains("Read-only file system"), "{place}: {:?}", said.stderr);
            }
            assert_eq!(sh(&s, "touch /var/tmp/x").await.exit_code, i32::from(read_only));
            assert!(ok(&s, "cat /etc/hosts").await.contains("localhost"));
            assert_eq!(sh(&s, "ls /usr/share /home").await.exit_code, 2, "the host's own trees");
        });
    }
}

fn shown_trees(bed: &Bed) {
    let place = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir_in("/var/tmp").unwrap();
    fs::write(place.path().join("data"), "shown").unwrap();
    bed.block(async {
        let provider = LocalProvider::new(bed.config().with_shown(place.path())).unwrap();
        for read_only in [false, true] {
            let mut spec = spec("a");
            spec.hardening.read_only_root = read_only;
            let s = provider.provision(&spec).await.unwrap();
            let at = place.path().display();
            assert_eq!(ok(&s, &format!("cat {at}/data")).await, "shown");
            assert_ne!(sh(&s, &format!("touch {at}/x")).await.exit_code, 0);
            provider.reap(s.id()).await.unwrap();
        }
        let workspace = Path::new("/workspace");
        let trees = [Some("/usr/share"), workspace.exists().then_some("/workspace")];
        for tree in trees.into_iter().flatten() {
            let provider = LocalProvider::new(bed.config().with_shown(tree)).unwrap();
            let error = provider.provision(&spec("a")).await.unwrap_err();
            assert!(error.to_string().contains(tree), "{error}");
            assert!(!bed.state.join("a").exists());
        }
    });
}

/// Each value that breaks a rule: refused by the constructor, by field, value and rule, on one line.
fn configurations_that_cannot_be(bed: &Bed) {
    let place = bed.state.parent().unwrap();
    let file = place.join("file");
    fs::write(&file, "").unwrap();
    let root = rustix::process::geteuid().is_root();
    let config = || bed.config();
    let at = |path: &Path| bed.config().with_state_dir(path);
    let mut table = vec![
        (at(&file), format!("state_dir {}: it is a file where a directory must be", file.display())),
        (at(Path::new("relative")), "state_dir relative: it must be an absolute path".to_owned()),
        (at(Path::new("/proc/x")), "state_dir /proc/x: ".to_owned()),
        (config().with_shown("usr"), "show usr: it must be an absolute path".to_owned()),
        (config().with_shown("/"), "show /: it must not be, hold or lie in /proc".to_owned()),
        (config().with_shown("/dev/shm"), "show /dev/shm: it must not be, hold or lie in /dev".to_owned()),
        (config().with_shown("/etc"), "show /etc: it must not be /etc, of which".to_owned()),
        (config().with_shown("/absent"), "show /absent: No such file or directory".to_owned()),
        (
            config().with_state_dir("/var/tmp/state/x").with_shown("/var/tmp"),
            "show /var/tmp: it must not hold the state directory /var/tmp/state/x".to_owned(),
        ),
        (config().with_cgroup(Cgroup::At("/absent".into())), "cgroup /absent: No such file or directory".to_owned()),
        (
            config().with_cgroup(Cgroup::At("/tmp".into())),
            "cgroup /tmp: it must be in a control group hierarchy".to_owned(),
        ),
    ];
    // Also from a file: there is no other way in than the constructor.
    let of_file = |config: LocalConfig| serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
    let day = Duration::from_secs(24 * 3600);
    for (name, with) in [
        ("begin_timeout", LocalConfig::with_begin_timeout as fn(LocalConfig, Duration) -> LocalConfig),
        ("inactivity", LocalConfig::with_inactivity),
        ("start_timeout", LocalConfig::with_start_timeout),
        ("stop_timeout", LocalConfig::with_stop_timeout),
    ] {
        for time in [Duration::ZERO, day + Duration::from_nanos(1), Duration::MAX] {
            table.push((of_file(with(config(), time)), format!("{name} {time:?}: more than 0 and at most a day")));
        }
        LocalProvider::new(with(config(), day)).unwrap();
    }
    table.push((
        of_file(config().with_lock_timeout(Duration::MAX)),
        format!("lock_timeout {:?}: at most a day", Duration::MAX),
    ));
    LocalProvider::new(config().with_lock_timeout(day)).unwrap();
    if root {
        std::os::unix::fs::chown(&file, Some(54_321), None).unwrap();
        fs::create_dir(place.join("others")).unwrap();
        fs::set_permissions(place.join("others"), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(place.join("others"), Some(54_321), None).unwrap();
        let rule = "it must belong to user 0 with mode 0700, and belongs to user 54321 with mode 0700".to_owned();
        table.push((at(&place.join("others")), rule));
        table.push((config().with_first_uid(0), "first_uid 0: it must be above 0".to_owned()));
        table.push((
            config().with_first_uid(u32::MAX - 5),
            "first_uid 4294967290: it must be above 0 and leave".to_owned(),
        ));
    } else {
        table.push((
            at(Path::new("/usr/x")),
            "state_dir /usr/x: /usr belongs to user 0 with mode 0755: Permission denied".to_owned(),
        ));
        table.push((
            at(Path::new("/usr")),
            format!(
                "it must belong to user {} with mode 0700, and belongs to user 0",
                rustix::process::geteuid().as_raw()
            ),
        ));
    }
    for (config, rule) in table {
        let error = LocalProvider::new(config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{error}");
        assert!(error.to_string().contains(&rule) && !error.to_string().contains('\n'), "{rule}: {error}");
    }
}

fn namespace_part(bed: &Bed) {
    let error = LocalProvider::new(LocalConfig::default()).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{text}");
    let of_nobody = "belongs to a user who does not exist in this user namespace (shown as 65534)";
    if std::env::var_os("BY_ROOT").is_some() {
        assert!(
            text.contains("first_uid 1879048192: the 65536 users from there on do not exist in this user namespace"),
            "{text}"
        );
        assert!(text.contains("(its uid_map is 0 0 1)"), "{text}");
    } else {
        assert!(text.contains("state_dir /var/lib/sandbox-local: ") && text.contains(of_nobody), "{text}");
        let error = LocalProvider::new(bed.config().with_state_dir("/usr")).unwrap_err();
        assert!(error.to_string().contains(of_nobody), "{error}");
    }
}

/// Who is root by name alone is told what is in the way.
fn root_of_a_user_namespace(bed: &Bed) {
    let unshare = ["unshare", "--user", "--map-root-user"];
    let mut command = bed.again("namespace_part", &unshare);
    if rustix::process::geteuid().is_root() {
        command.env("BY_ROOT", "1");
    }
    assert!(command.status().unwrap().success());
}

fn users_of_root_are_nobody(bed: &Bed) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    bed.block(async {
        let provider = bed.provider();
        let (mut users, mut shown) = (std::collections::HashSet::new(), std::collections::HashSet::new());
        for session in ["a", "b", "c"] {
            let s = provider.provision(&spec(session)).await.unwrap();
            let mut child = Command::new("sleep").arg("0").stdin(Stdio::null()).spawn().unwrap();
            child.wait().unwrap();
            s.exec(sandbox::ExecRequest::shell("(sleep 31.4159 &)").with_limit(Duration::from_secs(5))).await.unwrap();
        }
        for pid in crate::bed::processes_of(&bed.state) {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let Some(line) = status.lines().find(|l| l.starts_with("Uid:")) else { continue };
            let uids: Vec<u32> = line[4..].split_ascii_whitespace().map(|n| n.parse().unwrap()).collect();
            assert!(uids.iter().all(|uid| (0x7000_0000..0x7001_0000).contains(uid)), "{status}");
            users.insert(uids[0]);
            shown.extend(fs::metadata(format!("/proc/{pid}")).map(|meta| std::os::unix::fs::MetadataExt::uid(&meta)));
        }
        assert_eq!(users.len(), 3, "each has a user of its own");
        assert!(users.is_subset(&shown), "whoever looks for a free user sees these: {users:?}, and {shown:?}");
        for session in ["a", "b", "c"] {
            provider.reap(&spec(session).session).await.unwrap();
        }
    });
}
