//! Predictions of the experts that the router will choose, and the decision whether the predictions
//! save time.
//!
//! Reading ahead adds no bandwidth: it only uses the time in which the drive is idle. In published
//! results, prediction made models up to 4 times faster, but also up to a third slower. So every
//! strategy is scored for every token, even if it is not used.
//!
//! [`Predictions::predict`] returns two kinds of guesses of the current strategy. Guessed experts
//! that are in memory are kept there. Other experts are returned only if their probability is high
//! enough (`confidence.rs`), and are then read. [`auto`] uses a strategy only while measurements
//! show that tokens are faster with it.
//!
//! ```
//! use ixc_runtime::streaming::predict::{StrategyChoice, Predictions, RouterChoice, Strategy};
//! use std::time::Duration;
//!
//! let mut predictions = Predictions::new(StrategyChoice::Always(Strategy::Previous), 1);
//! for experts in [[1, 2], [2, 3]] {
//!     let read = predictions.predict(0, 3, |_| false); // for `ExpertCache::predict`
//!     # let _ = read;
//!     let read_time = Duration::from_millis(1);
//!     let choice = RouterChoice { experts: &experts, waits: true, block_bytes: 4096, read_time };
//!     predictions.observe(0, &choice);
//!     predictions.end_token(Duration::from_millis(9));
//! }
//! let tally = predictions.tally(Strategy::Previous, 0);
//! assert_eq!((tally.recall(), tally.precision()), (0.5, 0.5)); // of [2, 3] it said 2, and 1
//! assert_eq!((tally.wasted_bytes, tally.saved), (4096, Duration::from_millis(1)));
//! ```
//!
//! Invariant: predictions change when blocks are read, but never the results.

pub mod auto;
mod confidence;
mod strategies;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use auto::{Auto, Score};
use confidence::{GuessConfidence, RankedGuess};

/// A strategy for predicting experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Predicts the experts that the same layer used for the last token.
    Previous,
    /// Predicts the experts that the layer used most often recently.
    Frequency,
    /// Predicts the experts that the next layer's router chooses for the input of this layer's
    /// router. Only plans with early routers compute this.
    EarlyRouter,
}

impl Strategy {
    /// All strategies with their names on the command line.
    pub const ALL: [(&'static str, Strategy); 3] =
        [("previous", Strategy::Previous), ("frequency", Strategy::Frequency), ("router", Strategy::EarlyRouter)];
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Strategy::ALL.iter().find(|(_, strategy)| strategy == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// The user's choice of the prediction strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StrategyChoice {
    /// No prediction.
    Off,
    /// One strategy is always used.
    Always(Strategy),
    /// Measurements decide which strategy is used, or that none is used.
    #[default]
    Auto,
}

impl FromStr for StrategyChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<StrategyChoice, String> {
        let strategy = Strategy::ALL.iter().find(|(name, _)| *name == text).map(|(_, strategy)| *strategy);
        match (text, strategy) {
            ("off", _) => Ok(StrategyChoice::Off),
            ("auto", _) => Ok(StrategyChoice::Auto),
            (_, Some(strategy)) => Ok(StrategyChoice::Always(strategy)),
            _ => {
                let names = Strategy::ALL.map(|(name, _)| name).join(", ");
                Err(format!("{text:?} is not a prefetch strategy; expected off, {names} or auto"))
            }
        }
    }
}

impl fmt::Display for StrategyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StrategyChoice::Off => f.write_str("off"),
            StrategyChoice::Always(strategy) => strategy.fmt(f),
            StrategyChoice::Auto => f.write_str("auto"),
        }
    }
}

/// Settings for reading experts ahead during decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PredictionSettings {
    /// Choice of the strategy.
    pub choice: StrategyChoice,
    /// Number of experts of a group to predict, in addition to the number that a token needs.
    pub extra: u32,
}

impl PredictionSettings {
    /// Returns the number of additional experts that early routers must return. Returns `None` if
    /// the settings use no early routers, so that the graph can be compiled without them.
    pub fn early_routers(self) -> Option<u32> {
        matches!(self.choice, StrategyChoice::Auto | StrategyChoice::Always(Strategy::EarlyRouter))
            .then_some(self.extra)
    }
}

