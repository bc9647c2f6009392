//! Starts the host's programs, with nothing of the caller's process left to them.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::process::{Child, Command};
use tokio::runtime::Handle;

/// Standard input, output and error of a program.
pub(crate) type Ends = [Stdio; 3];

/// Starts `argv` in `directory`. Nothing kills it when the answer is dropped; the runtime waits for it either way.
///
/// It has an empty environment, and a process group of its own unless it `leaves` for a session of its own by itself. It can never gain
/// privileges: the kernel keeps that per thread, so that a thread of its own starts it and the caller's threads stay as they are.
pub(crate) fn spawn(
    runtime: &Handle,
    argv: &[OsString],
    directory: &Path,
    ends: Ends,
    leaves: bool,
) -> io::Result<Child> {
    let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let [stdin, stdout, stderr] = ends;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().current_dir(directory);
    if !leaves {
        command.process_group(0);
    }
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            rustix::thread::set_no_new_privs(true)?;
            let _in_runtime = runtime.enter();
            command.spawn()
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts programs panicked")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_starts_bare() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let argv = ["/bin/sh", "-c", "grep NoNewPrivs /proc/self/status; pwd; env"].map(OsString::from);
        let ends = [Stdio::null(), writer.into(), Stdio::null()];
        let mut child = spawn(runtime.handle(), &argv, Path::new("/usr"), ends, false).unwrap();
        let mut out = String::new();
        io::Read::read_to_string(&mut reader, &mut out).unwrap();
        assert!(runtime.block_on(child.wait()).unwrap().success());
        assert_eq!(out, "NoNewPrivs:\t1\n/usr\nPWD=/usr\n");
        assert!(!rustix::thread::no_new_privs().unwrap());
    }
}
