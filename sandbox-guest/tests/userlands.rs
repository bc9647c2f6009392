//! Everything that the scripts do, with this machine's tools and with BusyBox's alone, in the C locale and in a UTF-8 one.
//!
//! [`ROWS`] is the table: a row for each thing that they do. That no function of a script is without one is a test of its own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use common::Bare;
use common::exec::*;
use common::files::*;
use common::userland::Userland;
use futures::FutureExt;
use sandbox::{Body, Env, Error, ErrorKind, ExecRequest, FileBatch, FileWrite, Process, Signal, SpawnRequest};
use sandbox_guest::Guest;
use tokio::io::AsyncWriteExt;

/// What is done, and a test of it.
type Row = (&'static str, for<'a> fn(&'a Place) -> Pin<Box<dyn Future<Output = ()> + 'a>>);

const ROWS: &[Row] = &[
    ("exec: streams, code and working directory", |p| Box::pin(streams(p))),
    ("exec: long texts", |p| Box::pin(long_texts(p))),
    ("exec: programs and their arguments", |p| Box::pin(programs(p))),
    ("exec: variables", |p| Box::pin(variables(p))),
    ("exec: limits", |p| Box::pin(limits(p))),
    ("exec: a dropped one", |p| Box::pin(dropped(p))),
    ("exec: what it leaves in the background", |p| Box::pin(stragglers(p))),
    ("exec: a client that is gone", |p| Box::pin(no_client(p))),
    ("spawn: input and output", |p| Box::pin(conversation(p))),
    ("spawn: signals, kill and limit", |p| Box::pin(signals(p))),
    ("read", |p| Box::pin(reads(p))),
    ("write", |p| Box::pin(writes(p))),
    ("write: given up", |p| Box::pin(given_up(p))),
    ("write_many", |p| Box::pin(batches(p))),
    ("export", |p| Box::pin(exports(p))),
];

/// Where a row is tried: a directory of its own, and shells with some tools in some locale.
struct Place {
    dir: PathBuf,
    through: Vec<String>,
    locale: &'static str,
    /// What each shell is told before its script.
    before: &'static str,
}

impl Place {
    fn guest(&self) -> (Guest, Arc<Bare>) {
        let env = vec![("LC_ALL", self.locale), ("PATH", "/usr/bin:/bin")];
        Bare { env, through: self.through.clone(), noise: self.before, ..Bare::default() }.guest(&self.dir)
    }
}

/// Tries every row with these tools in this locale.
async fn try_all(userland: impl FnOnce(&Path) -> Option<Userland>, locale: &'static str, before: &'static str) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let Some(userland) = userland(dir.path()) else { return };
    let mut failed = Vec::new();
    for (i, (what, row)) in ROWS.iter().enumerate() {
        // Not a letter of ASCII in it.
        let dir = dir.path().join(format!("{i} é\u{1f980}"));
        std::fs::create_dir(&dir).unwrap();
        let place = Place { dir, through: userland.through.clone(), locale, before };
        if AssertUnwindSafe(row(&place)).catch_unwind().await.is_err() {
            failed.push(what);
        }
    }
    assert!(failed.is_empty(), "in {locale}: {failed:?}");
}

#[tokio::test]
async fn usual_tools_in_c() {
    try_all(|_| Some(Userland::usual()), "C", "").await;
}

#[tokio::test]
async fn usual_tools_in_utf_8() {
    try_all(|_| Some(Userland::usual()), "C.UTF-8", "").await;
}

#[tokio::test]
async fn busybox_in_c() {
    try_all(Userland::busybox, "C", "").await;
}

#[tokio::test]
async fn busybox_in_utf_8() {
    try_all(Userland::busybox, "C.UTF-8", "").await;
}

