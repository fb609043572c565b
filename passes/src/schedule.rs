//! Schedule: turns a graph into a plan of kernels, work lists, barriers and one arena, by the
//! passes [`lower`], [`steps`] and [`arena`].
//!
//! Needs: a verified module. Its function `@step` has the parameters and results given in
//! [`ixc_ir::graph`], and its weights carry layouts and tilings (`pack`, `tile`). Leaves: a
//! [`Plan`](ixc_ir::plan::Plan) whose kernels are specs. A graph from a frontend can also be
//! scheduled without other passes, but its plan is slow.
//!
//! ```text
//!   %h = rms_norm.quantise %y, @norm {eps = 1e-6, format = a8_super} : a8_super[L, 256]
//!   %logits = linear %h, @w, _, _ : f32[L, 520]                 // @w : q4_k[520, 256]
//! ```
//! becomes (`ixc dump --stage plan`, without arguments)
//! ```text
//! step 2: run, alone with up to 32 rows
//!   rms_norm.quantise norm: outputs x 1, rms_norm_a8_super_n256_e358637bd
//! step 3: run
//!   linear w: outputs x 16, gemv_q4_k_a8_super_t32n520k256 by 5 to 5 rows, gemm_q4_k_a8_super_t32n520k256 by 96
//!   linear w tail: outputs x 1, gemv_q4_k_a8_super_t8n520k256 by 5 to 5 rows, gemm_q4_k_a8_super_t8n520k256 by 96
//! ```
//!
//! [`lower`] turns each op into tasks that read and write buffers. [`bind`] puts a task's named
//! arguments into the order of each kernel's signature. [`steps`] puts a task into the earliest
//! step after all writes of the buffers that it reads. The number of barriers is then minimal: the
//! length of the longest chain of tasks that are worth sharing between threads ([`single_thread`]).
//! [`arena`] lets buffers with disjoint lifetimes share bytes. Ranks can exchange the two halves of
//! a sum's rows separately (`halves`).

pub mod arena;
pub mod bind;
mod halves;
pub mod lower;
pub mod single_thread;
pub mod steps;

use crate::draft::{Draft, Resource, Work, WorkItem};
use crate::error::ScheduleError;

/// Default maximum tokens of a step. Matrix products then run at full speed, and activations take
/// about ten megabytes.
pub const DEFAULT_MAX_TOKENS: u32 = 512;
