//! Memory budgets: decides whether a model fits, and compiles it for streamed experts if it does
//! not.
//!
//! The size of a run is the runtime's own sum ([`memory_estimate::resident`]), which also decides
//! whether a plan can be loaded within a budget.
//!
//! ```
//! use ixc_generate::budget;
//! use ixc_compile::{compile::CompileOptions, model::Model};
//! use ixc_runtime::engine;
//!
//! let model = Model::new(ixc_compile::demo::open()?)?;
//! let run = engine::EngineOptions { memory: Some(1 << 20), ..engine::EngineOptions::default() };
//! let (compiled, memory) = budget::compile_within(&model, &CompileOptions::default(), &run)?;
//! // The model exceeds the budget, so the plan has expert groups for streaming.
//! assert!(memory == Some(1 << 20) && !compiled.plan.expert_groups.is_empty());
//! # Ok::<(), ixc_generate::Error>(())
//! ```

use std::sync::Arc;
use std::time::Instant;

use ixc_ir::graph::Module;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, PlanWeight};
use ixc_ir::units::Bytes;
use ixc_kernels::KernelSpec;
use ixc_passes::decision::{Decision, Decisions};
use ixc_runtime::engine::ExpertStore;
use ixc_runtime::load::{DEFAULT_CONTEXT, SPARE_BYTES};
use ixc_runtime::program::MAX_CONTEXT;
use ixc_runtime::{engine, memory_estimate};

use crate::Error;
use ixc_compile::compile::{Compilation, CompileOptions, DECIDES, GeneratedKernels, finish, specs, with_kernels};
use ixc_compile::machine::system;
use ixc_compile::model::Model;
use ixc_compile::prefix::Prefix;
use ixc_compile::tuned;

/// Default share of the free memory that a run may take, in percent; the rest is for the system.
const MEMORY_PART: u64 = 90;
/// Returns the number of bytes of free memory that a run may take; `None` if the system does not
/// report it.
pub fn free_memory() -> Option<u64> {
    Some([system::memory().available, system::cgroup_left()].into_iter().flatten().min()? / 100 * MEMORY_PART)
}

/// Returns the default budget for a run that takes `needed` bytes; `None` if the free memory
/// suffices.
fn default_memory(needed: u64) -> Option<u64> {
    free_memory().filter(|left| needed > *left)
}

/// Returns the number of bytes that a plan takes with all of its weights in memory, in addition to
/// the memory of this process.
///
/// # Errors
/// When the plan is malformed.
pub fn needed_bytes(plan: &Plan<Kernel>, run: &engine::EngineOptions) -> Result<u64, Error> {
    // The sum contains the memory of this process.
    let before = memory_estimate::process_bytes();
    Ok(memory_estimate::resident(plan, run)?.saturating_sub(before))
}

/// Inverse of a share of the budget: with streamed experts, a longer context may take this share.
/// The rest of the budget is for experts.
const STREAMED_CONTEXT_PART: u64 = 8;

/// Returns the longest context that memory allows: the model's own length, or half of it, a
/// quarter, and so on. In such steps, small changes of memory seldom change the context. The min
/// length is the default context of a run. `reserved` bytes are left free.
///
/// # Errors
/// When the plan is malformed.
pub fn longest_context(plan: &Plan<Kernel>, run: &engine::EngineOptions, reserved: u64) -> Result<u32, Error> {
    let most = plan.context_length.min(MAX_CONTEXT);
    let least = most.min(DEFAULT_CONTEXT);
    let needed = |context: u32| {
        memory_estimate::resident(plan, &engine::EngineOptions { context: Some(context.into()), ..run.clone() })
    };
    let process = memory_estimate::process_bytes();
    let total = run.memory.or_else(|| Some(free_memory()?.saturating_add(process)));
    let Some(total) = total.map(|total| total.saturating_sub(reserved)) else { return Ok(least) };
    let is_streamed = !plan.expert_groups.is_empty() && (run.memory.is_some() || run.experts == ExpertStore::Map);
    let bound = match is_streamed {
        true => needed(least)?.saturating_add(total / STREAMED_CONTEXT_PART),
        false => total,
    };
    let mut context = most;
    while context > least {
        let bytes = needed(context)?;
        if with_margin(bytes) <= bound {
            return Ok(context);
        }
        context /= 2;
    }
    Ok(least)
}

/// Adds a margin, since the process may grow before the plan is loaded.
fn with_margin(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 64 + SPARE_BYTES)
}

