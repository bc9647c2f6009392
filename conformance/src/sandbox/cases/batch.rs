//! Writing many files.

use std::time::Instant;

use bytes::Bytes;
use sandbox::{Body, Effect, ErrorKind, ExecRequest, FileWrite};

use super::super::Subject;
use super::super::bed::{path, unexpected};
use super::{B, Case, filler, millis, odd_names, secs, soon};
use crate::{Failure, Outcome, ensure, equal, same};

const MEMBER: &str = "Every member of a batch lands as a single write would.";
const DIRECTORIES: &str = "Directories that a batch makes have mode 0755, whatever the umask.";
const BLOCKED: &str =
    "A batch with a member below something that is not a directory fails as `NotDirectory` and writes nothing.";
const FIRST: &str = "At any other failure a batch ends at the first failing member, which the error names; what came before it stays, \
     and nothing after it is written.";

pub(super) fn cases() -> Vec<Case> {
    let all = vec![
        Case::new("batch::round_trip", MEMBER, round_trip),
        Case::new("batch::empty", MEMBER, empty),
        Case::new("batch::modes", MEMBER, modes),
        Case::new("batch::directories", DIRECTORIES, directories),
        Case::new("batch::odd_names", MEMBER, names),
        Case::new("batch::same_target_twice", MEMBER, same_target_twice),
        Case::new("batch::a_thousand", MEMBER, a_thousand),
        Case::new("batch::twenty_thousand", MEMBER, twenty_thousand).slow().deadline(secs(300)),
        Case::new("batch::stops_at_the_first_failure", FIRST, stops_at_the_first_failure),
        Case::new("batch::every_kind_of_failure", FIRST, every_kind_of_failure),
        Case::new("batch::below_a_file", BLOCKED, below_a_file),
        Case::new("batch::repeated", MEMBER, repeated),
        Case::new("batch::dropped", MEMBER, dropped).races().profile("faults"),
    ];
    let files = |case: Case| if case.profile == "core" { case.profile("files") } else { case };
    all.into_iter().map(|case| files(case).needs("files", |c| c.files)).collect()
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
    let links = "ln -sf asked 4; ln -sf nowhere 5; ln -sf /etc/passwd 6; ln -sf 7 8";
    sandbox.ok(&format!("cd /tmp/m; chmod 755 1; chmod 600 2; chmod 4711 3; chmod 600 7; {links}")).await?;
    deliver(&sandbox, many("second")?).await?;
    let found = sandbox.ok("cd /tmp/m; stat -c %a 0 1 2 3 39 asked; cat 1 39 asked").await?;
    equal("modes of many, new and replaced", found, "644\n755\n600\n4711\n644\n640\nsecondsecondx")?;
    let found = sandbox.ok("cd /tmp/m; stat -c '%a %F' 4 5 6 7 8; cat 4 5 6 7 8; ls nowhere 2>/dev/null; true").await?;
    let [new, kept] = ["644 regular file\n", "600 regular file\n"];
    let wanted = [new, new, new, kept, new, &"second".repeat(5)].concat();
    equal("links among many that were replaced", found, wanted)
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
    let sandbox = bed.sandbox().await?;
    let begun = Instant::now();
    tree(&sandbox, 20_000).await?;
    ensure(begun.elapsed() < secs(60), "20,000 small files", "within a minute", || format!("{:?}", begun.elapsed()))
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
    // A batch that is too long for one delivery.
    for bad in [LATE, 2 * LATE] {
        let long = |n| if n == bad { file("/tmp/b/dir", "x") } else { file(format!("/tmp/l/{n}"), "") };
        let files = (0..bad + 50).map(long).collect::<Outcome<_>>()?;
        let what = format!("member {bad} of {}", bad + 50);
        let error = failure(&sandbox, &what, ErrorKind::IsDirectory, files).await?;
        let told = (error.kind(), error.member(), error.effect());
        equal(&what, told, (ErrorKind::IsDirectory, Some(bad), Effect::Partial))?;
        let found = sandbox.ok("cd /tmp/l; ls -A | wc -l; ls -A | sort -n | tail -n 1; rm -r /tmp/l").await?;
        equal(&format!("how many are there after {what}, and the last"), found, format!("{bad}\n{}\n", bad - 1))?;
    }
    Ok(())
}

/// A member that comes after the parts that a batch may be taken in: the first ends before the 1024th.
const LATE: usize = 1050;

/// The error of a batch that must fail as `kind`.
async fn failure(sandbox: &Subject, what: &str, kind: ErrorKind, batch: Vec<FileWrite<'_>>) -> Outcome<sandbox::Error> {
    let result = sandbox.try_write_many(batch).await?;
    result.err().ok_or_else(|| Failure::new(what, format!("{kind:?}"), "success"))
}

