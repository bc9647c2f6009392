//! Commands from request to verdict, over plain pipes to a plain bash.
#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use common::Bare;
use sandbox::{Env, ErrorKind, ExecRequest, ExecResult};
use sandbox_guest::Guest;

async fn run(guest: &Guest, text: &str) -> ExecResult {
    run_request(guest, ExecRequest::shell(text.to_owned())).await
}

async fn run_request(guest: &Guest, request: ExecRequest) -> ExecResult {
    tokio::time::timeout(Duration::from_secs(30), guest.exec(request)).await.expect("exec answers").expect("exec works")
}

fn secs(n: f64) -> Duration {
    Duration::from_secs_f64(n)
}

#[tokio::test]
async fn both_streams_code_and_workdir() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let result = run(&guest, "pwd; printf err >&2; cat; exit 7").await;
    assert_eq!(result.stdout.bytes, format!("{}\n", dir.path().display()));
    assert_eq!(result.stderr.bytes, "err");
    assert_eq!((result.exit_code, result.timed_out), (7, false));
    for code in [0, 1, 124, 126, 127, 128, 137, 143, 147, 255] {
        let result = run_request(&guest, ExecRequest::shell(format!("exit {code}")).with_limit(secs(20.0))).await;
        assert_eq!((result.exit_code, result.timed_out), (code, false));
    }
}

#[tokio::test]
async fn one_stream_serves_many_commands() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, carrier) = Bare::default().guest(dir.path());
    let opened = || carrier.opened.load(std::sync::atomic::Ordering::Relaxed);
    // Nothing shields these shells from the rest of the machine: a process of another user that starts meanwhile cannot be looked
    // at, and costs a stream. Sooner or later ten commands in a row see none.
    for _ in 0..50 {
        let before = opened();
        for i in 0..10 {
            assert_eq!(run(&guest, &format!("echo {i}")).await.stdout.bytes, format!("{i}\n"));
        }
        if before > 0 && opened() == before {
            return;
        }
    }
    panic!("every ten commands took a new stream: {} in all", opened());
}

#[tokio::test]
async fn a_straggler_neither_delays_nor_dies() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let begun = Instant::now();
    let text = "(for i in 1 2 3 4 5 6 7 8; do echo tick; head -c 100000 /dev/zero; sleep 0.1; done; echo done > flag) & echo started";
    let result = run_request(&guest, ExecRequest::shell(text).with_limit(secs(20.0))).await;
    assert!(begun.elapsed() < secs(2.0), "{:?}", begun.elapsed());
    assert!(result.stdout.bytes.starts_with(b"started\n") || result.stdout.bytes.starts_with(b"tick\n"), "{result:?}");
    assert_eq!((result.exit_code, result.timed_out), (0, false));
    let result = run(&guest, "for i in $(seq 100); do [ -e flag ] && break; sleep 0.1; done; cat flag").await;
    assert_eq!(result.stdout.bytes, "done\n");
}

#[tokio::test]
async fn limits() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let begun = Instant::now();
    let text = "echo head; sleep 987.1 & setsid sleep 987.2 & (sleep 987.3 &); sleep 987.4";
    let result = run_request(&guest, ExecRequest::shell(text).with_limit(secs(0.3))).await;
    assert!(begun.elapsed() < secs(3.0), "{:?}", begun.elapsed());
    assert_eq!((result.exit_code, result.timed_out), (137, true));
    assert_eq!(result.stdout.bytes, "head\n");
    assert_eq!(result.stderr.bytes, "");
    let left = run(
        &guest,
        "for i in $(seq 50); do pgrep -f 'sleep 987[.]' >/dev/null || break; sleep 0.1; done; pgrep -fa 'sleep 987[.]'",
    )
    .await;
    assert_eq!(left.stdout.bytes, "", "left over");
    for (text, code) in [("kill -9 $$", 137), ("exit 124", 124), ("exit 137", 137), ("sleep 0.1", 0)] {
        let result = run_request(&guest, ExecRequest::shell(text).with_limit(secs(20.0))).await;
        assert_eq!((result.exit_code, result.timed_out), (code, false), "{text}");
    }
    for text in ["trap '' TERM; sleep 60", "trap 'exit 0' TERM; sleep 60 & wait"] {
        let request = ExecRequest::shell(text).with_limit(secs(0.5)).with_grace(secs(1.0));
        let result = run_request(&guest, request).await;
        assert!(result.timed_out, "{text}: {result:?}");
    }
}

