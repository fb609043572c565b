//! Types for the content of `tokenizer.json`, and ggml's numbers for types of tokens.
//!
//! ```text
//! {"added_tokens": [{"id": 2, "content": "</s>", "special": true}], "normalizer": …,
//!  "model": {"type": "BPE", "vocab": {"a": 3, "b": 4, "ab": 5}, "merges": ["a b"]}}
//! ```

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value as Json;

use super::error::CheckpointError;

/// Name of the file with further settings of the tokenizer.
pub(super) const CONFIG: &str = "tokenizer_config.json";
/// Maximum length of `tokenizer.json` in bytes.
pub(super) const MAX_BYTES: u64 = 256 << 20;
/// Values of `tokenizer.ggml.token_type`, defined by ggml.
pub(super) const NORMAL: i32 = 1;
pub(super) const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
pub(super) const UNUSED: i32 = 5;
pub(super) const BYTE: i32 = 6;

/// Content of `tokenizer.json`.
#[derive(Deserialize)]
pub(super) struct File {
    #[serde(default)]
    pub added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub normalizer: Json,
    #[serde(default)]
    pub pre_tokenizer: Json,
    #[serde(default)]
    pub post_processor: Json,
    pub model: Model,
}

/// Token that is recognised before text is split.
#[derive(Deserialize)]
pub(super) struct AddedToken {
    pub id: u32,
    pub content: String,
    #[serde(default)]
    pub special: bool,
}

/// Tokenizer algorithm and its tables.
#[derive(Deserialize)]
pub(super) struct Model {
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    pub vocab: Vocabulary,
    #[serde(default)]
    pub merges: Vec<Merge>,
    #[serde(default)]
    pub byte_fallback: bool,
    #[serde(default)]
    pub ignore_merges: bool,
    #[serde(default)]
    pub unk_token: Option<String>,
    #[serde(default)]
    pub continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub max_input_chars_per_word: Option<u64>,
}

/// Tokens, with their ids or their scores.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Vocabulary {
    Ids(HashMap<String, u32>),
    // This form is for unigram tokenizers, which have log probabilities. They are not supported.
    Scores(#[expect(dead_code, reason = "only its shape tells it from the other")] Vec<(String, f64)>),
}

/// Merge of two tokens into one, written as a string or as a pair.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Merge {
    Text(String),
    Pair(String, String),
}

impl Merge {
    /// Returns the two tokens; `None` if the string does not have exactly two.
    pub(super) fn sides(&self) -> Option<(&str, &str)> {
        match self {
            Merge::Text(text) => ixc_text::tokenizer::split_merge(text),
            Merge::Pair(left, right) => Some((left, right)),
        }
    }
}

/// Reads `tokenizer.json`.
pub(super) fn read(path: &Path) -> Result<File, CheckpointError> {
    let text = ixc_files::read_text(path, MAX_BYTES)?;
    serde_json::from_str(&text).map_err(|source| CheckpointError::Json { path: path.into(), source })
}

/// Returns the objects of a section of the file: the section itself, or the members of a
/// `Sequence`.
pub(super) fn sequence(part: &Json) -> Vec<&Json> {
    let inner = ["normalizers", "pretokenizers", "processors"].iter().find_map(|key| part.get(key)?.as_array());
    match inner {
        Some(parts) => parts.iter().flat_map(sequence).collect(),
        None if part.is_object() => vec![part],
        None => Vec::new(),
    }
}

/// Returns the value of `type` in an object of the file.
pub(super) fn kind(part: &Json) -> &str {
    part.get("type").and_then(Json::as_str).unwrap_or("")
}
