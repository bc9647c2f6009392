//! One handle under test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sandbox::{Error, ExecRequest, ExecResult, FileBatch, FileWrite, Process, ReadStream, Sandbox, SpawnRequest};

use super::bed::{CALL, Trail, path, unexpected};
use crate::{Failure, Outcome, ensure, short, within};

/// One handle under test: calls that fail by name when they take too long, and leave a trail for the text of a failure.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The handle.
    pub inner: Arc<dyn Sandbox>,
    pub(super) trail: Arc<Trail>,
}

impl Subject {
    /// What comes of running `request`.
    pub async fn try_exec(&self, request: ExecRequest) -> Outcome<Result<ExecResult, Error>> {
        let allowed = request.limit.map_or(CALL, |limit| limit + request.grace + CALL / 2);
        let what = match &request.command {
            sandbox::Command::Shell(text) => format!("exec {}", short(&text.slice(..text.len().min(300)))),
            _ => "exec arguments".to_owned(),
        };
        let begun = Instant::now();
        let result = within(&what, allowed, self.inner.exec(request)).await?;
        self.trail.note(match &result {
            Ok(r) => format!("{what}: {} ({:?})", told(r), begun.elapsed()),
            Err(e) => format!("{what}: {} ({:?})", short(e), begun.elapsed()),
        });
        Ok(result)
    }

    /// Runs `request`, which must give a result.
    pub async fn exec(&self, request: ExecRequest) -> Outcome<ExecResult> {
        self.try_exec(request).await?.map_err(|e| unexpected("exec", "a result", &e))
    }

    /// Runs `text` without a limit.
    pub async fn sh(&self, text: impl Into<Bytes>) -> Outcome<ExecResult> {
        self.exec(ExecRequest::shell(text)).await
    }

    /// Runs `text` with `limit`.
    pub async fn timed(&self, text: impl Into<Bytes>, limit: Duration) -> Outcome<ExecResult> {
        self.exec(ExecRequest::shell(text).with_limit(limit)).await
    }

    /// Runs `text`, which must end with exit code 0, and answers what it printed.
    pub async fn ok(&self, text: &str) -> Outcome<String> {
        let result = self.sh(text.to_owned()).await?;
        ensure(result.success(), text, "exit code 0", || told(&result))?;
        Ok(result.stdout.to_string_lossy().into_owned())
    }

    /// How many processes of the sandbox have `mark` as their first argument.
    pub async fn marked(&self, mark: &str) -> Outcome<usize> {
        let text = format!(
            "n=0; for d in /proc/[0-9]*; do a=(); mapfile -d '' -t a <$d/cmdline; [[ ${{a[1]}} == {mark} ]] && ((n++)); \
             done 2>/dev/null; echo $n"
        );
        let printed = self.ok(&text).await?;
        printed.trim().parse().map_err(|_| Failure::new("counting processes", "a number", short(&printed)))
    }

    /// Waits until no process has `mark` as its first argument.
    pub async fn unmarked(&self, mark: &str, limit: Duration) -> Outcome {
        self.until_marked(mark, limit, "none", |left| left == 0).await
    }

    /// Waits until `count` processes have `mark` as their first argument.
    pub async fn all_marked(&self, mark: &str, count: usize, limit: Duration) -> Outcome {
        self.until_marked(mark, limit, &count.to_string(), |seen| seen == count).await
    }

    async fn until_marked(&self, mark: &str, limit: Duration, want: &str, done: impl Fn(usize) -> bool) -> Outcome {
        let begun = Instant::now();
        loop {
            let seen = self.marked(mark).await?;
            if done(seen) {
                return Ok(());
            }
            let late = begun.elapsed() > limit;
            ensure(!late, "looking for the command's processes", &format!("{want} after {limit:?}"), || {
                seen.to_string()
            })?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What comes of reading up to `limit` bytes of `name`.
    pub async fn try_read(&self, name: impl Into<Vec<u8>>, limit: u64) -> Outcome<Result<Bytes, Error>> {
        let at = path(name)?;
        let what = format!("read {at}");
        let read =
            async { self.inner.read(&at, limit).await?.collect(usize::try_from(limit).unwrap_or(usize::MAX)).await };
        let result = within(&what, CALL, read).await?;
        self.noted(&what, &result);
        Ok(result)
    }

    /// Opens `name` to read it piece by piece.
    pub async fn open(&self, name: &str, limit: u64) -> Outcome<Result<ReadStream, Error>> {
        within("read", CALL, self.inner.read(&path(name)?, limit)).await
    }

    /// Reads `name`, which must be there.
    pub async fn read(&self, name: impl Into<Vec<u8>>) -> Outcome<Bytes> {
        self.try_read(name, 64 << 20).await?.map_err(|e| unexpected("read", "the file", &e))
    }

    /// What comes of writing `file`.
    pub async fn try_write(&self, file: FileWrite<'_>) -> Outcome<Result<(), Error>> {
        let what = format!("write {} ({} bytes)", file.path, file.size);
        let result = within(&what, CALL, self.inner.write(file)).await?;
        self.noted(&what, &result);
        Ok(result)
    }

    /// Writes `bytes` to `name`, which must succeed.
    pub async fn write(&self, name: impl Into<Vec<u8>>, bytes: impl Into<Bytes>) -> Outcome {
        self.try_write(FileWrite::bytes(path(name)?, bytes)).await?.map_err(|e| unexpected("write", "success", &e))
    }

    /// What comes of writing `files` in one delivery.
    pub async fn try_write_many(&self, files: Vec<FileWrite<'_>>) -> Outcome<Result<(), Error>> {
        let what = format!("write_many of {}", files.len());
        let result = within(&what, CALL * 2, self.inner.write_many(FileBatch::new(files))).await?;
        self.noted(&what, &result);
        Ok(result)
    }

    /// Starts `request`.
    pub async fn spawn(&self, request: SpawnRequest) -> Outcome<Process> {
        within("spawn", CALL, self.inner.spawn(request)).await?.map_err(|e| unexpected("spawn", "a process", &e))
    }

    /// Destroys the sandbox, which must succeed.
    pub async fn destroy(&self) -> Outcome {
        let result = within("destroy", CALL, self.inner.destroy()).await?;
        self.noted("destroy", &result);
        result.map_err(|e| unexpected("destroy", "success", &e))
    }

    fn noted<T>(&self, what: &str, result: &Result<T, Error>) {
        let end = result.as_ref().map_or_else(short, |_| "ok".to_owned());
        self.trail.note(format!("{what}: {end}"));
    }
}

/// A result in one line, and the last 20 lines of its standard error.
pub(super) fn told(result: &ExecResult) -> String {
    let stderr = result.stderr.to_string_lossy();
    let lines: Vec<_> = stderr.lines().collect();
    let tail = lines[lines.len().saturating_sub(20)..].iter().map(|line| format!("\n    stderr: {line}"));
    let timed_out = if result.timed_out { ", timed out" } else { "" };
    let text = format!("exit code {}{timed_out}, stdout {:?}", result.exit_code, result.stdout);
    text + &tail.collect::<String>()
}
