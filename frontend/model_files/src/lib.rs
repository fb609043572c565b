//! Readers of model files: GGUF files, and Hugging Face folders with safetensors.
//!
//! Begin with [`open`]. It returns a [`Gguf`] for both: typed metadata, and a table of tensors.
//! Their bytes stay in the mapped files. Tensors that a folder stores in another form are
//! [derived](ixc_ir::derived) when they are read.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`gguf`] | GGUF files: reader, writer, vocabularies |
//! | [`checkpoint`] | folders of safetensors, presented as GGUF files |
//!
//! Uses `failure`, `files` and `ir`, and the vocabularies of `text`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod checkpoint;
pub mod gguf;

use std::path::Path;

use checkpoint::CheckpointError;
use gguf::Gguf;

/// Opens a model file: a GGUF file, or a folder of safetensors. It adds no tensors;
/// `ixc_architectures::open` does.
///
/// # Errors
/// When the file is missing, malformed, or of an unsupported type.
pub fn open(path: &Path) -> Result<Gguf, CheckpointError> {
    if checkpoint::is_checkpoint(path) { checkpoint::open(path) } else { Ok(Gguf::open(path)?) }
}
