//! GGUF keys of RoPE, made from the RoPE parameters of a configuration.

use super::{Keys, MAX_HEAD, head_dim};
use crate::checkpoint::config::Config;
use crate::checkpoint::error::CheckpointError;

/// RoPE parameters that configurations may list for each layer, each with the name of the list.
const LISTED: [(&str, &str); 2] = [("rope_theta", "rope_theta"), ("partial_rotary_factor", "partial_rotary_factors")];

impl Keys<'_> {
    /// Returns the tables of RoPE parameters. The first is that of transformers 5,
    /// `rope_parameters`, which may have a nested table for each kind of layer. The second is that
    /// of earlier versions.
    fn rope_tables(&self) -> Result<[Option<Config>; 2], CheckpointError> {
        let now = self.config.object("rope_parameters")?;
        let full = match &now {
            Some(table) => match table.object("full_attention")? {
                None => table.object("compress")?,
                full => full,
            },
            None => None,
        };
        Ok([full.or(now), self.config.object("rope_scaling")?])
    }

    /// Returns the RoPE parameter `key`, if it is a number.
    pub(crate) fn rope_number(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        for table in self.rope_tables()?.iter().flatten() {
            if let Some(number) = table.number(&[key])? {
                return Ok(Some(number));
            }
        }
        if let Some(number) = self.of_kind(key, "full_attention")? {
            return Ok(Some(number));
        }
        match key {
            "rope_theta" | "partial_rotary_factor" => self.config.number(&[key]),
            _ => Ok(None),
        }
    }

    /// Returns the RoPE parameter `key` of layers with a window, if a table for these layers, or a
    /// list with a number for each layer, states it.
    pub(crate) fn local_rope_number(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        const LOCAL: &str = "sliding_attention";
        match self.config.object("rope_parameters")? {
            Some(table) => table.object(LOCAL)?.map_or(Ok(None), |table| table.number(&[key])),
            None => self.of_kind(key, LOCAL),
        }
    }

    /// Returns the number that a list states for the first layer of a kind.
    fn of_kind(&self, key: &str, kind: &str) -> Result<Option<f64>, CheckpointError> {
        let Some((_, listed)) = LISTED.iter().find(|(of, _)| *of == key) else { return Ok(None) };
        let Some(kinds) = self.config.texts("layer_types")? else { return Ok(None) };
        if !self.config.value(listed).is_some_and(|value| value.is_array()) {
            return Ok(None);
        }
        let numbers = self.config.numbers(listed)?.unwrap_or_default();
        Ok(kinds.iter().position(|of| *of == kind).and_then(|layer| numbers.get(layer).copied()))
    }

    /// Returns the type of RoPE scaling.
    pub(crate) fn rope_kind(&self) -> Result<Option<String>, CheckpointError> {
        for table in self.rope_tables()?.iter().flatten() {
            if let Some(kind) = table.text(&["rope_type", "type"])? {
                return Ok(Some(kind.to_owned()));
            }
        }
        Ok(None)
    }

    /// Returns the parameters of YaRN, if the scaling type is YaRN.
    pub(crate) fn yarn(&self) -> Result<Option<Yarn>, CheckpointError> {
        if self.rope_kind()?.as_deref() != Some("yarn") {
            return Ok(None);
        }
        let context = self.rope_number("original_max_position_embeddings")?;
        let context = context.filter(|x| *x >= 1.0 && *x <= f64::from(u32::MAX)).ok_or_else(|| {
            self.config.wrong(
                "original_max_position_embeddings",
                "missing, or not a count",
                "a count of positions, which yarn needs",
            )
        })?;
        // If the factor is not stated, it is the ratio of the context length to the original
        // context length.
        let factor = match self.rope_number("factor")? {
            Some(factor) => factor,
            None => f64::from(self.config.require(&["max_position_embeddings"])?) / context,
        };
        let stated = [self.rope_number("mscale")?, self.rope_number("mscale_all_dim")?];
        let magnitude = match (self.rope_number("attention_factor")?, stated.map(|weight| weight.filter(|x| *x != 0.0)))
        {
            (Some(magnitude), _) => magnitude,
            (None, [Some(weight), Some(all)]) => yarn_magnitude(factor, weight) / yarn_magnitude(factor, all),
            (None, _) => yarn_magnitude(factor, 1.0),
        };
        if !(magnitude.is_finite() && magnitude > 0.0) {
            return Err(self.config.wrong("attention_factor", magnitude.to_string(), "a positive number"));
        }
        Ok(Some(Yarn { factor, context: context as u32, magnitude }))
    }

    pub(crate) fn rope(&mut self, known: Option<&str>) -> Result<(), CheckpointError> {
        if let Some(base) = self.rope_number("rope_theta")? {
            self.put("rope.freq_base", base as f32);
        }
        if let Some(base) = self.local_rope_number("rope_theta")? {
            self.put("rope.freq_base_swa", base as f32);
        }
        let factor = self.rope_number("factor")?;
        match (self.rope_kind()?.as_deref(), factor) {
            (Some(kind), _) if Some(kind) == known => {}
            (None | Some("default" | "llama3" | "dynamic" | "mrope" | "proportional"), _) | (Some("linear"), None) => {}
            (Some("linear"), Some(factor)) => {
                self.put("rope.scaling.type", "linear");
                self.put("rope.scaling.factor", factor as f32);
            }
            (Some("yarn"), _) => {
                let Some(Yarn { factor, context, magnitude }) = self.yarn()? else { return Ok(()) };
                self.put("rope.scaling.type", "yarn");
                self.put("rope.scaling.factor", factor as f32);
                self.put("rope.scaling.original_context_length", context);
                for (key, from) in [
                    ("rope.scaling.yarn_ext_factor", "extrapolation_factor"),
                    ("rope.scaling.yarn_beta_fast", "beta_fast"),
                    ("rope.scaling.yarn_beta_slow", "beta_slow"),
                ] {
                    if let Some(number) = self.rope_number(from)? {
                        self.put(key, number as f32);
                    }
                }
                if magnitude as f32 != yarn_magnitude(factor, 1.0) as f32 {
                    self.put("rope.scaling.yarn_attn_factor", magnitude as f32);
                }
            }
            (Some("longrope" | "su"), _) => self.longrope()?,
            (Some(other), _) => {
                let expected = "default, linear, llama3, yarn or longrope: nothing else is supported";
                return Err(self.config.wrong("rope_type", format!("\"{other}\""), expected));
            }
        }
        Ok(())
    }

    /// Puts whether the bounds of YaRN's ramp are rounded to whole pairs, if this differs from
    /// `usual`, the default of the architecture's graph.
    pub(crate) fn set_ramp_truncation(&mut self, usual: bool) -> Result<(), CheckpointError> {
        const KEY: &str = "truncate";
        let mut stated = None;
        for table in self.rope_tables()?.iter().flatten() {
            stated = stated.or(table.flag(&[KEY])?);
        }
        let truncated = stated.unwrap_or(true);
        if self.rope_kind()?.as_deref() == Some("yarn") && truncated != usual {
            self.put("rope.scaling.yarn_truncate", truncated);
        }
        Ok(())
    }

    /// Puts the keys of longrope, which has two lists of factors. The factor on sines and cosines
    /// is stated, or follows from the growth of the context (transformers,
    /// `_compute_longrope_parameters`).
    fn longrope(&mut self) -> Result<(), CheckpointError> {
        const ORIGINAL: &str = "original_max_position_embeddings";
        let config = self.config;
        let context = f64::from(config.require(&["max_position_embeddings"])?);
        let original = match self.rope_number(ORIGINAL)? {
            None => config.number(&[ORIGINAL])?.unwrap_or(context),
            Some(original) => original,
        };
        if !(original >= 2.0 && original <= f64::from(u32::MAX)) {
            return Err(config.wrong(
                ORIGINAL,
                original.to_string(),
                "a count of 2 or more positions, which longrope needs",
            ));
        }
        let grown = self.rope_number("factor")?.unwrap_or(context / original);
        let usual = if grown <= 1.0 { 1.0 } else { (1.0 + grown.ln() / original.ln()).sqrt() };
        let stated = [self.rope_number("short_mscale")?, self.rope_number("long_mscale")?];
        let magnitude = match (self.rope_number("attention_factor")?, stated) {
            (Some(magnitude), _) => magnitude,
            (None, [Some(short), Some(long)]) if short == long => short,
            (None, [None, None]) => usual,
            (None, stated) => {
                let [short, long] = stated.map(|x| x.map_or_else(|| "missing".to_owned(), |x| x.to_string()));
                let found = format!("{long}, but short_mscale is {short}");
                return Err(config.wrong("long_mscale", found, "the same number as short_mscale"));
            }
        };
        if !(magnitude.is_finite() && magnitude > 0.0) {
            return Err(config.wrong("attention_factor", magnitude.to_string(), "a positive number"));
        }
        self.put("rope.scaling.type", "longrope");
        self.put("rope.scaling.original_context_length", original as u32);
        self.put("rope.scaling.attn_factor", magnitude as f32);
        Ok(())
    }

    /// Returns the names and values of tensors with divisors of RoPE frequencies, for models that
    /// have them.
    pub(crate) fn divisors(&self) -> Result<Vec<(&'static str, Vec<f32>)>, CheckpointError> {
        let factors = match self.rope_kind()?.as_deref() {
            Some("llama3") => llama_3_divisors(self)?,
            Some("proportional") => proportional_divisors(self)?,
            Some("longrope" | "su") => {
                return [("rope_factors_short.weight", "short_factor"), ("rope_factors_long.weight", "long_factor")]
                    .into_iter()
                    .map(|(tensor, key)| Ok((tensor, longrope_divisors(self, key)?)))
                    .collect();
            }
            _ => return Ok(Vec::new()),
        };
        Ok(vec![("rope_freqs.weight", factors)])
    }

    /// Puts the number of elements, at the start of a head, that RoPE rotates. `share` is the
    /// default share of the head.
    pub(crate) fn rotated_part(&mut self, share: f64) -> Result<(), CheckpointError> {
        let share = self.rope_number("partial_rotary_factor")?.unwrap_or(share);
        let dims = head_dim(self.config)? as f64 * share;
        if !(0.0..=f64::from(u32::MAX)).contains(&dims) {
            return Err(self.config.wrong("partial_rotary_factor", share.to_string(), "from 0 to 1"));
        }
        self.put("rope.dimension_count", dims as u32);
        Ok(())
    }
}

