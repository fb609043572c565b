//! The engine: loads a plan, from a file or from memory, and computes sequences of tokens with it.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`options`] | options for loading a plan |
//! | [`homes`] | homes of threads and memory on NUMA nodes |
//! | `model_files` | finding and opening a plan's model files |
//! | [`mod@file`] | `.ixp` files: header, checksum, reading and writing |
//! | [`load`] | loading a plan |
//! | [`memory_estimate`] | memory that a plan needs, before it is loaded |
//! | [`pins`] | experts that stay in memory |
//! | [`expert_use`] | counts of chosen experts, and eviction |
//! | [`step`] | the input of a step, and its errors |
//! | [`sequence`] | the sequences: prefill, step, truncate, copy, logits |
//! | [`ranks`] | engines of several ranks that run the same steps |
//! | [`places`] | the options of each rank on NUMA nodes |
//! | `properties` | sizes, memory, threads and statistics of an engine |
//! | [`sample`] | the next token from logits |
//! | [`saved`] | sequences as bytes, and back |
//! | [`variant`] | other plans of the same model, run with the loaded weights |

pub mod expert_layers;
pub mod expert_use;
pub mod file;
pub mod homes;
pub mod load;
pub mod memory_estimate;
pub(crate) mod model_files;
pub mod options;
pub mod pins;
pub mod places;
mod properties;
pub mod ranks;
pub mod sample;
pub mod saved;
pub mod sequence;
pub mod step;
pub mod variant;

pub use crate::error::ranks::RanksError;
pub use crate::executor::sequences::{Sequence, StateBytes};
pub use expert_use::EvictError;
pub use options::{BackendKind, EngineOptions, ExpertStore};
pub use pins::Pins;
pub use ranks::{FollowError, RankCounts};
pub use sequence::Engine;
pub use step::{Addition, FIRST, SequenceId, Softmax, StepError};
pub use variant::Variant;
