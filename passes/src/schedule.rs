//! From a graph to a plan: kernels, work lists, barriers, one arena, by the passes [`lower`], [`steps`] and [`arena`].
//!
//! Needs: a verified module whose function `@step` has the parameters and results that [`ixc_ir::graph`] says, and whose weights say how
//! products read them (`pack`, `tile`). Leaves: a [`Plan`](ixc_ir::plan::Plan) whose kernels are specs; a graph as a frontend wrote it can be scheduled too, it
//! just is not fast.
//!
//! ```text
//!   %h = rms_norm.quantise %y, @norm {eps = 1e-6, format = a8_super} : a8_super[L, 256]
//!   %logits = linear %h, @w, _, _ : f32[L, 520]                 // @w : q4_k[520, 256]
//! ```
//! becomes, as `ixc dump --stage plan` shows it (arguments left out),
//! ```text
//! step 2: run, alone with up to 32 rows
//!   rms_norm.quantise norm: outputs x 1, rms_norm_a8_super_n256_e358637bd
//! step 3: run
//!   linear w: outputs x 16, gemv_q4_k_a8_super_t32n520k256 by 5 to 5 rows, gemm_q4_k_a8_super_t32n520k256 by 96
//!   linear w tail: outputs x 1, gemv_q4_k_a8_super_t8n520k256 by 5 to 5 rows, gemm_q4_k_a8_super_t8n520k256 by 96
//! ```
//!
//! Each op becomes tasks that read and write buffers ([`lower`], and `matrix` for products; [`bind`]
//! puts each kernel's arguments, which they name, in its order); tasks go into the earliest step
//! after all that they read is written ([`steps`]), so that there are as many barriers as the longest chain of tasks is long that are worth
//! sharing ([`alone`]), and no fewer are possible; and buffers whose lives do not meet share the arena's bytes ([`arena`]).

pub mod alone;
pub mod arena;
pub mod bind;
pub mod lower;
mod matrix;
pub mod steps;

use crate::draft::{Draft, Resource, What, Work};
use crate::error::ScheduleError;

/// Tokens of a step unless told otherwise: enough for matrix products at full speed, and some ten megabytes of activations.
pub const DEFAULT_MAX_TOKENS: u32 = 512;
