//! Every archive that a sandbox can attack its caller with, and what becomes of it.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use common::{FakeProvider, Tar, serving, session, stream, tree};
use sandbox::{ByteStream, Effect, Error, ErrorKind, SandboxPath};
use sandbox_transfer::{
    Bound, DownloadOptions, Exceeded, Limits, OnRefusal, ProviderTransferExt, Refused, Report, Rule,
};
use tar::EntryType;

async fn download(archive: Vec<u8>, place: &Path, options: DownloadOptions) -> Result<Report, Error> {
    let root = SandboxPath::new("/work/top").unwrap();
    serving(archive).download(&session(), &root, place.join("out"), options).await
}

/// A folder with nothing in it but what a test must find untouched.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("outside")).unwrap();
    std::fs::write(place.path().join("outside/kept"), "kept").unwrap();
    place
}

fn only_outside_is_left(place: &Path) {
    let left: Vec<_> = tree(place).into_keys().collect();
    assert_eq!(left, [b"outside".to_vec(), b"outside/kept".to_vec()], "something was left");
}

/// Each attack: what it is called, its entries after `top/` and `top/a` and before `top/z`, and the rule that names it.
fn attacks(place: &Path) -> Vec<(&'static str, Tar, Rule)> {
    let top = || Tar::default().dir("top/").file("top/a", "a");
    let absolute = place.join("outside/planted");
    let absolute = absolute.to_str().unwrap().as_bytes();
    let evil = |t: Tar, name: &[u8]| t.file(name, "evil");
    vec![
        ("parent", evil(top(), b"../outside/planted"), Rule::ParentName),
        ("parent in the middle", evil(top(), b"top/../../outside/planted"), Rule::ParentName),
        ("parent as a directory", top().dir("top/.."), Rule::ParentName),
        ("absolute", evil(top(), absolute), Rule::AbsoluteName),
        ("absolute, long", evil(top(), &[b"/".repeat(120).as_slice(), absolute].concat()), Rule::AbsoluteName),
        ("empty name", evil(top(), b""), Rule::EmptyName),
        ("dot", evil(top(), b"./top/x"), Rule::UncleanName),
        ("two slashes", evil(top(), b"top//x"), Rule::UncleanName),
        ("a file with a slash", evil(top(), b"top/x/"), Rule::UncleanName),
        ("NUL in a long name", evil(top(), &[b"top/".as_slice(), &[b'x'; 100], b"\0y"].concat()), Rule::NulInName),
        ("NUL by extension", evil(top().pax(&[("path", b"top/x\0y")]), b"top/x"), Rule::NulInName),
        ("a component too long", evil(top(), &[b"top/".as_slice(), &[b'x'; 256]].concat()), Rule::LongName),
        ("another top", evil(top(), b"other"), Rule::OutsideTop),
        ("parent by extension", evil(top().pax(&[("path", b"../outside/planted")]), b"top/x"), Rule::ParentName),
        ("no directory before it", evil(top(), b"top/no/x"), Rule::NoParent),
        ("below a file", evil(top(), b"top/a/x"), Rule::ThroughLink),
        ("a link, absolute", top().symlink("top/l", "/etc/passwd"), Rule::LinkAbsolute),
        ("a link out", top().symlink("top/l", "../outside"), Rule::LinkLeaves),
        ("a link out by a name", top().dir("top/d").symlink("top/l", "d/../../outside"), Rule::LinkUnclear),
        ("a long link out", top().symlink("top/l", "../".repeat(60)), Rule::LinkLeaves),
        (
            "a link by extension",
            top().pax(&[("linkpath", b"../outside/planted")]).symlink("top/l", "a"),
            Rule::LinkLeaves,
        ),
        ("through a link", evil(top().dir("top/d").symlink("top/l", "d"), b"top/l/planted"), Rule::ThroughLink),
        ("onto a link", evil(top().symlink("top/l", "missing"), b"top/l"), Rule::Duplicate),
        (
            "a chain of two links",
            top().dir("top/d").symlink("top/d/up", "..").symlink("top/l", "d/up/../outside"),
            Rule::LinkUnclear,
        ),
        ("a hard link", top().link(EntryType::Link, b"top/l", b"top/a"), Rule::HardLink),
        ("a hard link out", top().link(EntryType::Link, b"top/l", absolute), Rule::HardLink),
        ("a character device", top().entry(EntryType::Char, b"top/x", 0o666, b""), Rule::Device),
        ("a block device", top().entry(EntryType::Block, b"top/x", 0o666, b""), Rule::Device),
        ("a FIFO", top().entry(EntryType::Fifo, b"top/x", 0o666, b""), Rule::Fifo),
        ("a device with content", top().entry(EntryType::Char, b"top/x", 0o666, &[7; 3000]), Rule::Device),
        ("a kind of no name", top().entry(EntryType::new(b'Q'), b"top/x", 0o666, b"x"), Rule::UnknownKind),
        ("a contiguous file", top().entry(EntryType::Continuous, b"top/x", 0o666, b"x"), Rule::UnknownKind),
        ("global extensions", top().entry(EntryType::XGlobalHeader, b"top/x", 0o666, b"9 path=x\n"), Rule::UnknownKind),
        ("a sparse file", top().raw(&sparse(), b""), Rule::Sparse),
        (
            "a sparse file by extension",
            evil(top().pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.name", b"x")]), b"top/x"),
            Rule::Sparse,
        ),
        ("a directory with content", top().entry(EntryType::Directory, b"top/d", 0o755, b"content"), Rule::Malformed),
        ("a mode that is none", top().raw(&bad_mode(), b""), Rule::Malformed),
        ("a file twice", evil(top().file("top/x", "1"), b"top/x"), Rule::Duplicate),
        ("a directory twice", top().dir("top/d").dir("top/d"), Rule::Duplicate),
        ("the top twice", top().dir("top"), Rule::Duplicate),
        ("a directory onto a file", top().dir("top/a"), Rule::Duplicate),
        ("a size twice", evil(top().pax(&[("size", b"4"), ("size", b"9")]), b"top/x"), Rule::Malformed),
        ("a name twice", evil(top().pax(&[("path", b"top/x"), ("path", b"../x")]), b"top/x"), Rule::Malformed),
        ("a size that is none", evil(top().pax(&[("size", b"four")]), b"top/x"), Rule::Malformed),
        ("a newline in a value", evil(top().pax(&[("path", b"top/x\ny")]), b"top/x"), Rule::Malformed),
    ]
}

fn bad_mode() -> tar::Header {
    let mut header = Tar::header(EntryType::Regular, b"top/x", 0, 0o644);
    header.as_gnu_mut().unwrap().mode = *b"rwxr-xr-";
    header.set_cksum();
    header
}

fn sparse() -> tar::Header {
    let mut header = Tar::header(EntryType::GNUSparse, b"top/x", 0, 0o644);
    header.as_gnu_mut().unwrap().set_real_size(1 << 20);
    header.as_gnu_mut().unwrap().sparse[0].set_offset(1 << 20);
    header.as_gnu_mut().unwrap().sparse[0].set_length(0);
    header.set_cksum();
    header
}

#[tokio::test]
async fn each_attack_is_refused_by_name_and_leaves_nothing() {
    let here = place();
    for (what, tar, rule) in attacks(here.path()) {
        let error = download(tar.file("top/z", "z").end(), here.path(), DownloadOptions::default().with_links())
            .await
            .expect_err(what);
        assert_eq!(error.kind(), ErrorKind::ArchiveRefused, "{what}: {error}");
        assert_eq!(Refused::of(&error).expect(what).rule, rule, "{what}: {error}");
        assert_eq!(error.effect(), Effect::None, "{what}");
        only_outside_is_left(here.path());
    }
}

#[tokio::test]
async fn each_attack_is_left_out_and_named_where_the_caller_says_so() {
    for (what, tar, rule) in attacks(place().path()) {
        let here = place();
        let options = DownloadOptions::default().with_links().on_refusal(OnRefusal::LeaveOut);
        let report = download(tar.file("top/z", "z").end(), here.path(), options).await.expect(what);
        assert_eq!(report.left_out.last().expect(what).rule, rule, "{what}");
        assert_eq!(report.left_out_total, 1, "{what}");
        for (name, content) in [("a", "a"), ("z", "z")] {
            assert_eq!(std::fs::read_to_string(here.path().join("out").join(name)).expect(what), content, "{what}");
        }
        std::fs::remove_dir_all(here.path().join("out")).unwrap();
        only_outside_is_left(here.path());
    }
}

#[tokio::test]
async fn the_entry_at_the_top_cannot_be_left_out() {
    let here = place();
    for (tar, rule) in [
        (Tar::default().entry(EntryType::Fifo, b"top", 0o644, b"").file("top/a", "a"), Rule::Fifo),
        (Tar::default().dir("other").file("other/a", "a"), Rule::OutsideTop),
        (Tar::default().file("top/a", "a"), Rule::NoParent),
    ] {
        for mut options in [DownloadOptions::default(), DownloadOptions::default().in_place()] {
            options = options.on_refusal(OnRefusal::LeaveOut);
            let error = download(tar.clone().end(), here.path(), options).await.unwrap_err();
            assert_eq!((Refused::of(&error).unwrap().rule, error.effect()), (rule, Effect::None));
            only_outside_is_left(here.path());
        }
    }
}

#[tokio::test]
async fn links_are_refused_unless_asked_for_and_kept_where_they_stay() {
    let archive = Tar::default()
        .dir("top/")
        .dir("top/d")
        .symlink("top/d/up", "../a")
        .symlink("top/dangling", "missing/x")
        .symlink("top/self", ".")
        .end();
    let here = place();
    let error = download(archive.clone(), here.path(), DownloadOptions::default()).await.unwrap_err();
    assert_eq!(Refused::of(&error).unwrap().rule, Rule::Link);
    assert_eq!(Refused::of(&error).unwrap().name, b"top/d/up");
    let report = download(archive, here.path(), DownloadOptions::default().with_links()).await.unwrap();
    assert_eq!((report.directories, report.links), (2, 3));
    let tree = tree(&here.path().join("out"));
    assert_eq!(tree[&b"d/up"[..]].2, b"../a");
    assert_eq!(tree[&b"dangling"[..]].2, b"missing/x");
    // A link at the top has no inside to stay in.
    let here = place();
    let link = Tar::default().symlink("top", "elsewhere").end();
    let error = download(link, here.path(), DownloadOptions::default().with_links()).await.unwrap_err();
    assert_eq!(Refused::of(&error).unwrap().rule, Rule::LinkLeaves);
}

#[tokio::test]
async fn special_mode_bits_and_owners_are_not_taken() {
    let mut owned = Tar::header(EntryType::Regular, b"top/suid", 1, 0o106777);
    owned.set_uid(4242);
    owned.set_gid(4242);
    owned.set_cksum();
    let archive = Tar::default()
        .entry(EntryType::Directory, b"top", 0o1777, b"")
        .raw(&owned, b"x")
        .entry(EntryType::Directory, b"top/locked", 0o000, b"")
        .file("top/locked/in", "x")
        .entry(EntryType::Regular, b"top/secret", 0o400, b"x")
        .entry(EntryType::Regular, b"top/run", 0o755, b"x")
        .end();
    let here = place();
    download(archive, here.path(), DownloadOptions::default()).await.unwrap();
    let mode = |name: &str| here.path().join("out").join(name).metadata().unwrap().mode() & 0o7777;
    let mine = here.path().join("outside").metadata().unwrap();
    assert_eq!(mode("suid") & 0o7000, 0);
    assert_eq!(mode("") & 0o7700, 0o700);
    assert_eq!(mode("locked"), 0o700);
    assert_eq!(mode("secret"), 0o400);
    assert_eq!(mode("run"), 0o755);
    assert_eq!(here.path().join("out/suid").metadata().unwrap().uid(), mine.uid());
}

/// Archives that are cut, go on, or are none: refused whatever the options say.
#[tokio::test]
async fn an_archive_ends_properly_or_leaves_nothing() {
    let whole = Tar::default().dir("top/").file("top/a", [7; 3000]).file("top/z", "z").end();
    let body = whole.len() - 1024;
    let mut cuts: Vec<(String, Vec<u8>)> =
        (0..whole.len()).step_by(256).map(|n| (n.to_string(), whole[..n].to_vec())).collect();
    cuts.push(("one block of zeros".to_owned(), whole[..body + 512].to_vec()));
    cuts.push(("half a block more".to_owned(), [&whole[..], &[0; 256]].concat()));
    cuts.push(("an archive behind it".to_owned(), [&whole[..], &whole].concat()));
    cuts.push(("one block between".to_owned(), [&whole[..body + 512], &whole].concat()));
    cuts.push(("zeros only".to_owned(), vec![0; 10240]));
    cuts.push(("no archive".to_owned(), b"no archive\n".repeat(1000)));
    cuts.push(("compressed".to_owned(), [&[0x1f, 0x8b, 8][..], &[0x55; 2000]].concat()));
    cuts.push(("a name of nothing".to_owned(), Tar::default().dir("top").pax(&[("path", b"top/x")]).end()));
    for (what, bytes) in cuts {
        for refusal in [OnRefusal::Fail, OnRefusal::LeaveOut] {
            let here = place();
            let options = DownloadOptions::default().on_refusal(refusal);
            let error = download(bytes.clone(), here.path(), options).await.expect_err(&what);
            assert_eq!(error.kind(), ErrorKind::ArchiveRefused, "{what}: {error}");
            assert_eq!(error.effect(), Effect::None, "{what}");
            only_outside_is_left(here.path());
            // In place, what is there is whole.
            let options = DownloadOptions::default().on_refusal(refusal).in_place();
            let error = download(bytes.clone(), here.path(), options).await.expect_err(&what);
            let a = std::fs::read(here.path().join("out/a")).unwrap_or_else(|_| vec![7; 3000]);
            assert!(a == [7; 3000], "{what}: half a file");
            let there = here.path().join("out").exists();
            assert_eq!(error.effect(), if there { Effect::Partial } else { Effect::None }, "{what}");
        }
    }
    let here = place();
    let padded = [&whole[..], &[0; 8192]].concat();
    download(padded, here.path(), DownloadOptions::default()).await.unwrap();
    let long = [&whole[..], &vec![0; 2 << 20]].concat();
    let error = download(long, place().path(), DownloadOptions::default()).await.unwrap_err();
    assert_eq!(Exceeded::of(&error).unwrap().bound, Bound::TailBytes);
}

/// The verdict of the stream comes after a complete archive, and still counts.
#[tokio::test]
async fn a_failure_after_a_whole_archive_is_a_failure() {
    let whole = Tar::default().dir("top/").file("top/a", [7; 3000]).end();
    let (root, session) = (SandboxPath::new("/top").unwrap(), session());
    for cut in [0, 100, 512, 1500, whole.len()] {
        let here = place();
        let bytes = whole[..cut].to_vec();
        let provider = FakeProvider(move || stream(&bytes, 700, Some(ErrorKind::ShortTransfer)));
        let download = provider.download(&session, &root, here.path().join("out"), DownloadOptions::default());
        let error = download.await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::ShortTransfer, Effect::None), "{cut}");
        assert_eq!(error.session(), Some(&session));
        only_outside_is_left(here.path());
        let download =
            provider.download(&session, &root, here.path().join("out"), DownloadOptions::default().in_place());
        let error = download.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ShortTransfer);
        let partial = here.path().join("out").exists();
        assert_eq!(error.effect(), if partial { Effect::Partial } else { Effect::None }, "{cut}");
        assert_eq!(error.reason().is_some_and(|r| r.contains("out\" holds part of it")), partial, "{error}");
        // Never half a file.
        assert!(!here.path().join("out/a").exists() || cut == whole.len());
    }
}

