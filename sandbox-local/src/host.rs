//! This machine as a place for sandboxes: what is known of it, and of whoever makes them. Everything of a host blocks, with deadlines.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::{getegid, geteuid};
use sandbox::{Error, ErrorKind};

use crate::argv::Kernel;
use crate::cgroup::Groups;
use crate::config::LocalConfig;
use crate::error::io_error;
use crate::ident;
use crate::probe;
use crate::record::Record;
use crate::spawn::Spawner;
use crate::store::Store;
use crate::tools::Tools;
use crate::users::{self, Claim};

/// This machine, and the sandboxes of one state directory.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) config: LocalConfig,
    pub(crate) tools: Tools,
    pub(crate) store: Store,
    pub(crate) groups: Option<Groups>,
    pub(crate) spawner: Spawner,
    uid: u32,
    gid: u32,
    /// The caller is the kernel's own user 0, and not only called so in a user namespace.
    is_root: bool,
}

impl Host {
    /// Looks at the machine and opens the state directory.
    pub(crate) fn new(config: LocalConfig) -> Result<Self, Error> {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let is_root = is_kernel_root(uid).map_err(|e| io_error("cannot see who the caller is", e))?;
        // Where no sandbox can be made at all, that comes before what would be wrong with the configuration.
        let first = |error| match probe::certain((!is_root).then_some((uid, gid))) {
            Some(cause) => cause.into_error(),
            None => error,
        };
        config.check(is_root)?;
        config.check_users(is_root).map_err(first)?;
        let own = fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse::<u32>().ok());
        if own != Some(std::process::id()) {
            return Err(Error::new(ErrorKind::Unavailable).because(
                "/proc does not show this process by its own number: it must be mounted for this pid namespace",
            ));
        }
        let tools = Tools::find()?;
        let store = Store::open(&config.state_dir, uid).map_err(first)?;
        let groups = Groups::find(&config.cgroup, is_root, &tools)?;
        Ok(Self { config, tools, store, groups, spawner: Spawner::new()?, uid, gid, is_root })
    }

    /// Who the host's programs run as for a trial: as root, the first user of the range.
    pub(crate) fn trial_kernel(&self) -> Kernel {
        match self.is_root {
            true => Kernel { uid: self.config.first_uid, gid: self.config.first_uid, switch: true },
            false => Kernel { uid: self.uid, gid: self.gid, switch: false },
        }
    }

    /// And for a sandbox that is being made: as root, a user of the range that nobody else has, spread by the nonce. The claim is to be held
    /// until the sandbox has processes.
    pub(crate) fn new_kernel(&self, nonce: &str) -> Result<(Kernel, Option<Claim>), Error> {
        if !self.is_root {
            return Ok((self.trial_kernel(), None));
        }
        let offset = nonce.get(..4).and_then(|n| u32::from_str_radix(n, 16).ok()).unwrap_or(0);
        let claim = users::claim(self.store.root(), self.config.first_uid, offset)?;
        Ok((Kernel { uid: claim.uid, gid: claim.uid, switch: true }, Some(claim)))
    }

    /// And for one that is there: the user that it was made with, whatever range this provider has.
    pub(crate) fn kernel_of(&self, record: &Record) -> Result<Kernel, Error> {
        let kernel = Kernel { uid: record.uid, gid: record.gid, switch: self.is_root };
        if kernel.switch && (kernel.uid == 0 || kernel.gid == 0) {
            return Err(Error::new(ErrorKind::Unavailable).because("its record says that it runs as kernel user 0"));
        }
        Ok(kernel)
    }
}

/// Whether `uid` is the user that the kernel's own files belong to, by whatever number it is known in this user namespace. All who are
/// not known there are shown by one number: then it is not.
fn is_kernel_root(uid: u32) -> std::io::Result<bool> {
    let owner = fs::metadata("/proc/sys/kernel/ostype")?.uid();
    Ok(owner == uid && ident::is_mapped(&fs::read_to_string("/proc/self/uid_map")?, uid, 1))
}
