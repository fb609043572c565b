//! The outermost error: programs and the facade have one type for whatever fails.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`error`] | the enum, which wraps the errors of all crates and asks them |
//!
//! Each crate has an error of its own. This one is for callers of several.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod error;

pub use error::Error;
