//! Whether user-mode QEMU executes the test: what it gets wrong is not held against code then. Whether it is of older processors.
//!
//! What that is stands where it matters: in `emulator/tests/emulator/native.rs` and `codegen/tests/x64/native.rs`, with what was observed.

/// Whether `IXC_QEMU` says so, which `.ci/qemu` sets.
pub fn executes_this() -> bool {
    std::env::var_os("IXC_QEMU").is_some()
}

/// Whether `IXC_AS_V2` says that kernels of `portable` run as they are made on an x86-64-v2, and nothing else does, which `.ci/qemu` sets: natively, since any
/// x86-64 has the instructions.
pub fn portable_is_v2() -> bool {
    std::env::var_os("IXC_AS_V2").is_some()
}
