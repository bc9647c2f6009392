//! How sandboxes end, and what is left.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandbox::{Death, ErrorKind, ExecRequest, FileWrite, OwnedState, Provider, SandboxExt as _, SpawnRequest};
use sandbox_local::LocalProvider;

use crate::bed::{Bed, Needs, Part, Trial, left_of, ok, owned, path, processes_of, sh, spec};

pub(crate) const TRIALS: &[Trial] = &[
    ("ends::nothing_is_left", Needs::Nothing, nothing_is_left),
    ("ends::a_stopped_shell_does_not_hold_it_up", Needs::Nothing, a_stopped_shell_does_not_hold_it_up),
    ("ends::who_stops_its_shells_delays_nobody_for_long", Needs::Nothing, who_stops_its_shells_delays_nobody_for_long),
    ("ends::hostile_files_go", Needs::Nothing, hostile_files_go),
    ("ends::a_dead_one_is_replaced_and_says_so", Needs::Nothing, a_dead_one_is_replaced_and_says_so),
    ("ends::a_dead_one_is_not_taken_for_its_successor", Needs::Nothing, a_dead_one_is_not_taken_for_its_successor),
    ("ends::a_killed_parent_takes_it_along", Needs::Nothing, a_killed_parent_takes_it_along),
    ("ends::a_killed_creator_leaves_nothing_unlisted", Needs::Nothing, a_killed_creator_leaves_nothing_unlisted),
    ("ends::a_killed_reaper_can_be_repeated", Needs::Nothing, a_killed_reaper_can_be_repeated),
    ("ends::it_outlives_its_creator", Needs::Nothing, it_outlives_its_creator),
    ("ends::a_restart_of_the_machine_is_told", Needs::Nothing, a_restart_of_the_machine_is_told),
    ("ends::who_cannot_look_does_not_conclude", Needs::Nothing, who_cannot_look_does_not_conclude),
    ("ends::a_fork_bomb_ends", Needs::Nothing, a_fork_bomb_ends),
    ("ends::a_full_sandbox_says_so", Needs::Nothing, a_full_sandbox_says_so),
];

pub(crate) const PARTS: &[Part] = &[
    ("provision_part", provision_part),
    ("reap_part", reap_part),
    ("blind_part", blind_part),
    ("fill_part", fill_part),
];

/// What the record says of the processes of session `a`: the first one, and its parent.
fn processes(bed: &Bed) -> (Pid, Pid) {
    let text = fs::read_to_string(alive_file(bed)).unwrap();
    let fields: Vec<&str> = text.split(' ').collect();
    (Pid::from_raw(fields[0].parse().unwrap()).unwrap(), Pid::from_raw(fields[3].parse().unwrap()).unwrap())
}

pub(crate) fn alive_file(bed: &Bed) -> PathBuf {
    let boxes = fs::read_dir(bed.state.join("a")).unwrap().flatten().map(|e| e.path().join("alive"));
    boxes.into_iter().find(|p| p.exists()).unwrap()
}

pub(crate) fn assert_nothing_left(bed: &Bed) {
    // The program's own copy lies elsewhere; the processes of a sandbox are gone when the reap returns.
    assert_eq!(left_of(bed.state.parent().unwrap()), Vec::<String>::new());
}

fn nothing_is_left(bed: &Bed) {
    bed.with(&spec("a"), |s| async move {
        ok(&s, "sleep 1000 & (setsid sleep 1000 &) ; mkdir -p x/y; echo > x/y/z; exec 3>/tmp/open; sleep 1000 >&3 &")
            .await;
        let _ = s.exec(ExecRequest::shell("sleep 1000").with_limit(Duration::from_millis(50))).await.unwrap();
    });
    assert_nothing_left(bed);
}

fn a_stopped_shell_does_not_hold_it_up(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let s = provider.provision(&spec("a")).await.unwrap();
        ok(&s, "true").await;
        // Stops every shell of the platform's in there, and with them whatever waits for those outside.
        let text =
            "for d in /proc/[0-9]*; do d=${d#/proc/}; ((d == 1 || d == $$)) || kill -STOP $d; done; kill -STOP $$";
        let _ = s.exec(ExecRequest::shell(text).with_limit(Duration::from_millis(500))).await;
        let begun = Instant::now();
        provider.reap(s.id()).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    });
    assert_nothing_left(bed);
}