/// A function that no row comes by has no place in the table: seen by a trap in every shell, once for each function.
#[tokio::test]
async fn every_function_of_the_scripts_has_its_row() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let trap = format!(
        "declare -A seen; trap 'set -T; [[ ${{seen[x$FUNCNAME]}} ]] || {{ seen[x$FUNCNAME]=1; printf \"%s\\n\" \"$FUNCNAME\" >>{}; }}' DEBUG\n",
        log.path().display()
    );
    try_all(|_| Some(Userland::usual()), "C", Box::leak(trap.into_boxed_str())).await;
    let log = std::fs::read_to_string(log.path()).unwrap();
    let seen: BTreeSet<&str> = log.lines().collect();
    let mut defined = BTreeSet::new();
    for script in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts")).unwrap() {
        let text = std::fs::read_to_string(script.unwrap().path()).unwrap();
        let names = text.lines().filter_map(|line| line.split_once("() {")).map(|(name, _)| name.to_owned());
        defined.extend(names.filter(|name| name.starts_with("__sbx_")));
    }
    assert!(defined.len() > 50, "{defined:?}");
    let unseen: Vec<_> = defined.iter().filter(|name| !seen.contains(name.as_str())).collect();
    assert!(unseen.is_empty(), "no row comes by {unseen:?}");
}

async fn streams(place: &Place) {
    let (guest, _) = place.guest();
    let result = run(&guest, "pwd; printf 'é\\377' >&2; cat; exit 7").await;
    assert_eq!(result.stdout.bytes, format!("{}\n", place.dir.display()));
    assert_eq!((result.stderr.bytes.as_ref(), result.exit_code), (&b"\xc3\xa9\xff"[..], 7));
    let result = run(&guest, "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 124").await;
    for stream in [&result.stdout, &result.stderr] {
        assert_eq!((stream.bytes.len(), stream.total), (1 << 20, 3_000_000));
    }
    assert_eq!((result.exit_code, result.timed_out), (124, false));
    for (name, kind) in [("no/such", ErrorKind::FileNotFound), ("file", ErrorKind::NotDirectory)] {
        std::fs::write(place.dir.join("file"), "").unwrap();
        let request = ExecRequest::shell("true").with_workdir(at(&place.dir.join(name)));
        assert_eq!(within(guest.exec(request)).await.unwrap_err().kind(), kind);
    }
}

async fn long_texts(place: &Place) {
    let (guest, _) = place.guest();
    // Lengths are in bytes, in whatever locale; the longest argument that the kernel takes is among them.
    for count in [8 << 10, 65_519, 65_520, 65_521, 1 << 19] {
        let text = format!("a='{}'; LC_ALL=C; echo \"${{#a}}\"\n\n", "é".repeat(count));
        let result = run(&guest, &text).await;
        assert_eq!(
            (result.stdout.bytes, result.stderr.bytes),
            (format!("{}\n", 2 * count).into(), "".into()),
            "{count}"
        );
    }
}

async fn programs(place: &Place) {
    let (guest, _) = place.guest();
    let words: [&[u8]; 6] = [b"printf", b"%s|", "é b".as_bytes(), b"$(id)'\"\n", b"\xff", b""];
    let result = run_request(&guest, ExecRequest::args(words)).await;
    assert_eq!(result.stdout.bytes, "é b|$(id)'\"\n|".as_bytes().iter().chain(b"\xff||").copied().collect::<Vec<_>>());
    for (name, code, said) in [("no-such-é", 127, "command not found"), ("/", 126, "Is a directory")] {
        let result = run_request(&guest, ExecRequest::args([name])).await;
        assert_eq!((result.stderr.bytes, result.exit_code), (format!("{name}: {said}\n").into(), code));
    }
    let script = place.dir.join("script");
    write(&guest, &script, b"#! /bin/sh\necho \"$1\"").await.unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(run_request(&guest, ExecRequest::args([script.to_str().unwrap(), "é"])).await.stdout.bytes, "é\n");
}

async fn variables(place: &Place) {
    let (guest, _) = place.guest();
    let env = Env::new().with("PLAIN", "é b").unwrap().with("IFS", "x").unwrap().with("UID", "7").unwrap();
    for request in [ExecRequest::args(["env"]), ExecRequest::shell("env")] {
        let result = run_request(&guest, request.with_env(env.clone())).await;
        let seen = result.stdout.to_string_lossy().into_owned();
        for wanted in ["PLAIN=é b", "UID=7", &format!("LC_ALL={}", place.locale)] {
            assert!(seen.lines().any(|line| line == wanted), "{wanted} in {seen}");
        }
    }
    let characters = if place.locale.ends_with("UTF-8") { "1\n" } else { "2\n" };
    assert_eq!(run(&guest, "a=é; echo ${#a}").await.stdout.bytes, characters);
}

