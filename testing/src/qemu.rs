//! Whether user-mode QEMU executes the test: what it gets wrong is not held against code then.
//!
//! What that is stands where it matters: in `emulator/tests/emulator/native.rs` and `codegen/tests/x64/native.rs`, with what was observed.

/// Whether `IXC_QEMU` says so, which `.ci/qemu` sets.
pub fn executes_this() -> bool {
    std::env::var_os("IXC_QEMU").is_some()
}
