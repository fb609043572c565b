//! Kinds of failures and their remedies: two questions that errors of all crates answer.
//!
//! | module | method of an error | answer |
//! | --- | --- | --- |
//! | [`class`] | `class()` | the kind of failure; a program makes an exit status of it |
//! | [`remedy`] | `remedy()` | the change that may help; a program names its option for it |
//!
//! An error that wraps another one asks the inner error. Each `class()` is a match without a
//! wildcard, so that a new variant does not compile until its class is chosen.
//!
//! ```
//! use ixc_failure::{Class, Remedy};
//!
//! enum SpaceError {
//!     TooLong { tokens: usize },
//!     Full,
//! }
//!
//! impl SpaceError {
//!     fn class(&self) -> Class {
//!         match self {
//!             SpaceError::TooLong { .. } => Class::Data,
//!             SpaceError::Full => Class::Io,
//!         }
//!     }
//!
//!     fn remedy(&self) -> Option<Remedy> {
//!         match self {
//!             SpaceError::TooLong { .. } => Some(Remedy::LargerContext),
//!             SpaceError::Full => None,
//!         }
//!     }
//! }
//!
//! assert_eq!(SpaceError::TooLong { tokens: 79 }.class(), Class::Data);
//! assert_eq!(SpaceError::Full.remedy(), None);
//! ```
//!
//! Invariant: this crate names no option and no exit status.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod class;
pub mod remedy;

pub use class::Class;
pub use remedy::Remedy;
