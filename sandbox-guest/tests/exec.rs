//! Commands from request to verdict, over plain pipes to a plain bash.
#![cfg(target_os = "linux")]

mod common;

use common::Bare;
use common::exec::*;
use sandbox::{Env, ErrorKind, ExecRequest, SpawnRequest};

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
async fn caps_keep_the_head_and_drain_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let whole: String = (1..=400_000).map(|n| format!("{n}\n")).collect();
    let result = run(&guest, "seq 400000; echo done >&2; echo to the end > end").await;
    assert!(result.stdout.bytes == whole[..1 << 20]);
    assert_eq!((result.stdout.total, result.exit_code), (whole.len() as u64, 0));
    assert!(result.stdout.truncated() && !result.stderr.truncated());
    assert_eq!((result.stderr.bytes.as_ref(), result.stderr.total), (&b"done\n"[..], 5));
    assert!(dir.path().join("end").exists());
    // Each stream has its own.
    let result = run(&guest, "seq 400000 >&2; seq 400000").await;
    for stream in [result.stdout, result.stderr] {
        assert!(stream.bytes == whole[..1 << 20] && stream.total == whole.len() as u64);
    }
    for (cap, kept) in [(0, ""), (3, "abc"), (4, "abc\n"), (5, "abc\n")] {
        let result = run_request(&guest, ExecRequest::shell("echo abc").with_caps(cap)).await;
        let stdout = result.stdout;
        assert_eq!((stdout.bytes.as_ref(), stdout.total, stdout.truncated()), (kept.as_bytes(), 4, cap < 4), "{cap}");
    }
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
    // Also those of one request that no shell in between sets itself.
    let (guest, _) = Bare::default().guest(dir.path());
    let special =
        [("LANG", "xx_XX"), ("LC_ALL", "C.UTF-8"), ("IFS", ":"), ("UID", "7"), ("PS4", "+"), ("BASH_ENV", "/no")];
    for (name, value) in special {
        let print = || ExecRequest::args(["printenv", name]);
        let before = run_request(&guest, print()).await.stdout.bytes;
        let one = print().with_env(Env::new().with(name, value).unwrap());
        assert_eq!(run_request(&guest, one).await.stdout.bytes, format!("{value}\n"));
        assert_eq!(run_request(&guest, print()).await.stdout.bytes, before, "{name}");
    }
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
    let (guest, carrier) = Bare::default().guest(dir.path());
    let opened = || carrier.opened.load(std::sync::atomic::Ordering::Relaxed);
    run(&guest, "true").await;
    // Until both had the same stream.
    for _ in 0..50 {
        let before = opened();
        let set =
            "perl -MFcntl -e 'fcntl($_, F_SETFL, fcntl($_, F_GETFL, 0) | O_NONBLOCK) || die for *STDOUT, *STDERR'";
        assert_eq!(run(&guest, set).await.exit_code, 0);
        let request = ExecRequest::shell("head -c 8000000 /dev/zero").with_caps(16 << 20);
        assert_eq!(run_request(&guest, request).await.stdout.bytes.len(), 8_000_000);
        if opened() == before {
            return;
        }
    }
    panic!("no stream served twice in a row");
}

/// One argument, or arguments and variables together: what the kernel would refuse is refused before anything is there.
#[tokio::test]
async fn what_is_too_much_for_the_kernel_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let named = |name: &str, count: usize| {
        let one = |env: Env, i| env.with(format!("{name}{i}"), "x".repeat(100_000)).unwrap();
        (0..count).fold(Env::new(), one)
    };
    let env = |count| named("OF_THE_CALL", count);
    let args = |count: usize| std::iter::once("true".to_owned()).chain(vec!["x".repeat(100_000); count]);
    let (guest, carrier) = Bare::default().guest_with(dir.path(), |c| c.with_env(named("OF_THE_SANDBOX", 9)));
    let opened = || carrier.opened.load(std::sync::atomic::Ordering::Relaxed);
    let refused = [
        ExecRequest::shell("true").with_env(env(10)),
        ExecRequest::args(args(5)).with_env(env(5)),
        ExecRequest::shell("true".to_owned() + &" ".repeat(110_000)).with_env(env(9)),
        ExecRequest::args(args(10)),
        ExecRequest::args(["true".to_owned(), "x".repeat(ExecRequest::MAX_ARG + 1)]),
    ];
    for request in refused {
        let mut spawn = SpawnRequest::new(request.command.clone());
        spawn.env = request.env.clone();
        let errors = [guest.exec(request).await.unwrap_err(), guest.spawn(spawn).await.map(drop).unwrap_err()];
        for error in errors {
            assert_eq!((error.kind(), error.effect()), (ErrorKind::InvalidRequest, sandbox::Effect::None), "{error}");
        }
    }
    assert_eq!(opened(), 0, "nothing was started for them");
    // What is set again is replaced, not added.
    let replaced = ExecRequest::args(args(8)).with_env(named("OF_THE_SANDBOX", 9));
    for request in [ExecRequest::shell("true").with_env(env(8)), ExecRequest::args(args(4)).with_env(env(4)), replaced]
    {
        let result = run_request(&guest, request).await;
        assert_eq!((result.exit_code, result.stderr.bytes.as_ref()), (0, &b""[..]));
    }
}

