//! Running plans: from an `.ixp` file or a plan in memory to logits and tokens.
//!
//! [`Engine::load`](engine::Engine::load) checks a plan, maps the model files, generates code, and then runs steps:
//!
//! ```no_run
//! use ixc_runtime::{engine::{Engine, Options}, file, sample::{Sampler, Settings}};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = std::path::Path::new("model.ixp");
//! let plan = file::read(path)?;
//! let mut engine = Engine::load(plan, path.parent().unwrap_or(path), &Options::default())?;
//! let mut sampler = Sampler::new(Settings::default())?;
//! engine.prefill(&[1, 2, 3])?;
//! let next = sampler.sample(engine.logits(0), &engine)?;
//! # let _ = next; Ok(()) }
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`mod@file`] | `.ixp` files: header, checksum, reading and writing |
//! | [`program`] | the check of a plan, and the tables that running it needs |
//! | [`memory`] | mappings: model files, arena, KV cache, rotary tables, inputs, scratch |
//! | `pack` | weights of a model file into packed memory |
//! | `weights` | where kernels find weights, and packing them when they are first needed |
//! | [`load`] | from a plan to an engine, and what can be wrong with it |
//! | [`needs`] | what a plan takes of memory, before it is loaded |
//! | [`engine`] | the sequence: prefill, step, truncate, logits |
//! | [`execute`] | one pass over all steps by all threads |
//! | [`gauge`] | how far something is that takes long |
//! | [`advise`] | experts in mapped files: telling the page cache what will be needed |
//! | [`bucket`] | sorting routed rows by expert |
//! | [`pool`] | persistent threads and their barrier: spin, then park |
//! | `foresight` | predicting which experts the next layer needs, while tokens are made one by one |
//! | `stream` | blocks of weights read from files as they are needed, under a budget |
//! | [`stats`] | where the time went |
//! | [`trace`] | what happened when, as a file that Perfetto opens |
//! | [`sample`] | the next token from logits |
//!
//! Invariant: a plan is hostile until checked. What depends on the step is checked for every item just before its kernel
//! runs, so that a wrong plan gives an error and never a stray access.
//! Invariant: results do not depend on the number of threads: items write disjoint outputs, and how rows are cut into
//! items is fixed by the plan and the row counts alone.
//! Invariant: weights that kernels read as they lie in a file are mapped and never copied; the others are packed when they are
//! first needed (`weights`), stay so, and the pages that they were read from are given back.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod advise;
pub mod bucket;
pub mod engine;
pub mod execute;
mod experts;
pub mod file;
mod foresight;
pub mod gauge;
pub mod load;
pub mod memory;
pub mod needs;
mod pack;
pub mod pool;
pub mod program;
pub mod sample;
pub mod states;
pub mod stats;
pub mod stream;
pub mod trace;
mod weights;
