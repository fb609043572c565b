//! Check of a whole plan: its tables, its kernels, their work, and the generation of their code. It
//! reads no files.

use ixc_codegen::module;
use ixc_ir::kernel::{self, Kernel};
use ixc_ir::plan::Plan;
use ixc_targets::Target;

use crate::error::load::LoadError;
use crate::program::{MAX_CONTEXT, Program, work};

/// Checks a plan like loading does, before a file is opened or code is generated.
///
/// # Errors
/// [`LoadError::Plan`], [`LoadError::Kernel`] or [`LoadError::Target`].
pub fn verify(plan: &Plan<Kernel>) -> Result<(), LoadError> {
    check_plan(plan)?;
    work(plan, plan.context_length.min(MAX_CONTEXT))?;
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

pub(crate) fn check_plan(plan: &Plan<Kernel>) -> Result<Program, LoadError> {
    let program = Program::new(plan)?;
    for kernel in &plan.kernels {
        kernel::verify::verify(kernel)
            .map_err(|source| LoadError::Kernel { kernel: kernel.name.clone(), source: Box::new(source) })?;
    }
    Ok(program)
}

/// Compares the work of a checked plan with what its model could need. `context` is the length of
/// the longest sequence.
pub(crate) fn work(plan: &Plan<Kernel>, context: u32) -> Result<(), LoadError> {
    work::check(plan, context).map(drop).map_err(LoadError::from)
}

pub(crate) fn target(plan: &Plan<Kernel>) -> Result<Target, LoadError> {
    Target::from_name(&plan.target).ok_or_else(|| LoadError::Target { found: plan.target.clone() })
}
