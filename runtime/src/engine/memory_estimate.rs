//! An estimate of the memory that a plan needs, by the rules of loading, before the plan is loaded.
//!
//! The input is an open plan with expert groups. The result is the fixed bytes, and the number of
//! expert slots for any larger budget. The estimate reads only the plan; it maps and packs nothing.
//! The states of each sequence count in full. Sharing ([`crate::storage::shared_pages`]) cannot be
//! predicted, and each sequence may come to have its own pages.
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
    /// Bytes that a run takes without experts. They include the present memory of this process.
    pub fixed: u64,
    /// The blocks of all experts.
    pub blocks: Vec<Block>,
    /// Max experts of a layer for one token.
    pub top_k: u32,
    /// Path of the file that stores most bytes of experts.
    pub path: PathBuf,
}

/// Returns the needs of a plan, or `None` for a plan without expert groups, which is always
/// completely in memory.
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
/// include the present memory of this process. Loading compares the same sum with
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
    // If the early ids are exact, the program has an announcement instead of a prediction.
    let program = Program::new(plan)?;
    Ok(program.stages.iter().flat_map(|stage| &stage.then).any(|then| matches!(then, BarrierAction::Predict { .. })))
}

/// Returns whether a plan defers experts of a layer to the next layer. Such a plan requests a
/// group's experts more than once.
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
    /// Returns the min budget that works.
    pub fn min_bytes(&self) -> u64 {
        self.fixed.saturating_add(BudgetSplit::minimum(&self.blocks, self.top_k).bytes())
    }

    /// Returns the budget that holds all experts.
    pub fn all(&self) -> u64 {
        // Adds room for the largest staging area.
        let staging = self.blocks.iter().map(Block::staging_bytes).max().unwrap_or(0);
        let slots =
            BudgetSplit::spend(&self.blocks, self.top_k, u64::MAX / 2, None).map_or(u64::MAX / 2, |all| all.bytes());
        // Staging takes a fraction of the budget, so slots plus the largest staging area suffice.
        self.fixed.saturating_add(slots).saturating_add(staging)
    }

    /// Returns how a budget is divided into slots and staging.
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

    /// Returns the mean bytes that are read for a block.
    pub fn bytes_read(&self) -> f64 {
        self.blocks.iter().map(|block| block.span() as f64).sum::<f64>() / self.blocks.len().max(1) as f64
    }

    /// Returns the fraction of blocks that must be packed after they are read.
    pub fn raw(&self) -> f64 {
        let raw = self.blocks.iter().filter(|block| matches!(block.form, BlockEncoding::Raw { .. })).count();
        raw as f64 / self.blocks.len().max(1) as f64
    }
}
