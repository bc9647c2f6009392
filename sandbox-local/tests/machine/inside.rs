//! What a tenant sees of the machine.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;

use sandbox::{Networking, SandboxExt as _};

use crate::bed::{Bed, Needs, Part, Trial, ok, path, sh, spec};

pub(crate) const TRIALS: &[Trial] = &[
    ("inside::runs_bash", Needs::Nothing, runs_bash),
    ("inside::nothing_of_the_host", Needs::Nothing, nothing_of_the_host),
    ("inside::mounts_are_the_planned_ones", Needs::Nothing, mounts_are_the_planned_ones),
    ("inside::submounts_are_read_only", Needs::Nothing, submounts_are_read_only),
    ("inside::the_root_is_the_root", Needs::Nothing, the_root_is_the_root),
    ("inside::no_namespaces_within", Needs::Nothing, no_namespaces_within),
    ("inside::no_privileges", Needs::Nothing, no_privileges),
    ("inside::leaked_descriptors_stay_outside", Needs::Nothing, leaked_descriptors_stay_outside),
    ("inside::ignored_signals_stay_outside", Needs::Nothing, ignored_signals_stay_outside),
    ("inside::no_terminal", Needs::Nothing, no_terminal),
    ("inside::nobody_looks_into_who_enters", Needs::Nothing, nobody_looks_into_who_enters),
    ("inside::no_route", Needs::Nothing, no_route),
    ("inside::host_network", Needs::Nothing, host_network),
    ("inside::orphans_are_reaped", Needs::Nothing, orphans_are_reaped),
    ("inside::signals_stay_inside", Needs::Nothing, signals_stay_inside),
];

pub(crate) const PARTS: &[Part] = &[
    ("submounts_are_read_only_part", submounts_are_read_only_part),
    ("ignored_signals_stay_outside_part", ignored_signals_stay_outside_part),
    ("no_terminal_part", no_terminal_part),
];

fn runs_bash(bed: &Bed) {
    bed.with(&spec("a"), |s| async move {
        assert_eq!(ok(&s, "bash -c true; id -u; id -g; pwd; umask").await, "1000\n1000\n/workspace\n0022\n");
    });
}

fn nothing_of_the_host(bed: &Bed) {
    // Things that anybody on the host can see: a file, an abstract socket, an environment, processes.
    let marker = format!("/var/tmp/sandbox-local-marker-{}", std::process::id());
    fs::write(&marker, "x").unwrap();
    let name = format!("sandbox-local-{}", std::process::id());
    let _socket = UnixListener::bind_addr(
        &<std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&name).unwrap(),
    )
    .unwrap();
    bed.with(&spec("a"), |s| async move {
        assert_eq!(sh(&s, &format!("test -e {marker}")).await.exit_code, 1);
        fs::remove_file(&marker).unwrap();
        assert_eq!(sh(&s, &format!("grep -q {name} /proc/net/unix")).await.exit_code, 1, "the host's sockets");
        for empty in ["/run", "/home", "/root", "/mnt", "/tmp", "/var/tmp", "/sys", "/workspace", "/dev/shm"] {
            assert_eq!(ok(&s, &format!("ls -A {empty}")).await, "", "{empty}");
        }
        assert_eq!(ok(&s, "ls /").await, ok(&s, "ls -A /").await, "no hidden entry");
        assert_eq!(
            ok(&s, "echo $HOST_SECRET; cat /proc/*/environ | tr '\\0' '\\n' | grep -c HOST_SECRET || true").await,
            "\n0\n"
        );
        let commands = ok(&s, "for d in /proc/[0-9]*; do tr '\\0' ' ' < $d/cmdline; echo; done 2>/dev/null").await;
        for line in commands.lines().filter(|l| !l.is_empty()) {
            assert!(
                line.starts_with("/bin/bash") || line.starts_with("/usr/bin/sleep infinity") || line.starts_with("tr "),
                "{line}"
            );
        }
        // Of the first process: no environment, no directory, nothing open but the null device.
        assert_eq!(ok(&s, "cat /proc/1/environ; readlink /proc/1/cwd /proc/1/root").await, "/\n/\n");
        assert_eq!(ok(&s, "for f in /proc/1/fd/*; do readlink $f; done").await, "/dev/null\n".repeat(3));
        for secret in [
            "/etc/shadow",
            "/etc/machine-id",
            "/etc/ssh",
            "/etc/hostname.host",
            "/var/lib/dpkg",
            "/var/log",
            "/.old",
            "/old_root",
        ] {
            assert_eq!(sh(&s, &format!("test -e {secret}")).await.exit_code, 1, "{secret}");
        }
        assert_eq!(
            ok(&s, "cat /etc/hostname; [[ $(</proc/sys/kernel/hostname) == sandbox || ! -x /bin/hostname ]]").await,
            "sandbox\n"
        );
        assert_eq!(ok(&s, "cut -d: -f1 /etc/passwd").await, "root\nsandbox\n");
    });
}