/// Parameters of YaRN.
pub(crate) struct Yarn {
    /// Ratio of the context length to the original context length.
    pub factor: f64,
    /// Original context length, before scaling.
    pub context: u32,
    /// Factor on sines and cosines: the parameter `attention_factor`, or a value derived from
    /// `factor`.
    pub magnitude: f64,
}

/// Returns YaRN's factor on sines and cosines, `1 + 0.1 * weight * ln(factor)` (transformers,
/// `_compute_yarn_parameters`).
pub(crate) fn yarn_magnitude(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 1.0 + 0.1 * weight * factor.ln() }
}

/// Returns Gemma 4's divisors of RoPE frequencies in layers without a window. They are 1 for the
/// first pairs of a head. The other pairs must not rotate.
fn proportional_divisors(keys: &Keys<'_>) -> Result<Vec<f32>, CheckpointError> {
    /// Divisor so large that a pair practically does not rotate. llama.cpp's converter writes the
    /// same number.
    const STILL: f32 = 1e30;
    let dims = keys.key_number("rope.dimension_count").unwrap_or(0);
    if dims > MAX_HEAD {
        return Err(keys.config.wrong("head_dim", dims.to_string(), "the length of a head"));
    }
    let share = keys.rope_number("partial_rotary_factor")?.unwrap_or(1.0);
    if !(0.0..=1.0).contains(&share) {
        return Err(keys.config.wrong("partial_rotary_factor", share.to_string(), "from 0 to 1"));
    }
    let turned = (dims as f64 * share / 2.0) as u64;
    Ok((0..dims / 2).map(|pair| if pair < turned { 1.0 } else { STILL }).collect())
}

