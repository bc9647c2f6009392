//! Any bytes as an archive: `unpack` ends, keeps its bounds, and makes nothing beside its target.
//!
//! `cargo +nightly fuzz run unpack`; the same property runs as proptests in `tests/policy.rs`.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use sandbox::SandboxPath;
use sandbox_transfer::{DownloadOptions, Limits, OnRefusal, unpack};

/// One place for all runs: a target that is made in it is removed again.
static PLACE: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let place = tempfile::tempdir().expect("a scratch directory");
    std::fs::create_dir(place.path().join("in")).expect("a directory");
    std::fs::create_dir(place.path().join("outside")).expect("a directory");
    place
});

/// Makes the checksum of each block right that is not empty, so that the fuzzer need not find it.
fn mend(bytes: &mut [u8]) {
    for block in bytes.chunks_exact_mut(512).filter(|block| block.iter().any(|b| *b != 0)) {
        // Content is changed by this as well, which does no harm.
        let sum: u32 = block[..148].iter().chain(&block[156..]).map(|b| u32::from(*b)).sum::<u32>() + 8 * 32;
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

fn count(at: &Path) -> usize {
    std::fs::read_dir(at).expect("it is there").count()
}

fuzz_target!(|data: &[u8]| {
    let Some((flags, archive)) = data.split_first() else { return };
    let mut archive = archive.to_vec();
    if flags & 1 != 0 {
        mend(&mut archive);
    }
    if flags & 2 != 0 {
        archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    }
    let limits = Limits::default().with_entries(50).with_bytes(1 << 16).with_depth(8);
    let mut options = DownloadOptions::default().with_limits(limits);
    if flags & 4 != 0 {
        options = options.on_refusal(OnRefusal::LeaveOut);
    }
    if flags & 8 != 0 {
        options = options.with_links();
    }
    if flags & 16 != 0 {
        options = options.in_place();
    }
    let inside = PLACE.path().join("in");
    let target = inside.join("t");
    let root = SandboxPath::new("/work/t").expect("a path");
    let result = unpack(&archive[..], &root, &target, options);
    let made = usize::from(target.symlink_metadata().is_ok());
    assert_eq!(count(&inside), made, "something lies beside the target");
    assert!(result.is_err() || made == 1, "a success without a target");
    assert_eq!((count(PLACE.path()), count(&PLACE.path().join("outside"))), (2, 0));
    if target.is_dir() {
        std::fs::remove_dir_all(&target).expect("it can be removed");
    } else if made == 1 {
        std::fs::remove_file(&target).expect("it can be removed");
    }
});
