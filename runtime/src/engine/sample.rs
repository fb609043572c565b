//! The next token from logits.
//!
//! The order is llama.cpp's: biases, tokens that are never drawn, penalties, top-k, top-p, min-p, temperature, draw. Temperature 0 is greedy: the largest
//! logit after penalties, of equal ones the lowest id. Exponentials come from the plan's own softmax kernel, over the whole
//! vocabulary; a subset's probabilities are those divided by their sum.
//!
//! ```text
//! logits  2.0 1.0 0.5 -1.0    top-k 3     2.0 1.0 0.5    top-p 0.8    2.0 1.0    temperature 0.5    0.88 0.12
//! ```
//!
//! Draws come from xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64: the same seed, plan and settings give the
//! same tokens on every machine on which the logits are the same.
//!
//! Invariant: the token with the largest logit is always a candidate, of those that may be drawn.

use std::cmp::Ordering;
use std::collections::VecDeque;

use crate::engine::{Softmax, StepError};

mod resume;

pub(crate) use resume::MAX_RECENT;
pub use resume::SamplerState;

/// Temperatures below this are greedy: a gap of 0.1 between logits is a factor of e^100.
pub const LOWEST_TEMPERATURE: f32 = 1e-3;
/// What stands for a logit of minus infinity: its exponential is 0 beside every other.
const LOWEST_LOGIT: f32 = -1.0e30;
/// Longest window of the repeat penalty.
pub const MAX_REPEAT_WINDOW: u32 = 1 << 20;

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Divides logits; 0 is greedy.
    pub temperature: f32,
    /// Only this many of the largest logits; 0 is off.
    pub top_k: u32,
    /// Only the largest that together have this probability; 1 is off.
    pub top_p: f32,
    /// Only those with at least this times the largest probability; 0 is off.
    pub min_p: f32,
    /// Divides positive logits of recent tokens and multiplies negative ones; 1 is off.
    pub repeat_penalty: f32,
    /// How many recent tokens the penalties are for.
    pub repeat_window: u32,
    /// Taken from the logits of recent tokens; 0 is off.
    pub presence_penalty: f32,
    /// Taken from the logits of recent tokens as often as they occurred; 0 is off.
    pub frequency_penalty: f32,
    /// Tokens, and what is added to the logit of each; minus infinity is never. What is no token is passed over.
    pub bias: Vec<(u32, f32)>,
    /// Tokens that are never drawn, unless all are named here.
    pub never: Vec<u32>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Settings {
    /// llama.cpp's defaults, with seed 0.
    fn default() -> Settings {
        Settings {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_window: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            bias: Vec::new(),
            never: Vec::new(),
            seed: 0,
        }
    }
}

impl Settings {
    /// Greedy: the same tokens every time.
    pub fn greedy() -> Settings {
        Settings { temperature: 0.0, ..Settings::default() }
    }
}

/// A setting outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{setting} is {found}, must be {expected}")]
pub struct SettingsError {
    /// The setting's name.
    pub setting: &'static str,
    /// Its value.
    pub found: f64,
    /// Its range.
    pub expected: &'static str,
}

/// Why no token was drawn.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// No logits.
    #[error("there are no logits; the last step wanted no such output")]
    NoLogits,
    /// A logit that is no number.
    #[error("the logit of token {token} is {value}; the model or its weights are broken")]
    NotFinite {
        /// The token.
        token: u32,
        /// Its logit.
        value: f32,
    },
    /// The softmax kernel failed.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// xoshiro256**.
#[derive(Clone, Debug)]
struct Random {
    state: [u64; 4],
}

impl Random {
    fn new(seed: u64) -> Random {
        let mut seeds = ixc_ir::random::Random::new(seed);
        Random { state: std::array::from_fn(|_| seeds.bits()) }
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= t;
        *d = d.rotate_left(45);
        result
    }

    /// In `0..1`, all 53 bits.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// Order of tokens: the largest logit first, of equal ones the lowest id.
fn descending(logits: &[f32], a: u32, b: u32) -> Ordering {
    logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
}

/// The first `count` tokens in order; `count` is at least 1 and at most their number. One pass that compares most logits with
/// nothing but the last of the best so far: a vocabulary has a hundred thousand words and takes 0.1 ms.
fn largest(logits: &[f32], count: usize, best: &mut Vec<u32>) {
    let room = 2 * count + 64;
    let mut least = f32::NEG_INFINITY;
    for (token, &logit) in (0..).zip(logits) {
        // Those that are equal to the last one come after it.
        if logit <= least {
            continue;
        }
        best.push(token);
        if best.len() == room {
            best.select_nth_unstable_by(count - 1, |&a, &b| descending(logits, a, b));
            best.truncate(count);
            least = logits[best[count - 1] as usize];
        }
    }
    best.sort_unstable_by(|&a, &b| descending(logits, a, b));
    best.truncate(count);
}

/// Draws tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: Settings,
    random: Random,
    /// The last tokens, oldest first, at most the window.
    recent: VecDeque<u32>,
    logits: Vec<f32>,
    probabilities: Vec<f32>,
    candidates: Vec<u32>,
}

