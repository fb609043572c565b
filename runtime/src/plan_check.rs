//! Check of a whole plan: its tables, its kernels, and the generation of their code. It reads no
//! files.

use ixc_codegen::module;
use ixc_ir::kernel::{self, Kernel};
use ixc_ir::plan::Plan;
use ixc_targets::Target;

use crate::error::load::LoadError;
use crate::program::Program;

/// Checks a plan like loading does, before a file is opened or code is generated.
///
/// # Errors
/// [`LoadError::Plan`], [`LoadError::Kernel`] or [`LoadError::Target`].
pub fn verify(plan: &Plan<Kernel>) -> Result<(), LoadError> {
    checked(plan)?;
    target(plan).map(drop)
}

/// Checks a plan for any target on any machine, and that code can be generated for all of its
/// kernels. Reads no files.
///
/// # Errors
/// Same as [`verify`], and [`LoadError::Codegen`].
pub fn check(plan: &Plan<Kernel>) -> Result<(), LoadError> {
    verify(plan)?;
    module::lower(&plan.kernels, target(plan)?).map(drop).map_err(|source| LoadError::Codegen(Box::new(source)))
}

pub(crate) fn checked(plan: &Plan<Kernel>) -> Result<Program, LoadError> {
    let program = Program::new(plan)?;
    for kernel in &plan.kernels {
        kernel::verify::verify(kernel)
            .map_err(|source| LoadError::Kernel { kernel: kernel.name.clone(), source: Box::new(source) })?;
    }
    Ok(program)
}

pub(crate) fn target(plan: &Plan<Kernel>) -> Result<Target, LoadError> {
    Target::from_name(&plan.target).ok_or_else(|| LoadError::Target { found: plan.target.clone() })
}
