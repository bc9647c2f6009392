//! Writing many files.

use bytes::Bytes;
use sandbox::{Body, Effect, ErrorKind, ExecRequest, FileWrite};

use super::super::Subject;
use super::super::bed::{path, unexpected};
use super::{B, Case, filler, odd_names, secs};
use crate::{Failure, Outcome, ensure, equal, same};

const MEMBER: &str = "Every member of a batch lands as a single write would.";
const FIRST: &str = "A batch ends at its first failing member, which the error names; what came before it stays, and nothing after it is written.";

pub(super) fn cases() -> Vec<Case> {
    let all = vec![
        Case::new("batch::round_trip", MEMBER, round_trip),
        Case::new("batch::empty", MEMBER, empty),
        Case::new("batch::modes", MEMBER, modes),
        Case::new("batch::odd_names", MEMBER, names),
        Case::new("batch::same_target_twice", MEMBER, same_target_twice),
        Case::new("batch::a_thousand", MEMBER, a_thousand),
        Case::new("batch::twenty_thousand", MEMBER, twenty_thousand).slow().deadline(secs(300)),
        Case::new("batch::stops_at_the_first_failure", FIRST, stops_at_the_first_failure),
        Case::new("batch::every_kind_of_failure", FIRST, every_kind_of_failure),
    ];
    all.into_iter().map(|case| case.profile("files").needs("files", |c| c.files)).collect()
}

fn file(name: impl Into<Vec<u8>>, content: impl Into<Bytes>) -> Outcome<FileWrite<'static>> {
    Ok(FileWrite::bytes(path(name)?, content))
}

/// Writes `files` in one delivery, which must succeed.
async fn deliver(sandbox: &Subject, files: Vec<FileWrite<'_>>) -> Outcome {
    sandbox.try_write_many(files).await?.map_err(|e| unexpected("write_many", "success", &e))
}

async fn round_trip(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let mut contents = vec![
        ("/workspace/batch/binary".to_owned(), Bytes::from_static(b"\0\xff\n\0")),
        ("/workspace/batch/empty".to_owned(), Bytes::new()),
        ("/workspace/batch/deep/er/large".to_owned(), filler(1 << 20)),
        ("/tmp/elsewhere/f".to_owned(), Bytes::from_static(b"x")),
    ];
    contents.extend((0..20).map(|n| (format!("/workspace/batch/small/{n}"), Bytes::from(format!("small {n}\n")))));
    let files = contents.iter().map(|(name, content)| file(name.clone(), content.clone()));
    deliver(&sandbox, files.collect::<Outcome<_>>()?).await?;
    for (name, content) in &contents {
        same(name, &sandbox.read(name.clone()).await?, content)?;
    }
    let second = vec![file("/workspace/batch/deep/er/large", "short")?, file("/workspace/batch/binary", "")?];
    deliver(&sandbox, second).await?;
    same("a file that was replaced", &sandbox.read("/workspace/batch/deep/er/large").await?, "short")?;
    let found =
        sandbox.ok("cd batch; ls -A . deep/er | tr '\\n' ' '; ls -A /workspace /tmp/elsewhere | tr '\\n' ' '").await?;
    equal("what is there", found, ".: binary deep empty small  deep/er: large /tmp/elsewhere: f  /workspace: batch ")
}

async fn empty(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    deliver(&sandbox, Vec::new()).await?;
    deliver(&sandbox, vec![file("/tmp/only", "one")?]).await?;
    same("a batch of one", &sandbox.read("/tmp/only").await?, "one")
}

async fn modes(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let script = "#!/bin/bash\necho first\n";
    deliver(
        &sandbox,
        vec![file("/tmp/b/new", "x")?, file("/tmp/b/script", script)?, file("/tmp/b/private", "x")?.with_mode(0o600)],
    )
    .await?;
    equal("modes of new files", sandbox.ok("cd /tmp/b; stat -c %a new script private").await?, "644\n644\n600\n")?;
    sandbox.ok("chmod 755 /tmp/b/script; ln -s new /tmp/b/link").await?;
    deliver(&sandbox, vec![file("/tmp/b/script", script.replace("first", "second"))?, file("/tmp/b/link", "y")?])
        .await?;
    let found = sandbox.ok("cd /tmp/b; ./script; stat -c '%a %F' script link; cat new").await?;
    equal("a script and a link that were replaced", found, "second\n755 regular file\n644 regular file\nx")?;
    // Many members may travel another way than few.
    let many = |text: &str| (0..40).map(|n| file(format!("/tmp/m/{n}"), text.to_owned())).collect::<Outcome<Vec<_>>>();
    let mut first = many("first")?;
    first.push(file("/tmp/m/asked", "x")?.with_mode(0o640));
    deliver(&sandbox, first).await?;
    sandbox.ok("cd /tmp/m; chmod 755 1; chmod 600 2; chmod 4711 3").await?;
    deliver(&sandbox, many("second")?).await?;
    let found = sandbox.ok("cd /tmp/m; stat -c %a 0 1 2 3 39 asked; cat 1 39").await?;
    equal("modes of many, new and replaced", found, "644\n755\n600\n4711\n644\n640\nsecondsecond")
}

