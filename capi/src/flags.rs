//! Flags of functions and options.

use crate::error::Failure;

/// `IXC_ADD_BOS`.
pub(crate) const ADD_BOS: u32 = 1;
/// `IXC_PARSE_SPECIAL`.
pub(crate) const PARSE_SPECIAL: u32 = 2;
/// `IXC_SHOW_SPECIAL`.
pub(crate) const SHOW_SPECIAL: u32 = 4;
/// `IXC_AT_START`.
pub(crate) const AT_START: u32 = 8;
/// `IXC_IGNORE_END`.
pub(crate) const IGNORE_END: u32 = 16;
/// `IXC_NO_CACHE`.
pub(crate) const NO_CACHE: u32 = 32;
/// `IXC_RESUME_SAMPLER`.
pub(crate) const RESUME_SAMPLER: u32 = 64;

/// Refuses flags that a function does not have.
pub(crate) fn check(flags: u32, allowed: u32) -> Result<(), Failure> {
    match flags & !allowed {
        0 => Ok(()),
        unknown => Err(Failure::usage(format!(
            "flags {unknown:#x} are not defined for this function; allowed flags are {allowed:#x}"
        ))),
    }
}
