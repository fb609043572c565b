//! Collection of a model's GGUF keys. Each method puts keys that it makes from keys of the
//! configuration.
//!
//! ```text
//! rope_parameters: {rope_type: "yarn", factor: 4.0, …}
//!                                ->  qwen3.rope.scaling.type = "yarn"
//!                                    qwen3.rope.scaling.factor = 4.0
//! ```

mod rope;

use super::config::Config;
use super::error::CheckpointError;
use crate::gguf::{Array, Value};
pub(super) use rope::{Yarn, yarn_magnitude};

/// GGUF key that states whether attention is causal.
pub(super) const CAUSAL: &str = "attention.causal";
/// Names that configurations use for the number of layers.
pub(super) const LAYERS: [&str; 4] = ["num_hidden_layers", "n_layer", "num_layers", "n_layers"];
/// Names that configurations use for the width of the residual stream. The next constant has those
/// for the number of query heads.
pub(super) const WIDTH: [&str; 4] = ["hidden_size", "n_embd", "d_model", "n_embed"];
pub(super) const HEADS: [&str; 3] = ["num_attention_heads", "n_head", "n_heads"];
/// Maximum number of layers. It bounds the arrays of keys with an element for each layer.
pub(super) const MAX_LAYERS: u32 = 1 << 16;
/// Maximum length of a head, in models whose RoPE frequencies are divided. It bounds the tensor of
/// divisors.
const MAX_HEAD: u64 = 1 << 16;

/// GGUF keys of a model, collected from its configuration.
pub(super) struct Keys<'a> {
    pub config: &'a Config,
    /// Name of the architecture in GGUF files (`general.architecture`).
    pub architecture: &'static str,
    /// Keys and values in the order in which they were put. A key that was put twice has its last
    /// value.
    pub entries: Vec<(Box<str>, Value)>,
}

/// Checks that the number of layers is at most [`MAX_LAYERS`]. This comes before anything is listed
/// for each layer.
pub(super) fn check_layer_count(config: &Config) -> Result<(), CheckpointError> {
    for key in LAYERS {
        if let Some(layers) = config.count(&[key])?.filter(|layers| *layers > MAX_LAYERS) {
            return Err(config.wrong(key, layers.to_string(), format!("at most {MAX_LAYERS}")));
        }
    }
    Ok(())
}

