//! Opening of plan files together with their model files.

use std::fs::File;
use std::path::{Path, PathBuf};

use ixc_compile::Error as CompileError;
use ixc_compile::demo;
use ixc_compile::model::open_files;
use ixc_runtime::file::PlanFile;
use ixc_runtime::load::{self, BuiltIn};

use crate::Error;

/// Returns the demo model under the name that plans give it.
pub fn built_in() -> BuiltIn {
    BuiltIn { path: demo::NAME, bytes: demo::bytes() }
}

/// Opens a plan and finds its model files: at `model_file`, if given;
/// otherwise at the path in the plan, or next to the plan.
///
/// # Errors
/// When the plan cannot be read, or `model_file` is not a model or has another number of files.
pub fn open_plan(path: &Path, model_file: Option<&Path>) -> Result<PlanFile, Error> {
    locate(ixc_runtime::file::open(path)?, path, model_file)
}

/// Reads an open plan like [`open_plan`]. `path` is the path of that file.
///
/// # Errors
/// See [`open_plan`].
pub fn read_plan(file: File, path: &Path, model_file: Option<&Path>) -> Result<PlanFile, Error> {
    locate(ixc_runtime::file::of_file(file, path)?, path, model_file)
}

/// Finds the model files of a plan like [`open_plan`]. `path` is the path of the plan file.
///
/// # Errors
/// See [`open_plan`].
pub fn locate(mut file: PlanFile, path: &Path, model_file: Option<&Path>) -> Result<PlanFile, Error> {
    match model_file {
        Some(model) => {
            let gguf = open_files(model)?;
            let paths: Vec<PathBuf> = gguf.files().iter().map(|file| file.path().to_owned()).collect();
            load::use_files(&mut file.plan, &paths)?;
            file.model_files = gguf.handles().map_err(CompileError::io(model, "open"))?;
        }
        None => file.model_files = load::locate(&mut file.plan, path.parent().unwrap_or(path), Some(built_in())),
    }
    Ok(file)
}
