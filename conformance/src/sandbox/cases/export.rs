//! Exporting.

use sandbox::{ErrorKind, ExecRequest};

use super::super::bed::{refused, unexpected};
use super::super::tar::{Entry, entries};
use super::{B, Case, cksum, filler, millis, odd_names, secs, slowly};
use crate::{Failure, Outcome, ensure, equal, same, within};

const SHAPE: &str = "An export has exactly one entry at its top, named like the last component of its root, with everything else below it.";
const LINKS: &str = "Links are exported as links, also the root itself.";

pub(super) fn cases() -> Vec<Case> {
    let all = vec![
        Case::new("export::shape", SHAPE, shape),
        Case::new("export::a_file_as_root", SHAPE, a_file_as_root),
        Case::new("export::odd_names", SHAPE, names),
        Case::new(
            "export::modes_and_empty_directories",
            "Streams `root` and what is below it as a plain tar archive.",
            modes,
        ),
        Case::new(
            "export::large_and_many",
            "Streams `root` and what is below it as a plain tar archive.",
            large_and_many,
        ),
        Case::new(
            "export::waits_for_its_reader",
            "Streams `root` and what is below it as a plain tar archive.",
            waits_for_its_reader,
        ),
        Case::new(
            "export::waits_for_its_reader_of_much",
            "Streams `root` and what is below it as a plain tar archive.",
            waits_for_its_reader_of_much,
        )
        .slow()
        .deadline(secs(600)),
        Case::new("export::links", LINKS, links),
        Case::new("export::a_dangling_link_as_root", LINKS, dangling_root),
        Case::new(
            "export::missing_root",
            "Exporting a root that does not exist fails as `FileNotFound`.",
            missing_root,
        ),
        Case::new(
            "export::unknown_session",
            "Exporting from a session that has no sandbox fails as `NotFound`.",
            unknown_session,
        ),
        Case::new("export::dropped", "Dropping it ends the transfer.", dropped).races().profile("faults"),
        Case::new("export::changes_nothing", SHAPE, changes_nothing),
    ];
    let files = |case: Case| if case.profile == "core" { case.profile("files") } else { case };
    all.into_iter().map(|case| files(case).needs("export", |c| c.export)).collect()
}

fn find<'a>(all: &'a [Entry], name: &str) -> Outcome<&'a Entry> {
    let trimmed = |entry: &&Entry| entry.name.strip_suffix(b"/").unwrap_or(&entry.name) == name.as_bytes();
    let names = || all.iter().map(|entry| entry.name.escape_ascii().to_string()).collect::<Vec<_>>().join(", ");
    all.iter().find(trimmed).ok_or_else(|| Failure::new("the archive", format!("an entry {name}"), names()))
}

/// Wants one entry at the top, called `top`, first, and all else below it.
fn one_top(all: &[Entry], top: &str) -> Outcome {
    let first = all.first().map(|entry| entry.name.strip_suffix(b"/").unwrap_or(&entry.name).to_vec());
    same("the first entry", &first.unwrap_or_default(), top)?;
    let below = format!("{top}/");
    for entry in &all[1..] {
        let inside = entry.name.starts_with(below.as_bytes()) && entry.name.len() > below.len();
        let climbs = entry.name.split(|b| *b == b'/').any(|part| part == b"..");
        ensure(inside && !climbs, "another entry", &format!("below {below}"), || {
            entry.name.escape_ascii().to_string()
        })?;
    }
    Ok(())
}

async fn shape(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir -p sub; printf content > f; printf inner > sub/g; mkdir -p /tmp/a/b; echo x > /tmp/a/b/c; echo no > /tmp/a/no").await?;
    for (root, top) in [("/workspace", "workspace"), ("/tmp/a/b", "b")] {
        let all = entries(&bed.export(&bed.session, root).await?)?;
        one_top(&all, top)?;
        equal("the type of the root", find(&all, top)?.kind, b'5')?;
    }
    let all = entries(&bed.export(&bed.session, "/workspace").await?)?;
    same("a file", &find(&all, "workspace/f")?.content, "content")?;
    same("a file further down", &find(&all, "workspace/sub/g")?.content, "inner")?;
    equal("entries", all.len(), 4)
}

async fn a_file_as_root(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("printf content > '/tmp/a file'; printf other > /tmp/b").await?;
    let all = entries(&bed.export(&bed.session, "/tmp/a file").await?)?;
    one_top(&all, "a file")?;
    equal("entries", all.len(), 1)?;
    same("its content", &all[0].content, "content")
}

