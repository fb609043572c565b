//! The workbench of kernel developers: kernels on their own, and the way of a model as a page.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`kernels`] | kernels on their own: named, shown, run, compared, tuned, made small |
//! | [`report`] | a model's way to machine code as a page |
//! | [`error`] | what can go wrong |
//!
//! Uses compiling, and models that are loaded where whole steps are measured.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod error;
pub mod kernels;
pub mod report;

pub use error::Error;
