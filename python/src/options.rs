//! Options that several functions take.

use std::path::{Path, PathBuf};

use ixc::compile::{self, TargetName};
use ixc::model::Model;
use ixc::runtime::engine;
use pyo3::prelude::*;

use crate::failure;

/// Returns compile options for a target, or for this machine.
pub(crate) fn compile_options(py: Python<'_>, target: Option<&str>) -> PyResult<compile::CompileOptions> {
    let mut options = compile::CompileOptions::default();
    if let Some(name) = target {
        let TargetName { target, caches } = name.parse().map_err(|error: String| failure::usage(py, &error))?;
        (options.target, options.caches) = (Some(target), caches);
    }
    Ok(options)
}

/// Returns run options with a memory budget in bytes.
pub(crate) fn run_options(memory: Option<u64>, threads: Option<usize>) -> engine::EngineOptions {
    engine::EngineOptions { memory, threads, ..engine::EngineOptions::default() }
}

/// Opens a model file, or the demo model without a path.
pub(crate) fn open(path: Option<&Path>, parts: ixc::architectures::Parts) -> Result<Model, ixc::Error> {
    match path {
        Some(path) => Ok(Model::open_parts(path, parts)?),
        None => Ok(Model::of_parts(ixc::demo::open()?, parts)?),
    }
}

/// Returns the name of a model in requests: that of its file.
pub(crate) fn name(path: Option<&PathBuf>) -> String {
    let stem = path.and_then(|path| path.file_stem());
    stem.map_or_else(|| "demo".to_owned(), |stem| stem.to_string_lossy().into_owned())
}