async fn names(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    for name in odd_names() {
        let made = [&b"mkdir"[..], b"-p", b"--", &[b"/tmp/odd/", &name[..]].concat()].map(<[u8]>::to_vec);
        sandbox.exec(ExecRequest::args(made)).await?;
        sandbox
            .exec(ExecRequest::args([
                b"touch".to_vec(),
                b"--".to_vec(),
                [b"/tmp/odd/", &name[..], b"/", &name[..]].concat(),
            ]))
            .await?;
    }
    let all = entries(&bed.export(&bed.session, "/tmp/odd").await?)?;
    one_top(&all, "odd")?;
    for name in odd_names() {
        let wanted = [b"odd/", &name[..], b"/", &name[..]].concat();
        let found = all.iter().any(|entry| entry.name == wanted && entry.kind == b'0');
        ensure(found, "the archive", &format!("a file {}", wanted.escape_ascii()), || {
            format!("{} entries without it", all.len())
        })?;
    }
    for root in [&b"/tmp/odd/-rf"[..], b"/tmp/odd/$(id)", b"/tmp/odd/ a", b"/tmp/odd/a\nb", b"/tmp/odd/\xff\xfe"] {
        let path = sandbox::SandboxPath::new(root).map_err(|e| Failure::new("a path", "legal", e.to_string()))?;
        let stream = within("export", secs(60), bed.provider.export(&bed.session, &path)).await?;
        let stream = stream.map_err(|e| unexpected("exporting an odd name", "an archive", &e))?;
        let bytes = within("the archive", secs(60), stream.collect(1 << 20)).await?;
        let all = entries(&bytes.map_err(|e| unexpected("exporting an odd name", "an archive", &e))?)?;
        let first = all.first().map(|entry| entry.name.strip_suffix(b"/").unwrap_or(&entry.name).to_vec());
        same("the first entry", &first.unwrap_or_default(), path.file_name())?;
    }
    Ok(())
}

async fn modes(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir -p t/empty t/closed; chmod 700 t/closed; cd t; for m in 644 755 600 4755; do touch $m; chmod $m $m; done").await?;
    let all = entries(&bed.export(&bed.session, "/workspace/t").await?)?;
    for (name, mode) in [("t/644", 0o644), ("t/755", 0o755), ("t/600", 0o600), ("t/4755", 0o4755), ("t/closed", 0o700)]
    {
        equal(name, format!("{:o}", find(&all, name)?.mode), format!("{mode:o}"))?;
    }
    equal("the type of an empty directory", find(&all, "t/empty")?.kind, b'5')
}

async fn large_and_many(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let content = filler(20 << 20);
    sandbox
        .ok("mkdir many; cd many; for i in {1..1500}; do echo $i > $i; done; head -c 3000000 /dev/zero > zeros")
        .await?;
    if bed.claims().files {
        sandbox.write("/workspace/many/large", content.clone()).await?;
    }
    let all = entries(&bed.export(&bed.session, "/workspace/many").await?)?;
    one_top(&all, "many")?;
    if bed.claims().files {
        same("a large file", &find(&all, "many/large")?.content, &content)?;
    }
    equal("bytes of zeros", find(&all, "many/zeros")?.content.len(), 3_000_000)?;
    for n in [1, 750, 1500] {
        same("a small file", &find(&all, &format!("many/{n}"))?.content, format!("{n}\n"))?;
    }
    equal("files", all.iter().filter(|entry| entry.kind == b'0').count(), 1501 + usize::from(bed.claims().files))
}

async fn waits_for_its_reader(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir t; head -c 6000000 /dev/zero > t/zeros; for i in {1..300}; do echo $i > t/$i; done").await?;
    let stream = bed.try_export(&bed.session, "/workspace/t").await?;
    let stream = stream.map_err(|e| unexpected("export", "an archive", &e))?;
    let all = entries(&slowly(stream, "an archive that is read slowly").await?)?;
    one_top(&all, "t")?;
    equal("entries", all.len(), 302)?;
    equal("bytes of zeros", find(&all, "t/zeros")?.content.len(), 6_000_000)?;
    same("a small file", &find(&all, "t/300")?.content, "300\n")
}

