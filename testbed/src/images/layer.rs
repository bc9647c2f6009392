//! A layer made of files that this machine has.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use tar::{Builder, EntryType};

use super::archive::header;
use crate::error::{Context as _, Result};
use crate::process::Task;

/// A layer under construction.
pub(crate) struct Layer {
    tar: Builder<File>,
}

impl Layer {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).doing(|| format!("create {}", path.display()))?;
        Ok(Self { tar: Builder::new(file) })
    }

    pub(crate) fn dir(&mut self, path: &str, mode: u32) -> Result<()> {
        let mut header = header(EntryType::Directory, mode, 0);
        self.tar.append_data(&mut header, format!("{path}/"), std::io::empty()).doing(|| format!("add {path}"))
    }

    pub(crate) fn text(&mut self, path: &str, mode: u32, text: &str) -> Result<()> {
        let size = text.len().try_into().expect("a length fits in u64");
        let mut header = header(EntryType::Regular, mode, size);
        self.tar.append_data(&mut header, path, text.as_bytes()).doing(|| format!("add {path}"))
    }

    pub(crate) fn file(&mut self, path: &str, mode: u32, from: &Path) -> Result<()> {
        let mut file = File::open(from).doing(|| format!("open {}", from.display()))?;
        let size = file.metadata().doing(|| format!("look at {}", from.display()))?.len();
        self.tar
            .append_data(&mut header(EntryType::Regular, mode, size), path, &mut file)
            .doing(|| format!("add {path}"))
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.tar.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target).doing(|| format!("add {path}"))
    }

    pub(crate) fn finish(self) -> Result<()> {
        self.tar.into_inner().and_then(|mut file| file.flush()).doing(|| "finish a layer".to_owned())
    }
}

/// A root file system of BusyBox and static bash, as far as `without` lets it.
pub(crate) fn busybox(path: &Path, without: &[&str], writable: bool) -> Result<Layer> {
    let mut layer = Layer::create(path)?;
    for dir in
        ["bin", "sbin", "usr", "usr/bin", "usr/sbin", "etc", "root", "var", "var/run", "proc", "sys", "dev", "home"]
    {
        layer.dir(dir, 0o755)?;
    }
    layer.dir("tmp", if writable { 0o1777 } else { 0o755 })?;
    layer.file("bin/busybox", 0o755, Path::new("/bin/busybox"))?;
    let applets = Task::new("/bin/busybox", std::time::Duration::from_secs(10)).args(["--list"]).stdout()?;
    for applet in applets.lines().filter(|applet| !["busybox", "bash"].contains(applet) && !without.contains(applet)) {
        layer.link(&format!("bin/{applet}"), "/bin/busybox")?;
    }
    if !without.contains(&"bash") {
        layer.file("bin/bash", 0o755, Path::new("/bin/bash-static"))?;
    }
    layer.text("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")?;
    layer.text("etc/group", 0o644, "root:x:0:\nnogroup:x:65534:\n")?;
    Ok(layer)
}
