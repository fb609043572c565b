//! HTTP server, its loaded models, and batches of requests from a file.
//!
//! | module | contents |
//! | --- | --- |
//! | [`http`] | HTTP interfaces of OpenAI, Anthropic and llama-server; connections, limits, metrics |
//! | [`model`] | requests to a model, its events and its status |
//! | [`histogram`] | distributions of values |
//! | [`serving`] | loaded model behind a server, and several models in one memory budget |
//! | [`service`] | server that runs until it is stopped |
//! | [`batch`] | concurrent requests from a file |
//! | `constraint` | grammar of a whole answer if a request constrains a part of it |
//! | [`supervisor`] | the service manager: inherited sockets, messages about readiness |
//! | [`error`] | errors of this crate |
//!
//! ```text
//! http, batch ──Request──▶ serving ──▶ generator (ixc-generate)
//!      ▲                      │
//!      └────────Event─────────┘
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod batch;
mod constraint;
pub mod error;
pub mod histogram;
pub mod http;
pub mod model;
pub mod service;
pub mod serving;
pub mod supervisor;

pub use error::Error;
