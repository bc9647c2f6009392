//! `conformance diff OLD NEW`: what changed between two reports of the suite.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;

use conformance::{Report, Verdict};

const USAGE: &str = "Usage: conformance diff OLD NEW

OLD and NEW are each a report.json, or the folder that holds one (what CONFORMANCE_REPORT named).
Prints one line a case that changed: `!` another verdict, `+` new, `-` gone, `~` another wording of its rule.
Exit code: 0 if nothing that passed has ceased to, 1 if something has, 2 if a report cannot be read.";

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["diff", old, new] => match diff(old.as_ref(), new.as_ref()) {
            Ok(worse) => ExitCode::from(u8::from(worse)),
            Err(text) => {
                eprintln!("conformance: {text}");
                ExitCode::from(2)
            }
        },
        ["--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Prints the difference; whether something that passed does not any more.
fn diff(old: &Path, new: &Path) -> Result<bool, String> {
    let (old, new) = (read(old)?, read(new)?);
    let mut text = String::new();
    if old.backend != new.backend {
        text += &format!("# the reports are of two backends: {} and {}\n", old.backend, new.backend);
    }
    for line in new.changes_since(&old) {
        text += &line;
        text.push('\n');
    }
    // Whoever stops reading has seen enough.
    let _ = stdout().write_all(text.as_bytes());
    let passes =
        |report: &Report, id: &str| report.cases.iter().any(|case| case.id == id && case.verdict == Verdict::Passed);
    Ok(old.cases.iter().any(|case| passes(&old, &case.id) && !passes(&new, &case.id)))
}

fn read(path: &Path) -> Result<Report, String> {
    let file = if path.is_dir() { path.join("report.json") } else { path.to_owned() };
    let text = std::fs::read(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    serde_json::from_slice(&text).map_err(|e| format!("{} is not a report of this suite: {e}", file.display()))
}
