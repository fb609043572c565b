//! Options of the sampler, with llama.cpp's names.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::error::ErrorKind;
use clap::{Args, FromArgMatches};
use ixc_generate::session::{DRY_BREAKERS, breakers};
use ixc_runtime::sample::{DEFAULT_SAMPLERS, Kind, MAX_REPEAT_WINDOW, NUMBERS, SAMPLERS, Sampler, SamplerSettings};
use ixc_text::tokenizer::Tokenizer;
use serde_json::{Map, Value};

/// Choice of the next token.
#[derive(Clone, Debug, clap::Args)]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token.
    #[arg(long, alias = "temperature", default_value_t = 0.8, allow_negative_numbers = true)]
    temp: f32,
    /// Sample from the k likeliest tokens; 0 for all.
    #[arg(long, default_value_t = 40)]
    top_k: u32,
    /// Sample from the likeliest tokens whose probabilities sum to this; 1 for all.
    #[arg(long, default_value_t = 0.95)]
    top_p: f32,
    /// Sample from tokens with at least this share of the likeliest token's probability; 0 for all.
    #[arg(long, default_value_t = 0.05)]
    min_p: f32,
    /// Penalty for tokens that occurred, as a factor on logits; 1 is off.
    #[arg(long, default_value_t = 1.0)]
    repeat_penalty: f32,
    /// Penalty for tokens that occurred, subtracted from logits once; 0 is off.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Penalty for tokens that occurred, subtracted from logits once per occurrence; 0 is off.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Number of last tokens that penalties look at; -1 for all.
    #[arg(long, default_value_t = 64, value_name = "N", allow_negative_numbers = true)]
    repeat_last_n: i64,
    /// Sample from the most typical tokens whose probabilities sum to this; 1 for all.
    #[arg(long, visible_alias = "typical", default_value_t = 1.0)]
    typical_p: f32,
    /// Sample from tokens whose logits are within N standard deviations of the largest; -1 for all.
    #[arg(long, visible_alias = "top-nsigma", default_value_t = -1.0, allow_negative_numbers = true)]
    top_n_sigma: f32,
    /// Probability of excluding the top tokens (XTC); 0 is off.
    #[arg(long, default_value_t = 0.0)]
    xtc_probability: f32,
    /// Minimum probability of tokens that XTC excludes; the least likely of these tokens stays.
    #[arg(long, default_value_t = 0.1)]
    xtc_threshold: f32,
    /// Penalty for tokens that continue a repetition (DRY); 0 is off.
    #[arg(long, default_value_t = 0.0)]
    dry_multiplier: f32,
    /// Factor of the DRY penalty for each further token of the repetition.
    #[arg(long, default_value_t = 1.75)]
    dry_base: f32,
    /// Longest repetition without a DRY penalty, in tokens.
    #[arg(long, default_value_t = 2, value_name = "N")]
    dry_allowed_length: u32,
    /// Number of last tokens that DRY searches for repetitions; -1 for all.
    #[arg(long, default_value_t = 64, value_name = "N", allow_negative_numbers = true)]
    dry_penalty_last_n: i64,
    /// Text at which DRY ends a repetition, in place of newline, colon, quote and asterisk;
    /// repeatable. With `none`, no text ends a repetition.
    #[arg(long, value_name = "STRING", allow_hyphen_values = true)]
    dry_sequence_breaker: Vec<String>,
    /// Range of the dynamic temperature: from --temp minus this number, if the next token is
    /// certain, to --temp plus this number; 0 is off.
    #[arg(long, default_value_t = 0.0)]
    dynatemp_range: f32,
    /// Exponent of the entropy in the dynamic temperature.
    #[arg(long, default_value_t = 1.0)]
    dynatemp_exp: f32,
    /// Mirostat version, 1 or 2; it replaces all samplers except --temp; 0 is off.
    #[arg(long, default_value_t = 0, value_name = "VERSION")]
    mirostat: u32,
    /// Mirostat's target surprise, in bits.
    #[arg(long, default_value_t = 5.0)]
    mirostat_ent: f32,
    /// Mirostat's learning rate.
    #[arg(long, default_value_t = 0.1)]
    mirostat_lr: f32,
    /// Samplers in order, separated by semicolons [default:
    /// penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature].
    #[arg(long, value_name = "NAMES", value_parser = names)]
    samplers: Option<Samplers>,
    /// Samplers in order, one letter each [default: edskypmxt].
    #[arg(long, visible_alias = "sampler-seq", value_name = "LETTERS", value_parser = letters, conflicts_with = "samplers")]
    sampling_seq: Option<Samplers>,
    /// Seed of the random numbers, or -1 to take one from the clock.
    #[arg(short, long, default_value_t = -1, allow_negative_numbers = true)]
    seed: i64,
    /// Never draw a token that ends the answer.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Stop string: the text ends before it; repeatable.
    #[arg(short = 'r', long = "stop", visible_alias = "reverse-prompt", value_name = "STRING",
          value_parser = clap::builder::NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    pub stop: Vec<String>,
}

/// Samplers in order.
#[derive(Clone, Debug)]
struct Samplers(Vec<Kind>);

fn samplers(found: impl Iterator<Item = Result<Kind, String>>) -> Result<Samplers, String> {
    let mut all = Vec::new();
    for kind in found {
        let kind = kind?;
        if all.contains(&kind) {
            return Err(format!("the sampler {} is given twice", kind.name()));
        }
        all.push(kind);
    }
    Ok(Samplers(all))
}

