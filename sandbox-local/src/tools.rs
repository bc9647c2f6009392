//! The host's programs that make and enter a sandbox, by absolute path.

use std::fs;
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
        Ok(Self {
            bash: need("bash", "bash")?,
            setsid: need("setsid", "util-linux")?,
            setpriv: need("setpriv", "util-linux")?,
            unshare: need("unshare", "util-linux")?,
            nsenter: need("nsenter", "util-linux")?,
            mount: need("mount", "mount or util-linux")?,
            umount: need("umount", "mount or util-linux")?,
            pivot_root: need("pivot_root", "util-linux")?,
            env: need("env", "coreutils")?,
            sleep: need("sleep", "coreutils")?,
            ip: find("ip"),
            hostname: find("hostname"),
        })
    }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let empty = tempfile::tempdir().unwrap();
        let error = Tools::find_in(&[empty.path().to_owned()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("bash is in none of /usr/bin, /bin"), "{error}");
    }
}