async fn every_kind_of_failure(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir /tmp/b; echo x > /tmp/b/blocker; touch /tmp/b/there").await?;
    type Member = fn() -> Outcome<FileWrite<'static>>;
    let members: [(&str, Member, ErrorKind); 6] = [
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

async fn directories(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let modes = "cd /tmp/d; find . -mindepth 1 -type d -exec stat -c '%a %n' {} + | LC_ALL=C sort";
    // Few members, many, large and new ones may travel in different ways.
    sandbox.ok("mkdir -m 711 -p /tmp/d/there").await?;
    let new = file("/tmp/d/new/er/f", "x")?.create_new();
    deliver(&sandbox, vec![file("/tmp/d/few/er/f", "x")?, file("/tmp/d/there/f", "x")?, new]).await?;
    let mut many = (0..40).map(|n| file(format!("/tmp/d/many/{}/{n}", n % 3), "x")).collect::<Outcome<Vec<_>>>()?;
    many.push(file("/tmp/d/large/er/f", filler(6 << 20))?);
    deliver(&sandbox, many).await?;
    let made = ["few", "few/er", "large", "large/er", "many", "many/0", "many/1", "many/2", "new", "new/er"];
    let mut wanted: String = made.map(|name| format!("755 ./{name}\n")).concat();
    wanted.insert_str(0, "711 ./there\n");
    equal("the modes of directories", sandbox.ok(modes).await?, wanted)
}

async fn below_a_file(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox
        .ok("mkdir -p /tmp/b/there; cd /tmp/b; echo blocks > blocker; ln -s blocker link; ln -s /nowhere dangling")
        .await?;
    let before = "blocker\ndangling\nlink\nthere\nblocks\n";
    let fine = |n: usize| file(format!("/tmp/b/there/{}/{n}", n % 3), format!("{n}"));
    for blocked in ["blocker/f", "blocker/x/y/f", "link/f", "dangling/f", "dangling/x/f"] {
        // Few members, many, large and new ones may travel in different ways.
        for (first, rest) in [(0, 1), (1, 0), (1, 1), (3, 2), (40, 20), (500, 100)] {
            let what = format!("{first} members, {blocked}, {rest} members");
            let mut batch = (0..first).map(fine).collect::<Outcome<Vec<_>>>()?;
            if first == 3 {
                batch[1] = file("/tmp/b/there/large", filler(2 << 20))?;
                batch[2] = file("/tmp/b/there/new", "x")?.create_new();
            }
            batch.push(file(format!("/tmp/b/{blocked}"), "x")?);
            batch.extend((first..first + rest).map(fine).collect::<Outcome<Vec<_>>>()?);
            let error = failure(&sandbox, &what, ErrorKind::NotDirectory, batch).await?;
            equal(&what, (error.kind(), error.member()), (ErrorKind::NotDirectory, Some(first)))?;
            ensure(error.effect() == Effect::None, &format!("the effect of {what}"), "None", || crate::short(&error))?;
            equal(&what, sandbox.ok("cd /tmp/b; ls -A; ls -A there; cat blocker").await?, before)?;
        }
    }
    // A longer batch may be taken in parts, of which those before stay.
    let what = format!("{LATE} members, blocker/f, 50 members");
    let mut batch = (0..LATE).map(fine).collect::<Outcome<Vec<_>>>()?;
    batch.push(file("/tmp/b/blocker/f", "x")?);
    batch.extend((LATE..LATE + 50).map(fine).collect::<Outcome<Vec<_>>>()?);
    let error = failure(&sandbox, &what, ErrorKind::NotDirectory, batch).await?;
    equal(&what, (error.kind(), error.member()), (ErrorKind::NotDirectory, Some(LATE)))?;
    let after = format!(
        "cd /tmp/b; cat blocker; for ((n = {LATE}; n < {LATE} + 50; n++)); do ls there/*/$n; done 2>/dev/null; true"
    );
    equal("what came after it", sandbox.ok(&after).await?, "blocks\n")
}

async fn repeated(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let batch =
        || (0..30).map(|n| file(format!("/tmp/b/{}/{n}", n % 4), format!("{n}\n"))).collect::<Outcome<Vec<_>>>();
    let look = "cd /tmp/b; find . -type f -exec stat -c '%a %n' {} + | sort; find . -type f | sort | xargs cat; find . | wc -l";
    deliver(&sandbox, batch()?).await?;
    let first = sandbox.ok(look).await?;
    ensure(first.ends_with("\n35\n"), "what a batch leaves", "30 files in 4 directories", || first.clone())?;
    for _ in 0..2 {
        deliver(&sandbox, batch()?).await?;
        equal("what the same batch leaves again", sandbox.ok(look).await?, first.clone())?;
    }
    Ok(())
}

async fn dropped(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir /tmp/d").await?;
    let content = filler(5000);
    for moment in [0, 1, 2, 5, 10, 20, 50, 100] {
        let files = (0..400).map(|n| file(format!("/tmp/d/{}/{n}", n % 3), content.clone()));
        let files = files.collect::<Outcome<Vec<_>>>()?;
        let work = sandbox.inner.write_many(sandbox::FileBatch::new(files));
        drop(tokio::time::timeout(millis(moment), work).await);
    }
    // A member is there whole or not at all, and nothing is beside it.
    let strange =
        "cd /tmp/d; find . -type f ! -size 5000c; find . ! -name '[0-9]*' ! -name .; find . -type f ! -perm 644";
    let whole =
        || async { equal("what eight dropped batches left besides whole members", sandbox.ok(strange).await?, "") };
    soon(secs(5), whole).await?;
    deliver(&sandbox, vec![file("/tmp/d/0/0", "after")?]).await?;
    same("a member after them", &sandbox.read("/tmp/d/0/0").await?, "after")
}
