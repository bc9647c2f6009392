//! Bytes that a sandbox sends, with records among them, in pieces of any size.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: (Vec<u8>, Vec<u8>)| sandbox_guest::fuzzing::records(&input.0, &input.1));
