//! Memory budgets: whether a model fits, and how it is compiled where it does not.
//!
//! ```
//! use ixc::{budget, compile::Options, model::Model};
//!
//! let model = Model::new(ixc::demo::open()?)?;
//! let (compiled, memory) = budget::compile_within(&model, &Options::default(), Some(1 << 20), None)?;
//! // It takes more, so that the plan says when experts are needed.
//! assert!(memory == Some(1 << 20) && !compiled.plan.expert_groups.is_empty());
//! # Ok::<(), ixc::Error>(())
//! ```

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, PlanWeight};

use crate::Error;
use crate::compile::{Compiled, Options, compile};
use crate::machine::system;
use crate::model::Model;
use crate::session::DEFAULT_CONTEXT;

/// The part of the memory that is left which is taken where nothing is said, in percent: the rest is the system's.
const MEMORY_PART: u64 = 90;
/// Bytes that a run takes besides weights, KV cache and activations: the plan and its code, the tokenizer, stacks.
const BESIDES: u64 = 64 << 20;

/// The budget where nothing is said, for what takes so many bytes; none where it fits.
fn default_memory(needed: u64) -> Option<u64> {
    let left = [system::memory().available, system::cgroup_left()].into_iter().flatten().min()? / 100 * MEMORY_PART;
    (needed > left).then_some(left)
}

/// Bytes that a plan takes when all of its weights are in memory.
fn needed_memory(plan: &Plan<Kernel>, context: Option<usize>) -> u64 {
    let position = plan.cache.iter().fold(0u64, |sum, layer| {
        // Keys and values are f16.
        let row = u64::from(layer.key_len).saturating_add(layer.value_len.into()).saturating_mul(2);
        sum.saturating_add(row.saturating_mul(layer.heads.into()))
    });
    let most = u64::from(plan.context_length);
    let positions = context.map_or(most.min(DEFAULT_CONTEXT as u64), |context| (context as u64).min(most));
    let weights = plan.weights.iter().filter_map(|weight| weight.bytes_in(weight.format));
    let all = weights.chain([plan.arena_bytes, position.saturating_mul(positions), BESIDES]);
    all.fold(0, u64::saturating_add)
}

/// A plan's weights with a matrix for each expert.
fn expert_weights(plan: &Plan<Kernel>) -> impl Iterator<Item = &PlanWeight> {
    plan.weights.iter().filter(|weight| weight.shape.len() == 3)
}

fn expert_bytes(plan: &Plan<Kernel>) -> u64 {
    expert_weights(plan).filter_map(|weight| weight.bytes_in(weight.format)).fold(0, u64::saturating_add)
}

/// The budget for a plan that says when its experts are needed, where nothing is said; none where all of it fits.
pub(crate) fn of_plan(plan: &Plan<Kernel>, context: Option<usize>) -> Option<u64> {
    if plan.expert_groups.is_empty() { None } else { default_memory(needed_memory(plan, context)) }
}

/// Compiles a model for a budget and a KV cache of so many positions: where it takes more than the budget, and has experts, its plan says when
/// these are needed. Without a budget that is what the machine has left, for a model with experts that is larger. Gives the budget, too.
///
/// # Errors
/// As [`compile`].
pub fn compile_within(
    model: &Model,
    options: &Options,
    memory: Option<u64>,
    context: Option<usize>,
) -> Result<(Compiled, Option<u64>), Error> {
    let resident = compile(model, options)?;
    let experts = expert_bytes(&resident.plan);
    let needed = needed_memory(&resident.plan, context);
    let memory = memory.or_else(|| default_memory(needed).filter(|_| experts > 0));
    // Where it is close, too: a plan that says when experts are needed runs with all of them in memory as well.
    match memory.filter(|memory| needed.saturating_add(needed / 64 + BESIDES) > *memory && experts > 0) {
        Some(left) => {
            // What is left for experts when everything else is there.
            let expert_memory = Some(left.saturating_sub(needed - experts).min(experts / 2));
            Ok((compile(model, &Options { expert_memory, ..options.clone() })?, memory))
        }
        None => Ok((resident, memory)),
    }
}
