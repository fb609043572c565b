//! Generation of the kernels of plans in pieces. Each kernel is generated once, even if several
//! partitions are tried.

use std::collections::HashMap;

use ixc_codegen::parallel;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_kernels::{GenerateError, KernelSpec, generate};
use ixc_targets::Target;

/// CPU target for which the kernels are generated. It has sixteen lanes and dot products of four
/// bytes, so weights need no working memory for unpacking. A PE without these operations computes
/// the same bits in several steps.
const WRITTEN_FOR: &str = "zen4";

/// Kernels by spec.
#[derive(Debug, Default)]
pub struct Kernels(HashMap<KernelSpec, Kernel>);

impl Kernels {
    /// Returns a plan with kernels in place of their specs.
    ///
    /// # Errors
    /// If a spec needs something that its generator does not support.
    pub fn generate_all(&mut self, plan: Plan<KernelSpec>) -> Result<Plan<Kernel>, GenerateError> {
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