async fn names(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let at = |name: &[u8]| [b"/workspace/odd/", name, b"/", name].concat();
    let files = odd_names().into_iter().map(|name| file(at(&name), name));
    deliver(&sandbox, files.collect::<Outcome<_>>()?).await?;
    for name in odd_names() {
        same("what reads back", &sandbox.read(at(&name)).await?, &name)?;
        let inside = sandbox.exec(ExecRequest::args([b"cat".to_vec(), b"--".to_vec(), at(&name)])).await?;
        same("what stands at that name inside", &inside.stdout.bytes, &name)?;
    }
    Ok(())
}

async fn same_target_twice(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    deliver(&sandbox, vec![file("/tmp/f", "first")?, file("/tmp/g", "g")?, file("/tmp/f", "second")?]).await?;
    equal("the later one wins", sandbox.ok("cat /tmp/f /tmp/g").await?, "secondg")
}

async fn tree(sandbox: &Subject, count: usize) -> Outcome {
    let files = (0..count).map(|n| file(format!("/workspace/tree/{}/{n}", n % 97), format!("{n}\n").repeat(n % 50)));
    deliver(sandbox, files.collect::<Outcome<_>>()?).await?;
    let found = sandbox.ok("find tree -type f | wc -l; find tree -type f -exec cat {} + | wc -l").await?;
    let lines: usize = (0..count).map(|n| n % 50).sum();
    equal("files and lines", found, format!("{count}\n{lines}\n"))
}

async fn a_thousand(bed: B) -> Outcome {
    tree(&bed.sandbox().await?, 1000).await
}

async fn twenty_thousand(bed: B) -> Outcome {
    tree(&bed.sandbox().await?, 20_000).await
}

async fn stops_at_the_first_failure(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir -p /tmp/b/dir; echo inner > /tmp/b/dir/inner").await?;
    for bad in 0..4 {
        sandbox.ok("rm -f /tmp/b/[0-9]").await?;
        let files = (0..4)
            .map(|n| if n == bad { file("/tmp/b/dir", "x") } else { file(format!("/tmp/b/{n}"), format!("{n}")) });
        let error = match sandbox.try_write_many(files.collect::<Outcome<_>>()?).await? {
            Err(error) => error,
            Ok(()) => return Err(Failure::new("a batch with a directory", "IsDirectory", "success")),
        };
        equal("the failure", (error.kind(), error.member()), (ErrorKind::IsDirectory, Some(bad)))?;
        if bad > 0 {
            ensure(error.effect() == Effect::Partial, "the effect", "Partial", || crate::short(&error))?;
        }
        let landed: String = (0..bad).map(|n| format!("{n}\n")).collect();
        let found = sandbox.ok("cd /tmp/b; ls -A; cat dir/inner").await?;
        equal(&format!("what is there after member {bad} failed"), found, format!("{landed}dir\ninner\n"))?;
    }
    Ok(())
}

/// The error of a batch that must fail as `kind`.
async fn failure(sandbox: &Subject, what: &str, kind: ErrorKind, batch: Vec<FileWrite<'_>>) -> Outcome<sandbox::Error> {
    let result = sandbox.try_write_many(batch).await?;
    result.err().ok_or_else(|| Failure::new(what, format!("{kind:?}"), "success"))
}

async fn every_kind_of_failure(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir /tmp/b; echo x > /tmp/b/blocker; touch /tmp/b/there").await?;
    type Member = fn() -> Outcome<FileWrite<'static>>;
    let members: [(&str, Member, ErrorKind); 7] = [
        ("below a file", || file("/tmp/b/blocker/x/y", "x"), ErrorKind::NotDirectory),
        ("onto a device", || file("/dev/null", "x"), ErrorKind::NotReplaceable),
        ("in /proc", || file("/proc/conformance", "x"), ErrorKind::NotWritable),
        (
            "a short body",
            || Ok(FileWrite::new(path("/tmp/b/short")?, 100, Body::bytes("few"))),
            ErrorKind::ShortTransfer,
        ),
        ("a long body", || Ok(FileWrite::new(path("/tmp/b/long")?, 2, Body::bytes("many"))), ErrorKind::ShortTransfer),
        ("where something is", || Ok(file("/tmp/b/there", "x")?.create_new()), ErrorKind::AlreadyExists),
        ("a mode out of range", || Ok(file("/tmp/b/mode", "x")?.with_mode(0o77777)), ErrorKind::InvalidRequest),
    ];
    for (what, member, kind) in members {
        sandbox.ok("rm -f /tmp/b/before /tmp/b/after").await?;
        let batch = vec![file("/tmp/b/before", "b")?, member()?, file("/tmp/b/after", "a")?];
        let error = failure(&sandbox, what, kind, batch).await?;
        equal(what, (error.kind(), error.member()), (kind, Some(1)))?;
        equal(what, sandbox.ok("ls -A /tmp/b | tr '\\n' ' '").await?, "before blocker there ")?;
        // Many members may travel another way than few.
        let mut many = (0..20).map(|n| file(format!("/tmp/m/{n}"), "b")).collect::<Outcome<Vec<_>>>()?;
        many.push(member()?);
        many.extend((20..30).map(|n| file(format!("/tmp/m/{n}"), "a")).collect::<Outcome<Vec<_>>>()?);
        let error = failure(&sandbox, what, kind, many).await?;
        equal(what, (error.kind(), error.member()), (kind, Some(20)))?;
        let left = sandbox.ok("ls -A /tmp/b | tr '\\n' ' '; ls -A /tmp/m | wc -l; rm -r /tmp/m").await?;
        equal(what, left, "before blocker there 20\n")?;
    }
    equal("the device", sandbox.ok("stat -c %F /dev/null").await?, "character special file\n")
}