/// 200 MiB in 500 files, for a reader that takes 5 ms for each piece.
async fn waits_for_its_reader_of_much(bed: B) -> Outcome {
    const FILES: usize = 500;
    const SIZE: usize = (200 << 20) / FILES;
    let sandbox = bed.sandbox().await?;
    let made = format!("mkdir t; cd t; for i in {{1..{FILES}}}; do head -c {SIZE} /dev/urandom > $i; done; cksum *");
    let sums =
        sandbox.exec(ExecRequest::shell(made).with_limit(secs(200))).await?.stdout.to_string_lossy().into_owned();
    let mut stream =
        bed.try_export(&bed.session, "/workspace/t").await?.map_err(|e| unexpected("export", "an archive", &e))?;
    let mut archive = Vec::new();
    while let Some(piece) = within("a piece of a large archive", secs(60), stream.next()).await? {
        archive.extend_from_slice(&piece.map_err(|e| unexpected("a large archive", "a piece", &e))?);
        tokio::time::sleep(millis(5)).await;
    }
    let all = entries(&archive)?;
    one_top(&all, "t")?;
    equal("entries", all.len(), FILES + 1)?;
    equal("files inside, with their checksums", sums.lines().count(), FILES)?;
    for line in sums.lines() {
        let name = line.rsplit(' ').next().unwrap_or_default();
        let content = &find(&all, &format!("t/{name}"))?.content;
        equal("checksum, length and name", format!("{} {} {name}", cksum(content), content.len()), line)?;
    }
    Ok(())
}

async fn links(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    let long = "x/".repeat(120);
    sandbox.ok(&format!("mkdir t; cd t; echo x > f; ln -s f link; ln -s /etc/passwd out; ln -s nowhere dangling; ln -s . loop; ln -s {long} long")).await?;
    let all = entries(&bed.export(&bed.session, "/workspace/t").await?)?;
    for (name, target) in
        [("t/link", "f"), ("t/out", "/etc/passwd"), ("t/dangling", "nowhere"), ("t/loop", "."), ("t/long", &long)]
    {
        let entry = find(&all, name)?;
        equal(name, entry.kind, b'2')?;
        same(name, &entry.link, target)?;
    }
    sandbox.ok("ln -s t root").await?;
    let all = entries(&bed.export(&bed.session, "/workspace/root").await?)?;
    equal("entries where the root is a link", all.len(), 1)?;
    equal("its type", all[0].kind, b'2')
}

async fn dangling_root(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("ln -s /no/where gone").await?;
    let all = entries(&bed.export(&bed.session, "/workspace/gone").await?)?;
    equal("entries", all.len(), 1)?;
    equal("its type", all[0].kind, b'2')?;
    same("its name", &all[0].name, "gone")?;
    same("its target", &all[0].link, "/no/where")
}

async fn missing_root(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("echo x > /tmp/file").await?;
    for root in ["/workspace/no", "/no/such/root", "/tmp/-rf"] {
        refused(root, bed.try_export(&bed.session, root).await?, ErrorKind::FileNotFound)?;
    }
    Ok(())
}

async fn unknown_session(bed: B) -> Outcome {
    refused("an export", bed.try_export(&bed.session, "/workspace").await?, ErrorKind::NotFound)?;
    equal("times listed", bed.times_owned(&bed.session).await?, 0)?;
    bed.sandbox().await?;
    bed.reap(&bed.session).await?;
    refused("an export after a reap", bed.try_export(&bed.session, "/workspace").await?, ErrorKind::NotFound).map(drop)
}

async fn dropped(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir t; head -c 20000000 /dev/zero > t/zeros; echo end > t/zz").await?;
    for pieces in 0..6 {
        let stream = bed.try_export(&bed.session, "/workspace/t").await?;
        let mut stream = stream.map_err(|e| unexpected("export", "an archive", &e))?;
        for _ in 0..pieces {
            within("a piece", secs(30), stream.next()).await?;
        }
        drop(stream);
        equal("a command afterwards", sandbox.ok("echo alive").await?, "alive\n")?;
    }
    let all = entries(&bed.export(&bed.session, "/workspace/t").await?)?;
    same("a whole export afterwards", &find(&all, "t/zz")?.content, "end\n")
}

async fn changes_nothing(bed: B) -> Outcome {
    let sandbox = bed.sandbox().await?;
    sandbox.ok("mkdir t; echo x > t/f").await?;
    let before = sandbox.ok("ls -lAR --time-style=full-iso /workspace /tmp").await?;
    for _ in 0..2 {
        bed.export(&bed.session, "/workspace/t").await?;
    }
    equal("what is there", sandbox.ok("ls -lAR --time-style=full-iso /workspace /tmp").await?, before)
}
