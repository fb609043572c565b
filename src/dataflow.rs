//! From a model to a descriptor: what runs where on a grid of processing elements.
//!
//! ```
//! use ixc::dataflow::{Options, place};
//! use ixc::ir::dataflow::grid::Grid;
//! use ixc::model::Model;
//!
//! fn reasons(grid: &Grid) -> Result<Vec<String>, ixc::Error> {
//!     let model = Model::open("model.gguf".as_ref())?;
//!     Ok(place(&model, grid, &Options::default())?.descriptor.reasons)
//! }
//! ```

use std::collections::HashMap;

use ixc_codegen::parallel;
use ixc_ir::dataflow::grid::Grid;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_kernels::{KernelSpec, generate};
use ixc_passes::place::search::{SearchError, search};
use ixc_passes::schedule::pieces::Pieces;
use ixc_targets::Target;

use crate::Error;
use crate::compile::{self, fuse, scheduled};
use crate::model::Model;

pub use ixc_passes::place::search::Placed;

/// Positions of the KV cache unless told otherwise, where the model has as many.
pub const DEFAULT_CONTEXT: u32 = 2048;
/// What kernels are written for: sixteen lanes and products of four bytes at once, which a PE has (or does one after the other, to the same
/// bits), so that weights need no working memory to be unpacked to.
const KERNELS: &str = "zen4";
/// Most tokens of a step of the plan, for engines that run it: each takes memory for its parts of attention.
const MAX_TOKENS: u32 = 32;

/// How to place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Positions of the KV cache; [`DEFAULT_CONTEXT`] or the model's context, where that is shorter.
    pub context: Option<u32>,
}

/// Places a model on a grid: a plan in pieces, and where they run.
///
/// # Errors
/// When the model's graph asks for what no kernel does, or the grid has no room.
pub fn place(model: &Model, grid: &Grid, options: &Options) -> Result<Placed, Error> {
    let most = u32::try_from(model.arch.hyper.context_length).unwrap_or(u32::MAX);
    let context = options.context.unwrap_or(DEFAULT_CONTEXT.min(most)).max(1);
    let name = model.gguf.metadata().path().file_stem().map_or("model".into(), |name| name.to_string_lossy());
    let compile = compile_options();
    let fused = fuse(model, &compile)?;
    let mut kernels = HashMap::new();
    let placed = search(&fused, grid, (&name, context), |pieces| plan(model, &fused, *pieces, &mut kernels));
    placed.map_err(|error| match error {
        SearchError::Plan(error) => error,
        SearchError::Place(error) => error.into(),
    })
}

/// The plan of a model in pieces: what a grid that is given them computes.
///
/// # Errors
/// As [`place`].
pub fn plan_in_pieces(model: &Model, pieces: Pieces) -> Result<Plan<Kernel>, Error> {
    plan(model, &fuse(model, &compile_options())?, pieces, &mut HashMap::new())
}

fn compile_options() -> compile::Options {
    // Any machine can run the plan: its kernels are lowered when it is loaded.
    compile::Options {
        target: Target::PORTABLE,
        max_tokens: MAX_TOKENS,
        pack: Some(true),
        ..compile::Options::default()
    }
}

/// The plan in pieces; kernels that were made before are in `kernels`.
fn plan(
    model: &Model,
    fused: &ixc_ir::graph::Module,
    pieces: Pieces,
    kernels: &mut HashMap<KernelSpec, Kernel>,
) -> Result<Plan<Kernel>, Error> {
    let options = compile_options();
    let plan = scheduled(model, fused, &options, Some(pieces))?;
    let target = Target::from_name(KERNELS).unwrap_or(options.target);
    let new: Vec<KernelSpec> = plan.kernels.iter().filter(|spec| !kernels.contains_key(spec)).cloned().collect();
    for (spec, kernel) in new.iter().zip(parallel::map(&new, |spec| generate(spec, target))) {
        kernels.insert(spec.clone(), kernel?);
    }
    plan.try_map_kernels(|spec| match kernels.get(&spec) {
        Some(kernel) => Ok(kernel.clone()),
        None => Ok(generate(&spec, target)?),
    })
}
