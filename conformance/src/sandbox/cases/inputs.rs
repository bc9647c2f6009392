//! What a command is given: variables and arguments.

use bytes::Bytes;
use sandbox::{Env, ExecRequest};

use super::super::Subject;
use super::super::bed::unexpected;
use super::super::subject::told;
use super::B;
use crate::{Outcome, ensure, equal, same, short};

/// Values that somebody expands, folds, trims or recodes.
fn values() -> Vec<(&'static str, Bytes)> {
    vec![
        ("PLAIN", Bytes::from_static(b"value")),
        ("EMPTY", Bytes::new()),
        ("SPACED", Bytes::from_static(b"  two  words  ")),
        ("EXPANDS", Bytes::from_static(b"$(PLAIN) $PLAIN ${PLAIN} $$ `id` $lit")),
        ("QUOTES", Bytes::from_static(b"'\"\\ \\n \\x41 %s *?[a]")),
        ("LINES", Bytes::from_static(b"one\ntwo\r\n\tthree\n")),
        ("EQUALS", Bytes::from_static(b"a=b=c")),
        ("HIGH", Bytes::from_static(b"\xff\xfe\x80 \xc3\xa9")),
        ("_", Bytes::from_static(b"lost to the shell")),
        ("_x", Bytes::from_static(b"kept")),
    ]
}

/// Names that a script has variables of its own for, which may stand between the caller and a command.
const OF_SCRIPTS: [&str; 40] = [
    "begin", "end", "kind", "marker", "code", "path", "line", "pid", "ready", "p", "v", "i", "n", "f", "x", "at",
    "err", "out", "len", "key", "value", "name", "what", "input", "workdir", "dir", "env", "envs", "slow", "slows",
    "reopen", "before", "near", "left", "nonce", "limit", "size", "req", "args", "cmd",
];

/// A variable for each of them, whose value says whose it is.
fn of_scripts(whose: &str) -> Vec<(&'static str, Bytes)> {
    OF_SCRIPTS.iter().map(|name| (*name, Bytes::from(format!("{name} of the {whose}")))).collect()
}

/// Variables that a shell in between reads itself, or cannot set.
const SPECIAL: [(&str, &str); 9] = [
    ("LANG", "xx_XX"),
    ("LC_ALL", "C.UTF-8"),
    ("LC_COLLATE", "C"),
    ("IFS", ":"),
    ("UID", "4711"),
    ("PS4", "+ $(id) "),
    ("BASH_ENV", "/no/such/file"),
    ("TMOUT", "1"),
    ("ORDINARY", "value"),
];

