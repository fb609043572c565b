//! The kind of a model: text, or vectors of texts.

use std::path::Path;

use ixc_architectures::{ArchError, Parts};
use ixc_ir::plan::Output;

use ixc_compile::model::{is_plan, open_files};
use ixc_generate::Error;

/// Whether a model is an embedding model without `--embeddings`: an encoder or a plan for
/// embeddings. Without a path it is the demo model, which is not.
///
/// # Errors
/// When the model is missing, malformed or not supported.
pub fn gives_embeddings(path: Option<&Path>) -> Result<bool, Error> {
    let Some(path) = path else { return Ok(false) };
    if is_plan(path) {
        return Ok(matches!(ixc_runtime::file::open(path)?.plan.output, Output::Hidden { .. }));
    }
    match ixc_architectures::build_parts(&open_files(path)?, Parts::ALL) {
        Ok(_) => Ok(false),
        Err(ArchError::NotCausal { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
