//! Compilation to a plan file, or to the text of a stage.

use std::path::{Path, PathBuf};

use ixc::architectures::Parts;
use ixc::budget::compile_within;
use ixc::compile::{Compilation, CompileOptions, assembly, stop_after};
use ixc::files::{Guard, Output};
use ixc::ir::kernel::Kernel;
use ixc::ir::plan::PlanWeight;
use ixc::model::Model;
use ixc::passes::manager::{self, Ir, Stop};
use ixc::runtime::engine;
use ixc::runtime::file;
use ixc::runtime::file::weights::{self, Contents};
use ixc::select::{self, Selection};
use pyo3::prelude::*;

use crate::failure::library_error;
use crate::options::{compile_options, open, run_options};
use crate::wait;

/// Compiles a model to a plan file. Returns the bytes of the file.
#[pyfunction]
#[pyo3(signature = (path, output, *, memory, threads, target, embeddings, experts, self_contained, force))]
#[allow(clippy::too_many_arguments, reason = "named arguments of a Python function")]
pub(crate) fn compile(
    py: Python<'_>,
    path: Option<PathBuf>,
    output: PathBuf,
    memory: Option<u64>,
    threads: Option<usize>,
    target: Option<&str>,
    embeddings: bool,
    experts: bool,
    self_contained: bool,
    force: bool,
) -> PyResult<u64> {
    let (options, run) = (compile_options(py, target)?, run_options(memory, threads));
    let compile = move || -> Result<u64, ixc::Error> {
        let inputs: Vec<&Path> = path.iter().map(PathBuf::as_path).collect();
        let guard = Guard { kind: Some(&file::KIND), force, inputs: &inputs };
        let plan = Output::open(&output, &guard)?;
        let model = open(path.as_deref(), Parts { head: !embeddings, ..Parts::ALL })?;
        let model = if experts { model.into_expert_layers()? } else { model };
        let compiled = compile_within(&model, &options, &run)?.0;
        write(plan, &compiled, &model, threads, self_contained)?;
        std::fs::metadata(&output).map(|facts| facts.len()).map_err(ixc::Error::io(&output, "read"))
    };
    wait::run(py, compile)?.map_err(|error| library_error(py, &error))
}

/// Writes a plan: with all weights if `self_contained`, otherwise with packed weights if the target
/// packs any.
fn write(
    output: Output,
    compiled: &Compilation,
    model: &Model,
    threads: Option<usize>,
    self_contained: bool,
) -> Result<(), ixc::Error> {
    let plan = &compiled.plan;
    if !self_contained && !plan.weights.iter().any(PlanWeight::is_packed_at_load) {
        file::write_to(output, plan)?;
        return Ok(());
    }
    let contents = if self_contained { Contents::All } else { Contents::Packed };
    let built_in = Some(ixc::plan_file::built_in());
    let options = engine::EngineOptions { threads, built_in, ..engine::EngineOptions::default() };
    let files = model.handles()?;
    weights::write_to(output, plan, Path::new(""), &files, &options, contents, |_, _| {})?;
    Ok(())
}

/// Returns the text of a stage: `graph`, `fused`, `plan`, `kernel`, `asm`, or the name of a pass.
#[pyfunction]
#[pyo3(signature = (path, stage, *, memory, threads, target))]
pub(crate) fn dump(
    py: Python<'_>,
    path: Option<PathBuf>,
    stage: String,
    memory: Option<u64>,
    threads: Option<usize>,
    target: Option<&str>,
) -> PyResult<String> {
    let (options, run) = (compile_options(py, target)?, run_options(memory, threads));
    wait::run(py, move || text(path.as_deref(), &stage, &options, &run))?.map_err(|error| library_error(py, &error))
}

fn text(
    path: Option<&Path>,
    stage: &str,
    options: &CompileOptions,
    run: &engine::EngineOptions,
) -> Result<String, ixc::Error> {
    let model = open(path, Parts::ALL)?;
    let compiled = || Ok::<_, ixc::Error>(compile_within(&model, options, run)?.0);
    let name = |kernel: &Kernel| kernel.name.clone();
    match stage {
        "graph" => Ok(Stop { ir: Ir::Graph(model.arch.module), after: None }.text()),
        "fused" => {
            let after = manager::graph_passes().last().copied();
            Ok(Stop { ir: Ir::Graph(compiled()?.fused), after }.text())
        }
        "plan" => Ok(ixc::ir::plan::print::print(&compiled()?.plan, name)),
        "kernel" | "asm" => {
            let plan = compiled()?.plan;
            let used = select::kernels(&plan, &name, &Selection::default())?;
            let kernels = used.into_iter().map(|(at, _)| &plan.kernels[at]);
            if stage == "asm" {
                return Ok(assembly(kernels, options.target())?);
            }
            Ok(kernels.map(Kernel::to_string).collect::<Vec<_>>().join("\n"))
        }
        pass => Ok(stop_after(&model, options, pass)?.text()),
    }
}
