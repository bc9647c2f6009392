//! Running commands inside.

mod ends;
mod inputs;
mod outputs;

use super::Case;

const CODES: &str = "Every exit code comes back as data, exactly.";
const MISSING: &str = "A program that does not exist, or is none, is reported as that and never as a broken transport.";
const ARGS: &str = "Arguments arrive verbatim, whatever they contain.";
const GIVEN: &str = "Input, environment and working directory arrive exactly.";
const BARE: &str = "Without more said, a command has a clean environment, no input, and `/` as its directory.";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "exec::output_is_untouched",
            "Output is untouched, and its text form loses only the newlines at its end.",
            outputs::output_is_untouched,
        ),
        Case::new(
            "exec::streams_are_apart",
            "Standard output and standard error are kept apart.",
            outputs::streams_are_apart,
        ),
        Case::new("exec::codes_are_data", CODES, outputs::codes_are_data),
        Case::new(
            "exec::signals_are_told",
            "Death by a signal is reported as that signal and never as success.",
            outputs::signals_are_told,
        ),
        Case::new("exec::missing_program", MISSING, outputs::missing_program),
        Case::new("exec::no_program", MISSING, outputs::no_program),
        Case::new("exec::arguments_are_verbatim", ARGS, inputs::arguments_are_verbatim),
        Case::new("exec::long_arguments", ARGS, inputs::long_arguments),
        Case::new(
            "exec::invalid_is_refused",
            "A command without a program, or with a NUL, is refused before anything is spawned.",
            inputs::invalid_is_refused,
        ),
        Case::new(
            "exec::long_output_is_dropped",
            "Output beyond the limit is dropped and reported, and never blocks the command.",
            outputs::long_output_is_dropped,
        ),
        Case::new(
            "exec::timeout_kills",
            "A command that runs past its time is killed, reported as `TimedOut`, and leaves no process inside.",
            ends::timeout_kills,
        ),
        Case::new(
            "exec::cancel_ends_it",
            "When the call is cancelled, its command ends inside too.",
            ends::cancel_ends_it,
        ),
        Case::new(
            "exec::outputs_do_not_mix",
            "Commands that run at the same time never mix their outputs.",
            outputs::outputs_do_not_mix,
        ),
        Case::new("exec::input_arrives", GIVEN, inputs::input_arrives),
        Case::new("exec::environment_arrives", GIVEN, inputs::environment_arrives),
        Case::new("exec::directory_arrives", GIVEN, inputs::directory_arrives),
        Case::new("exec::environment_is_clean", BARE, inputs::environment_is_clean),
        Case::new("exec::directory_is_the_root", BARE, inputs::directory_is_the_root),
        Case::new("exec::input_is_empty", BARE, inputs::input_is_empty),
        Case::new("exec::user", "A command runs as the user that was asked for.", inputs::user)
            .needs("exec user", |c| c.exec_user),
        Case::new(
            "exec::unknown_slot",
            "A command in a slot that was never prepared fails as `UnknownSlot`.",
            ends::unknown_slot,
        ),
        Case::new(
            "exec::stopped_slot",
            "A command in a slot that does not run fails as `NotRunning`.",
            ends::stopped_slot,
        ),
        Case::new(
            "exec::met_by_a_stop",
            "A command met by a start, a stop or a destroy ends with a result or an error, and never hangs.",
            ends::met_by_a_stop,
        ),
        Case::new(
            "exec::stream_is_talked_to",
            "A command that is talked to reads and answers while it runs, and its status comes at the end.",
            ends::stream_is_talked_to,
        )
        .needs("stream exec", |c| c.stream_exec),
        Case::new(
            "exec::dropped_stream_ends",
            "Dropping the handle of a running command ends the command.",
            ends::dropped_stream_ends,
        )
        .needs("stream exec", |c| c.stream_exec),
        Case::new(
            "exec::cancelled_stream_ends",
            "When its call is cancelled, a command that is talked to ends inside too, also after the call has returned.",
            ends::cancelled_stream_ends,
        )
        .needs("stream exec", |c| c.stream_exec),
        Case::new(
            "exec::stream_is_refused_alike",
            "What `exec` refuses before it runs anything, `exec_stream` refuses with the same kind of error.",
            ends::stream_is_refused_alike,
        )
        .needs("stream exec", |c| c.stream_exec),
    ]
}
