//! `ixc` compiles a model file into a plan and runs it on this CPU, with kernels generated for
//! exactly that model and this machine. This library is a facade: it re-exports crates and has no
//! code.
//!
//! | crate | contents | begin with |
//! | --- | --- | --- |
//! | `ixc-compile` | compilation of a model into a plan | [`model`], [`mod@compile`] |
//! | `ixc-generate` | text generation with a plan | [`loaded_model`], [`session`], [`generator`] |
//! | `ixc-quantise` | quantisation of model files | [`quantise`] |
//! | `ixc-measure` | measurements of quality and speed | [`eval`], [`mod@bench`] |
//! | `ixc-workbench` | tools for single kernels, and the report page | [`kernels`], [`report`] |
//! | `ixc-serve` | HTTP server and batches (feature `serve`) | `serving`, `server`, `batch` |
//! | `ixc-error` | error type of all crates | [`error`] |
//!
//! Lower crates, such as [`ir`] and [`runtime`], are modules with their own names. Each crate has
//! its own error. [`Error`] wraps them all, so that `?` takes any of them.
//!
//! ```
//! use ixc::{budget, compile::Options, model::Model, runtime::engine};
//!
//! let model = Model::new(ixc::demo::open()?)?;
//! let run = engine::Options::default();
//! let (compiled, _) = budget::compile_within(&model, &Options::default(), &run)?;
//! assert_eq!(compiled.plan.vocabulary, 4096);
//! # Ok::<(), ixc::Error>(())
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub use ixc_compile::Error as CompileError;
pub use ixc_compile::{
    build, bytes_per_token, checksum, compile, demo, dump, excerpt, hub, kernel_check, machine, model, place,
    replacements, select, simulate, support, tuned,
};
pub use ixc_error::{Error, error};
pub use ixc_files as files;
pub use ixc_generate::Error as GenerationError;
pub use ixc_generate::{
    budget, chat, draft_model, drive, embedding, expert_use, explain, generator, loaded_model, moe, output_text,
    own_layer, plan_file, prompt_cache, session, speculate, timing,
};
pub use ixc_measure::Error as MeasureError;
pub use ixc_measure::{bench, eval, forecast, kl_divergence, npy, ratio};
#[cfg(feature = "serve")]
pub use ixc_serve::Error as ServeError;
#[cfg(feature = "serve")]
pub use ixc_serve::{batch, http as server, model as served_model, service, serving};
pub use ixc_workbench::Error as WorkbenchError;
pub use ixc_workbench::{kernels, report};
pub use {
    ixc_architectures as architectures, ixc_codegen as codegen, ixc_cost as cost, ixc_dataflow as dataflow,
    ixc_grammar as grammar, ixc_ir as ir, ixc_model_files as model_files, ixc_passes as passes,
    ixc_quantise as quantise, ixc_runtime as runtime, ixc_targets as targets, ixc_text as text,
};
