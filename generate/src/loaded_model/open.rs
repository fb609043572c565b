//! Loading of an engine: compiles a model for a run, or takes a plan, and loads the plan.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ixc_codegen::module::CodegenError;
use ixc_ir::plan::{Plan, WeightFile};
use ixc_runtime::engine::{self, ExpertStore};
use ixc_runtime::file::PlanFile;
use ixc_runtime::load::LoadError;
use ixc_runtime::streaming::drive::DriveOptions;

use crate::Error;
use crate::budget::{self, ResidentPlan};
use crate::drive;
use ixc_compile::compile::{self, Compilation};
use ixc_compile::model::Model;

/// Compiles a model for a run with the options `run`, and returns the plan and the memory budget.
/// `resident` is the plan with all weights in memory, if it was compiled already.
///
/// # Errors
/// See [`compile::compile`].
pub(crate) fn compile_for(
    model: &Model,
    resident: Option<ResidentPlan>,
    wanted: &compile::CompileOptions,
    run: &engine::EngineOptions,
) -> Result<(Compilation, Option<u64>), Error> {
    match run.experts {
        ExpertStore::Stream => match resident {
            Some(resident) => resident.compile_within_budget(model, wanted, run),
            None => budget::compile_within(model, wanted, run),
        },
        ExpertStore::Map => {
            // With mapped experts, kernels read weights directly from the file, so they are not
            // packed; a budget of 0 creates expert groups for hints.
            let (expert_memory, pack) = (Some(0), wanted.pack.or(Some(false)));
            let mapped = compile::CompileOptions { expert_memory, pack, predict_extra: None, ..wanted.clone() };
            let compiled = match resident {
                Some(resident) => resident.again(model, &mapped)?.0,
                None => compile::compile(model, &mapped)?,
            };
            Ok((compiled, None))
        }
    }
}

/// Checks that a plan is for the requested target, if there is one.
///
/// # Errors
/// [`Error::OtherTarget`].
pub(crate) fn is_for<K>(plan: &Plan<K>, wanted: &compile::CompileOptions) -> Result<(), Error> {
    match wanted.target.filter(|wanted| wanted.name() != plan.target) {
        Some(wanted) => Err(Error::OtherTarget { plan: plan.target.clone(), wanted: wanted.name() }),
        None => Ok(()),
    }
}

/// Converts an error of loading a plan; a missing CPU feature becomes a separate error.
pub(crate) fn not_loaded(error: LoadError) -> Error {
    match error {
        LoadError::Codegen(source) if matches!(*source, CodegenError::MissingFeatures { .. }) => {
            Error::NeedsCpu { source }
        }
        error => error.into(),
    }
}

/// Returns the engine options of a plan, with its default budget and the queue depth of its drive.
///
/// # Errors
/// When the plan is malformed.
pub(crate) fn engine_options(
    file: &PlanFile,
    folder: &Path,
    run: &engine::EngineOptions,
    queue_depth: Option<usize>,
) -> Result<(engine::EngineOptions, Option<drive::QueueDepth>), Error> {
    let mut options = engine::EngineOptions { built_in: Some(crate::plan_file::built_in()), ..run.clone() };
    options.memory = match run.experts {
        ExpertStore::Stream => match run.memory {
            Some(memory) => Some(memory),
            None => budget::of_plan(&file.plan, run)?,
        },
        ExpertStore::Map => None,
    };
    let experts = options.memory.and_then(|_| experts_file(file, folder));
    let drive = experts.map(|path| drive::choose(&path, queue_depth));
    if let Some(drive) = &drive {
        options.stream.drive = DriveOptions::of_depth(drive.depth);
    }
    Ok((options, drive))
}

/// Returns the file with most of a plan's experts, if the plan has expert groups that are in a
/// file.
fn experts_file(file: &PlanFile, folder: &Path) -> Option<PathBuf> {
    let plan = &file.plan;
    let own = || file.weights.as_ref().map(|own| own.place().path);
    let mut bytes: HashMap<PathBuf, u64> = HashMap::new();
    for weight in plan.expert_groups.iter().flat_map(|group| &group.weights) {
        let weight = plan.weights.get(*weight as usize)?;
        let path = match weight.file {
            WeightFile::Source(number) => plan.files.get(number as usize).map(|source| folder.join(&source.path)),
            WeightFile::Plan | WeightFile::Blocks { .. } => own(),
            WeightFile::Derived(number) => {
                let piece = plan.derived.get(number as usize)?.pieces.first()?;
                plan.files.get(piece.extent.file as usize).map(|source| folder.join(&source.path))
            }
        };
        let sum = bytes.entry(path?).or_default();
        *sum = sum.saturating_add(weight.bytes);
    }
    // The demo model is not a file.
    bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(path, _)| path).filter(|path| path.is_file())
}
