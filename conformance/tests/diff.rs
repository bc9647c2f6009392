//! The command that compares two reports.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

/// A report with one case of each verdict; `second` is that of the second.
fn report(dir: &Path, second: &str) {
    let case = |id: &str, verdict: &str| {
        let text = if verdict == "passed" { String::new() } else { r#","text":"why""#.to_owned() };
        format!(
            r#"{{"id":"{id}","rule":"A rule.","profile":"core","slow":false,"verdict":{{"verdict":"{verdict}"{text}}},"seconds":0.1}}"#
        )
    };
    let cases = [case("exec::a", "passed"), case("exec::b", second)].join(",");
    let text = format!(r#"{{"suite":"0.1.0","backend":"x","at":0,"claims":{{}},"facts":{{}},"cases":[{cases}]}}"#);
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("report.json"), text).unwrap();
}

fn conformance(args: &[&Path]) -> Output {
    Command::new(std::env::var_os("CARGO_BIN_EXE_conformance").unwrap_or(env!("CARGO_BIN_EXE_conformance").into()))
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn what_got_worse_is_said_and_told_by_the_code() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad) = (dir.path().join("good"), dir.path().join("bad"));
    report(&good, "passed");
    report(&bad, "failed");
    let diff = Path::new("diff");
    for (old, new, code, text) in [
        (&good, &bad, 1, "! exec::b: passed -> failed\n"),
        (&bad, &good, 0, "! exec::b: failed -> passed\n"),
        (&good, &good, 0, ""),
    ] {
        let output = conformance(&[diff, old, new]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), text);
    }
    let output = conformance(&[diff, &good, &dir.path().join("none")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("none"), "{output:?}");
    std::fs::write(dir.path().join("other.json"), "{}").unwrap();
    let output = conformance(&[diff, &dir.path().join("other.json"), &good]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a report of this suite"), "{output:?}");
    assert_eq!(conformance(&[diff]).status.code(), Some(2));
}
