//! Reading files.

use std::time::Instant;

use bytes::Bytes;
use sandbox::{ErrorKind, ExecRequest, FileWrite};

use super::super::Subject;
use super::super::bed::{path, refused, unexpected};
use super::{B, Case, filler, odd_names, secs, slowly};
use crate::{Failure, Outcome, ensure, equal, same, within};

const BACK: &str = "A file reads back as it was written, whatever its bytes and its name.";
const LIMIT: &str = "A file larger than the limit fails as `FileTooLarge` before any of its bytes travel; one of exactly the limit is read.";
const MISSING: &str = "Reading what does not exist fails as `FileNotFound`.";
const IRREGULAR: &str = "Reading a link, a FIFO, a socket or a device fails as `NotRegularFile`, without blocking.";
const LEAF: &str = "A link is never followed at the last component; earlier ones are.";
const REGULAR: &str = "Reads a regular file of at most `limit` bytes.";

pub(super) fn cases() -> Vec<Case> {
    let all = vec![
        Case::new("read::bytes", BACK, bytes),
        Case::new("read::sizes", BACK, sizes),
        Case::new("read::odd_names", BACK, names),
        Case::new("read::odd_directories", BACK, directories),
        Case::new("read::one_file_system", BACK, one_file_system),
        Case::new("read::limit_is_inclusive", LIMIT, limit_is_inclusive),
        Case::new("read::limit_of_0", LIMIT, limit_of_0),
        Case::new("read::missing", MISSING, missing),
        Case::new("read::directory", "Reading a directory fails as `IsDirectory`.", directory),
        Case::new("read::link_fifo_socket_device", IRREGULAR, irregular),
        Case::new(
            "read::below_a_file",
            "Reading below something that is not a directory fails as `NotDirectory`.",
            below,
        ),
        Case::new("read::links_on_the_way", LEAF, links_on_the_way),
        Case::new("read::files_without_a_size", REGULAR, without_a_size),
        Case::new("read::beside_a_writer", REGULAR, beside_a_writer).races(),
        Case::new("read::waits_for_its_reader", REGULAR, waits_for_its_reader),
        Case::new("read::dropped", "Dropping it ends the transfer.", dropped).races(),
        Case::new("read::many_at_once", "All operations can run at once, through one handle or several.", many_at_once)
            .races(),
    ];
    all.into_iter().map(|case| case.profile("files").needs("files", |c| c.files)).collect()
}

async fn bytes(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let all: Vec<u8> = (0..=255).collect();
    for content in [
        &b""[..],
        b"\0",
        b"x",
        b"no newline",
        b"line\n",
        b"\r\n\r\n",
        b"\xff\xfe\0\xff",
        b"\n\n\n",
        &all,
        b"'\"$(id)`id`\\",
    ] {
        sandbox.write("/tmp/deep/er/file", content.to_vec()).await?;
        same("what reads back", &sandbox.read("/tmp/deep/er/file").await?, content)?;
        let size = sandbox.ok("stat -c %s /tmp/deep/er/file").await?;
        equal("its size inside", size.trim(), content.len().to_string().as_str())?;
    }
    Ok(())
}

async fn sizes(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for size in [1, 4095, 4096, 4097, 32_767, 32_769, 65_535, 65_536, 65_537, 1 << 20, (5 << 20) + 3, 48 << 20] {
        let content = filler(size);
        sandbox.write("/tmp/f", content.clone()).await?;
        same(&format!("{size} bytes back"), &sandbox.read("/tmp/f").await?, &content)?;
    }
    Ok(())
}

async fn names(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for name in odd_names() {
        let at = [b"/workspace/odd/", &name[..]].concat();
        sandbox.write(at.clone(), name.clone()).await?;
        same("what reads back", &sandbox.read(at.clone()).await?, &name)?;
        let inside = sandbox.exec(ExecRequest::args([b"cat".to_vec(), b"--".to_vec(), at])).await?;
        same("what stands at that name inside", &inside.stdout.bytes, &name)?;
    }
    let count = sandbox.sh("cd odd; shopt -s dotglob; set -- *; echo $#").await?;
    equal("names in the directory", count.stdout.to_string_lossy().trim(), odd_names().len().to_string().as_str())
}

async fn directories(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for name in odd_names() {
        let at = [b"/workspace/", &name[..], b"/", &name[..]].concat();
        sandbox.write(at.clone(), name.clone()).await?;
        same("what reads back", &sandbox.read(at).await?, &name)?;
    }
    let longest = [vec![b'/'; 1], b"tmp".to_vec(), b"/abcdefg".repeat(500)].concat();
    sandbox.write(longest.clone(), "deep").await?;
    same("500 directories down", &sandbox.read(longest).await?, b"deep")
}

