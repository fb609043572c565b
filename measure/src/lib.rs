//! Measuring models: how well they predict, and how fast they run.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`mod@bench`] | how fast a model runs: steps that are timed |
//! | [`eval`] | perplexity of a text, and how far predictions are from another model's |
//! | [`kl_divergence`] | how far one model's predictions are from another's |
//! | [`forecast`] | tokens per second for a memory budget, before anything is run |
//! | [`ratio`] | how many times as large measurements are as others, beyond their spread |
//! | [`npy`] | NumPy's files |
//! | [`error`] | what can go wrong |
//!
//! Uses models that are loaded, and prints nothing.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod bench;
pub mod error;
pub mod eval;
pub mod forecast;
pub mod kl_divergence;
pub mod npy;
pub mod ratio;

pub use error::Error;
