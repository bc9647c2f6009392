//! Writing one file.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sandbox::{Body, ErrorKind, FileWrite};
use tokio::io::{AsyncRead, ReadBuf};

use super::super::Subject;
use super::super::bed::{path, refused, unexpected};
use super::{B, Case, filler, millis, secs, soon};
use crate::{Outcome, ensure, equal, same};

const REPLACES: &str = "A write makes missing parents and replaces what is there in one step.";
const FAILED: &str = "A failed write leaves the target as it was, and nothing beside it.";
const LENGTH: &str = "A body of another length than declared fails as `ShortTransfer`.";
const MODE: &str = "A new file has mode 0644, whatever the umask; a file that is replaced keeps its mode.";

pub(super) fn cases() -> Vec<Case> {
    let all = vec![
        Case::new("write::makes_parents", REPLACES, makes_parents),
        Case::new("write::replaces", REPLACES, replaces),
        Case::new("write::replaces_in_one_step", REPLACES, in_one_step).races(),
        Case::new("write::slow_bodies", "Writes `size` bytes of `body` to `path`.", slow_bodies),
        Case::new("write::empty_200_times", "Writes a file: all of it, or nothing.", empty_200_times),
        Case::new("write::failed_changes_nothing", FAILED, failed_changes_nothing),
        Case::new("write::broken_body", FAILED, broken_body),
        Case::new("write::dropped", FAILED, dropped).races().profile("faults"),
        Case::new("write::short_body", LENGTH, short_body),
        Case::new("write::long_body", LENGTH, long_body),
        Case::new(
            "write::refused_unread",
            "A size or mode out of range is refused before the body is read.",
            refused_unread,
        ),
        Case::new("write::mode_of_a_new_file", MODE, mode_of_a_new_file),
        Case::new("write::mode_is_kept", MODE, mode_is_kept),
        Case::new(
            "write::mode_of_the_request",
            "A file gets the bits of its request; `None` keeps those of the file that is there, else is 0644.",
            mode_of_the_request,
        ),
    ];
    let files = |case: Case| if case.profile == "core" { case.profile("files") } else { case };
    all.into_iter().map(|case| files(case).needs("files", |c| c.files)).collect()
}

/// A body that tells whether it was read, and may end early with an error.
struct Watched {
    left: usize,
    fails: bool,
    touched: Arc<AtomicBool>,
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        self.touched.store(true, Ordering::Relaxed);
        if self.left == 0 && self.fails {
            return Poll::Ready(Err(std::io::Error::other("the source broke")));
        }
        let n = self.left.min(buf.remaining());
        buf.put_slice(&vec![b'x'; n]);
        self.left -= n;
        Poll::Ready(Ok(()))
    }
}

/// What comes of declaring `size` and supplying `bytes`.
async fn declare(sandbox: &Subject, name: &str, size: u64, bytes: usize) -> Outcome<Result<(), sandbox::Error>> {
    let body = Watched { left: bytes, fails: false, touched: Arc::default() };
    sandbox.try_write(FileWrite::new(path(name)?, size, Body::reader(body))).await
}

/// The names in `dir`, hidden ones too.
async fn names(sandbox: &Subject, dir: &str) -> Outcome<String> {
    sandbox.ok(&format!("ls -A {dir} | tr '\\n' ' '")).await
}

async fn makes_parents(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for name in ["/tmp/a/b/c/f", "/workspace/x/y/f", "/mnt/session/uploads/f"] {
        sandbox.write(name, "content\n").await?;
        equal(name, sandbox.ok(&format!("cat {name}")).await?, "content\n")?;
    }
    sandbox.write("/tmp/a/b/second", "2").await?;
    equal("what stands beside it", names(&sandbox, "/tmp/a/b").await?, "c second ")
}

async fn replaces(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for content in ["a long first content", "short", "", "again"] {
        for _ in 0..2 {
            sandbox.write("/tmp/d/f", content).await?;
            same("what is there now", &sandbox.read("/tmp/d/f").await?, content)?;
        }
    }
    sandbox.ok("mkfifo /tmp/d/fifo").await?;
    sandbox.write("/tmp/d/fifo", "file").await?;
    equal("a FIFO that was written onto", sandbox.ok("stat -c %F /tmp/d/fifo").await?, "regular file\n")?;
    equal("what stands beside it", names(&sandbox, "/tmp/d").await?, "f fifo ")
}

async fn in_one_step(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let contents = [filler(3 << 20), filler(1 << 20)];
    sandbox.write("/tmp/f", contents[0].clone()).await?;
    let watch =
        "> /tmp/begun; until [[ -e /tmp/enough ]]; do stat -c %s /tmp/f 2>/dev/null || echo gone; done | sort | uniq";
    let write = async {
        sandbox.ok("until [[ -e /tmp/begun ]]; do sleep 0.02; done").await?;
        for n in 0..12 {
            sandbox.write("/tmp/f", contents[n % 2].clone()).await?;
        }
        sandbox.ok("> /tmp/enough").await
    };
    let (seen, written) = tokio::join!(sandbox.ok(watch), write);
    written?;
    for size in seen?.lines() {
        let whole = contents.iter().any(|c| c.len().to_string() == size);
        ensure(whole, "the sizes that somebody inside saw", "those of whole contents", || size.to_owned())?;
    }
    Ok(())
}