fn env_of(values: &[(&'static str, Bytes)]) -> Outcome<Env> {
    let mut env = Env::new();
    for (name, value) in values.iter().filter(|(name, _)| *name != "_") {
        env.set(*name, value.clone()).map_err(|e| unexpected("a variable of the suite", "a legal one", &e))?;
    }
    Ok(env)
}

/// Wants each variable of `values` in what a program was given.
async fn expect_env(sandbox: &Subject, request: ExecRequest, values: &[(&str, Bytes)]) -> Outcome {
    let result = sandbox.exec(request).await?;
    let given: Vec<_> = result.stdout.bytes.split(|b| *b == 0).collect();
    for (name, value) in values.iter().filter(|(name, _)| *name != "_") {
        let wanted = [name.as_bytes(), b"=", value].concat();
        let prefix = &wanted[..=name.len()];
        let got: Vec<_> = given.iter().filter(|entry| entry.starts_with(prefix)).collect();
        ensure(got == [&&wanted[..]], &format!("the variable {name}"), &short(&Bytes::from(wanted.clone())), || {
            format!(
                "{:?} (result: {})",
                got.iter().map(|e| e.escape_ascii().to_string()).collect::<Vec<_>>(),
                result.exit_code
            )
        })?;
    }
    Ok(())
}

pub(super) async fn env_is_exact(bed: B) -> Outcome {
    let values = [values(), of_scripts("spec")].concat();
    let sandbox = bed.provision(&bed.spec().with_env(env_of(&values)?)).await?;
    for request in
        [ExecRequest::args(["env", "-0"]), ExecRequest::shell("exec env -0"), ExecRequest::args(["env", "-0"])]
    {
        expect_env(&sandbox, request, &values).await?;
    }
    Ok(())
}

pub(super) async fn env_of_every_size(bed: B) -> Outcome {
    let values = [
        ("SMALL", Bytes::from(vec![b'x'; 4096])),
        ("LARGE", Bytes::from(vec![b'y'; 100 << 10])),
        ("LARGEST", Bytes::from(vec![b'z'; Env::MAX_ENTRY - "LARGEST=".len()])),
    ];
    let sandbox = bed.provision(&bed.spec().with_env(env_of(&values)?)).await?;
    expect_env(&sandbox, ExecRequest::args(["env", "-0"]), &values).await?;
    let mine = [("MINE", Bytes::from(vec![b'm'; 100 << 10]))];
    let request = ExecRequest::shell("exec env -0").with_env(env_of(&mine)?);
    expect_env(&sandbox, request, &[&values[..], &mine[..]].concat()).await
}

pub(super) async fn request_env_is_for_one_command(bed: B) -> Outcome {
    let mut env = Env::new();
    let mut set = |name, value| env.set(name, value).map_err(|e| unexpected("a variable", "a legal one", &e));
    set("BASE", "spec")?;
    set("KEPT", "spec")?;
    let sandbox = bed.provision(&bed.spec().with_env(env)).await?;
    let print = r#"printf '%s|' "${BASE-none}" "${KEPT-none}" "${MINE-none}""#;
    let mine = env_of(&[("BASE", Bytes::from("request")), ("MINE", Bytes::from("$(id) ' \n"))])?;
    let result = sandbox.exec(ExecRequest::shell(print).with_env(mine)).await?;
    same("variables of the request on top", &result.stdout.bytes, b"request|spec|$(id) ' \n|")?;
    equal("variables of the next command", sandbox.ok(print).await?, "spec|spec|none|")?;
    let mine = of_scripts("request");
    for request in [ExecRequest::args(["env", "-0"]), ExecRequest::shell("exec env -0")] {
        expect_env(&sandbox, request.with_env(env_of(&mine)?), &mine).await?;
    }
    let special = SPECIAL.map(|(name, value)| (name, Bytes::from(value)));
    let before = given(&sandbox, &special).await?;
    for some in special.chunks(1).chain([&special[..]]) {
        let request = ExecRequest::args(["env", "-0"]).with_env(env_of(some)?);
        expect_env(&sandbox, request, some).await?;
        let told = some.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let after = given(&sandbox, &special).await?;
        equal(&format!("variables of the command after one with {told}"), after, before.clone())?;
    }
    Ok(())
}

/// Which variables of these names a program is given, and with what.
async fn given(sandbox: &Subject, names: &[(&str, Bytes)]) -> Outcome<Vec<String>> {
    let result = sandbox.exec(ExecRequest::args(["env", "-0"])).await?;
    let all = result.stdout.bytes.split(|b| *b == 0).map(|entry| entry.escape_ascii().to_string());
    let mut given: Vec<_> =
        all.filter(|entry| names.iter().any(|(name, _)| entry.split('=').next() == Some(name))).collect();
    given.sort_unstable();
    Ok(given)
}

pub(super) async fn arguments_are_exact(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let args: [&[u8]; 17] = [
        b"plain",
        b"a=b",
        b"--x=y",
        b"=",
        b"",
        b"two  words",
        b"*",
        b"$HOME",
        b"$(id)",
        b"`id`",
        b"'\"\\",
        b"a\nb\n",
        b"-n",
        b"--",
        b"\xff\xfe",
        b";",
        b"&",
    ];
    let script: [&[u8]; 4] = [b"bash", b"-c", br#"printf '%s\0' "$@""#, b"name"];
    let request = ExecRequest::args(script.iter().chain(&args).map(|arg| arg.to_vec()));
    let wanted = Bytes::from([args.join(&b"\0"[..]), vec![0]].concat());
    // With a variable that a shell in between cannot set itself, a command may be started in another way.
    for request in [request.clone(), request.with_env(env_of(&[("LANG", Bytes::from("C.UTF-8"))])?)] {
        let result = sandbox.exec(request).await?;
        equal("the arguments", result.stdout.bytes, wanted.clone())?;
    }
    let many: Vec<String> = (0..5000).map(|n| format!("argument {n}")).collect();
    let request = ExecRequest::args([vec!["printf".to_owned(), "%s\n".to_owned()], many.clone()].concat());
    equal("5000 arguments", sandbox.exec(request).await?.stdout.bytes, Bytes::from(many.join("\n") + "\n"))?;
    let longest = "x".repeat(ExecRequest::MAX_ARG);
    let result = sandbox.exec(ExecRequest::args(["printf", "%s", longest.as_str()])).await?;
    equal("bytes of the longest argument", result.stdout.total, ExecRequest::MAX_ARG as u64)
}

pub(super) async fn arguments_are_not_options(bed: B) -> Outcome {
    let script = "#!/bin/bash\nprintf 'ran:%s\\n' \"$1\"\n";
    let make = "mkdir -p /tmp/bin && cd /tmp/bin && : > \"./$NAME\" && chmod 755 \"./$NAME\" && cat > \"./$NAME\"";
    // With such a variable, of the spec or of the request, a command may be started in another way.
    let lang = || env_of(&[("LANG", Bytes::from("C.UTF-8"))]);
    let plain = bed.sandbox().await?;
    let with_lang = bed.provision(&bed.spec_of(&bed.fresh_session()).with_env(lang()?)).await?;
    for (sandbox, of_spec) in [(plain, "without"), (with_lang, "with")] {
        for name in ["-c", "a b", "$(id)", "a=b", "=", "PATH=no"] {
            let named = env_of(&[("NAME", Bytes::from(name))])?;
            let made = format!("{make} <<'EOF'\n{script}EOF\n");
            let result = sandbox.exec(ExecRequest::shell(made).with_env(named)).await?;
            ensure(result.success(), "making a program", "exit code 0", || told(&result))?;
            for (env, of_request) in [(Env::new(), "without"), (lang()?, "with")] {
                let what = format!("the program {name}, {of_spec} LANG in the spec, {of_request} it in the request");
                for argument in ["-e", "x=y"] {
                    let request = ExecRequest::args([format!("/tmp/bin/{name}"), argument.to_owned()]);
                    let result = sandbox.exec(request.with_env(env.clone())).await?;
                    same(&what, &result.stdout.bytes, format!("ran:{argument}\n"))?;
                }
            }
        }
    }
    Ok(())
}