impl Keys<'_> {
    pub(super) fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.entries.push((format!("{}.{key}", self.architecture).into(), value.into()));
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Marks attention as not causal: a token attends to the whole text.
    pub(super) fn not_causal(&mut self) {
        self.put(CAUSAL, false);
    }

    /// Returns the current value of a key: the last one that was put.
    pub(super) fn find(&self, key: &str) -> Option<&Value> {
        let is_key =
            |name: &str| name.strip_prefix(self.architecture).and_then(|name| name.strip_prefix('.')) == Some(key);
        self.entries.iter().rev().find(|(name, _)| is_key(name)).map(|(_, value)| value)
    }

    /// Returns the current value of a key as a number.
    pub(super) fn key_number(&self, key: &str) -> Option<u64> {
        self.find(key).and_then(Value::integer).and_then(|number| u64::try_from(number).ok())
    }

    pub(super) fn default(&mut self, key: &str, value: u32) {
        if !self.has(key) {
            self.put(key, value);
        }
    }

    pub(super) fn count(&mut self, key: &str, from: &[&str]) -> Result<(), CheckpointError> {
        if let Some(count) = self.config.count(from)? {
            self.put(key, count);
        }
        Ok(())
    }

    pub(super) fn number(&mut self, key: &str, from: &[&str]) -> Result<(), CheckpointError> {
        if let Some(number) = self.config.number(from)? {
            self.put(key, number as f32);
        }
        Ok(())
    }

    pub(super) fn flags(&mut self, key: &str, flags: impl Iterator<Item = bool>) {
        self.put(key, Value::Array(Array::Bool(flags.collect())));
    }

    /// Sets whether the weights of a token's experts are divided by their sum.
    pub(super) fn normalise(&mut self, from: &[&str]) -> Result<(), CheckpointError> {
        if let Some(flag) = self.config.flag(from)? {
            self.put("expert_weights_norm", flag);
        }
        Ok(())
    }

    /// Puts the limit of gates and up products for each layer. Null means no limit. Layers after
    /// the end of the list have no limit.
    pub(super) fn limits(&mut self, key: &str, from: &str) -> Result<(), CheckpointError> {
        let Some(value) = self.config.value(from) else { return Ok(()) };
        let limit = |item: &serde_json::Value| if item.is_null() { Some(0.0) } else { item.as_f64() };
        let limits = value.as_array().and_then(|items| items.iter().map(limit).collect::<Option<Vec<f64>>>());
        let limits = limits.ok_or_else(|| {
            self.config.wrong(from, "not an array of numbers and nulls", "an array of numbers and nulls")
        })?;
        let layers = self.key_number("block_count").unwrap_or(0) as usize;
        let limits = limits.into_iter().map(|limit| limit as f32).chain(std::iter::repeat(0.0)).take(layers);
        self.put(key, limits.collect::<Vec<f32>>());
        Ok(())
    }

    /// Puts a count for all layers, or an array with a count for each layer, as the configuration
    /// has it.
    pub(super) fn counts_of_layers(&mut self, key: &str, from: &str) -> Result<(), CheckpointError> {
        if self.config.value(from).is_some_and(|value| value.is_array()) {
            let counts = self.config.counts(from)?.unwrap_or_default();
            self.put(key, counts);
            return Ok(());
        }
        self.count(key, &[from])
    }

    /// Puts a count. The configuration may repeat it for each layer.
    pub(super) fn same_for_all(&mut self, key: &str, from: &str) -> Result<(), CheckpointError> {
        if self.config.value(from).is_some_and(|value| value.is_array()) {
            let counts = self.config.counts(from)?.unwrap_or_default();
            match counts[..] {
                [first, ref rest @ ..] if rest.iter().all(|count| *count == first) => self.put(key, first),
                _ => return Err(self.config.wrong(from, format!("{counts:?}"), "the same count for each layer")),
            }
            return Ok(());
        }
        self.count(key, &[from])
    }

    /// Refuses a configuration in which `key` has a value that `is_other` rejects, as no graph
    /// supports it.
    pub(super) fn refuse(
        &self,
        key: &str,
        is_other: impl Fn(&serde_json::Value) -> bool,
        expected: &str,
    ) -> Result<(), CheckpointError> {
        match self.config.value(key) {
            Some(value) if is_other(value) => {
                let found: String = value.to_string().chars().take(64).collect();
                Err(self.config.wrong(key, found, format!("{expected}: nothing else is supported")))
            }
            _ => Ok(()),
        }
    }

    /// Puts the window of a model of an architecture that usually has none. The window applies to
    /// the layers that the configuration lists, to those from `max_window_layers` on, or to all
    /// layers.
    pub(super) fn stated_window(&mut self) -> Result<(), CheckpointError> {
        let Some(window) = self.config.count(&["sliding_window"])? else { return Ok(()) };
        let layers = self.config.require(&LAYERS)?;
        let has_window: Option<Vec<bool>> =
            match (self.config.texts("layer_types")?, self.config.count(&["max_window_layers"])?) {
                (Some(kinds), _) => Some(kinds.iter().map(|kind| *kind == "sliding_attention").collect()),
                (None, Some(whole)) => Some((0..layers).map(|layer| layer >= whole).collect()),
                (None, None) => None,
            };
        match has_window {
            Some(has_window) if !has_window.contains(&true) => return Ok(()),
            Some(has_window) if has_window.contains(&false) => {
                self.flags("attention.sliding_window_pattern", has_window.into_iter())
            }
            _ => {}
        }
        self.put("attention.sliding_window", window);
        Ok(())
    }

    /// Puts which layers have the window: a list, or a period.
    pub(super) fn windows(&mut self) -> Result<(), CheckpointError> {
        if let Some(types) = self.config.texts("layer_types")? {
            self.flags("attention.sliding_window_pattern", types.iter().map(|kind| *kind == "sliding_attention"));
        } else if let Some(letters) = self.config.value("sliding_window_pattern").and_then(|value| value.as_str()) {
            // The text has a letter for each layer of one period; L means a layer with the window.
            let layers = self.config.require(&["num_hidden_layers"])? as usize;
            self.flags(
                "attention.sliding_window_pattern",
                letters.bytes().map(|letter| letter == b'L').cycle().take(layers),
            );
        } else if let Some(period) = self.config.count(&["sliding_window_pattern", "_sliding_window_pattern"])? {
            self.put("attention.sliding_window_pattern", period);
        }
        Ok(())
    }
}

/// Returns the length of a head.
pub(super) fn head_dim(config: &Config) -> Result<u64, CheckpointError> {
    if let Some(length) = config.count(&["head_dim"])? {
        return Ok(length.into());
    }
    // GPT-Neo has the name `num_heads`. In other models, this name counts other heads.
    let [first, second, third] = HEADS;
    let heads = config.require(&[first, second, third, "num_heads"])?;
    let width = config.require(&WIDTH)?;
    Ok(u64::from(width.checked_div(heads).unwrap_or(0)))
}