/// Returns a plan's weights that have a matrix for each expert.
fn expert_weights(plan: &Plan<Kernel>) -> impl Iterator<Item = &PlanWeight> {
    plan.weights.iter().filter(|weight| weight.shape.len() == 3)
}

fn expert_bytes(plan: &Plan<Kernel>) -> u64 {
    expert_weights(plan).filter_map(|weight| weight.bytes_in(weight.format)).fold(0, u64::saturating_add)
}

/// Returns the default budget for a plan with expert groups; `None` if all its weights fit in
/// memory.
///
/// # Errors
/// When the plan is malformed.
pub(crate) fn of_plan(plan: &Plan<Kernel>, run: &engine::EngineOptions) -> Result<Option<u64>, Error> {
    if plan.expert_groups.is_empty() {
        return Ok(None);
    }
    // All ranks of a plan take about the same memory. They run in this process, unless there is a
    // connection to other processes.
    let ranks = plan.ranks.filter(|_| run.transport.is_none()).map_or(1, |ranks| u64::from(ranks.ranks));
    Ok(default_memory(memory_estimate::resident(plan, run)?.saturating_mul(ranks)))
}

/// Compiles a model for a run with the options `run`. If the model exceeds its budget and has
/// experts, the plan streams the experts. Without a budget in `run`, the machine's free memory is
/// the budget of a larger model with experts. Returns the plan and the budget.
///
/// # Errors
/// See [`compile`](ixc_compile::compile::compile).
pub fn compile_within(
    model: &Model,
    options: &CompileOptions,
    run: &engine::EngineOptions,
) -> Result<(Compilation, Option<u64>), Error> {
    match FirstPlan::new(model, options, run)? {
        FirstPlan::Streamed { compiled, memory, .. } => Ok((*compiled, Some(memory))),
        FirstPlan::Resident(resident) => resident.compile_within_budget(model, options, run),
    }
}

/// First plan that a model is compiled to.
pub(crate) enum FirstPlan {
    /// The plan with streamed experts, for a budget that the experts alone exceed.
    Streamed { compiled: Box<Compilation>, memory: u64, min_expert_bytes: u64 },
    /// The plan with all weights in memory, which shows whether all weights fit.
    Resident(Box<ResidentPlan>),
}

impl FirstPlan {
    /// Compiles the first plan: streamed if the experts alone exceed the budget, otherwise
    /// resident.
    pub(crate) fn new(
        model: &Model,
        options: &CompileOptions,
        run: &engine::EngineOptions,
    ) -> Result<FirstPlan, Error> {
        let start = Start::new(model, options)?;
        let min_expert_bytes = start.prefix.min_expert_bytes();
        Ok(match memory_below(min_expert_bytes, run) {
            // The experts alone exceed the budget, so a plan with all experts in memory need
            // not be compiled.
            Some(memory) => {
                let compiled = Box::new(start.compile_streamed(model, options, run, memory)?);
                FirstPlan::Streamed { compiled, memory, min_expert_bytes }
            }
            None => FirstPlan::Resident(Box::new(start.resident(model, options)?)),
        })
    }
}

/// Returns the memory budget of a run, if all experts together exceed it.
pub(crate) fn memory_below(min_expert_bytes: u64, run: &engine::EngineOptions) -> Option<u64> {
    run.memory.or_else(free_memory).filter(|memory| min_expert_bytes > *memory)
}

/// Intermediate result after the passes that do not depend on the budget.
struct Start {
    begin: Instant,
    prefix: Prefix,
    /// Decisions of the passes, if they are recorded.
    decisions: Vec<Decision>,
}

impl Start {
    fn new(model: &Model, options: &CompileOptions) -> Result<Start, Error> {
        let begin = Instant::now();
        let (prefix, decisions) = record_decisions(options, |options| Ok(Prefix::new(model, options)?))?;
        Ok(Start { begin, prefix, decisions })
    }

    /// Compiles the plan with streamed experts, for a budget that the experts exceed.
    fn compile_streamed(
        self,
        model: &Model,
        options: &CompileOptions,
        run: &engine::EngineOptions,
        memory: u64,
    ) -> Result<Compilation, Error> {
        let options = CompileOptions { expert_memory: Some(memory), ..options.clone() };
        let (plan, decisions) = record_decisions(&options, |options| {
            let (fused, plan) = self.prefix.specs(model, options)?;
            Ok((fused, with_kernels(plan, options.target())?))
        })?;
        let (fused, plan) = plan;
        if let Some(record) = &options.decisions {
            let size = Size::from_plan(&plan, run)?;
            size.record(record, memory, Some(size.left_for_experts(memory)));
            record.extend(self.decisions);
            record.extend(decisions);
        }
        Ok(finish(fused, plan, &options, self.begin)?)
    }

