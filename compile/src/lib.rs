//! From a model to a plan.
//!
//! Begin with [`model`]: a [`Model`](model::Model) is an open file with its graph. [`mod@compile`]
//! makes a plan of it, which the runtime runs.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`model`] | a model file, opened and checked: graph, tokenizer, exact logits |
//! | [`demo`] | the model that is built in |
//! | [`mod@compile`] | from a model to a plan, with every stage between |
//! | [`tuned`] | what was measured to be faster, in a file |
//! | [`replacements`] | kernels in place of those that are generated |
//! | [`kernel_check`] | edited kernels against what they were made from |
//! | [`dump`] | all steps to machine code as files, and where compiling goes on from one |
//! | [`select`] | what is meant of a model: ops, tasks and kernels by names and layers |
//! | [`place`] | from a model to a descriptor of what runs on a grid of processing elements |
//! | [`simulate`] | weights for descriptors that are simulated |
//! | [`bytes_per_token`] | bytes that a token reads |
//! | [`support`] | architectures, formats, tokenizers: what this build takes |
//! | [`hub`] | models that are in the caches of Hugging Face's tools and of llama.cpp |
//! | [`machine`] | what this machine has: features, memory, bandwidth |
//! | [`cache_file`] | small files in the user's cache folder |
//! | [`checksum`] | checksums of texts |
//! | [`excerpt`] | an error in text, shown where it is |
//! | [`build`] | which `ixc` this is: version and commit |
//! | [`error`] | what can go wrong |
//!
//! Uses all crates up to plans, and not the runtime.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod build;
pub mod bytes_per_token;
pub mod cache_file;
pub mod checksum;
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
pub mod replacements;
pub mod select;
pub mod simulate;
pub mod support;
pub mod tuned;

pub use error::Error;
