//! Models behind the HTTP server, and batches of requests from a file.
//!
//! | module | contents |
//! | --- | --- |
//! | [`serving`] | loaded model behind a server, and several models in one memory budget |
//! | [`batch`] | concurrent requests from a file |
//! | `constraint` | grammar of a whole answer when a request constrains a part of it |
//! | [`supervisor`] | the service manager: inherited sockets, messages about readiness |
//! | [`error`] | errors of this crate |
//!
//! Uses loaded models, and the server of `ixc-server`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod batch;
mod constraint;
pub mod error;
pub mod serving;
pub mod supervisor;

pub use error::Error;