async fn limits(place: &Place) {
    let (guest, _) = place.guest();
    let mark = mark();
    let text = format!("echo head; setsid sleep {mark} & (sleep {mark} &); sleep {mark}");
    let result = run_request(&guest, ExecRequest::shell(text).with_limit(secs(1.0))).await;
    assert_eq!((result.exit_code, result.timed_out, result.elapsed < secs(8.0)), (137, true, true), "{result:?}");
    assert_eq!((result.stdout.bytes.as_ref(), result.stderr.bytes.as_ref()), (&b"head\n"[..], &b""[..]));
    until("all of them die", || marked(&mark).is_empty()).await;
    let text = "trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let result = run_request(&guest, ExecRequest::shell(text).with_limit(secs(1.0)).with_grace(secs(10.0))).await;
    assert_eq!((result.stdout.bytes.as_ref(), result.timed_out), (&b"ready\ncleaned\n"[..], true));
    let result = run_request(&guest, ExecRequest::shell("kill -9 $$").with_limit(secs(20.0))).await;
    assert_eq!((result.exit_code, result.timed_out, result.stderr.bytes.as_ref()), (137, false, &b""[..]));
}

async fn dropped(place: &Place) {
    let (guest, _) = place.guest();
    let mark = mark();
    let text = format!("setsid sleep {mark} & exec sleep {mark}");
    tokio::select! {
        result = guest.exec(ExecRequest::shell(text)) => panic!("{result:?}"),
        () = until("it begins", || marked(&mark).len() == 2) => {}
    }
    until("both die", || marked(&mark).is_empty()).await;
}

async fn stragglers(place: &Place) {
    let (guest, _) = place.guest();
    let text = "(until [ -e go ]; do echo tick; echo >>ticks; sleep 0.05; done; echo >end) & echo started";
    let result = run_request(&guest, ExecRequest::shell(text).with_limit(secs(20.0))).await;
    assert_eq!((result.exit_code, result.timed_out), (0, false));
    let size = |name: &str| std::fs::metadata(place.dir.join(name)).map_or(0, |m| m.len());
    let before = size("ticks");
    until("it prints on", || size("ticks") > before + 3).await;
    assert_eq!(run(&guest, "echo next").await.stdout.bytes, "next\n");
    std::fs::write(place.dir.join("go"), "").unwrap();
    until("it comes to its own end", || size("end") > 0).await;
}

/// A runtime that ends takes its client along, and nobody is left who could kill: inside, what has a limit still ends.
async fn no_client(place: &Place) {
    let (mark, endless) = (mark(), mark());
    let (guest, marks) = (place.guest().0, (mark.clone(), endless.clone()));
    let client = std::thread::spawn(move || {
        let (mark, endless) = marks;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let text = format!("setsid sleep {mark} & sleep {mark}");
            tokio::select! {
                result = guest.exec(ExecRequest::shell(text).with_limit(secs(3.0))) => panic!("{result:?}"),
                result = guest.exec(ExecRequest::shell(format!("exec sleep {endless}"))) => panic!("{result:?}"),
                () = until("both run", || marked(&mark).len() == 2 && marked(&endless).len() == 1) => {}
            }
        });
    });
    tokio::task::spawn_blocking(move || client.join().unwrap()).await.unwrap();
    until("what has a limit ends", || marked(&mark).is_empty()).await;
    let left = marked(&endless);
    assert_eq!(left.len(), 1, "what has none is nobody's business");
    assert!(std::process::Command::new("kill").arg("-KILL").args(left).status().unwrap().success());
}

fn take(stream: &mut sandbox::ByteStream) -> sandbox::ByteStream {
    std::mem::replace(stream, sandbox::ByteStream::new(futures::stream::empty()))
}