fn who_stops_its_shells_delays_nobody_for_long(bed: &Bed) {
    let second = Duration::from_secs(1);
    bed.block(async {
        let config = bed.config().with_begin_timeout(second).with_inactivity(second);
        let provider = LocalProvider::new(config).unwrap();
        let s = provider.provision(&spec("a")).await.unwrap();
        // Whatever runs or comes is stopped, by somebody whom no order reaches.
        let stop = "for ((;;)); do for d in /proc/[0-9]*; do d=${d#/proc/}; ((d == 1 || d == $$)) || kill -STOP $d; done; done";
        let text = format!("setsid env -u __sbx_exec bash -c '{stop}' </dev/null >/dev/null 2>&1 & sleep 60");
        let begun = Instant::now();
        let _ = s.exec(ExecRequest::shell(text).with_limit(second)).await;
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let all = async {
            let content = vec![b'x'; 1 << 20];
            let f = path("/workspace/f");
            tokio::join!(
                async { s.exec(ExecRequest::shell("true").with_limit(second)).await.map(drop) },
                async { s.spawn(SpawnRequest::shell("true")).await.map(drop) },
                async { s.read_bytes(&f, 100).await.map(drop) },
                async { s.write(FileWrite::bytes(f.clone(), content)).await },
                async { provider.export(s.id(), &f).await?.finish().await },
            )
        };
        let begun = Instant::now();
        let outcomes = tokio::time::timeout(Duration::from_secs(15), all).await.expect("every call ends");
        assert!(begun.elapsed() < Duration::from_secs(12), "{:?}: {outcomes:?}", begun.elapsed());
        provider.reap(s.id()).await.unwrap();
    });
    assert_nothing_left(bed);
}

fn hostile_files_go(bed: &Bed) {
    bed.with(&spec("a"), |s| async move {
        ok(&s, "mkdir -p p/q/r; touch p/q/r/f; ln -s /usr p/usr; ln -s / p/root; chmod 000 p/q/r p/q p; mkfifo fifo; ulimit -n 64").await;
        ok(&s, "d=$(printf 'd%.0s' {1..200}); for ((i = 0; i < 500; i++)); do mkdir $d && cd $d || exit 1; done").await;
        ok(&s, "cd /tmp; mkdir many; cd many; for ((i = 0; i < 2000; i++)); do mkdir -m 000 $i; done; touch $'a\\nb' -- -rf; chmod 0 /tmp /workspace").await;
    });
    assert_nothing_left(bed);
    assert!(fs::metadata("/usr/bin/bash").is_ok());
}

fn a_dead_one_is_replaced_and_says_so(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let first = provider.provision(&spec("a")).await.unwrap();
        assert_eq!(first.recreated(), None);
        ok(&first, "echo x > /workspace/f").await;
        kill_process(processes(bed).0, Signal::KILL).unwrap();
        for _ in 0..500 {
            if provider.attach(first.id()).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let error = provider.attach(first.id()).await.unwrap_err();
        assert_eq!((error.kind(), error.death()), (ErrorKind::NotFound, Some(Death::Ended)));
        let error = first.exec(ExecRequest::shell("true")).await.unwrap_err();
        assert_eq!((error.kind(), error.death()), (ErrorKind::NotFound, Some(Death::Ended)));
        let owned = owned(&provider).await;
        assert_eq!(owned.iter().map(|o| o.state).collect::<Vec<_>>(), [OwnedState::Ended]);

        let second = provider.provision(&spec("a")).await.unwrap();
        let other = bed.provider();
        for handle in [
            &second,
            &provider.attach(second.id()).await.unwrap(),
            &other.attach(second.id()).await.unwrap(),
            &other.provision(&spec("a")).await.unwrap(),
        ] {
            assert_eq!(handle.recreated().unwrap().reason, Death::Ended);
        }
        assert_eq!(sh(&second, "test -e /workspace/f").await.exit_code, 1);
        let error = first.exec(ExecRequest::shell("true")).await.unwrap_err();
        assert_eq!((error.kind(), error.death()), (ErrorKind::NotFound, Some(Death::Replaced)));
        first.destroy().await.unwrap();
        ok(&second, "true").await;
        provider.reap(second.id()).await.unwrap();
        // A reap ends the story: what comes after it is new.
        assert_eq!(provider.provision(&spec("a")).await.unwrap().recreated(), None);
        provider.reap(second.id()).await.unwrap();
    });
    assert_nothing_left(bed);
}

