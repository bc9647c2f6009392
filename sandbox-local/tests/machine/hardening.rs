//! Hardening that a spec asks for.

use std::fs;
use std::time::{Duration, Instant};

use sandbox::{CapDrop, ErrorKind, ExecRequest, FileWrite, Hardening, Limit, Provider, SandboxExt as _, SpawnRequest};

use crate::bed::{Bed, Needs, Trial, ok, path, sh, spec};

pub(crate) const TRIALS: &[Trial] = &[
    ("hardening::nobody_uses_up_what_others_need", Needs::Nothing, nobody_uses_up_what_others_need),
    ("hardening::read_only_root", Needs::Nothing, read_only_root),
    ("hardening::run_as", Needs::Nothing, run_as),
    ("hardening::what_cannot_be_is_refused", Needs::Nothing, what_cannot_be_is_refused),
    ("hardening::pids", Needs::Nothing, pids),
    ("hardening::the_fewest_pids", Needs::Nothing, the_fewest_pids),
    ("hardening::memory", Needs::Nothing, memory),
    ("hardening::processor_time", Needs::Nothing, processor_time),
    ("hardening::no_capability_at_all", Needs::Nothing, no_capability_at_all),
];

fn hardened(change: impl FnOnce(&mut Hardening)) -> sandbox::Spec {
    let mut hardening = Hardening::default();
    change(&mut hardening);
    spec("a").with_hardening(hardening)
}

fn read_only_root(bed: &Bed) {
    bed.with(&hardened(|h| h.read_only_root = true), |s| async move {
        for place in ["/workspace", "/tmp", "/mnt"] {
            ok(
                &s,
                &format!("mkdir {place}/d && touch {place}/d/f {place}/g && cp /usr/bin/true {place}/p && {place}/p"),
            )
            .await;
        }
        for place in ["/", "/etc", "/home", "/root", "/run", "/var/tmp", "/var", "/dev", "/usr", "/sys"] {
            let said = sh(&s, &format!("touch {place}/x")).await;
            assert!(said.stderr.to_string_lossy().contains("Read-only file system"), "{place}: {:?}", said.stderr);
        }
        s.write_bytes(&path("/workspace/deep/er/file"), "x").await.unwrap();
        let error = s.write_bytes(&path("/etc/x"), "x").await.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (ErrorKind::NotWritable, Some("Read-only file system")));
        assert_eq!(s.write_bytes(&path("/dev/null"), "x").await.unwrap_err().kind(), ErrorKind::NotReplaceable);
        assert_eq!(s.write_bytes(&path("/etc/hosts"), "x").await.unwrap_err().kind(), ErrorKind::NotReplaceable);
    });
}

fn run_as(bed: &Bed) {
    let numbers = [
        (Some(65_534), None, None, "65534 65534"),
        (Some(7), Some(8), None, "7 8"),
        (None, Some(8), Some(8), "1000 8"),
        (None, None, Some(9), "1000 9"),
    ];
    for (user, group, fs_group, want) in numbers {
        let spec = hardened(|h| (h.run_as_user, h.run_as_group, h.fs_group) = (user, group, fs_group));
        bed.with(&spec, |s| async move {
            let seen = ok(&s, "echo $(id -u) $(id -g); touch f; stat -c '%u %g' f . / /tmp | sort -u").await;
            assert_eq!(seen, format!("{want}\n{want}\n"));
            ok(&s, "tar -cf x.tar f && rm f && tar -xf x.tar && test -f f").await;
        });
    }
    let restricted = spec("a").with_hardening(Hardening::restricted());
    bed.with(&restricted, |s| async move { assert_eq!(ok(&s, "id -u").await, "65534\n") });
}

fn what_cannot_be_is_refused(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let claims = provider.capabilities();
        assert!(!claims.disk_limit && !claims.root_by_default);
        let specs = [
            hardened(|h| h.run_as_user = Some(0)),
            hardened(|h| h.run_as_group = Some(0)),
            hardened(|h| (h.run_as_group, h.fs_group) = (Some(7), Some(8))),
            hardened(|h| h.disk_bytes = Limit::Required(1 << 30)),
        ];
        for spec in specs {
            let error = provider.provision(&spec).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(!bed.state.join("a").exists(), "nothing is made");
        }
    });
}