#[tokio::test]
async fn overruns_cannot_be_hidden() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    for text in ["exec >&- 2>&-; sleep 60", "trap '' TERM INT HUP; sleep 60", "kill -STOP $$; sleep 60"] {
        let result = run_request(&guest, ExecRequest::shell(text).with_limit(secs(0.5))).await;
        assert!(result.timed_out, "{text}: {result:?}");
    }
    let begun = Instant::now();
    let killed = guest.exec(ExecRequest::shell("kill -9 $PPID; sleep 988.1").with_limit(secs(5.0))).await;
    let error = killed.expect_err("the shell was killed");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Lost, sandbox::Effect::Unknown));
    assert!(begun.elapsed() < secs(5.0));
    let left = run(&guest, "for i in $(seq 50); do pgrep -f 'sleep 988[.]1' >/dev/null || break; sleep 0.1; done; pgrep -f 'sleep 988[.]1'").await;
    assert_eq!(left.stdout.bytes, "", "left over");
}

#[tokio::test]
async fn caps_keep_the_head_and_drain_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let result = run(&guest, "head -c 3000000 /dev/zero; echo done >&2").await;
    assert_eq!((result.stdout.bytes.len(), result.stdout.total, result.exit_code), (1 << 20, 3_000_000, 0));
    assert!(result.truncated() && !result.stderr.truncated());
    assert_eq!(result.stderr.bytes, "done\n");
    let result = run_request(&guest, ExecRequest::shell("echo abc").with_caps(0)).await;
    assert_eq!((result.stdout.bytes.len(), result.stdout.total), (0, 4));
}

#[tokio::test]
async fn bytes_and_texts_arrive_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    assert_eq!(run(&guest, r"printf '\377\376\000\r\n\303'").await.stdout.bytes, &b"\xff\xfe\0\r\n\xc3"[..]);
    let request = ExecRequest::args(vec![
        b"printf".to_vec(),
        b"%s|".to_vec(),
        b"a b".to_vec(),
        b"$(id)'\"\n".to_vec(),
        b"\xff".to_vec(),
        vec![],
    ]);
    assert_eq!(run_request(&guest, request).await.stdout.bytes, &b"a b|$(id)'\"\n|\xff||"[..]);
    for size in [4 << 10, 16 << 10, 131_071, 131_072, 1 << 20] {
        let filler = "x".repeat(size - 20);
        let result = run_request(&guest, ExecRequest::shell(format!("a={filler}; echo ${{#a}}\n"))).await;
        assert_eq!(result.stdout.bytes, format!("{}\n", size - 20), "{size}");
        assert_eq!(result.stderr.bytes, "");
    }
    let missing = run_request(&guest, ExecRequest::args(["/no/such/program"])).await;
    assert_eq!(missing.exit_code, 127);
}

