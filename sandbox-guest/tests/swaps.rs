//! The script that opens files alone, with a path that turns into something else between two of its steps.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;
use std::process::Command;

/// What is there before the file is opened, and what when the shell asks whether it was the right one; `true` if so at every try.
type Swap<'a> = (&'a str, &'a str, bool);

/// Opens `dir/path` while somebody does `swap`; answers the content, or the fault.
fn open(dir: &Path, (before, after, always): Swap<'_>) -> Result<String, String> {
    let steps = r#"
        path=$PWD/path fd='' rounds=0
        put() { [[ ! $1 ]] || { ln -P "$1" other && mv -fT other path; }; }
        step() {
            case $BASH_COMMAND in
            'exec {fd}<'*'"$path"') ((rounds++ == 0)) || [[ $3 ]] || return 0; put "$1" ;;
            '[[ -f /proc/self/fd/'*) ((rounds == 1)) || [[ $3 ]] || return 0; put "$2" ;;
            esac
        }
        set -T
        trap "step '$1' '$2' '$3'" DEBUG
        __sbx_open
        code=$?
        trap - DEBUG
        ((rounds)) || exit 9
        ((code == 0)) && cat <&"$fd" || { printf %s "$__sbx_fault"; exit 1; }
    "#;
    for (name, content) in [("good", "good"), ("secret", "secret")] {
        std::fs::write(dir.join(name), content).unwrap();
    }
    for left in ["link", "path"] {
        let _ = std::fs::remove_file(dir.join(left));
    }
    std::os::unix::fs::symlink("secret", dir.join("link")).unwrap();
    std::fs::copy(dir.join("good"), dir.join("path")).unwrap();
    let script = format!("{}\n{steps}", include_str!("../src/scripts/files.bash"));
    let always = if always { "always" } else { "" };
    let words = ["--norc", "--noprofile", "-pc", &script, "bash", before, after, always];
    let output = Command::new("bash").args(words).current_dir(dir).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => Ok(said),
        Some(1) => Err(said),
        _ => panic!("{output:?}"),
    }
}

#[test]
fn a_link_that_is_there_for_a_moment_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |swap| open(dir.path(), swap);
    let replaced = Err("failed it is being replaced all the time".to_owned());
    // A link when it is opened, and a file when that is asked about: tried again, and given up if it goes on.
    assert_eq!(at(("link", "good", false)), Ok("good".to_owned()));
    assert_eq!(at(("link", "good", true)), replaced);
    // A link still.
    assert_eq!(at(("link", "", false)), Err("irregular".to_owned()));
    // Another file by then.
    assert_eq!(at(("secret", "good", true)), replaced);
    // The same file by another name is no link.
    assert_eq!(at(("good", "", false)), Ok("good".to_owned()));
}
