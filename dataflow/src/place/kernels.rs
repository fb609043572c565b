//! Kernels of plans in pieces, each generated once however many sizes are tried.

use std::collections::HashMap;

use ixc_codegen::parallel;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_kernels::{GenerateError, KernelSpec, generate};
use ixc_targets::Target;

/// What kernels are written for: sixteen lanes and products of four bytes at once, which a PE has (or does one after the other, to the same
/// bits), so that weights need no working memory to be unpacked to.
const WRITTEN_FOR: &str = "zen4";

/// Kernels by spec.
#[derive(Debug, Default)]
pub struct Kernels(HashMap<KernelSpec, Kernel>);

impl Kernels {
    /// A plan with kernels in place of their specs.
    ///
    /// # Errors
    /// When a spec asks for what its generator does not have.
    pub fn of(&mut self, plan: Plan<KernelSpec>) -> Result<Plan<Kernel>, GenerateError> {
        let target = Target::from_name(WRITTEN_FOR).unwrap_or(Target::PORTABLE);
        let new: Vec<KernelSpec> = plan.kernels.iter().filter(|spec| !self.0.contains_key(spec)).cloned().collect();
        for (spec, kernel) in new.iter().zip(parallel::map(&new, |spec| generate(spec, target))) {
            self.0.insert(spec.clone(), kernel?);
        }
        plan.try_map_kernels(|spec| match self.0.get(&spec) {
            Some(kernel) => Ok(kernel.clone()),
            None => generate(&spec, target),
        })
    }
}
