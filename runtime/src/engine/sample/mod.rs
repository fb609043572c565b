//! Sampling: draws the next token from logits.
//!
//! Logit biases are added first. Then banned tokens, and tokens that a grammar does not allow, are
//! removed. Then the samplers of [`SamplerSettings::samplers`] run in their order. The default is
//! llama.cpp's order: penalties, DRY, top-n-sigma, top-k, locally typical, top-p, min-p, XTC,
//! temperature.
//!
//! Temperature 0 is greedy: it takes the largest logit, and the lowest id among equal logits. The
//! plan's own softmax kernel computes the probabilities over the whole vocabulary. After a sampler
//! has removed tokens, the probabilities of the remaining tokens are normalised to the sum 1.
//!
//! ```text
//! logits 2.0 1.0 0.5 -1.0   top-k 3 2.0 1.0 0.5   top-p 0.8 2.0 1.0   temperature 0.5 0.88 0.12
//! ```
//!
//! | file | what it owns |
//! | --- | --- |
//! | `settings` | settings, their names and ranges |
//! | `samplers` | the samplers, one row each |
//! | `breakers` | DRY's sequence breakers |
//! | `log_probability` | log-probabilities of tokens |
//! | `random` | random numbers |
//! | `resume` | saving and restoring a sampler's state |
//!
//! For the same logits, the same seed, plan and settings give the same tokens on every machine.
//! There is an exception for samplers that compute logarithms with the system's library: min-p,
//! locally typical, dynamic temperature, mirostat.
//!
//! Invariant: the allowed token with the largest logit is always a candidate, unless locally
//! typical or XTC is on.
//! Invariant: at least one token is always a candidate.

mod breakers;
mod kinds;
mod log_probability;
mod random;
mod resume;
mod samplers;
mod settings;

use std::cmp::Ordering;
use std::collections::VecDeque;

use crate::engine::{Softmax, StepError};

pub use breakers::{Breaker, Breakers};
use ixc_failure::Class;
pub use kinds::{DEFAULT as DEFAULT_SAMPLERS, Kind};
pub use log_probability::{TokenLogProb, log_probabilities_of};
use random::Random;
pub(crate) use resume::MAX_RECENT;
pub use resume::SamplerState;
pub use samplers::{Row, SAMPLERS};
pub use settings::{MAX_REPEAT_WINDOW, NUMBERS, Number, SamplerSettings, SettingsError};

/// Smallest temperature that is not greedy. At this temperature, a gap of 0.1 between two logits is
/// a factor of e^100 between their probabilities.
pub const LOWEST_TEMPERATURE: f32 = 1e-3;
/// Replacement for a logit of minus infinity. Its exponential is 0 relative to that of any other
/// logit.
const LOWEST_LOGIT: f32 = -1.0e30;

/// The reason why no token was drawn.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The slice of logits is empty.
    #[error("there are no logits, because the last step did not request this output")]
    NoLogits,
    /// A logit is NaN or infinite.
    #[error("the logit of token {token} is {value}; the model or its weights are broken")]
    NotFinite {
        /// Id of the token.
        token: u32,
        /// The token's logit.
        value: f32,
    },
    /// The mask of allowed tokens allows no token.
    #[error("no token is allowed: the grammar and the settings of the sampler exclude all tokens")]
    NothingAllowed,
    /// The softmax kernel failed.
    #[error(transparent)]
    Step(#[from] StepError),
}

impl SampleError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            SampleError::Step(error) => error.class(),
            SampleError::NoLogits | SampleError::NotFinite { .. } | SampleError::NothingAllowed => Class::Data,
        }
    }
}

/// Orders tokens by descending logit; tokens with equal logits by ascending id.
fn compare_descending(logits: &[f32], a: u32, b: u32) -> Ordering {
    logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
}

