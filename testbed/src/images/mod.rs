//! Container images made on the spot: nothing is pulled.

pub(crate) mod archive;
mod layer;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::archive::Start;
use crate::error::{Context as _, Result};
use crate::place::{Place, digest, lock, make_dir, write};
use crate::process::Task;

/// One image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image {
    /// A short name, also of its file in the cache.
    pub(crate) file: &'static str,
    /// The name that a pod asks for.
    pub(crate) reference: &'static str,
    make: fn(&Path) -> Result<()>,
    start: Start,
}

/// What a pod's own pause container runs.
pub(crate) const PAUSE: &str = "localhost/pause:1";
/// GNU userland, as most people's images have it.
pub(crate) const DEBIAN: &str = "docker.io/library/debian:stable-slim";
/// BusyBox userland and bash.
pub(crate) const BUSYBOX: &str = "docker.io/library/busybox:latest";

const SHELL: Start = Start { command: &["sh"], user: "", env: &[] };

/// Every image of the bed.
pub(crate) const ALL: &[Image] = &[
    Image { file: "pause", reference: PAUSE, make: pause, start: Start { command: &["/pause"], user: "", env: &[] } },
    Image { file: "busybox", reference: BUSYBOX, make: |path| layer::busybox(path, &[], true)?.finish(), start: SHELL },
    Image {
        file: "no-tar",
        reference: "testbed.local/no-tar:1",
        make: |path| layer::busybox(path, &["tar"], true)?.finish(),
        start: SHELL,
    },
    Image {
        file: "no-bash",
        reference: "testbed.local/no-bash:1",
        make: |path| layer::busybox(path, &["bash"], true)?.finish(),
        start: SHELL,
    },
    Image {
        file: "nobody",
        reference: "testbed.local/nobody:1",
        make: |path| layer::busybox(path, &[], false)?.finish(),
        start: Start { command: &["sh"], user: "65534", env: &[] },
    },
    Image {
        file: "noisy",
        reference: "testbed.local/noisy:1",
        make: noisy,
        start: Start { command: &["sh"], user: "", env: &["BASH_ENV=/etc/noise", "ENV=/etc/noise"] },
    },
    Image {
        file: "gate",
        reference: "testbed.local/gate:1",
        make: gate,
        start: Start { command: &["/gate"], user: "", env: &[] },
    },
    Image { file: "debian", reference: DEBIAN, make: debian, start: Start { command: &["bash"], user: "", env: &[] } },
];

/// The images that a pod can ask for.
pub(crate) fn for_pods() -> impl Iterator<Item = &'static Image> {
    ALL.iter().filter(|image| image.reference != PAUSE)
}

/// Makes what is not in the cache yet and says where the archives are.
pub(crate) fn ensure(place: &Place) -> Result<Vec<PathBuf>> {
    // A change of any recipe makes all of them anew.
    let recipe =
        [include_str!("mod.rs"), include_str!("layer.rs"), include_str!("archive.rs"), PAUSE_SOURCE, GATE, GATE_CALLS]
            .concat();
    let dir = place.cache().join(format!("images-{}", &digest(recipe.as_bytes())[..8]));
    make_dir(&dir)?;
    let _lock = lock(&dir.join("lock"))?;
    let mut archives = Vec::new();
    for image in ALL {
        let archive = dir.join(format!("{}.tar", image.file));
        if !archive.exists() {
            println!("making the image {}", image.reference);
            let (layer, new) = (dir.join("layer.new"), dir.join("image.new"));
            (image.make)(&layer)?;
            archive::write(&layer, image.reference, image.start, &new)?;
            fs::remove_file(&layer).doing(|| format!("remove {}", layer.display()))?;
            fs::rename(&new, &archive).doing(|| format!("name {}", archive.display()))?;
        }
        archives.push(archive);
    }
    Ok(archives)
}

const PAUSE_SOURCE: &str = include_str!("../../scripts/pause.c");

fn pause(path: &Path) -> Result<()> {
    let dir = tempfile::tempdir().doing(|| "make a temporary folder".to_owned())?;
    let (source, program) = (dir.path().join("pause.c"), dir.path().join("pause"));
    write(&source, PAUSE_SOURCE)?;
    Task::new("cc", Duration::from_secs(60)).args(["-Os", "-static", "-s", "-o"]).args([&program, &source]).stdout()?;
    let mut layer = layer::Layer::create(path)?;
    layer.file("pause", 0o755, &program)?;
    layer.finish()
}

/// Prints on every way a shell has of starting.
fn noisy(path: &Path) -> Result<()> {
    let mut layer = layer::busybox(path, &[], true)?;
    let noise = "echo noise on stdout\necho noise on stderr >&2\n";
    for file in ["etc/noise", "etc/profile", "etc/bash.bashrc", "root/.bashrc", "root/.profile", "root/.bash_profile"] {
        layer.text(file, 0o644, noise)?;
    }
    layer.finish()
}

/// What an egress gate looks like from outside: it asks its control plane whether its token is good, listens, says that it does, and counts.
fn gate(path: &Path) -> Result<()> {
    let mut layer = layer::busybox(path, &[], true)?;
    layer.text("gate", 0o755, GATE)?;
    layer.text("www/health", 0o644, "ok\n")?;
    layer.text("www/cgi-bin/calls", 0o755, GATE_CALLS)?;
    layer.finish()
}

const GATE: &str = include_str!("../../scripts/gate.sh");
const GATE_CALLS: &str = include_str!("../../scripts/gate-calls.sh");

fn debian(path: &Path) -> Result<()> {
    debootstrap("bookworm", "", path)
}

/// A root file system from Debian's packages, as a tar file.
pub(crate) fn debootstrap(suite: &str, packages: &str, out: &Path) -> Result<()> {
    let mut task = Task::new("mmdebstrap", Duration::from_secs(1200)).args([
        "--quiet",
        "--mode=root",
        "--format=tar",
        "--variant=minbase",
        "--aptopt=Apt::Install-Recommends \"false\"",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        "--customize-hook=rm -f \"$1/etc/machine-id\" \"$1/etc/hostname\" \"$1/etc/resolv.conf\"; : > \"$1/etc/machine-id\"",
    ]);
    if !packages.is_empty() {
        task = task.args([format!("--include={packages}")]);
    }
    task.args([suite]).args([out]).stdout().map(drop)
}