/// A prediction strategy for all expert groups of a model.
pub trait Predictor: Send {
    /// Returns at most `width` experts that the group's next request may contain, likeliest first.
    fn predict(&mut self, group: u32, width: usize) -> Vec<u32>;

    /// Learns which experts a request of the group contained.
    fn observe(&mut self, group: u32, experts: &[u32]);

    /// Receives the early router's prediction for the group, likeliest first. Only the strategy for
    /// early routers uses it.
    fn take_early_prediction(&mut self, group: u32, experts: &[u32]) {
        let _ = (group, experts);
    }
}

/// The choice of a layer's router for one token.
#[derive(Clone, Copy, Debug)]
pub struct RouterChoice<'a> {
    /// The chosen experts.
    pub experts: &'a [u32],
    /// Whether some of the experts were not in memory.
    pub waits: bool,
    /// Bytes of a block of this group.
    pub block_bytes: u64,
    /// Measured mean time that a thread waits for a missing expert.
    pub read_time: Duration,
}

/// Score of a strategy in one group. Strategies that are not used are scored, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of experts that the router chose.
    pub chosen: u64,
    /// Number of experts that the strategy predicted.
    pub predicted: u64,
    /// Number of predicted experts that the router chose.
    pub right: u64,
    /// Number of right predictions that would have been reads: the expert was not in memory and
    /// probable enough. These are the purpose of predicting.
    pub useful: u64,
    /// Number of wrong predictions that would have been reads: the expert was not in memory and
    /// probable enough.
    pub useless: u64,
    /// Bytes of the useless reads.
    pub wasted_bytes: u64,
    /// Time that reading the useful experts after the router's choice would have taken. This is the
    /// maximum saving.
    pub saved: Duration,
}

impl Tally {
    /// Returns the fraction of the chosen experts that were predicted, 0 to 1.
    pub fn recall(&self) -> f64 {
        part(self.right, self.chosen)
    }

    /// Returns the fraction of the predicted experts that were chosen, 0 to 1.
    pub fn precision(&self) -> f64 {
        part(self.right, self.predicted)
    }
}

fn part(of: u64, all: u64) -> f64 {
    if all > 0 { of as f64 / all as f64 } else { 0.0 }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.chosen += other.chosen;
        self.predicted += other.predicted;
        self.right += other.right;
        self.useful += other.useful;
        self.useless += other.useless;
        self.wasted_bytes += other.wasted_bytes;
        self.saved += other.saved;
    }
}

/// A decision for a strategy or against all of them, with reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrategyDecision {
    /// Name of the chosen strategy, or of a run without prediction.
    pub chosen: String,
    /// Reason for the choice; `None` if the reasons against the alternatives say enough.
    pub why: Option<String>,
    /// The rejected alternatives, each with the reason against it.
    pub rejected: Vec<(String, String)>,
}

/// Name of a run without prediction, in reports.
const NO_PREDICTION: &str = "no prediction";

/// Scores of all strategies, and the current decision.
#[derive(Clone, Debug)]
pub struct Report {
    /// Description of the current strategy and of the reason for it.
    pub now: String,
    /// The current decision; `None` if the user chose the strategy.
    pub decision: Option<StrategyDecision>,
    /// For each strategy, its scores in each group.
    pub tallies: Vec<(Strategy, Vec<Tally>)>,
}

/// A predicted expert.
#[derive(Clone, Copy, Debug)]
struct Guess {
    expert: u32,
    /// Probability of the regression when the expert was predicted.
    probability: f64,
    /// Whether the expert was in memory when it was predicted.
    resident: bool,
    /// Whether the expert was probable enough to be read ahead.
    sure: bool,
}

struct ScoredPredictor {
    predictor: Box<dyn Predictor>,
    /// For each group, the last prediction, until the router's choice is known.
    guesses: Vec<Option<Vec<Guess>>>,
    tallies: Vec<Tally>,
    confidence: GuessConfidence,
    /// Number of useful and of useless reads for the current token, over all groups.
    token: (u64, u64),
}

/// Number of recent layers over which the share of waiting layers is averaged.
const LAYERS_OF_AVERAGE: f64 = 256.0;
/// Minimum probability of a guess to be read. With a lower probability, the guess would take a slot
/// from a better block.
const MIN_GUESS_PROBABILITY: f64 = 0.125;