/// Collects the first `count` tokens by descending logit into `best`; `count` is at least 1 and at
/// most the number of tokens. The function compares most logits only with the smallest of the
/// `count` best so far. It takes 0.1 ms for a vocabulary of a hundred thousand tokens.
fn largest(logits: &[f32], count: usize, best: &mut Vec<u32>) {
    let room = 2 * count + 64;
    let mut min = f32::NEG_INFINITY;
    for (token, &logit) in (0..).zip(logits) {
        // A token with an equal logit has a higher id, so it comes after all of the best tokens.
        if logit <= min {
            continue;
        }
        best.push(token);
        if best.len() == room {
            best.select_nth_unstable_by(count - 1, |&a, &b| compare_descending(logits, a, b));
            best.truncate(count);
            min = logits[best[count - 1] as usize];
        }
    }
    best.sort_unstable_by(|&a, &b| compare_descending(logits, a, b));
    best.truncate(count);
}

/// Draws tokens from logits, with settings, a random generator and a history of tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: SamplerSettings,
    random: Random,
    /// The most recent tokens, oldest first; at most as many as the longest window in the settings.
    recent: VecDeque<u32>,
    /// Mirostat's current limit for the surprise of a token, in bits.
    surprise: f64,
    logits: Vec<f32>,
    probabilities: Vec<f32>,
    candidates: Vec<u32>,
    /// Whether all tokens of the vocabulary are candidates. If so, `candidates` is unused.
    all: bool,
    /// Whether `candidates` is sorted by descending logit.
    sorted: bool,
    /// Inverse temperature that is not yet multiplied into the logits; see `scale`.
    inverse: f32,
    /// Whether the last token was drawn at random from the candidates. It is false if the token was
    /// chosen greedily.
    was_drawn: bool,
    /// Number of tokens drawn so far. Counting stops at [`SamplerSettings::min_tokens`].
    drawn: usize,
}

impl Sampler {
    /// Creates a sampler with an empty history.
    ///
    /// # Errors
    /// Fails if a setting is outside its valid range.
    pub fn new(settings: SamplerSettings) -> Result<Sampler, SettingsError> {
        settings.check()?;
        Ok(Sampler {
            random: Random::new(settings.seed),
            // The start value of mirostat's paper: twice the target surprise.
            surprise: 2.0 * f64::from(settings.mirostat_tau),
            settings,
            recent: VecDeque::new(),
            logits: Vec::new(),
            probabilities: Vec::new(),
            candidates: Vec::new(),
            all: true,
            sorted: false,
            inverse: 1.0,
            was_drawn: false,
            drawn: 0,
        })
    }

    /// Adds a token of the prompt to the history that penalties use. [`Sampler::sample`] adds the
    /// tokens that it draws.
    pub fn accept(&mut self, token: u32) {
        self.recent.push_back(token);
        while self.recent.len() > self.settings.repeat_window.max(self.settings.dry_window) as usize {
            self.recent.pop_front();
        }
    }

    /// Draws the next token and adds it to the history.
    ///
    /// # Errors
    /// Fails if there are no logits, if a logit is NaN or infinite, or if the softmax fails.
    pub fn sample(&mut self, logits: &[f32], softmax: &impl Softmax) -> Result<u32, SampleError> {
        self.sample_allowed(logits, None, softmax)
    }

    /// Draws the next token among those that a mask allows, and adds it to the history. The mask
    /// has one bit for each token; bit 0 of the first word is token 0.
    ///
    /// # Errors
    /// See [`Sampler::sample`]. Also fails if the mask allows no token.
    pub fn sample_allowed(
        &mut self,
        logits: &[f32],
        allowed: Option<&[u32]>,
        softmax: &impl Softmax,
    ) -> Result<u32, SampleError> {
        self.load(logits)?;
        if let Some(allowed) = allowed {
            self.allow(allowed)?;
        }
        let token = match self.settings.mirostat {
            0 => self.draw_token(softmax)?,
            _ => self.chosen_by_surprise(softmax)?,
        };
        self.accept(token);
        self.drawn = self.drawn.saturating_add(1).min(self.settings.min_tokens);
        Ok(token)
    }

