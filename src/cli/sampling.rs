//! The sampler's flags, named as users of llama.cpp know them.

use std::time::{SystemTime, UNIX_EPOCH};

use ixc::runtime::sample::{Sampler, Settings};

/// How the next token is chosen.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// 0 takes the likeliest token always.
    #[arg(long, alias = "temperature", default_value_t = 0.8, allow_negative_numbers = true)]
    temp: f32,
    /// Only the k likeliest tokens; 0 for all.
    #[arg(long, default_value_t = 40)]
    top_k: u32,
    /// Only the likeliest tokens that together have this probability; 1 for all.
    #[arg(long, default_value_t = 0.95)]
    top_p: f32,
    /// Only tokens at least this likely as the likeliest one; 0 for all.
    #[arg(long, default_value_t = 0.05)]
    min_p: f32,
    /// Makes tokens that were there less likely; 1 does nothing.
    #[arg(long, default_value_t = 1.0)]
    repeat_penalty: f32,
    /// Taken from the logits of tokens that were there; 0 does nothing.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Taken from the logits of tokens as often as they were there; 0 does nothing.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// How many of the last tokens the penalties look at.
    #[arg(long, default_value_t = 64, value_name = "N")]
    repeat_last_n: u32,
    /// Makes the choice repeatable; -1 takes one from the clock.
    #[arg(short, long, default_value_t = -1, allow_negative_numbers = true)]
    seed: i64,
    /// Never ends by itself: tokens that end an answer are not drawn.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Ends the text where this comes up in it, which is not written; may be given several times.
    #[arg(short = 'r', long = "stop", visible_alias = "reverse-prompt", value_name = "STRING",
          value_parser = clap::builder::NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    pub stop: Vec<String>,
}

impl SamplingArgs {
    /// The seed, or a new one.
    pub fn seed(&self) -> u64 {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        // 32 bits are enough to tell apart what anybody runs, and short enough to type again.
        u64::try_from(self.seed).unwrap_or_else(|_| clock() >> 8 & 0xffff_ffff)
    }

    /// Whether a seed was named.
    pub fn has_seed(&self) -> bool {
        self.seed >= 0
    }

    /// Whether a sampler takes these.
    pub fn check(&self) -> Result<(), ixc::Error> {
        Sampler::new(self.settings(0, &[]))?;
        Ok(())
    }

    /// The sampler's settings; `ends` are the tokens that end an answer.
    pub fn settings(&self, seed: u64, ends: &[u32]) -> Settings {
        Settings {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            repeat_window: self.repeat_last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            bias: Vec::new(),
            never: if self.ignore_eos { ends.to_vec() } else { Vec::new() },
            seed,
        }
    }
}
