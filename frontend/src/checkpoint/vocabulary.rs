//! `tokenizer.json` and what stands beside it, as GGUF's keys.
//!
//! | kind | known by | becomes |
//! | --- | --- | --- |
//! | byte-level BPE | a `ByteLevel` pre-tokenizer | `gpt2`, with the pre-tokenizer whose patterns are the same |
//! | SentencePiece's BPE | `byte_fallback`, spaces as `▁` | `llama`: a token's score is the rank of the first merge that makes it |
//!
//! For others (unigrams, words) the model takes token ids only, which is said once. Tokens that `tokenizer.json` does not have, though the embedding table has a row
//! for them, are called `[PAD…]`, as in GGUF files.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value as Json;

use super::config::{self, Config};
use super::error::CheckpointError;
use crate::gguf::{Array, StringArray, Value};
use crate::tokenizer::{MAX_TOKENS, PreTokenizer};

const TOKENIZER: &str = "tokenizer.json";
/// Longest `tokenizer.json`.
const MAX_BYTES: u64 = 256 << 20;
/// ggml's `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;
/// SentencePiece's sign for a space.
const SPACE: &str = "\u{2581}";
/// Score of tokens that no merge makes: below that of all others.
const NEVER_MERGED: f32 = -1e6;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    post_processor: Json,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    vocab: Vocabulary,
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    unk_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Vocabulary {
    Ids(HashMap<String, u32>),
    // Unigrams with their logarithms; not read further.
    Scores(#[expect(dead_code, reason = "only its shape tells it from the other")] Vec<(String, f64)>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

impl Merge {
    fn sides(&self) -> Option<(&str, &str)> {
        match self {
            Merge::Text(text) => crate::tokenizer::split_merge(text),
            Merge::Pair(left, right) => Some((left, right)),
        }
    }
}

/// Keys of a checkpoint's vocabulary, whose embedding table has so many rows.
pub(super) fn keys(folder: &Path, config: &Config, rows: u64) -> Result<Vec<(Box<str>, Value)>, CheckpointError> {
    let mut keys = Vec::new();
    let said = config::read_optional(&folder.join("tokenizer_config.json"))?.unwrap_or(Json::Null);
    if let Some(template) = template(folder, &said)? {
        keys.push(("tokenizer.chat_template".into(), template.as_str().into()));
    }
    let path = folder.join(TOKENIZER);
    if !path.is_file() {
        let other =
            ["tokenizer.model", "tiktoken.model", "tekken.json"].into_iter().find(|name| folder.join(name).is_file());
        let instead = other.map_or_else(String::new, |name| format!(" ({name} is not read)"));
        tracing::warn!("{}: there is no {TOKENIZER}{instead}; the model takes token ids only", folder.display());
        return Ok(keys);
    }
    let text = ixc_files::read_text(&path, MAX_BYTES)?;
    let json = |source| CheckpointError::Json { path: path.as_path().into(), source };
    let file: File = serde_json::from_str(&text).map_err(json)?;
    drop(text);
    let wrong = |key: &str, found: String, expected: &str| CheckpointError::Key {
        path: path.as_path().into(),
        key: key.into(),
        found: found.into(),
        expected: expected.into(),
    };
    let Vocabulary::Ids(ids) = &file.model.vocab else {
        let kind = file.model.kind.as_deref().unwrap_or("of unigrams");
        tracing::warn!("{}: a tokenizer {kind} is not supported; the model takes token ids only", path.display());
        return Ok(keys);
    };
    let most = ids.values().copied().chain(file.added_tokens.iter().map(|token| token.id)).max().unwrap_or(0);
    let count = (u64::from(most) + 1).max(rows);
    if count > MAX_TOKENS as u64 {
        return Err(wrong("model.vocab", format!("of {count} tokens"), "at most 524288"));
    }
    let count = count as usize;
    let mut tokens: Vec<Option<&str>> = vec![None; count];
    let mut types = vec![UNUSED; count];
    let pieces = file.model.byte_fallback;
    for (token, &id) in ids {
        if let Some(other) = tokens[id as usize].replace(token) {
            return Err(wrong(
                "model.vocab",
                format!("of two tokens with id {id}, \"{other}\" and \"{token}\""),
                "one token for each id",
            ));
        }
        types[id as usize] = match token {
            _ if pieces && crate::tokenizer::byte_of(token).is_some() => BYTE,
            _ if pieces && file.model.unk_token.as_deref() == Some(token) => UNKNOWN,
            _ => NORMAL,
        };
    }
    let spaced: Vec<String> = file.added_tokens.iter().map(|token| token.content.replace(SPACE, " ")).collect();
    for (added, spaced) in file.added_tokens.iter().zip(&spaced) {
        let control = added.special || looks_special(&added.content);
        let id = added.id as usize;
        tokens[id] = Some(if control { &added.content } else { spaced });
        types[id] = match types[id] {
            kept @ (UNKNOWN | BYTE) => kept,
            _ if control => CONTROL,
            _ => USER_DEFINED,
        };
    }
    let id_of = |text: &str| {
        let added = file.added_tokens.iter().find(|token| token.content == text).map(|token| token.id);
        added.or_else(|| ids.get(text).copied())
    };
    let names: StringArray = tokens
        .iter()
        .enumerate()
        .map(|(id, token)| token.map_or_else(|| format!("[PAD{id}]"), str::to_owned))
        .collect();
    let mut put = |key: &str, value: Value| keys.push((format!("tokenizer.ggml.{key}").into(), value));
    if pieces {
        let mut scores = vec![NEVER_MERGED; count];
        for (rank, merge) in file.model.merges.iter().enumerate() {
            let (left, right) = merge.sides().ok_or_else(|| {
                wrong("model.merges", format!("no pair at index {rank}"), "two texts with a space between")
            })?;
            let Some(&id) = ids.get(&*[left, right].concat()) else {
                return Err(wrong(
                    "model.merges",
                    format!("a pair at index {rank} that makes no token"),
                    "pairs that make tokens",
                ));
            };
            let score = &mut scores[id as usize];
            if *score == NEVER_MERGED {
                *score = -(rank as f32);
            }
        }
        put("model", "llama".into());
        put("pre", "default".into());
        put("scores", Value::Array(Array::F32(scores)));
        put("add_space_prefix", leading_space(&file).into());
    } else {
        let Some(name) = pre_tokenizer(&file) else {
            let found: String = file.pre_tokenizer.to_string().chars().take(200).collect();
            tracing::warn!(
                "{}: pre-tokenizer {found} is not supported; the model takes token ids only",
                path.display()
            );
            keys.retain(|(key, _)| !key.starts_with("tokenizer.ggml."));
            return Ok(keys);
        };
        let mut merges = StringArray::default();
        for (rank, merge) in file.model.merges.iter().enumerate() {
            let (left, right) = merge.sides().ok_or_else(|| {
                wrong("model.merges", format!("no pair at index {rank}"), "two texts with a space between")
            })?;
            merges.extend([format!("{left} {right}")]);
        }
        put("model", "gpt2".into());
        put("pre", name.into());
        put("merges", Value::Array(Array::String(merges)));
    }
    put("tokens", Value::Array(Array::String(names)));
    put("token_type", Value::Array(Array::I32(types)));
    let special = specials(folder, config, &said, &id_of)?;
    for (key, id) in &special {
        put(key, (*id).into());
    }
    let (first, last) = added_around(&file.post_processor);
    let flag = |key: &str| said.get(key).and_then(Json::as_bool);
    let is = |text: Option<&str>, role: &str| {
        let id = text.and_then(&id_of);
        id.is_some() && id == special.iter().find(|(key, _)| *key == role).map(|(_, id)| *id)
    };
    // What is done to every text is said by the file itself, where it says anything; older files leave it to the configuration.
    let stated = first.is_some() || last.is_some();
    let bos = if stated { is(first, "bos_token_id") } else { flag("add_bos_token").unwrap_or(false) };
    let eos = if stated { is(last, "eos_token_id") } else { flag("add_eos_token").unwrap_or(false) };
    put("add_bos_token", bos.into());
    put("add_eos_token", eos.into());
    Ok(keys)
}

/// Whether a token is no text, though nobody says so: as llama.cpp's converter decides it.
fn looks_special(text: &str) -> bool {
    let between = |open: &str, close: &str| text.starts_with(open) && text.ends_with(close);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || between("<|", "|>")
        || between("<｜", "｜>")
        || between("<unused", ">")
}

/// All objects of a part of the file: itself, or those of a `Sequence`.
fn sequence(part: &Json) -> Vec<&Json> {
    let inner = ["normalizers", "pretokenizers", "processors"].iter().find_map(|key| part.get(key)?.as_array());
    match inner {
        Some(parts) => parts.iter().flat_map(sequence).collect(),
        None if part.is_object() => vec![part],
        None => Vec::new(),
    }
}

fn kind(part: &Json) -> &str {
    part.get("type").and_then(Json::as_str).unwrap_or("")
}

/// Whether a text begins with a space that is not in it (SentencePiece).
fn leading_space(file: &File) -> bool {
    sequence(&file.normalizer).iter().any(|part| kind(part) == "Prepend")
        || sequence(&file.pre_tokenizer).iter().any(|part| {
            kind(part) == "Metaspace"
                && part.get("prepend_scheme").and_then(Json::as_str).is_none_or(|scheme| scheme != "never")
                && part.get("add_prefix_space").and_then(Json::as_bool).unwrap_or(true)
        })
}

/// The name of the pre-tokenizer whose patterns the file has.
fn pre_tokenizer(file: &File) -> Option<&'static str> {
    let mut patterns: Vec<String> = Vec::new();
    for part in sequence(&file.pre_tokenizer) {
        match kind(part) {
            "Split" => {
                let pattern = part.get("pattern")?;
                if part.get("behavior").and_then(Json::as_str)? != "Isolated"
                    && part.get("invert")?.as_bool() != Some(true)
                {
                    return None;
                }
                patterns.push(pattern.get("Regex").and_then(Json::as_str)?.to_owned());
            }
            "Digits" => patterns.push(
                match part.get("individual_digits").and_then(Json::as_bool).unwrap_or(false) {
                    true => r"\p{N}",
                    false => r"\p{N}+",
                }
                .to_owned(),
            ),
            "ByteLevel" => {
                if part.get("add_prefix_space").and_then(Json::as_bool) == Some(true) {
                    return None;
                }
                if part.get("use_regex").and_then(Json::as_bool).unwrap_or(true) {
                    patterns.push(crate::tokenizer::BYTE_LEVEL_PATTERN.to_owned());
                }
            }
            _ => return None,
        }
    }
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    PreTokenizer::with_patterns(&patterns, file.model.ignore_merges)
}

/// The special token that a part of a template is.
fn special(part: &Json) -> Option<&str> {
    part.get("SpecialToken")?.get("id")?.as_str()
}

/// Special tokens that a template puts before and behind a text.
fn added_around(post_processor: &Json) -> (Option<&str>, Option<&str>) {
    for part in sequence(post_processor) {
        if kind(part) != "TemplateProcessing" {
            continue;
        }
        let single = part.get("single").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
        // The text itself stands between.
        let text = single.iter().position(|part| part.get("Sequence").is_some());
        let first = text.filter(|at| *at > 0).and_then(|_| special(single.first()?));
        let last = text.filter(|at| at + 1 < single.len()).and_then(|_| special(single.last()?));
        return (first, last);
    }
    (None, None)
}

/// Ids of tokens with a role, by GGUF's keys.
fn specials(
    folder: &Path,
    config: &Config,
    said: &Json,
    id_of: &dyn Fn(&str) -> Option<u32>,
) -> Result<Vec<(&'static str, u32)>, CheckpointError> {
    let generation = config::read_optional(&folder.join("generation_config.json"))?.unwrap_or(Json::Null);
    let named = |key: &str| {
        let token = said.get(key)?;
        id_of(token.as_str().or_else(|| token.get("content")?.as_str())?)
    };
    let numbers = |value: Option<&Json>| -> Vec<u32> {
        let number = |value: &Json| value.as_u64().and_then(|id| u32::try_from(id).ok());
        match value {
            Some(Json::Array(ids)) => ids.iter().filter_map(number).collect(),
            Some(value) => number(value).into_iter().collect(),
            None => Vec::new(),
        }
    };
    let first = |key: &str| {
        let own = numbers(config.value(key));
        own.into_iter().chain(numbers(generation.get(key))).next()
    };
    let mut ids = Vec::new();
    for (key, token, number) in [
        ("bos_token_id", "bos_token", "bos_token_id"),
        ("eos_token_id", "eos_token", "eos_token_id"),
        ("unknown_token_id", "unk_token", ""),
        ("padding_token_id", "pad_token", "pad_token_id"),
    ] {
        ids.extend(named(token).or_else(|| first(number)).map(|id| (key, id)));
    }
    // What ends an answer beside the end of a text.
    let eos = ids.iter().find(|(key, _)| *key == "eos_token_id").map(|(_, id)| *id);
    let ends = numbers(generation.get("eos_token_id")).into_iter().filter(|id| Some(*id) != eos);
    ids.extend(["eot_token_id", "eom_token_id"].into_iter().zip(ends));
    Ok(ids)
}

/// The chat template: a file of its own, or the tokenizer's configuration has it.
fn template(folder: &Path, said: &Json) -> Result<Option<String>, CheckpointError> {
    let file = folder.join("chat_template.jinja");
    if file.is_file() {
        return Ok(Some(ixc_files::read_text(&file, MAX_BYTES)?));
    }
    Ok(match said.get("chat_template") {
        Some(Json::String(template)) => Some(template.clone()),
        Some(Json::Array(templates)) => {
            let named = |name: &str| {
                templates.iter().find(|template| template.get("name").and_then(Json::as_str) == Some(name))
            };
            let chosen = named("default").or(templates.first());
            chosen.and_then(|template| template.get("template")?.as_str()).map(str::to_owned)
        }
        _ => None,
    })
}
