//! Where the working directory goes, and where it cannot.

use std::fs;
use std::path::{Path, PathBuf};

use sandbox::{Error, ErrorKind};

use super::{HOST_ETC, HOST_TREES, Layout, OLD, OWN};
use crate::fstab::{Plan, Source};

/// The longest name that a file system takes.
const MAX_NAME: usize = 255;

fn refuse<T>(workdir: &Path, rule: String) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidSpec).because(format!("workdir \"/{}\": {rule}", workdir.display())))
}

/// The directories of the image that cannot be shown whole, since the working directory lies below them and they lack it.
pub(super) fn must_split(own_image: Option<&Path>, image: &Path, workdir: &Path) -> Result<Vec<PathBuf>, Error> {
    let no = |at: &Path, what: &str| refuse(workdir, format!("/{} is {what} in the image", at.display()));
    let mut names = workdir.components().map(|c| c.as_os_str().to_string_lossy().into_owned());
    let (first, second) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
    let shown = HOST_TREES.contains(&first.as_str()) || first == "etc" && HOST_ETC.contains(&second.as_str());
    if own_image.is_none() && !shown {
        return Ok(Vec::new());
    }
    let mut split = Vec::new();
    let mut at = PathBuf::new();
    for component in workdir.components() {
        at.push(component);
        match fs::symlink_metadata(image.join(&at)) {
            Ok(m) if m.is_dir() => {
                if at != workdir {
                    split.push(at.clone());
                }
            }
            Ok(m) if m.is_symlink() => return no(&at, "a link"),
            Ok(_) => return no(&at, "not a directory"),
            Err(_) => return Ok(split),
        }
    }
    // It is there: something writable is mounted over it.
    Ok(Vec::new())
}

impl Plan {
    /// Refuses a working directory that cannot be made, or that would take away what the sandbox stands on.
    fn check_workdir(&self, layout: &Layout<'_>, workdir: &Path) -> Result<(), Error> {
        if let Some(long) = workdir.components().find(|c| c.as_os_str().len() > MAX_NAME) {
            let length = long.as_os_str().len();
            return refuse(
                workdir,
                format!("it has a component of {length} bytes, and no name may have more than {MAX_NAME}"),
            );
        }
        if workdir.starts_with(OLD) {
            return refuse(workdir, format!("/{OLD} is needed for making the sandbox"));
        }
        if let Some((link, target)) = self.links.iter().find(|(link, _)| workdir.starts_with(link)) {
            return refuse(workdir, format!("/{} is a link to {} in the sandbox", link.display(), target.display()));
        }
        if let Some((file, _)) = self.files.iter().find(|(file, _)| workdir.starts_with(file)) {
            return refuse(workdir, format!("/{} is a file in the sandbox", file.display()));
        }
        let over = Path::new("/").join(workdir);
        match layout.programs.iter().find(|program| program.starts_with(&over)) {
            Some(program) => refuse(workdir, format!("it would hide {}, which the sandbox needs", program.display())),
            None => Ok(()),
        }
    }

    /// The working directory and /var/tmp.
    pub(super) fn writable(&mut self, layout: &Layout<'_>, image: &Path, workdir: &Path) -> Result<(), Error> {
        self.check_workdir(layout, workdir)?;
        if self.mounts.iter().any(|m| m.point == workdir) {
            // What is shown at just that place gives way, with all that is mounted in it.
            self.mounts.retain(|m| !m.point.starts_with(workdir));
        }
        if self.mounts.iter().any(|m| !m.point.as_os_str().is_empty() && workdir.starts_with(&m.point)) {
            // Shown from the image, which has it: something of our own goes over it.
            self.dirs.insert("../rw".into(), 0o755);
            self.dirs.insert("../rw/workdir".into(), 0o755);
            self.mount(Source::Box("rw/workdir".into()), workdir, OWN);
        } else {
            self.parents(workdir);
            self.dir(workdir);
        }
        let var_tmp = Path::new("var/tmp");
        if layout.image.is_none() {
            self.dir("var");
            self.dirs.insert(var_tmp.to_owned(), 0o1777);
        } else if fs::symlink_metadata(image.join(var_tmp)).is_ok_and(|m| m.is_dir())
            && self.mounts.iter().any(|m| m.point == Path::new("var"))
        {
            self.dirs.insert("../rw".into(), 0o755);
            self.dirs.insert("../rw/var-tmp".into(), 0o1777);
            self.mount(Source::Box("rw/var-tmp".into()), var_tmp, OWN);
        }
        Ok(())
    }
}
