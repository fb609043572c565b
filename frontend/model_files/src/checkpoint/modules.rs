//! Reader of `modules.json` of sentence-transformers: the steps from the hidden states of a text to
//! its vector.
//!
//! | module | content |
//! | --- | --- |
//! | `Transformer` | `sentence_bert_config.json`: max text length, and whether to lowercase |
//! | `Pooling` | method that reduces a text's hidden states to one vector |
//! | `Dense` | matrix that multiplies the vector, in models whose graph supports it |
//! | `Normalize` | scaling of the vector to length 1 |
//! | `Dropout` | a training step, which is ignored |
//!
//! Any other module, or another order of modules, is an error, because vectors would silently be
//! wrong.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::config::{self, Config};
use super::error::CheckpointError;
use super::families::Family;
use super::{shards, tokenizer_json};

const MODULES: &str = "modules.json";
pub(super) const SENTENCE: &str = "sentence_bert_config.json";
/// Pooling methods. Each has sentence-transformers' flag, its newer name, and llama.cpp's number.
const POOLINGS: [(&str, &str, u32); 3] = [
    ("pooling_mode_mean_tokens", "mean", 1),
    ("pooling_mode_cls_token", "cls", 2),
    ("pooling_mode_lasttoken", "lasttoken", 3),
];
/// Prefix of the flags that state the pooling method.
const FLAG: &str = "pooling_mode_";
/// Activation functions of a `Dense` module that are the identity.
const IDENTITY: [&str; 2] = ["torch.nn.modules.linear.Identity", "torch.nn.modules.Identity"];
/// Maximum number of modules.
const MAX_MODULES: usize = 64;

/// Settings of a folder's modules.
#[derive(Debug, Default)]
pub(super) struct Modules {
    /// llama.cpp's number of the pooling, if a module states it.
    pub pooling: Option<u32>,
    /// Whether vectors are not scaled to length 1: the folder has modules, but no `Normalize`.
    pub unscaled: bool,
    /// Files of the `Dense` modules, in order.
    pub dense: Vec<PathBuf>,
    /// Maximum number of tokens of a text.
    pub longest: Option<u32>,
    /// Whether text is lowercased before it is tokenized.
    pub lowercase: bool,
}

impl Modules {
    /// Reads the modules of a folder. If the folder has no list of modules, the result has
    /// defaults.
    ///
    /// # Errors
    /// When a file is malformed, or a module is not supported.
    pub(super) fn read(folder: &Path, family: &Family) -> Result<Modules, CheckpointError> {
        let path = folder.join(MODULES);
        let mut found = Modules::default();
        let Some(list) = config::read_optional(&path)? else { return Ok(found) };
        found.transformer(folder)?;
        let wrong = |key: &str, found: String, expected: &str| wrong(&path, key, found, expected);
        let list = list.as_array().filter(|list| list.len() <= MAX_MODULES);
        let list = list.ok_or_else(|| wrong("", "not a short array".to_owned(), "an array of at most 64 modules"))?;
        let mut scaled = false;
        for module in list {
            let ty = module.get("type").and_then(Json::as_str).unwrap_or_default();
            let place = module.get("path").and_then(Json::as_str).unwrap_or_default();
            if !(place.is_empty() || shards::is_plain(place)) {
                return Err(wrong("path", quote(place), "the name of a folder next to this file"));
            }
            let place = folder.join(place);
            match ty.rsplit('.').next().unwrap_or_default() {
                _ if scaled => return Err(wrong("type", quote(ty), "Normalize as the last module")),
                "Transformer" | "Dropout" => {}
                "Pooling" if found.pooling.is_none() && found.dense.is_empty() => {
                    found.pooling = Some(pooling(&Config::open(&place.join(super::CONFIG))?)?);
                }
                "Dense" if found.pooling.is_some() && found.dense.len() < family.dense_modules.len() => {
                    found.dense.push(dense(&place)?);
                }
                "Normalize" => scaled = true,
                _ => {
                    let more = if family.dense_modules.is_empty() { "" } else { ", Dense" };
                    let expected = format!(
                        "one each of Transformer, Pooling{more} and Normalize, in this order: nothing else is supported for this model"
                    );
                    return Err(wrong("type", quote(ty), &expected));
                }
            }
        }
        found.unscaled = !scaled && found.pooling.is_some();
        Ok(found)
    }

    /// Reads the settings of the `Transformer` module. If they lack a maximum text length, that of
    /// the tokenizer applies.
    fn transformer(&mut self, folder: &Path) -> Result<(), CheckpointError> {
        let path = folder.join(SENTENCE);
        if path.is_file() {
            let config = Config::open(&path)?;
            self.longest = config.count(&["max_seq_length"])?;
            self.lowercase = config.flag(&["do_lower_case"])?.unwrap_or(false);
        }
        if self.longest.is_none() {
            let tokenizer_config = config::read_optional(&folder.join(tokenizer_json::CONFIG))?.unwrap_or_default();
            // A number that is too large for a count means no maximum.
            self.longest =
                tokenizer_config.get("model_max_length").and_then(Json::as_u64).and_then(|n| u32::try_from(n).ok());
        }
        self.longest = self.longest.filter(|longest| *longest > 0);
        Ok(())
    }
}

fn quote(text: &str) -> String {
    format!("\"{}\"", crate::gguf::quote(text))
}

fn wrong(path: &Path, key: &str, found: String, expected: &str) -> CheckpointError {
    CheckpointError::Key { path: path.into(), key: key.into(), found: found.into(), expected: expected.into() }
}

/// Returns llama.cpp's number for the method of a `Pooling` module.
fn pooling(config: &Config) -> Result<u32, CheckpointError> {
    const WORD: &str = "pooling_mode";
    const EXPECTED: &str = "one of mean, cls and lasttoken: nothing else is supported";
    if let Some(word) = config.text(&[WORD])? {
        let found = POOLINGS.iter().find(|(_, name, _)| *name == word);
        return found.map(|(.., number)| *number).ok_or_else(|| config.wrong(WORD, quote(word), EXPECTED));
    }
    let mut ways = Vec::new();
    for key in config.keys().filter(|key| key.starts_with(FLAG)) {
        if config.flag(&[key])? == Some(true) {
            ways.push(key);
        }
    }
    match ways[..] {
        [way] => {
            let found = POOLINGS.iter().find(|(flag, ..)| *flag == way);
            found.map(|(.., number)| *number).ok_or_else(|| config.wrong(way, "true", EXPECTED))
        }
        _ => Err(config.wrong(WORD, format!("absent, and {} flags of pooling methods are set", ways.len()), EXPECTED)),
    }
}

/// Checks the settings of a `Dense` module. Returns the path of its weights.
fn dense(place: &Path) -> Result<PathBuf, CheckpointError> {
    const FUNCTION: &str = "activation_function";
    let config = Config::open(&place.join(super::CONFIG))?;
    if let Some(function) = config.text(&[FUNCTION])?.filter(|function| !IDENTITY.contains(function)) {
        return Err(config.wrong(FUNCTION, quote(function), "Identity: nothing else is supported"));
    }
    let file = place.join(shards::SINGLE);
    match file.is_file() {
        true => Ok(file),
        false => Err(CheckpointError::NoWeights { path: place.into(), hint: shards::hint(place) }),
    }
}
