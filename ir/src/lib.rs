//! The languages of `ixc`: block formats, graph IR, kernel IR and the plan.
//!
//! | module | content |
//! | --- | --- |
//! | [`cache`] | keys and values in blocks: rounding and memory layout |
//! | [`derived`] | tensors that are computed from the bytes of others when they are read |
//! | [`drawing`] | graphs as text for other programs |
//! | [`erf`] | the error function |
//! | [`mod@format`] | the block-format table |
//! | [`graph`] | graph IR: a model as SSA over tensors |
//! | [`kernel`] | kernel IR: one kernel as vector SSA, before instructions are chosen |
//! | [`levels`] | longest paths through items in topological order |
//! | [`names`] | layers and ops in names and labels |
//! | [`ngram`] | n-gram embeddings: rows of a table for the last tokens together |
//! | [`plan`] | the plan: steps, buffers, weights, and its kernels |
//! | [`random`] | pseudorandom numbers, the same on every machine |
//! | [`state`] | kinds of state that last from step to step |
//! | [`units`] | numbers in text: bytes, counts, nouns that agree |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cache;
pub mod derived;
pub mod drawing;
pub mod erf;
pub mod format;
pub mod graph;
pub mod kernel;
pub mod levels;
pub mod names;
pub mod ngram;
pub mod plan;
pub mod random;
mod rope_style;
pub mod state;
pub mod units;
