//! The engine: from a plan, in a file or in memory, to sequences of tokens.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`options`] | how a plan is loaded |
//! | `model_files` | which files a plan's model is in |
//! | [`mod@file`] | `.ixp` files: header, checksum, reading and writing |
//! | [`load`] | from a plan to what steps need |
//! | [`memory_estimate`] | what a plan takes of memory, before it is loaded |
//! | [`expert_use`] | which experts are used, and which stay in memory |
//! | [`sequence`] | the sequences: prefill, step, truncate, copy, logits |
//! | [`sample`] | the next token from logits |
//! | [`saved`] | sequences as bytes, and back |
//! | [`variant`] | the same model cut otherwise, run with the weights that are there |

pub mod expert_layers;
pub mod expert_use;
pub mod file;
pub mod load;
pub mod memory_estimate;
pub(crate) mod model_files;
pub mod options;
pub mod sample;
pub mod saved;
pub mod sequence;
pub mod variant;

pub use crate::executor::sequences::{Sequence, StateBytes};
pub use expert_use::{EvictError, Pins};
pub use options::{BackendKind, ExpertStore, Options};
pub use sequence::{Addition, Engine, FIRST, SequenceId, Softmax, StepError};
pub use variant::Variant;
