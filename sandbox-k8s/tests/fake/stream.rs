//! Streams of commands: either protocol, and frames that are not as they should be.

use std::time::{Duration, Instant};

use fake_apiserver::{Cut, ExecFault, Gate, On, Options, Protocol, Rule};
use sandbox::{Effect, Error, ErrorKind, Provider, SandboxExt};
use serde_json::json;

use crate::bed::{Bed, exec, fails, side_by_side, text, within, works};

/// A command with output on both streams, a file there and back.
async fn everything_works(bed: &Bed, what: &str) {
    let spec = bed.spec();
    let provider = bed.provider();
    let sandbox = within(what, provider.provision(&spec)).await.unwrap_or_else(|e| panic!("{what}: {e:?}"));
    works(&sandbox).await;
    let content: Vec<u8> = (0..2000u32).flat_map(u32::to_le_bytes).collect();
    let path = bed.path("file");
    let outcome: Result<(), Error> = async {
        within(what, sandbox.write_bytes(&path, content.clone())).await?;
        assert!(within(what, sandbox.read_bytes(&path, content.len())).await? == content, "{what}: another content");
        let result = exec(&sandbox, "cat file; cat file >&2").await?;
        assert!(result.stdout.bytes == content && result.stderr.bytes == content, "{what}: another output");
        Ok(())
    }
    .await;
    outcome.unwrap_or_else(|e| panic!("{what}: {e:?}"));
    within(what, provider.reap(&spec.session)).await.unwrap();
}

#[tokio::test]
async fn either_protocol_does_alone() {
    for protocol in [Protocol::V4, Protocol::V5] {
        let bed = Bed::with(Options::new().protocols(&[protocol])).await;
        everything_works(&bed, protocol.name()).await;
    }
}

/// More than what any buffer on the way holds.
const LARGE: usize = 64 << 20;

#[tokio::test]
async fn large_files_go_in_and_out_by_either_protocol() {
    for protocol in [Protocol::V4, Protocol::V5] {
        let bed = Bed::with(Options::new().protocols(&[protocol])).await;
        let (spec, provider, what) = (bed.spec(), bed.provider(), protocol.name());
        let sandbox = within(what, provider.provision(&spec)).await.unwrap();
        // No two pieces of it are the same.
        let content: Vec<u8> = (0..LARGE as u32 / 4).flat_map(u32::to_le_bytes).collect();
        let long = Duration::from_secs(300);
        let path = bed.path("tree/large");
        tokio::time::timeout(long, sandbox.write_bytes(&path, content.clone())).await.unwrap().unwrap();
        assert!(std::fs::read(bed.file("tree/large")).unwrap() == content, "{what}: what lands is another");
        let read = tokio::time::timeout(long, sandbox.read_bytes(&path, LARGE)).await.unwrap().unwrap();
        assert!(read == content, "{what}: what is read is another");
        drop(read);
        let export = within(what, provider.export(&spec.session, &bed.path("tree"))).await.unwrap();
        let archive = tokio::time::timeout(long, export.collect(LARGE + (1 << 20))).await.unwrap().unwrap();
        let mut archive = tar::Archive::new(&archive[..]);
        let mut file = archive.entries().unwrap().nth(1).unwrap().unwrap();
        let mut exported = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut exported).unwrap();
        assert!(exported == content, "{what}: what is exported is another");
        let text = format!("cat {} | wc -c", bed.file("tree/large").display());
        assert_eq!(exec(&sandbox, &text).await.unwrap().stdout.to_string_lossy().trim(), LARGE.to_string(), "{what}");
    }
}

