//! Reader of `config.json` and other JSON files. Each method returns a key's value, and checks its
//! type.
//!
//! In configurations of multimodal models, the decoder's keys are in the object `text_config`,
//! which takes precedence. If the family states the default of a missing key, from the model's
//! class in transformers, that default applies ([`Config::with_defaults`]).

use std::path::Path;

use serde_json::{Map, Value};

use super::error::CheckpointError;

/// Maximum length of a JSON file in bytes. The largest vocabularies have a `tokenizer.json` of
/// about 35 MB.
const MAX_BYTES: u64 = 256 << 20;

/// An object of a JSON file.
#[derive(Clone, Debug)]
pub(super) struct Config {
    path: Box<Path>,
    /// Objects in which a key is looked up, in this order.
    objects: Vec<Map<String, Value>>,
    /// Defaults of keys that no object has.
    defaults: Map<String, Value>,
}

/// Reads a JSON file.
pub(super) fn read(path: &Path) -> Result<Value, CheckpointError> {
    let text = ixc_files::read_text(path, MAX_BYTES)?;
    serde_json::from_str(&text).map_err(|source| CheckpointError::Json { path: path.into(), source })
}

/// Reads a JSON file if it exists.
pub(super) fn read_optional(path: &Path) -> Result<Option<Value>, CheckpointError> {
    match read(path) {
        Err(CheckpointError::Read(ixc_files::ReadError::Io { source, .. }))
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// Describes a value for an error.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(x) => x.to_string(),
        Value::Number(x) => x.to_string(),
        Value::String(text) => format!("\"{}\"", crate::gguf::quote(text)),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

impl Config {
    pub(super) fn open(path: &Path) -> Result<Config, CheckpointError> {
        Config::from_value(path, read(path)?)
    }

    fn from_value(path: &Path, value: Value) -> Result<Config, CheckpointError> {
        let Value::Object(root) = value else {
            return Err(CheckpointError::Key {
                path: path.into(),
                key: "".into(),
                found: kind(&value).into(),
                expected: "an object".into(),
            });
        };
        // Omni models, which produce speech, have two parts: `talker` and `thinker`. The thinker
        // contains the text decoder.
        let mut objects = vec![root];
        for keys in [&["thinker_config"][..], &["text_config", "llm_config", "language_config"]] {
            let inner = keys.iter().find_map(|key| match objects[0].remove(*key) {
                Some(Value::Object(inner)) => Some(inner),
                _ => None,
            });
            objects.splice(0..0, inner);
        }
        Ok(Config { path: path.into(), objects, defaults: Map::new() })
    }

    /// Sets the defaults of keys, from an object as JSON. They do not apply to a key that is null
    /// in the configuration.
    pub(super) fn with_defaults(self, json: &str) -> Config {
        let mut defaults: Map<String, Value> =
            serde_json::from_str(json).unwrap_or_else(|error| unreachable!("a constant, and tested: {error}"));
        const BASE: &str = "rope_theta";
        // Both are names of the table of RoPE parameters. If the configuration has one of them, the
        // default of the other is dropped.
        for (stated, other) in [("rope_scaling", "rope_parameters"), ("rope_parameters", "rope_scaling")] {
            if self.has(stated) {
                // The base of RoPE in the dropped table stays a default, because transformers'
                // class applies it to both names.
                let dropped = defaults.remove(other);
                if let Some(base) = dropped.as_ref().and_then(|table| table.get(BASE)) {
                    defaults.entry(BASE).or_insert_with(|| base.clone());
                }
            }
        }
        Config { defaults, ..self }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the error for a key with an invalid value.
    pub(super) fn wrong(
        &self,
        key: &str,
        found: impl Into<Box<str>>,
        expected: impl Into<Box<str>>,
    ) -> CheckpointError {
        CheckpointError::Key {
            path: self.path.clone(),
            key: key.into(),
            found: found.into(),
            expected: expected.into(),
        }
    }

    /// Returns the first of the keys `keys` that exists and is not null, with its value.
    fn find<'a>(&self, keys: &[&'a str]) -> Option<(&'a str, &Value)> {
        let stated = self.objects.iter().find_map(|object| {
            keys.iter().find_map(|&key| Some((key, object.get(key).filter(|value| !value.is_null())?)))
        });
        let silent = || !keys.iter().any(|key| self.objects.iter().any(|object| object.contains_key(*key)));
        let default = || keys.iter().find_map(|&key| Some((key, self.defaults.get(key)?)));
        stated.or_else(|| if silent() { default() } else { None })
    }

    /// Returns the names of the keys in the innermost object.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.objects.first().into_iter().flat_map(Map::keys).map(String::as_str)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.find(&[key]).is_some()
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.find(&[key]).map(|(_, value)| value)
    }

    /// Returns the value of a key in the outermost object.
    pub(super) fn top_level(&self, key: &str) -> Option<&Value> {
        self.objects.last()?.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn count(&self, keys: &[&str]) -> Result<Option<u32>, CheckpointError> {
        let Some((key, value)) = self.find(keys) else { return Ok(None) };
        let count = value.as_u64().and_then(|n| u32::try_from(n).ok());
        count.map(Some).ok_or_else(|| self.wrong(key, kind(value), "a count below 2^32"))
    }

    pub(super) fn require(&self, keys: &[&str]) -> Result<u32, CheckpointError> {
        self.count(keys)?.ok_or_else(|| self.wrong(keys.first().copied().unwrap_or_default(), "missing", "a count"))
    }

    pub(super) fn number(&self, keys: &[&str]) -> Result<Option<f64>, CheckpointError> {
        let Some((key, value)) = self.find(keys) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(key, kind(value), "a number"))
    }

    pub(super) fn flag(&self, keys: &[&str]) -> Result<Option<bool>, CheckpointError> {
        let Some((key, value)) = self.find(keys) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(key, kind(value), "true or false"))
    }

    pub(super) fn text(&self, keys: &[&str]) -> Result<Option<&str>, CheckpointError> {
        let Some((key, value)) = self.find(keys) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, kind(value), "a text"))
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, CheckpointError> {
        let Some((key, value)) = self.find(&[key]) else { return Ok(None) };
        let texts = value.as_array().and_then(|items| items.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        texts.map(Some).ok_or_else(|| self.wrong(key, kind(value), "an array of texts"))
    }

    pub(super) fn counts(&self, key: &str) -> Result<Option<Vec<u32>>, CheckpointError> {
        let Some((key, value)) = self.find(&[key]) else { return Ok(None) };
        let count = |item: &Value| item.as_u64().and_then(|n| u32::try_from(n).ok());
        let counts = value.as_array().and_then(|items| items.iter().map(count).collect::<Option<Vec<_>>>());
        counts.map(Some).ok_or_else(|| self.wrong(key, kind(value), "an array of counts"))
    }

    pub(super) fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, CheckpointError> {
        let Some((key, value)) = self.find(&[key]) else { return Ok(None) };
        let numbers = value.as_array().and_then(|items| items.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
        numbers.map(Some).ok_or_else(|| self.wrong(key, kind(value), "an array of numbers"))
    }

    /// Returns a nested object as a separate configuration.
    pub(super) fn object(&self, key: &str) -> Result<Option<Config>, CheckpointError> {
        match self.find(&[key]) {
            None => Ok(None),
            Some((_, Value::Object(object))) => {
                let (path, objects) = (self.path.clone(), vec![object.clone()]);
                Ok(Some(Config { path, objects, defaults: Map::new() }))
            }
            Some((key, value)) => Err(self.wrong(key, kind(value), "an object")),
        }
    }
}