/// The kernel gives the numbers of a dead sandbox's namespaces to the next one; here always.
fn a_dead_one_is_not_taken_for_its_successor(bed: &Bed) {
    let record = |session: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(bed.state.join(session).join("record")).unwrap()).unwrap()
    };
    bed.block(async {
        let provider = bed.provider();
        let dead = provider.provision(&spec("a")).await.unwrap();
        kill_process(processes(bed).0, Signal::KILL).unwrap();
        for _ in 0..500 {
            if provider.attach(dead.id()).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let next = provider.provision(&spec("b")).await.unwrap();
        let mut of_dead = record("a");
        of_dead["identity"]["namespaces"] = record("b")["identity"]["namespaces"].clone();
        fs::write(bed.state.join("a/record"), of_dead.to_string()).unwrap();
        let begun = Instant::now();
        provider.reap(dead.id()).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        ok(&next, "true").await;
        provider.reap(next.id()).await.unwrap();
    });
    assert_nothing_left(bed);
}

fn a_killed_parent_takes_it_along(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let s = provider.provision(&spec("a")).await.unwrap();
        ok(&s, "sleep 1000 &").await;
        let (init, parent) = processes(bed);
        kill_process(parent, Signal::KILL).unwrap();
        for _ in 0..500 {
            if rustix::process::test_kill_process(init).is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(rustix::process::test_kill_process(init).is_err(), "the first process outlives its parent");
        assert_eq!(provider.provision(&spec("a")).await.unwrap().recreated().unwrap().reason, Death::Ended);
        provider.reap(s.id()).await.unwrap();
    });
    assert_nothing_left(bed);
}

fn provision_part(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let s = provider.provision(&spec("a")).await.unwrap();
        ok(&s, "true").await;
        std::future::pending::<()>().await;
    });
}

/// Kills a process that provisions after ever longer times; each time what it left must be listed, or nothing, and one provision or reap
/// must clean it.
fn a_killed_creator_leaves_nothing_unlisted(bed: &Bed) {
    let mut seen = std::collections::BTreeMap::new();
    for round in 0..60u64 {
        let mut child = bed.again("provision_part", &[]).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(round * 1_500));
        child.kill().unwrap();
        child.wait().unwrap();
        bed.block(async {
            let provider = bed.provider();
            let owned = owned(&provider).await;
            let state = owned.first().map(|o| format!("{:?}", o.state)).unwrap_or_default();
            *seen.entry(state.clone()).or_insert(0) += 1;
            if owned.is_empty() {
                assert!(processes_of(&bed.state).is_empty(), "round {round}: processes that nobody lists");
            }
            if round % 2 == 0 {
                let s = provider
                    .provision(&spec("a"))
                    .await
                    .unwrap_or_else(|e| panic!("round {round} after {state}: {e:?}"));
                assert_eq!(s.recreated(), None, "nobody ever had a dead one");
                ok(&s, "true").await;
            }
            provider.reap(&spec("a").session).await.unwrap_or_else(|e| panic!("round {round} after {state}: {e:?}"));
        });
        assert_nothing_left(bed);
    }
    assert!(seen.len() > 1, "the kills hit one state only: {seen:?}");
}

fn fill_part(bed: &Bed) {
    bed.block(async {
        let s = bed.provider().provision(&spec("a")).await.unwrap();
        ok(&s, "for ((i = 0; i < 300; i++)); do mkdir -p d$i/e; echo > d$i/e/f; done; (sleep 1000 &)").await;
    });
}

fn reap_part(bed: &Bed) {
    bed.block(async { bed.provider().reap(&spec("a").session).await.unwrap() });
}

fn a_killed_reaper_can_be_repeated(bed: &Bed) {
    for round in 0..16u64 {
        assert!(bed.again("fill_part", &[]).status().unwrap().success());
        let mut child = bed.again("reap_part", &[]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(round * 2));
        child.kill().unwrap();
        child.wait().unwrap();
        bed.block(async {
            let provider = bed.provider();
            let owned = owned(&provider).await;
            if owned.is_empty() {
                assert!(processes_of(&bed.state).is_empty(), "round {round}: processes that nobody lists");
            }
            if round % 2 == 0 {
                let s = provider.provision(&spec("a")).await.unwrap();
                ok(&s, "true").await;
            }
            provider.reap(&spec("a").session).await.unwrap();
        });
        assert_nothing_left(bed);
    }
}

