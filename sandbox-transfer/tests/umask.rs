//! Downloads under a umask that takes from the owner, too. The umask is the whole process's, so that this has one to itself.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failure in a test is the point")]

mod common;

use common::{Tar, serving, session, tree};
use rustix::fs::{Mode, RawMode};
use sandbox::{Effect, SandboxPath};
use sandbox_transfer::{DownloadOptions, ProviderTransferExt};

#[tokio::test]
async fn a_umask_leaves_a_directory_to_its_owner_and_nothing_beside_it() {
    let archive = Tar::default().dir("top").dir("top/d").dir("top/d/e").file("top/d/e/f", "x");
    let root = SandboxPath::new("/work/top").unwrap();
    let before = rustix::process::umask(Mode::empty());
    for umask in [0o022u32, 0o077, 0o177, 0o277, 0o477, 0o777] {
        let place = tempfile::tempdir().unwrap();
        rustix::process::umask(Mode::from_raw_mode(umask as RawMode));
        for in_place in [false, true] {
            let mut options = DownloadOptions::default();
            if in_place {
                options = options.in_place();
            }
            let out = place.path().join(format!("out-{in_place}"));
            let report = serving(archive.clone().end()).download(&session(), &root, &out, options).await;
            let report = report.unwrap_or_else(|e| panic!("{umask:o} {in_place}: {e}"));
            assert_eq!((report.files, report.directories), (1, 3));
            // Readable to whoever runs this as well.
            std::fs::set_permissions(out.join("d/e/f"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            let modes: Vec<_> = tree(&out).into_iter().map(|(name, (_, mode, _))| (name, mode)).collect();
            let directory = 0o755 & !umask | 0o700;
            let all = [(b"d".to_vec(), directory), (b"d/e".to_vec(), directory), (b"d/e/f".to_vec(), 0o600)];
            assert_eq!(modes, all, "{umask:o} {in_place}");
        }
        // And one that fails half-way leaves nothing.
        let cut = archive.clone().symlink("top/link", "/").end();
        let options = DownloadOptions::default();
        let error = serving(cut).download(&session(), &root, place.path().join("bad"), options).await.unwrap_err();
        assert_eq!(error.effect(), Effect::None, "{error}");
        rustix::process::umask(before);
        let mut left: Vec<_> = std::fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["out-false", "out-true"], "{umask:o}");
    }
}
