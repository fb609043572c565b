//! Whether user-mode QEMU executes the test, and whether it emulates an older processor. Tests then
//! ignore QEMU's known errors.
//!
//! The errors are listed where they matter, with the observed behaviour: in
//! `emulator/tests/emulator/native.rs` and `codegen/tests/x64/native.rs`.

/// Returns whether `IXC_QEMU` is set, as `.ci/qemu` does.
pub fn executes_this() -> bool {
    std::env::var_os("IXC_QEMU").is_some()
}

/// Returns whether `IXC_AS_V2` is set, as `.ci/qemu` does. Kernels of `portable` then run as on an
/// x86-64-v2, and no others run. They run natively, because any x86-64 has these instructions.
pub fn portable_is_v2() -> bool {
    std::env::var_os("IXC_AS_V2").is_some()
}
