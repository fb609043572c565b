//! Compilation of a model into a plan.
//!
//! The entry point is [`model`]: a [`Model`](model::Model) is an open file with its graph.
//! [`mod@compile`] compiles it into a plan, which the runtime runs.
//!
//! | module | contents |
//! | --- | --- |
//! | [`model`] | open model: its graph, tokenizer and exact logits |
//! | [`demo`] | built-in demo model |
//! | [`mod@compile`] | compilation from model to plan, stage by stage |
//! | [`prefix`] | passes that run once for several plans of a model |
//! | [`recording`] | record of the outputs of passes |
//! | [`tuned`] | files of tuned choices: kernels that were measured to be faster |
//! | [`replacements`] | edited kernels that replace generated ones |
//! | [`kernel_check`] | comparison of edited kernels with the originals |
//! | [`dump`] | dumps of all stages, and compilation that continues from a dump |
//! | [`select`] | selection of ops, tasks and kernels by name and layer |
//! | [`cluster`], [`cluster_error`] | predicted speed on several ranks, and its errors |
//! | [`place`] | placement of a model on a grid of processing elements |
//! | [`simulate`] | weights for simulated descriptors |
//! | [`bytes_per_token`] | bytes read per token |
//! | [`support`] | supported architectures, formats and tokenizers |
//! | [`hub`] | models in the caches of Hugging Face's tools and of llama.cpp |
//! | [`machine`] | CPU features, memory and bandwidth of this machine |
//! | [`cache_file`] | small files in the user's cache folder |
//! | [`checksum`] | checksums of texts |
//! | [`excerpt`] | excerpts of a text that show the place of an error |
//! | [`build`] | version and commit of this build |
//! | [`error`] | errors of this crate |
//!
//! This crate depends on all crates up to plans, but not on the runtime.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod build;
pub mod bytes_per_token;
pub mod cache_file;
pub mod checksum;
pub mod cluster;
pub mod cluster_error;
pub mod compile;
pub mod demo;
pub mod dump;
pub mod error;
pub mod excerpt;
pub mod hub;
pub mod kernel_check;
pub mod machine;
pub mod model;
pub mod place;
pub mod prefix;
pub mod recording;
pub mod replacements;
pub mod select;
pub mod simulate;
pub mod support;
pub mod tuned;

pub use error::Error;