fn bound(error: &Error) -> Bound {
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    Exceeded::of(error).unwrap().bound
}

#[tokio::test]
async fn each_bound_is_kept_exactly_and_named() {
    let here = place();
    let archive = Tar::default()
        .dir("top/")
        .dir("top/d")
        .dir("top/d/e")
        .file("top/d/e/f", [1; 600])
        .file("top/g", [2; 400])
        .end();
    let exact =
        Limits::default().with_entries(5).with_bytes(1000).with_file_bytes(600).with_name_bytes(9).with_depth(2);
    for (limits, want) in [
        (exact.with_entries(4), Bound::Entries),
        (exact.with_bytes(999), Bound::Bytes),
        (exact.with_file_bytes(599), Bound::FileBytes),
        (exact.with_name_bytes(8), Bound::NameBytes),
        (exact.with_depth(1), Bound::Depth),
    ] {
        let options = DownloadOptions::default().with_limits(limits).on_refusal(OnRefusal::LeaveOut);
        let error = download(archive.clone(), here.path(), options).await.unwrap_err();
        assert_eq!(bound(&error), want);
        only_outside_is_left(here.path());
    }
    download(archive, here.path(), DownloadOptions::default().with_limits(exact)).await.unwrap();
    let options = DownloadOptions::default().with_limits(Limits::default().with_depth(251));
    assert_eq!(download(vec![], here.path(), options).await.unwrap_err().kind(), ErrorKind::InvalidRequest);
}

