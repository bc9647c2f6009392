//! Requests that run a tenant's command.

use sandbox::{Command, Env, Error, ErrorKind, ExecRequest, SandboxPath};

use crate::quote::{frame, push_word};
use crate::record::Nonce;

/// The longest shell text that is handed over as an argument.
const MAX_INLINE: usize = ExecRequest::MAX_ARG;
/// What arguments and variables may take together, pointers included: a quarter of the usual stack, less some room.
const MAX_BLOCK: usize = 1_900_000;

/// What a command needs besides its nonces.
pub(crate) struct Run<'a> {
    pub(crate) command: &'a Command,
    pub(crate) env: &'a Env,
    pub(crate) workdir: &'a SandboxPath,
    pub(crate) marker: &'a str,
    pub(crate) reopen: bool,
    /// Whether the stream's input feeds the command.
    pub(crate) input: bool,
}

/// Refuses what the kernel would refuse only once the command is started.
pub(crate) fn check_size(command: &Command, env: &Env, sandbox_env: &Env) -> Result<(), Error> {
    // One that is set again is replaced.
    let others = sandbox_env.iter().filter(|(name, _)| env.get(name).is_none());
    let vars: usize = env.iter().chain(others).map(|(n, v)| n.len() + v.len() + 10).sum();
    let args: usize = match command {
        Command::Args(args) => args.iter().map(|a| a.len() + 9).sum(),
        Command::Shell(text) if text.len() <= MAX_INLINE => text.len(),
        _ => 0,
    };
    if vars + args <= MAX_BLOCK {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidRequest)
        .because(format!("arguments and variables of {} bytes together: at most {MAX_BLOCK}", vars + args)))
}

/// The framed request.
pub(crate) fn request(begin: Nonce, end: Nonce, run: &Run<'_>) -> Vec<u8> {
    let kind = match run.command {
        Command::Shell(text) if text.len() > MAX_INLINE => "long",
        Command::Shell(_) => "shell",
        _ => "args",
    };
    let (special, plain): (Vec<_>, Vec<_>) = run.env.iter().partition(|(name, _)| is_special(name));
    let flag = |on| if on { "1" } else { "''" };
    let (reopen, input) = (flag(run.reopen), flag(run.input));
    let mut text =
        format!("__sbx_exec {} {} {} {kind} {reopen} {input}", begin.as_str(), end.as_str(), run.marker).into_bytes();
    push_word(&mut text, run.workdir.as_bytes());
    text.extend_from_slice(format!(" {} {}", plain.len(), special.len()).as_bytes());
    for (name, value) in plain.into_iter().chain(special) {
        push_word(&mut text, &[name.as_bytes(), b"=", value].concat());
    }
    match run.command {
        Command::Shell(body) => push_word(&mut text, body),
        Command::Args(args) => args.iter().for_each(|arg| push_word(&mut text, arg)),
        _ => {}
    }
    frame(&text)
}

/// Names that a shell makes something of by itself: a command gets them from `env`, after the last shell before it.
pub(crate) fn is_special(name: &str) -> bool {
    const SPECIAL: &[&str] = &[
        "_",
        "DIRSTACK",
        "EPOCHREALTIME",
        "EPOCHSECONDS",
        "EUID",
        "FUNCNAME",
        "GROUPS",
        "HISTCMD",
        "IFS",
        "LINENO",
        "OLDPWD",
        "OPTARG",
        "OPTERR",
        "OPTIND",
        "PIPESTATUS",
        "PPID",
        "PS4",
        "PWD",
        "RANDOM",
        "REPLY",
        "SECONDS",
        "SHELLOPTS",
        "SHLVL",
        "SRANDOM",
        "TMOUT",
        "UID",
        "POSIXLY_CORRECT",
        "FUNCNEST",
        "GLOBIGNORE",
        "EXECIGNORE",
        "CDPATH",
        "LANG",
        "LANGUAGE",
        "MAPFILE",
        "COPROC",
        "HOSTTYPE",
        "MACHTYPE",
        "OSTYPE",
    ];
    name.starts_with("BASH") || name.starts_with("LC_") || SPECIAL.contains(&name)
}
