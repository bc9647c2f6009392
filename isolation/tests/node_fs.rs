//! Nothing outside a root is ever read, written, created or removed.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isolation::{Effect, ErrorKind, NodeFileKind, NodeFs, NodePath, Reason, UnitName, node_path};
use proptest::prelude::*;

/// A root with a host beside it: whoever leaves the root meets the sentinels.
struct World {
    _dir: tempfile::TempDir,
    root: PathBuf,
    outside: PathBuf,
}

impl World {
    fn new() -> Self {
        // In memory where possible: many tries in little time.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        fs::create_dir(outside.join("keep")).unwrap();
        fs::write(outside.join("keep/file"), "keep").unwrap();
        let world = Self { _dir: dir, root, outside };
        world.fix_modes();
        world
    }

    fn fs(&self) -> NodeFs {
        NodeFs::open(&self.root).unwrap()
    }

    /// The host is as it was: the same names with the same contents, modes, owners, names and attributes.
    fn assert_untouched(&self) {
        let names = |dir: &Path| {
            let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&self.outside), ["keep", "secret"]);
        assert_eq!(names(&self.outside.join("keep")), ["file"]);
        assert_eq!(fs::read(self.outside.join("secret")).unwrap(), b"secret");
        assert_eq!(fs::read(self.outside.join("keep/file")).unwrap(), b"keep");
        let own = fs::metadata(self.root.parent().unwrap()).unwrap();
        for (path, mode, links) in [("", 0o755, 3), ("secret", 0o644, 1), ("keep", 0o755, 2), ("keep/file", 0o644, 1)] {
            let path = self.outside.join(path);
            let found = fs::metadata(&path).unwrap();
            assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (mode, own.uid(), own.gid()), "{path:?}");
            // Not every file system counts the links of a directory.
            assert!(found.is_dir() || found.nlink() == links, "{path:?}");
            let mut no_room = [0u8; 0];
            assert_eq!(rustix::fs::listxattr(&path, &mut no_room).unwrap_or(0), 0, "{path:?}");
        }
    }

    /// Sets the modes that are looked for, whatever the umask.
    fn fix_modes(&self) {
        for (path, mode) in [("", 0o755), ("secret", 0o644), ("keep", 0o755), ("keep/file", 0o644)] {
            fs::set_permissions(self.outside.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
    }
}

#[test]
fn links_mean_what_they_mean_inside() {
    let world = World::new();
    let node = world.fs();
    node.create_dir_all(&node_path!("/run/systemd"), 0o755).unwrap();
    node.write_atomic(&node_path!("/run/systemd/resolv.conf"), 0o644, b"inside").unwrap();
    symlink("/run", world.root.join("var-run")).unwrap();
    symlink("/run/systemd/resolv.conf", world.root.join("resolv.conf")).unwrap();
    symlink("../../../../run/systemd/resolv.conf", world.root.join("climbing")).unwrap();
    for path in ["/var-run/systemd/resolv.conf", "/resolv.conf", "/climbing"] {
        assert_eq!(node.read(&NodePath::new(path).unwrap(), 100).unwrap(), b"inside", "{path}");
    }
    // Through a directory link, and replacing a link rather than its target.
    node.write_atomic(&node_path!("/var-run/new"), 0o600, b"x").unwrap();
    assert_eq!(fs::metadata(world.root.join("run/new")).unwrap().permissions().mode() & 0o777, 0o600);
    node.write_atomic(&node_path!("/resolv.conf"), 0o644, b"mine").unwrap();
    assert_eq!(fs::read(world.root.join("run/systemd/resolv.conf")).unwrap(), b"inside");
    assert_eq!(node.metadata(&node_path!("/resolv.conf")).unwrap().unwrap().kind, NodeFileKind::File);
    assert!(fs::read_dir(&world.root).unwrap().all(|e| !e.unwrap().file_name().to_string_lossy().starts_with(".#")));
}

#[test]
fn planted_links_to_the_host_reach_nothing() {
    let world = World::new();
    let node = world.fs();
    symlink(&world.outside, world.root.join("abs")).unwrap();
    symlink("../outside", world.root.join("rel")).unwrap();
    symlink("../outside/secret", world.root.join("file")).unwrap();
    symlink("loop2", world.root.join("loop1")).unwrap();
    symlink("loop1", world.root.join("loop2")).unwrap();
    symlink("/proc/self/root", world.root.join("magic")).unwrap();
    for link in ["abs", "rel", "file", "loop1", "magic"] {
        let at = |rest: &str| NodePath::new(format!("/{link}{rest}")).unwrap();
        for path in [at(""), at("/secret"), at("/keep/file")] {
            assert_eq!(node.read(&path, 100).unwrap_err().kind(), ErrorKind::Io, "{path}");
        }
        assert!(node.write_atomic(&at("/planted"), 0o644, b"x").is_err());
        assert!(node.create_dir_all(&at("/planted/deep"), 0o755).is_err());
        assert!(node.symlink("/etc", &at("/planted")).is_err());
        assert!(node.hard_link(&at("/secret"), &node_path!("/stolen")).is_err());
        let _ = node.remove(&at("/secret"));
        let _ = node.remove_tree(&at("/keep"));
        world.assert_untouched();
    }
    // Removing a link removes the link.
    node.remove_tree(&node_path!("/abs")).unwrap();
    node.remove(&node_path!("/file")).unwrap();
    let me = std::os::unix::fs::MetadataExt::uid(&fs::metadata(&world.root).unwrap());
    node.set_owner(&node_path!("/rel"), me, me).unwrap();
    assert_eq!(node.set_mode(&node_path!("/rel"), 0o777).unwrap_err().reason(), Some(Reason::WrongType));
    assert_eq!(node.read_link(&node_path!("/rel")).unwrap(), Path::new("../outside"));
    node.remove_tree(&NodePath::root()).unwrap();
    assert_eq!(fs::read_dir(&world.root).unwrap().count(), 0);
    world.assert_untouched();
}

#[test]
fn special_files_are_never_opened() {
    let world = World::new();
    let fifo = world.root.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let begun = Instant::now();
    let error = world.fs().read(&node_path!("/fifo"), 10).unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidInput, Some(Reason::WrongType)));
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(world.fs().read(&NodePath::root(), 10).unwrap_err().reason(), Some(Reason::WrongType));
    assert_eq!(world.fs().metadata(&node_path!("/fifo")).unwrap().unwrap().kind, NodeFileKind::Special);
}

