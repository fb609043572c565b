//! Readers of model files, and the architectures that build graphs.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`arch`] | architectures: from a file to a graph |
//! | [`checkpoint`] | folders of safetensors, presented as GGUF files are |
//! | [`gguf`] | the GGUF reader |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod arch;
pub mod checkpoint;
pub mod gguf;

use std::path::Path;

use checkpoint::CheckpointError;
use gguf::Gguf;

/// Opens a model file: a GGUF file, or a folder of safetensors. Adds nothing to its tensors; [`arch::open`] does.
///
/// # Errors
/// When it is missing, malformed, or of an unsupported kind.
pub fn open(path: &Path) -> Result<Gguf, CheckpointError> {
    if checkpoint::is_checkpoint(path) { checkpoint::open(path) } else { Ok(Gguf::open(path)?) }
}
