//! What a shell finds around it: this machine's tools, or BusyBox's and nothing else.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{as_nobody, must_have};

/// A root with bash and BusyBox in it; `$2` is there as it is here. It goes with its standard input.
const ROOT: &str = r#"
mount -t tmpfs root "$1" && cd "$1" && mkdir bin usr || exit
for d in lib lib32 lib64 usr/lib usr/lib64 dev proc "${2#/}"; do
    if [[ -L /$d ]]; then cp -P "/$d" "$d"; elif [[ -d /$d ]]; then mkdir -p "$d" && mount --rbind "/$d" "$d"; fi || exit
done
cp /bin/bash bin/bash && cp "$3" bin/busybox || exit
for applet in $(bin/busybox --list); do [[ -e bin/$applet ]] || ln -s busybox "bin/$applet" || exit; done
ln -s bin sbin && ln -s ../bin usr/bin && ln -s ../bin usr/sbin && echo ready && exec chroot . /bin/cat
"#;

/// Where shells run; gone when it is dropped.
pub struct Userland {
    /// What starts a shell there.
    pub through: Vec<String>,
    holder: Option<(Child, tempfile::TempDir)>,
}

impl Userland {
    /// This machine's tools.
    pub fn usual() -> Self {
        Self { through: Vec::new(), holder: None }
    }

    /// Nothing but bash and BusyBox, with `shared` in its place; `None` where there is no BusyBox.
    pub fn busybox(shared: &Path) -> Option<Self> {
        let found = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| Path::new(p).exists());
        let busybox = must_have("busybox", found)?;
        let place = tempfile::tempdir().unwrap();
        // Only who is not root needs a user namespace; one for all shells, since they look at each other's processes.
        let root = !as_nobody().is_empty();
        let mut child = Command::new("unshare")
            .args(if root { &["--mount"][..] } else { &["--map-root-user", "--mount"][..] })
            .args(["bash", "-c", ROOT, "bash"])
            .args([place.path(), shared, Path::new(busybox)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n", "no root with BusyBox could be made");
        let pid = child.id().to_string();
        let mut through = ["nsenter", "--target", &pid, "--mount", "--root", "--wd"].map(str::to_owned).to_vec();
        if !root {
            through.extend(["--user", "--preserve-credentials"].map(str::to_owned));
        }
        through.push("--".to_owned());
        Some(Self { through, holder: Some((child, place)) })
    }
}

impl Drop for Userland {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.holder {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}
