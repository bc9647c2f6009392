//! Every test of the workspace, built once: as whoever runs this, and as root once more as an ordinary user.

mod beds;
mod build;
mod quickstart;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;

use self::beds::{Beds, InHost};
use self::build::{Built, TestBinary};
use crate::error::{Context as _, Result};
use crate::metadata::{Metadata, cargo};
use crate::packages;
use crate::process::{Stream, Task};
use crate::tally::{Counts, Tally};
use crate::user::OrdinaryUser;

pub(crate) use self::quickstart::quickstart;

/// The packages whose behaviour depends on who runs them.
const ALSO_AS_USER: &[&str] = &[
    "sandbox",
    "sandbox-guest",
    "sandbox-local",
    "sandbox-transfer",
    "conformance",
    "custom-backend",
    "custom-carrier",
    "custom-provider",
    "examples",
    "isolation",
];
/// Tests whose tenants have nothing around them but the rights of whoever runs them: never as root. None where the
/// whole package is meant.
const NEVER_AS_ROOT: &[(&str, Option<&str>)] = &[
    ("custom-carrier", None),
    ("custom-provider", None),
    ("conformance", Some("faulty")),
    ("conformance", Some("honest")),
    ("conformance", Some("mutants")),
];
/// Tests of the suite itself, in one process and on nothing of this machine: once is enough.
const SAME_FOR_ALL: &[(&str, &str)] = &[
    ("conformance", "isolation_mutants"),
    ("conformance", "rules"),
    ("conformance", "tables"),
    ("conformance", "diff"),
];
/// How long one test binary may run.
const BINARY_LIMIT: Duration = Duration::from_secs(20 * 60);

/// Which tests to run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only the tests of these packages (may be given several times).
    #[arg(long, short)]
    package: Vec<String>,
    /// Leave out the doc tests.
    #[arg(long)]
    no_doc: bool,
    /// Go on although Debian packages are missing.
    #[arg(long)]
    missing_ok: bool,
    /// Leave out everything that needs a cluster or a systemd host, and the tests of the bed itself.
    #[arg(long)]
    no_beds: bool,
    /// Passed on to every test binary, e.g. a filter.
    #[arg(last = true)]
    args: Vec<String>,
}

/// Runs the tests and adds their results to `tally`. An error means that they could not even start.
pub(crate) fn run(options: &Options, tally: &mut Tally) -> Result<()> {
    let started = Instant::now();
    match packages::ensure(packages::FOR_TESTS) {
        Err(error) if options.missing_ok => eprintln!("going on although {error}"),
        Err(error) => {
            eprintln!("{error}");
            tally.push("packages", Counts { failed: 1, ..Counts::default() }, started);
            return Ok(());
        }
        Ok(()) => tally.push("packages", Counts::default(), started),
    }

    let started = Instant::now();
    let metadata = Metadata::load(false)?;
    let built = match build::build(&metadata, &options.package) {
        Ok(built) => built,
        Err(error) => {
            eprintln!("{error}");
            tally.push("build", Counts { failed: 1, ..Counts::default() }, started);
            return Ok(());
        }
    };
    tally.push("build", Counts::default(), started);

    let root = rustix::process::geteuid().is_root();
    let who = if root { "root" } else { "user" };
    let whole = options.package.is_empty();
    let mut beds = if root && !options.no_beds { Some(Beds::new(whole, &built)?) } else { None };
    if let Some(beds) = &mut beds {
        beds.up(tally)?;
    }
    for binary in built.tests.iter().filter(|binary| !(root && never_as_root(binary))) {
        let mut task = as_is(binary, &built);
        for (key, value) in beds.iter().flat_map(Beds::env) {
            task = task.env(key, value);
        }
        one(&format!("{} as {who}", binary.title()), task, &options.args, tally)?;
        if waits_long(binary, root) {
            let task = as_is(binary, &built).env("CONFORMANCE_SLOW", "only");
            one(&format!("{} as {who}, what waits long or races", binary.title()), task, &options.args, tally)?;
        }
    }
    if !options.no_doc {
        doc_tests(options, tally)?;
    }
    if let Some(beds) = beds.take() {
        beds.quickstart(tally)?;
        let in_host = |host: &InHost<'_>, tally: &mut Tally| {
            for binary in built.tests.iter().filter(|binary| beds::IN_HOST.contains(&binary.package.as_str())) {
                let title = format!("{} in {}", binary.title(), host.name());
                one(&title, host.task(binary, BINARY_LIMIT)?, &options.args, tally)?;
            }
            Ok(())
        };
        beds.finish(in_host, tally)?;
    }
    if root {
        as_ordinary_user(&metadata, &built, &options.args, tally)?;
    } else {
        println!(
            "\nNot run: what needs root (a cluster, systemd hosts, the tests as root). `sudo` this command to run all."
        );
    }
    Ok(())
}

fn never_as_root(binary: &TestBinary) -> bool {
    NEVER_AS_ROOT.iter().any(|(package, target)| match target {
        Some(target) => binary.is(package, target),
        None => binary.package == *package,
    })
}

/// Runs one test binary; its last result line counts.
fn one(title: &str, task: Task, args: &[String], tally: &mut Tally) -> Result<()> {
    println!("\n==> {title}");
    let started = Instant::now();
    let mut counts = None;
    let ended = task.args(args).lines(|stream, line| {
        pass_on(stream, line);
        counts = Counts::from_result_line(line).or(counts);
        if let Some(test) = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED")) {
            tally.failure(&format!("{title}: {test}"));
        }
    })?;
    if !ended.success() {
        println!("==> {title}: {ended}");
        tally.failure(&format!("{title}: {ended}"));
    }
    let counts = counts.unwrap_or_else(|| {
        println!("==> {title}: ended without a result line, which counts as one failure");
        Counts { failed: 1, ..Counts::default() }
    });
    tally.push(title, counts.with_verdict(ended.success()), started);
    Ok(())
}

