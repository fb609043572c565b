//! Runs a kernel row three ways and compares.

mod reference;

use ixc_codegen::generators::generate;
use ixc_codegen::module::Module;
use ixc_codegen::rows::{compare, inputs};
use ixc_codegen::target::Target;
use ixc_ir::kernel::interpret;
use ixc_ir::plan::KernelSpec;

/// A spec and the values of its dims.
pub struct Case {
    pub spec: KernelSpec,
    pub dims: Vec<i64>,
}

impl Case {
    /// A kernel without dims.
    pub fn one(spec: KernelSpec) -> Case {
        Case { spec, dims: Vec::new() }
    }

    /// A kernel with dims for so many rows (or blocks).
    pub fn rows(spec: KernelSpec, rows: u32) -> Case {
        let dims = inputs::dims(&spec, rows);
        Case { spec, dims }
    }
}

/// Runs the case on the interpreter and every target, and compares.
pub fn run(case: Case) {
    let Case { spec, dims } = case;
    let name = spec.name();
    let kernel = generate(&spec, Target::AVX2).unwrap_or_else(|e| panic!("{name}: {e}"));
    let before = inputs::fill(&kernel, Some(&spec), &dims, 0).unwrap_or_else(|e| panic!("{name} {dims:?}: {e}"));
    let mut interpreted = before.clone();
    interpret::run(&kernel, &dims, &mut interpreted).unwrap_or_else(|e| panic!("{name} {dims:?}: interpreter: {e}"));
    reference::compare(&spec, &dims, &kernel, &before, &interpreted);
    for target in [Target::PORTABLE, Target::AVX2] {
        let missing = target.missing();
        if !missing.is_empty() {
            println!(
                "NOT RUN natively: {name}: {}: this machine lacks {}",
                target.name(),
                ixc_codegen::cpu::list(&missing)
            );
            continue;
        }
        let module = Module::compile(std::slice::from_ref(&kernel), target)
            .unwrap_or_else(|e| panic!("{name}: {}: {e}", target.name()));
        let mut native = before.clone();
        module.run_checked(0, &dims, &mut native).unwrap_or_else(|e| panic!("{name}: {}: {e}", target.name()));
        if let Some(difference) = compare::first_difference(&kernel, &interpreted, &native) {
            panic!("{name} {dims:?}: {}: {difference}", target.name());
        }
    }
}
