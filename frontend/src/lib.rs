//! Readers of model files, tokenizers, chat templates, and the architectures that build graphs.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`arch`] | architectures: from a file to a graph |
//! | [`chat`] | what models write, taken apart: reasoning, answer, tool calls |
//! | [`checkpoint`] | folders of safetensors, presented as GGUF files are |
//! | [`gguf`] | the GGUF reader |
//! | [`helper`] | this program once more, in a process that may die of its work |
//! | [`template`] | chat templates, rendered within limits |
//! | [`tokenizer`] | vocabularies, text to ids and back |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod arch;
pub mod chat;
pub mod checkpoint;
pub mod gguf;
pub mod helper;
pub mod template;
pub mod tokenizer;

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