    /// Returns the log-probability of `token`, the last drawn token, among its candidates. Also
    /// returns the `count` likeliest candidates, likeliest first. If the last token was not drawn
    /// at random, as at temperature 0, its probability is 1.
    pub fn log_probabilities(&self, token: u32, count: usize) -> (TokenLogProb, Vec<TokenLogProb>) {
        if !self.was_drawn {
            let certain = TokenLogProb { token, log_probability: 0.0 };
            return (certain, vec![certain; count.min(1)]);
        }
        let total = self.total();
        let share = |token: u32| f64::from(self.probabilities[token as usize]) / total;
        let one = |token: u32| TokenLogProb { token, log_probability: share(token).ln() as f32 };
        let mut tokens: Vec<u32> = self.candidates.iter().copied().filter(|&token| share(token) > 0.0).collect();
        let before = |&a: &u32, &b: &u32| share(b).total_cmp(&share(a)).then(a.cmp(&b));
        if (1..tokens.len()).contains(&count) {
            tokens.select_nth_unstable_by(count, before);
        }
        tokens.truncate(count);
        tokens.sort_unstable_by(before);
        (one(token), tokens.into_iter().map(one).collect())
    }

    fn load(&mut self, logits: &[f32]) -> Result<(), SampleError> {
        if logits.is_empty() {
            return Err(SampleError::NoLogits);
        }
        if let Some((token, &value)) = (0..).zip(logits).find(|(_, logit)| logit.is_nan() || **logit == f32::INFINITY) {
            return Err(SampleError::NotFinite { token, value });
        }
        self.logits.clear();
        // Adding 0 turns -0 into 0, so that both count as equal logits.
        self.logits.extend(logits.iter().map(|logit| logit.max(LOWEST_LOGIT) + 0.0));
        for &(token, bias) in &self.settings.bias {
            if let Some(logit) = self.logits.get_mut(token as usize) {
                *logit = (*logit + bias).clamp(LOWEST_LOGIT, -LOWEST_LOGIT) + 0.0;
            }
        }
        let late = self.settings.late_tokens.iter().filter(|_| self.drawn < self.settings.min_tokens);
        for &token in self.settings.banned.iter().chain(late) {
            if let Some(logit) = self.logits.get_mut(token as usize) {
                *logit = LOWEST_LOGIT;
            }
        }
        (self.all, self.sorted, self.inverse, self.was_drawn) = (true, false, 1.0, false);
        Ok(())
    }