#[tokio::test]
async fn frames_that_are_not_as_they_should_be_change_nothing() {
    let success = json!({"status": "Success", "metadata": {}});
    let faults = [
        ExecFault::new().omit_status(),
        ExecFault::new().lie_status(&success),
        ExecFault::new().garbage_status(b"}no status{"),
        ExecFault::new().garbage_status(b""),
        ExecFault::new().half_status(Cut::Fin),
        ExecFault::new().one_byte_per_frame(),
        ExecFault::new().empty_frames(),
        ExecFault::new().unknown_channels(),
        ExecFault::new().one_byte_per_frame().empty_frames().unknown_channels().omit_status(),
        ExecFault::new().no_pong(),
        ExecFault::new().never_ends(),
    ];
    let both = faults.map(|fault| [Protocol::V4, Protocol::V5].map(|protocol| fault.clone().only(protocol)));
    let each = both.into_iter().flatten().map(|fault| async move {
        let bed = Bed::new().await;
        let what = format!("{fault:?}");
        let rule = bed.api.rule(Rule::when(On::exec()).exec(fault));
        everything_works(&bed, &what).await;
        assert!(rule.acted() >= 2, "{what}");
    });
    side_by_side(each).await;
}

#[tokio::test]
async fn a_status_of_success_makes_no_success_of_a_command_that_was_cut_off() {
    let bed = Bed::new().await;
    let success = json!({"status": "Success", "metadata": {}});
    bed.api.rule(Rule::when(On::exec()).exec(ExecFault::new().lie_status(&success)));
    let sandbox = within("provision", bed.provider().provision(&bed.spec())).await.unwrap();
    // The shell that would say how the command ended is killed first.
    let error = exec(&sandbox, "printf half; kill -9 $PPID; sleep 1; exit 0").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost | ErrorKind::Protocol), "{error:?}");
    assert_eq!(error.effect(), Effect::Unknown);
}

#[tokio::test]
async fn a_network_that_swallows_everything_holds_no_command_beyond_its_limit() {
    let bed = Bed::new().await;
    let gate = Gate::new();
    bed.api.rule(Rule::when(On::exec()).exec(ExecFault::new().freeze_at(&gate)));
    let sandbox = within("provision", bed.provider().provision(&bed.spec())).await.unwrap();
    let begun = bed.file("begun");
    let limit = Duration::from_secs(2);
    let command = text(&format!("touch {}; sleep 30", begun.display())).with_limit(limit).with_grace(limit);
    let since = Instant::now();
    let run = tokio::spawn(async move { sandbox.exec(command).await });
    while !begun.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gate.open();
    match within("exec", run).await.unwrap() {
        Ok(result) => assert!(result.timed_out && !result.success(), "{result:?}"),
        Err(error) => assert_eq!(error.effect(), Effect::Unknown, "{error:?}"),
    }
    assert!(since.elapsed() < Duration::from_secs(12), "{:?}", since.elapsed());
}

#[tokio::test]
async fn shells_that_may_not_be_opened_are_named() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    drop(within("provision", bed.provider().provision(&spec)).await.unwrap());
    let sandbox = bed.provider().attach(&spec.session).await.unwrap();
    bed.api.rule(Rule::when(On::exec()).answer(403));
    let error = fails(exec(&sandbox, "true").await, ErrorKind::Forbidden);
    assert_eq!(error.effect(), Effect::None);
    assert!(error.reason().unwrap().contains("pods/exec"), "{error:?}");
}

#[tokio::test]
async fn every_connection_ends_at_once_and_the_next_command_works() {
    let each = [Cut::Close, Cut::Fin, Cut::Rst].map(|cut| async move {
        let bed = Bed::new().await;
        let sandbox = within("provision", bed.provider().provision(&bed.spec())).await.unwrap();
        works(&sandbox).await;
        let begun = bed.file("begun");
        let (running, command) = (std::sync::Arc::clone(&sandbox), format!("touch {}; sleep 20", begun.display()));
        let run = tokio::spawn(async move { running.exec(text(&command)).await });
        while !begun.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bed.api.cut_connections(cut);
        let error = fails(within("exec", run).await.unwrap(), ErrorKind::Lost);
        assert_eq!((error.effect(), error.death()), (Effect::Unknown, None), "{cut:?}");
        works(&sandbox).await;
    });
    side_by_side(each).await;
}
