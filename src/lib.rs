//! `ixc` compiles a model file and runs it on this CPU, with kernels generated for exactly this
//! model and this machine.
//!
//! The library reads GGUF files and Hugging Face folders. It runs Mixture-of-Experts models that
//! are larger than memory. Results have the same bits with any number of threads.
//!
//! # Quick start
//!
//! ```
//! use ixc::runtime::sample::SamplerSettings;
//! use ixc::text::template::known;
//! use ixc::{LoadOptions, Message, Session};
//!
//! // `None` is the built-in demo model; `Some(path)` opens a model file, a folder or a plan.
//! let mut session = Session::open(None, &LoadOptions::default())?;
//! let options = session.text_options_mut();
//! // The demo model has no chat template of its own.
//! options.chat.template = known::find("chatml").map(|known| known.template());
//! (options.limit, options.sampling) = (Some(16), SamplerSettings::greedy().into());
//!
//! let mut messages = vec![Message::new("user", "What is a trait?")];
//! for piece in session.chat(&messages)? { print!("{piece}") }
//!
//! // An error during the generation ends the loop, and is returned here.
//! let completion = session.take_completion()?.expect("the loop has ended");
//! assert_eq!(completion.tokens.len(), 16);
//! messages.push(completion.into_message());
//! # Ok::<(), ixc::Error>(())
//! ```
//!
//! [`Session::chat`] returns a [`TextStream`], an iterator over pieces of text. Dropping it stops
//! the generation.
//!
//! # Where to begin
//!
//! | task | begin with | example |
//! | --- | --- | --- |
//! | chat, or continue a text | [`Session`] | `chat`, `complete` |
//! | many requests at once | [`generator::Generator`] | `requests` |
//! | an asynchronous server | `serving::Host` (feature `serve`) | `server` |
//! | embeddings | [`embedding::Embedder`] | `embeddings` |
//! | logits, and a sampler of your own | [`loaded_model::LoadedModel`] | `sampler` |
//! | routed experts for another engine | [`moe::Moe`] | `moe` |
//! | compile a model to a plan | [`mod@compile`], [`budget`] | |
//! | add a pass to the compiler | [`passes::manager`] | `pass` |
//! | generate and run single kernels | [`kernels::generate`], [`codegen::module`] | `kernels` |
//!
//! `cargo run --release --example chat -- model.gguf` runs an example of the repository.
//!
//! # Features
//!
//! | feature | default | adds |
//! | --- | --- | --- |
//! | `serve` | yes | `serving`, `server`, `service`, `served_model`, `batch`: an HTTP server |
//! | `cli` | yes | the program `ixc`; it includes `serve` |
//!
//! A program that embeds the library needs none of these features: `default-features = false`.
//! Items that need a feature name it.
//!
//! # Modules
//!
//! This library is a facade: it re-exports crates and has no code.
//!
//! | crate | contents | modules here |
//! | --- | --- | --- |
//! | `ixc-generate` | text generation with a plan | [`session`], [`generator`], [`loaded_model`] |
//! | `ixc-compile` | compilation of a model to a plan | [`model`], [`mod@compile`], [`dump`] |
//! | `ixc-quantise` | quantisation of model files | [`quantise`] |
//! | `ixc-measure` | measurements of quality and speed | [`eval`], [`mod@bench`], [`forecast`] |
//! | `ixc-workbench` | tools for single kernels, and the report page | [`kernels`], [`report`] |
//! | `ixc-serve` | HTTP server and batches | `serving`, `server`, `batch` |
//! | `ixc-error` | error type of all crates | [`error`] |
//!
//! Lower crates, such as [`ir`], [`text`] and [`runtime`], are modules with their own names.
//! Examples on the pages of modules name their crates: `ixc_generate::session` is
//! `ixc::session` here.
//!
//! # Errors
//!
//! Each crate has its own error. [`Error`] wraps them all, so that `?` takes any of them.
//! [`Error::class`] returns the kind of failure, and [`Error::remedy`] the change that may help.
//! Model files, plans and requests may be hostile: a failure is an error, never a panic.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub use ixc_error::Error;
pub use ixc_generate::loaded_model::LoadOptions;
pub use ixc_generate::session::{Completion, Session, TextOptions, TextStream};
pub use ixc_text::template::Message;

pub use ixc_compile::Error as CompileError;
pub use ixc_compile::{
    build, bytes_per_token, checksum, cluster, compile, demo, dump, excerpt, hub, kernel_check, machine, model, place,
    replacements, select, simulate, support, tuned,
};
pub use ixc_error::error;
pub use ixc_generate::Error as GenerationError;
pub use ixc_generate::{
    answer, budget, chat, draft_model, drive, embedding, expert_use, explain, generator, loaded_model, moe,
    output_text, own_layer, plan_cache, plan_file, prompt_cache, ranks, session, speculate, timing,
};
pub use ixc_measure::Error as MeasureError;
pub use ixc_measure::{bench, eval, forecast, kl_divergence, npy, ratio};
/// *Needs the feature `serve`.*
#[cfg(feature = "serve")]
pub use ixc_serve::Error as ServeError;
/// *Needs the feature `serve`.*
#[cfg(feature = "serve")]
pub use ixc_serve::{batch, http as server, model as served_model, service, serving};
pub use ixc_workbench::Error as WorkbenchError;
pub use ixc_workbench::{kernels, report};

// Whole crates are pages of this crate's documentation, like modules.
#[doc(inline)]
pub use {
    ixc_architectures as architectures, ixc_codegen as codegen, ixc_cost as cost, ixc_dataflow as dataflow,
    ixc_files as files, ixc_grammar as grammar, ixc_ir as ir, ixc_model_files as model_files, ixc_passes as passes,
    ixc_quantise as quantise, ixc_runtime as runtime, ixc_targets as targets, ixc_text as text,
    ixc_transport as transport,
};

/// Runs the examples of the page `docs/rust.md` as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
struct RustPage;
