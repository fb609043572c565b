//! A sandbox: limits that a process sets for itself and cannot remove later.
//!
//! | module | contents |
//! | --- | --- |
//! | [`calls`] | table of system calls: allowed, refused and fatal ones, with reasons |
//! | [`filter`] | seccomp filters made of the table |
//! | [`files`] | Landlock rules for files, TCP ports and signals |
//! | [`process`] | capabilities and resource limits |
//! | [`support`] | features of this kernel |
//! | [`error`] | errors of this crate |
//!
//! ```text
//! process::limit ▶ files::confine_writes ▶ start threads, load ▶ files::confine ▶ filter::install
//! ```
//!
//! Landlock rules hold for the calling thread and for threads that it starts later. Since Linux
//! 7.0, they hold for all threads. Filters always hold for all threads.
//!
//! Invariant: each function only removes rights. Rules that the kernel does not support are
//! skipped, and [`support`] lists them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod calls;
pub mod error;
pub mod files;
pub mod filter;
pub mod process;
pub mod support;

pub use calls::Role;
pub use error::SandboxError;