impl Sampler {
    /// A sampler that has seen nothing.
    ///
    /// # Errors
    /// When a setting is outside its range.
    pub fn new(settings: Settings) -> Result<Sampler, SettingsError> {
        let check = |setting, found: f32, ok: bool, expected| {
            if ok { Ok(()) } else { Err(SettingsError { setting, found: f64::from(found), expected }) }
        };
        let Settings { temperature, top_p, min_p, repeat_penalty, repeat_window, .. } = settings;
        let Settings { presence_penalty, frequency_penalty, .. } = settings;
        check("temperature", temperature, (0.0..=1000.0).contains(&temperature), "in 0..=1000")?;
        check("top-p", top_p, (0.0..=1.0).contains(&top_p), "in 0..=1")?;
        check("min-p", min_p, (0.0..=1.0).contains(&min_p), "in 0..=1")?;
        let penalty = (0.01..=100.0).contains(&repeat_penalty);
        check("repeat penalty", repeat_penalty, penalty, "in 0.01..=100")?;
        for (setting, found) in [("presence penalty", presence_penalty), ("frequency penalty", frequency_penalty)] {
            check(setting, found, (-100.0..=100.0).contains(&found), "in -100..=100")?;
        }
        if let Some((_, bias)) = settings.bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            check("bias", *bias, false, "a number, or minus infinity")?;
        }
        if repeat_window > MAX_REPEAT_WINDOW {
            let found = f64::from(repeat_window);
            return Err(SettingsError { setting: "repeat window", found, expected: "at most 1048576" });
        }
        Ok(Sampler {
            random: Random::new(settings.seed),
            settings,
            recent: VecDeque::new(),
            logits: Vec::new(),
            probabilities: Vec::new(),
            candidates: Vec::new(),
        })
    }

    /// Notes a token of the prompt for the repeat penalty; [`Sampler::sample`] notes what it draws itself.
    pub fn accept(&mut self, token: u32) {
        self.recent.push_back(token);
        while self.recent.len() > self.settings.repeat_window as usize {
            self.recent.pop_front();
        }
    }

    /// Draws the next token and notes it.
    ///
    /// # Errors
    /// When there are no logits, one is NaN or infinite, or the softmax fails.
    pub fn sample(&mut self, logits: &[f32], softmax: &impl Softmax) -> Result<u32, SampleError> {
        self.load(logits)?;
        self.penalise();
        let token = if self.settings.temperature < LOWEST_TEMPERATURE { self.best() } else { self.draw(softmax)? };
        self.accept(token);
        Ok(token)
    }

    fn load(&mut self, logits: &[f32]) -> Result<(), SampleError> {
        if logits.is_empty() {
            return Err(SampleError::NoLogits);
        }
        if let Some((token, &value)) = (0..).zip(logits).find(|(_, logit)| logit.is_nan() || **logit == f32::INFINITY) {
            return Err(SampleError::NotFinite { token, value });
        }
        self.logits.clear();
        // Adding 0 makes one zero of the two.
        self.logits.extend(logits.iter().map(|logit| logit.max(LOWEST_LOGIT) + 0.0));
        for &(token, bias) in &self.settings.bias {
            if let Some(logit) = self.logits.get_mut(token as usize) {
                *logit = (*logit + bias).clamp(LOWEST_LOGIT, -LOWEST_LOGIT) + 0.0;
            }
        }
        for &token in &self.settings.never {
            if let Some(logit) = self.logits.get_mut(token as usize) {
                *logit = LOWEST_LOGIT;
            }
        }
        Ok(())
    }

    fn penalise(&mut self) {
        let Settings { repeat_penalty, presence_penalty, frequency_penalty, .. } = self.settings;
        if repeat_penalty == 1.0 && presence_penalty == 0.0 && frequency_penalty == 0.0 {
            return;
        }
        let mut recent: Vec<u32> = self.recent.iter().copied().collect();
        recent.sort_unstable();
        for equal in recent.chunk_by(|a, b| a == b) {
            let Some(logit) = self.logits.get_mut(equal[0] as usize) else { continue };
            // However often it occurred.
            *logit = if *logit > 0.0 { *logit / repeat_penalty } else { *logit * repeat_penalty };
            *logit -= equal.len() as f32 * frequency_penalty + presence_penalty;
        }
    }

    /// The token with the largest logit, of equal ones the lowest.
    fn best(&self) -> u32 {
        let largest = self.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        self.logits.iter().position(|&logit| logit == largest).unwrap_or(0) as u32
    }

    fn draw(&mut self, softmax: &impl Softmax) -> Result<u32, SampleError> {
        let settings = self.settings.clone();
        let top_k = settings.top_k as usize;
        self.candidates.clear();
        if top_k > 0 && top_k < self.logits.len() {
            largest(&self.logits, top_k, &mut self.candidates);
        } else {
            self.candidates.extend(0..self.logits.len() as u32);
            if settings.top_p < 1.0 {
                self.candidates.sort_unstable_by(|&a, &b| descending(&self.logits, a, b));
            }
        }
        if settings.top_p < 1.0 {
            self.softmax(softmax, 1.0)?;
            let enough = self.total() * f64::from(settings.top_p);
            let mut sum = 0.0;
            let more = self.candidates.iter().position(|&token| {
                sum += f64::from(self.probabilities[token as usize]);
                sum >= enough
            });
            self.candidates.truncate(more.map_or(self.candidates.len(), |last| last + 1));
        }
        if settings.min_p > 0.0 {
            let (logits, largest) = (&self.logits, self.logits[self.best() as usize]);
            let least = largest + settings.min_p.ln();
            self.candidates.retain(|&token| logits[token as usize] >= least);
        }
        self.softmax(softmax, 1.0 / settings.temperature)?;
        let mut left = self.random.uniform() * self.total();
        for &token in &self.candidates {
            left -= f64::from(self.probabilities[token as usize]);
            if left < 0.0 {
                return Ok(token);
            }
        }
        // Rounding alone leads here, so to the last that has any probability.
        let likely = |token: &&u32| self.probabilities[**token as usize] > 0.0;
        Ok(self.candidates.iter().rev().find(likely).copied().unwrap_or_else(|| self.best()))
    }

    fn softmax(&mut self, softmax: &impl Softmax, inverse_temperature: f32) -> Result<(), SampleError> {
        self.probabilities.resize(self.logits.len(), 0.0);
        Ok(softmax.probabilities(&self.logits, inverse_temperature, &mut self.probabilities)?)
    }

    /// Probability of all candidates together.
    fn total(&self) -> f64 {
        self.candidates.iter().map(|&token| f64::from(self.probabilities[token as usize])).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Softmax in f64.
    pub(super) struct Exact;

    impl Softmax for Exact {
        fn probabilities(&self, logits: &[f32], inverse: f32, out: &mut [f32]) -> Result<(), StepError> {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let e: Vec<f64> = logits.iter().map(|&x| (f64::from(x - max) * f64::from(inverse)).exp()).collect();
            let sum: f64 = e.iter().sum();
            out.iter_mut().zip(e).for_each(|(p, e)| *p = (e / sum) as f32);
            Ok(())
        }
    }

    const PLAIN: Settings = Settings {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        repeat_window: 64,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        bias: Vec::new(),
        never: Vec::new(),
        seed: 7,
    };

    /// How often each token comes up in `n` draws.
    fn counts(settings: Settings, logits: &[f32], n: usize) -> Vec<usize> {
        let mut sampler = Sampler::new(settings).unwrap();
        let mut counts = vec![0; logits.len()];
        for _ in 0..n {
            counts[sampler.sample(logits, &Exact).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn random_numbers_are_those_of_the_reference() {
        let mut seeds = ixc_ir::random::Random::new(0);
        assert_eq!([seeds.bits(), seeds.bits()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        let mut random = Random { state: [1, 2, 3, 4] };
        let first = [random.next(), random.next(), random.next(), random.next()];
        assert_eq!(first, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn what_is_never_drawn_is_not() {
        let logits = [3.0, 2.0, 1.0];
        let never = |never: &[u32]| Settings { never: never.to_vec(), ..PLAIN };
        assert_eq!(counts(Settings { temperature: 0.0, ..never(&[0, 9]) }, &logits, 5), [0, 5, 0]);
        let drawn = counts(never(&[0]), &logits, 500);
        assert!(drawn[0] == 0 && drawn[1] > 0 && drawn[2] > 0, "{drawn:?}");
        // Where nothing is left, something is drawn all the same.
        assert_eq!(counts(never(&[0, 1, 2]), &logits, 5).iter().sum::<usize>(), 5);
    }

    #[test]
    fn greedy_takes_the_largest_and_of_equal_ones_the_lowest() {
        let mut sampler = Sampler::new(Settings::greedy()).unwrap();
        assert_eq!(sampler.sample(&[0.5, 2.0, f32::NEG_INFINITY, 2.0], &Exact), Ok(1));
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY; 3], &Exact), Ok(0));
        assert_eq!(sampler.sample(&[], &Exact), Err(SampleError::NoLogits));
        let error = sampler.sample(&[0.0, f32::INFINITY], &Exact);
        assert_eq!(error, Err(SampleError::NotFinite { token: 1, value: f32::INFINITY }));
        assert!(matches!(sampler.sample(&[f32::NAN], &Exact), Err(SampleError::NotFinite { token: 0, .. })));
    }

    proptest! {
        #[test]
        fn the_largest_are_those_of_a_full_sort(
            logits in prop::collection::vec(prop_oneof![(-4i8..4).prop_map(f32::from), Just(LOWEST_LOGIT)], 1..600),
            count in 1usize..100,
        ) {
            let count = count.min(logits.len());
            let mut all: Vec<u32> = (0..logits.len() as u32).collect();
            all.sort_by(|&a, &b| descending(&logits, a, b));
            let mut found = Vec::new();
            largest(&logits, count, &mut found);
            prop_assert_eq!(&found[..], &all[..count]);
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        // 0.1, 0.2, 0.7 at temperature 1; squared and divided by their sum at 0.5. Four standard deviations of 20000 draws.
        let logits = [0.1f32.ln(), 0.2f32.ln(), 0.7f32.ln()];
        for (temperature, expected) in [(1.0, [0.1, 0.2, 0.7]), (0.5, [0.01 / 0.54, 0.04 / 0.54, 0.49 / 0.54])] {
            let n = 20_000;
            let found = counts(Settings { temperature, ..PLAIN }, &logits, n);
            for (count, p) in found.iter().zip(expected) {
                let (mean, deviation) = (n as f64 * p, (n as f64 * p * (1.0 - p)).sqrt());
                assert!((*count as f64 - mean).abs() < 4.0 * deviation, "{found:?} at {temperature}");
            }
        }
    }

    #[test]
    fn cuts_keep_what_they_should() {
        let p = [0.05f32, 0.4, 0.25, 0.2, 0.1];
        let logits = p.map(f32::ln);
        let kept = |settings| -> Vec<usize> {
            let counts = counts(settings, &logits, 2000);
            (0..p.len()).filter(|&i| counts[i] > 0).collect()
        };
        assert_eq!(kept(PLAIN), [0, 1, 2, 3, 4]);
        assert_eq!(kept(Settings { top_k: 2, ..PLAIN }), [1, 2]);
        assert_eq!(kept(Settings { top_k: 5, ..PLAIN }), [0, 1, 2, 3, 4]);
        assert_eq!(kept(Settings { top_p: 0.6, ..PLAIN }), [1, 2]);
        assert_eq!(kept(Settings { top_p: 0.66, ..PLAIN }), [1, 2, 3]);
        assert_eq!(kept(Settings { top_p: 0.0, ..PLAIN }), [1]);
        // Of the three that top-k leaves, 0.4 / 0.85 is not yet 0.5.
        assert_eq!(kept(Settings { top_k: 3, top_p: 0.5, ..PLAIN }), [1, 2]);
        assert_eq!(kept(Settings { top_k: 3, top_p: 0.46, ..PLAIN }), [1]);
        assert_eq!(kept(Settings { min_p: 0.45, ..PLAIN }), [1, 2, 3]);
        assert_eq!(kept(Settings { min_p: 1.0, ..PLAIN }), [1]);
        // The cut by min-p is made before the temperature.
        assert_eq!(kept(Settings { min_p: 0.45, temperature: 20.0, ..PLAIN }), [1, 2, 3]);
    }

    #[test]
    fn recent_tokens_are_penalised_once_and_in_the_window_only() {
        let settings = Settings { repeat_penalty: 2.0, repeat_window: 2, ..Settings::greedy() };
        let mut sampler = Sampler::new(settings).unwrap();
        let logits = [3.0, 2.0, -1.0, 1.25];
        sampler.accept(0);
        sampler.accept(0);
        assert_eq!(sampler.sample(&logits, &Exact), Ok(1)); // 1.5, 2.0, -1.0, 1.25
        assert_eq!(sampler.sample(&logits, &Exact), Ok(0)); // 1.5, 1.0, -1.0, 1.25: 0 and 1 are recent
        assert_eq!(sampler.sample(&logits, &Exact), Ok(0)); // 1.5, 1.0, ...: 1 and 0
        assert_eq!(sampler.sample(&logits, &Exact), Ok(1)); // 1.5, 2.0: 1 is out of the window
        let mut sampler = Sampler::new(Settings { repeat_penalty: 2.0, ..Settings::greedy() }).unwrap();
        sampler.accept(1);
        assert_eq!(sampler.sample(&[-2.0, -1.0, -1.5], &Exact), Ok(2));
        // A token beyond the vocabulary does nothing.
        sampler.accept(u32::MAX);
        assert_eq!(sampler.sample(&[1.0], &Exact), Ok(0));
    }

    #[test]
    fn recent_tokens_lose_a_constant_and_what_grows_with_their_number() {
        let greedy = |presence_penalty, frequency_penalty| {
            let settings = Settings { presence_penalty, frequency_penalty, ..Settings::greedy() };
            let mut sampler = Sampler::new(settings).unwrap();
            [0, 0, 0, 1].into_iter().for_each(|token| sampler.accept(token));
            sampler.sample(&[3.0, 2.5, 1.0], &Exact).unwrap()
        };
        assert_eq!(greedy(0.0, 0.0), 0);
        assert_eq!(greedy(1.0, 0.0), 0); // 2.0, 1.5, 1.0
        assert_eq!(greedy(0.0, 0.3), 1); // 2.1, 2.2, 1.0
        assert_eq!(greedy(2.0, 0.0), 0); // 1.0, 0.5, 1.0: the lowest of equal ones
        assert_eq!(greedy(1.0, 1.0), 2); // -1.0, 0.5, 1.0
    }

    #[test]
    fn biases_are_added() {
        let biased = |bias: &[(u32, f32)]| {
            let settings = Settings { bias: bias.to_vec(), ..Settings::greedy() };
            Sampler::new(settings).unwrap().sample(&[3.0, 2.0, 1.0], &Exact).unwrap()
        };
        assert_eq!(biased(&[(1, 1.5)]), 1);
        assert_eq!(biased(&[(0, f32::NEG_INFINITY), (u32::MAX, 9.0)]), 1);
        assert_eq!(biased(&[(0, -100.0), (1, -100.0)]), 2);
    }

    #[test]
    fn settings_outside_their_range_are_errors() {
        for (settings, name) in [
            (Settings { temperature: -0.1, ..PLAIN }, "temperature"),
            (Settings { temperature: f32::NAN, ..PLAIN }, "temperature"),
            (Settings { top_p: 1.1, ..PLAIN }, "top-p"),
            (Settings { min_p: -1.0, ..PLAIN }, "min-p"),
            (Settings { repeat_penalty: 0.0, ..PLAIN }, "repeat penalty"),
            (Settings { presence_penalty: 101.0, ..PLAIN }, "presence penalty"),
            (Settings { frequency_penalty: f32::NAN, ..PLAIN }, "frequency penalty"),
            (Settings { bias: vec![(1, f32::INFINITY)], ..PLAIN }, "bias"),
            (Settings { repeat_window: u32::MAX, ..PLAIN }, "repeat window"),
        ] {
            assert_eq!(Sampler::new(settings).unwrap_err().setting, name);
        }
    }

    proptest! {
        #[test]
        fn any_logits_and_settings_give_a_token_and_the_same_again(
            logits in prop::collection::vec(prop_oneof![-30.0f32..30.0, Just(f32::NEG_INFINITY)], 1..60),
            temperature in 0.0f32..3.0, top_k in 0u32..70, top_p in 0.0f32..=1.0, min_p in 0.0f32..=1.0, seed: u64,
        ) {
            let settings = Settings { temperature, top_k, top_p, min_p, seed, ..PLAIN };
            let mut twice = [Sampler::new(settings.clone())?, Sampler::new(settings)?];
            for _ in 0..5 {
                let [a, b] = twice.each_mut().map(|sampler| sampler.sample(&logits, &Exact));
                let token = a?;
                prop_assert_eq!(Ok(token), b);
                prop_assert!((token as usize) < logits.len());
                let finite = logits.iter().any(|logit| logit.is_finite());
                prop_assert!(!finite || logits[token as usize].is_finite());
            }
        }
    }
}
