//! What stands in an end record of a file operation.
#![no_main]

libfuzzer_sys::fuzz_target!(|payload: &[u8]| sandbox_guest::fuzzing::answers(payload));