fn mounts_are_the_planned_ones(bed: &Bed) {
    bed.with(&spec("a"), |s| async move {
        let mounts = ok(&s, "cut -d' ' -f5,6 /proc/self/mountinfo").await;
        for line in mounts.lines() {
            let (point, flags) = line.split_once(' ').unwrap();
            let flags: Vec<&str> = flags.split(',').collect();
            let shown = ["/usr", "/etc", "/bin", "/sbin", "/lib"].iter().any(|p| point.starts_with(p));
            assert_eq!(flags.contains(&"ro"), shown || point == "/proc/sys", "{line}");
            assert!(flags.contains(&"nosuid"), "{line}");
            let known = ["/", "/proc", "/proc/sys", "/proc/keys", "/proc/key-users"].contains(&point)
                || point.starts_with("/dev/")
                || shown;
            assert!(known, "{line}");
        }
        for tree in ["/usr", "/usr/bin", "/usr/lib", "/etc/ssl", "/proc/sys"] {
            assert_ne!(sh(&s, &format!("test ! -e {tree} || touch {tree}/x")).await.exit_code, 0, "{tree}");
        }
    });
}

fn submounts_are_read_only(bed: &Bed) {
    // Mounts of many kinds below what is shown: open to all, nested, hidden by another, with a space in the name.
    let text = "mount -t tmpfs -o mode=1777 none /usr/local && mkdir -m 1777 /usr/local/in '/usr/local/a b' /usr/local/hid && \
                mount -t tmpfs -o mode=1777,noexec,noatime none /usr/local/in && mkdir -m 1777 /usr/local/in/deep && \
                mount -t tmpfs -o mode=1777 none /usr/local/in/deep && mount -t tmpfs -o mode=1777 none '/usr/local/a b' && \
                mkdir -m 1777 /usr/local/hid/x && mount -t tmpfs -o mode=1777 none /usr/local/hid/x && \
                mount -t tmpfs -o mode=1777 none /usr/local/hid && exec \"$@\"";
    // A plain user is root enough in a user namespace of its own, where the caller is then yet another kind of caller.
    let (root, user) = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]);
    let mut wrap = if rustix::process::geteuid().is_root() { root.to_vec() } else { user.to_vec() };
    wrap.extend(["bash", "-c", text, "sh"]);
    assert!(bed.again("submounts_are_read_only_part", &wrap).status().unwrap().success());
}

fn submounts_are_read_only_part(bed: &Bed) {
    bed.with(&spec("a"), |s| async move {
        for tree in ["/usr/local", "/usr/local/in", "/usr/local/in/deep", "/usr/local/a b", "/usr/local/hid"] {
            let said = sh(&s, &format!("test -d '{tree}' && touch '{tree}/x'")).await;
            assert_eq!(said.exit_code, 1, "{tree}");
            assert!(said.stderr.to_string_lossy().contains("Read-only file system"), "{tree}: {:?}", said.stderr);
        }
    });
}

fn the_root_is_the_root(bed: &Bed) {
    bed.block(async {
        use sandbox::Provider as _;
        let provider = bed.provider();
        let s = provider.provision(&spec("a")).await.unwrap();
        let of_box = fs::read_dir(bed.state.join("a")).unwrap().flatten().find(|e| e.path().is_dir()).unwrap().path();
        let host = fs::metadata(of_box.join("fs")).unwrap();
        // Wherever one starts from, above the root there is only the root.
        for way in [
            "/",
            "/..",
            "/../../../..",
            "/proc/1/root",
            "/proc/1/root/../..",
            "/proc/self/cwd/../../..",
            "/proc/1/cwd/..",
            "/dev/../..",
        ] {
            assert_eq!(
                ok(&s, &format!("stat -L -c %d:%i {way}")).await,
                format!("{}:{}\n", host.dev(), host.ino()),
                "{way}"
            );
        }
        for attempt in [
            "chroot /usr true",
            "nsenter --target 1 --mount true",
            "nsenter --mount=/proc/1/ns/mnt true",
            "mount --bind /usr /mnt",
            "mount -o remount,bind,rw /usr",
            "umount /proc/sys",
            "umount -l /",
            "pivot_root / /mnt",
            "mknod /tmp/disk b 254 0",
            "mknod /tmp/mem c 1 1",
        ] {
            assert_ne!(sh(&s, attempt).await.exit_code, 0, "{attempt}");
        }
        provider.reap(s.id()).await.unwrap();
    });
}

