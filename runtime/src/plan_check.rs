//! Check of a whole plan without reading its files: the plan's tables, its kernels, the amount of
//! their work, and the generation of their code.

use ixc_codegen::module;
use ixc_ir::kernel::{self, Kernel};
use ixc_ir::plan::Plan;
use ixc_targets::Target;

use crate::error::load::LoadError;
use crate::program::{MAX_CONTEXT, Program, work};

/// Checks a plan as loading does before it opens files or generates code.
///
/// # Errors
/// [`LoadError::Plan`], [`LoadError::Kernel`] or [`LoadError::Target`], for the first problem of
/// the plan.
pub fn verify(plan: &Plan<Kernel>) -> Result<(), LoadError> {
    check_plan(plan)?;
    work(plan, plan.context_length.min(MAX_CONTEXT))?;
    target(plan).map(drop)
}

/// Checks a plan for any target on any machine, and generates code for all of its kernels. Reads no
/// files.
///
/// # Errors
/// See [`verify`]. Also [`LoadError::Codegen`] if code cannot be generated.
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

/// Compares the amount of work of a checked plan with what a model of its size can need. `context`
/// is the maximum length of a sequence.
pub(crate) fn work(plan: &Plan<Kernel>, context: u32) -> Result<(), LoadError> {
    work::check(plan, context).map(drop).map_err(LoadError::from)
}

pub(crate) fn target(plan: &Plan<Kernel>) -> Result<Target, LoadError> {
    Target::from_name(&plan.target).ok_or_else(|| LoadError::Target { found: plan.target.clone() })
}
