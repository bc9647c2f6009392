//! What file operations cost, over plain pipes: run it with `--release -- --ignored --nocapture`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it measures, and prints what it measured")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::Bare;
use sandbox::{ExecRequest, FileWrite, SandboxPath};
use sandbox_guest::Guest;

fn path(dir: &Path, name: &str) -> SandboxPath {
    SandboxPath::new(dir.join(name).to_str().unwrap()).unwrap()
}

/// Measures `work` turn by turn with `true`, so that what else the machine does weighs on both.
async fn beside_true<F: Future<Output = ()>>(guest: &Guest, what: &str, mut work: impl FnMut(usize) -> F) {
    const TIMES: usize = 300;
    let (mut took, mut nothing) = (Vec::new(), Vec::new());
    for i in 0..TIMES {
        let begun = Instant::now();
        guest.exec(ExecRequest::args(["true"])).await.unwrap();
        nothing.push(begun.elapsed());
        let begun = Instant::now();
        work(i).await;
        took.push(begun.elapsed());
    }
    took.sort();
    nothing.sort();
    let times = took[TIMES / 2].as_secs_f64() / nothing[TIMES / 2].as_secs_f64();
    println!("{what:28} p50 {:>9.3?}  p95 {:>9.3?}, {times:.2} of `true`", took[TIMES / 2], took[TIMES * 95 / 100]);
}

fn rate(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / (1 << 20) as f64 / took.as_secs_f64()
}

async fn read(guest: &Guest, path: &SandboxPath) -> usize {
    guest.read(path, 1 << 40).await.unwrap().finish().await.unwrap() as usize
}

#[tokio::test]
#[ignore = "measures"]
async fn one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let (guest, _) = Bare::default().guest(d);
    guest.warm_up().await.unwrap();
    let begun = Instant::now();
    read(&guest, &SandboxPath::new("/proc/version").unwrap()).await;
    println!("the first file operation of a stream     {:?}", begun.elapsed());
    for size in [100usize, 4096, 65_536] {
        let content = vec![b'x'; size];
        let write = |name: String| guest.write(FileWrite::bytes(path(d, &name), content.clone()));
        beside_true(
            &guest,
            &format!("write {size}, new"),
            |i| async move { write(format!("{size}.{i}")).await.unwrap() },
        )
        .await;
        beside_true(&guest, &format!("write {size}, over"), |_| async move { write("over".into()).await.unwrap() })
            .await;
        beside_true(&guest, &format!("write {size}, with parents"), |i| async move {
            write(format!("{size}/{i}/c/f")).await.unwrap()
        })
        .await;
        let file = path(d, "over");
        beside_true(&guest, &format!("read {size}"), |_| async { assert_eq!(read(&guest, &file).await, size) }).await;
    }
    for size in [64usize << 20] {
        let content = bytes::Bytes::from(vec![b'x'; size]);
        let begun = Instant::now();
        guest.write(FileWrite::bytes(path(d, "big"), content)).await.unwrap();
        println!(
            "write {:4} MiB                           {:.0} MiB/s",
            size >> 20,
            rate(size as u64, begun.elapsed())
        );
        let begun = Instant::now();
        assert_eq!(read(&guest, &path(d, "big")).await, size);
        println!(
            "read  {:4} MiB                           {:.0} MiB/s",
            size >> 20,
            rate(size as u64, begun.elapsed())
        );
    }
}

#[tokio::test]
#[ignore = "measures"]
async fn many() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let (guest, _) = Bare::default().guest(d);
    guest.warm_up().await.unwrap();
    std::fs::create_dir(d.join("src")).unwrap();
    for i in 0..1000 {
        std::fs::write(d.join(format!("src/{i}")), [b'x'; 4096]).unwrap();
    }
    for round in 0..4 {
        let pipe = format!("mkdir t{round}; tar -C src -cf - . | tar -C t{round} -xf -");
        let begun = Instant::now();
        assert!(std::process::Command::new("sh").arg("-c").arg(pipe).current_dir(d).status().unwrap().success());
        println!("1,000 files of 4 KiB, tar through a pipe {:?}", begun.elapsed());
        for what in ["new", "over"] {
            let files =
                (0..1000).map(|i| FileWrite::bytes(path(d, &format!("{round}/{}/{i}", i % 10)), vec![b'x'; 4096]));
            let begun = Instant::now();
            guest.write_many(sandbox::FileBatch::new(files.collect::<Vec<_>>())).await.unwrap();
            println!("1,000 files of 4 KiB, {what:4}               {:?}", begun.elapsed());
        }
    }
}
