//! The languages of `ixc`: block formats, graph IR, kernel IR and the plan.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`cache`] | keys and values in blocks: their numbers, and how they lie in memory |
//! | [`derived`] | tensors that are made of the bytes of others when they are read |
//! | [`drawing`] | graphs as other programs draw them |
//! | [`erf`] | the error function |
//! | [`mod@format`] | the block-format table |
//! | [`graph`] | graph IR: a model as SSA over tensors |
//! | [`kernel`] | kernel IR: one kernel as vector SSA, before instructions are chosen |
//! | [`levels`] | longest ways through what comes in order |
//! | [`names`] | what names say: layers, and of labels ops |
//! | [`ngram`] | rows of a table that the last tokens name together |
//! | [`plan`] | the plan: steps, buffers, weights, and its kernels |
//! | [`random`] | numbers that look random, the same on every machine |
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
pub mod state;
pub mod units;
