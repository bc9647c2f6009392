//! Archives are somebody else's.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use isolation::{DirSource, ErrorKind, NodeFs, OpCtx, PreparedSource, RootfsSource, TarSource, UnpackLimits};
use tar::{Builder, EntryType, Header};

enum Item<'a> {
    Dir(&'a str, u32),
    File(&'a str, &'a str),
    Link(&'a str, &'a str),
    Hard(&'a str, &'a str),
    Kind(&'a str, EntryType),
}

/// An archive with names as they are written here, however bad.
fn archive(items: &[Item<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for item in items {
        let mut header = Header::new_ustar();
        let (name, content, kind) = match item {
            Item::Dir(name, _) => (name, "", EntryType::Directory),
            Item::File(name, content) => (name, *content, EntryType::Regular),
            Item::Link(name, _) => (name, "", EntryType::Symlink),
            Item::Hard(name, _) => (name, "", EntryType::Link),
            Item::Kind(name, kind) => (name, "", *kind),
        };
        header.as_ustar_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        if let Item::Link(_, to) | Item::Hard(_, to) = item {
            header.as_ustar_mut().unwrap().linkname[..to.len()].copy_from_slice(to.as_bytes());
        }
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(if let Item::Dir(_, mode) = item { *mode } else { 0o4755 });
        header.set_uid(12);
        header.set_gid(34);
        if matches!(kind, EntryType::Char | EntryType::Block) {
            let number = u32::from(kind == EntryType::Block);
            header.set_device_major(number).unwrap();
            header.set_device_minor(0).unwrap();
        }
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn unpack(items: &[Item<'_>], into: &Path) -> isolation::Result<()> {
    let limits = UnpackLimits::new(1000, 1_000_000);
    TarSource::unpack_reader(&archive(items)[..], limits, &NodeFs::open(into).unwrap())
}

#[test]
fn a_good_archive_arrives_whole() {
    let dir = tempfile::tempdir().unwrap();
    let items = [
        Item::Dir("./", 0o755),
        Item::Dir("./ro", 0o500),
        Item::File("ro/file", "content"),
        Item::File("deep/er/file", "x"),
        Item::Hard("hard", "ro/file"),
        Item::Link("var-run", "/run"),
        Item::Link("deep/up", "../ro"),
        Item::File("ro/file", "second"),
    ];
    unpack(&items, dir.path()).unwrap();
    let at = |name: &str| dir.path().join(name);
    assert_eq!(fs::read_to_string(at("ro/file")).unwrap(), "second");
    assert_eq!(fs::read_to_string(at("hard")).unwrap(), "content");
    assert_eq!(fs::metadata(at("ro")).unwrap().permissions().mode() & 0o7777, 0o500);
    let file = fs::metadata(at("hard")).unwrap();
    assert_eq!(file.permissions().mode() & 0o7777, 0o4755);
    if rustix::process::geteuid().is_root() {
        assert_eq!((file.uid(), file.gid()), (12, 34));
    }
    assert_eq!(fs::read_link(at("var-run")).unwrap(), Path::new("/run"));
    assert!(fs::read_dir(dir.path()).unwrap().all(|e| !e.unwrap().file_name().to_string_lossy().starts_with(".#")));
}

#[test]
fn hostile_archives_are_refused() {
    let table: &[(&str, &[Item<'_>])] = &[
        ("absolute", &[Item::File("/etc/x", "")]),
        ("dot-dot", &[Item::File("../x", "")]),
        ("dot-dot inside", &[Item::File("a/../../x", "")]),
        ("through a link", &[Item::Link("a", "/outside"), Item::File("a/x", "")]),
        ("through a link of the archive", &[Item::Dir("d", 0o755), Item::Link("a", "d"), Item::File("a/x", "")]),
        ("directory through a link", &[Item::Link("a", "."), Item::Dir("a/x", 0o755)]),
        ("climbing link", &[Item::Link("a/b", "../../x")]),
        ("climbing absolute link", &[Item::Link("a", "/../x")]),
        ("hard link to nowhere", &[Item::Hard("a", "etc/passwd")]),
        ("hard link out", &[Item::Hard("a", "../x")]),
        ("hard link to a link", &[Item::Link("l", "/etc/passwd"), Item::Hard("a", "l")]),
        ("hard link through a link", &[Item::Link("l", "/etc"), Item::Hard("a", "l/passwd")]),
        ("device", &[Item::Kind("a", EntryType::Block)]),
        ("fifo", &[Item::Kind("a", EntryType::Fifo)]),
        ("root as a file", &[Item::File(".", "")]),
        ("empty link", &[Item::Link("a", "")]),
        ("whiteout of a whiteout", &[Item::File("d/.wh..wh.x", "")]),
        ("whiteout of the parent", &[Item::File("d/.wh...", "")]),
        ("file below a file", &[Item::File("a", ""), Item::File("a/b", "")]),
    ];
    for (what, items) in table {
        let world = tempfile::tempdir().unwrap();
        let root = world.path().join("root");
        fs::create_dir(&root).unwrap();
        let error = unpack(items, &root).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Artifact, "{what}: {error}");
        assert_eq!(fs::read_dir(world.path()).unwrap().count(), 1, "{what}");
    }
}

#[test]
fn limits_hold_and_damage_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let node = NodeFs::open(dir.path()).unwrap();
    let two = archive(&[Item::File("a", "12345"), Item::File("b", "12345")]);
    for limits in [UnpackLimits::new(1, 100), UnpackLimits::new(10, 9)] {
        let error = TarSource::unpack_reader(&two[..], limits, &node).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Artifact);
    }
    let limits = UnpackLimits::default();
    assert!(TarSource::unpack_reader(&two[..514], limits, &node).is_err());
    assert_eq!(TarSource::unpack_reader(&[7; 600][..], limits, &node).unwrap_err().kind(), ErrorKind::Artifact);
}

/// The archive of one entry `kind` with `size` zeros in it; they are made while they are read, and counted.
struct Zeros {
    header: std::io::Cursor<Vec<u8>>,
    left: u64,
    read: u64,
}

impl Zeros {
    fn new(kind: EntryType, size: u64) -> Self {
        let mut header = Header::new_gnu();
        header.set_path("././@LongLink").unwrap();
        header.set_entry_type(kind);
        header.set_size(size);
        for zero in [Header::set_uid, Header::set_gid] {
            zero(&mut header, 0);
        }
        header.set_mode(0o644);
        header.set_cksum();
        Self { header: std::io::Cursor::new(header.as_bytes().to_vec()), left: size, read: 0 }
    }
}

impl std::io::Read for &mut Zeros {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut read = self.header.read(buf)?;
        if read == 0 {
            read = buf.len().min(usize::try_from(self.left).unwrap());
            buf[..read].fill(0);
            self.left -= read as u64;
        }
        self.read += read as u64;
        Ok(read)
    }
}

#[test]
fn what_is_held_in_memory_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let node = NodeFs::open(dir.path()).unwrap();
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader, EntryType::XGlobalHeader] {
        let mut archive = Zeros::new(kind, 300 << 20);
        let error = TarSource::unpack_reader(&mut archive, UnpackLimits::default(), &node).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Artifact, "{kind:?}");
        assert!(error.to_string().ends_with("an entry's headers are too long"), "{kind:?}: {error}");
        assert!(archive.read <= 2 << 20, "{kind:?}: {} bytes were read", archive.read);
    }
    // Content that the limits allow is none of that.
    let mut archive = Zeros::new(EntryType::Regular, 3 << 20);
    TarSource::unpack_reader(&mut archive, UnpackLimits::new(2, 3 << 20), &node).unwrap();
    assert_eq!(fs::metadata(dir.path().join("@LongLink")).unwrap().len(), 3 << 20);
}

