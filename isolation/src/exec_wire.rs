//! What a command left behind, as JSON: ours or a Go program's.

use bytes::Bytes;
use serde::Deserialize;

use crate::{ExecOutput, ExecStatus, wire};

#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Either {
    Ours(Ours),
    Go(Go),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ours {
    status: ExecStatus,
    #[serde(with = "wire::bytes")]
    stdout: Bytes,
    #[serde(with = "wire::bytes")]
    stderr: Bytes,
    truncated: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Go {
    #[serde(rename = "Stdout")]
    stdout: String,
}

impl From<Either> for ExecOutput {
    fn from(wire: Either) -> Self {
        match wire {
            Either::Ours(Ours { status, stdout, stderr, truncated }) => {
                Self::new(status).with_stdout(stdout).with_stderr(stderr).with_truncated(truncated)
            }
            Either::Go(Go { stdout }) => Self::new(ExecStatus::Exited(0)).with_stdout(stdout),
        }
    }
}