async fn conversation(place: &Place) {
    let (guest, _) = place.guest();
    let mut process = within(guest.spawn(SpawnRequest::shell("cat; echo end >&2; exit 3").with_stdin())).await.unwrap();
    let (stdout, stderr) = (take(&mut process.stdout), take(&mut process.stderr));
    let (mut stdin, content) = (process.stdin.take().unwrap(), filler(1_000_000));
    let writing = async {
        stdin.write_all(&content).await.unwrap();
        stdin.shutdown().await.unwrap();
    };
    let ((), out, err) = within(async { tokio::join!(writing, stdout.collect(8 << 20), stderr.collect(100)) }).await;
    assert!(out.unwrap() == content && err.unwrap() == "end\n");
    assert_eq!(within(process.wait()).await.unwrap().code, 3);
}

async fn signals(place: &Place) {
    let (guest, _) = place.guest();
    let mark = mark();
    let ready = async |process: &mut Process| {
        assert_eq!(within(process.stdout.next()).await.unwrap().unwrap(), "ready\n");
    };
    let text = "trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.05; done";
    let mut process = within(guest.spawn(SpawnRequest::shell(text))).await.unwrap();
    ready(&mut process).await;
    within(process.signal(Signal::User1)).await.unwrap();
    assert_eq!(within(process.wait()).await.unwrap().code, 5);
    let text = format!("setsid sh -c 'echo ready; exec sleep {mark}' & exec sleep {mark}");
    let mut process = within(guest.spawn(SpawnRequest::shell(text.clone()))).await.unwrap();
    ready(&mut process).await;
    within(process.kill()).await.unwrap();
    assert_eq!(within(process.wait()).await.unwrap().code, 137);
    until("both die", || marked(&mark).is_empty()).await;
    let request = SpawnRequest::shell(text).with_limit(secs(1.0));
    let mut process = within(guest.spawn(request)).await.unwrap();
    assert!(within(process.wait()).await.unwrap().timed_out);
    until("both die", || marked(&mark).is_empty()).await;
}

async fn reads(place: &Place) {
    let (guest, _) = place.guest();
    for size in [0, 1, 4096, 4097, 1_000_000] {
        std::fs::write(place.dir.join("é"), filler(size)).unwrap();
        assert!(read(&guest, &place.dir.join("é")).await.unwrap() == filler(size), "{size}");
    }
    assert!(read(&guest, Path::new("/proc/cpuinfo")).await.unwrap().len() > 100);
    assert_eq!(read_limited(&guest, &place.dir.join("é"), 10).await.unwrap_err().kind(), ErrorKind::FileTooLarge);
    symlink("é", place.dir.join("link")).unwrap();
    for (name, kind) in [
        ("none", ErrorKind::FileNotFound),
        ("é/x/y", ErrorKind::NotDirectory),
        ("link", ErrorKind::NotRegularFile),
        ("", ErrorKind::IsDirectory),
    ] {
        let path = if name.is_empty() { place.dir.clone() } else { place.dir.join(name) };
        assert_eq!(read(&guest, &path).await.unwrap_err().kind(), kind, "{name}");
    }
    let error = read(&guest, Path::new("/proc/self/mem")).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Other, Some("Input/output error")));
}

