//! Plans for several ranks: one plan for each, compiled with the pass option `shard`.

use ixc_compile::compile::CompileOptions;
use ixc_compile::model::Model;
use ixc_ir::format::Format;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, RankDivision, State};
use ixc_passes::options::OptionSet;
use ixc_passes::shard;
use ixc_runtime::engine;

use crate::Error;
use crate::budget::compile_within;

/// Compiles the plan of each rank. The budget in `run` is that of one rank.
///
/// # Errors
/// See [`compile_within`]; also if the model cannot be divided.
pub fn compile_ranks(
    model: &Model,
    options: &CompileOptions,
    run: &engine::EngineOptions,
    ranks: u32,
    division: RankDivision,
) -> Result<Vec<Plan<Kernel>>, Error> {
    let plan = |rank: u32| {
        let shard = OptionSet::default().with(&shard::ShardOptions { ranks, rank, by: division });
        let options = CompileOptions { passes: shard.over(&options.passes), ..options.clone() };
        compile_within(model, &options, run).map(|(compiled, _)| compiled.plan)
    };
    let mut plans = (0..ranks).map(plan).collect::<Result<Vec<_>, Error>>()?;
    share_states(&mut plans);
    Ok(plans)
}

/// Returns whether two states keep and lose positions by the same rules.
fn are_alike(a: &State, b: &State) -> bool {
    (a.kind, a.rollback, a.window, a.every, a.chunked) == (b.kind, b.rollback, b.window, b.every, b.chunked)
}

/// Adds a small state of each kind that other ranks have. All ranks then truncate sequences to the
/// same positions, although a rank may have layers without a window or without a recurrent state.
fn share_states(plans: &mut [Plan<Kernel>]) {
    let mut kinds: Vec<State> = Vec::new();
    for state in plans.iter().flat_map(|plan| &plan.states) {
        if !kinds.iter().any(|known| are_alike(known, state)) {
            let mut small = State { name: format!("positions of {}", state.name), ..state.clone() };
            for field in &mut small.fields {
                (field.columns, field.width) = (1, smallest(field.format, field.width));
            }
            kinds.push(small);
        }
    }
    for plan in plans {
        let missing = kinds.iter().filter(|kind| !plan.states.iter().any(|state| are_alike(kind, state)));
        let missing: Vec<State> = missing.cloned().collect();
        plan.states.extend(missing);
    }
}

/// Returns the smallest width of a column: one block of the format, or `width` if that is less.
fn smallest(format: Format, width: u32) -> u32 {
    u32::try_from(format.block_len()).unwrap_or(width).min(width)
}
