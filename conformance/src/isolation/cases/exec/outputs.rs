//! What comes back: output, status, what is no program.

use std::sync::Arc;

use futures::future::join_all;
use isolation::{ErrorKind, ExecSpec, ExecStatus, node_path};

use super::super::super::bed::{none, ok, sh};
use super::super::{B, secs};
use crate::{Failure, Outcome, equal, within};

pub(super) async fn output_is_untouched(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    for (script, raw, text) in [
        (r"printf 'a\n\n'", &b"a\n\n"[..], "a"),
        (r"printf '\n\n'", b"\n\n", ""),
        (r"printf 'a \n'", b"a \n", "a "),
        (r"printf 'a\r\n'", b"a\r\n", "a\r"),
        (r"printf '\na\t'", b"\na\t", "\na\t"),
        (r"printf 'a\000\377b'", b"a\0\xffb", "a\0\u{fffd}b"),
    ] {
        let output = ok(script, bed.exec(&slot, &sh(script)).await)?;
        equal(script, &output.stdout[..], raw)?;
        equal(&format!("the text of {script}"), output.stdout_text().as_str(), text)?;
    }
    Ok(())
}

pub(super) async fn streams_are_apart(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let output = ok("a command", bed.exec(&slot, &sh("echo out; echo err >&2; echo out2")).await)?;
    equal("its standard output", &output.stdout[..], &b"out\nout2\n"[..])?;
    equal("its standard error", &output.stderr[..], &b"err\n"[..])
}

pub(super) async fn codes_are_data(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    for code in [0, 1, 2, 42, 125, 126, 127, 137, 143, 255] {
        let script = format!("exit {code}");
        let output = ok(&script, bed.exec(&slot, &sh(&script)).await)?;
        equal(&script, output.status, ExecStatus::Exited(code))?;
    }
    Ok(())
}

pub(super) async fn signals_are_told(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    for (name, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("HUP", 1)] {
        let script = format!("ulimit -c 0; kill -{name} $$; sleep 5");
        let status = ok(&script, bed.exec(&slot, &sh(&script)).await)?.status;
        if bed.harness().caps().signal_status {
            equal(&script, status, ExecStatus::Signaled(number))?;
        } else {
            equal(&format!("the shell code of {script}"), status.shell_code(), 128 + number)?;
        }
    }
    Ok(())
}

fn not_found(step: &str, result: isolation::Result<isolation::ExecOutput>) -> Outcome {
    match result {
        Err(error) if error.kind() == ErrorKind::CommandNotFound => Ok(()),
        Ok(output) if matches!(output.status, ExecStatus::Exited(126 | 127)) => Ok(()),
        other => Err(Failure::new(step, "`CommandNotFound`, or exit code 126 or 127", crate::short(&other))),
    }
}

pub(super) async fn missing_program(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    for program in ["no-such-program-anywhere", "/no/such/program"] {
        not_found(program, bed.exec(&slot, &ExecSpec::new([program])).await)?;
    }
    Ok(())
}

pub(super) async fn no_program(bed: B) -> Outcome {
    let (slot, root) = bed.up().await?;
    let file = node_path!("/etc/no-program");
    ok("writing a file", root.fs().and_then(|fs| fs.write_atomic(&file, 0o644, b"x")))?;
    for path in [file, node_path!("/etc")] {
        not_found(&path.to_string(), bed.exec(&slot, &ExecSpec::new([root.inside(&path)])).await)?;
    }
    Ok(())
}

pub(super) async fn long_output_is_dropped(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let script = "head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2; exit 7";
    let spec = sh(script).with_max_output(1_000_000);
    let output = within(script, secs(40), bed.exec(&slot, &spec)).await?;
    let output = ok(script, output)?;
    let kept = (output.stdout.len(), output.stderr.len());
    equal("what is kept, and whether it says so", (kept, output.truncated), ((1_000_000, 1_000_000), true))?;
    equal("its end", output.status, ExecStatus::Exited(7))?;
    for script in ["head -c 2000 /dev/zero", "head -c 2000 /dev/zero >&2"] {
        let output = ok(script, bed.exec(&slot, &sh(script).with_max_output(1000)).await)?;
        let kept = output.stdout.len() + output.stderr.len();
        equal(&format!("what is kept of `{script}`, and whether it says so"), (kept, output.truncated), (1000, true))?;
    }
    let output = ok("a short output", bed.exec(&slot, &sh("echo short").with_max_output(6)).await)?;
    equal("whether a short output is truncated", output.truncated, false)
}

pub(super) async fn outputs_do_not_mix(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    let before = bed.footprint().await;
    let calls = (0..32).map(|n| {
        let (bed, slot) = (Arc::clone(&bed), slot.clone());
        async move {
            let script = format!("i=0; while [ $i -lt 20 ]; do echo {n}; echo e{n} >&2; i=$((i+1)); done; exit {n}");
            let output = ok("one of 32 commands at once", bed.exec(&slot, &sh(&script)).await)?;
            let want = (format!("{n}\n").repeat(20), format!("e{n}\n").repeat(20), ExecStatus::Exited(n));
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            equal(&format!("command {n} of 32"), (text(&output.stdout), text(&output.stderr), output.status), want)
        }
    });
    join_all(calls).await.into_iter().collect::<Outcome<Vec<()>>>()?;
    none("after 32 commands", "nothing left of them", &before.changes(&bed.footprint().await))
}