async fn one_file_system(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.write("/tmp/a/b", "written\n").await?;
    equal("cat of what was written", sandbox.ok("cat /tmp/a/b").await?, "written\n")?;
    sandbox.ok("printf 'printed\\0' > /tmp/a/c; printf here > here").await?;
    same("what was printed", &sandbox.read("/tmp/a/c").await?, b"printed\0")?;
    same("in the working directory", &sandbox.read("/workspace/here").await?, b"here")?;
    let second = bed.attach(&bed.session).await?;
    same("through another handle", &second.read("/tmp/a/c").await?, b"printed\0")
}

async fn limit_is_inclusive(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let content = filler(4 << 20);
    sandbox.write("/tmp/f", content.clone()).await?;
    let whole = sandbox
        .try_read("/tmp/f", 4 << 20)
        .await?
        .map_err(|e| unexpected("reading exactly the limit", "the file", &e))?;
    same("exactly the limit", &whole, &content)?;
    for limit in [(4 << 20) - 1, 1024, 1] {
        let opened = sandbox.open("/tmp/f", limit).await?;
        refused(&format!("a limit of {limit}, before any byte"), opened, ErrorKind::FileTooLarge)?;
    }
    // Small files may travel another way than large ones, and NUL another way than text.
    for size in [1, 2, 3, 31, 32, 33, 4095, 4096, 4097, 65_536] {
        for content in [vec![b'x'; size], vec![0; size], filler(size).to_vec()] {
            sandbox.write("/tmp/f", content.clone()).await?;
            let exact = size as u64;
            let whole = sandbox.try_read("/tmp/f", exact).await?;
            let whole = whole.map_err(|e| unexpected("reading exactly the limit", "the file", &e))?;
            same(&format!("{size} bytes with that limit"), &whole, &content)?;
            for limit in [exact - 1, exact / 2] {
                let opened = sandbox.open("/tmp/f", limit).await?;
                let what = format!("{size} bytes with a limit of {limit}, before any byte");
                refused(&what, opened.map(drop), ErrorKind::FileTooLarge)?;
            }
        }
    }
    Ok(())
}

async fn limit_of_0(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("touch /tmp/empty; echo x > /tmp/f").await?;
    let empty = sandbox.try_read("/tmp/empty", 0).await?.map_err(|e| unexpected("an empty file", "no bytes", &e))?;
    equal("bytes of an empty file", empty.len(), 0)?;
    refused("a file of two bytes", sandbox.open("/tmp/f", 0).await?, ErrorKind::FileTooLarge).map(drop)
}

async fn missing(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for name in ["/no", "/tmp/no", "/no/such/file/any/where", "/workspace/-rf"] {
        let error = refused(name, sandbox.try_read(name, 10).await?, ErrorKind::FileNotFound)?;
        equal("the path of the error", error.path(), Some(&path(name)?))?;
    }
    Ok(())
}

async fn directory(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for name in ["/tmp", "/workspace", "/proc", "/usr/bin"] {
        refused(name, sandbox.try_read(name, 1 << 20).await?, ErrorKind::IsDirectory)?;
    }
    Ok(())
}

async fn irregular(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox
        .ok("cd /tmp; echo x > f; ln -s f link; ln -s nowhere dangling; ln -s /tmp dir; ln -s loop loop; mkfifo fifo")
        .await?;
    // No tool makes one that every image has: whichever is there.
    let socket = "cd /tmp; perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0) && bind(S, sockaddr_un(\"socket\"))' || \
                  python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")' || \
                  timeout 1 nc -lU socket </dev/null || timeout 1 busybox nc -lU socket </dev/null || \
                  timeout 1 socat UNIX-LISTEN:socket,unlink-close=0 - </dev/null";
    let made =
        sandbox.ok(&format!("({socket}) >/dev/null 2>&1; [[ -S /tmp/socket ]] && echo /tmp/socket; true")).await?;
    let names = ["/tmp/link", "/tmp/dangling", "/tmp/dir", "/tmp/loop", "/tmp/fifo", "/dev/null", "/dev/zero"];
    for name in names.into_iter().chain(made.lines()) {
        let begun = Instant::now();
        refused(name, sandbox.try_read(name, 1 << 30).await?, ErrorKind::NotRegularFile)?;
        ensure(begun.elapsed() < secs(5), name, "an answer at once", || format!("{:?}", begun.elapsed()))?;
    }
    // A regular file that blocks who may open it: whatever comes of that, it ends, and nothing of it stays in the way.
    drop(sandbox.try_read("/proc/kmsg", 1 << 20).await?);
    equal("who reads it afterwards", sandbox.ok(READERS_OF_KMSG).await?, "")
}

/// Names the processes that have `/proc/kmsg` open.
const READERS_OF_KMSG: &str =
    "for f in /proc/[0-9]*/fd/*; do [[ $(readlink $f) == */kmsg ]] && echo $f; done 2>/dev/null; true";