async fn writes(place: &Place) {
    let (guest, _) = place.guest();
    let path = place.dir.join("-d e/é\n");
    for size in [0usize, 5, 5000, 65_536, 1_000_000] {
        write(&guest, &path, &filler(size)).await.unwrap();
        assert!((std::fs::read(&path).unwrap(), mode(&path)) == (filler(size), 0o644), "{size}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4750)).unwrap();
        write(&guest, &path, &filler(size)).await.unwrap();
        assert_eq!(mode(&path), 0o4750, "{size}");
        within(guest.write(FileWrite::bytes(at(&path), filler(size)).with_mode(0o711))).await.unwrap();
        assert_eq!(mode(&path), 0o711, "{size}");
        std::fs::remove_file(&path).unwrap();
        let new = || FileWrite::bytes(at(&path), filler(size)).create_new();
        within(guest.write(new())).await.unwrap();
        assert_eq!(within(guest.write(new())).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(place.dir.join("file"), "kept").unwrap();
        let told = |error: Error| (error.kind(), error.reason().map(str::to_owned));
        let refused = write(&guest, &place.dir.join("file/x"), &filler(size)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotDirectory);
        let refused = write(&guest, Path::new("/proc/no/no"), &filler(size)).await.unwrap_err();
        assert_eq!(told(refused), (ErrorKind::NotWritable, Some("No such file or directory".to_owned())));
        let refused = write(&guest, &place.dir, &filler(size)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::IsDirectory);
    }
    assert_eq!(residue(&place.dir), Vec::<PathBuf>::new());
}

/// By its client, with the stream in step or not, by the sandbox, or with the client.
async fn given_up(place: &Place) {
    let (guest, _) = place.guest();
    let target = place.dir.join("file");
    std::fs::write(&target, "kept").unwrap();
    let body = |then| Body::reader(Source::new(100_000, then));
    let short = guest.write(FileWrite::new(at(&target), 200_000, body(Then::Fail)));
    assert_eq!(within(short).await.unwrap_err().kind(), ErrorKind::ShortTransfer);
    for _ in 0..2 {
        let there = || residue(&place.dir).iter().any(|temp| temp.metadata().is_ok_and(|m| m.len() > 0));
        tokio::select! {
            outcome = guest.write(FileWrite::new(at(&target), 200_000, body(Then::Hang))) => panic!("{outcome:?}"),
            () = until("some content", there) => {}
        }
        until("its removal", || residue(&place.dir).is_empty()).await;
    }
    assert_eq!(std::fs::read(&target).unwrap(), b"kept");
}

async fn batches(place: &Place) {
    let (guest, _) = place.guest();
    let name = |i: usize| place.dir.join(format!("{}/é {i}\n", i % 3));
    for content in ["one", "two"] {
        // The names do not fit into one command line.
        let files = (0..800).map(|i| FileWrite::bytes(at(&name(i)), content).with_mode(0o600 + (i % 2) as u32 * 0o44));
        within(guest.write_many(FileBatch::new(files))).await.unwrap();
        for i in 0..800 {
            assert_eq!(
                (std::fs::read(name(i)).unwrap(), mode(&name(i)) & 0o44),
                (content.into(), (i % 2) as u32 * 0o44)
            );
        }
    }
    std::fs::write(place.dir.join("blocker"), "").unwrap();
    let bad = ["blocker/x", "0"];
    for (bad, kind) in bad.into_iter().zip([ErrorKind::NotDirectory, ErrorKind::IsDirectory]) {
        let mut files: Vec<_> = (0..8).map(|i| FileWrite::bytes(at(&place.dir.join(format!("n{i}"))), "x")).collect();
        files.push(FileWrite::bytes(at(&place.dir.join(bad)), "x"));
        let error = within(guest.write_many(FileBatch::new(files))).await.unwrap_err();
        assert_eq!((error.kind(), error.member()), (kind, Some(8)), "{error}");
    }
    assert_eq!(residue(&place.dir), Vec::<PathBuf>::new());
}

async fn exports(place: &Place) {
    let (guest, _) = place.guest();
    let root = place.dir.join("-ro ét");
    std::fs::create_dir_all(root.join("sub/empty")).unwrap();
    std::fs::write(root.join("é\n"), filler(100_000)).unwrap();
    symlink("/no/where", root.join("sub/link")).unwrap();
    let archive = within(async { guest.export(&at(&root)).await?.collect(1 << 30).await }).await.unwrap();
    let out = place.dir.join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(place.dir.join("archive"), archive).unwrap();
    let mut unpack = std::process::Command::new("tar");
    assert!(unpack.arg("-xpf").arg(place.dir.join("archive")).arg("-C").arg(&out).status().unwrap().success());
    assert!(std::fs::read(out.join("-ro ét/é\n")).unwrap() == filler(100_000));
    assert!(out.join("-ro ét/sub/empty").is_dir());
    assert_eq!(std::fs::read_link(out.join("-ro ét/sub/link")).unwrap(), Path::new("/no/where"));
    let missing = within(guest.export(&at(&root.join("none")))).await.map(drop).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::FileNotFound);
}
