//! Models behind the HTTP server, and files of requests.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`serving`] | a loaded model behind a server; several models in one budget |
//! | [`batch`] | requests of a file, many at once |
//! | `constraint` | the grammar of a whole answer of which a part is asked for |
//! | [`error`] | what can go wrong |
//!
//! Uses models that are loaded, and the server of `ixc-server`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod batch;
mod constraint;
pub mod error;
pub mod serving;

pub use error::Error;
