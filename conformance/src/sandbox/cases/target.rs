//! Writing where something is already, or nothing can be.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use sandbox::{Body, ErrorKind, FileWrite};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::timeout;

use super::super::bed::{path, refused, unexpected};
use super::{B, Case, filler, secs};
use crate::{Outcome, ensure, equal, same, within};

const LINK: &str = "A link at the target is replaced by the file, and what it points to stays as it is.";
const DIRECTORY: &str = "Writing onto a directory, or a link to one, fails as `IsDirectory`.";
const BELOW: &str = "Writing below something that is not a directory fails as `NotDirectory`.";
const NODE: &str = "Writing onto a device or a mount point fails as `NotReplaceable`.";
const NOWHERE: &str = "Writing where nothing can be made fails as `NotWritable`, with the system's reason.";
const NEW: &str = "A write that must make a new file fails as `AlreadyExists` where something is.";

pub(super) fn cases() -> Vec<Case> {
    let all = vec![
        Case::new("write::onto_a_link", LINK, onto_a_link),
        Case::new("write::onto_a_directory", DIRECTORY, onto_a_directory),
        Case::new("write::below_a_file", BELOW, below_a_file),
        Case::new("write::onto_a_device", NODE, onto_a_device),
        Case::new("write::onto_a_mount_point", NODE, onto_a_mount_point),
        Case::new("write::where_nothing_can_be_made", NOWHERE, where_nothing_can_be_made),
        Case::new("write::create_new", NEW, create_new),
        Case::new("write::create_new_races", NEW, create_new_races).races().repeat(10),
    ];
    all.into_iter().map(|case| case.profile("files").needs("files", |c| c.files)).collect()
}

async fn onto_a_link(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox
        .ok("cd /tmp; echo pointee > p; chmod 600 p; ln -s p link; ln -s nowhere dangling; ln -s /etc/passwd far")
        .await?;
    let passwd = sandbox.ok("cat /etc/passwd").await?;
    for name in ["/tmp/link", "/tmp/dangling", "/tmp/far"] {
        sandbox.write(name, "file\n").await?;
        let found = sandbox.ok(&format!("stat -c '%F %a' {name}; cat {name}")).await?;
        equal(name, found, "regular file 644\nfile\n")?;
    }
    equal(
        "what the link pointed to",
        sandbox.ok("cat /tmp/p; stat -c %a /tmp/p; ls /tmp").await?,
        "pointee\n600\ndangling\nfar\nlink\np\n",
    )?;
    equal("what lies far away", sandbox.ok("cat /etc/passwd").await?, passwd)
}

async fn onto_a_directory(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("cd /tmp; mkdir dir; echo inner > dir/inner; ln -s dir link; mkdir empty").await?;
    for name in ["/tmp/dir", "/tmp/link", "/tmp/empty", "/tmp", "/workspace"] {
        for size in [3, 0, 256 << 10] {
            let file = FileWrite::bytes(path(name)?, filler(size));
            refused(name, sandbox.try_write(file).await?, ErrorKind::IsDirectory)?;
        }
    }
    let found = sandbox.ok("cd /tmp; cat dir/inner; readlink link; ls -A; ls -A dir empty").await?;
    equal("what is there", found, "inner\ndir\ndir\nempty\nlink\ndir:\ninner\n\nempty:\n")
}

async fn below_a_file(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("cd /tmp; echo blocker > file; ln -s file link; ln -s nowhere dangling").await?;
    for name in ["/tmp/file/child", "/tmp/file/deep/er/child", "/tmp/link/child", "/tmp/dangling/child", "/dev/null/x"]
    {
        for size in [3, 256 << 10] {
            let begun = Instant::now();
            let file = FileWrite::bytes(path(name)?, filler(size));
            refused(name, sandbox.try_write(file).await?, ErrorKind::NotDirectory)?;
            ensure(begun.elapsed() < secs(10), name, "an answer soon", || format!("{:?}", begun.elapsed()))?;
        }
    }
    equal("what is there", sandbox.ok("cd /tmp; ls -A; cat file").await?, "dangling\nfile\nlink\nblocker\n")
}

async fn onto_a_device(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let before = sandbox.ok("ls -A /dev").await?;
    for name in ["/dev/null", "/dev/zero"] {
        for size in [0, 1, 256 << 10] {
            let file = FileWrite::bytes(path(name)?, filler(size));
            refused(name, sandbox.try_write(file).await?, ErrorKind::NotReplaceable)?;
        }
        equal(name, sandbox.ok(&format!("stat -c %F {name}")).await?, "character special file\n")?;
    }
    equal("what stands beside it", sandbox.ok("ls -A /dev").await?, before)
}

