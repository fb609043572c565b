//! Conversion of `tokenizer.json` and related files to GGUF keys.
//!
//! | tokenizer | recognised by | GGUF's tokenizer |
//! | --- | --- | --- |
//! | byte-level BPE | a `ByteLevel` pre-tokenizer | `gpt2`, pre-tokenizer by its patterns |
//! | WordPiece | its model's type, or `vocab.txt` | `bert` ([`super::word_pieces`]) |
//! | SentencePiece's BPE | `byte_fallback`, spaces as `▁` | `llama`, scores from ranks of merges |
//! | Gemma 4's BPE | the model's family | `gemma4`, with its merges |
//! | PLaMo 2's and 3's | `tokenizer.jsonl` | `plamo2` ([`super::plamo_vocabulary`]) |
//!
//! The score of a token of `llama` is minus the rank of the first merge that makes it. Any other
//! tokenizer, such as unigrams, is not supported: the model then takes only token ids, and a
//! warning names the tokenizer.
//!
//! The embedding table has a row for each token. Rows without a token in `tokenizer.json` get the
//! name `[PAD…]`, as in GGUF files. Added tokens without a row are dropped with a warning. Any
//! other token without a row is an error.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use ixc_text::tokenizer::{MAX_TOKENS, PreTokenizer};
use serde_json::Value as Json;

use super::config::{self, Config};
use super::error::CheckpointError;
use super::families::PieceTokenizer;
use super::tokenizer_json::{
    AddedToken, BYTE, CONFIG, CONTROL, File, Merge, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Vocabulary, kind, read,
    sequence,
};
use super::word_pieces::{self, WordPieces};
use super::{plamo_vocabulary, special_tokens, template};
use crate::gguf::{Array, StringArray, Value};

const TOKENIZER: &str = "tokenizer.json";
/// Character that stands for a space in SentencePiece.
const SPACE: &str = "\u{2581}";
/// Score of tokens that no merge makes. It is lower than all other scores.
const NEVER_MERGED: f32 = -1e6;

/// Returns the GGUF keys of a checkpoint's tokenizer. `rows` is the number of rows of the embedding
/// table.
pub(super) fn keys(
    folder: &Path,
    config: &Config,
    rows: u64,
    given: PieceTokenizer,
) -> Result<Vec<(Box<str>, Value)>, CheckpointError> {
    let mut keys = Vec::new();
    let tokenizer_config = config::read_optional(&folder.join(CONFIG))?.unwrap_or(Json::Null);
    if let Some(template) = template::template(folder, &tokenizer_config)? {
        keys.push(("tokenizer.chat_template".into(), template.as_str().into()));
    }
    if !folder.join(TOKENIZER).is_file() && folder.join(plamo_vocabulary::NAME).is_file() {
        plamo_vocabulary::keys(folder, config, &tokenizer_config, rows, &mut keys)?;
        return Ok(keys);
    }
    let Some(path) = path(folder, config, &tokenizer_config)? else { return Ok(keys) };
    let mut file = if path.ends_with(TOKENIZER) { read(&path)? } else { word_pieces::list(folder, &tokenizer_config)? };
    let Some(count) = token_count(&path, &file, rows)? else { return Ok(keys) };
    leave_out(&path, &mut file.added_tokens, count);
    let Vocabulary::Ids(ids) = &file.model.vocab else { return Ok(keys) };
    let source = VocabularySource { path: &path, file: &file, ids, count: count as usize, pieces: given };
    let tokens = source.tokens()?;
    let Some(model) = source.model()? else {
        let found: String = file.pre_tokenizer.to_string().chars().take(200).collect();
        tracing::warn!(
            "{}: pre-tokenizer {found} is not supported, so the model takes token ids only, no text",
            path.display()
        );
        return Ok(keys);
    };
    let mut put = |key: &str, value: Value| keys.push((format!("tokenizer.ggml.{key}").into(), value));
    model.into_iter().for_each(|(key, value)| put(key, value));
    put("tokens", Value::Array(Array::String(tokens.texts)));
    put("token_type", Value::Array(Array::I32(tokens.types)));
    let id_of = |text: &str| source.id_of(text);
    let roles = special_tokens::roles(folder, config, &tokenizer_config, &file.post_processor, &id_of, count)?;
    for (key, id) in roles.ids {
        put(key, id.into());
    }
    // For WordPiece, another key states whether a token is added at the end.
    let add_sep = roles.add_eos.filter(|_| WordPieces::is_such(&file));
    for (key, flag) in [("add_bos_token", roles.add_bos), ("add_eos_token", roles.add_eos), ("add_sep_token", add_sep)]
    {
        if let Some(flag) = flag {
            put(key, flag.into());
        }
    }
    Ok(keys)
}