/// Whatever variables there are, also those for which another program stands between the shell and the command.
#[tokio::test]
async fn no_part_of_a_command_is_taken_for_a_variable() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("x=1", "printf '%s,' right \"$@\""), ("evil", "echo wrong")] {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let (guest, _) = Bare::default().guest(dir.path());
    let mut missing = Vec::new();
    for env in [Env::new(), Env::new().with("LANG", "C.UTF-8").unwrap(), Env::new().with("UID", "x=y").unwrap()] {
        let request = |words: &[&str]| ExecRequest::args(words.iter().copied()).with_env(env.clone());
        let result = run_request(&guest, request(&["./x=1", "./evil", "a=b", "-n"])).await;
        assert_eq!((result.exit_code, &*result.stdout.to_string_lossy()), (0, "right,./evil,a=b,-n,"), "{env:?}");
        let result = run_request(&guest, request(&["printf", "%s,", "a=b", "c"])).await;
        assert_eq!(&*result.stdout.to_string_lossy(), "a=b,c,", "{env:?}");
        for program in ["no-such-program", "./no=such", "no=such", "/dev/null"] {
            let result = run_request(&guest, request(&[program])).await;
            missing.push((program, result.exit_code, result.stderr.to_string_lossy().into_owned()));
        }
    }
    let (bare, others) = missing.split_at(4);
    assert!(others.chunks(4).all(|chunk| chunk == bare), "the same words for each: {missing:?}");
}

/// What tells a result from a forgery is in nothing that a command can look up.
#[tokio::test]
async fn a_request_stands_in_no_argument_and_no_variable() {
    let dir = tempfile::tempdir().unwrap();
    let (guest, _) = Bare::default().guest(dir.path());
    let text = "ls -l /proc/$PPID/fd >&2; cat /proc/$PPID/cmdline; echo; cat /proc/$PPID/environ; echo; cat /proc/self/environ";
    let env = Env::new().with("WORD", "word of the request").unwrap();
    let result = run_request(&guest, ExecRequest::shell(text).with_env(env).with_limit(secs(20.0))).await;
    let lines: Vec<_> = result.stdout.bytes.split(|b| *b == b'\n').collect();
    assert_eq!(lines[0], b"/bin/bash\0--norc\0--noprofile\0-p\0");
    assert_eq!(lines[1], b"PATH=/usr/local/bin:/usr/bin:/bin\0");
    let of_shells: [&[u8]; 3] = [b"__sbx_exec=", b"SHLVL=", b"_="];
    let mut own: Vec<_> = lines[2].split(|b| *b == 0).filter(|v| !of_shells.iter().any(|s| v.starts_with(s))).collect();
    own.sort();
    let pwd = format!("PWD={}", dir.path().display());
    let want: [&[u8]; 4] = [b"", b"PATH=/usr/local/bin:/usr/bin:/bin", pwd.as_bytes(), b"WORD=word of the request"];
    assert_eq!(own, want);
    // Nor in a file that the shell holds open.
    let held = result.stderr.to_string_lossy().into_owned();
    let files = held.lines().filter_map(|line| line.split(" -> ").nth(1));
    assert!(files.clone().count() > 3, "{held}");
    // What whoever runs this test left open for all that it starts is not the shell's.
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let inherited: Vec<_> =
        links.filter_map(|fd| Some(std::fs::read_link(fd.path()).ok()?.display().to_string())).collect();
    let known = |file: &str| {
        file.starts_with("pipe:") || file == "/dev/null" || inherited.iter().any(|inherited| inherited == file)
    };
    assert_eq!(files.filter(|file| !known(file)).collect::<Vec<_>>(), Vec::<&str>::new());
    // A nonce has 32 digits, and the marker of a command has not.
    let digits = |bytes: &[u8]| bytes.split(|b| !b.is_ascii_hexdigit()).any(|word| word.len() >= 32);
    assert!(!digits(&result.stdout.bytes), "{}", result.stdout.to_string_lossy());
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
    let result =
        run(&guest, "(trap '' PIPE; until [ -e go ]; do sleep 0.05; done; echo late; echo > printed) & echo started")
            .await;
    assert_eq!((result.stdout.bytes.as_ref(), result.exit_code), (&b"started\n"[..], 0));
    assert_eq!(run(&guest, "echo next").await.stdout.bytes, "next\n");
    let last = run(&guest, "echo > go; until [ -e printed ]; do sleep 0.05; done; echo last").await;
    assert_eq!(last.stdout.bytes, "last\n");
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
