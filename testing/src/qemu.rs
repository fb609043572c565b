//! Detection of tests that run in user-mode QEMU. With QEMU, tests skip cases in which QEMU itself
//! is wrong, or run kernels for an older processor.
//!
//! QEMU's errors are documented where tests skip cases, with the observations: in
//! `emulator/tests/emulator/native.rs` and `codegen/tests/x64/native.rs`.

/// Returns whether `IXC_QEMU` is set, as `.ci/qemu` does.
pub fn executes_this() -> bool {
    std::env::var_os("IXC_QEMU").is_some()
}

/// Returns whether `IXC_AS_V2` is set, as `.ci/qemu` does. In that case, only kernels of `portable`
/// run, compiled for x86-64-v2. Without QEMU, they run natively, since any supported x86-64 CPU has
/// these instructions.
pub fn portable_is_v2() -> bool {
    std::env::var_os("IXC_AS_V2").is_some()
}
