//! What the root of a sandbox consists of.

use std::ffi::OsString;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use sandbox::{Error, ErrorKind};

use self::workdir::must_split;
use crate::fstab::{Mount, Plan, ROOT, Source};
use crate::parse::{Flags, MountInfo};

mod workdir;

/// What a root is made from.
#[derive(Debug)]
pub(crate) struct Layout<'a> {
    /// `None`: this machine's own programs.
    pub(crate) image: Option<&'a Path>,
    pub(crate) workdir: &'a Path,
    pub(crate) read_only: bool,
    /// It shares the host's network, and so needs its name service.
    pub(crate) host_network: bool,
    /// More trees of the host to show, at their own places.
    pub(crate) show: &'a [PathBuf],
    /// The visible mounts of this process.
    pub(crate) mounts: &'a [&'a MountInfo],
    /// The user and group that the tenant sees.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Programs of the root that must stay in sight, by their absolute paths in it.
    pub(crate) programs: &'a [PathBuf],
}

const SHOWN: Flags = Flags { read_only: true, no_suid: true, no_dev: true, no_exec: false };
const OWN: Flags = Flags { read_only: false, no_suid: true, no_dev: true, no_exec: false };
const DEVICE: Flags = Flags { read_only: false, no_suid: true, no_dev: false, no_exec: true };

/// Top-level entries of this machine that a sandbox sees.
const HOST_TREES: &[&str] = &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Below /etc: how programs find libraries, names, certificates and alternatives. Nothing that tells who uses the machine.
const HOST_ETC: &[&str] = &[
    "alternatives",
    "crypto-policies",
    "fonts",
    "host.conf",
    "java",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "locale.alias",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "pki",
    "protocols",
    "services",
    "ssl",
    "timezone",
];
/// Files of at most that many bytes are copied: to bind one costs more than to read it.
const MAX_COPY: u64 = 256 * 1024;
/// Top-level entries of an image that the sandbox has its own of.
const NEVER_FROM_IMAGE: &[&str] = &["dev", "mnt", "proc", "run", "sys", "tmp"];
const DEVICES: &[&str] = &["full", "null", "random", "tty", "urandom", "zero"];
/// More entries than this in a directory that has to be shown piece by piece are refused.
const MAX_SPLIT: usize = 1024;

/// Where the old root is put for a moment.
pub(crate) const OLD: &str = ".old";

/// Plans the root. Reads directories of the host and of the image, makes nothing.
pub(crate) fn plan(layout: &Layout<'_>) -> Result<Plan, Error> {
    let mut plan = Plan::default();
    plan.mount(Source::Box(ROOT.into()), "", OWN);
    let workdir = relative(layout.workdir);
    let image = layout.image.unwrap_or(Path::new("/"));
    let split = must_split(layout.image, image, &workdir)?;

    for name in entries(image)? {
        let Some(text) = name.to_str() else { continue };
        let wanted = match layout.image {
            None => HOST_TREES.contains(&text),
            Some(_) => !NEVER_FROM_IMAGE.contains(&text),
        };
        if wanted {
            plan.show(layout, &image.join(&name), Path::new(&name), &split)?;
        }
    }
    if layout.image.is_none() {
        plan.host_etc(layout, &split)?;
    } else {
        for (name, text) in [("hosts", hosts()), ("hostname", HOSTNAME.to_owned())] {
            if is_file(&image.join("etc").join(name)) {
                plan.files.insert(Path::new("..").join(name), text.into_bytes());
                plan.mount(Source::Box(name.into()), Path::new("etc").join(name), SHOWN);
            }
        }
        if layout.host_network && is_file(&image.join("etc/resolv.conf")) {
            plan.name_service(layout);
        }
    }
    for tree in layout.show {
        plan.show_at_its_place(layout, tree)?;
    }
    plan.own_directories(layout);
    plan.writable(layout, image, &workdir)?;
    plan.kernel_file_systems(layout);
    plan.lock_down(layout, &workdir);
    Ok(plan)
}

const HOSTNAME: &str = "sandbox\n";

fn hosts() -> String {
    "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n".to_owned()
}

fn relative(path: &Path) -> PathBuf {
    path.components().filter(|c| matches!(c, Component::Normal(_))).collect()
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.is_file())
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ErrorKind::ImagePull,
        io::ErrorKind::PermissionDenied => ErrorKind::Forbidden,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind).because(format!("cannot read {}", path.display())).caused_by(error)
}

