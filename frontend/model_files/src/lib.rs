//! Readers of model files: GGUF files, and Hugging Face folders with safetensors.
//!
//! Begin with [`open`]. For both kinds of models, it returns a [`Gguf`]: typed metadata, and a
//! table of tensors. The bytes of tensors stay in the mapped files. Tensors that a folder stores in
//! another form are [derived](ixc_ir::derived) when they are read.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`gguf`] | GGUF files: reader, writer, vocabularies |
//! | [`checkpoint`] | folders of safetensors, presented as GGUF files |
//!
//! This crate uses `failure`, `files` and `ir`, and the vocabularies of `text`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod checkpoint;
pub mod gguf;

use std::path::Path;

use checkpoint::CheckpointError;
use gguf::Gguf;

/// Opens a model: a GGUF file, or a folder of safetensors. Unlike `ixc_architectures::open`, it
/// adds no tensors that the architecture needs.
///
/// # Errors
/// When a file is missing, malformed, or of an unsupported type.
pub fn open(path: &Path) -> Result<Gguf, CheckpointError> {
    if checkpoint::is_checkpoint(path) { checkpoint::open(path) } else { Ok(Gguf::open(path)?) }
}
