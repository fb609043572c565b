//! What a plan takes of memory: found out before it is loaded, and by the same rules.
//!
//! In: an open plan that says when its experts are needed. Out: the bytes that are there all the time, and how any budget beyond
//! them is spent on slots for experts. Nothing is mapped, packed or read but the plan. States are counted whole for each sequence: what
//! they will share ([`crate::shared_pages`]) nobody knows before they are there, and each may come to have its own.
//!
//! ```text
//! budget 6 GiB = 1.9 GiB fixed (weights of every token, KV cache, activations, code) + 4.1 GiB slots: 1571 of 6144 experts
//! ```

use std::path::{Path, PathBuf};

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, Step};

use crate::file::PlanFile;
use crate::load::{self, LoadError, Run};
use crate::options::Options;
use crate::program::{BarrierAction, Program};
use crate::stream::budget::Spending;
use crate::stream::{Block, Form};

/// What a plan with streamed experts takes.
#[derive(Clone, Debug)]
pub struct Needs {
    /// Bytes that a run takes besides experts, what this process has already counted.
    pub fixed: u64,
    /// All experts.
    pub blocks: Vec<Block>,
    /// Most experts that a token needs of a layer.
    pub top_k: u32,
    /// The file that most of them lie in.
    pub path: PathBuf,
}

/// The needs of a plan; `None` where it does not say when experts are needed: all of it is in memory then.
///
/// # Errors
/// [`LoadError::Plan`] when the plan is malformed.
pub fn of(file: &PlanFile, folder: &Path, options: &Options) -> Result<Option<Needs>, LoadError> {
    let plan = &file.plan;
    let program = Program::new(plan)?;
    let options = Options { memory: options.memory.or(Some(u64::MAX)), ..options.clone() };
    let Some(streamed) = load::streamed(&program, plan, &options) else { return Ok(None) };
    let fixed = load::fixed_bytes(&program, plan, Some(&streamed), &Run::of(plan, &options));
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

/// Bytes that a process takes that runs a plan with all of its weights in memory, what it has already counted: the sum by which loading it
/// keeps [`Options::memory`] or refuses it.
///
/// # Errors
/// [`LoadError::Plan`] when the plan is malformed.
pub fn resident(plan: &Plan<Kernel>, options: &Options) -> Result<u64, LoadError> {
    let fixed = load::fixed_bytes(&Program::new(plan)?, plan, None, &Run::of(plan, options));
    Ok(load::resident(plan, fixed.saturating_add(load::resident_bytes())))
}

/// Memory of this process now, in bytes, as the system counts it; 0 where it does not tell.
pub fn process_bytes() -> u64 {
    load::resident_bytes()
}

/// Whether a plan predicts experts of a layer before that layer's own router has named them.
///
/// # Errors
/// [`LoadError::Plan`] when the plan is malformed.
pub fn has_early_routers(plan: &Plan<Kernel>) -> Result<bool, LoadError> {
    // What is known before it is needed, and no guess, the program has made an announcement.
    let program = Program::new(plan)?;
    Ok(program.stages.iter().flat_map(|stage| &stage.then).any(|then| matches!(then, BarrierAction::Predict { .. })))
}

/// Whether a plan leaves experts of a layer to the next: it asks for those of a group more than once.
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
    /// The least budget that works.
    pub fn least(&self) -> u64 {
        self.fixed.saturating_add(Spending::least(&self.blocks, self.top_k).bytes())
    }

    /// The budget that holds all experts.
    pub fn all(&self) -> u64 {
        // Room for as much staging as is ever wanted.
        let staging = self.blocks.iter().map(Block::staging_bytes).max().unwrap_or(0);
        let slots = Spending::of(&self.blocks, self.top_k, u64::MAX / 2, None).map_or(u64::MAX / 2, |all| all.bytes());
        // Staging is a part of the budget at most, so that a little more than all slots is enough.
        self.fixed.saturating_add(slots).saturating_add(staging)
    }

    /// How a budget is spent.
    ///
    /// # Errors
    /// [`LoadError::Budget`] where a run would be refused with it.
    pub fn spending(&self, budget: u64) -> Result<Spending, LoadError> {
        let (fixed, needed) = (self.fixed, self.least());
        let left = load::for_experts(budget, fixed, needed.saturating_sub(fixed))?;
        Spending::of(&self.blocks, self.top_k, left, None).map_err(|_| LoadError::Budget { budget, fixed, needed })
    }

    /// Bytes that are read for a block, on average.
    pub fn bytes_read(&self) -> f64 {
        self.blocks.iter().map(|block| block.span() as f64).sum::<f64>() / self.blocks.len().max(1) as f64
    }

    /// The part of blocks that are packed after they were read.
    pub fn raw(&self) -> f64 {
        let raw = self.blocks.iter().filter(|block| matches!(block.form, Form::Raw { .. })).count();
        raw as f64 / self.blocks.len().max(1) as f64
    }
}
