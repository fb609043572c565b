//! The samplers: one table row each, with the names and letters of llama.cpp. Each sampler removes
//! candidates or changes logits.
//!
//! | sampler | source |
//! | --- | --- |
//! | top-k | Fan et al. 2018 |
//! | top-p | Holtzman et al. 2019 |
//! | min-p | Nguyen et al. 2024 |
//! | locally typical | Meister et al. 2022 |
//! | top-n-sigma | Tang et al. 2024 |
//! | XTC | <https://github.com/oobabooga/text-generation-webui/pull/6335> |
//! | DRY | <https://github.com/oobabooga/text-generation-webui/pull/5677> |
//! | dynamic temperature | <https://github.com/ggml-org/llama.cpp/pull/4972> |
//! | mirostat | Basu et al. 2020 |

use std::collections::HashMap;
use std::sync::Arc;

use super::kinds::Kind;
use super::{Breakers, LOWEST_LOGIT, LOWEST_TEMPERATURE, SampleError, Sampler, SamplerSettings, largest};
use crate::engine::Softmax;

/// A row of the sampler table: the names of a sampler, and its function.
#[derive(Debug)]
pub struct Row {
    /// Kind of the sampler.
    pub kind: Kind,
    /// llama.cpp's name for the sampler.
    pub name: &'static str,
    /// Other names that llama-server accepts for the sampler.
    pub aliases: &'static [&'static str],
    /// llama.cpp's letter for the sampler, as used in a sequence of samplers such as `kpt`.
    pub letter: char,
    /// Whether the best token stays the best: the sampler keeps it as a candidate with the largest
    /// logit.
    pub(super) keeps_best: bool,
    /// Function that returns whether the settings turn the sampler on.
    pub(super) is_on: fn(&SamplerSettings) -> bool,
    pub(super) apply: Apply,
}

type Apply = fn(&mut Sampler, &dyn Softmax) -> Result<(), SampleError>;

const fn row(kind: Kind, name: &'static str, letter: char, is_on: fn(&SamplerSettings) -> bool, apply: Apply) -> Row {
    Row { kind, name, aliases: &[], letter, keeps_best: true, is_on, apply }
}

/// Table of all samplers, in llama.cpp's order.
pub static SAMPLERS: [Row; 9] = [
    Row {
        keeps_best: false,
        ..row(
            Kind::Penalties,
            "penalties",
            'e',
            |s| s.repeat_penalty != 1.0 || s.presence_penalty != 0.0 || s.frequency_penalty != 0.0,
            penalties,
        )
    },
    Row {
        keeps_best: false,
        ..row(Kind::Dry, "dry", 'd', |s| s.dry_multiplier != 0.0 && s.dry_base >= 1.0 && s.dry_window > 0, dry)
    },
    Row { aliases: &["top-n-sigma"], ..row(Kind::TopNSigma, "top_n_sigma", 's', |s| s.top_n_sigma > 0.0, top_n_sigma) },
    Row { aliases: &["top-k"], ..row(Kind::TopK, "top_k", 'k', |s| s.top_k > 0, top_k) },
    Row {
        aliases: &["typical_p", "typical", "typical-p", "typ", "typ-p"],
        keeps_best: false,
        ..row(Kind::TypicalP, "typ_p", 'y', |s| s.typical_p < 1.0, typical_p)
    },
    Row { aliases: &["top-p", "nucleus"], ..row(Kind::TopP, "top_p", 'p', |s| s.top_p < 1.0, top_p) },
    Row { aliases: &["min-p"], ..row(Kind::MinP, "min_p", 'm', |s| s.min_p > 0.0, min_p) },
    // XTC is off above a threshold of 0.5. At most one token can be likelier than this, and XTC
    // always keeps one of the tokens above the threshold.
    Row { keeps_best: false, ..row(Kind::Xtc, "xtc", 'x', |s| s.xtc_probability > 0.0 && s.xtc_threshold <= 0.5, xtc) },
    Row { aliases: &["temp"], ..row(Kind::Temperature, "temperature", 't', |_| true, temperature) },
];