    /// Keeps only the tokens that a mask allows.
    fn allow(&mut self, allowed: &[u32]) -> Result<(), SampleError> {
        self.candidates.clear();
        for (token, logit) in (0..).zip(&mut self.logits) {
            match allowed.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1) {
                true => self.candidates.push(token),
                // With the lowest logit, the forbidden token takes no probability from other
                // tokens.
                false => *logit = LOWEST_LOGIT,
            }
        }
        self.all = false;
        if self.candidates.is_empty() { Err(SampleError::NothingAllowed) } else { Ok(()) }
    }

    /// Runs the samplers in order. Then draws one of the remaining candidates, or takes the best
    /// candidate in greedy sampling.
    fn draw_token(&mut self, softmax: &dyn Softmax) -> Result<u32, SampleError> {
        let SamplerSettings { temperature, dynatemp_range, .. } = self.settings;
        let cold = temperature < LOWEST_TEMPERATURE && dynatemp_range == 0.0;
        let greedy = cold && self.settings.samplers.contains(&Kind::Temperature);
        let rows = self.settings.samplers.iter().map(|kind| kind.row());
        let rows: Vec<&Row> = rows.filter(|row| (row.is_on)(&self.settings)).collect();
        // In greedy sampling, a sampler that keeps the best token is skipped, unless a later
        // sampler may remove that token.
        let needed = match greedy {
            true => rows.iter().rposition(|row| !row.keeps_best).map_or(0, |last| last + 1),
            false => rows.len(),
        };
        for row in &rows[..needed] {
            (row.apply)(self, softmax)?;
        }
        if greedy { Ok(self.best_token()) } else { self.draw(softmax) }
    }

    /// Draws a token with mirostat, and updates its limit for the surprise.
    fn chosen_by_surprise(&mut self, softmax: &dyn Softmax) -> Result<u32, SampleError> {
        if self.settings.temperature < LOWEST_TEMPERATURE {
            return Ok(self.best_token());
        }
        self.inverse = 1.0 / self.settings.temperature;
        samplers::mirostat(self, softmax)?;
        let token = self.draw(softmax)?;
        let share = f64::from(self.probabilities[token as usize]) / self.total();
        let error = -share.log2() - f64::from(self.settings.mirostat_tau);
        self.surprise -= f64::from(self.settings.mirostat_eta) * error;
        Ok(token)
    }

    /// Draws one of the candidates at random, in proportion to their probabilities.
    fn draw(&mut self, softmax: &dyn Softmax) -> Result<u32, SampleError> {
        self.list();
        self.softmax(softmax)?;
        self.was_drawn = true;
        let mut left = self.random.uniform() * self.total();
        for &token in &self.candidates {
            left -= f64::from(self.probabilities[token as usize]);
            if left < 0.0 {
                return Ok(token);
            }
        }
        // The loop ends without a token only because of rounding in the sum. Then the last
        // candidate with nonzero probability is drawn.
        let is_possible = |token: &&u32| self.probabilities[**token as usize] > 0.0;
        Ok(self.candidates.iter().rev().find(is_possible).copied().unwrap_or_else(|| self.best_token()))
    }

    /// Returns the candidate with the largest logit. Of several equal logits, takes the lowest id.
    fn best_token(&self) -> u32 {
        let better =
            |best: u32, token: u32| if compare_descending(&self.logits, token, best).is_lt() { token } else { best };
        if self.all {
            return (0..self.logits.len() as u32).reduce(better).unwrap_or(0);
        }
        self.candidates.iter().copied().reduce(better).unwrap_or(0)
    }

    /// Returns the number of candidates.
    fn count(&self) -> usize {
        if self.all { self.logits.len() } else { self.candidates.len() }
    }

    /// Fills `candidates` with all tokens, if all tokens are candidates.
    fn list(&mut self) {
        if std::mem::take(&mut self.all) {
            self.candidates.clear();
            self.candidates.extend(0..self.logits.len() as u32);
            self.sorted = false;
        }
    }

    /// Sorts the candidates by descending logit.
    fn sort(&mut self) {
        self.list();
        if !self.sorted {
            self.candidates.sort_unstable_by(|&a, &b| compare_descending(&self.logits, a, b));
            self.sorted = true;
        }
    }

    /// Sets the logits of removed candidates so that their probability is 0. Otherwise they could
    /// be much likelier than all remaining candidates.
    fn leave_out(&mut self, tokens: impl IntoIterator<Item = u32>) {
        tokens.into_iter().for_each(|token| self.logits[token as usize] = LOWEST_LOGIT);
    }

    /// Sets the logits of all tokens that are no candidates so that their probability is 0.
    /// Otherwise, next to a much likelier removed token, the probabilities of all candidates could
    /// round to 0.
    fn isolate(&mut self) {
        if !self.all {
            let kept: Vec<f32> = self.candidates.iter().map(|&token| self.logits[token as usize]).collect();
            self.logits.fill(LOWEST_LOGIT);
            self.candidates.iter().zip(kept).for_each(|(&token, logit)| self.logits[token as usize] = logit);
        }
    }

    /// Multiplies the logits by the pending inverse temperature.
    fn scale(&mut self) {
        if self.inverse != 1.0 {
            let inverse = self.inverse;
            // Removed and forbidden tokens keep the lowest logit, so they are not scaled.
            for logit in self.logits.iter_mut().filter(|logit| **logit > LOWEST_LOGIT) {
                *logit = (*logit * inverse).clamp(LOWEST_LOGIT, -LOWEST_LOGIT);
            }
            self.inverse = 1.0;
        }
    }

    fn softmax(&mut self, softmax: &dyn Softmax) -> Result<(), SampleError> {
        self.probabilities.resize(self.logits.len(), 0.0);
        Ok(softmax.probabilities(&self.logits, self.inverse, &mut self.probabilities)?)
    }

    /// Returns the sum of the candidates' probabilities.
    fn total(&self) -> f64 {
        self.candidates.iter().map(|&token| f64::from(self.probabilities[token as usize])).sum()
    }

    /// Returns the probability of each candidate, normalised over all candidates.
    fn shares(&mut self, softmax: &dyn Softmax) -> Result<Vec<f64>, SampleError> {
        self.softmax(softmax)?;
        let total = self.total();
        Ok(self.candidates.iter().map(|&token| f64::from(self.probabilities[token as usize]) / total).collect())
    }
}

#[cfg(test)]
mod tests;
