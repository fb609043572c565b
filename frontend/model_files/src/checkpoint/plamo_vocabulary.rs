//! Reader of `tokenizer.jsonl` of PLaMo 2 and 3, which makes GGUF keys. Each line is an array with
//! a token's text, score and type; further elements are ignored.
//!
//! ```text
//! ["<|plamo:unk|>", 0.0, "UNKNOWN", …]
//! ["の", -4.25, "NORMAL", …]
//!     ->  tokenizer.ggml.model = "plamo2", tokens, scores and token_type
//! ```

use std::path::Path;

use ixc_text::tokenizer::MAX_TOKENS;
use serde_json::Value as Json;

use super::config::Config;
use super::error::CheckpointError;
use super::special_tokens;
use super::tokenizer_json::{BYTE, CONTROL, MAX_BYTES, NORMAL, UNKNOWN, UNUSED};
use crate::gguf::{Array, StringArray, Value};

/// Name of the tokenizer file.
pub(super) const NAME: &str = "tokenizer.jsonl";
/// Score of the padding tokens, which fill rows of the embedding table without a token in the file.
const PADDING: f32 = -1000.0;
/// Token that ends a turn. No configuration file names it.
const END_OF_TURN: &str = "<|plamo:op|>";

/// Adds the keys of a folder's tokenizer to the keys. `rows` is the number of rows of the embedding
/// table.
///
/// # Errors
/// When a line is not a token, or there are more tokens than rows.
pub(super) fn keys(
    folder: &Path,
    config: &Config,
    tokenizer_config: &Json,
    rows: u64,
    keys: &mut Vec<(Box<str>, Value)>,
) -> Result<(), CheckpointError> {
    let path = folder.join(NAME);
    let text = ixc_files::read_text(&path, MAX_BYTES)?;
    let wrong = |key: String, found: String, expected: &str| CheckpointError::Key {
        path: path.as_path().into(),
        key: key.into(),
        found: found.into(),
        expected: expected.into(),
    };
    let (mut tokens, mut scores, mut types) = (Vec::new(), Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let (token, score, kind) = token(line).ok_or_else(|| {
            let found: String = line.chars().take(64).collect();
            wrong(format!("line {}", number + 1), found, "an array of a token's text, its score and its type")
        })?;
        if tokens.len() == MAX_TOKENS {
            return Err(wrong("tokens".to_owned(), format!("more than {MAX_TOKENS}"), "at most 524288"));
        }
        types.push(match kind.as_str() {
            "UNKNOWN" => UNKNOWN,
            "CONTROL" => CONTROL,
            "BYTE" => BYTE,
            _ if token.starts_with("<|plamo:") && token.ends_with("|>") => CONTROL,
            _ => NORMAL,
        });
        scores.push(score);
        tokens.push(token);
    }
    let count = tokens.len() as u64;
    // `rows` is 0 if the embedding table is missing, which is reported later.
    if rows > 0 && count > rows || rows > MAX_TOKENS as u64 {
        let expected = format!("at most {} tokens, the rows of the embedding table", rows.min(MAX_TOKENS as u64));
        return Err(wrong("tokens".to_owned(), count.to_string(), &expected));
    }
    for padding in 1..=rows.saturating_sub(count) {
        tokens.push(format!("[PAD{padding}]"));
        scores.push(PADDING);
        types.push(UNUSED);
    }
    let id_of = |text: &str| tokens.iter().position(|token| token == text).map(|id| id as u32);
    let roles = special_tokens::roles(folder, config, tokenizer_config, &Json::Null, &id_of, tokens.len() as u64)?;
    let end = id_of(END_OF_TURN);
    let mut put = |key: &str, value: Value| keys.push((format!("tokenizer.ggml.{key}").into(), value));
    for (key, id) in roles.ids {
        put(key, id.into());
    }
    if let Some(end) = end {
        put("eot_token_id", end.into());
    }
    for (key, flag) in [("add_bos_token", roles.add_bos), ("add_eos_token", roles.add_eos)] {
        if let Some(flag) = flag {
            put(key, flag.into());
        }
    }
    put("model", "plamo2".into());
    put("pre", "default".into());
    put("tokens", Value::Array(Array::String(tokens.into_iter().collect::<StringArray>())));
    put("scores", Value::Array(Array::F32(scores)));
    put("token_type", Value::Array(Array::I32(types)));
    Ok(())
}

/// Parses a line into a token's text, score and type.
fn token(line: &str) -> Option<(String, f32, String)> {
    let parts: Vec<Json> = serde_json::from_str(line).ok()?;
    let [text, score, rest @ ..] = &parts[..] else { return None };
    let kind = rest.first().map_or(Some("NORMAL"), Json::as_str)?;
    Some((text.as_str()?.to_owned(), score.as_f64()? as f32, kind.to_owned()))
}
