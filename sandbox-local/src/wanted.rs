//! What a spec asks of this machine, looked at before anything is made.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use sandbox::{Error, ErrorKind, Networking, Spec};

use crate::argv::Kernel;
use crate::error::io_error;
use crate::fstab::{Plan, ROOT};
use crate::host::Host;
use crate::parse;
use crate::plan::{self, Layout};
use crate::spec::{image, inner_ids, path_of};
use crate::tools::Tools;

/// The longest path that the kernel takes, without the byte that ends it.
const MAX_PATH: usize = 4095;
/// The shell that everything inside goes through.
const SHELL: &str = "bin/bash";

/// What is to be made of a spec.
pub(crate) struct Wanted {
    pub(crate) plan: Plan,
    /// The user and group inside.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The root is not made of this machine's own programs.
    pub(crate) foreign: bool,
    pub(crate) own_network: bool,
}

impl Host {
    /// Looks whether a spec can be had here, and plans it. Makes nothing.
    pub(crate) fn wanted(&self, spec: &Spec) -> Result<Wanted, Error> {
        let (uid, gid) = inner_ids(&spec.hardening)?;
        let kernel = self.trial_kernel();
        let image = image(&spec.image)?;
        let programs = match &image {
            Some(directory) => {
                check_search(directory, kernel, &format!("image {}", spec.image))?;
                vec![shell_of(directory, &spec.image)?]
            }
            None => programs(&self.tools),
        };
        for tree in &self.config.show {
            check_search(tree, kernel, &format!("show {}", tree.display()))?;
        }
        let workdir = path_of(spec.workdir.as_bytes());
        let inside = workdir.strip_prefix("/").unwrap_or(workdir);
        let length = self.store.box_of(&spec.session, &"0".repeat(32)).join(ROOT).join(inside).as_os_str().len();
        if length > MAX_PATH {
            return Err(Error::new(ErrorKind::InvalidSpec).because(format!(
                "workdir of {} bytes: below the state directory {} that makes a path of {length}, and the kernel takes {MAX_PATH}",
                workdir.as_os_str().len(),
                self.config.state_dir.display()
            )));
        }
        let own_network = !matches!(spec.networking, Networking::Unrestricted);
        let mounts =
            fs::read("/proc/self/mountinfo").map_err(|e| io_error("cannot read the mounts of this process", e))?;
        let mounts = parse::mountinfo(&mounts)
            .ok_or_else(|| Error::new(ErrorKind::Unavailable).because("the mounts of this process are not legible"))?;
        let plan = plan::plan(&Layout {
            image: image.as_deref(),
            workdir,
            read_only: spec.hardening.read_only_root,
            host_network: !own_network,
            show: &self.config.show,
            mounts: &parse::visible(&mounts),
            uid,
            gid,
            programs: &programs,
        })?;
        Ok(Wanted { plan, uid, gid, foreign: image.is_some(), own_network })
    }
}

/// The programs that run in a root of this machine's own, links resolved and not.
fn programs(tools: &Tools) -> Vec<PathBuf> {
    let named = [&tools.bash, &tools.unshare, &tools.umount, &tools.env, &tools.sleep];
    named.into_iter().flat_map(|path| [Some(path.clone()), fs::canonicalize(path).ok()]).flatten().collect()
}

/// Who makes the sandboxes of root is nobody: what everybody else may not search is out of reach.
fn check_search(path: &Path, kernel: Kernel, what: &str) -> Result<(), Error> {
    if !kernel.switch {
        return Ok(());
    }
    for directory in path.ancestors() {
        let Ok(meta) = fs::metadata(directory) else { continue };
        let bits = match (meta.uid() == kernel.uid, meta.gid() == kernel.gid) {
            (true, _) => 0o100,
            (_, true) => 0o010,
            _ => 0o001,
        };
        if meta.is_dir() && meta.mode() & bits == 0 {
            return Err(Error::new(ErrorKind::Forbidden).because(format!(
                "{what}: users from first_uid on, as whom the sandboxes of root run, may not search {} (mode {:04o}): \
                 let others search it, or choose another place",
                directory.display(),
                meta.mode() & 0o7777
            )));
        }
    }
    Ok(())
}

/// Where the shell of an image is in it, links resolved as they are inside.
fn shell_of(directory: &Path, name: &str) -> Result<PathBuf, Error> {
    let failed = |e| io_error(format!("image {name}: cannot look for its /{SHELL}"), e);
    let root = File::open(directory).map_err(failed)?;
    let shell = match openat2(&root, SHELL, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT) {
        Ok(shell) => File::from(shell),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
            return Err(no_shell(name));
        }
        Err(e) => return Err(failed(e.into())),
    };
    let meta = shell.metadata().map_err(failed)?;
    if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
        let what = if meta.is_file() { "cannot be executed" } else { "is not a file" };
        return Err(Error::new(ErrorKind::ImagePull).because(format!("image {name}: its /{SHELL} {what}")));
    }
    let at = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&shell))).map_err(failed)?;
    Ok(at.strip_prefix(directory).map_or_else(|_| Path::new("/").join(SHELL), |inside| Path::new("/").join(inside)))
}

/// The error of an image without a shell.
pub(crate) fn no_shell(name: &str) -> Error {
    let rule = format!("image {name}: it has no program /{SHELL}, which everything inside goes through");
    Error::new(ErrorKind::ImagePull).because(rule)
}

/// The error of a foreign root whose shell was started and is none.
pub(crate) fn not_a_shell(image: &str, error: Error) -> Error {
    if !matches!(error.kind(), ErrorKind::Lost | ErrorKind::Protocol) {
        return error;
    }
    let said = error.reason().unwrap_or("it gave no answer").to_owned();
    Error::new(ErrorKind::ImagePull)
        .because(format!("image {image}: its /bin/bash does not work: {said}"))
        .caused_by(error)
}