/// All strategies with their scores, and the choice of the current one.
pub struct Predictions {
    choice: StrategyChoice,
    auto: Auto,
    strategies: Vec<ScoredPredictor>,
    /// Share of the recent layers in which a thread had to wait for an expert.
    waiting: f64,
    /// Times of the drive; `None` before the first read.
    pace: Option<TokenTiming>,
}

/// Times of the drive in seconds, averaged over the last tokens.
#[derive(Clone, Copy, Debug)]
pub struct TokenTiming {
    /// Time per layer in which no thread waits for a read.
    pub idle: f64,
    /// Time to read a block.
    pub right: f64,
    /// Time of the reads of a wrong guess that have already started and cannot be cancelled.
    pub wrong: f64,
}

impl Predictions {
    /// Creates predictions for a model with `groups` expert groups.
    pub fn new(choice: StrategyChoice, groups: u32) -> Predictions {
        let scored = |(_, strategy): (&str, Strategy)| ScoredPredictor {
            predictor: strategies::predictor(strategy, groups),
            guesses: (0..groups).map(|_| None).collect(),
            tallies: (0..groups).map(|_| Tally::default()).collect(),
            confidence: GuessConfidence::default(),
            token: (0, 0),
        };
        Predictions {
            choice,
            auto: Auto::new(true),
            strategies: Strategy::ALL.map(scored).into(),
            waiting: 1.0,
            pace: None,
        }
    }

    /// Converts these predictions to those for a plan without early routers.
    pub fn without_early_routers(self) -> Predictions {
        Predictions { auto: Auto::new(false), ..self }
    }

    /// Returns the current strategy; `None` for no prediction.
    pub fn current(&self) -> Option<Strategy> {
        match self.choice {
            StrategyChoice::Off => None,
            StrategyChoice::Always(strategy) => Some(strategy),
            StrategyChoice::Auto => self.auto.current(),
        }
    }

    /// Returns the minimum probability at which a guess is read ahead.
    ///
    /// A right guess saves the time of its read, but at most the idle time. A wrong guess costs the
    /// time of its started reads, if requested blocks have to wait for these reads. Such blocks
    /// belong to the guess's own layer, or to the layers that run while half of the block is read.
    /// Each of these layers takes as long as the idle time per layer. Before the drive's times are
    /// known, saving and cost count as equal.
    fn sure_enough(&self) -> f64 {
        let (saves, costs) = self.pace.map_or((1.0, self.waiting), |TokenTiming { idle, right, wrong }| {
            let layers = 1.0 + wrong / (2.0 * idle.max(1e-9));
            (idle.min(right), wrong * (1.0 - (1.0 - self.waiting).powf(layers)))
        });
        (costs / (saves + costs).max(1e-12)).max(MIN_GUESS_PROBABILITY)
    }

    /// Sets the current times of the drive.
    pub fn pace(&mut self, pace: TokenTiming) {
        self.pace = Some(pace);
    }

    /// Describes the current strategy and the reason for it.
    pub fn explain(&self) -> String {
        match self.choice {
            StrategyChoice::Off => "prediction is off".into(),
            StrategyChoice::Always(strategy) => format!("{strategy}, as requested"),
            StrategyChoice::Auto => self.auto.explain(),
        }
    }

    /// Returns the decision with its reasons and the rejected alternatives; `None` if the user
    /// chose the strategy.
    pub fn decision(&self) -> Option<StrategyDecision> {
        match self.choice {
            StrategyChoice::Off | StrategyChoice::Always(_) => None,
            StrategyChoice::Auto => Some(self.auto.decision()),
        }
    }

    /// Receives the early router's prediction for a group, likeliest first. Must be called before
    /// [`Predictions::predict`].
    pub fn take_early_prediction(&mut self, group: u32, experts: &[u32]) {
        self.strategies.iter_mut().for_each(|scored| scored.predictor.take_early_prediction(group, experts));
    }

