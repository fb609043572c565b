//! ixc from C: a model's routed experts as an operator. `include/ixc.h` documents each function;
//! this crate checks the arguments.
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
//! Invariant: nothing unwinds into C. A panic becomes an error, as a null pointer does. Other
//! pointers are as the header requires.

#![deny(clippy::disallowed_methods)]

pub mod failure;
pub mod moe;

/// `IXC_VERSION`.
const VERSION: u32 = 1;

/// Returns the version of these functions.
#[unsafe(no_mangle)]
pub extern "C" fn ixc_version() -> u32 {
    VERSION
}