    /// Compiles the plan with all weights in memory.
    fn resident(self, model: &Model, options: &CompileOptions) -> Result<ResidentPlan, Error> {
        let Start { begin, prefix, decisions: early } = self;
        let min_expert_bytes = prefix.min_expert_bytes();
        let kept = prefix.has_experts().then(|| prefix.clone());
        let ((fused, plan), late) = record_decisions(options, |options| Ok(prefix.specs(model, options)?))?;
        let specs = plan.kernels.clone();
        let mut generated = GeneratedKernels::new(options.target());
        // The size of a run includes the scratch memory of kernels, so kernels are generated first.
        let plan = generated.put_into(plan)?;
        Ok(ResidentPlan { begin, prefix: kept, min_expert_bytes, fused, plan, specs, generated, early, late })
    }
}

/// Calls `compile` with a new record of decisions, if decisions are requested. Returns the result
/// and the decisions.
fn record_decisions<T>(
    options: &CompileOptions,
    compile: impl FnOnce(&CompileOptions) -> Result<T, Error>,
) -> Result<(T, Vec<Decision>), Error> {
    let own = options.decisions.as_ref().map(|_| Arc::new(Decisions::default()));
    let result = compile(&CompileOptions { decisions: own.clone(), ..options.clone() })?;
    Ok((result, own.map(|own| own.take()).unwrap_or_default()))
}

/// Plan with all weights in memory. The final plan reuses its kernels and its passes that do not
/// depend on the budget, so each kernel is generated once.
#[derive(Debug)]
pub struct ResidentPlan {
    begin: Instant,
    /// Intermediate result from which other plans of the model are compiled; `None` if the model
    /// has no experts.
    prefix: Option<Prefix>,
    min_expert_bytes: u64,
    fused: Module,
    plan: Plan<Kernel>,
    /// Specs of the plan's kernels.
    specs: Vec<KernelSpec>,
    generated: GeneratedKernels,
    /// Decisions of the passes before the end of the prefix; the next field has those of later
    /// passes. Both are empty unless decisions are recorded.
    early: Vec<Decision>,
    late: Vec<Decision>,
}

impl ResidentPlan {
    /// Compiles the plan. Its decisions are recorded only when the plan is used for a run.
    ///
    /// # Errors
    /// See [`compile`](ixc_compile::compile::compile).
    pub fn new(model: &Model, options: &CompileOptions) -> Result<ResidentPlan, Error> {
        Start::new(model, options)?.resident(model, options)
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan<Kernel> {
        &self.plan
    }

    /// Returns the bytes that all experts take at least.
    pub(crate) fn min_expert_bytes(&self) -> u64 {
        self.min_expert_bytes
    }

    /// Returns the number of weights with a measured tiling.
    pub(crate) fn tuned_weights(&self) -> usize {
        tuned::weights(&self.fused)
    }

    /// Returns the plan for a run of the same model and options, like [`compile_within`].
    ///
    /// # Errors
    /// See [`compile`](ixc_compile::compile::compile).
    pub fn compile_within_budget(
        self,
        model: &Model,
        options: &CompileOptions,
        run: &engine::EngineOptions,
    ) -> Result<(Compilation, Option<u64>), Error> {
        let split = self.memory(options, run)?;
        Ok((self.with(model, options, &split)?, split.memory))
    }

    /// Returns the plan of the same model and options, with streamed experts if `split` requires
    /// that.
    ///
    /// # Errors
    /// See [`compile`](ixc_compile::compile::compile).
    pub(crate) fn with(
        mut self,
        model: &Model,
        options: &CompileOptions,
        split: &MemorySplit,
    ) -> Result<Compilation, Error> {
        if let Some(record) = &options.decisions {
            record.extend(std::mem::take(&mut self.early));
        }
        if split.expert_memory.is_some() {
            let options = CompileOptions { expert_memory: split.expert_memory, ..options.clone() };
            return Ok(self.again(model, &options)?.0);
        }
        if let Some(record) = &options.decisions {
            record.extend(self.late);
        }
        Ok(finish(self.fused, self.plan, options, self.begin)?)
    }

    /// Returns the plan of the same model with other options for memory and packing. Also returns
    /// the kernels that this plan does not use.
    pub(crate) fn again(
        self,
        model: &Model,
        options: &CompileOptions,
    ) -> Result<(Compilation, GeneratedKernels), Error> {
        let ResidentPlan { begin, prefix, plan, specs: resident, mut generated, .. } = self;
        generated.add(resident, plan.kernels);
        let (fused, plan) = match prefix {
            Some(prefix) => prefix.specs(model, options)?,
            None => specs(model, options)?,
        };
        Ok((finish(fused, generated.put_into(plan)?, options, begin)?, generated))
    }

    /// Divides the memory of a run between experts and everything else, and records the decision.
    pub(crate) fn memory(&self, options: &CompileOptions, run: &engine::EngineOptions) -> Result<MemorySplit, Error> {
        MemorySplit::new(&self.plan, options, run)
    }
}

/// Division of a run's memory between experts and everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemorySplit {
    /// The budget, if there is one.
    pub(crate) memory: Option<u64>,
    /// Part of the budget for experts, if they are streamed.
    pub(crate) expert_memory: Option<u64>,
}