impl Kind {
    /// Returns the sampler with a given name or alias.
    pub fn from_name(name: &str) -> Option<Kind> {
        let name = name.trim();
        SAMPLERS.iter().find(|row| row.name == name || row.aliases.contains(&name)).map(|row| row.kind)
    }

    /// Returns the sampler with a given letter.
    pub fn from_letter(letter: char) -> Option<Kind> {
        SAMPLERS.iter().find(|row| row.letter == letter).map(|row| row.kind)
    }

    /// Returns llama.cpp's name for the sampler.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    pub(super) fn row(self) -> &'static Row {
        &SAMPLERS[self as usize]
    }
}

fn penalties(sampler: &mut Sampler, _: &dyn Softmax) -> Result<(), SampleError> {
    let settings = &sampler.settings;
    let (repeat, presence) = (settings.repeat_penalty, settings.presence_penalty);
    let (frequency, window) = (settings.frequency_penalty, settings.repeat_window as usize);
    sampler.scale();
    sampler.isolate();
    let begin = sampler.recent.len().saturating_sub(window);
    let mut recent: Vec<u32> = sampler.recent.range(begin..).copied().collect();
    recent.sort_unstable();
    for equal in recent.chunk_by(|a, b| a == b) {
        let Some(logit) = sampler.logits.get_mut(equal[0] as usize) else { continue };
        // The repeat penalty is applied once to a token, however often it occurs in the window.
        *logit = if *logit > 0.0 { *logit / repeat } else { *logit * repeat };
        *logit -= equal.len() as f32 * frequency + presence;
    }
    sampler.sorted = false;
    Ok(())
}

/// Returns, for each token, the length of the longest repetition that it would continue. A
/// repetition is a suffix of `history` that also occurs earlier in `history`, directly before that
/// token.
pub(super) fn repetitions(history: &[u32], breakers: &Breakers) -> HashMap<u32, usize> {
    let count = history.len();
    // Gusfield's Z algorithm, applied from the end: `common[i]` compares the history with the
    // history without its last `i` tokens. It is the length of their longest common suffix.
    let at = |i: usize| history[count - 1 - i];
    let mut common = vec![0usize; count];
    let (mut left, mut right) = (0, 0);
    for i in 1..count {
        let mut length = if i < right { common[i - left].min(right - i) } else { 0 };
        while i + length < count && at(i + length) == at(length) {
            length += 1;
        }
        if i + length > right {
            (left, right) = (i, i + length);
        }
        common[i] = length;
    }
    // A repetition cannot extend over the last breaker. A breaker farther from the end than all
    // repetitions has no effect, so the search stops there.
    let max = common.iter().copied().max().unwrap_or(0);
    let reach = count.min(max.saturating_add(breakers.longest_tail()).saturating_add(1));
    let breaks = |from_end: usize| Some(from_end - breakers.tail_of(&history[count - 1 - from_end..])?);
    let limit = (0..reach).find_map(breaks).unwrap_or(count);
    let mut longest: HashMap<u32, usize> = HashMap::new();
    for (i, common) in common.iter().enumerate().skip(1) {
        let own = longest.entry(at(i - 1)).or_default();
        *own = (*own).max(limit.min(*common));
    }
    longest
}