fn it_outlives_its_creator(bed: &Bed) {
    assert!(bed.again("fill_part", &[]).status().unwrap().success());
    bed.block(async {
        let provider = bed.provider();
        let s = provider.attach(&spec("a").session).await.unwrap();
        assert_eq!(
            ok(&s, "ls -d d* | wc -l; pgrep -c sleep || ls /proc | grep -c '^[0-9]'").await.lines().next(),
            Some("300")
        );
        s.destroy().await.unwrap();
        s.destroy().await.unwrap();
        assert_eq!(s.exec(ExecRequest::shell("true")).await.unwrap_err().kind(), ErrorKind::NotFound);
    });
    assert_nothing_left(bed);
}

fn a_restart_of_the_machine_is_told(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let s = provider.provision(&spec("a")).await.unwrap();
        let file = bed.state.join("a/record");
        let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        record["boot"] = "an earlier one".into();
        fs::write(&file, record.to_string()).unwrap();
        let error = provider.attach(s.id()).await.unwrap_err();
        assert_eq!((error.kind(), error.death()), (ErrorKind::NotFound, Some(Death::NodeLost)));
        let s = provider.provision(&spec("a")).await.unwrap();
        assert_eq!(s.recreated().unwrap().reason, Death::NodeLost);
        provider.reap(s.id()).await.unwrap();
    });
    assert_nothing_left(bed);
}

/// A process without a free descriptor cannot see whether the sandbox lives.
fn blind_part(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        // The runtime needs what it has; everything else is used up.
        let mut held = Vec::new();
        while let Ok(file) = fs::File::open("/dev/null") {
            held.push(file);
        }
        for left in 0..6 {
            for error in [provider.provision(&spec("a")).await.err(), provider.attach(&spec("a").session).await.err()] {
                let kind = error.map(|e| e.kind());
                assert!(
                    matches!(kind, None | Some(ErrorKind::Unavailable | ErrorKind::Other)),
                    "{left} left: {kind:?}"
                );
            }
            held.pop();
        }
    });
}

fn who_cannot_look_does_not_conclude(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let s = provider.provision(&spec("a")).await.unwrap();
        ok(&s, "echo kept > f").await;
        let status = bed.again("blind_part", &["bash", "-c", "ulimit -n 40; exec \"$@\"", "sh"]).status().unwrap();
        assert!(status.success());
        assert_eq!(ok(&s, "cat f").await, "kept\n");
        assert_eq!(provider.provision(&spec("a")).await.unwrap().recreated(), None);
        provider.reap(s.id()).await.unwrap();
    });
    assert_nothing_left(bed);
}

fn a_fork_bomb_ends(bed: &Bed) {
    bed.block(async {
        let provider = bed.provider();
        let s = provider.provision(&spec("a")).await.unwrap();
        let bomb = ExecRequest::shell("bomb() { bomb | bomb & }; bomb; sleep 100").with_limit(Duration::from_secs(2));
        let _ = s.exec(bomb).await;
        let begun = Instant::now();
        provider.reap(s.id()).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    });
    assert_nothing_left(bed);
}

fn a_full_sandbox_says_so(bed: &Bed) {
    bed.block(async {
        let mut full = spec("a");
        full.hardening.pids = sandbox::Limit::Required(64);
        let provider = bed.provider();
        let s = provider.provision(&full).await.unwrap();
        // Out of the killer's sight: what fills the sandbox outlives its command, and goes on when no fork succeeds.
        let fill = r#"t='trap '\''exec bash -c "$0" "$0"'\'' EXIT; while :; do sleep 1000 & done'
            for i in 1 2 3; do env -i setsid bash -c "$t" "$t" </dev/null >/dev/null 2>&1 & done; sleep 1"#;
        let _ = s.exec(ExecRequest::shell(fill).with_limit(Duration::from_secs(5))).await;
        drop((s, provider));
        let begun = Instant::now();
        loop {
            // A provider that has no shell in there. As the shells of the last one ended, its own may still fit.
            let s = bed.provider().attach(&full.session).await.unwrap();
            let result = s.exec(ExecRequest::shell("true").with_limit(Duration::from_secs(1))).await;
            if result.as_ref().is_err_and(|e| e.to_string().contains("of 64 that it may have (pids)")) {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::Lost);
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{result:?}");
        }
        bed.provider().reap(&full.session).await.unwrap();
    });
    assert_nothing_left(bed);
}
