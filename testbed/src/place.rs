//! Names and folders: everything the bed makes says whose it is.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::error::{Context as _, Error, Result};

/// Where this checkout's beds live.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    prefix: String,
    state: PathBuf,
    cache: PathBuf,
}

impl Place {
    /// The place of this checkout. `TESTBED_PREFIX` gives another one, so that a test's beds never meet a person's.
    pub(crate) fn here() -> Result<Self> {
        let prefix = match std::env::var("TESTBED_PREFIX") {
            Ok(prefix) if is_name(&prefix, 6) => prefix,
            Ok(prefix) => {
                return Err(Error::new(format!("TESTBED_PREFIX={prefix}: want a-z0-9, at most 6, a letter first")));
            }
            Err(_) => format!("tb{}", &digest(checkout().as_os_str().as_encoded_bytes())[..4]),
        };
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_else(|| "/root".into());
        let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from);
        // Short, since sockets below it have at most 107 bytes of path; on a disk, since overlays need one.
        let state = Path::new("/var/tmp").join(&prefix);
        Ok(Self { prefix, state, cache: cache.join("testbed") })
    }

    /// What is slow to make and good for every checkout of this user.
    pub(crate) fn cache(&self) -> &Path {
        &self.cache
    }

    /// What the names of this checkout's beds begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The folder of one bed.
    pub(crate) fn bed(&self, name: &str) -> PathBuf {
        self.state.join(name)
    }

    /// A bed's name for the machine: interfaces, cgroups, node names.
    pub(crate) fn machine_name(&self, bed: &str) -> String {
        format!("{}-{bed}", self.prefix)
    }

    /// The names of the beds that were made and not taken down.
    pub(crate) fn beds(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.state) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.doing(|| format!("list {}", self.state.display()))?,
        };
        let mut names: Vec<_> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        Ok(names)
    }
}

/// Refuses a bed's name that would not fit into an interface name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if is_name(name, 8) {
        return Ok(());
    }
    Err(Error::new(format!("{name:?} cannot name a bed: want a-z0-9, at most 8, a letter first")))
}

fn is_name(text: &str, longest: usize) -> bool {
    text.len() <= longest
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

/// The folder of the workspace that this tool was built in.
pub(crate) fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in a workspace")
}

/// SHA-256 in hex.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes a folder and its parents.
pub(crate) fn make_dir(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    fs::create_dir_all(path).doing(|| format!("make {}", path.display()))
}

/// Writes a whole file.
pub(crate) fn write(path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> Result<()> {
    let path = path.as_ref();
    fs::write(path, text).doing(|| format!("write {}", path.display()))
}

/// Holds an exclusive lock on a file beside `path` until dropped, so that two tools do not make the same thing at once.
pub(crate) fn lock(path: &Path) -> Result<fs::File> {
    let file = fs::File::options().create(true).append(true).open(path).doing(|| format!("open {}", path.display()))?;
    file.lock().doing(|| format!("lock {}", path.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, good) in [
            ("k8s", true),
            ("a", true),
            ("abcdefgh", true),
            ("abcdefghi", false),
            ("", false),
            ("8k", false),
            ("a-b", false),
            ("A", false),
            ("..", false),
        ] {
            assert_eq!(check_name(name).is_ok(), good, "{name:?}");
        }
    }

    #[test]
    fn a_machine_name_fits_an_interface() {
        let place = Place { prefix: "tb0123".into(), state: "/x".into(), cache: "/y".into() };
        assert!(place.machine_name("abcdefgh").len() <= 15);
    }

    #[test]
    fn digests_are_hex() {
        assert_eq!(&digest(b"")[..8], "e3b0c442");
    }
}
