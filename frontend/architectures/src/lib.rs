//! Architectures: builds a graph from a model file, with the ops that the model's authors wrote.
//!
//! The input is a [`Gguf`](ixc_model_files::gguf::Gguf) that was checked for structure. The output
//! is a [`Model`]: hyperparameters and a [`Module`](ixc_ir::graph::Module) whose function `@step`
//! computes logits. The graph is unfused, and its weights have the names of their tensors.
//! Differences between architectures are ops and attributes of the graph. No later crate knows an
//! architecture's name.
//!
//! ```text
//! %7 = rms_norm %6, @blk.0.attn_norm.weight {eps = 1e-6} : f32[T, 256]
//! %8 = dequantise @blk.0.attn_q.weight : f32[256, 256]
//! %9 = matmul %7, %8 : f32[T, 256]
//! ```
//!
//! Begin with `models/llama.rs`, which registers an architecture. Then read `decoder.rs`, which
//! builds its graph. [`build_parts`] reads the keys and builds the graph.
//!
//! | file | what it owns |
//! | --- | --- |
//! | `models` | one file for each architecture, and the registry |
//! | `architecture` | types of the registry: an architecture and a family of models |
//! | `build_model` | opening a file, and building its model |
//! | `hyper` | hyperparameters, read from keys with every range check |
//! | `builder` | weights by name and shape; ops with their types |
//! | `decoder` | common blocks of decoders, and the style that describes differences |
//! | `encoder` | encoders, whose attention is not causal |
//! | `layers` | shared layers, each under its published name |
//! | `numbers` | constant tensors that no file has |
//! | `weights` | bytes of a model's weights, for the reference interpreter |
//! | `error` | errors of GGUF files that do not make a supported model |
//!
//! To add an architecture, write a file with its row, and add the row to its family in
//! [`FAMILIES`].
//!
//! Uses `failure`, `ir` and `model_files`.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod architecture;
mod build_model;
mod builder;
mod decoder;
mod encoder;
mod error;
mod hyper;
mod layers;
mod models;
mod numbers;
mod weights;

pub use architecture::{Architecture, Family};
pub use build_model::{
    Model, Nextn, Output, Parts, build, build_parts, build_to_see, complete, open, open_file, precise,
};
pub use builder::layer_of;
pub use error::{ArchError, NextnProblem};
pub use hyper::{Experts, Hyper, Layer, Limits, Mla, Norms, Precise, Rope, Scales};
pub use models::{FAMILIES, architectures};
pub use weights::FileWeights;
