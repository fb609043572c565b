//! Targets for folders of safetensors. An input is an archive: each file in it begins with a line
//! `--- NAME`.
//!
//! An archive contains only the JSON header of a safetensors file. The target adds the header's
//! length before it, and zeros for the tensors after it, so that inputs stay small.

use std::fs;
use std::path::{Path, PathBuf};

use ixc_compile::model::{Model, tokenizer as tokenizer_of};
use ixc_model_files::checkpoint;
use serde_json::Value;

use super::models::assert_sound;
use super::texts::encode;
use crate::{Outcome, scratch};

/// Max bytes of the tensors in a file.
const MAX_DATA: u64 = 4 << 20;
/// Names of files that the reader looks for. Files with other names are ignored.
const NAMES: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-00001-of-00003.safetensors",
    "model-00002-of-00003.safetensors",
    "model-00003-of-00003.safetensors",
];

/// Dictionary of keys in configurations and headers.
pub const DICTIONARY: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "-1",
    "1e999",
    "\n--- config.json\n",
    "architectures",
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "intermediate_size",
    "rope_theta",
    "rope_scaling",
    "torch_dtype",
    "quantization_config",
    "data_offsets",
    "dtype",
    "shape",
    "F32",
    "BF16",
    "F8_E4M3",
    "I64",
    "__metadata__",
    "weight_map",
    "quant_method",
    "fp8",
    "mxfp4",
    "text_config",
    "tie_word_embeddings",
    "eos_token_id",
    "sliding_window",
    "layer_types",
];

/// Dictionary of keys in `tokenizer.json`.
pub const TOKENIZER_DICTIONARY: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "-1",
    "model",
    "type",
    "BPE",
    "Unigram",
    "WordPiece",
    "vocab",
    "merges",
    "added_tokens",
    "special",
    "normalizer",
    "Sequence",
    "Replace",
    "pattern",
    "Regex",
    "String",
    "NFC",
    "pre_tokenizer",
    "Split",
    "ByteLevel",
    "Metaspace",
    "Digits",
    "behavior",
    "Isolated",
    "Removed",
    "decoder",
    "post_processor",
    "TemplateProcessing",
    "byte_fallback",
    "unk_token",
    "ignore_merges",
    "\\p{L}",
    "(?i:",
    "(?!",
    "+",
];

/// A file of an archive.
struct ArchiveFile<'i> {
    name: &'static str,
    bytes: &'i [u8],
}

/// Splits an archive into files with known names.
fn files(input: &[u8]) -> Vec<ArchiveFile<'_>> {
    let mut files: Vec<ArchiveFile<'_>> = Vec::new();
    let mut begins = Vec::new();
    let mut at = 0;
    for line in input.split_inclusive(|byte| *byte == b'\n') {
        let name = line.strip_prefix(b"--- ").map(|name| name.trim_ascii_end());
        if let Some(name) = name.and_then(|name| NAMES.iter().find(|known| known.as_bytes() == name)) {
            begins.push((*name, at, at + line.len()));
        }
        at += line.len();
    }
    for (number, &(name, _, begin)) in begins.iter().enumerate() {
        let end = begins.get(number + 1).map_or(input.len(), |next| next.1);
        files.push(ArchiveFile { name, bytes: &input[begin..end] });
    }
    files
}

/// Returns a safetensors file with this header. If the text is not a valid header, returns the text
/// itself.
fn safetensors(header: &[u8]) -> Vec<u8> {
    if !header.starts_with(b"{") {
        return header.to_vec();
    }
    let header = header.trim_ascii_end();
    let table: Value = serde_json::from_slice(header).unwrap_or_default();
    let tensors = table.as_object().into_iter().flat_map(|table| table.values());
    let ends = tensors.filter_map(|tensor| tensor.get("data_offsets")?.get(1)?.as_u64());
    let end = ends.max().unwrap_or(0).min(MAX_DATA);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.resize(bytes.len() + end as usize, 0);
    bytes
}

fn unpacked(input: &[u8]) -> PathBuf {
    let folder = scratch::empty_folder("checkpoint");
    for file in files(input) {
        let bytes = if file.name.ends_with(".safetensors") { safetensors(file.bytes) } else { file.bytes.to_vec() };
        fs::write(folder.join(file.name), bytes).expect("the folder of temporary files can be written");
    }
    folder
}

/// Opens the archive as a folder, and builds the graph of its model.
pub fn folder(input: &[u8]) -> Outcome {
    let gguf = match checkpoint::open(&unpacked(input)) {
        Ok(gguf) => gguf,
        Err(error) => {
            let class = error.class();
            return Outcome::refused_as(error, class);
        }
    };
    assert_sound(&gguf);
    match Model::new(gguf) {
        Ok(model) => Outcome::Accepted(format!("model {}", model.arch.hyper.architecture)),
        Err(error) => {
            let class = error.class();
            Outcome::refused_as(format!("folder accepted, {error}"), class)
        }
    }
}

/// Opens a folder whose `tokenizer.json` is the input, and encodes texts.
pub fn tokenizer(input: &[u8]) -> Outcome {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/safetensors/qwen3moe");
    let base = fs::read(path).expect("the corpus has a folder of a model");
    let folder = unpacked(&base);
    fs::write(folder.join("tokenizer.json"), input).expect("the folder of temporary files can be written");
    let opened = match checkpoint::open(&folder) {
        Ok(gguf) => gguf,
        Err(error) => {
            let class = error.class();
            return Outcome::refused_as(error, class);
        }
    };
    match tokenizer_of(&opened) {
        Ok(tokenizer) => {
            encode(&tokenizer);
            Outcome::Accepted(format!("ends {}", tokenizer.end_of_generation().len()))
        }
        Err(error) => {
            let class = error.class();
            Outcome::refused_as(error, class)
        }
    }
}
