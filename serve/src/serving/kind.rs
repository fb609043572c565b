//! The kind of a model: text, or vectors of texts.

use std::path::Path;

use ixc_architectures::{ArchError, Parts};
use ixc_ir::plan::Output;

use ixc_compile::model::Input;
use ixc_generate::Error;

/// Returns whether a model is an embedding model without `--embeddings`: an encoder or a plan for
/// embeddings. Returns false without a path, for the demo model.
///
/// # Errors
/// When the model is missing, malformed or not supported.
pub fn gives_embeddings(path: Option<&Path>) -> Result<bool, Error> {
    let Some(path) = path else { return Ok(false) };
    let gguf = match Input::open(path)? {
        Input::Plan(file) => {
            let plan = ixc_runtime::file::of_file(file, path)?.plan;
            return Ok(matches!(plan.output, Output::Hidden { .. }));
        }
        Input::Model(gguf) => gguf,
    };
    match ixc_architectures::build_parts(&gguf, Parts::ALL) {
        Ok(_) => Ok(false),
        Err(ArchError::NotCausal { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