fn dry(sampler: &mut Sampler, _: &dyn Softmax) -> Result<(), SampleError> {
    let settings = &sampler.settings;
    let (multiplier, base) = (settings.dry_multiplier, settings.dry_base);
    let (allowed, window) = (settings.dry_allowed_length as usize, settings.dry_window as usize);
    let begin = sampler.recent.len().saturating_sub(window);
    let history: Vec<u32> = sampler.recent.range(begin..).copied().collect();
    if history.len() <= allowed {
        return Ok(());
    }
    let breakers = Arc::clone(&settings.dry_breakers);
    let longest = repetitions(&history, &breakers);
    sampler.scale();
    sampler.isolate();
    for (token, length) in longest {
        let Some(logit) = sampler.logits.get_mut(token as usize) else { continue };
        if length >= allowed && length > 0 && !breakers.is_alone(token) {
            // The exponent is limited, and the penalty is limited below, so that the logit stays
            // finite.
            let penalty = f64::from(multiplier) * f64::from(base).powi((length - allowed).min(1 << 20) as i32);
            *logit -= penalty.min(f64::from(-LOWEST_LOGIT)) as f32;
            *logit = logit.max(LOWEST_LOGIT);
        }
    }
    sampler.sorted = false;
    Ok(())
}

fn top_n_sigma(sampler: &mut Sampler, _: &dyn Softmax) -> Result<(), SampleError> {
    let n = f64::from(sampler.settings.top_n_sigma);
    sampler.scale();
    sampler.list();
    let logits = &sampler.logits;
    let counted: Vec<f64> = sampler.candidates.iter().map(|&token| f64::from(logits[token as usize])).collect();
    let counted: Vec<f64> = counted.into_iter().filter(|logit| *logit > f64::from(LOWEST_LOGIT)).collect();
    if counted.len() < 2 {
        return Ok(());
    }
    let count = counted.len() as f64;
    let mean = counted.iter().sum::<f64>() / count;
    let deviation = (counted.iter().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count).sqrt();
    let largest = counted.into_iter().fold(f64::NEG_INFINITY, f64::max);
    let min = largest - n * deviation;
    sampler.candidates.retain(|&token| f64::from(logits[token as usize]) >= min);
    Ok(())
}

fn top_k(sampler: &mut Sampler, _: &dyn Softmax) -> Result<(), SampleError> {
    let k = sampler.settings.top_k as usize;
    if k >= sampler.count() {
        return Ok(());
    }
    if sampler.all {
        sampler.candidates.clear();
        largest(&sampler.logits, k, &mut sampler.candidates);
        (sampler.all, sampler.sorted) = (false, true);
    } else {
        sampler.sort();
        sampler.candidates.truncate(k);
    }
    Ok(())
}

fn typical_p(sampler: &mut Sampler, softmax: &dyn Softmax) -> Result<(), SampleError> {
    let p = f64::from(sampler.settings.typical_p);
    sampler.sort();
    let shares = sampler.shares(softmax)?;
    let entropy = entropy(&shares);
    let mut order: Vec<(f64, usize)> =
        shares.iter().enumerate().map(|(i, share)| ((-share.ln() - entropy).abs(), i)).collect();
    // Of tokens at equal distances from the entropy, the likelier token comes first.
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut sum = 0.0;
    let enough = order.iter().position(|(_, i)| {
        sum += shares[*i];
        sum > p
    });
    let gone = order.split_off(enough.map_or(order.len(), |last| last + 1));
    let of = |order: Vec<(f64, usize)>| order.into_iter().map(|(_, i)| sampler.candidates[i]).collect::<Vec<_>>();
    let (left, gone) = (of(order), of(gone));
    (sampler.candidates, sampler.sorted) = (left, false);
    sampler.leave_out(gone);
    Ok(())
}

/// Returns the entropy of a distribution, in nats.
pub(super) fn entropy(shares: &[f64]) -> f64 {
    shares.iter().filter(|share| **share > 0.0).map(|share| -share * share.ln()).sum()
}

fn top_p(sampler: &mut Sampler, softmax: &dyn Softmax) -> Result<(), SampleError> {
    let p = sampler.settings.top_p;
    sampler.sort();
    sampler.softmax(softmax)?;
    let enough = sampler.total() * f64::from(p);
    let mut sum = 0.0;
    let more = sampler.candidates.iter().position(|&token| {
        sum += f64::from(sampler.probabilities[token as usize]);
        sum >= enough
    });
    sampler.candidates.truncate(more.map_or(sampler.candidates.len(), |last| last + 1));
    Ok(())
}