/// Returns the path of the tokenizer: `tokenizer.json`, or BERT's list of words. If neither exists,
/// warns and returns `None`.
fn path(folder: &Path, config: &Config, tokenizer_config: &Json) -> Result<Option<PathBuf>, CheckpointError> {
    let path = folder.join(TOKENIZER);
    let list = word_pieces::has_list(folder, tokenizer_config, config.text(&["model_type"])?);
    let path = if list && !path.is_file() { folder.join(word_pieces::LIST) } else { path };
    if path.is_file() {
        return Ok(Some(path));
    }
    let other = ["tokenizer.model", "tiktoken.model", "tekken.json", "tokenizer.tok.json"]
        .into_iter()
        .find(|name| folder.join(name).is_file());
    let instead = other.map_or_else(String::new, |name| format!(" ({name} is there, but ixc does not read it)"));
    tracing::warn!(
        "{}: there is no {TOKENIZER}{instead}, so the model takes token ids only, no text",
        folder.display()
    );
    Ok(None)
}

fn wrong(path: &Path, key: &str, found: String, expected: &str) -> CheckpointError {
    CheckpointError::Key { path: path.into(), key: key.into(), found: found.into(), expected: expected.into() }
}

/// Returns the number of tokens, which is the number of `rows` of the embedding table. If the table
/// is missing, which is reported later, it follows from the largest token id. If the tokens are
/// unigrams, warns and returns `None`.
fn token_count(path: &Path, file: &File, rows: u64) -> Result<Option<u64>, CheckpointError> {
    const KEY: &str = "model.vocab";
    let Vocabulary::Ids(ids) = &file.model.vocab else {
        let kind = file.model.kind.as_deref().unwrap_or("of unigrams");
        tracing::warn!(
            "{}: a tokenizer {kind} is not supported, so the model takes token ids only, no text",
            path.display()
        );
        return Ok(None);
    };
    let max = ids.values().copied().chain(file.added_tokens.iter().map(|token| token.id)).max().unwrap_or(0);
    if max as usize >= MAX_TOKENS {
        return Err(wrong(path, KEY, format!("of {} tokens", u64::from(max) + 1), "at most 524288 tokens"));
    }
    if rows > MAX_TOKENS as u64 {
        return Err(wrong(
            path,
            KEY,
            format!("a vocabulary for an embedding table of {rows} rows"),
            "at most 524288 tokens",
        ));
    }
    let count = if rows == 0 { u64::from(max) + 1 } else { rows };
    let added: HashSet<u32> = file.added_tokens.iter().map(|token| token.id).collect();
    let without_row = ids.iter().filter(|(_, id)| u64::from(**id) >= count && !added.contains(id));
    if let Some((token, id)) = without_row.min_by_key(|(_, id)| **id) {
        let found = format!("a vocabulary with token \"{}\" of id {id}", crate::gguf::quote(token));
        return Err(wrong(path, KEY, found, &format!("ids below {count}, the number of rows of the embedding table")));
    }
    Ok(Some(count))
}

/// Removes added tokens without a row in the embedding table, with a warning for each. They are
/// mostly image tokens, for which a text model has no rows.
fn leave_out(path: &Path, added: &mut Vec<AddedToken>, count: u64) {
    added.retain(|token| {
        let has_row = u64::from(token.id) < count;
        if !has_row {
            let (path, text) = (path.display(), crate::gguf::quote(&token.content));
            tracing::warn!(
                "{path}: added token {} (\"{text}\") is ignored, because the embedding table has only {count} rows",
                token.id
            );
        }
        has_row
    });
}

