//! Execution of plans: computes logits and tokens from an `.ixp` file or from a plan in memory.
//!
//! [`Engine::load`](engine::Engine::load) checks a plan, maps the model files and generates code.
//! The engine then runs steps:
//!
//! ```no_run
//! use ixc_runtime::{engine::{Engine, EngineOptions}, file, sample::{Sampler, SamplerSettings}};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = std::path::Path::new("model.ixp");
//! let plan = file::read(path)?;
//! let mut engine = Engine::load(plan, path.parent().unwrap_or(path), &EngineOptions::default())?;
//! let mut sampler = Sampler::new(SamplerSettings::default())?;
//! engine.prefill(&[1, 2, 3])?;
//! let next = sampler.sample(engine.logits(0), &engine)?;
//! # let _ = next; Ok(()) }
//! ```
//!
//! The modules form layers. Each module uses only modules above it in this table (checked by
//! `testing/tests/modules.rs`):
//!
//! | module | owns |
//! | --- | --- |
//! | [`processors`] | processors and cores, and binding of threads to them |
//! | [`numa`] | NUMA nodes: places of ranks, binding of threads and memory |
//! | [`pool`] | persistent threads and their barrier |
//! | [`watchdog`] | the time limit of a step |
//! | [`progress`] | progress of a long operation |
//! | [`expert_sort`] | sorting of routed rows by expert |
//! | `reads` | identity and class of reads from a drive |
//! | [`storage`] | files, mappings and memory: [`storage::memory`], [`storage::blocks`], packing |
//! | [`trace`] | recording of events in a file for Perfetto |
//! | [`streaming`] | the expert cache: experts read from files on demand, within a budget |
//! | [`program`] | the check of a plan, and the tables that running it needs |
//! | [`error`] | errors of loading, and of a step |
//! | `plan_check` | the check of a whole plan, without its files |
//! | `executor` | steps: [`execute`], [`states`], [`stats`], [`traffic`], [`page_cache_hints`] |
//! | [`engine`] | from a plan to tokens: [`mod@file`], [`load`], [`memory_estimate`], [`sample`], [`saved`] |
//!
//! Invariants:
//! - A plan is untrusted until it is checked. Values that depend on the step are checked for each
//!   work item just before its kernel runs. A wrong plan causes an error, never an access outside
//!   the memory of its buffers.
//! - Results do not depend on the number of threads. Work items write disjoint outputs. Only the
//!   plan and the row counts determine how rows are divided into items.
//! - Weights that kernels read in their stored format are mapped and never copied. All other
//!   weights are packed on first use (`storage::weights`) and stay packed; the pages of the file
//!   that they were packed from are released.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod engine;
pub mod error;
mod executor;
pub mod expert_sort;
pub mod numa;
mod plan_check;
pub mod pool;
pub mod processors;
pub mod program;
pub mod progress;
mod reads;
#[cfg(all(test, target_os = "linux"))]
mod refused;
pub mod storage;
pub mod streaming;
mod sync;
pub mod trace;
pub mod watchdog;

pub(crate) use engine::model_files;
pub use engine::{expert_layers, expert_use, file, homes, load, memory_estimate, options, places, sample, saved};
pub(crate) use executor::sliding;
pub use executor::{execute, expert_counts, page_cache_hints, states, stats, traffic};
pub(crate) use executor::{expert_prefetch, experts, thread_count};