fn entries(directory: &Path) -> Result<Vec<OsString>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(|e| unreadable(directory, e))? {
        names.push(entry.map_err(|e| unreadable(directory, e))?.file_name());
    }
    names.sort();
    Ok(names)
}

impl Plan {
    fn dir(&mut self, path: impl Into<PathBuf>) {
        self.dirs.entry(path.into()).or_insert(0o755);
    }

    fn mount(&mut self, source: Source, point: impl Into<PathBuf>, flags: Flags) {
        self.mounts.push(Mount { source, point: point.into(), flags });
    }

    /// Shows `from` at `to`, read-only.
    fn show(&mut self, layout: &Layout<'_>, from: &Path, to: &Path, split: &[PathBuf]) -> Result<(), Error> {
        let meta = fs::symlink_metadata(from).map_err(|e| unreadable(from, e))?;
        if meta.is_symlink() {
            let target = fs::read_link(from).map_err(|e| unreadable(from, e))?;
            self.links.insert(to.to_owned(), target);
        } else if meta.is_dir() && split.iter().any(|s| s == to) {
            self.dir(to);
            let names = entries(from)?;
            if names.len() > MAX_SPLIT {
                return Err(Error::new(ErrorKind::Unsupported).because(format!(
                    "the working directory is to be made in /{}, which the image has with more than {MAX_SPLIT} entries",
                    to.display()
                )));
            }
            for name in names {
                self.show(layout, &from.join(&name), &to.join(&name), split)?;
            }
        } else if meta.is_dir() {
            self.dir(to);
            self.bind(layout, from, to);
        } else if meta.is_file() {
            self.files.insert(to.to_owned(), Vec::new());
            self.bind(layout, from, to);
        }
        Ok(())
    }

    /// Binds a tree or file of the host read-only, and everything that is mounted below it.
    fn bind(&mut self, layout: &Layout<'_>, from: &Path, to: &Path) {
        self.host(layout, from, to, SHOWN);
        let mut below: Vec<_> = layout.mounts.iter().filter(|m| m.point != from && m.point.starts_with(from)).collect();
        below.sort_by(|a, b| a.point.cmp(&b.point));
        for mount in below {
            let Ok(rest) = mount.point.strip_prefix(from) else { continue };
            self.mount(Source::Again, to.join(rest), Flags { no_exec: mount.flags.no_exec, ..SHOWN });
        }
    }

    /// Binds something of the host, with the flags that the kernel would not let go of.
    fn host(&mut self, layout: &Layout<'_>, from: &Path, to: &Path, flags: Flags) {
        let covers = layout.mounts.iter().filter(|m| from.starts_with(&m.point));
        let kept = covers.max_by_key(|m| m.point.as_os_str().len()).map(|m| m.flags).unwrap_or_default();
        let flags =
            Flags { read_only: flags.read_only || kept.read_only, no_exec: flags.no_exec || kept.no_exec, ..flags };
        self.mount(Source::Host(from.to_owned()), to, flags);
    }

    /// One of the trees that the configuration adds.
    fn show_at_its_place(&mut self, layout: &Layout<'_>, tree: &Path) -> Result<(), Error> {
        let to = relative(tree);
        let taken = self.mounts.iter().any(|m| !m.point.as_os_str().is_empty() && to.starts_with(&m.point));
        let refuse =
            |rule: &str| Err(Error::new(ErrorKind::InvalidSpec).because(format!("show {}: {rule}", tree.display())));
        let real = match fs::symlink_metadata(tree) {
            Ok(real) => real,
            Err(e) => return refuse(&e.to_string()),
        };
        if taken || real.is_symlink() || layout.workdir.starts_with(tree) {
            return refuse(
                "it must be a real path outside of what the sandbox shows anyway and of its working directory",
            );
        }
        self.parents(&to);
        self.show(layout, tree, &to, &[])
    }

