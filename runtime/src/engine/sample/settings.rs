//! The settings of a sampler, and a table with the name and range of each numeric setting.

use std::sync::Arc;

use ixc_failure::Class;

use super::Breakers;
use super::kinds::{DEFAULT, Kind};

/// Maximum length of the penalties' windows, in tokens.
pub const MAX_REPEAT_WINDOW: u32 = 1 << 20;
/// Maximum value of top-k: more tokens than any vocabulary has.
const MAX_TOP_K: f64 = (1 << 24) as f64;

/// The settings of a sampler.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerSettings {
    /// Temperature: divisor of the logits; 0 or less means greedy sampling.
    pub temperature: f32,
    /// Dynamic temperature: maximum change of the temperature. It falls if the model is certain,
    /// and rises if the model is uncertain; 0 is off.
    pub dynatemp_range: f32,
    /// Dynamic temperature: exponent of the normalised entropy.
    pub dynatemp_exponent: f32,
    /// Top-k: number of tokens with the largest logits that are kept; 0 is off.
    pub top_k: u32,
    /// Top-p: keeps the likeliest tokens that together have this probability; 1 is off.
    pub top_p: f32,
    /// Min-p: keeps tokens whose probability is at least this fraction of the largest probability;
    /// 0 is off.
    pub min_p: f32,
    /// Locally typical: keeps the tokens whose surprise is nearest to the entropy, until they
    /// together have this probability; 1 is off.
    pub typical_p: f32,
    /// Top-n-sigma: keeps tokens whose logit is at most this many standard deviations below the
    /// largest logit; 0 or less is off.
    pub top_n_sigma: f32,
    /// XTC: probability that a draw removes the likeliest tokens; 0 is off.
    pub xtc_probability: f32,
    /// XTC threshold: of all tokens with at least this probability, XTC keeps only the least likely
    /// token.
    pub xtc_threshold: f32,
    /// Repeat penalty: positive logits of recent tokens are divided by it, and negative logits are
    /// multiplied by it; 1 is off.
    pub repeat_penalty: f32,
    /// Number of recent tokens to which the repeat, presence and frequency penalties apply.
    pub repeat_window: u32,
    /// Presence penalty: subtracted once from the logits of recent tokens; 0 is off.
    pub presence_penalty: f32,
    /// Frequency penalty: subtracted from the logits of recent tokens, once for each occurrence; 0
    /// is off.
    pub frequency_penalty: f32,
    /// DRY multiplier: `multiplier * base^(length - allowed length)` is subtracted from the logit
    /// of a token that would continue a repetition of `length` tokens; 0 is off.
    pub dry_multiplier: f32,
    /// DRY base: base of the power in the DRY penalty.
    pub dry_base: f32,
    /// DRY allowed length: length in tokens from which a repetition is penalised.
    pub dry_allowed_length: u32,
    /// DRY window: number of recent tokens in which repetitions are searched.
    pub dry_window: u32,
    /// DRY breakers: token sequences that end a repetition.
    pub dry_breakers: Arc<Breakers>,
    /// Mirostat version, 1 or 2. Mirostat replaces all samplers except the temperature; 0 is off.
    pub mirostat: u32,
    /// Mirostat's target for the surprise of a token, in bits.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate.
    pub mirostat_eta: f32,
    /// The samplers, in the order in which they run.
    pub samplers: Vec<Kind>,
    /// Tokens, and the biases that are added to their logits; minus infinity forbids a token. Ids
    /// outside the vocabulary are ignored.
    pub bias: Vec<(u32, f32)>,
    /// Tokens that are never drawn, unless no other token is left.
    pub banned: Vec<u32>,
    /// Tokens that are not drawn before `min_tokens` tokens were drawn, unless no other token is
    /// left.
    pub late_tokens: Vec<u32>,
    /// Number of tokens that must be drawn before one of `late_tokens` may be drawn.
    pub min_tokens: usize,
    /// Seed of the random generator.
    pub seed: u64,
}

impl Default for SamplerSettings {
    /// Returns llama.cpp's defaults, with seed 0.
    fn default() -> SamplerSettings {
        SamplerSettings {
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_penalty: 1.0,
            repeat_window: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_window: 64,
            dry_breakers: Arc::default(),
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            samplers: DEFAULT.to_vec(),
            bias: Vec::new(),
            banned: Vec::new(),
            late_tokens: Vec::new(),
            min_tokens: 0,
            seed: 0,
        }
    }
}