fn as_is(binary: &TestBinary, built: &Built) -> Task {
    let task = Task::new(&binary.executable, BINARY_LIMIT).current_dir(&binary.dir);
    in_context(task, binary, built, &binary.dir, Path::to_path_buf)
}

/// Whether a suite has a run of its own for what waits long and for twenty rounds of what races, which is counted apart: eight minutes, and
/// once is enough.
fn waits_long(binary: &TestBinary, root: bool) -> bool {
    root && binary.is("conformance", "local")
}

/// What cargo would set for a test binary, and what must be there for it not to skip.
fn in_context(
    mut task: Task,
    binary: &TestBinary,
    built: &Built,
    dir: &Path,
    place: impl Fn(&Path) -> std::path::PathBuf,
) -> Task {
    for (name, executable) in &built.programs {
        task = task.env(format!("CARGO_BIN_EXE_{name}"), place(executable));
    }
    task.env("CARGO_MANIFEST_DIR", dir)
        .env("CARGO_PKG_NAME", &binary.package)
        .env("CONFORMANCE_REQUIRE", "local")
        .named(binary.title())
}

fn doc_tests(options: &Options, tally: &mut Tally) -> Result<()> {
    println!("\n==> doc tests");
    let started = Instant::now();
    let mut task = Task::new(cargo(), BINARY_LIMIT).args(["test", "--doc", "--no-fail-fast"]).named("cargo test --doc");
    task = if options.package.is_empty() {
        task.args(["--workspace"])
    } else {
        task.args(options.package.iter().flat_map(|name| ["--package", name]))
    };
    let mut counts = Counts::default();
    // One result line per crate, so here they add up.
    let ended = task.lines(|stream, line| {
        pass_on(stream, line);
        counts.add(Counts::from_result_line(line).unwrap_or_default());
    })?;
    tally.push("doc tests", counts.with_verdict(ended.success()), started);
    Ok(())
}

fn as_ordinary_user(metadata: &Metadata, built: &Built, args: &[String], tally: &mut Tally) -> Result<()> {
    let user = OrdinaryUser::new()?;
    println!("\n==> once more as an ordinary user (uid {})", user.uid());
    let lent = |path: &Path| user.path().join("bin").join(path.file_name().unwrap_or_default());
    for executable in built.programs.values() {
        user.lend(executable)?;
    }
    if let Some(binary) = built.tests.iter().find(|binary| binary.package == "examples") {
        lend_examples(&user, binary)?;
    }
    let chosen = |binary: &&TestBinary| {
        ALSO_AS_USER.contains(&binary.package.as_str())
            && !SAME_FOR_ALL.iter().any(|(package, target)| binary.is(package, target))
    };
    for binary in built.tests.iter().filter(chosen) {
        let executable = user.lend(&binary.executable)?;
        // Golden files and the like: the clone itself may lie where only root can read.
        let sources = user.path().join("src").join(&binary.package);
        if !sources.exists() {
            build::copy_sources(&binary.dir, &sources, metadata)?;
        }
        let task = user.task(&executable, BINARY_LIMIT).current_dir(&sources);
        let task = in_context(task, binary, built, &sources, lent);
        one(&format!("{} as an ordinary user", binary.title()), task, args, tally)?;
    }
    let started = Instant::now();
    let left = user.leftovers(Duration::from_secs(10))?;
    for process in &left {
        let text = format!("left behind by the tests of the ordinary user: {process}");
        println!("{text}");
        tally.failure(&text);
    }
    let counts =
        Counts { passed: u64::from(left.is_empty()), failed: u64::from(!left.is_empty()), ..Counts::default() };
    tally.push("no process of the ordinary user is left", counts, started);
    Ok(())
}

/// Puts the built examples where a lent test looks for them: beside its folder, as in cargo's own.
fn lend_examples(user: &OrdinaryUser, binary: &TestBinary) -> Result<()> {
    let Some(built) = binary.executable.parent().and_then(Path::parent) else { return Ok(()) };
    let (from, to) = (built.join("examples"), user.path().join("examples"));
    let copy = || -> std::io::Result<()> {
        std::fs::create_dir_all(&to)?;
        for entry in std::fs::read_dir(&from)?.flatten() {
            // The others are the same under cargo's own names.
            let name = entry.file_name();
            if name.to_string_lossy().chars().all(|c| c.is_ascii_lowercase() || c == '_') {
                std::fs::copy(entry.path(), to.join(name))?;
            }
        }
        Ok(())
    };
    copy().doing(|| format!("copy the examples from {}", from.display()))
}

fn pass_on(stream: Stream, line: &str) {
    match stream {
        Stream::Out => println!("{line}"),
        Stream::Err => eprintln!("{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_that_are_named_here_exist() {
        let metadata = Metadata::load(true).unwrap();
        let exists = |package: &str, target: Option<&str>| {
            let package = metadata.members().find(|member| member.name == package).unwrap();
            target
                .is_none_or(|target| package.targets.iter().any(|found| found.name == target && found.kind == ["test"]))
        };
        for (package, target) in NEVER_AS_ROOT {
            assert!(exists(package, *target), "{package} {target:?}");
            assert!(ALSO_AS_USER.contains(package), "{package} would never run where root runs the tests");
        }
        for (package, target) in SAME_FOR_ALL {
            assert!(exists(package, Some(target)), "{package} {target}");
        }
    }
}
