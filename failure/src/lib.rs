//! Methods `class()` and `remedy()`, which the error types of all crates have.
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
//! Invariant: this crate contains no option name and no exit status of a program.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

/// Implements `From` for an outer error that wraps an inner error. The new conversions are from
/// each listed type, which the inner error can wrap, to the outer error.
///
/// ```
/// #[derive(Debug)]
/// struct Inner(std::fmt::Error);
///
/// impl From<std::fmt::Error> for Inner {
///     fn from(error: std::fmt::Error) -> Inner {
///         Inner(error)
///     }
/// }
///
/// #[derive(Debug)]
/// struct Outer(Inner);
///
/// impl From<Inner> for Outer {
///     fn from(error: Inner) -> Outer {
///         Outer(error)
///     }
/// }
///
/// ixc_failure::from_inner!(Outer, Inner: std::fmt::Error);
///
/// let Outer(Inner(_)) = Outer::from(std::fmt::Error);
/// ```
#[macro_export]
macro_rules! from_inner {
    ($outer:ty, $inner:ty: $($error:ty),+ $(,)?) => {
        $(
            impl From<$error> for $outer {
                fn from(error: $error) -> $outer {
                    <$inner>::from(error).into()
                }
            }
        )+
    };
}

pub mod class;
pub mod remedy;

pub use class::Class;
pub use remedy::Remedy;