async fn below(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("cd /tmp; echo x > file; ln -s file link; mkfifo fifo").await?;
    for name in ["/tmp/file/child", "/tmp/file/deep/er/child", "/tmp/link/child", "/tmp/fifo/child", "/dev/null/x"] {
        refused(name, sandbox.try_read(name, 10).await?, ErrorKind::NotDirectory)?;
    }
    equal("the file", sandbox.ok("cat /tmp/file").await?, "x\n")
}

async fn links_on_the_way(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("cd /tmp; mkdir -p real/sub; echo x > real/sub/f; ln -s real way; ln -s /tmp/way/sub far").await?;
    same("through a link to a directory", &sandbox.read("/tmp/way/sub/f").await?, b"x\n")?;
    same("through a chain of links", &sandbox.read("/tmp/far/f").await?, b"x\n")?;
    sandbox.write("/tmp/far/g", "y\n").await?;
    equal("what was written through links", sandbox.ok("cat /tmp/real/sub/g").await?, "y\n")
}

async fn without_a_size(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for name in ["/proc/version", "/proc/sys/kernel/ostype"] {
        let inside = sandbox.ok(&format!("cat {name}")).await?;
        same(name, &sandbox.read(name).await?, inside)?;
    }
    // Its frequencies change between two looks.
    let same_each_time = |text: &str| text.lines().filter(|line| !line.contains("MHz")).collect::<Vec<_>>().join("\n");
    let inside = same_each_time(&sandbox.ok("cat /proc/cpuinfo").await?);
    let read = sandbox.read("/proc/cpuinfo").await?;
    same("/proc/cpuinfo", same_each_time(&String::from_utf8_lossy(&read)).as_bytes(), inside)
}

async fn beside_a_writer(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    // It goes on for as long as somebody reads.
    let writer = "until [[ -e /tmp/enough ]]; do for i in {1..200}; do printf '%1000d\\n' $i >> /tmp/log; done; : > /tmp/log; done";
    let read = async {
        let (mut reads, mut grown) = (0, 0);
        // As often as it takes to have seen it grow.
        while reads < 30 || grown < 3 {
            reads += 1;
            match sandbox.try_read("/tmp/log", 50_000).await? {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::FileTooLarge => grown += 1,
                Err(e) if matches!(e.kind(), ErrorKind::FileNotFound | ErrorKind::ShortTransfer) => {}
                Err(e) => return Err(unexpected("reading a file that changes", "its bytes, or what is wrong", &e)),
            }
        }
        Ok::<_, Failure>(())
    };
    let read = async {
        let read = within("reading a file that grows beyond the limit", secs(60), read).await.and_then(|read| read);
        sandbox.ok("> /tmp/enough").await?;
        read
    };
    let (written, read) = tokio::join!(sandbox.ok(writer), read);
    written?;
    read
}

async fn waits_for_its_reader(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let content = filler(6 << 20);
    sandbox.write("/tmp/f", content.clone()).await?;
    let stream = sandbox.open("/tmp/f", 8 << 20).await?.map_err(|e| unexpected("read", "a stream", &e))?;
    same("a file that is read slowly", &slowly(stream, "a file that is read slowly").await?, &content)
}

async fn dropped(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let content = filler(8 << 20);
    sandbox.write("/tmp/f", content.clone()).await?;
    for pieces in 0..8 {
        let opened = sandbox.open("/tmp/f", 16 << 20).await?;
        let mut stream = opened.map_err(|e| unexpected("read", "a stream", &e))?;
        for _ in 0..pieces {
            within("a piece", secs(30), stream.next()).await?;
        }
        drop(stream);
        same("a whole read afterwards", &sandbox.read("/tmp/f").await?, &content)?;
    }
    equal("a command afterwards", sandbox.ok("echo alive").await?, "alive\n")
}

async fn many_at_once(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let runs = (0..40u32).map(|n| {
        let sandbox: Subject = sandbox.clone();
        async move {
            let name = format!("/tmp/at_once/{}", n % 8);
            let content = Bytes::from(format!("{n} ").repeat(20_000 + n as usize));
            sandbox
                .try_write(FileWrite::bytes(path(name.clone())?, content))
                .await?
                .map_err(|e| unexpected("write", "success", &e))?;
            let back = sandbox.read(name).await?;
            let first = back.split(|b| *b == b' ').next().unwrap_or_default();
            let whole = back.len() % (first.len() + 1) == 0
                && back.chunks(first.len() + 1).all(|chunk| &chunk[..first.len()] == first);
            ensure(whole, "a file that eight write at once", "one of them, whole", || format!("{} bytes", back.len()))
        }
    });
    for outcome in within("40 writes and reads at once", secs(110), futures::future::join_all(runs)).await? {
        outcome?;
    }
    Ok(())
}