#[tokio::test]
async fn variables() {
    let dir = tempfile::tempdir().unwrap();
    let values = [
        ("PLAIN", "v"),
        ("SPACED", "a b"),
        ("LIT", "$(OTHER)/$lit"),
        ("NL", "a\nb"),
        ("LC_ALL", "C.UTF-8"),
        ("UID", "7"),
        ("IFS", "x"),
        ("TMOUT", "1"),
        ("POSIXLY_CORRECT", "1"),
        ("FUNCNEST", "1"),
        ("PPID", "5"),
        ("n", "5"),
        ("pid", "8"),
        ("code", "9"),
    ];
    let mut env = Env::new();
    for (name, value) in values {
        env.set(name, value).unwrap();
    }
    let (guest, _) = Bare::default().guest_with(dir.path(), |c| c.with_env(env.clone()));
    for _ in 0..2 {
        let result = run_request(&guest, ExecRequest::args(["env", "-0"])).await;
        let seen: Vec<_> = result.stdout.bytes.split(|b| *b == 0).map(<[u8]>::to_vec).collect();
        for (name, value) in values {
            assert!(seen.contains(&format!("{name}={value}").into_bytes()), "{name} in {:?}", result.stdout);
        }
    }
    let one = ExecRequest::shell("echo $PLAIN $ONE")
        .with_env(Env::new().with("ONE", "1").unwrap().with("PLAIN", "other").unwrap());
    assert_eq!(run_request(&guest, one).await.stdout.bytes, "other 1\n");
    assert_eq!(run(&guest, "echo $PLAIN $ONE").await.stdout.bytes, "v\n");
}

#[tokio::test]
async fn hostile_environment_of_the_shell_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rc");
    std::fs::write(&file, "echo from BASH_ENV").unwrap();
    let path: &'static str = Box::leak(file.to_str().unwrap().to_owned().into_boxed_str());
    let env = vec![
        ("BASH_ENV", path),
        ("SHELLOPTS", "xtrace:noglob"),
        ("POSIXLY_CORRECT", "1"),
        ("TMOUT", "1"),
        ("FUNCNEST", "1"),
        ("GLOBIGNORE", "*"),
        ("LC_ALL", "C.UTF-8"),
        ("CDPATH", "/tmp"),
        ("BASH_FUNC_printf%%", "() { echo shadow; }"),
        ("IFS", "0123456789"),
        ("EXECIGNORE", "*bash*"),
    ];
    let (guest, _) = Bare { env, ..Bare::default() }.guest(dir.path());
    let result = run_request(&guest, ExecRequest::args(["echo", "é"])).await;
    assert_eq!((result.stdout.bytes.as_ref(), result.exit_code), ("é\n".as_bytes(), 0), "{result:?}");
    let (guest, _) = Bare { noise: "echo welcome; echo to the image >&2\n", ..Bare::default() }.guest(dir.path());
    let result = run(&guest, "echo hi").await;
    assert_eq!((result.stdout.bytes.as_ref(), result.stderr.bytes.as_ref()), (&b"hi\n"[..], &b""[..]));
}

#[tokio::test]
async fn a_dropped_future_kills_its_command() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let exec = guest.exec(ExecRequest::shell("echo $$ > pid; setsid sleep 989.1 & sleep 989.2"));
    assert!(tokio::time::timeout(secs(0.7), exec).await.is_err());
    let left = run(&guest, "for i in $(seq 50); do pgrep -f 'sleep 989[.]' >/dev/null || break; sleep 0.1; done; pgrep -fa 'sleep 989[.]'; cat pid | wc -l").await;
    assert_eq!(left.stdout.bytes, "1\n", "left over");
}

#[tokio::test]
async fn sixty_four_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let all = (0..64).map(|i| {
        let guest = guest.clone();
        async move { (i, run(&guest, &format!("sleep 0.2; echo {i}")).await) }
    });
    for (i, result) in futures::future::join_all(all).await {
        assert_eq!(result.stdout.bytes, format!("{i}\n"));
    }
}

#[tokio::test]
async fn a_non_blocking_flag_left_on_stdout_harms_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let set = "python3 -c 'import os; os.set_blocking(1, False); os.set_blocking(2, False)'";
    assert_eq!(run(&guest, set).await.exit_code, 0);
    let request = ExecRequest::shell("head -c 8000000 /dev/zero").with_caps(16 << 20);
    assert_eq!(run_request(&guest, request).await.stdout.bytes.len(), 8_000_000);
}

