//! A model that is divided among the NUMA nodes of this machine when it is compiled to be run.

use ixc_compile::compile;
use ixc_compile::model::Model;
use ixc_ir::plan::RankDivision;
use ixc_runtime::engine;
use ixc_runtime::file::PlanFile;
use ixc_runtime::load::LoadError;
use ixc_runtime::numa::Numa;
use ixc_runtime::places::ranks_for;

use super::compiled::CompiledModel;
use crate::Error;
use crate::ranks::compile_ranks;

/// Returns whether a model is divided for a run.
pub(super) fn is_divided(run: &engine::EngineOptions) -> bool {
    run.transport.is_none() && ranks_for(run).is_ok_and(|ranks| ranks > 1)
}

/// Compiles a model for a rank on each node. Returns `None` if it is not divided: on one node, or
/// if the model cannot be divided and [`Numa::Auto`] allows that.
///
/// # Errors
/// If the model cannot be divided.
pub(super) fn compile(
    model: &Model,
    wanted: &compile::CompileOptions,
    run: &engine::EngineOptions,
) -> Result<Option<CompiledModel>, Error> {
    let ranks = ranks_for(run).map_err(LoadError::from)?;
    if ranks == 1 || run.transport.is_some() {
        return Ok(None);
    }
    // Ranks with a budget may stream experts, which only a division by experts allows.
    let divisions = match run.memory {
        Some(_) => [RankDivision::Experts, RankDivision::Tensors],
        None => [RankDivision::Tensors, RankDivision::Experts],
    };
    let each = engine::EngineOptions { memory: run.memory.map(|memory| memory / u64::from(ranks)), ..run.clone() };
    let compiled = compile_ranks(model, wanted, &each, ranks, divisions[0])
        .or_else(|first| compile_ranks(model, wanted, &each, ranks, divisions[1]).map_err(|_| first));
    let mut plans = match compiled {
        Ok(plans) => plans.into_iter(),
        Err(error) if run.numa == Numa::Auto => {
            tracing::info!(%error, "the model is not divided among NUMA nodes");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let Some(first) = plans.next() else { return Ok(None) };
    let file = PlanFile { model_files: model.handles()?, other_ranks: plans.collect(), ..PlanFile::new(first) };
    Ok(Some(CompiledModel { file, memory: run.memory, replaced: Vec::new(), tuned: None }))
}
