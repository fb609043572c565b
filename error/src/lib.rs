//! The outermost error: one type for programs and the facade that covers the errors of all crates.
//!
//! | module | contents |
//! | --- | --- |
//! | [`error`] | enum that wraps the errors of all crates |
//!
//! Each crate has its own error. This one is for callers of several crates.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod error;

pub use error::Error;
