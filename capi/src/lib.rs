//! ixc from C: a model's routed experts as an operator. `include/ixc.h` says what each function does; here is that it does so safely.
//!
//! ```text
//! ixc_moe_open ─▶ ixc_moe_submit ─▶ ixc_job_wait        Moe::open ─▶ Moe::submit ─▶ Handle::wait
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`failure`] | the last error of a thread |
//! | [`moe`] | a model's experts, and rows that are computed |
//!
//! Invariant: nothing unwinds into C: a panic is an error like another. Pointers are as the header says, or null, which is an error.

#![deny(clippy::disallowed_methods)]

pub mod failure;
pub mod moe;

/// `IXC_VERSION`.
const VERSION: u32 = 1;

/// The version of these functions.
#[unsafe(no_mangle)]
pub extern "C" fn ixc_version() -> u32 {
    VERSION
}
