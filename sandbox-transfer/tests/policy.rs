//! Any archive at all: whatever it says, nothing appears beside the target, and no link in it leads out.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::path::Path;

use common::Tar;
use proptest::prelude::*;
use rustix::fs::{Mode, OFlags};
use sandbox::SandboxPath;
use sandbox_transfer::{DownloadOptions, Limits, OnRefusal, unpack};
use tar::EntryType;

/// Unpacks `archive` in every way, and looks at what is there then.
fn holds(archive: &[u8]) -> Result<(), TestCaseError> {
    let root = SandboxPath::new("/work/t").unwrap();
    let limits = Limits::default().with_entries(100).with_bytes(1 << 20).with_depth(8);
    for refusal in [OnRefusal::Fail, OnRefusal::LeaveOut] {
        for in_place in [false, true] {
            let place = tempfile::tempdir().unwrap();
            std::fs::create_dir(place.path().join("in")).unwrap();
            std::fs::write(place.path().join("kept"), "kept").unwrap();
            let target = place.path().join("in/t");
            let mut options = DownloadOptions::default().with_limits(limits).with_links().on_refusal(refusal);
            if in_place {
                options = options.in_place();
            }
            let result = unpack(archive, &root, &target, options);
            let mut names: Vec<_> = read(place.path());
            names.sort();
            prop_assert_eq!(names, ["in", "kept"]);
            let inside = read(&place.path().join("in"));
            prop_assert!(inside.iter().all(|name| name == "t"), "{:?} after {:?}", inside, result);
            if !in_place && result.is_err() {
                prop_assert!(inside.is_empty());
            }
            prop_assert_eq!(std::fs::read(place.path().join("kept")).unwrap(), b"kept");
            if target.is_dir() {
                links_stay(&target, &target)?;
            }
        }
    }
    Ok(())
}

fn read(at: &Path) -> Vec<String> {
    std::fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// Asks the kernel where each link leads: never out of the target.
#[cfg(target_os = "linux")]
fn links_stay(top: &Path, at: &Path) -> Result<(), TestCaseError> {
    use rustix::fs::{ResolveFlags, openat2};
    let fd = rustix::fs::open(top, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    for entry in std::fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        let meta = path.symlink_metadata().unwrap();
        if meta.is_symlink() {
            let below = path.strip_prefix(top).unwrap();
            let led = openat2(&fd, below, OFlags::PATH, Mode::empty(), ResolveFlags::BENEATH);
            prop_assert_ne!(led.err(), Some(rustix::io::Errno::XDEV), "{:?} leads out", path);
        } else if meta.is_dir() {
            links_stay(top, &path)?;
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn links_stay(_: &Path, _: &Path) -> Result<(), TestCaseError> {
    Ok(())
}

fn component() -> impl Strategy<Value = &'static str> {
    prop_oneof![6 => Just("a"), 6 => Just("b"), 2 => Just("l"), 3 => Just(".."), 1 => Just("."), 1 => Just(""), 1 => Just("kept"), 1 => Just("t")]
}

fn name() -> impl Strategy<Value = String> {
    let below = prop::collection::vec(component(), 1..5).prop_map(|c| format!("t/{}", c.join("/")));
    let any = prop::collection::vec(component(), 1..5).prop_map(|c| c.join("/"));
    prop_oneof![8 => below, 2 => any, 1 => Just("/tmp/x".to_owned())]
}

fn entry() -> impl Strategy<Value = (u8, String, String)> {
    let kinds = prop_oneof![4 => Just(b'5'), 3 => Just(b'0'), 4 => Just(b'2'), 1 => Just(b'1'), 1 => any::<u8>()];
    (kinds, name(), prop::collection::vec(component(), 1..6).prop_map(|c| c.join("/")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn no_list_of_entries_leaves_the_target(entries in prop::collection::vec(entry(), 0..25)) {
        let mut tar = Tar::default().dir("t");
        for (kind, name, target) in &entries {
            tar = match EntryType::new(*kind) {
                EntryType::Regular => tar.file(name, "content"),
                kind => tar.link(kind, name.as_bytes(), target.as_bytes()),
            };
        }
        holds(&tar.end())?;
    }

    #[test]
    fn no_damage_to_an_archive_leaves_the_target(hits in prop::collection::vec((0usize..6000, any::<u8>()), 1..6), fix in any::<bool>()) {
        let tar = Tar::default().dir("t").dir("t/a").pax(&[("path", b"t/a/b")]).file("t/x", [7; 700]);
        let mut bytes = tar.symlink("t/l", "a/b").file([b"t/a/".as_slice(), &[b'n'; 150]].concat(), "long").end();
        for (at, value) in hits {
            let at = at % bytes.len();
            bytes[at] = value;
            if fix {
                mend(&mut bytes, at);
            }
        }
        holds(&bytes)?;
    }

    #[test]
    fn no_bytes_at_all_leave_the_target(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        holds(&bytes)?;
    }
}

/// Makes the checksum of the block around `at` right, as if it were a header.
fn mend(bytes: &mut [u8], at: usize) {
    let block = at / 512 * 512;
    let block = &mut bytes[block..block + 512];
    let sum: u32 = block[..148].iter().chain(&block[156..]).map(|b| u32::from(*b)).sum::<u32>() + 8 * 32;
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}