fn pids(bed: &Bed) {
    bed.with(&hardened(|h| h.pids = Limit::Required(40)), |s| async move {
        // One's own limit can be raised, the sandbox's cannot. Only builtins once the room is used up.
        let text = "ulimit -u 1000; { for ((i = 0; i < 200; i++)); do sleep 100 & done; } 2>/dev/null & sleep 1; all=(/proc/[0-9]*); echo ${#all[@]}
            kill -KILL $!; for p in /proc/[0-9]*; do read c < $p/comm; [[ $p == /proc/1 || $c != sleep ]] || kill -KILL ${p#/proc/}; done";
        let count: u32 = ok(&s, text).await.trim().parse().unwrap();
        assert!((25..=40).contains(&count), "{count}");
        assert_eq!(ok(&s, "echo here").await, "here\n");
    });
}

/// What is said of how many processes a sandbox takes is exact, and who has none left is told.
fn the_fewest_pids(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        for few in 1..8 {
            let error = provider.provision(&hardened(|h| h.pids = Limit::Required(few))).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let rule = format!("hardening pids {few}: it must be at least 8: a local sandbox takes 5 itself");
            assert!(error.to_string().contains(&rule), "{error}");
            assert!(!bed.state.join("a").exists(), "nothing is made");
        }
        for (bound, at_once) in
            [(Limit::Required(8), 1), (Limit::Preferred(1), 1), (Limit::Required(11), 2), (Limit::Required(14), 3)]
        {
            for _ in 0..3 {
                let s = provider.provision(&hardened(|h| h.pids = bound)).await.unwrap();
                let begun = Instant::now();
                let sleep = || s.exec(ExecRequest::args(["sleep", "0.2"]).with_limit(Duration::from_secs(20)));
                let all = futures::future::join_all((0..at_once).map(|_| sleep())).await;
                assert!(all.iter().all(|r| r.as_ref().is_ok_and(|r| r.success())), "{bound:?}: {all:?}");
                // A shell that finds no room tries again a second later.
                assert!(begun.elapsed() < Duration::from_millis(1200), "{bound:?}: {:?}", begun.elapsed());
                provider.reap(s.id()).await.unwrap();
            }
        }
        // One command more than there is room for.
        let s = provider.provision(&hardened(|h| h.pids = Limit::Required(8))).await.unwrap();
        let busy = s.spawn(SpawnRequest::args(["sleep", "60"])).await.unwrap();
        let calls = [
            s.exec(ExecRequest::shell("true").with_limit(Duration::from_secs(5))).await.map(|_| ()),
            s.read(&path("/etc/passwd"), 1 << 20).await.map(|_| ()),
            s.write(FileWrite::bytes(path("/workspace/f"), "x")).await,
        ];
        for error in calls.map(Result::unwrap_err) {
            assert!(error.to_string().contains("hardening pids 8: no process was left for it; "), "{error}");
        }
        drop(busy);
        provider.reap(s.id()).await.unwrap();
    });
}

fn no_capability_at_all(bed: &Bed) {
    for cap_drop in [CapDrop::none(), CapDrop::all()] {
        bed.with(&hardened(|h| h.cap_drop = cap_drop), |s| async move {
            assert_eq!(ok(&s, "awk '/^CapEff/{print $2}' /proc/self/status").await, "0000000000000000\n");
            assert_ne!(sh(&s, "touch f && chown 0 f").await.exit_code, 0);
        });
    }
}

fn memory(bed: &Bed) {
    let spec = hardened(|h| h.memory_bytes = Limit::Required(64 << 20));
    if !bed.provider().capabilities().memory_limit {
        return assert_unsupported(bed, &spec);
    }
    bed.with(&spec, |s| async move {
        let said = sh(&s, "head -c 300M /dev/zero | tail > /dev/null").await;
        assert_ne!(said.exit_code, 0, "{said:?}");
        assert_eq!(ok(&s, "head -c 8M /dev/zero | tail -c 1 | wc -c").await, "1\n");
    });
    groups_come_and_go(bed, &spec);
}

