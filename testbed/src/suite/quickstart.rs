//! The README's first command: as whoever runs this, as an ordinary user, where it is forbidden, and where nobody listens.

use std::path::Path;
use std::time::Duration;

use super::build;
use crate::error::{Error, Result};
use crate::metadata::{Metadata, cargo};
use crate::process::Task;
use crate::user::OrdinaryUser;

const LIMIT: Duration = Duration::from_secs(900);
/// A user namespace that allows no other below it, as some machines do for everybody.
const FORBIDDEN: &[&str] = &[
    "--user",
    "--map-current-user",
    "--keep-caps",
    "bash",
    "-c",
    "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\"",
];
const REASON: &str = "the sysctl user.max_user_namespaces is 0: set it higher";

/// Runs the quickstart in every way a reader may meet it. `None` while there is no such example.
pub(crate) fn quickstart() -> Result<Option<()>> {
    let metadata = Metadata::load(false)?;
    let Some(package) = metadata.example("quickstart") else {
        return Ok(None);
    };
    Task::new(cargo(), LIMIT).args(["run", "--quiet", "--example", "quickstart"]).named("quickstart").show()?.ok()?;
    let executable = build::example(&package.name, "quickstart")?;
    if rustix::process::geteuid().is_root() {
        let user = OrdinaryUser::new()?;
        let executable = user.lend(&executable)?;
        let as_user = |program: &Path| user.task(program, LIMIT);
        println!("--- and as an ordinary user");
        as_user(&executable).named("quickstart as an ordinary user").show()?.ok()?;
        forbidden(&as_user, &executable)?;
        unheard(&as_user, &executable)?;
        let left = user.leftovers(Duration::from_secs(10))?;
        if !left.is_empty() {
            return Err(Error::new(format!("the quickstart left processes behind:\n{}", left.join("\n"))));
        }
    } else {
        let as_is = |program: &Path| Task::new(program, LIMIT);
        forbidden(&as_is, &executable)?;
        unheard(&as_is, &executable)?;
    }
    Ok(Some(()))
}

/// Where the machine forbids it, it ends with code 1 and the exact reason, on one line.
fn forbidden(task: &dyn Fn(&Path) -> Task, executable: &Path) -> Result<()> {
    println!("--- and where user namespaces are forbidden");
    let run = task(Path::new("unshare")).args(FORBIDDEN).args([executable]).named("quickstart, forbidden").capture()?;
    print!("{}", run.stderr);
    let told = run.stderr.trim_end().ends_with(REASON) && run.stderr.lines().count() == 1 && run.stdout.is_empty();
    if run.ended.code() == Some(1) && told {
        return Ok(());
    }
    Err(Error::new(format!("{}; expected code 1 and one line that ends with \"{REASON}\"", run.ended)))
}

/// Where nobody reads what it prints, it still reaps: an error on its output is no reason to leave a sandbox behind.
fn unheard(task: &dyn Fn(&Path) -> Task, executable: &Path) -> Result<()> {
    println!("--- and where nobody reads what it prints");
    let script = "set -o pipefail; \"$0\" | true";
    let run = task(Path::new("bash")).args(["-c", script]).args([executable]).named("quickstart, unheard").capture()?;
    print!("{}", run.stderr);
    match run.ended.code() {
        Some(1) if run.stderr.contains("Broken pipe") => Ok(()),
        _ => Err(Error::new(format!("{}; expected code 1 and a word about its output", run.ended))),
    }
}
