//! Quantisation of model files, from GGUF to GGUF.
//!
//! | module | contents |
//! | --- | --- |
//! | `model_file` | plan for a model file, and the writer of the new file |
//! | [`mix`] | format of each matrix, by llama.cpp's names of mixes |
//! | [`importance`] | importance matrices: weights of columns |
//!
//! This crate uses model files and the formats of `ir`. It builds no graph, and runs nothing.
//!
//! ```no_run
//! use ixc_model_files::gguf::Gguf;
//! use ixc_quantise::{QuantiseOptions, mix::Mix, plan};
//!
//! let model = Gguf::open("model-f16.gguf".as_ref())?;
//! let plan = plan(&model, &QuantiseOptions::new(Mix::find("Q4_K_M").unwrap()))?;
//! let (changed, all) = (plan.quantised_tensors(), plan.tensors.len());
//! println!("{changed} of {all} tensors, {} bytes", plan.bytes());
//! # Ok::<(), ixc_quantise::QuantiseError>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod importance;
pub mod mix;
mod model_file;

pub use model_file::{Plan, Progress, QuantiseError, QuantiseOptions, TensorPlan, plan};