fn names(text: &str) -> Result<Samplers, String> {
    let known: Vec<&str> = SAMPLERS.iter().map(|row| row.name).collect();
    let named =
        |name| Kind::from_name(name).ok_or_else(|| format!("{name:?} is not a sampler; expected {}", known.join(", ")));
    samplers(text.split(';').map(named))
}

fn letters(text: &str) -> Result<Samplers, String> {
    let known: String = SAMPLERS.iter().map(|row| row.letter).collect();
    let lettered = |letter| {
        Kind::from_letter(letter)
            .ok_or_else(|| format!("{letter:?} is not the letter of a sampler; the letters of samplers are {known}"))
    };
    samplers(text.chars().map(lettered))
}

/// Returns the number of last tokens that a penalty looks at; a negative count gives the max
/// number.
fn window(count: i64) -> u32 {
    if count < 0 { MAX_REPEAT_WINDOW } else { u32::try_from(count).unwrap_or(u32::MAX) }
}

impl SamplingArgs {
    /// Returns the given seed, or a new one.
    pub fn seed(&self) -> u64 {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        // 32 bits are enough to distinguish runs, and short enough to type again.
        u64::try_from(self.seed).unwrap_or_else(|_| clock() >> 8 & 0xffff_ffff)
    }

    /// Returns whether the user gave a seed.
    pub fn has_seed(&self) -> bool {
        self.seed >= 0
    }

    /// Checks that a sampler accepts the settings.
    pub fn check(&self) -> Result<(), ixc_error::Error> {
        Sampler::new(self.settings(0, &[]))?;
        Ok(())
    }

    /// Changes one setting, by the name of its option without hyphens.
    ///
    /// # Errors
    /// Returns an error text if no setting has this name, or if the value is invalid. All settings
    /// are then unchanged.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        let command = clap::Command::new("set").no_binary_name(true).disable_help_flag(true);
        // Settings that are not named keep their values instead of getting defaults.
        let no_default = None::<&'static str>;
        let command = SamplingArgs::augment_args_for_update(command).mut_args(|arg| arg.default_value(no_default));
        let option = format!("--{}", name.replace('_', "-"));
        let known: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        let known = known.join(", ");
        let found = command.try_get_matches_from([Some(&*option), value].into_iter().flatten());
        let mut changed = self.clone();
        found.and_then(|mut found| changed.update_from_arg_matches_mut(&mut found)).map_err(|error| {
            match error.kind() {
                ErrorKind::UnknownArgument => format!("There is no setting {name}; the settings are {known}."),
                _ => error.render().to_string().lines().next().unwrap_or_default().to_owned(),
            }
        })?;
        changed.ignore_eos |= self.ignore_eos;
        changed.check().map_err(|error| format!("error: {error}"))?;
        *self = changed;
        Ok(())
    }

    /// Returns the sampler's settings for a model; `ends` are the tokens that end an answer.
    ///
    /// # Errors
    /// When the tokenizer cannot encode DRY's sequence breakers.
    pub fn settings_for(
        &self,
        seed: u64,
        ends: &[u32],
        tokenizer: &Tokenizer,
    ) -> Result<SamplerSettings, ixc_error::Error> {
        let mut settings = self.settings(seed, ends);
        if settings.dry_multiplier > 0.0 {
            settings.dry_breakers = match &*self.dry_sequence_breaker {
                [] => Arc::new(breakers(tokenizer, &DRY_BREAKERS)?),
                [none] if none == "none" => Arc::default(),
                texts => Arc::new(breakers(tokenizer, texts)?),
            };
        }
        Ok(settings)
    }

    /// Returns the settings as fields of a request, except stop texts. The seed is included only if
    /// it was given; otherwise each request has its own.
    pub fn fields(&self) -> Map<String, Value> {
        let settings = self.settings(self.seed(), &[]);
        let mut fields: Map<String, Value> =
            NUMBERS.iter().map(|number| (number.name.to_owned(), (number.get)(&settings).into())).collect();
        fields.insert("samplers".to_owned(), settings.samplers.iter().map(|kind| kind.name()).collect());
        fields.insert("ignore_eos".to_owned(), self.ignore_eos.into());
        if self.has_seed() {
            fields.insert("seed".to_owned(), self.seed.into());
        }
        match &*self.dry_sequence_breaker {
            [] => None,
            [none] if none == "none" => fields.insert("dry_sequence_breakers".to_owned(), Value::Array(Vec::new())),
            texts => fields.insert("dry_sequence_breakers".to_owned(), texts.to_vec().into()),
        };
        fields
    }

    /// Returns the sampler's settings, without DRY's sequence breakers.
    fn settings(&self, seed: u64, ends: &[u32]) -> SamplerSettings {
        let samplers = self.samplers.as_ref().or(self.sampling_seq.as_ref());
        SamplerSettings {
            temperature: self.temp,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            repeat_penalty: self.repeat_penalty,
            repeat_window: window(self.repeat_last_n),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_window: window(self.dry_penalty_last_n),
            dry_breakers: Arc::default(),
            mirostat: self.mirostat,
            mirostat_tau: self.mirostat_ent,
            mirostat_eta: self.mirostat_lr,
            samplers: samplers.map_or_else(|| DEFAULT_SAMPLERS.to_vec(), |samplers| samplers.0.clone()),
            bias: Vec::new(),
            banned: if self.ignore_eos { ends.to_vec() } else { Vec::new() },
            late_tokens: Vec::new(),
            min_tokens: 0,
            seed,
        }
    }
}