/// A body that comes in pieces, with pauses.
struct Slow {
    left: Vec<u8>,
    piece: usize,
    /// How long the first one and the second take.
    pauses: [Duration; 2],
    given: usize,
    pause: Pin<Box<tokio::time::Sleep>>,
}

impl Slow {
    fn new(left: Vec<u8>, piece: usize, pauses: [Duration; 2]) -> Self {
        Self { left, piece, pauses, given: 0, pause: Box::pin(tokio::time::sleep(pauses[0])) }
    }
}

impl AsyncRead for Slow {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        std::task::ready!(self.pause.as_mut().poll(cx));
        let n = self.piece.min(self.left.len()).min(buf.remaining());
        let piece: Vec<u8> = self.left.drain(..n).collect();
        buf.put_slice(&piece);
        self.given += 1;
        let pause = self.pauses.get(self.given).copied().unwrap_or(millis(20));
        self.pause.as_mut().reset(tokio::time::Instant::now() + pause);
        Poll::Ready(Ok(()))
    }
}

async fn slow_bodies(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for (size, piece, first, second) in
        [(40, 1, 0, 20), (200_000, 7001, 0, 20), (300_000, 100_000, 2500, 20), (300_000, 100_000, 0, 2000)]
    {
        let content = filler(size);
        let body = Slow::new(content.to_vec(), piece, [millis(first), millis(second)]);
        let file = FileWrite::new(path("/tmp/slow")?, size as u64, Body::reader(body));
        sandbox.try_write(file).await?.map_err(|e| unexpected("a slow body", "success", &e))?;
        same("what arrived", &sandbox.read("/tmp/slow").await?, &content)?;
    }
    Ok(())
}