fn no_namespaces_within(bed: &Bed) {
    bed.with(&spec("a"), |s| async move {
        for kind in
            ["user", "mount", "pid", "net", "ipc", "uts", "cgroup", "user --map-root-user --mount", "user --net"]
        {
            assert_ne!(sh(&s, &format!("unshare --{kind} true")).await.exit_code, 0, "{kind}");
        }
        assert_ne!(sh(&s, "echo 9 > /proc/sys/user/max_user_namespaces").await.exit_code, 0);
    });
}

fn no_privileges(bed: &Bed) {
    bed.with(&spec("a"), |s| async move {
        let status = ok(&s, "cat /proc/self/status").await;
        for line in
            ["NoNewPrivs:\t1", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapInh:\t0000000000000000"]
        {
            assert!(status.contains(line), "{status}");
        }
        // Not even a program that the kernel would give privileges to.
        assert_eq!(ok(&s, "cp /usr/bin/id /tmp/id && chmod 6755 /tmp/id && /tmp/id -u").await, "1000\n");
        assert_ne!(sh(&s, "su -c true || mount -t tmpfs none /mnt").await.exit_code, 0);
        let kernel = fs::read_to_string("/proc/self/status").unwrap();
        assert!(!kernel.contains("NoNewPrivs:\t1"), "the caller stays as it was");
    });
}

fn leaked_descriptors_stay_outside(bed: &Bed) {
    use std::os::fd::AsRawFd as _;

    let secret = tempfile::tempfile().unwrap();
    rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty()).unwrap();
    let state = bed.state.clone();
    bed.with(&spec("a"), |s| async move {
        assert!(secret.as_raw_fd() > 2);
        let seen = ok(&s, "for f in /proc/[0-9]*/fd/*; do echo $f $(readlink $f); done; true").await;
        for line in seen.lines() {
            let known = line.contains("pipe:[")
                || line.ends_with("/dev/null")
                || line.contains("/proc/") && line.ends_with("/fd");
            assert!(known || line.split(' ').nth(1).is_none_or(str::is_empty), "{line}");
        }
        // Nor do the processes outside that belong to the sandbox keep them open.
        drop((writer, secret));
        let mut reader = reader;
        let end = tokio::task::spawn_blocking(move || std::io::Read::read(&mut reader, &mut [0]).unwrap());
        assert_eq!(tokio::time::timeout(std::time::Duration::from_secs(10), end).await.unwrap().unwrap(), 0);
        drop(state);
    });
}

fn ignored_signals_stay_outside(bed: &Bed) {
    let wrap = ["bash", "-c", "trap '' HUP INT TERM CHLD; umask 077; exec \"$@\"", "sh"];
    assert!(bed.again("ignored_signals_stay_outside_part", &wrap).status().unwrap().success());
}

fn ignored_signals_stay_outside_part(bed: &Bed) {
    bed.with(&spec("a"), |s| async move {
        let mask = |text: String| u64::from_str_radix(text.trim(), 16).unwrap() & 0x7fff_ffff;
        assert_eq!(mask(ok(&s, "awk '/^SigIgn/{print $2}' /proc/self/status").await), 0);
        assert_eq!(mask(ok(&s, "awk '/^SigIgn/{print $2}' /proc/1/status").await), 1 << 16, "SIGCHLD alone");
        assert_eq!(ok(&s, "umask").await, "0022\n");
    });
}

fn no_terminal(bed: &Bed) {
    let program = std::env::current_exe().unwrap();
    let mut command = bed.again("no_terminal_part", &["script", "--quiet", "--return", "--command"]);
    let said = command.arg("/dev/null").output().unwrap();
    assert!(said.status.success(), "{} {:?}", program.display(), String::from_utf8_lossy(&said.stdout));
}

