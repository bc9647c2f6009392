//! A systemd host as a virtual machine: own kernel, cgroup v2 with every controller, every capability. No hardware help
//! is needed, and everything takes ten times as long as in namespaces.

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Debian, rootfs};
use crate::beds::{Bed, Kind, State};
use crate::error::{Context as _, Error, Result};
use crate::place::{Place, digest, lock, make_dir};
use crate::process::{Task, in_path};
use crate::process_id::wait_for;
use crate::{diagnosis, images, packages};

const IMAGE_SCRIPT: &str = include_str!("../../scripts/vm-image.sh");
const BOOT_SCRIPT: &str = include_str!("../../scripts/vm-boot.sh");
/// What a virtual machine has besides what every host has.
const MACHINE: &str = "linux-image-cloud-amd64,initramfs-tools,zstd,openssh-server";
const QEMU: &str = "qemu";

/// A virtual machine that was started.
#[derive(Debug, Clone)]
pub(crate) struct Vm {
    pub(crate) bed: Bed,
    key: PathBuf,
}

/// What a machine boots from.
#[derive(Debug, Clone)]
struct Disks {
    dir: PathBuf,
    /// A root file system with qemu, unless this machine has one.
    qemu: Option<PathBuf>,
}

/// Makes what is slow: qemu, root file systems, disks.
pub(crate) fn prepare(place: &Place, debian: Debian) -> Result<()> {
    disks(place, debian).map(drop)
}

fn key(place: &Place) -> PathBuf {
    place.cache().join("vm-key")
}

fn disks(place: &Place, debian: Debian) -> Result<Disks> {
    packages::ensure(packages::FOR_VM)?;
    let suite = debian.suite();
    let rootfs = rootfs::ensure(place, suite)?;
    let recipe = digest([IMAGE_SCRIPT, MACHINE, rootfs::NODE, rootfs::HOST].concat().as_bytes());
    let dir = place.cache().join(format!("vm-{suite}-{}", &recipe[..8]));
    let _lock = lock(&place.cache().join("vm.lock"))?;
    if !key(place).exists() {
        Task::new("ssh-keygen", Duration::from_secs(30))
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .args([key(place)])
            .stdout()?;
    }
    let qemu = qemu(place)?;
    if !dir.exists() {
        println!("making the disks of a virtual machine of {suite}");
        let new = dir.with_extension("new");
        let packages = [rootfs::NODE, rootfs::HOST, MACHINE].join(",");
        Task::new("bash", Duration::from_secs(1800))
            .args(["-c", IMAGE_SCRIPT, "vm-image.sh", suite, &packages])
            .args([&key(place).with_extension("pub"), &new, &rootfs.node, &rootfs.image])
            .named("vm-image.sh")
            .stdout()?;
        fs::rename(&new, &dir).doing(|| format!("name {}", dir.display()))?;
    }
    Ok(Disks { dir, qemu })
}

/// This machine's qemu, else one in a root file system of its own: the package gets in the way of others.
fn qemu(place: &Place) -> Result<Option<PathBuf>> {
    if in_path("qemu-system-x86_64") {
        return Ok(None);
    }
    let dir = place.cache().join("qemu-bookworm");
    if !dir.exists() {
        println!("making a root file system with qemu");
        let (tar, new) = (dir.with_extension("tar"), dir.with_extension("new"));
        images::debootstrap("bookworm", "qemu-system-x86,seabios", &tar)?;
        rootfs::unpack(&tar, &new)?;
        fs::remove_file(&tar).doing(|| format!("remove {}", tar.display()))?;
        fs::rename(&new, &dir).doing(|| format!("name {}", dir.display()))?;
    }
    make_dir(dir.join("images"))?;
    Ok(Some(dir))
}

impl Vm {
    /// Boots a machine and waits until systemd is done.
    pub(crate) fn up(place: &Place, name: &str, debian: Debian) -> Result<Self> {
        let disks = disks(place, debian)?;
        // A port that is free now; should somebody take it before qemu does, qemu says so and ends.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.doing(|| "find a free port".to_owned())?.port();
        let state = State { kind: Kind::Vm, version: debian.suite().to_owned(), net: None, port: Some(port) };
        let vm = Self { bed: Bed::create(place, name, state)?, key: key(place) };
        let mut argv: Vec<_> =
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", BOOT_SCRIPT, "vm-boot.sh"]
                .map(str::to_owned)
                .into();
        argv.push(disks.qemu.map_or_else(|| "-".to_owned(), |path| path.display().to_string()));
        argv.extend([disks.dir.display().to_string(), port.to_string()]);
        vm.bed.start(QEMU, &argv)?;
        let booted = wait_for("systemd", Duration::from_secs(300), || {
            if vm.bed.process(QEMU).is_none() {
                return Err(Error::new("the virtual machine died"));
            }
            let state =
                vm.task(&["systemctl", "is-system-running", "--wait"], Duration::from_secs(120))?.capture()?.stdout;
            Ok(matches!(state.trim(), "running" | "degraded"))
        });
        booted.map_err(|error| Error::new(format!("{error}\n{}", diagnosis::of(&vm.bed.log(QEMU)))))?;
        Ok(vm)
    }

    /// A machine that was made before.
    pub(crate) fn open(place: &Place, name: &str) -> Result<Self> {
        let bed = Bed::open(place, name)?;
        if bed.state.kind != Kind::Vm {
            return Err(Error::new(format!("{name} is not a virtual machine")));
        }
        Ok(Self { bed, key: key(place) })
    }

    fn argv<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Vec<OsString> {
        let port = self.bed.state.port.unwrap_or_default().to_string();
        let mut argv: Vec<_> = ["ssh", "-q", "-p", &port, "-i"].map(OsString::from).into();
        argv.push(self.key.clone().into_os_string());
        for option in [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "ConnectTimeout=5",
            "LogLevel=ERROR",
            "BatchMode=yes",
        ] {
            argv.extend(["-o", option].map(OsString::from));
        }
        argv.extend(["root@127.0.0.1", "--"].map(OsString::from));
        // ssh joins its words and gives them to a shell: quoted, they stay what they are.
        argv.extend(words.into_iter().map(|word| quote(&word.as_ref().to_string_lossy()).into()));
        argv
    }

    /// A program inside, for a person: stdin and the terminal are passed on.
    pub(crate) fn command(&self, words: &[OsString]) -> Command {
        let argv = self.argv(words);
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]);
        command
    }

    /// A program inside, for us.
    pub(crate) fn task(&self, words: &[&str], limit: Duration) -> Result<Task> {
        let argv = self.argv(words);
        Ok(Task::new(&argv[0], limit).args(&argv[1..]).named(format!("{} in {}", words[0], self.bed.name)))
    }

    /// Copies a program into the machine.
    pub(crate) fn put(&self, source: &Path, target: &str) -> Result<()> {
        let file = fs::File::open(source).doing(|| format!("open {}", source.display()))?;
        let script = format!("cat > {0} && chmod +x {0}", quote(target));
        let status = self.command(&["sh", "-c", &script].map(OsString::from)).stdin(file).status();
        let status = status.doing(|| "run ssh".to_owned())?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::new(format!("could not copy {}: {status}", source.display())))
        }
    }
}

/// A word as a shell reads it back.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_come_back_whole() {
        for word in ["", "a b", "it's", "$HOME", "a\nb", "*"] {
            let script = format!("printf %s {}", quote(word));
            let got = Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
            assert_eq!(String::from_utf8(got).unwrap(), word);
        }
    }
}
