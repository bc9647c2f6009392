//! Code that decides by the effect of a failure comes through, whatever fails.

mod plain;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use conformance::sandbox::{Faults, faulty};
use sandbox::{ByteStream, Error, ErrorKind, Provider, SandboxExt, SandboxPath, SessionId, SpawnRequest, Spec};
use tokio::time::timeout;

/// Repeats what may be repeated.
async fn patient<T, F: Future<Output = Result<T, Error>>>(call: impl Fn() -> F, failures: &mut usize) -> T {
    for _ in 0..200 {
        match call().await {
            Ok(answer) => return answer,
            Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Lost | ErrorKind::DeadlineExceeded) => {
                *failures += 1;
            }
            Err(e) => panic!("{e:?}"),
        }
    }
    panic!("two hundred failures in a row")
}

async fn listed(provider: &Arc<dyn Provider>) -> Result<Vec<SessionId>, Error> {
    let (mut owned, mut all) = (provider.owned().await?, Vec::new());
    while let Some(entry) = owned.next().await {
        all.push(entry?.session);
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patient_caller_loses_nothing_and_leaves_nothing() {
    let mut failures = 0;
    for seed in 0..12 {
        let world = plain::World::new();
        let provider = faulty(world.provider(), Faults::new(seed).with_rate(0.4));
        let spec = Spec::new(SessionId::generate(), "host").with_hardening(sandbox::Hardening::none());
        let path = SandboxPath::new("/tmp/f").unwrap();
        let sandbox = patient(|| provider.provision(&spec), &mut failures).await;
        let content = vec![b'x'; 300_000];
        patient(|| sandbox.write_bytes(&path, content.clone()), &mut failures).await;
        let back = patient(|| sandbox.read_bytes(&path, 1 << 20), &mut failures).await;
        assert_eq!(back, content, "seed {seed}");
        let result = patient(|| sandbox.exec_str("stat -c '%s %a' /tmp/f; ls -A /tmp"), &mut failures).await;
        assert_eq!(result.stdout.bytes, "300000 644\nf\n", "seed {seed}");
        patient(|| provider.reap(&spec.session), &mut failures).await;
        assert!(listed(&world.provider()).await.unwrap().is_empty(), "seed {seed}");
    }
    assert!(failures > 12, "the dice never fell: {failures}");
}

/// All that comes of a stream, and whether it came to its end.
async fn told(stream: &mut ByteStream) -> (Vec<u8>, Option<Error>) {
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await {
        match piece {
            Ok(piece) => all.extend_from_slice(&piece),
            Err(e) => return (all, Some(e)),
        }
    }
    (all, None)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_a_spawned_command_is_cut_and_says_so() {
    let world = plain::World::new();
    let spec = Spec::new(SessionId::generate(), "host").with_hardening(sandbox::Hardening::none());
    drop(world.provider().provision(&spec).await.unwrap());
    let (mut cut, mut whole, mut failures) = (0, 0, 0);
    for seed in 0..60 {
        let provider = faulty(world.provider(), Faults::new(seed).with_rate(0.5));
        let sandbox = patient(|| provider.attach(&spec.session), &mut failures).await;
        let Ok(mut process) = sandbox.spawn(SpawnRequest::shell("seq 1 40000; echo error >&2; exit 3")).await else {
            continue;
        };
        let ends = async {
            let (stdout, stderr) = (&mut process.stdout, &mut process.stderr);
            let (out, err) = tokio::join!(told(stdout), told(stderr));
            (out, err, process.wait().await)
        };
        let ((out, cut_off), (err, err_cut_off), exit) = timeout(Duration::from_secs(30), ends).await.unwrap();
        let wanted: String = (1..=40_000).map(|n| format!("{n}\n")).collect();
        assert!(wanted.as_bytes().starts_with(&out), "seed {seed}: not what was printed");
        assert_eq!(exit.unwrap().code, 3, "seed {seed}");
        assert_eq!(cut_off.is_some(), err_cut_off.is_some(), "seed {seed}: both are cut, or neither");
        match cut_off {
            Some(e) => assert_eq!(e.kind(), ErrorKind::Lost, "seed {seed}"),
            None => assert_eq!((out.len(), &err[..]), (wanted.len(), &b"error\n"[..]), "seed {seed}"),
        }
        if err_cut_off.is_some() { cut += 1 } else { whole += 1 }
    }
    assert!(cut >= 2 && whole >= 10, "the dice never fell: {cut} cut, {whole} whole");
    world.provider().reap(&spec.session).await.unwrap();
}

#[tokio::test]
async fn one_seed_is_one_sequence_of_faults() {
    async fn sequence(seed: u64) -> Vec<Option<ErrorKind>> {
        let world = plain::World::new();
        let provider = faulty(world.provider(), Faults::new(seed).with_rate(0.5));
        let session = SessionId::generate();
        let mut kinds = Vec::new();
        for _ in 0..20 {
            kinds.push(provider.attach(&session).await.err().map(|e| e.kind()));
        }
        kinds
    }
    assert_eq!(sequence(7).await, sequence(7).await);
    assert_ne!(sequence(7).await, sequence(8).await);
}