async fn onto_a_mount_point(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let find = "while read -r _ _ _ _ at _; do [[ $at != *\\\\* && -f $at && ! -L $at ]] && echo \"$at\"; done < /proc/self/mountinfo";
    let found = sandbox.ok(&format!("{find}; true")).await?;
    let found: Vec<_> = found.lines().filter(|name| !name.starts_with("/proc/")).collect();
    ensure(!found.is_empty(), "looking for a regular file that is a mount point", "one, such as /etc/hosts", || {
        "none: if sandboxes of this backend have none, say so by Setup::without_mounted_files".to_owned()
    })?;
    for name in found {
        let look = format!("stat -c '%F %s %d:%i' '{name}'; ls -A \"$(dirname '{name}')\"");
        let before = sandbox.ok(&look).await?;
        for size in [1, 256 << 10] {
            let file = FileWrite::bytes(path(name)?, filler(size));
            refused(name, sandbox.try_write(file).await?, ErrorKind::NotReplaceable)?;
        }
        equal(name, sandbox.ok(&look).await?, before)?;
    }
    Ok(())
}

/// What systems say where nothing can be made.
const REASONS: [&str; 9] = [
    "Operation not permitted",
    "No such file or directory",
    "Permission denied",
    "Invalid argument",
    "No space left on device",
    "Read-only file system",
    "Operation not supported",
    "Not supported",
    "Function not implemented",
];

async fn where_nothing_can_be_made(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let probe = "for d in /proc /usr /sys /etc /; do [[ -d $d ]] || continue; (: > $d/.probe) 2>/dev/null && rm $d/.probe || echo $d; done";
    let found = sandbox.ok(&format!("{probe}; true")).await?;
    ensure(found.contains("/proc"), "looking for a place where nothing can be made", "at least /proc", || {
        found.clone()
    })?;
    for dir in found.lines() {
        let dir = dir.trim_end_matches('/');
        for name in [format!("{dir}/conformance-file"), format!("{dir}/conformance-dir/file")] {
            for size in [256 << 10, 3] {
                let begun = Instant::now();
                let file = FileWrite::bytes(path(name.clone())?, filler(size));
                let error = refused(&name, sandbox.try_write(file).await?, ErrorKind::NotWritable)?;
                let told = error.reason().is_some_and(|r| REASONS.iter().any(|known| r.contains(known)));
                ensure(told, &name, "the system's reason, such as Permission denied", || crate::short(&error))?;
                ensure(begun.elapsed() < secs(10), &name, "an answer soon", || format!("{:?}", begun.elapsed()))?;
            }
        }
    }
    Ok(())
}

async fn create_new(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let new = |name: &str| Ok::<_, crate::Failure>(FileWrite::bytes(path(name)?, "new").create_new());
    let made = sandbox.try_write(new("/tmp/d/f")?).await?;
    made.map_err(|e| unexpected("a new file where nothing is", "success", &e))?;
    sandbox
        .ok("cd /tmp/d; echo old > file; chmod 600 file; ln -s file link; ln -s nowhere dangling; mkfifo fifo")
        .await?;
    for name in ["/tmp/d/f", "/tmp/d/file", "/tmp/d/link", "/tmp/d/dangling", "/tmp/d/fifo"] {
        refused(name, sandbox.try_write(new(name)?).await?, ErrorKind::AlreadyExists)?;
        // Large contents may travel another way than small ones.
        let large = FileWrite::bytes(path(name)?, super::filler(200_000)).create_new();
        refused(name, sandbox.try_write(large).await?, ErrorKind::AlreadyExists)?;
    }
    let found = sandbox.ok("cd /tmp/d; ls -A; cat file f; readlink link dangling; stat -c '%F %a' fifo file").await?;
    let wanted = "dangling\nf\nfifo\nfile\nlink\nold\nnewfile\nnowhere\nfifo 644\nregular file 600\n";
    equal("what is there", found, wanted)
}

/// A body whose last byte comes together with those of the others.
struct Together {
    left: Bytes,
    last: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl AsyncRead for Together {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        if self.left.len() == 1 {
            std::task::ready!(self.last.as_mut().poll(cx));
        }
        let most = self.left.len().saturating_sub(1).max(1).min(buf.remaining()).min(self.left.len());
        buf.put_slice(&self.left.split_to(most));
        Poll::Ready(Ok(()))
    }
}

async fn create_new_races(bed: B) -> Outcome {
    const WRITERS: usize = 8;
    let sandbox = bed.sandbox().await?;
    let all_there = Arc::new(tokio::sync::Barrier::new(WRITERS));
    let writes = (0..WRITERS).map(|n| {
        let (sandbox, all_there) = (sandbox.clone(), Arc::clone(&all_there));
        async move {
            let content = Bytes::from(format!("{n}").repeat(50_000));
            let size = content.len() as u64;
            // Who takes one write after the other is not held up for long.
            let last = Box::pin(async move { drop(timeout(secs(2), all_there.wait()).await) });
            let body = Body::reader(Together { left: content, last });
            sandbox.try_write(FileWrite::new(path("/tmp/one")?, size, body).create_new()).await
        }
    });
    let mut won = Vec::new();
    for (n, result) in
        within("eight writes at once", secs(60), futures::future::join_all(writes)).await?.into_iter().enumerate()
    {
        match result? {
            Ok(()) => won.push(n),
            Err(e) => {
                ensure(e.kind() == ErrorKind::AlreadyExists, "a write that came too late", "AlreadyExists", || {
                    crate::short(&e)
                })?
            }
        }
    }
    equal("how many made the file", won.len(), 1)?;
    same("its content", &sandbox.read("/tmp/one").await?, format!("{}", won[0]).repeat(50_000))
}
