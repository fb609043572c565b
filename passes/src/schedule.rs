//! `schedule`: from a graph to a plan: kernels, work lists, barriers, one arena.
//!
//! Needs: a verified module whose function `@step` has the parameters and results that [`ixc_ir::graph`] says. Leaves: a
//! [`Plan`] whose kernels are specs; a graph as a frontend wrote it can be scheduled too, it just is not fast.
//!
//! ```text
//!   %h = rms_norm.quantise %y, @norm {eps = 1e-6, format = a8_super} : a8_super[L, 256]
//!   %logits = linear %h, @w, _, _ : f32[L, 520]                 // @w : q4_k[520, 256]
//! ```
//! becomes, as `ixc dump --stage plan` shows it (arguments left out),
//! ```text
//! step 2: run
//!   rms_norm.quantise norm: outputs x 1, rms_norm_a8_super_n256_e358637bd
//! step 3: run
//!   linear w: outputs x 16, gemv_q4_k_a8_super_t32n520k256 by 5 to 5 rows, gemm_q4_k_a8_super_t32n520k256 by 96
//!   linear w tail: outputs x 1, gemv_q4_k_a8_super_t8n520k256 by 5 to 5 rows, gemm_q4_k_a8_super_t8n520k256 by 96
//! ```
//!
//! Each op becomes tasks that read and write buffers (`lower`, and `matrix` for products, with `tiling`, `packing` and [`pieces`] for how; `bind`
//! puts each kernel's arguments, which they name, in its order); tasks go into the earliest step
//! after all that they read is written (`steps`), so that there are as many barriers as the longest chain of tasks is long,
//! and no fewer are possible; and buffers whose lives do not meet share the arena's bytes (`arena`).

mod arena;
mod bind;
mod lower;
mod matrix;
pub mod packing;
pub mod pieces;
mod steps;
mod tiling;

use ixc_ir::graph::Module;
use ixc_ir::graph::interpret::{SourceError, WeightSource};
use ixc_ir::plan::{Plan, SourceFile};
use ixc_kernels::signature::BindError;
use ixc_kernels::{KernelSpec, Softmax};

use lower::{Lowering, Rows};
use pieces::Pieces;

/// Tokens of a step unless told otherwise: enough for matrix products at full speed, and some ten megabytes of activations.
pub const DEFAULT_MAX_TOKENS: u32 = 512;

/// What kernels for matrix products the target has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatrixTarget {
    /// Kernels for packed weights, in which a lane is a weight row: weights are packed where their shapes allow it.
    pub packed: bool,
    /// Tile products for many rows of packed weights: activations are bf16, too. Means nothing without `packed`.
    pub tiles: bool,
}

/// What the plan says that the graph does not.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Architecture's name, for people.
    pub architecture: String,
    /// Target's name.
    pub target: String,
    /// Most tokens of a step, at least 1.
    pub max_tokens: u32,
    /// Context length that the model was made for.
    pub context_length: u32,
    /// What the target's kernels can do.
    pub matrix: MatrixTarget,
    /// Cuts work into pieces for processing elements; `None` cuts it for threads.
    pub pieces: Option<Pieces>,
    /// Model files; weights' places count them.
    pub files: Vec<SourceFile>,
    /// Tokenizer and chat template, as the frontend encodes them.
    pub tokenizer: Vec<u8>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// The module has no function `@step` of the right kind.
    #[error(
        "a plan is made from a function @step(ids: i32[T], pos: i32[T], rows: i32[L]) -> (f32[L, vocabulary]); {problem}"
    )]
    Step {
        /// What is not so.
        problem: String,
    },
    /// No kernel does this.
    #[error("{op}: no kernel does this: {problem}")]
    Unsupported {
        /// The op's mnemonic.
        op: &'static str,
        /// What is not supported, and what would be.
        problem: String,
    },
    /// What the schedule gives a kernel is not what the kernel takes.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A number of the plan is too large.
    #[error("{what} is {value}, which does not fit {limit}")]
    TooLarge {
        /// Which number.
        what: String,
        /// Its value, as text where it does not even fit 64 bits.
        value: String,
        /// The largest.
        limit: u64,
    },
    /// The module's text has no place for a weight.
    #[error("weight @{name} has no place in a file; a plan needs {{file = N, offset = N}}")]
    NoPlace {
        /// The weight.
        name: String,
    },
    /// A weight does not lie in its file.
    #[error("weight @{name} is {bytes} bytes at {offset} of file {file}, of which there are {available}")]
    Place {
        /// The weight.
        name: String,
        /// Number of the file.
        file: u32,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
        /// Bytes of the file, 0 where there is no such file.
        available: u64,
    },
    /// A weight that the plan itself needs could not be read.
    #[error("weight @{name} cannot be read: {error}")]
    Weight {
        /// The weight.
        name: String,
        /// Why.
        error: SourceError,
    },
}

/// Runs the pass. `weights` is asked for frequency factors of rotations, a few hundred bytes, and nothing else.
///
/// # Errors
/// When `@step` is missing or of another kind, an op cannot be lowered, a size does not fit, or a weight has no place.
pub fn run(module: &Module, weights: &dyn WeightSource, settings: Settings) -> Result<Plan<KernelSpec>, ScheduleError> {
    let step = |problem: String| ScheduleError::Step { problem };
    if settings.max_tokens == 0 {
        return Err(step("max_tokens is 0; at least 1 token makes a step".to_string()));
    }
    let function = module
        .functions
        .iter()
        .find(|function| function.name == "step")
        .ok_or_else(|| step("there is no function of that name".to_string()))?;
    let mut lowering = Lowering::new(module, function, weights, &settings)?;
    for op in &function.ops {
        lowering.op(op)?;
    }
    let [logits] = function.results[..] else {
        return Err(step(format!("it has {} results", function.results.len())));
    };
    let result = lowering.stored("return", logits)?;
    if result.rows != Rows::Outputs || function.ty(logits).dims().len() != 2 {
        return Err(step(format!("its result is {}, of other rows than those wanted", function.ty(logits))));
    }
    let vocabulary = lower::fit("vocabulary", result.width)?;
    let softmax = lowering.kernel(Softmax { n: vocabulary })?;

    let expert_groups = lowering.expert_groups()?;
    let steps = steps::steps(&lowering.work);
    if steps::ends_with_residency(&lowering.work, &steps) {
        let problem = "experts that nothing is computed after; a step ends with its logits".to_string();
        return Err(ScheduleError::Unsupported { op: "expert.evict", problem });
    }
    let lives = arena::lives(&lowering.work, &steps, lowering.buffers.len(), result.buffer);
    let (buffers, arena_bytes) = arena::place(&lowering.buffers, &lives, settings.max_tokens)?;
    tracing::debug!(
        steps = steps.len(),
        tasks = lowering.work.len(),
        kernels = lowering.kernels.len(),
        buffers = buffers.len(),
        arena_bytes,
        weights = lowering.plan_weights.len(),
        "scheduled"
    );
    let Lowering { kernels, plan_weights, ropes, states, buckets, work, .. } = lowering;
    Ok(Plan {
        architecture: settings.architecture,
        target: settings.target,
        max_tokens: settings.max_tokens,
        context_length: settings.context_length,
        vocabulary,
        files: settings.files,
        weights: plan_weights,
        own_weight_bytes: 0,
        ropes,
        states,
        expert_groups,
        buckets,
        buffers,
        arena_bytes,
        kernels,
        steps: steps::build(work, &steps),
        logits: result.buffer,
        softmax,
        tokenizer: settings.tokenizer,
    })
}
