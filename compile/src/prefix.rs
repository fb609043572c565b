//! IR of a model after the passes before `residency`. These passes do not depend on memory, so they
//! run once for all plans of the model.
//!
//! ```
//! use ixc_compile::{compile::{CompileOptions, specs}, model::Model, prefix::Prefix};
//!
//! let model = Model::new(ixc_compile::demo::open()?)?;
//! let prefix = Prefix::new(&model, &CompileOptions::default())?;
//! for expert_memory in [None, Some(1 << 20)] {
//!     let options = CompileOptions { expert_memory, ..CompileOptions::default() };
//!     assert_eq!(prefix.clone().specs(&model, &options)?, specs(&model, &options)?);
//! }
//! # Ok::<(), ixc_compile::Error>(())
//! ```

use ixc_ir::graph::Module;
use ixc_ir::plan::Plan;
use ixc_kernels::KernelSpec;
use ixc_passes::manager::{self, Ir};
use ixc_passes::pass::Pass;
use ixc_passes::residency;

use crate::Error;
use crate::compile::{CompileOptions, begin, passes_to, plan_of, run_owned};
use crate::model::Model;

/// IR of a model after the passes before `residency`.
#[derive(Clone, Debug)]
pub struct Prefix {
    ir: Ir,
    /// Passes that must still run.
    left: &'static [&'static Pass],
    /// Number of passes that were recorded so far.
    recorded: usize,
}

impl Prefix {
    /// Runs the passes before `residency`. Copies the model's graph.
    ///
    /// # Errors
    /// See [`compile`](crate::compile::compile).
    pub fn new(model: &Model, options: &CompileOptions) -> Result<Prefix, Error> {
        let passes = passes_to(options, manager::names().last().copied())?;
        // If compilation starts after `residency`, no pass runs here.
        let count = passes.iter().position(|pass| pass.name == residency::PASS.name).unwrap_or(0);
        let (before, left) = passes.split_at(count);
        let (_, ir) = run_owned(model, options, begin(model, options)?, before, None)?;
        let recorded = options.recording.as_ref().map_or(0, |recording| recording.count());
        Ok(Prefix { ir, left, recorded })
    }

    /// Returns the minimum number of bytes that all experts take in memory.
    pub fn min_expert_bytes(&self) -> u64 {
        match &self.ir {
            Ir::Graph(module) => residency::min_expert_bytes(module),
            Ir::Draft(_) | Ir::Plan(_) => 0,
        }
    }

    /// Returns whether the model has a weight with a matrix for each expert.
    pub fn has_experts(&self) -> bool {
        let has_matrices = |shape: &[u64]| shape.len() == 3;
        match &self.ir {
            Ir::Graph(module) => module.weights.iter().any(|weight| has_matrices(&weight.shape)),
            Ir::Draft(draft) => draft.plan.weights.iter().any(|weight| has_matrices(&weight.shape)),
            Ir::Plan(plan) => plan.weights.iter().any(|weight| has_matrices(&weight.shape)),
        }
    }

    /// Runs the remaining passes. Returns the graph that was lowered, and the plan with specs in
    /// place of kernels. The options of the passes that already ran must be the same as before.
    ///
    /// # Errors
    /// See [`compile`](crate::compile::compile).
    pub fn specs(self, model: &Model, options: &CompileOptions) -> Result<(Module, Plan<KernelSpec>), Error> {
        if let Some(recording) = &options.recording {
            recording.truncate(self.recorded);
        }
        let (fused, left) = run_owned(model, options, self.ir, self.left, None)?;
        Ok((fused, plan_of(left)?))
    }
}
