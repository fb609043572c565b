//! Measurements of models: quality of predictions, and speed.
//!
//! | module | contents |
//! | --- | --- |
//! | [`mod@bench`] | speed of a model: timed steps |
//! | [`eval`] | perplexity of a text, and divergence from another model |
//! | [`kl_divergence`] | KL divergence between the predictions of two models |
//! | [`forecast`] | forecast of tokens per second for a memory budget, without a run |
//! | [`ratio`] | ratio of two sets of measurements, with its interval |
//! | [`comparison`] | comparison of two measurements of speed, beyond noise |
//! | [`op_times`] | time of a generation by op and by kernel |
//! | [`roofline`] | peak rates of a machine |
//! | [`streaming`] | rates of streamed experts, next to the drive's own and the forecast |
//! | [`npy`] | NumPy files |
//! | [`error`] | errors of this crate |
//!
//! Uses loaded models, and prints nothing.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod bench;
pub mod comparison;
pub mod error;
pub mod eval;
pub mod forecast;
pub mod kl_divergence;
pub mod npy;
pub mod op_times;
pub mod ratio;
pub mod roofline;
pub mod streaming;

pub use error::Error;
