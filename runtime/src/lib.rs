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
//! Layers, each of which uses what stands above it (`testing/tests/modules.rs`):
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`processors`] | which processors there are, and binding threads to them |
//! | [`pool`] | persistent threads and their barrier: spin, then park |
//! | [`gauge`] | how far something is that takes long |
//! | [`bucket`] | sorting routed rows by expert |
//! | `reads` | what is read from a drive, and why |
//! | `storage` | where bytes are: [`memory`], [`blocks`], packing |
//! | [`trace`] | what happened when, as a file that Perfetto opens |
//! | [`stream`] | the expert cache: blocks of weights read from files as they are needed, under a budget |
//! | [`program`] | the check of a plan, and the tables that running it needs |
//! | [`error`] | what goes wrong in loading, and in a step |
//! | `plan_check` | the check of a whole plan, without its files |
//! | `executor` | a step: [`execute`], [`states`], [`stats`], experts and [`page_cache_hints`] |
//! | [`engine`] | from a plan to tokens: [`mod@file`], [`load`], [`memory_estimate`], [`sample`], [`saved`] |
//!
//! Invariant: a plan is hostile until checked. What depends on the step is checked for every item just before its kernel
//! runs, so that a wrong plan gives an error and never a stray access.
//! Invariant: results do not depend on the number of threads: items write disjoint outputs, and how rows are cut into
//! items is fixed by the plan and the row counts alone.
//! Invariant: weights that kernels read as they lie in a file are mapped and never copied; the others are packed when they are
//! first needed (`weights`), stay so, and the pages that they were read from are given back.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod bucket;
pub mod engine;
pub mod error;
mod executor;
pub mod gauge;
mod plan_check;
pub mod pool;
pub mod processors;
pub mod program;
mod reads;
#[cfg(all(test, target_os = "linux"))]
mod refused;
mod storage;
pub mod stream;
pub mod trace;

pub(crate) use engine::model_files;
pub use engine::{expert_layers, expert_use, file, load, memory_estimate, options, sample, saved};
pub(crate) use executor::sliding;
pub(crate) use executor::{crew, expert_prefetch, experts};
pub use executor::{execute, expert_counts, page_cache_hints, states, stats};
pub use storage::{blocks, lock, memory, pages, shared_pages};
pub(crate) use storage::{identity, pack, page_file, program_pages, stored, weights};