fn groups_come_and_go(bed: &Bed, spec: &sandbox::Spec) {
    let groups = bed.with(spec, |s| async move {
        ok(&s, "true").await;
        let record: serde_json::Value = serde_json::from_slice(&fs::read(bed.state.join("a/record")).unwrap()).unwrap();
        record["cgroups"].as_array().unwrap().iter().map(|g| g.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(groups.len(), 1);
    assert!(groups.iter().all(|g| !std::path::Path::new(g).exists()), "{groups:?}");
}

fn processor_time(bed: &Bed) {
    let spec = hardened(|h| h.cpu_millis = Limit::Required(200));
    if !bed.provider().capabilities().cpu_limit {
        return assert_unsupported(bed, &spec);
    }
    bed.with(&spec, |s| async move {
        let loops =
            "timeout 2 bash -c 'for ((;;)); do :; done' & timeout 2 bash -c 'for ((;;)); do :; done'; wait; times";
        let said = ok(&s, loops).await;
        let spent: f64 = said.lines().nth(1).unwrap().split(' ').map(seconds).sum();
        assert!(spent < 1.0, "{said}");
    });
    groups_come_and_go(bed, &spec);
}

/// `0m1.234s`.
fn seconds(text: &str) -> f64 {
    let (minutes, seconds) = text.trim_end_matches('s').split_once('m').unwrap();
    minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
}

fn assert_unsupported(bed: &Bed, spec: &sandbox::Spec) {
    let error = bed.block(async { bed.provider().provision(spec).await }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(!bed.state.join("a").exists(), "nothing is made");
}

/// What the kernel counts for a user, one sandbox cannot use up for the others, nor for the caller.
fn nobody_uses_up_what_others_need(bed: &Bed) {
    let number = if cfg!(target_arch = "x86_64") { 294 } else { 26 };
    let most: u64 = fs::read_to_string("/proc/sys/user/max_inotify_instances").unwrap().trim().parse().unwrap();
    let all = format!("perl -e '$n++ while syscall({number}, 0) >= 0; $| = 1; print $n + 0; sleep 1000 if @ARGV'");
    bed.block(async {
        let provider = bed.provider();
        let a = provider.provision(&spec("a")).await.unwrap();
        let b = provider.provision(&spec("b")).await.unwrap();
        ok(
            &a,
            &format!(
                "ulimit -n 4096 2>/dev/null; {all} keep > n & while [[ ! -s n ]]; do read -t 0.01 < <(:) || :; done"
            ),
        )
        .await;
        let first: u64 = ok(&a, "cat n").await.parse().unwrap();
        let wanted = if rustix::process::geteuid().is_root() { most } else { most / 4 };
        assert!(first > 0 && first <= wanted, "{first} of {most}");
        let second: u64 = ok(&b, &all).await.parse().unwrap();
        assert_eq!(second, first, "the other one has as many");
        rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).expect("and the caller has some");
        // Signals that wait for somebody who does not take them.
        let flood = "perl -MPOSIX -e 'sigprocmask(SIG_BLOCK, POSIX::SigSet->new(40)); kill(40, $$) for 1 .. $ARGV[0]; \
                     open F, \"/proc/self/status\"; /^SigQ:\\s(\\d+)/ and print $1 while <F>'";
        let limit = rustix::process::getrlimit(rustix::process::Resource::Sigpending).current.unwrap();
        let pending: u64 = ok(&a, &format!("{flood} {}", limit / 4 + 1000)).await.parse().unwrap();
        if !rustix::process::geteuid().is_root() {
            assert!(pending <= limit / 4, "{pending} of {limit}");
        }
        provider.reap(a.id()).await.unwrap();
        provider.reap(b.id()).await.unwrap();
    });
}