/// An export that begins with `head`, and then repeats `more` for ever.
async fn endless(head: Vec<u8>, more: Vec<u8>, limits: Limits) -> Error {
    let here = place();
    let provider = FakeProvider(move || {
        let (head, more) = (Bytes::from(head.clone()), Bytes::from(more.clone()));
        ByteStream::new(futures::stream::iter(std::iter::once(head).chain(std::iter::repeat(more)).map(Ok)))
    });
    let options = DownloadOptions::default().with_limits(limits).on_refusal(OnRefusal::LeaveOut);
    let root = SandboxPath::new("/top").unwrap();
    let session = session();
    let download = provider.download(&session, &root, here.path().join("out"), options);
    let error = tokio::time::timeout(Duration::from_secs(60), download).await.expect("it ends").unwrap_err();
    only_outside_is_left(here.path());
    error
}

#[tokio::test]
async fn endless_streams_end() {
    let few = Limits::default().with_entries(2000).with_bytes(1 << 20);
    let zeros = vec![0; 1 << 16];
    let top = Tar::default().dir("top/").0;
    let open = |kind, size| {
        let header = Tar::header(kind, b"top/x", size, 0o644);
        [&top[..], header.as_bytes()].concat()
    };
    // A file, a device, an extension, a long name, a long link without an end; entries without an end; an end without an end.
    assert_eq!(bound(&endless(open(EntryType::Regular, 7 << 30), zeros.clone(), few).await), Bound::FileBytes);
    assert_eq!(bound(&endless(open(EntryType::Regular, 2 << 30), zeros.clone(), few).await), Bound::Bytes);
    assert_eq!(bound(&endless(open(EntryType::Char, 2 << 30), zeros.clone(), few).await), Bound::Bytes);
    for kind in [EntryType::XHeader, EntryType::GNULongName, EntryType::GNULongLink] {
        let first = Tar::header(kind, b"top", 7 << 30, 0o644).as_bytes().to_vec();
        assert_eq!(bound(&endless(first, zeros.clone(), few).await), Bound::HeaderBytes, "{kind:?}");
        assert_eq!(bound(&endless(open(kind, 7 << 30), zeros.clone(), few).await), Bound::HeaderBytes, "{kind:?}");
        assert_eq!(bound(&endless(open(kind, 40 << 10), zeros.clone(), few).await), Bound::HeaderBytes, "{kind:?}");
    }
    let sparse = Tar::default().entry(EntryType::GNUSparse, b"top/s", 0o644, b"");
    let mut extended = sparse.0;
    extended[482] = 1; // The header goes on in the next block, and that one as well.
    let sum: u32 = extended[..148].iter().chain(&extended[156..512]).map(|b| u32::from(*b)).sum::<u32>() + 8 * 32;
    extended[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut goes_on = vec![0; 512];
    goes_on[504] = 1;
    assert_eq!(bound(&endless([top.clone(), extended].concat(), goes_on, few).await), Bound::HeaderBytes);
    let again = Tar::default().file("top/x", "x").0;
    assert_eq!(bound(&endless(top.clone(), again, few).await), Bound::Entries);
    assert_eq!(bound(&endless(top, zeros, few).await), Bound::TailBytes);
}

#[tokio::test]
async fn sizes_by_extension_count_and_never_hide_an_entry() {
    // The header says 0 and the extension 512: what follows is content, not a header.
    let hidden = Tar::default().file("../outside/planted", "").0;
    let header = Tar::header(EntryType::Regular, b"top/x", 0, 0o644);
    let mut tar = Tar::default().dir("top").pax(&[("size", b"512")]).raw(&header, b"");
    tar.0.extend_from_slice(&hidden);
    let here = place();
    download(tar.file("top/z", "z").end(), here.path(), DownloadOptions::default()).await.unwrap();
    assert_eq!(std::fs::read(here.path().join("out/x")).unwrap(), hidden);
    let mut tar = Tar::default().dir("top").pax(&[("size", b"512")]).raw(&header, b"");
    tar.0.extend_from_slice(&hidden);
    let few = DownloadOptions::default().with_limits(Limits::default().with_file_bytes(511));
    let error = download(tar.end(), place().path(), few).await.unwrap_err();
    assert_eq!(bound(&error), Bound::FileBytes);
    // The other way round: it is an entry, and refused as one.
    let header = Tar::header(EntryType::Regular, b"top/x", 512, 0o644);
    let mut tar = Tar::default().dir("top").pax(&[("size", b"0")]).raw(&header, b"");
    tar.0.extend_from_slice(&hidden);
    let error = download(tar.end(), place().path(), DownloadOptions::default()).await.unwrap_err();
    assert_eq!(Refused::of(&error).unwrap().rule, Rule::ParentName);
    // A size before a long name belongs to the file behind it.
    let mut tar = Tar::default().dir("top").pax(&[("size", b"2048")]);
    tar = tar.file([b"top/".as_slice(), &[b'x'; 150]].concat(), "");
    tar.0.extend_from_slice(&[7; 2048]);
    let here = place();
    download(tar.file("top/z", "z").end(), here.path(), DownloadOptions::default()).await.unwrap();
    assert_eq!(here.path().join("out").join("x".repeat(150)).metadata().unwrap().len(), 2048);
    let huge = Tar::default().dir("top").pax(&[("size", b"18446744073709551615")]).file("top/x", "").end();
    assert!(download(huge, place().path(), DownloadOptions::default()).await.is_err());
}

#[tokio::test]
async fn silence_ends_a_download() {
    let here = place();
    let head = Bytes::from(Tar::default().dir("top").0);
    let provider = FakeProvider(move || {
        let head = futures::stream::iter([Ok(head.clone())]);
        ByteStream::new(futures::StreamExt::chain(head, futures::stream::pending()))
    });
    let root = SandboxPath::new("/top").unwrap();
    let options = DownloadOptions::default().with_silence(Duration::from_millis(50));
    let error = provider.download(&session(), &root, here.path().join("out"), options).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::DeadlineExceeded, Effect::None));
    only_outside_is_left(here.path());
    // What is refused is refused at once, however silent the rest is.
    let refused = Bytes::from(Tar::default().dir("top").file("../x", "x").0);
    let silent = FakeProvider(move || {
        let head = futures::stream::iter([Ok(refused.clone())]);
        ByteStream::new(futures::StreamExt::chain(head, futures::stream::pending()))
    });
    let session = session();
    let download = silent.download(&session, &root, here.path().join("out"), DownloadOptions::default());
    let error = tokio::time::timeout(Duration::from_secs(20), download).await.expect("at once").unwrap_err();
    assert_eq!(Refused::of(&error).unwrap().rule, Rule::ParentName);
    only_outside_is_left(here.path());
    // A dropped download removes what it has begun.
    let download = provider.download(&session, &root, here.path().join("out"), DownloadOptions::default());
    assert!(tokio::time::timeout(Duration::from_millis(50), download).await.is_err());
    let mut left = usize::MAX;
    for _ in 0..100 {
        left = std::fs::read_dir(here.path()).unwrap().count();
        if left == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(left, 1);
}

