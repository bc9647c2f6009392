//! What a command gets: arguments, variables, input, directory, user.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use isolation::{ErrorKind, ExecSpec, NodePath, node_path};

use super::super::super::bed::{none, ok, refused, sh};
use super::super::{B, secs};
use crate::{Outcome, ensure, equal, within};

pub(super) async fn arguments_are_verbatim(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let odd: Vec<OsString> = [
        &b"two words"[..],
        b"'single' \"double\"",
        b"$HOME ${HOME} $(id) `id`",
        b"%n %% %i",
        b"*",
        b"line\nfeed\n",
        b"-x",
        b"--help",
        b"--",
        b"",
        b"\\n\\",
        b"\xff\xfe",
        b"a;b|c&d>e",
        b"{1..3}",
        b"~",
        b"#",
    ]
    .into_iter()
    .map(|text| OsString::from_vec(text.to_vec()))
    .collect();
    let mut argv: Vec<OsString> =
        ["sh", "-c", r#"for a in "$@"; do printf '%s\0' "$a"; done"#, "sh"].map(Into::into).to_vec();
    argv.extend(odd.iter().cloned());
    let output = ok("a command with odd arguments", bed.exec(&slot, &ExecSpec::new(argv)).await)?;
    let want: Vec<u8> = odd.iter().flat_map(|arg| [arg.clone().into_vec(), vec![0]].concat()).collect();
    equal("its arguments, as it saw them", &output.stdout[..], &want[..])
}

pub(super) async fn long_arguments(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let long = "x".repeat(100 * 1024);
    let output = ok("a command", bed.exec(&slot, &ExecSpec::new(["sh", "-c", "printf %s \"$1\"", "sh", &long])).await)?;
    equal("the length of an argument of 100 KiB", output.stdout.len(), long.len())
}

pub(super) async fn invalid_is_refused(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let before = bed.footprint().await;
    for argv in [vec![], vec![""], vec!["", "x"], vec!["a\0b"], vec!["touch", "/tmp/\0"]] {
        let step = format!("the command {argv:?}");
        refused(&step, bed.exec(&slot, &ExecSpec::new(argv)).await, ErrorKind::InvalidInput)?;
    }
    none("after the refused commands", "no change", &before.changes(&bed.footprint().await))
}

pub(super) async fn input_arrives(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let input: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    let output = ok("cat", bed.exec(&slot, &ExecSpec::new(["cat"]).with_stdin(input.clone())).await)?;
    ensure(output.stdout == input, "the input of `cat`, as it came back", "the same bytes", || {
        format!("{} bytes of {}", output.stdout.len(), input.len())
    })
}

pub(super) async fn environment_arrives(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let odd = "a b\n$HOME %n \"q\" 'r' \\";
    let spec = sh("printf '%s|%s' \"$ODD\" \"$EMPTY\"").with_env("ODD", odd).with_env("EMPTY", "");
    let output = ok("a command", bed.exec(&slot, &spec).await)?;
    equal("its variables", output.stdout_text(), format!("{odd}|"))
}

pub(super) async fn directory_arrives(bed: B) -> Outcome {
    let (slot, root) = bed.up().await?;
    let dir = node_path!("/etc/a dir");
    ok("making a directory", root.fs().and_then(|fs| fs.create_dir_all(&dir, 0o755)))?;
    let output = ok("pwd", bed.exec(&slot, &ExecSpec::new(["pwd"]).with_cwd(dir.clone())).await)?;
    equal("its directory", output.stdout_text(), root.inside(&dir).display().to_string())
}

pub(super) async fn environment_is_clean(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let output = ok("env", bed.exec(&slot, &ExecSpec::new(["env", "-0"])).await)?;
    let text = output.stdout_text();
    let has = |entry: &str| text.split('\0').any(|other| other == entry);
    ensure(has("HOME=/root") && has("LANG=C.UTF-8"), "the environment", "HOME=/root, LANG=C.UTF-8", || text.clone())?;
    let ours = |name: &str| name.starts_with("CARGO") || name.starts_with("RUST");
    let leaked =
        text.split('\0').filter_map(|entry| entry.split_once('=')).map(|(name, _)| name).find(|name| ours(name));
    ensure(leaked.is_none(), "the environment", "nothing of the caller's", || leaked.unwrap_or_default().to_owned())
}

pub(super) async fn directory_is_the_root(bed: B) -> Outcome {
    let (slot, root) = bed.up().await?;
    equal("pwd", bed.sh(&slot, "pwd").await?, root.inside(&NodePath::root()).display().to_string())
}

pub(super) async fn input_is_empty(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let output = within("cat without input", secs(10), bed.exec(&slot, &ExecSpec::new(["cat"]))).await?;
    equal("cat without input", ok("cat", output)?.stdout.len(), 0)
}

pub(super) async fn user(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let output = ok("id", bed.exec(&slot, &ExecSpec::new(["id", "-un"]).with_user("nobody")).await)?;
    equal("id", output.stdout_text().as_str(), "nobody")?;
    let group = ExecSpec::new(["sh", "-c", "[ \"$(id -G)\" = \"$(id -g nobody)\" ] || id"]).with_user("nobody");
    let output = ok("id", bed.exec(&slot, &group).await)?;
    equal("what is not its group alone", output.stdout_text().as_str(), "")
}
