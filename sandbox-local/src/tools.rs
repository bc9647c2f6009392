//! The host's programs that make and enter a sandbox, by absolute path.

use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use sandbox::{Error, ErrorKind};

/// Where programs are looked for: never in the caller's PATH.
const DIRECTORIES: &[&str] = &["/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// The programs, each found once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tools {
    pub(crate) bash: PathBuf,
    pub(crate) setsid: PathBuf,
    pub(crate) setpriv: PathBuf,
    pub(crate) unshare: PathBuf,
    pub(crate) nsenter: PathBuf,
    pub(crate) mount: PathBuf,
    pub(crate) umount: PathBuf,
    pub(crate) pivot_root: PathBuf,
    pub(crate) env: PathBuf,
    pub(crate) sleep: PathBuf,
    /// Without it the loopback interface of a sandbox that has a network of its own stays down.
    pub(crate) ip: Option<PathBuf>,
    /// Without it a sandbox sees the host's name.
    pub(crate) hostname: Option<PathBuf>,
    /// The loader that `umount` asks for; `None` if it is static.
    pub(crate) loader: Option<PathBuf>,
}

impl Tools {
    /// Finds them.
    pub(crate) fn find() -> Result<Self, Error> {
        Self::find_in(&DIRECTORIES.iter().map(PathBuf::from).collect::<Vec<_>>())
    }

    fn find_in(directories: &[PathBuf]) -> Result<Self, Error> {
        let find = |name: &str| directories.iter().map(|d| d.join(name)).find(|p| is_program(p));
        let need = |name: &str, package: &str| {
            find(name).ok_or_else(|| {
                Error::new(ErrorKind::Unavailable)
                    .because(format!("{name} is in none of {}: install the package {package}", DIRECTORIES.join(", ")))
            })
        };
        let umount = need("umount", "mount or util-linux")?;
        Ok(Self {
            bash: need("bash", "bash")?,
            setsid: need("setsid", "util-linux")?,
            setpriv: need("setpriv", "util-linux")?,
            unshare: need("unshare", "util-linux")?,
            nsenter: need("nsenter", "util-linux")?,
            mount: need("mount", "mount or util-linux")?,
            pivot_root: need("pivot_root", "util-linux")?,
            env: need("env", "coreutils")?,
            sleep: need("sleep", "coreutils")?,
            ip: find("ip"),
            hostname: find("hostname"),
            loader: interpreter_of(&umount),
            umount,
        })
    }

    /// The directories that the loader finds libraries in, as seen below `root`.
    pub(crate) fn library_path(&self, root: &str) -> String {
        let mut directories: Vec<PathBuf> = Vec::new();
        let real = self.loader.as_deref().and_then(|l| fs::canonicalize(l).ok());
        let near = real.as_deref().and_then(Path::parent).map(Path::to_owned);
        for directory in near.into_iter().chain(["/usr/lib64", "/lib64", "/usr/lib", "/lib"].map(PathBuf::from)) {
            if directory.is_dir() && !directories.contains(&directory) {
                directories.push(directory);
            }
        }
        let below = directories.iter().map(|d| format!("{root}{}", d.display()));
        below.collect::<Vec<_>>().join(":")
    }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// The loader that an ELF program asks for; `None` if it asks for none or is not ELF.
fn interpreter_of(program: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    fs::File::open(program).ok()?.take(64 * 1024).read_to_end(&mut head).ok()?;
    interpreter(&head)
}

/// As [`interpreter_of`], from the first bytes of the file. Programs of the other byte order do not run here.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    const PT_INTERP: u64 = 3;
    let wide = match head.get(..5)? {
        [0x7f, b'E', b'L', b'F', 1] => false,
        [0x7f, b'E', b'L', b'F', 2] => true,
        _ => return None,
    };
    let number = |at: usize, len: usize| -> Option<u64> {
        let bytes = head.get(at..at.checked_add(len)?)?;
        Some(match len {
            2 => u64::from(u16::from_ne_bytes(bytes.try_into().ok()?)),
            4 => u64::from(u32::from_ne_bytes(bytes.try_into().ok()?)),
            _ => u64::from_ne_bytes(bytes.try_into().ok()?),
        })
    };
    let (table, entry_size, entries) = if wide {
        (number(32, 8)?, number(54, 2)?, number(56, 2)?)
    } else {
        (number(28, 4)?, number(42, 2)?, number(44, 2)?)
    };
    (0..entries).find_map(|i| {
        let at = usize::try_from(table.checked_add(i * entry_size)?).ok()?;
        if number(at, 4)? != PT_INTERP {
            return None;
        }
        let (offset, size) =
            if wide { (number(at + 8, 8)?, number(at + 32, 8)?) } else { (number(at + 4, 4)?, number(at + 16, 4)?) };
        let (offset, size) = (usize::try_from(offset).ok()?, usize::try_from(size).ok()?);
        let path = head.get(offset..offset.checked_add(size)?)?.strip_suffix(&[0])?;
        path.starts_with(b"/").then(|| PathBuf::from(std::ffi::OsStr::from_bytes(path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_of_a_program_of_this_machine() {
        let loader = interpreter_of(Path::new("/bin/sh")).unwrap();
        assert!(loader.is_absolute() && loader.exists(), "{loader:?}");
        assert_eq!(interpreter_of(Path::new("/etc/passwd")), None);
        assert_eq!(interpreter_of(Path::new("/absent")), None);
    }

    #[test]
    fn a_broken_head_names_no_loader() {
        let mut head = std::fs::read("/bin/sh").unwrap();
        head.truncate(4096);
        assert!(interpreter(&head).is_some());
        for len in 0..300 {
            let _ = interpreter(&head[..len]);
        }
        for at in 0..128 {
            let mut bent = head.clone();
            bent[at] = 0xff;
            let _ = interpreter(&bent);
        }
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let empty = tempfile::tempdir().unwrap();
        let error = Tools::find_in(&[empty.path().to_owned()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("umount is in none of /usr/bin, /bin"), "{error}");
    }
}