impl SamplerSettings {
    /// Returns settings for greedy sampling, which always gives the same tokens.
    pub fn greedy() -> SamplerSettings {
        SamplerSettings { temperature: 0.0, ..SamplerSettings::default() }
    }

    /// Checks that all numeric settings are in their ranges.
    ///
    /// # Errors
    /// Returns an error for the first setting outside its range.
    pub fn check(&self) -> Result<(), SettingsError> {
        for number in NUMBERS {
            let found = (number.get)(self);
            // Settings are stored as `f32`, so the bounds are rounded to `f32` before the
            // comparison.
            if !(number.min as f32..=number.max as f32).contains(&(found as f32)) {
                let Number { name: setting, min: least, max: most, .. } = *number;
                return Err(SettingsError { setting, found, min: least, max: most });
            }
        }
        match self.bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            Some((_, bias)) => Err(SettingsError {
                setting: "logit_bias",
                found: f64::from(*bias),
                min: f64::NEG_INFINITY,
                max: f64::from(f32::MAX),
            }),
            None => Ok(()),
        }
    }
}

/// Error for a setting outside its valid range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{setting} is {found}, must be in {min}..={max}")]
pub struct SettingsError {
    /// The setting's name.
    pub setting: &'static str,
    /// Value of the setting.
    pub found: f64,
    /// Minimum value of the setting.
    pub min: f64,
    /// Maximum value of the setting.
    pub max: f64,
}

impl SettingsError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        Class::Usage
    }
}

/// A row of the table of numeric settings.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    /// Name of the setting in llama-server's requests.
    pub name: &'static str,
    /// Minimum value of the setting.
    pub min: f64,
    /// Maximum value of the setting.
    pub max: f64,
    /// Whether the number must be an integer.
    pub whole: bool,
    /// Function that reads the setting.
    pub get: fn(&SamplerSettings) -> f64,
    /// Function that writes the setting; the value must be in its range.
    pub set: fn(&mut SamplerSettings, f64),
}

macro_rules! real {
    ($field:ident, $min:literal, $max:literal) => {
        Number {
            name: stringify!($field),
            min: $min,
            max: $max,
            whole: false,
            get: |settings| f64::from(settings.$field),
            set: |settings, value| settings.$field = value as f32,
        }
    };
}

macro_rules! whole {
    ($name:literal, $field:ident, $max:expr) => {
        Number {
            name: $name,
            min: 0.0,
            max: $max,
            whole: true,
            get: |settings| f64::from(settings.$field),
            set: |settings, value| settings.$field = value as u32,
        }
    };
}

/// Makes the table row of a setting that is a window in tokens; -1 means [`MAX_REPEAT_WINDOW`].
macro_rules! window {
    ($name:literal, $field:ident) => {
        Number {
            min: -1.0,
            set: |settings, value| {
                settings.$field = if value < 0.0 { MAX_REPEAT_WINDOW } else { value as u32 };
            },
            ..whole!($name, $field, MAX_REPEAT_WINDOW as f64)
        }
    };
}

/// Table of all numeric settings.
pub const NUMBERS: &[Number] = &[
    // A temperature below 0 means greedy sampling, as in llama.cpp.
    Number {
        min: -1000.0,
        set: |settings, value| settings.temperature = value.max(0.0) as f32,
        ..real!(temperature, 0.0, 1000.0)
    },
    real!(dynatemp_range, 0.0, 1000.0),
    real!(dynatemp_exponent, 0.0, 100.0),
    // A top-k of -1 turns the sampler off.
    Number {
        min: -1.0,
        set: |settings, value| settings.top_k = value.max(0.0) as u32,
        ..whole!("top_k", top_k, MAX_TOP_K)
    },
    real!(top_p, 0.0, 1.0),
    real!(min_p, 0.0, 1.0),
    real!(typical_p, 0.0, 1.0),
    real!(top_n_sigma, -1.0, 1000.0),
    real!(xtc_probability, 0.0, 1.0),
    real!(xtc_threshold, 0.0, 1.0),
    real!(repeat_penalty, 0.01, 100.0),
    window!("repeat_last_n", repeat_window),
    real!(presence_penalty, -100.0, 100.0),
    real!(frequency_penalty, -100.0, 100.0),
    real!(dry_multiplier, 0.0, 100.0),
    real!(dry_base, 0.0, 100.0),
    whole!("dry_allowed_length", dry_allowed_length, MAX_REPEAT_WINDOW as f64),
    window!("dry_penalty_last_n", dry_window),
    whole!("mirostat", mirostat, 2.0),
    real!(mirostat_tau, 0.0, 100.0),
    real!(mirostat_eta, 0.0, 1.0),
];