    fn parents(&mut self, path: &Path) {
        for parent in path.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()) {
            self.dir(parent);
        }
    }

    fn host_etc(&mut self, layout: &Layout<'_>, split: &[PathBuf]) -> Result<(), Error> {
        self.dir("etc");
        for name in HOST_ETC {
            let (from, to) = (Path::new("/etc").join(name), Path::new("etc").join(name));
            match fs::symlink_metadata(&from) {
                // What not everybody may read is bound, so that the kernel goes on deciding who may.
                Ok(meta) if meta.is_file() && meta.len() <= MAX_COPY && meta.mode() & 0o004 != 0 => {
                    // One that the caller cannot read is not there for what runs as the caller either.
                    if let Ok(contents) = fs::read(&from) {
                        self.files.insert(to, contents);
                    }
                }
                Ok(_) => self.show(layout, &from, &to, split)?,
                Err(_) => {}
            }
        }
        let (uid, gid) = (layout.uid, layout.gid);
        let home = layout.workdir.display();
        let passwd = format!("root:x:0:0:root:/:/bin/bash\nsandbox:x:{uid}:{gid}:sandbox:{home}:/bin/bash\n");
        self.files.insert("etc/passwd".into(), passwd.into_bytes());
        self.files.insert("etc/group".into(), format!("root:x:0:\nsandbox:x:{gid}:\n").into_bytes());
        self.files.insert("etc/hostname".into(), HOSTNAME.into());
        self.files.insert("etc/hosts".into(), Vec::new());
        self.files.insert("../hosts".into(), hosts().into_bytes());
        self.mount(Source::Box("hosts".into()), "etc/hosts", SHOWN);
        if layout.host_network {
            self.files.insert("etc/resolv.conf".into(), Vec::new());
            self.name_service(layout);
        }
        Ok(())
    }

    /// The host's name servers, read through whatever links lead there.
    fn name_service(&mut self, layout: &Layout<'_>) {
        if let Ok(real) = fs::canonicalize("/etc/resolv.conf") {
            self.host(layout, &real, Path::new("etc/resolv.conf"), SHOWN);
        }
    }

    fn own_directories(&mut self, layout: &Layout<'_>) {
        for name in ["dev", "dev/pts", "dev/shm", "home", "mnt", "proc", "root", "run", "sys", "tmp", OLD] {
            if !self.links.contains_key(Path::new(name)) {
                self.dir(name);
            }
        }
        self.dirs.insert("tmp".into(), 0o1777);
        for name in DEVICES {
            let (from, to) = (Path::new("/dev").join(name), Path::new("dev").join(name));
            if fs::symlink_metadata(&from).is_ok_and(|m| m.file_type().is_char_device()) {
                self.files.insert(to.clone(), Vec::new());
                self.host(layout, &from, &to, DEVICE);
            }
        }
        for (name, target) in [
            ("fd", "/proc/self/fd"),
            ("ptmx", "pts/ptmx"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ] {
            self.links.insert(Path::new("dev").join(name), target.into());
        }
    }

    fn kernel_file_systems(&mut self, layout: &Layout<'_>) {
        let closed = Flags { no_exec: true, ..OWN };
        let devpts = "newinstance,ptmxmode=0666,mode=0620";
        self.mount(Source::New("devpts", devpts), "dev/pts", Flags { no_dev: false, ..closed });
        self.mount(Source::New("tmpfs", "size=64m,mode=1777"), "dev/shm", OWN);
        self.mount(Source::New("proc", ""), "proc", closed);
        self.mount(Source::Box(Path::new(ROOT).join("proc/sys")), "proc/sys", Flags { read_only: true, ..closed });
        // What keys the caller's user has is nobody's business inside.
        for name in ["keys", "key-users"] {
            if Path::new("/proc").join(name).exists() {
                self.host(layout, Path::new("/dev/null"), &Path::new("proc").join(name), DEVICE);
            }
        }
    }

    /// Makes the root read-only except for the few places that a read-only root leaves writable.
    fn lock_down(&mut self, layout: &Layout<'_>, workdir: &Path) {
        if !layout.read_only {
            return;
        }
        for name in [workdir, Path::new("tmp"), Path::new("mnt")] {
            if !self.mounts.iter().any(|m| m.point == name) {
                self.mount(Source::Box(Path::new(ROOT).join(name)), name, OWN);
            }
        }
        for mount in &mut self.mounts {
            if mount.point == Path::new("var/tmp") && workdir != mount.point {
                mount.flags.read_only = true;
            }
        }
        self.mount(Source::Again, "", Flags { read_only: true, ..OWN });
    }
}

#[cfg(test)]
mod tests;