async fn empty_200_times(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.write("/tmp/e/seed", "seed").await?;
    let mut took = Vec::new();
    for n in 0..200 {
        let begun = Instant::now();
        sandbox.write(format!("/tmp/e/{}", n % 10), "").await?;
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    // A machine that is busy may hold up a few.
    ensure(took[194] < secs(1) && took[199] < secs(5), "200 empty writes", "each within 1 s, all but 5", || {
        format!("{:?}", &took[194..])
    })?;
    let found = sandbox.ok("cd /tmp/e; stat -c '%s %a' [0-9] | sort -u; ls -A | wc -l").await?;
    equal("sizes, modes and names", found, "0 644\n11\n")
}

/// Wants the directory as it was: one seed and nothing else.
async fn only_the_seed(sandbox: &Subject, after: &str) -> Outcome {
    let found = sandbox.ok("cd /tmp/d; ls -A; cat seed").await?;
    equal(&format!("the directory after {after}"), found, "seed\nseeded\n")
}

async fn failed_changes_nothing(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir /tmp/d; echo seeded > /tmp/d/seed").await?;
    for (declared, supplied) in [(100, 2), (100, 0), (1 << 20, 600_000), (2, 100), (0, 1)] {
        let what = format!("{supplied} bytes of {declared}");
        for name in ["/tmp/d/seed", "/tmp/d/new", "/tmp/d/missing/parents/new"] {
            let result = declare(&sandbox, name, declared, supplied).await?;
            ensure(result.is_err(), &what, "a failure", || "success".to_owned())?;
            only_the_seed(&sandbox, &what).await?;
        }
    }
    // What fails only where its parents are there already.
    let long = "n".repeat(256);
    for name in [format!("/tmp/d/missing/parents/{long}"), format!("/tmp/d/missing/{long}/new")] {
        for size in [0, 1, 256 << 10] {
            let what = format!("{size} bytes under a name that is too long");
            let result = sandbox.try_write(FileWrite::bytes(path(name.clone())?, filler(size))).await?;
            ensure(result.is_err(), &what, "a failure", || "success".to_owned())?;
            only_the_seed(&sandbox, &what).await?;
        }
    }
    Ok(())
}

async fn broken_body(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir /tmp/d; echo seeded > /tmp/d/seed").await?;
    for supplied in [0, 10, 200_000] {
        for name in ["/tmp/d/seed", "/tmp/d/new", "/tmp/d/missing/parents/new"] {
            let body = Watched { left: supplied, fails: true, touched: Arc::default() };
            let result = sandbox.try_write(FileWrite::new(path(name)?, 1 << 20, Body::reader(body))).await?;
            ensure(result.is_err(), "a body that breaks", "a failure", || "success".to_owned())?;
            only_the_seed(&sandbox, &format!("a body that broke after {supplied} bytes")).await?;
        }
    }
    Ok(())
}

async fn dropped(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir /tmp/d; echo seeded > /tmp/d/seed").await?;
    for moment in [0, 1, 2, 5, 10, 20, 50, 100, 200] {
        let body = Slow::new(vec![b'x'; 400_000], 20_000, [Duration::ZERO, millis(20)]);
        let file = FileWrite::new(path("/tmp/d/seed")?, 500_000, Body::reader(body));
        let outcome = tokio::time::timeout(millis(moment), sandbox.inner.write(file)).await;
        ensure(outcome.is_err(), "a write of 0.4 s", "that it runs", || "it ended".to_owned())?;
    }
    soon(secs(5), || only_the_seed(&sandbox, "nine dropped writes")).await
}

async fn short_body(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for (declared, supplied) in [(1, 0), (100, 2), (65_537, 65_536), (1 << 20, (1 << 20) - 1)] {
        let result = declare(&sandbox, "/tmp/f", declared, supplied).await?;
        refused(&format!("{supplied} bytes of {declared}"), result, ErrorKind::ShortTransfer)?;
    }
    Ok(())
}

async fn long_body(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for (declared, supplied) in [(0, 1), (0, 100_000), (1, 2), (100, 5 << 20), (65_536, 65_537)] {
        let result = declare(&sandbox, "/tmp/f", declared, supplied).await?;
        refused(&format!("{supplied} bytes of {declared}"), result, ErrorKind::ShortTransfer)?;
    }
    Ok(())
}

async fn refused_unread(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for (size, mode) in [(u64::MAX, None), (FileWrite::MAX_SIZE + 1, None), (10, Some(0o10_000))] {
        let touched = Arc::new(AtomicBool::new(false));
        let body = Watched { left: 10, fails: false, touched: Arc::clone(&touched) };
        let mut file = FileWrite::new(path("/tmp/no/such/f")?, size, Body::reader(body));
        file.mode = mode;
        refused("a size or mode out of range", sandbox.try_write(file).await?, ErrorKind::InvalidRequest)?;
        ensure(!touched.load(Ordering::Relaxed), "its body", "unread", || "read".to_owned())?;
    }
    equal("parents that were made", sandbox.ok("ls -d /tmp/no 2>/dev/null; true").await?, "")
}

/// The mode of `name`, in octal.
async fn mode(sandbox: &Subject, name: &str) -> Outcome<String> {
    Ok(sandbox.ok(&format!("stat -c %a {name}")).await?.trim().to_owned())
}

async fn mode_of_a_new_file(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    // The default ACL where there is one to be had: a mutant of the suite sees that there is, where it is tested itself.
    sandbox
        .ok("umask 077; mkdir /tmp/private; setfacl -d -m u::rwx,g::rwx,o::rwx /tmp/private 2>/dev/null; true")
        .await?;
    for (name, size) in
        [("/tmp/f", 3), ("/tmp/empty", 0), ("/tmp/private/f", 3), ("/tmp/large", 200_000), ("/tmp/new/f", 3)]
    {
        sandbox.write(name, filler(size)).await?;
        equal(name, mode(&sandbox, name).await?, "644")?;
        sandbox.ok(&format!("rm {name}")).await?;
        let new = FileWrite::bytes(path(name)?, filler(size)).create_new();
        sandbox.try_write(new).await?.map_err(|e| unexpected("a file that must be new", "success", &e))?;
        equal(&format!("{name}, which had to be new"), mode(&sandbox, name).await?, "644")?;
    }
    Ok(())
}

async fn mode_is_kept(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for bits in ["755", "600", "4755", "444", "640"] {
        sandbox.ok(&format!("rm -f /tmp/f; echo old > /tmp/f; chmod {bits} /tmp/f")).await?;
        sandbox.write("/tmp/f", "#!/bin/bash\necho new\n").await?;
        equal("the mode of a file that was replaced", mode(&sandbox, "/tmp/f").await?, bits)?;
        sandbox.write("/tmp/f", "#!/bin/bash\necho newer\n").await?;
        equal("the mode after another time", mode(&sandbox, "/tmp/f").await?, bits)?;
    }
    // Large contents may travel another way than small ones.
    sandbox.ok("chmod 4750 /tmp/f").await?;
    sandbox.write("/tmp/f", filler(200_000)).await?;
    equal("the mode of a file that became large", mode(&sandbox, "/tmp/f").await?, "4750")?;
    sandbox.ok("chmod 755 /tmp/f").await?;
    sandbox.write("/tmp/f", "#!/bin/bash\necho runs\n").await?;
    equal("the script that was replaced", sandbox.ok("/tmp/f").await?, "runs\n")
}

async fn mode_of_the_request(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for bits in [0o600, 0o755, 0o400, 0o4711, 0o644] {
        for name in ["/tmp/new", "/tmp/old"] {
            sandbox.ok("rm -f /tmp/new; touch /tmp/old").await?;
            for size in [1, 200_000] {
                let file = FileWrite::bytes(path(name)?, filler(size)).with_mode(bits);
                sandbox.try_write(file).await?.map_err(|e| unexpected("a write with a mode", "success", &e))?;
                equal(name, mode(&sandbox, name).await?, format!("{bits:o}"))?;
            }
        }
    }
    Ok(())
}
