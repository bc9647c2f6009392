//! Directories and links, made by the sandbox's own tools.
//!
//! Every path is an argument of its own, which no shell reads as text; it begins with a slash, so that no tool reads it as an
//! option. The target of a link stands after `--`.

use std::time::Duration;

use sandbox::{Effect, Error, ErrorKind, ExecRequest, ExecResult, Sandbox, SandboxPath};

/// Makes directories and their parents. On a failure it prints which one is not there.
const DIRECTORIES: &str = r#"umask 022
mkdir -p -- "$@" && exit 0
i=0
for p; do
  [ -d "$p" ] || break
  i=$((i + 1))
done
printf %s "$i"
exit 1"#;

/// Makes links, given as target and place by turns. On a failure it prints which one could not be made.
const LINKS: &str = r#"i=0
while [ $# -ge 2 ]; do
  ln -sfT -- "$1" "$2" || {
    printf %s "$i"
    exit 1
  }
  i=$((i + 1))
  shift 2
done"#;

pub(super) async fn make_directories<S: Sandbox + ?Sized>(
    sandbox: &S,
    paths: &[SandboxPath],
    limit: Duration,
) -> Result<(), Error> {
    let result = run(sandbox, DIRECTORIES, paths.iter().map(SandboxPath::as_bytes), limit).await?;
    judge(&result, "mkdir", |index| paths.get(index))
}

pub(super) async fn make_links<S: Sandbox + ?Sized>(
    sandbox: &S,
    links: &[(Vec<u8>, SandboxPath)],
    limit: Duration,
) -> Result<(), Error> {
    let args = links.iter().flat_map(|(target, path)| [target.as_slice(), path.as_bytes()]);
    let result = run(sandbox, LINKS, args, limit).await?;
    judge(&result, "ln", |index| links.get(index).map(|(_, path)| path))
}

async fn run<'a, S: Sandbox + ?Sized>(
    sandbox: &S,
    script: &'a str,
    args: impl Iterator<Item = &'a [u8]>,
    limit: Duration,
) -> Result<ExecResult, Error> {
    let head = ["bash", "-c", script, "upload"].map(str::as_bytes);
    let all: Vec<Vec<u8>> = head.into_iter().chain(args).map(<[u8]>::to_vec).collect();
    let mut request = ExecRequest::args(all).with_limit(limit).with_caps(4096);
    request.stdout_cap = 32;
    sandbox.exec(request).await
}

/// Makes an error of a command that failed. What it printed comes from inside: it picks one of our paths, or none.
fn judge<'a>(
    result: &ExecResult,
    tool: &str,
    path: impl FnOnce(usize) -> Option<&'a SandboxPath>,
) -> Result<(), Error> {
    if result.success() {
        return Ok(());
    }
    let error = if result.timed_out {
        Error::new(ErrorKind::DeadlineExceeded).because(format!("{tool} did not end in time"))
    } else {
        let said = result.stderr.to_string_lossy();
        let said = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        let said: String = said.chars().take(300).flat_map(char::escape_debug).collect();
        Error::new(ErrorKind::NotWritable).because(format!("{tool} ended with {}: {said}", result.exit_code))
    };
    let index = std::str::from_utf8(&result.stdout.bytes).ok().and_then(|index| index.parse::<usize>().ok());
    let error = match index.and_then(path) {
        Some(path) => error.at(path.clone()),
        None => error,
    };
    Err(error.with_effect(Effect::Partial))
}