#[test]
fn reading_is_bounded_and_the_root_is_no_file() {
    let world = World::new();
    let node = world.fs();
    node.write_atomic(&node_path!("/f"), 0o644, &[7; 100]).unwrap();
    assert_eq!(node.read(&node_path!("/f"), 100).unwrap().len(), 100);
    assert_eq!(node.read(&node_path!("/f"), 99).unwrap_err().reason(), Some(Reason::TooLong));
    assert_eq!(node.read_dir(&NodePath::root(), 0).unwrap_err().reason(), Some(Reason::TooLong));
    assert_eq!(node.read_dir(&NodePath::root(), 1).unwrap(), ["f"]);
    assert_eq!(node.write_atomic(&NodePath::root(), 0o644, b"").unwrap_err().reason(), Some(Reason::WrongType));
    assert_eq!(node.metadata(&node_path!("/absent/x")).unwrap(), None);
    node.remove(&node_path!("/absent/x")).unwrap();
    node.remove_tree(&node_path!("/absent/x")).unwrap();
}

#[test]
fn a_reader_that_fails_leaves_nothing() {
    struct Failing;
    impl std::io::Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("no more"))
        }
    }
    let world = World::new();
    assert!(world.fs().write_from(&node_path!("/f"), 0o644, &mut Failing).is_err());
    assert_eq!(fs::read_dir(&world.root).unwrap().count(), 0);
}

#[test]
fn masking_replaces_whatever_is_there() {
    let world = World::new();
    let node = world.fs();
    let unit = UnitName::new("nftables.service").unwrap();
    let path = world.root.join("etc/systemd/system/nftables.service");
    fs::create_dir_all(path.join("a/b")).unwrap();
    for _ in 0..2 {
        node.mask_unit(&unit).unwrap();
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("/dev/null"));
    }
}

#[test]
fn deep_and_wide_trees_go() {
    let world = World::new();
    let node = world.fs();
    let mut dir = world.root.join("deep");
    fs::create_dir(&dir).unwrap();
    let mut fd = fs::File::open(&dir).unwrap();
    for _ in 0..1500 {
        rustix::fs::mkdirat(&fd, "d", 0o700.into()).unwrap();
        fd = rustix::fs::openat(&fd, "d", rustix::fs::OFlags::RDONLY, 0.into()).unwrap().into();
    }
    dir.push("wide");
    fs::create_dir(&dir).unwrap();
    for n in 0..500 {
        fs::write(dir.join(n.to_string()), "").unwrap();
    }
    node.remove_tree(&node_path!("/deep")).unwrap();
    assert_eq!(fs::read_dir(&world.root).unwrap().count(), 0);
}

