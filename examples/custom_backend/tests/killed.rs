//! Whoever is killed in the midst of a life leaves nothing that the next one does not see, end or remove.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use custom_backend::Bays;
use isolation::{
    Backend, BackendExt, ExecSpec, Grant, HostCommand, HostPath, NodeSpec, OpCtx, Purpose, SlotName, SlotPair,
    SlotState,
};

const KILLS: u32 = 50;

const DIR: &str = "KILLED_DIR";

fn bays(dir: &Path) -> Bays {
    // By its last argument it is known for one of this directory.
    let main =
        HostCommand::new("sh", ["-c", "trap '' TERM; setsid sleep 60 & exec sleep 60", &dir.display().to_string()]);
    Bays::new(dir.join("slots"), SlotPair::default(), main)
}

fn ctx() -> OpCtx {
    OpCtx::new(Duration::from_secs(60))
}

fn spec(slot: &SlotName, grants: usize) -> NodeSpec {
    let node = |n| Grant::mount(Purpose::HostMount, HostPath::new(&format!("/srv/{n}")).unwrap());
    NodeSpec::new(slot.clone()).with_grants((0..grants).map(node).collect())
}

/// Processes whose slot is below `dir`: their environment has the secret of its supervisor, or they stand in it.
fn processes(dir: &Path) -> Vec<String> {
    let of = |pid: &std::ffi::OsStr| std::fs::read_link(Path::new("/proc").join(pid).join("cwd")).ok();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let ours = all.filter(|entry| of(&entry.file_name()).is_some_and(|cwd| cwd.starts_with(dir)));
    ours.map(|entry| {
        format!("{} {:?}", entry.file_name().display(), std::fs::read_to_string(entry.path().join("comm")))
    })
    .collect()
}

#[tokio::test]
#[ignore = "the one that is killed; the other test starts it"]
async fn lives_until_it_is_killed() {
    let dir = std::env::var(DIR).expect("the other test names a directory");
    let bays = bays(Path::new(&dir));
    println!("begun");
    for round in 0.. {
        for slot in SlotPair::default().both() {
            bays.prepare(&ctx(), &spec(slot, 0)).await.unwrap();
            bays.prepare(&ctx(), &spec(slot, 1 + round % 3)).await.unwrap();
            bays.start(&ctx(), slot).await.unwrap();
            bays.exec_ok(&ctx(), slot, &ExecSpec::new(["sh", "-c", "setsid sleep 60 & touch etc/x"])).await.unwrap();
            bays.restart(&ctx(), slot).await.unwrap();
            bays.stop(&ctx(), slot).await.unwrap();
            if round % 2 == 0 {
                bays.destroy(&ctx(), slot).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn whoever_comes_after_one_that_was_killed_finds_its_way() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let mut states = std::collections::BTreeMap::new();
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["lives_until_it_is_killed", "--exact", "--ignored", "--nocapture"])
            .env(DIR, &dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        assert!(output.lines().map_while(Result::ok).any(|line| line.contains("begun")), "it does not begin");
        // Not a wait for something: a moment in its life that nobody knows.
        std::thread::sleep(Duration::from_micros(u64::from(kill) * 37_000 % 161_000));
        assert_eq!(child.try_wait().unwrap(), None, "it fails before it is killed");
        child.kill().unwrap();
        child.wait().unwrap();
        let bays = bays(&dir);
        for slot in SlotPair::default().both() {
            let state = bays.status(&ctx(), slot).await.unwrap().state;
            assert!(matches!(state, SlotState::Absent | SlotState::Prepared), "{state:?}");
            *states.entry(state).or_insert(0) += 1;
        }
        if kill % 3 == 0 {
            // What was cut short must be prepared again first.
            let booted = bays.boot(&ctx()).await;
            assert!(booted.is_ok() || booted.unwrap_err().kind() == isolation::ErrorKind::NotPrepared);
        }
        let slots = SlotPair::default();
        for (slot, other) in [(slots.a(), slots.b()), (slots.b(), slots.a())] {
            if kill % 2 == 0 {
                bays.stop(&ctx(), other).await.unwrap();
                bays.prepare(&ctx(), &spec(slot, 2)).await.unwrap();
                bays.start(&ctx(), slot).await.unwrap();
                bays.exec_ok(&ctx(), slot, &ExecSpec::new(["test", "-d", "etc"])).await.unwrap();
            }
            bays.destroy(&ctx(), slot).await.unwrap();
        }
        assert_eq!(processes(&dir), [""; 0], "after kill {kill}");
        let left: Vec<_> = std::fs::read_dir(dir.join("slots")).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "after kill {kill}: {left:?}");
    }
    assert_eq!(states.len(), 2, "it was always killed at the same place: {states:?}");
}
