//! Tools for kernel developers: single kernels, and a report page of all compilation stages.
//!
//! | module | contents |
//! | --- | --- |
//! | [`kernels`] | single kernels: naming, display, runs, comparison, tuning, reduction |
//! | [`report`] | page of all stages from model to machine code |
//! | [`error`] | errors of this crate |
//!
//! Depends on `ixc-compile`, and uses loaded models to measure whole steps.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod error;
pub mod kernels;
pub mod report;

pub use error::Error;
