//! An estimate of the memory that a plan needs. It uses the rules of loading, but does not load the
//! plan.
//!
//! The input is an open plan with expert groups. The result has the bytes for everything but
//! experts, and the number of expert slots for any larger budget. The estimate reads only the plan;
//! it maps and packs no weights. The states of each sequence count in full. Sequences may share
//! pages ([`crate::storage::shared_pages`]), but the estimate cannot predict this, because each
//! sequence may end up with pages of its own.
//!
//! ```text
//! budget 6 GiB = 1.9 GiB fixed (weights of every token, KV cache, activations, code)
//!              + 4.1 GiB slots: 1571 of 6144 experts
//! ```

use std::path::{Path, PathBuf};

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, Step};

use crate::file::PlanFile;
use crate::load::{self, LoadError, RunSize};
use crate::options::EngineOptions;
use crate::program::{BarrierAction, Program};
use crate::streaming::budget::BudgetSplit;
use crate::streaming::{Block, BlockEncoding};

/// The memory needs of a plan with streamed experts.
#[derive(Clone, Debug)]
pub struct Needs {
    /// Bytes that a run takes without blocks of experts. They include the present memory of this
    /// process.
    pub fixed: u64,
    /// The blocks of all experts of all layers.
    pub blocks: Vec<Block>,
    /// Maximum number of experts that a layer uses for one token.
    pub top_k: u32,
    /// Path of the file that contains most bytes of experts.
    pub path: PathBuf,
}

/// Returns the memory needs of a plan. Returns `None` for a plan without expert groups, whose
/// weights are always all in memory.
///
/// # Errors
/// [`LoadError::Plan`] if the plan is malformed.
pub fn from_plan_file(file: &PlanFile, folder: &Path, options: &EngineOptions) -> Result<Option<Needs>, LoadError> {
    let plan = &file.plan;
    let program = Program::new(plan)?;
    let options = EngineOptions { memory: options.memory.or(Some(u64::MAX)), ..options.clone() };
    let Some(streamed) = load::streamed_weights(&program, plan, &options) else { return Ok(None) };
    let fixed = load::fixed_bytes(&program, plan, Some(&streamed), &RunSize::new(plan, &options));
    let own = file.weights.as_ref().map(|own| own.place());
    let (layout, paths) = load::layout(&program, plan, folder, own)?;
    let (top_k, blocks) = (layout.top_k, layout.blocks);
    let mut bytes = vec![0u64; paths.len()];
    for extent in blocks.iter().flat_map(|block| &block.extents) {
        if let Some(sum) = bytes.get_mut(extent.file as usize) {
            *sum = sum.saturating_add(extent.bytes);
        }
    }
    let path = paths.into_iter().zip(bytes).max_by_key(|(_, bytes)| *bytes).map(|(path, _)| path).unwrap_or_default();
    Ok(Some(Needs { fixed: fixed.saturating_add(load::needed_process_bytes()), blocks, top_k, path }))
}

/// Returns the number of bytes that a process takes to run a plan with all weights in memory. They
/// include the present memory of this process. Loading compares this sum with
/// [`EngineOptions::memory`].
///
/// # Errors
/// [`LoadError::Plan`] if the plan is malformed.
pub fn resident(plan: &Plan<Kernel>, options: &EngineOptions) -> Result<u64, LoadError> {
    let fixed = load::fixed_bytes(&Program::new(plan)?, plan, None, &RunSize::new(plan, options));
    Ok(load::resident(plan, fixed.saturating_add(load::resident_bytes())))
}

/// Returns the resident memory of this process, in bytes, as the system counts it; 0 if the system
/// does not report it.
pub fn process_bytes() -> u64 {
    load::resident_bytes()
}

/// Returns whether a plan predicts experts of a layer before the layer's own router has chosen
/// them.
///
/// # Errors
/// [`LoadError::Plan`] if the plan is malformed.
pub fn has_early_routers(plan: &Plan<Kernel>) -> Result<bool, LoadError> {
    // If the early router computes exactly the ids of the layer's router, the program announces
    // them with another action, not `Predict`.
    let program = Program::new(plan)?;
    Ok(program.stages.iter().flat_map(|stage| &stage.then).any(|then| matches!(then, BarrierAction::Predict { .. })))
}

/// Returns whether a plan computes some experts of a layer only together with the next layer. Such
/// a plan requests experts of a group more than once.
pub fn defers(plan: &Plan<Kernel>) -> bool {
    let mut groups: Vec<u32> = Vec::new();
    plan.steps.iter().any(|step| match step {
        Step::Request { group, .. } if groups.contains(group) => true,
        Step::Request { group, .. } => {
            groups.push(*group);
            false
        }
        _ => false,
    })
}

impl Needs {
    /// Returns the smallest budget that loading accepts, in bytes.
    pub fn min_bytes(&self) -> u64 {
        self.fixed.saturating_add(BudgetSplit::minimum(&self.blocks, self.top_k).bytes())
    }

    /// Returns the budget in bytes that holds all experts in memory.
    pub fn all(&self) -> u64 {
        // The largest staging area is added below.
        let staging = self.blocks.iter().map(Block::staging_bytes).max().unwrap_or(0);
        let slots =
            BudgetSplit::spend(&self.blocks, self.top_k, u64::MAX / 2, None).map_or(u64::MAX / 2, |all| all.bytes());
        // Staging takes a fraction of the budget. So the slots plus the largest staging area
        // suffice for all experts.
        self.fixed.saturating_add(slots).saturating_add(staging)
    }

    /// Returns how a budget is divided into expert slots and the staging area for reads.
    ///
    /// # Errors
    /// [`LoadError::Budget`] if loading would refuse this budget.
    pub fn spending(&self, budget: u64) -> Result<BudgetSplit, LoadError> {
        let (fixed, needed) = (self.fixed, self.min_bytes());
        let left = load::for_experts(budget, fixed, needed.saturating_sub(fixed))?;
        BudgetSplit::spend(&self.blocks, self.top_k, left, None).map_err(|_| LoadError::Budget {
            budget,
            fixed,
            needed,
        })
    }

    /// Returns the mean number of bytes that are read for a block of an expert.
    pub fn bytes_read(&self) -> f64 {
        self.blocks.iter().map(|block| block.span() as f64).sum::<f64>() / self.blocks.len().max(1) as f64
    }

    /// Returns the fraction of expert blocks that must be packed after they are read.
    pub fn raw(&self) -> f64 {
        let raw = self.blocks.iter().filter(|block| matches!(block.form, BlockEncoding::Raw { .. })).count();
        raw as f64 / self.blocks.len().max(1) as f64
    }
}