fn no_terminal_part(bed: &Bed) {
    assert!(fs::File::open("/dev/tty").is_ok(), "the caller has one");
    bed.with(&spec("a"), |s| async move {
        // Neither the command nor the first process nor anybody else has it.
        assert_ne!(sh(&s, ": < /dev/tty").await.exit_code, 0);
        let terminals = ok(&s, "for f in /proc/[0-9]*/stat; do read -r line < $f; set -- ${line##*) }; echo $5; done | sort -u").await;
        assert_eq!(terminals, "0\n");
        // Nor can the session that the caller's terminal belongs to be joined: there is no name for it in here.
        assert_eq!(ok(&s, "for f in /proc/[0-9]*/stat; do read -r line < $f; set -- ${line##*) }; echo $4; done | sort -un | head -1").await, "0\n");
    });
    assert!(fs::File::open("/dev/tty").is_ok(), "and keeps it");
}

fn nobody_looks_into_who_enters(bed: &Bed) {
    bed.with(&spec("a"), |s| async move {
        // By the time it can be looked into, it is a shell of the sandbox's own.
        let watch = "for ((i = 0; i < 400; i++)); do for p in /proc/[0-9]*; do read -r c < $p/comm; [[ $c == nsenter ]] || continue; \
                     echo met; cat $p/maps | grep nsenter; readlink $p/exe | grep nsenter; readlink $p/root $p/cwd; done; done 2>/dev/null | sort -u";
        let watcher = { let s = std::sync::Arc::clone(&s); tokio::spawn(async move { ok(&s, watch).await }) };
        while !watcher.is_finished() {
            let many = (0..12).map(|_| { let s = std::sync::Arc::clone(&s); tokio::spawn(async move { sh(&s, "sleep 0.02 & disown").await }) });
            for one in many.collect::<Vec<_>>() {
                one.await.unwrap();
            }
        }
        let seen = watcher.await.unwrap();
        assert!(["", "met\n", "/\nmet\n"].contains(&seen.as_str()), "{seen}");
    });
}

fn no_route(bed: &Bed) {
    for networking in [Networking::None, Networking::limited([])] {
        bed.with(&spec("a").with_networking(networking), |s| async move {
            assert_eq!(ok(&s, "tail -n +2 /proc/net/route; tail -n +3 /proc/net/dev | grep -v lo: || true").await, "");
            assert_ne!(sh(&s, "exec 3<>/dev/tcp/192.0.2.1/80").await.exit_code, 0);
            if fs::metadata("/bin/ip").is_ok() || fs::metadata("/sbin/ip").is_ok() {
                // Refused, not unreachable: its own loopback is up.
                let said = sh(&s, "exec 3<>/dev/tcp/127.0.0.1/9").await;
                assert!(said.stderr.to_string_lossy().contains("refused"), "{:?}", said.stderr);
            }
        });
    }
}

fn host_network(bed: &Bed) {
    let host = fs::read_to_string("/proc/net/route").unwrap();
    bed.with(&spec("a").with_networking(Networking::Unrestricted), |s| async move {
        assert_eq!(ok(&s, "cat /proc/net/route").await.lines().count(), host.lines().count());
        let own = fs::read("/etc/resolv.conf").unwrap_or_default();
        assert_eq!(s.read_bytes(&path("/etc/resolv.conf"), 1 << 20).await.unwrap(), own);
    });
}

fn orphans_are_reaped(bed: &Bed) {
    bed.with(&spec("a"), |s| async move {
        ok(&s, "for ((i = 0; i < 500; i++)); do (sleep 0.05 &); done; sleep 0.5").await;
        let zombies = ok(&s, "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l").await;
        assert!(zombies.trim().parse::<u32>().unwrap() <= 5, "{zombies}");
    });
}

fn signals_stay_inside(bed: &Bed) {
    bed.with(&spec("a"), |s| async move {
        // Neither a signal to the own group nor one to all reaches anybody outside, or the first process.
        // Nor does what the shell is made to do, in whose group no command is.
        let shell = "printf '12\\nkill -KILL 0' > /proc/$PPID/fd/0";
        let own = ["kill -TERM 0", "setsid kill -KILL 0", "kill -KILL -1", "kill -KILL 1", "kill -STOP 1"];
        // It reads that between its commands: the last one here meets a shell that is about to go.
        for text in own.into_iter().chain([shell, "true"]) {
            let _ = s.exec(sandbox::ExecRequest::shell(text)).await;
        }
        assert_eq!(ok(&s, "echo here").await, "here\n");
    });
}