    /// Returns at most `width` experts of a group to be kept or read ahead, likeliest first.
    /// Without a strategy, the list is empty. `resident` returns whether an expert is in memory.
    /// Experts that are not in memory are returned only if they are probable enough. A second call
    /// before [`Predictions::observe`] replaces the first prediction.
    pub fn predict(&mut self, group: u32, width: usize, resident: impl Fn(u32) -> bool) -> Vec<u32> {
        let (current, sure_enough) = (self.current(), self.sure_enough());
        let mut used = Vec::new();
        for ((_, strategy), scored) in Strategy::ALL.into_iter().zip(&mut self.strategies) {
            let Some(place) = scored.guesses.get_mut(group as usize) else { continue };
            let experts = scored.predictor.predict(group, width);
            let guess = |(rank, &expert): (usize, &u32)| {
                let probability = scored.confidence.odds(RankedGuess { group, rank, expert });
                let sure = scored.confidence.smoothed_probability(group, probability) >= sure_enough;
                Guess { expert, probability, resident: resident(expert), sure }
            };
            let guesses: Vec<Guess> = experts.iter().enumerate().map(guess).collect();
            if current == Some(strategy) {
                used = guesses.iter().filter(|guess| guess.resident || guess.sure).map(|guess| guess.expert).collect();
            }
            *place = Some(guesses);
        }
        used
    }

    /// Compares the predictions of all strategies with the router's choice, and lets the strategies
    /// learn from it.
    pub fn observe(&mut self, group: u32, observed: &RouterChoice<'_>) {
        self.waiting += (f64::from(u8::from(observed.waits)) - self.waiting) / LAYERS_OF_AVERAGE;
        for scored in &mut self.strategies {
            let guess = scored.guesses.get_mut(group as usize).and_then(Option::take);
            if let (Some(guess), Some(tally)) = (guess, scored.tallies.get_mut(group as usize)) {
                let chosen = |guess: &&Guess| observed.experts.contains(&guess.expert);
                let right = guess.iter().filter(chosen).count();
                for (rank, guess) in guess.iter().enumerate() {
                    let named = RankedGuess { group, rank, expert: guess.expert };
                    scored.confidence.learn(named, guess.probability, guess.resident, chosen(&guess));
                }
                let read = guess.iter().filter(|guess| !guess.resident && guess.sure);
                let (useful, useless): (Vec<&Guess>, Vec<&Guess>) = read.partition(chosen);
                let (useful, useless) = (useful.len() as u64, useless.len() as u64);
                // If a strategy predicted nothing, it is not scored.
                if !guess.is_empty() {
                    tally.chosen += observed.experts.len() as u64;
                }
                tally.predicted += guess.len() as u64;
                tally.right += right as u64;
                tally.useful += useful;
                tally.useless += useless;
                tally.wasted_bytes += useless * observed.block_bytes;
                tally.saved += observed.read_time.saturating_mul(u32::try_from(useful).unwrap_or(u32::MAX));
                scored.token.0 += useful;
                scored.token.1 += useless;
            }
            scored.predictor.observe(group, observed.experts);
        }
    }

    /// Ends a token, which took the time `took`. [`StrategyChoice::Auto`] uses this time for its
    /// measurements.
    pub fn end_token(&mut self, took: Duration) {
        let scores: Vec<Score> = Strategy::ALL
            .into_iter()
            .zip(&mut self.strategies)
            .map(|((_, strategy), scored)| {
                let (useful, useless) = std::mem::take(&mut scored.token);
                Score { strategy, gain: useful as i64 - useless as i64 }
            })
            .collect();
        self.auto.end_token(took, &scores);
    }

    /// Drops predictions whose router has not chosen yet, because other work now runs between two
    /// tokens.
    pub fn forget(&mut self) {
        self.strategies.iter_mut().flat_map(|scored| &mut scored.guesses).for_each(|guess| *guess = None);
        self.auto.interrupt();
    }

    /// Returns the scores of all strategies and the current decision.
    pub fn report(&self) -> Report {
        let tallies = Strategy::ALL.into_iter().zip(&self.strategies);
        Report {
            now: self.explain(),
            decision: self.decision(),
            tallies: tallies.map(|((_, strategy), scored)| (strategy, scored.tallies.clone())).collect(),
        }
    }

    /// Returns the score of a strategy in one group.
    pub fn tally(&self, strategy: Strategy, group: u32) -> Tally {
        let index = Strategy::ALL.iter().position(|(_, other)| *other == strategy);
        let scored = index.and_then(|index| self.strategies.get(index));
        scored.and_then(|scored| scored.tallies.get(group as usize)).copied().unwrap_or_default()
    }
}