/// Vocabulary whose token ids were checked.
struct VocabularySource<'a> {
    path: &'a Path,
    file: &'a File,
    ids: &'a HashMap<String, u32>,
    /// Number of tokens.
    count: usize,
    pieces: PieceTokenizer,
}

/// Tokens in the order of their ids.
struct Tokens {
    texts: StringArray,
    /// Type of each token, as ggml's number.
    types: Vec<i32>,
}

impl VocabularySource<'_> {
    fn wrong(&self, key: &str, found: String, expected: &str) -> CheckpointError {
        wrong(self.path, key, found, expected)
    }

    /// Returns the id of the token `text`.
    fn id_of(&self, text: &str) -> Option<u32> {
        let added = self.file.added_tokens.iter().find(|token| token.content == text).map(|token| token.id);
        added.or_else(|| self.ids.get(text).copied().filter(|id| (*id as usize) < self.count))
    }

    /// Returns the tokens in the order of their ids.
    fn tokens(&self) -> Result<Tokens, CheckpointError> {
        let mut texts: Vec<Option<Cow<'_, str>>> = vec![None; self.count];
        let mut types = vec![UNUSED; self.count];
        let model = &self.file.model;
        let pieces = model.byte_fallback;
        for (token, &id) in self.ids.iter().filter(|(_, id)| (**id as usize) < self.count) {
            if let Some(other) = texts[id as usize].replace(token.into()) {
                let found = format!("a vocabulary in which two tokens have id {id}, \"{other}\" and \"{token}\"");
                return Err(self.wrong("model.vocab", found, "one token for each id"));
            }
            types[id as usize] = match token {
                _ if pieces && ixc_text::tokenizer::byte_of(token).is_some() => BYTE,
                _ if pieces && model.unk_token.as_deref() == Some(token) => UNKNOWN,
                _ => NORMAL,
            };
        }
        let visible: &[&str] = if let PieceTokenizer::Merged { visible, .. } = self.pieces { visible } else { &[] };
        for added in &self.file.added_tokens {
            let is_text = visible.contains(&added.content.as_str());
            let control = !is_text && (added.special || looks_special(&added.content));
            let id = added.id as usize;
            let content = added.content.as_str();
            texts[id] = Some(if control { content.into() } else { content.replace(SPACE, " ").into() });
            types[id] = match types[id] {
                kept @ (UNKNOWN | BYTE) => kept,
                _ if control => CONTROL,
                _ => USER_DEFINED,
            };
        }
        let word_pieces = WordPieces::is_such(self.file);
        let spelled = |(id, (token, ty)): (usize, (&Option<Cow<'_, str>>, &i32))| match token {
            None => format!("[PAD{id}]"),
            Some(token) if word_pieces && *ty == NORMAL => WordPieces::spell(token),
            Some(token) => token.as_ref().to_owned(),
        };
        Ok(Tokens { texts: texts.iter().zip(&types).enumerate().map(spelled).collect(), types })
    }

    /// Returns the keys of the tokenizer algorithm; `None` if it is not supported.
    fn model(&self) -> Result<Option<Vec<(&'static str, Value)>>, CheckpointError> {
        if self.file.model.byte_fallback {
            return Ok(Some(match self.pieces {
                PieceTokenizer::Merged { name, .. } => vec![
                    ("model", name.into()),
                    ("pre", name.into()),
                    ("merges", self.merges()?),
                    ("add_space_prefix", false.into()),
                ],
                PieceTokenizer::Scored => vec![
                    ("model", "llama".into()),
                    ("pre", "default".into()),
                    ("scores", self.scores()?),
                    ("add_space_prefix", leading_space(self.file).into()),
                ],
            }));
        }
        let word_pieces = WordPieces::is_such(self.file);
        if let Some(words) = WordPieces::read(self.file).filter(|_| word_pieces) {
            return Ok(Some(vec![
                ("model", "bert".into()),
                ("pre", "default".into()),
                ("normalizer.lowercase", words.lowercase.into()),
                ("normalizer.strip_accents", words.strip_accents.into()),
            ]));
        }
        let Some(name) = pre_tokenizer(self.file).filter(|_| !word_pieces) else { return Ok(None) };
        Ok(Some(vec![("model", "gpt2".into()), ("pre", name.into()), ("merges", self.merges()?)]))
    }

    /// Returns the two tokens of the merge with this rank.
    fn sides<'m>(&self, rank: usize, merge: &'m Merge) -> Result<(&'m str, &'m str), CheckpointError> {
        merge.sides().ok_or_else(|| {
            self.wrong(
                "model.merges",
                format!("a list whose item {rank} is not a pair"),
                "two texts with a space between them",
            )
        })
    }

    fn merges(&self) -> Result<Value, CheckpointError> {
        let mut merges = StringArray::default();
        for (rank, merge) in self.file.model.merges.iter().enumerate() {
            let (left, right) = self.sides(rank, merge)?;
            merges.extend([format!("{left} {right}")]);
        }
        Ok(Value::Array(Array::String(merges)))
    }

    /// Returns scores of tokens from the ranks of merges.
    fn scores(&self) -> Result<Value, CheckpointError> {
        let mut scores = vec![NEVER_MERGED; self.count];
        for (rank, merge) in self.file.model.merges.iter().enumerate() {
            let (left, right) = self.sides(rank, merge)?;
            let Some(&id) = self.ids.get(&*[left, right].concat()) else {
                let found = format!("a list whose pair {rank} joins to a text that is not a token");
                return Err(self.wrong("model.merges", found, "pairs of texts that join to a token"));
            };
            if let Some(score) = scores.get_mut(id as usize).filter(|score| **score == NEVER_MERGED) {
                *score = -(rank as f32);
            }
        }
        Ok(Value::Array(Array::F32(scores)))
    }
}