impl MemorySplit {
    /// Divides the memory of a run between experts and everything else, and records the decision.
    /// `plan` has all weights in memory.
    pub(crate) fn new(
        plan: &Plan<Kernel>,
        options: &CompileOptions,
        run: &engine::EngineOptions,
    ) -> Result<MemorySplit, Error> {
        let size = Size::from_plan(plan, run)?;
        let memory = run.memory.or_else(|| default_memory(size.all).filter(|_| size.experts > 0));
        // A margin is added, because the process grows a little before the plan is loaded. If the
        // plan streams without need, it still runs with all experts in memory.
        let is_over = |memory: u64| with_margin(size.all) > memory;
        // At most half of the experts fit, so that the plan streams them.
        let of_experts = |memory: u64| size.left_for_experts(memory).min(size.experts / 2);
        let expert_memory = memory.filter(|memory| is_over(*memory) && size.experts > 0).map(of_experts);
        if let (Some(record), Some(memory)) = (&options.decisions, memory) {
            size.record(record, memory, expert_memory);
        }
        Ok(MemorySplit { memory, expert_memory })
    }
}

/// Bytes that a run takes with all weights in memory.
#[derive(Clone, Copy, Debug)]
struct Size {
    all: u64,
    /// Bytes of the experts, as a part of the total.
    experts: u64,
}

impl Size {
    fn from_plan(plan: &Plan<Kernel>, run: &engine::EngineOptions) -> Result<Size, Error> {
        Ok(Size { all: memory_estimate::resident(plan, run)?, experts: expert_bytes(plan) })
    }

    /// Returns the number of bytes of a budget that are left for experts.
    fn left_for_experts(self, memory: u64) -> u64 {
        memory.saturating_sub(self.all.saturating_sub(self.experts))
    }

    /// Records the decision whether experts are streamed, and how much memory they get.
    fn record(self, record: &Decisions, memory: u64, expert_memory: Option<u64>) {
        let sizes = format!("all weights in memory would take {}; the budget is {}", Bytes(self.all), Bytes(memory));
        let (all, streamed) = ("all weights in memory", "experts streamed from the drive");
        let decision = Decision::new("a run", "", "memory");
        record.begin(DECIDES);
        record.add(match expert_memory {
            Some(bytes) => {
                decision.chose(format!("{streamed}, {} of the experts in memory", Bytes(bytes))).over(all, sizes)
            }
            None if self.experts == 0 => decision.chose(all).over(streamed, "the model has no experts"),
            None => decision.chose(all).over(streamed, sizes),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ixc_compile::compile::compile;

    use super::*;

    #[test]
    fn each_kernel_of_a_streamed_model_is_generated_once() {
        let model = Model::new(ixc_compile::demo::open().unwrap()).unwrap();
        let (options, run) =
            (CompileOptions::default(), engine::EngineOptions { memory: Some(1 << 20), ..Default::default() });
        let resident = ResidentPlan::new(&model, &options).unwrap();
        let MemorySplit { expert_memory, .. } = resident.memory(&options, &run).unwrap();
        let options = CompileOptions { expert_memory, ..options };
        let (compiled, generated) = resident.again(&model, &options).unwrap();
        let trial = compile(&model, &CompileOptions::default()).unwrap();
        let streamed = compile(&model, &options).unwrap();
        assert!(!compiled.plan.expert_groups.is_empty() && compiled.plan == streamed.plan);
        let names = |plan: Plan<Kernel>| plan.kernels.into_iter().map(|kernel| kernel.name);
        let kernels: BTreeSet<String> = names(trial.plan).chain(names(streamed.plan)).collect();
        assert_eq!(generated.kernel_count(), kernels.len());
    }
}