#[test]
fn directories_that_are_implied_count() {
    let deep = |depth: usize| {
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(0);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        builder.append_data(&mut header, "d/".repeat(depth) + "file", &b""[..]).unwrap();
        builder.into_inner().unwrap()
    };
    let unpack = |depth: usize, entries: u64| {
        let dir = tempfile::tempdir().unwrap();
        let node = NodeFs::open(dir.path()).unwrap();
        let done = TarSource::unpack_reader(&deep(depth)[..], UnpackLimits::new(entries, 0), &node);
        (done, fs::read_dir(dir.path()).unwrap().count())
    };
    unpack(200, 201).0.unwrap();
    unpack(255, 1000).0.unwrap();
    for (depth, entries, why) in
        [(200, 200, "has too many entries"), (1, 1, "too many entries"), (256, 1000, "too deep")]
    {
        let (done, left) = unpack(depth, entries);
        let error = done.unwrap_err();
        assert_eq!((error.kind(), left), (ErrorKind::Artifact, 0), "{depth}: {error}");
        assert!(error.to_string().ends_with(why), "{depth}: {error}");
    }
}

#[tokio::test]
async fn layers_hide_what_lies_below() {
    let dir = tempfile::tempdir().unwrap();
    let (lower, upper, root) = (dir.path().join("0.tar"), dir.path().join("1.tar"), dir.path().join("root"));
    fs::create_dir(&root).unwrap();
    let below = [
        Item::File("keep", "1"),
        Item::File("gone", "1"),
        Item::File("gone-too", "1"),
        Item::File("opaque/old", "1"),
        Item::File("changed", "1"),
    ];
    fs::write(&lower, archive(&below)).unwrap();
    let above = [
        Item::File(".wh.gone", ""),
        Item::Kind("gone-too", EntryType::Char),
        Item::File("opaque/new", "2"),
        Item::File("opaque/.wh..wh..opq", ""),
        Item::File("changed", "2"),
    ];
    fs::write(&upper, archive(&above)).unwrap();
    let source = TarSource::layers(vec![lower, upper]);
    let ctx = OpCtx::new(Duration::from_secs(10));
    source.unpack(&ctx, &NodeFs::open(&root).unwrap()).await.unwrap();
    let mut names: Vec<_> = fs::read_dir(&root).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["changed", "keep", "opaque"]);
    assert_eq!(fs::read_dir(root.join("opaque")).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(root.join("changed")).unwrap(), "2");
    assert!(!source.in_place());
    assert_eq!(source.identity().await.unwrap(), source.identity().await.unwrap());
    assert_eq!(TarSource::new("/no/such").identity().await.unwrap_err().kind(), ErrorKind::Artifact);
}

#[tokio::test]
async fn directories_are_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("a/b")).unwrap();
    fs::create_dir(&to).unwrap();
    fs::write(from.join("a/file"), "x").unwrap();
    fs::set_permissions(from.join("a/file"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(from.join("a/file"), from.join("a/hard")).unwrap();
    std::os::unix::fs::symlink("/etc", from.join("link")).unwrap();
    let ctx = OpCtx::new(Duration::from_secs(10));
    DirSource::new(&from).unpack(&ctx, &NodeFs::open(&to).unwrap()).await.unwrap();
    let (file, hard) = (fs::metadata(to.join("a/file")).unwrap(), fs::metadata(to.join("a/hard")).unwrap());
    assert_eq!((file.ino(), file.permissions().mode() & 0o777), (hard.ino(), 0o640));
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/etc"));
    assert!(PreparedSource::new().in_place());
    ctx.cancel().cancel();
    let error = DirSource::new(&from).unpack(&ctx, &NodeFs::open(&to).unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}
