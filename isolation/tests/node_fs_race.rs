//! Every file operation, 10^5 times, on trees of links that another thread swaps during the walk: nothing outside of the root is read,
//! written, created or removed.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isolation::{ErrorKind, NodeFs, NodePath, UnitName, node_path};

const TRIES: u32 = 100_000;

/// On a machine that is busy with something else.
const LIMIT: Duration = Duration::from_secs(300);

const SECRET: &str = "of the host";

/// Numbers that differ each time, and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn one_of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// What there is below a directory: kind, mode, owner, number of names, size, when it changed, content.
fn look(dir: &Path, into: &mut BTreeMap<PathBuf, String>) {
    let mut all = vec![dir.to_path_buf()];
    while let Some(path) = all.pop() {
        let found = path.symlink_metadata().unwrap();
        let content = match () {
            () if found.is_dir() => fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect(),
            () => vec![PathBuf::from(fs::read_to_string(&path).unwrap())],
        };
        // Reading a directory changes nothing that is looked at here: `ctime` is not when it was read.
        let facts = (found.mode(), found.uid(), found.gid(), found.nlink(), found.ctime(), found.ctime_nsec());
        into.insert(path, format!("{facts:?} {content:?}"));
        if found.is_dir() {
            all.extend(content);
        }
    }
}

fn seen(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    look(dir, &mut all);
    all
}

fn unchanged(dir: &Path, before: &BTreeMap<PathBuf, String>) {
    let now = seen(dir);
    let paths = before.keys().chain(now.keys());
    let changed: Vec<_> = paths.filter(|path| before.get(*path) != now.get(*path)).collect();
    assert!(changed.is_empty(), "{changed:?}");
}

/// Names of the tree that is played with; each may be a directory, a file, or a link of any kind at any time.
const NAMES: [&str; 6] = ["a", "b", "a/a", "a/b", "b/a", "b/b"];

/// Where links point, besides to the host itself: up and out, round in circles, to the root of the host by another name.
const TARGETS: [&str; 10] = [
    "../outside",
    "../../outside",
    "../../../outside/keep",
    "/outside",
    "/proc/self/root",
    "/proc/self/cwd",
    "a",
    "../b",
    "..",
    "/",
];

/// The directory, if it is one and no link to one.
fn open_itself(dir: &Path) -> Option<std::os::fd::OwnedFd> {
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW;
    rustix::fs::open(dir, flags, 0.into()).ok()
}

/// Swaps directories, files and links until it is stopped.
fn swap(root: &Path, outside: &Path, spare: &Path, stop: &AtomicBool) -> u64 {
    let (mut numbers, mut swaps) = (Numbers(7), 0);
    while !stop.load(Ordering::Relaxed) {
        let (name, new) = (root.join(numbers.one_of(&NAMES)), spare.join("new"));
        let _ = (fs::remove_file(&new), fs::remove_dir_all(&new));
        let made = match numbers.below(5) {
            0 => fs::create_dir_all(new.join("a")),
            1 => fs::write(&new, "inside"),
            2 => symlink(outside.join(numbers.one_of(&["", "keep", "secret"])), &new),
            _ => symlink(numbers.one_of(&TARGETS), &new),
        };
        // In one step, so that a walk that has looked meets another thing than it saw; and never through a link itself.
        if let (Ok(()), Some(dir)) = (made, open_itself(name.parent().unwrap())) {
            let (to, exchange) = (name.file_name().unwrap(), rustix::fs::RenameFlags::EXCHANGE);
            if rustix::fs::renameat_with(rustix::fs::CWD, &new, &dir, to, exchange).is_err() {
                let _ = rustix::fs::renameat(rustix::fs::CWD, &new, &dir, to);
            }
            swaps += 1;
        }
        std::thread::yield_now();
    }
    swaps
}

fn path(numbers: &mut Numbers) -> NodePath {
    let mut text = String::new();
    for _ in 0..=numbers.below(4) {
        text = format!("{text}/{}", numbers.one_of(&["a", "b", "secret", "keep", "file", "outside"]));
    }
    NodePath::new(text).unwrap()
}

/// One operation; whatever comes of it, it is none on the host.
fn try_one(node: &NodeFs, numbers: &mut Numbers) {
    let (path, other) = (path(numbers), path(numbers));
    let content = |bytes: Vec<u8>| assert_ne!(bytes, SECRET.as_bytes(), "read the host through {path}");
    let operation = numbers.below(16);
    let refusal = match operation {
        0 => node.read(&path, 100).map(content).err(),
        1 => node.open_file(&path).map(|file| content(std::io::read_to_string(file).unwrap().into_bytes())).err(),
        2 => node.read_dir(&path, 100).map(|names| assert!(!names.contains(&"host-only".into()), "{path}")).err(),
        3 => node.metadata(&path).map(|found| assert!(found.is_none_or(|found| found.len != 4242), "{path}")).err(),
        4 => node.read_link(&path).err(),
        5 => node.write_atomic(&path, 0o600, b"inside").err(),
        6 => node.write_unsynced(&path, 0o4755, &mut &b"inside"[..]).err(),
        7 => node.create_dir_all(&path, 0o755).err(),
        8 => node.symlink("/outside", &path).err(),
        9 => node.hard_link(&path, &other).err(),
        10 => node.set_mode(&path, 0o777).err(),
        11 => node.set_owner(&path, 12, 34).err(),
        12 => node.set_xattr(&path, "user.planted", b"x").err(),
        13 => node.remove(&path).err(),
        14 => node.remove_tree(&path).err(),
        _ => node.mask_unit(&UnitName::new("a.service").unwrap()).err(),
    };
    if let Some(error) = refusal {
        // To a removal, what is swapped between two looks can seem to be mounted there: refused, too.
        let swapped = operation == 14 && error.kind() == ErrorKind::Conflict;
        assert!(swapped || matches!(error.kind(), ErrorKind::Io | ErrorKind::InvalidInput), "{error:?}");
    }
}

#[test]
fn a_racing_thread_gains_nothing() {
    // In memory where possible: many tries in little time.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let [root, outside, spare] = ["root", "outside", "spare"].map(|name| dir.path().join(name));
    for made in [&root, &outside.join("keep"), &outside.join("host-only"), &spare] {
        fs::create_dir_all(made).unwrap();
    }
    for (file, text) in
        [("secret", SECRET), ("file", SECRET), ("keep/file", SECRET), ("keep/secret", &"x".repeat(4242))]
    {
        fs::write(outside.join(file), text).unwrap();
    }
    fs::create_dir(outside.join("keep/host-only")).unwrap();
    let (before, node, stop) = (seen(&outside), NodeFs::open(&root).unwrap(), AtomicBool::new(false));
    let (begun, mut tries) = (Instant::now(), 0);
    let swaps = std::thread::scope(|scope| {
        let racer = scope.spawn(|| swap(&root, &outside, &spare, &stop));
        let mut numbers = Numbers(1);
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while tries < TRIES && begun.elapsed() < LIMIT {
                try_one(&node, &mut numbers);
                tries += 1;
                if tries % 500 == 0 {
                    unchanged(&outside, &before);
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let swaps = racer.join().unwrap();
        failed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        swaps
    });
    assert_eq!(tries, TRIES, "in {:?}", begun.elapsed());
    assert!(swaps > u64::from(TRIES) / 100, "only {swaps} swaps");
    node.remove_tree(&NodePath::root()).unwrap();
    unchanged(&outside, &before);
    assert!(node.metadata(&node_path!("/secret")).unwrap().is_none());
}
