//! libFuzzer's program for one target. The name of the program selects the target.
//!
//! ```text
//! export IXC_FUZZ_HELPER=$PWD/target/debug/ixc-fuzz
//! cargo +nightly fuzz run --fuzz-dir fuzz/libfuzzer gguf fuzz/corpus/gguf
//! ```

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ixc_fuzz::run(env!("CARGO_BIN_NAME"), input));
