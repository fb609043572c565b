//! A sandbox: limits that a process sets for itself and cannot lift again.
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
//! Landlock holds for the calling thread and threads that it starts later; since Linux 7.0 it holds
//! for all threads. Filters hold for all threads at once.
//!
//! Invariant: each function only removes rights. Rules that the kernel lacks are skipped, and
//! [`support`] lists them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod calls;
pub mod error;
pub mod files;
pub mod filter;
pub mod process;
pub mod support;

pub use calls::Role;
pub use error::SandboxError;