#[test]
fn a_mount_in_the_way_is_a_conflict() {
    let world = World::new();
    let below = world.root.join("tree/mnt");
    fs::create_dir_all(&below).unwrap();
    let mounted = std::process::Command::new("mount").arg("--bind").arg(&world.outside).arg(&below).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return; // The property test below still covers links; only root can bind.
    }
    let error = world.fs().remove_tree(&node_path!("/tree")).unwrap_err();
    let unmounted = std::process::Command::new("umount").arg(&below).status().unwrap().success();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Conflict, Effect::Partial));
    assert!(unmounted);
    world.assert_untouched();
    world.fs().remove_tree(&node_path!("/tree")).unwrap();
}

#[test]
fn areas_replace_prefixes() {
    let world = World::new();
    let area = tempfile::tempdir().unwrap();
    let node = world.fs().with_area(node_path!("/etc/kubernetes"), area.path()).unwrap();
    fs::create_dir(world.root.join("etc")).unwrap();
    node.write_atomic(&node_path!("/etc/kubernetes/a"), 0o644, b"1").unwrap();
    node.write_atomic(&node_path!("/etc/kubernetes1"), 0o644, b"2").unwrap();
    assert_eq!(fs::read(area.path().join("a")).unwrap(), b"1");
    assert_eq!(fs::read(world.root.join("etc/kubernetes1")).unwrap(), b"2");
}

#[derive(Debug, Clone)]
enum Plant {
    Dir(String),
    File(String),
    Link(String, String),
}

fn plants() -> impl Strategy<Value = Vec<Plant>> {
    let name = "[ab](/[ab]){0,2}";
    let to = prop_oneof![
        "(\\.\\./){1,4}outside(/keep|/secret)?",
        "/[ab]",
        "[ab]",
        Just("OUTSIDE".to_owned()),
        Just("..".to_owned()),
    ];
    let plant = prop_oneof![
        name.prop_map(Plant::Dir),
        name.prop_map(Plant::File),
        (name, to).prop_map(|(name, to)| Plant::Link(name, to)),
    ];
    proptest::collection::vec(plant, 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_tree_of_links_leads_out(plants in plants(), path in "(/(a|b|secret|keep|file)){1,4}") {
        let world = World::new();
        for plant in plants {
            let _ = match plant {
                Plant::Dir(name) => fs::create_dir_all(world.root.join(name)),
                // Created new, so that planting never writes through a link planted before.
                Plant::File(name) => fs::File::create_new(world.root.join(name)).map(drop),
                Plant::Link(name, to) if to == "OUTSIDE" => symlink(&world.outside, world.root.join(name)),
                Plant::Link(name, to) => symlink(to, world.root.join(name)),
            };
        }
        // Planting itself may have gone out through a link; start from a known host.
        let _ = fs::remove_dir_all(&world.outside);
        fs::create_dir_all(world.outside.join("keep")).unwrap();
        fs::write(world.outside.join("secret"), "secret").unwrap();
        fs::write(world.outside.join("keep/file"), "keep").unwrap();
        world.fix_modes();
        let (node, path) = (world.fs(), NodePath::new(path).unwrap());
        if let Ok(content) = node.read(&path, 100) {
            prop_assert!(content.is_empty(), "read the host");
        }
        let _ = node.read_dir(&path, 100);
        let _ = (node.open_file(&path), node.read_link(&path), node.metadata(&path));
        let _ = (node.set_owner(&path, 12, 34), node.set_xattr(&path, "user.planted", b"x"));
        let _ = node.write_atomic(&path, 0o644, b"");
        let _ = node.create_dir_all(&path, 0o755);
        let _ = node.symlink("x", &path);
        let _ = node.set_mode(&path, 0o700);
        let _ = node.hard_link(&node_path!("/a/secret"), &node_path!("/b/stolen"));
        let _ = node.remove(&path);
        let _ = node.remove_tree(&path);
        world.assert_untouched();
        node.remove_tree(&NodePath::root()).unwrap();
        world.assert_untouched();
    }
}