#[tokio::test]
async fn a_missing_workdir_is_a_typed_error() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let at = |p: &str| ExecRequest::shell("true").with_workdir(sandbox::SandboxPath::new(p).unwrap());
    assert_eq!(guest.exec(at("/no/such")).await.unwrap_err().kind(), ErrorKind::FileNotFound);
    assert_eq!(guest.exec(at("/etc/passwd")).await.unwrap_err().kind(), ErrorKind::NotDirectory);
    assert_eq!(
        run_request(&guest, ExecRequest::shell("pwd").with_workdir(sandbox::SandboxPath::new("/usr").unwrap()))
            .await
            .stdout
            .bytes,
        "/usr\n"
    );
}

/// Nothing can be reopened there, and nobody can drain: commands, limits and stragglers come out the same.
#[tokio::test]
async fn sockets_do_as_well_as_pipes() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare { sockets: true, ..Bare::default() }.guest(dir.path());
    for i in 0..20 {
        let result = run(&guest, &format!("echo {i}; echo e{i} >&2; exit {i}")).await;
        assert_eq!((result.exit_code, result.stdout.bytes.as_ref()), (i, format!("{i}\n").as_bytes()));
        assert_eq!(result.stderr.bytes, format!("e{i}\n"));
    }
    let begun = Instant::now();
    let result = run(&guest, "(sleep 2; echo late) & echo started").await;
    assert_eq!((result.stdout.bytes.as_ref(), result.exit_code), (&b"started\n"[..], 0));
    assert!(begun.elapsed() < secs(1.5), "{:?}", begun.elapsed());
    assert_eq!(run(&guest, "echo next").await.stdout.bytes, "next\n");
    let result =
        run_request(&guest, ExecRequest::shell("setsid sleep 980.1 & sleep 980.2").with_limit(secs(0.3))).await;
    assert!(result.timed_out);
    let text =
        "for i in $(seq 50); do pgrep -f 'sleep 980[.]' >/dev/null || break; sleep 0.1; done; pgrep -f 'sleep 980[.]'";
    assert_eq!(run(&guest, text).await.stdout.bytes, "", "left over");
}

/// A program that cannot be started is told as by a shell, but by none of ours: no line number, no name of a script.
#[tokio::test]
async fn programs_that_cannot_be_started_are_named_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("plain"), "text").unwrap();
    std::fs::create_dir(at("dir")).unwrap();
    let script = |name: &str, text: &str| {
        std::fs::write(at(name), text).unwrap();
        std::fs::set_permissions(at(name), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    script("bad", "#! /no/such/interpreter -x\necho no\n");
    script("good", "#! /bin/sh -e\necho good\n");
    let (guest, _) = Bare::default().guest(dir.path());
    for (program, code, said) in [
        ("no-such-program".to_owned(), 127, "no-such-program: command not found\n".to_owned()),
        ("plain".to_owned(), 127, "plain: command not found\n".to_owned()),
        ("odd ]@*name".to_owned(), 127, "odd ]@*name: command not found\n".to_owned()),
        (at("none"), 127, format!("{}: No such file or directory\n", at("none"))),
        (at("plain/x"), 127, format!("{}: No such file or directory\n", at("plain/x"))),
        (at("dir"), 126, format!("{}: Is a directory\n", at("dir"))),
        (at("plain"), 126, format!("{}: Permission denied\n", at("plain"))),
        (at("bad"), 127, format!("{}: its interpreter /no/such/interpreter: No such file or directory\n", at("bad"))),
    ] {
        let result = run_request(&guest, ExecRequest::args([program.clone()])).await;
        assert_eq!((result.stderr.to_string_lossy().as_ref(), result.exit_code), (said.as_str(), code), "{program}");
    }
    let result = run_request(&guest, ExecRequest::args([at("good")])).await;
    assert_eq!((result.stdout.bytes.as_ref(), result.exit_code), (&b"good\n"[..], 0));
    // Also one that only the request's PATH leads to.
    let env = Env::new().with("PATH", dir.path().to_str().unwrap().to_owned()).unwrap();
    let result = run_request(&guest, ExecRequest::args(["good"]).with_env(env)).await;
    assert_eq!((result.stdout.bytes.as_ref(), result.exit_code), (&b"good\n"[..], 0));
}