fn min_p(sampler: &mut Sampler, _: &dyn Softmax) -> Result<(), SampleError> {
    let p = sampler.settings.min_p;
    sampler.scale();
    sampler.list();
    let (best, logits) = (sampler.best_token(), &sampler.logits);
    let min = logits[best as usize] + p.ln();
    sampler.candidates.retain(|&token| logits[token as usize] >= min);
    Ok(())
}

fn xtc(sampler: &mut Sampler, softmax: &dyn Softmax) -> Result<(), SampleError> {
    let (probability, threshold) = (sampler.settings.xtc_probability, f64::from(sampler.settings.xtc_threshold));
    if sampler.count() < 2 {
        return Ok(());
    }
    if sampler.random.uniform() > f64::from(probability) {
        return Ok(());
    }
    sampler.sort();
    let shares = sampler.shares(softmax)?;
    let likely = shares.iter().take_while(|share| **share >= threshold && **share > 0.0).count();
    let gone: Vec<u32> = sampler.candidates.drain(..likely.saturating_sub(1)).collect();
    sampler.leave_out(gone);
    Ok(())
}

fn temperature(sampler: &mut Sampler, softmax: &dyn Softmax) -> Result<(), SampleError> {
    let settings = &sampler.settings;
    let (mut temperature, range) = (settings.temperature, settings.dynatemp_range);
    let exponent = f64::from(settings.dynatemp_exponent);
    if range > 0.0 {
        if sampler.count() < 2 {
            return Ok(());
        }
        sampler.list();
        let shares = sampler.shares(softmax)?;
        let (min, max) = (f64::from((temperature - range).max(0.0)), f64::from(temperature + range));
        let certain = entropy(&shares) / (shares.len() as f64).ln();
        temperature = (min + (max - min) * certain.clamp(0.0, 1.0).powf(exponent)) as f32;
    }
    if temperature < LOWEST_TEMPERATURE {
        let best = sampler.best_token();
        sampler.candidates.clear();
        sampler.candidates.push(best);
        (sampler.all, sampler.sorted) = (false, true);
    } else {
        sampler.scale();
        sampler.inverse = 1.0 / temperature;
    }
    Ok(())
}

/// Number of likeliest tokens that mirostat uses to estimate the Zipf exponent.
const MIROSTAT_TOKENS: usize = 100;

/// Removes the candidates that exceed mirostat's limit for the surprise.
pub(super) fn mirostat(sampler: &mut Sampler, softmax: &dyn Softmax) -> Result<(), SampleError> {
    sampler.sort();
    let shares = sampler.shares(softmax)?;
    let mu = sampler.surprise;
    let keep = match sampler.settings.mirostat {
        // Mirostat version 1 estimates the exponent of a Zipf distribution, and computes from it
        // the number `k` of tokens to keep.
        1 => {
            let (mut products, mut squares) = (0.0, 0.0);
            for (i, pair) in shares.windows(2).take(MIROSTAT_TOKENS - 1).enumerate() {
                let (t, b) = (((i + 2) as f64 / (i + 1) as f64).ln(), (pair[0] / pair[1]).ln());
                // A pair with a token of probability 0 gives no estimate.
                if b.is_finite() {
                    products += t * b;
                    squares += t * t;
                }
            }
            let s = products / squares;
            let (epsilon, words) = (s - 1.0, sampler.logits.len() as f64);
            let k = ((epsilon * mu.exp2()) / (1.0 - words.powf(-epsilon))).powf(1.0 / s);
            // If all tokens are equally likely, `k` is NaN, and all tokens are kept.
            if k.is_nan() { shares.len() } else { k as usize }
        }
        _ => shares.iter().take_while(|share| -share.log2() <= mu).count(),
    };
    sampler.candidates.truncate(keep.max(1));
    Ok(())
}