#[tokio::test]
async fn what_is_there_is_never_replaced_or_followed() {
    let here = place();
    let archive = Tar::default().dir("top").dir("top/d").file("top/d/new", "new").file("top/d/kept", "evil").end();
    for there in ["file", "directory", "link"] {
        let out = here.path().join("out");
        match there {
            "file" => std::fs::write(&out, "mine").unwrap(),
            "directory" => std::fs::create_dir(&out).unwrap(),
            _ => symlink("outside", &out).unwrap(),
        }
        let error = download(archive.clone(), here.path(), DownloadOptions::default()).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::AlreadyExists, Effect::None), "{there}");
        if there != "directory" {
            let options = DownloadOptions::default().in_place();
            let error = download(archive.clone(), here.path(), options).await.unwrap_err();
            assert_eq!(Refused::of(&error).unwrap().rule, Rule::Duplicate, "{there}");
            std::fs::remove_file(&out).unwrap();
        } else {
            std::fs::remove_dir(&out).unwrap();
        }
    }
    // In place: a directory that is there gains what it does not have.
    std::fs::create_dir_all(here.path().join("out/d")).unwrap();
    std::fs::write(here.path().join("out/d/kept"), "kept").unwrap();
    let options = DownloadOptions::default().in_place().on_refusal(OnRefusal::LeaveOut);
    let report = download(archive.clone(), here.path(), options).await.unwrap();
    assert_eq!(report.left_out[0].name, b"top/d/kept");
    assert_eq!(std::fs::read(here.path().join("out/d/kept")).unwrap(), b"kept");
    assert_eq!(std::fs::read(here.path().join("out/d/new")).unwrap(), b"new");
    // A link that was there before leads nowhere.
    std::fs::remove_dir_all(here.path().join("out/d")).unwrap();
    symlink("../outside", here.path().join("out/d")).unwrap();
    let options = DownloadOptions::default().in_place().on_refusal(OnRefusal::LeaveOut);
    let report = download(archive, here.path(), options).await.unwrap();
    let rules: Vec<_> = report.left_out.iter().map(|r| r.rule).collect();
    assert_eq!(rules, [Rule::Duplicate, Rule::ThroughLink, Rule::ThroughLink]);
    assert_eq!(std::fs::read_dir(here.path().join("outside")).unwrap().count(), 1);
}
