//! How tokens are drawn: each number's name and range stands in one table.

use std::sync::Arc;

use ixc_failure::Class;

use super::Breakers;
use super::samplers::{DEFAULT, Kind};

/// Longest window of penalties.
pub const MAX_REPEAT_WINDOW: u32 = 1 << 20;
/// Most candidates that top-k can be asked for: more than any vocabulary.
const MAX_TOP_K: f64 = (1 << 24) as f64;

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Divides logits; 0 and less is greedy.
    pub temperature: f32,
    /// How far the temperature goes below and above where tokens are certain and where they are not; 0 is off.
    pub dynatemp_range: f32,
    /// The power of the entropy by which it does.
    pub dynatemp_exponent: f32,
    /// Only this many of the largest logits; 0 is off.
    pub top_k: u32,
    /// Only the largest that together have this probability; 1 is off.
    pub top_p: f32,
    /// Only those with at least this times the largest probability; 0 is off.
    pub min_p: f32,
    /// Only those whose surprise is nearest to the expected one, that together have this probability; 1 is off.
    pub typical_p: f32,
    /// Only those within so many standard deviations of the largest logit; 0 and less is off.
    pub top_n_sigma: f32,
    /// How likely it is that the likeliest tokens are left out; 0 is off.
    pub xtc_probability: f32,
    /// All but the least likely of the tokens with at least this probability are.
    pub xtc_threshold: f32,
    /// Divides positive logits of recent tokens and multiplies negative ones; 1 is off.
    pub repeat_penalty: f32,
    /// How many recent tokens the penalties are for.
    pub repeat_window: u32,
    /// Taken from the logits of recent tokens; 0 is off.
    pub presence_penalty: f32,
    /// Taken from the logits of recent tokens as often as they occurred; 0 is off.
    pub frequency_penalty: f32,
    /// Taken from the logits of tokens that would go on with a repetition, times a power of its length; 0 is off.
    pub dry_multiplier: f32,
    /// The base of that power.
    pub dry_base: f32,
    /// The longest repetition that costs nothing.
    pub dry_allowed_length: u32,
    /// How many recent tokens repetitions are looked for in.
    pub dry_window: u32,
    /// What no repetition goes over.
    pub dry_breakers: Arc<Breakers>,
    /// Mirostat's version, in place of all samplers but the temperature; 0 is off.
    pub mirostat: u32,
    /// The surprise that it aims at, in bits.
    pub mirostat_tau: f32,
    /// How fast it does.
    pub mirostat_eta: f32,
    /// The samplers, in their order.
    pub samplers: Vec<Kind>,
    /// Tokens, and what is added to the logit of each; minus infinity is never. What is no token is passed over.
    pub bias: Vec<(u32, f32)>,
    /// Tokens that are never drawn, unless all are named here.
    pub never: Vec<u32>,
    /// Tokens that are not drawn before `least` others were, unless all that may be drawn are named
    /// here.
    pub late: Vec<u32>,
    /// See `late`.
    pub least: usize,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Settings {
    /// llama.cpp's defaults, with seed 0.
    fn default() -> Settings {
        Settings {
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
            never: Vec::new(),
            late: Vec::new(),
            least: 0,
            seed: 0,
        }
    }
}

impl Settings {
    /// Greedy: the same tokens every time.
    pub fn greedy() -> Settings {
        Settings { temperature: 0.0, ..Settings::default() }
    }

    /// Refuses numbers outside their ranges.
    ///
    /// # Errors
    /// Names the first of them.
    pub fn check(&self) -> Result<(), SettingsError> {
        for number in NUMBERS {
            let found = (number.get)(self);
            // What was set as the least or the most was rounded since.
            if !(number.least as f32..=number.most as f32).contains(&(found as f32)) {
                let Number { name: setting, least, most, .. } = *number;
                return Err(SettingsError { setting, found, least, most });
            }
        }
        match self.bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            Some((_, bias)) => Err(SettingsError {
                setting: "logit_bias",
                found: f64::from(*bias),
                least: f64::NEG_INFINITY,
                most: f64::from(f32::MAX),
            }),
            None => Ok(()),
        }
    }
}

/// A setting outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{setting} is {found}, must be in {least}..={most}")]
pub struct SettingsError {
    /// The setting's name.
    pub setting: &'static str,
    /// Its value.
    pub found: f64,
    /// Its range.
    pub least: f64,
    /// Its range.
    pub most: f64,
}

impl SettingsError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        Class::Usage
    }
}

/// A setting that is a number, named as llama-server's requests name it.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    /// The name.
    pub name: &'static str,
    /// The least value that it can have.
    pub least: f64,
    /// The largest.
    pub most: f64,
    /// Whether it has no fraction.
    pub whole: bool,
    /// Reads it.
    pub get: fn(&Settings) -> f64,
    /// Writes it; the value is in its range.
    pub set: fn(&mut Settings, f64),
}

macro_rules! real {
    ($field:ident, $least:literal, $most:literal) => {
        Number {
            name: stringify!($field),
            least: $least,
            most: $most,
            whole: false,
            get: |settings| f64::from(settings.$field),
            set: |settings, value| settings.$field = value as f32,
        }
    };
}

macro_rules! whole {
    ($name:literal, $field:ident, $most:expr) => {
        Number {
            name: $name,
            least: 0.0,
            most: $most,
            whole: true,
            get: |settings| f64::from(settings.$field),
            set: |settings, value| settings.$field = value as u32,
        }
    };
}

/// A window, of which -1 is as long as there can be.
macro_rules! window {
    ($name:literal, $field:ident) => {
        Number {
            least: -1.0,
            set: |settings, value| {
                settings.$field = if value < 0.0 { MAX_REPEAT_WINDOW } else { value as u32 };
            },
            ..whole!($name, $field, MAX_REPEAT_WINDOW as f64)
        }
    };
}

/// All of them.
pub const NUMBERS: &[Number] = &[
    // Less than 0 is greedy, too, as in llama.cpp.
    Number {
        least: -1000.0,
        set: |settings, value| settings.temperature = value.max(0.0) as f32,
        ..real!(temperature, 0.0, 1000.0)
    },
    real!(dynatemp_range, 0.0, 1000.0),
    real!(dynatemp_exponent, 0.0, 100.0),
    // -1 is off.
    Number {
        least: -1.0,
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
