//! Builds all tests once and finds what came out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::error::{Context as _, Error, Result};
use crate::metadata::{Metadata, Target, cargo};
use crate::process::{Stream, Task};

const LIMIT: Duration = Duration::from_secs(45 * 60);

/// What `cargo test --no-run` made.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) tests: Vec<TestBinary>,
    /// Ordinary binaries by name, which integration tests may want to start.
    pub(crate) programs: BTreeMap<String, PathBuf>,
}

/// One test executable.
#[derive(Debug)]
pub(crate) struct TestBinary {
    pub(crate) package: String,
    target: String,
    kind: String,
    pub(crate) executable: PathBuf,
    pub(crate) dir: PathBuf,
}

impl TestBinary {
    pub(crate) fn is(&self, package: &str, target: &str) -> bool {
        self.package == package && self.target == target
    }

    /// A name for people: `sandbox (lib)`, `conformance local (test)`.
    pub(crate) fn title(&self) -> String {
        let Self { package, target, kind, .. } = self;
        if *target == package.replace('-', "_") || target == package {
            format!("{package} ({kind})")
        } else {
            format!("{package} {target} ({kind})")
        }
    }
}

#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    package_id: Option<String>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
    message: Option<Diagnostic>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Debug, Deserialize)]
struct Diagnostic {
    rendered: Option<String>,
}

/// Builds the tests of the named packages, or of all.
pub(crate) fn build(metadata: &Metadata, packages: &[String]) -> Result<Built> {
    let mut args = vec!["test", "--no-run"];
    if packages.is_empty() {
        args.push("--workspace");
    }
    args.extend(packages.iter().flat_map(|name| ["--package", name.as_str()]));
    let mut built = Built { tests: Vec::new(), programs: BTreeMap::new() };
    for message in compile(&args)? {
        let (Some(id), Some(target), Some(profile), Some(executable)) =
            (message.package_id, message.target, message.profile, message.executable)
        else {
            continue;
        };
        let Some(package) = metadata.members().find(|package| package.id == id) else {
            continue;
        };
        let kind = target.kind.first().cloned().unwrap_or_default();
        if profile.test {
            let dir = package.dir().to_owned();
            built.tests.push(TestBinary { package: package.name.clone(), target: target.name, kind, executable, dir });
        } else if kind == "bin" {
            built.programs.insert(target.name, executable);
        }
    }
    built.tests.sort_by_key(|binary| (binary.package.clone(), binary.kind != "lib", binary.target.clone()));
    Ok(built)
}

/// Builds one example and says where it is.
pub(crate) fn example(package: &str, name: &str) -> Result<PathBuf> {
    let messages = compile(&["build", "--package", package, "--example", name])?;
    let found = messages.into_iter().find(|message| {
        message.target.as_ref().is_some_and(|target| target.name == name && target.kind == ["example"])
    });
    found.and_then(|message| message.executable).ok_or_else(|| Error::new(format!("cargo built no example {name}")))
}

fn compile(args: &[&str]) -> Result<Vec<Message>> {
    let mut messages = Vec::new();
    let mut unreadable = None;
    let task = Task::new(cargo(), LIMIT).args(args).args(["--message-format=json"]).named(format!("cargo {}", args[0]));
    let ended = task.lines(|stream, line| {
        if stream == Stream::Err {
            eprintln!("{line}");
            return;
        }
        if !line.starts_with('{') {
            return;
        }
        match serde_json::from_str::<Message>(line) {
            Ok(message) => {
                if let Some(text) = message.message.as_ref().and_then(|diagnostic| diagnostic.rendered.as_ref()) {
                    eprint!("{text}");
                }
                if message.reason == "compiler-artifact" {
                    messages.push(message);
                }
            }
            Err(error) => unreadable = Some(error),
        }
    })?;
    ended.ok()?;
    match unreadable {
        Some(error) => Err(error).doing(|| "read cargo's messages".to_owned()),
        None => Ok(messages),
    }
}

/// Copies a package's files, without build output and nested crates' targets.
pub(crate) fn copy_sources(from: &Path, to: &Path, metadata: &Metadata) -> Result<()> {
    let skip = metadata.workspace_root.join("target");
    copy_tree(from, to, &skip).doing(|| format!("copy {}", from.display()))
}

fn copy_tree(from: &Path, to: &Path, skip: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        if source == skip || entry.file_name() == "target" || entry.file_name() == ".git" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            copy_tree(&source, &copy, skip)?;
        } else if entry.file_type()?.is_file() {
            fs::copy(&source, &copy)?;
        }
    }
    Ok(())
}
