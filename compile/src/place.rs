//! Placement of a model on a grid of processing elements: from the model to a descriptor.
//!
//! ```
//! use ixc_compile::place::{PlaceOptions, place};
//! use ixc_dataflow::grid::Grid;
//! use ixc_compile::model::Model;
//!
//! fn reasons(grid: &Grid) -> Result<Vec<String>, ixc_compile::Error> {
//!     let model = Model::open("model.gguf".as_ref())?;
//!     Ok(place(&model, grid, &PlaceOptions::default())?.descriptor.reasons)
//! }
//! ```

use std::sync::Arc;

use ixc_dataflow::grid::Grid;
use ixc_dataflow::pieces::{self, Partition};
use ixc_dataflow::place::kernels::Kernels;
use ixc_dataflow::place::search::{PlacedPlan, SearchError, search};
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_kernels::KernelSpec;
use ixc_passes::decision::Decisions;
use ixc_passes::draft::Draft;
use ixc_passes::error::PassError;
use ixc_targets::Target;

use crate::Error;
use crate::compile::{self, fuse, lower_module};
use crate::model::Model;

/// Default number of positions in the KV cache, if the model has as many.
pub const DEFAULT_CONTEXT: u32 = 2048;
/// Max number of tokens in a step of the plan, for engines that run the plan. The partial results
/// of attention take memory for each token.
const MAX_TOKENS: u32 = 32;

/// Options of placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceOptions {
    /// Number of positions of the KV cache. The default is [`DEFAULT_CONTEXT`], or the model's
    /// context length if that is shorter.
    pub context: Option<u32>,
}

/// Places a model on a grid: cuts its plan into pieces, and assigns them to processing elements.
///
/// # Errors
/// Fails if the model's graph needs an operation that no kernel has, or the grid is too small.
pub fn place(model: &Model, grid: &Grid, options: &PlaceOptions) -> Result<PlacedPlan, Error> {
    place_told(model, grid, options, None)
}

/// Places a model like [`place`], and records the decisions in `decisions`.
///
/// # Errors
/// The errors of [`place`].
pub fn place_told(
    model: &Model,
    grid: &Grid,
    options: &PlaceOptions,
    decisions: Option<&Arc<Decisions>>,
) -> Result<PlacedPlan, Error> {
    let most = u32::try_from(model.arch.hyper.context_length).unwrap_or(u32::MAX);
    let context = options.context.unwrap_or(DEFAULT_CONTEXT.min(most)).max(1);
    let name = model.gguf.metadata().path().file_stem().map_or("model".into(), |name| name.to_string_lossy());
    let compile = compile::CompileOptions { decisions: decisions.cloned(), ..compile_options() };
    let fused = fuse(model, &compile)?;
    let tasks = lower_module(model, &fused, &compile)?;
    let placed = search(&fused, grid, &name, context, decisions.map(|told| &**told), |partition| {
        in_pieces(&tasks, partition, &compile_options())
    });
    placed.map_err(|error| match error {
        SearchError::Plan(error) => error.into(),
        SearchError::Generate(error) => error.into(),
        SearchError::Place(error) => error.into(),
    })
}

/// Returns the plan of a model, cut into pieces. A grid performs exactly this computation.
///
/// # Errors
/// See [`place`].
pub fn plan_in_pieces(model: &Model, partition: Partition) -> Result<Plan<Kernel>, Error> {
    let compile = compile_options();
    let tasks = lower_module(model, &fuse(model, &compile)?, &compile)?;
    Ok(Kernels::default().generate_all(in_pieces(&tasks, &partition, &compile)?)?)
}

fn in_pieces(
    tasks: &Draft,
    partition: &Partition,
    options: &compile::CompileOptions,
) -> Result<Plan<KernelSpec>, PassError> {
    pieces::plan(tasks, partition, &compile::context(options, None))
}

fn compile_options() -> compile::CompileOptions {
    // The plan can run on any machine, because its kernels are compiled to code when it is loaded.
    compile::CompileOptions {
        target: Some(Target::PORTABLE),
        max_tokens: Some(MAX_TOKENS),
        pack: Some(true),
        ..compile::CompileOptions::default()
    }
}