/// Returns the list of longrope's factors under `key`: one factor for each pair. One list serves
/// short contexts, the other long contexts.
fn longrope_divisors(keys: &Keys<'_>, key: &str) -> Result<Vec<f32>, CheckpointError> {
    for table in keys.rope_tables()?.iter().flatten() {
        if let Some(factors) = table.numbers(key)? {
            return Ok(factors.into_iter().map(|factor| factor as f32).collect());
        }
    }
    Err(keys.config.wrong(key, "missing", "an array of numbers, which longrope needs"))
}

/// Returns Llama 3's divisors of RoPE frequencies: 1 for high frequencies, the factor for low ones,
/// and a smooth transition between them (transformers, `_compute_llama3_parameters`).
fn llama_3_divisors(keys: &Keys<'_>) -> Result<Vec<f32>, CheckpointError> {
    let config = keys.config;
    let number = |key: &str, default: f64| Ok::<_, CheckpointError>(keys.rope_number(key)?.unwrap_or(default));
    let base = number("rope_theta", 10_000.0)? as f32;
    let (factor, low) = (number("factor", 8.0)?, number("low_freq_factor", 1.0)?);
    let (high, context) = (number("high_freq_factor", 4.0)?, number("original_max_position_embeddings", 8192.0)?);
    let length = keys.key_number("rope.dimension_count").map_or_else(|| head_dim(config), Ok)?;
    if length == 0 || length > MAX_HEAD || [factor, low, high, context].iter().any(|x| !(x.is_finite() && *x > 0.0)) {
        return Err(config.wrong(
            "rope_scaling",
            "an object with numbers that are not positive",
            "positive numbers, which llama3 needs",
        ));
    }
    // If no key states how many elements RoPE rotates, the parameter `partial_rotary_factor` may
    // still do so.
    let dims = match keys.has("rope.dimension_count") {
        true => length,
        false => (length as f64 * number("partial_rotary_factor", 1.0)?.clamp(0.0, 1.0)) as u64,
    };
    let [factor, low, high, context] = [factor, low, high, context].map(|x| x as f32);
    // Other programs compute these in single precision. Doing the same gives files and folders the
    // same divisors.
    let divisors = (0..dims / 2).map(|pair| {
        let frequency = 1.0 / base.powf((2 * pair) as f32 / dims as f32);
        let length = (2.0 * std::f64::consts::PI) as f32 / frequency;
        if length < context / high {
            1.0
        } else if length > context / low {
            factor
        } else {
            let smooth = (context / length - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    });
    Ok(divisors.chain(std::iter::repeat(1.0)).take((length / 2) as usize).collect())
}