/// Makes the tokenizer lowercase a text before it is split, like `do_lower_case` of
/// sentence-transformers.
///
/// # Errors
/// When the tokenizer does not support lowercasing.
pub(super) fn lowercase(folder: &Path, keys: &mut [(Box<str>, Value)]) -> Result<(), CheckpointError> {
    const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
    let Some((_, flag)) = keys.iter_mut().find(|(key, _)| &**key == LOWERCASE) else {
        return Err(CheckpointError::Key {
            path: folder.join(super::modules::SENTENCE).into(),
            key: "do_lower_case".into(),
            found: "true".into(),
            expected: "false, because only BERT's tokenizers can lower the case".into(),
        });
    };
    *flag = true.into();
    Ok(())
}

/// Returns whether a token's text looks like that of a control token, by the rules of llama.cpp's
/// converter.
fn looks_special(text: &str) -> bool {
    let between = |open: &str, close: &str| text.starts_with(open) && text.ends_with(close);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || between("<|", "|>")
        || between("<｜", "｜>")
        || between("<unused", ">")
}

/// Returns whether the tokenizer adds a space before a text (SentencePiece).
fn leading_space(file: &File) -> bool {
    sequence(&file.normalizer).iter().any(|part| kind(part) == "Prepend")
        || sequence(&file.pre_tokenizer).iter().any(|part| {
            kind(part) == "Metaspace"
                && part.get("prepend_scheme").and_then(Json::as_str).is_none_or(|scheme| scheme != "never")
                && part.get("add_prefix_space").and_then(Json::as_bool).unwrap_or(true)
        })
}

/// Returns GGUF's name of the pre-tokenizer that has the same patterns as the file; `None` without
/// such a pre-tokenizer.
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
                    patterns.push(ixc_text::tokenizer::BYTE_LEVEL_PATTERN.to_owned());
                }
            }
            _ => return None,
        }
    }
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    PreTokenizer::with_patterns(&patterns, file.model.ignore_merges)
}
