//! Guessing which experts the router will choose, and whether that pays.
//!
//! Reading ahead makes no bandwidth, it only uses the part that the drive has left; published results go from 4 times faster to a third
//! slower. So every strategy is scored on every token, also while it is not used. Of the guesses of the strategy in use, two kinds are given out:
//! experts in memory, which are then kept, and experts whose odds are good enough (`confidence.rs`). [`auto`] uses a strategy only as long as
//! tokens are measured to come sooner with it.
//!
//! ```
//! use ixc_runtime::stream::predict::{Choice, Observed, Predictions, Strategy};
//! use std::time::Duration;
//!
//! let mut predictions = Predictions::new(Choice::Always(Strategy::Previous), 1);
//! for experts in [[1, 2], [2, 3]] {
//!     let read = predictions.predict(0, 3, |_| false); // for `ExpertCache::predict`
//!     # let _ = read;
//!     predictions.observe(0, &Observed { experts: &experts, waits: true, block_bytes: 4096, read_time: Duration::from_millis(1) });
//!     predictions.end_token(Duration::from_millis(9));
//! }
//! let tally = predictions.tally(Strategy::Previous, 0);
//! assert_eq!((tally.recall(), tally.precision()), (0.5, 0.5)); // of [2, 3] it said 2, and 1
//! assert_eq!((tally.wasted_bytes, tally.saved), (4096, Duration::from_millis(1)));
//! ```
//!
//! Invariant: predictions change when blocks are read, and never the results.

pub mod auto;
mod confidence;
mod strategies;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use auto::Auto;
use confidence::{GuessConfidence, Named};

/// How to guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The experts that the same layer used for the token before.
    Previous,
    /// The experts that the layer used most often lately.
    Frequency,
    /// The choice of the next layer's own router for the input of this layer's router. Plans with early routers compute it.
    EarlyRouter,
}

impl Strategy {
    /// All of them, with the names that a user says.
    pub const ALL: [(&'static str, Strategy); 3] =
        [("previous", Strategy::Previous), ("frequency", Strategy::Frequency), ("router", Strategy::EarlyRouter)];
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Strategy::ALL.iter().find(|(_, strategy)| strategy == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// Which strategy to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// None.
    Off,
    /// This one.
    Always(Strategy),
    /// The one that pays, or none.
    #[default]
    Auto,
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        let strategy = Strategy::ALL.iter().find(|(name, _)| *name == text).map(|(_, strategy)| *strategy);
        match (text, strategy) {
            ("off", _) => Ok(Choice::Off),
            ("auto", _) => Ok(Choice::Auto),
            (_, Some(strategy)) => Ok(Choice::Always(strategy)),
            _ => {
                let names = Strategy::ALL.map(|(name, _)| name).join(", ");
                Err(format!("{text:?} is no way to read ahead; right would be off, {names} or auto"))
            }
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Off => f.write_str("off"),
            Choice::Always(strategy) => strategy.fmt(f),
            Choice::Auto => f.write_str("auto"),
        }
    }
}

/// What is read ahead while tokens are made one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// By which strategy.
    pub choice: Choice,
    /// Experts of a group beyond as many as a token needs.
    pub extra: u32,
}

impl Settings {
    /// What graphs have to be compiled with: for how many more experts early routers are wanted, if they are.
    pub fn early_routers(self) -> Option<u32> {
        matches!(self.choice, Choice::Auto | Choice::Always(Strategy::EarlyRouter)).then_some(self.extra)
    }
}

/// A strategy, for all groups.
pub trait Predictor: Send {
    /// At most `width` experts that the group's next request will name, likeliest first.
    fn predict(&mut self, group: u32, width: usize) -> Vec<u32>;

    /// What it named.
    fn observe(&mut self, group: u32, experts: &[u32]);

    /// What somebody says that it will name, likeliest first.
    fn given(&mut self, group: u32, experts: &[u32]) {
        let _ = (group, experts);
    }
}

/// What a layer's router chose.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The experts.
    pub experts: &'a [u32],
    /// Whether some of them were not in memory.
    pub waits: bool,
    /// Bytes of a block of this group.
    pub block_bytes: u64,
    /// Time that a miss costs here, as measured: stall by misses.
    pub read_time: Duration,
}

/// How a strategy did in a group, used or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Experts that the router chose.
    pub chosen: u64,
    /// Experts that were predicted.
    pub predicted: u64,
    /// Those of them that the router chose.
    pub right: u64,
    /// Those of the right ones that were not in memory when they were predicted: what it is for.
    pub useful: u64,
    /// Wrong ones that were not in memory: what would be read for nothing.
    pub useless: u64,
    /// Bytes of these.
    pub wasted_bytes: u64,
    /// Time that the useful ones would have taken to read when they were wanted: the most that can be saved.
    pub saved: Duration,
}

impl Tally {
    /// The part of what was chosen that was predicted, 0 to 1.
    pub fn recall(&self) -> f64 {
        part(self.right, self.chosen)
    }

    /// The part of what was predicted that was chosen, 0 to 1.
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

/// What is used, what is not, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// What is used.
    pub chosen: String,
    /// What speaks for it, where what speaks against the others does not say so.
    pub why: Option<String>,
    /// What else could be, and why it is not.
    pub rejected: Vec<(String, String)>,
}

/// What a run does that predicts nothing.
const NOTHING: &str = "no prediction";

/// How all strategies did.
#[derive(Clone, Debug)]
pub struct Report {
    /// What is used, and why.
    pub now: String,
    /// The same with what lost, where nobody asked for anything.
    pub decided: Option<Decided>,
    /// Of each strategy the tallies of all groups.
    pub tallies: Vec<(Strategy, Vec<Tally>)>,
}

/// An expert that was predicted.
#[derive(Clone, Copy, Debug)]
struct Guess {
    expert: u32,
    /// Its odds then.
    probability: f64,
    /// Whether it was in memory then.
    resident: bool,
    /// Whether it was sure enough to be read, if it was not.
    sure: bool,
}

struct Scored {
    predictor: Box<dyn Predictor>,
    /// By group: the last prediction, until the router has chosen.
    guesses: Vec<Option<Vec<Guess>>>,
    tallies: Vec<Tally>,
    sureness: GuessConfidence,
    /// Useful and useless ones of this token, all groups.
    token: (u64, u64),
}

/// How much what layers had to wait for lately counts: the last of so many.
const REMEMBERED: f64 = 256.0;
/// A guess is never read that is right more rarely: it takes another's slot, too.
const LEAST_SURE: f64 = 0.125;

/// All strategies, scored side by side, and the one that is used.
pub struct Predictions {
    choice: Choice,
    auto: Auto,
    strategies: Vec<Scored>,
    /// The part of layers, lately, that had to wait for some expert.
    waiting: f64,
    /// Nothing is known before the first read.
    pace: Option<TokenTiming>,
}

/// What the drive has time for, in seconds: averages of the last tokens.
#[derive(Clone, Copy, Debug)]
pub struct TokenTiming {
    /// In which it has nothing to read that somebody waits for, for each layer.
    pub idle: f64,
    /// That reading a block takes.
    pub right: f64,
    /// That reading takes of what is begun of a wrong guess.
    pub wrong: f64,
}

impl Predictions {
    /// For a model of so many groups.
    pub fn new(choice: Choice, groups: u32) -> Predictions {
        let scored = |(_, strategy): (&str, Strategy)| Scored {
            predictor: strategies::predictor(strategy, groups),
            guesses: (0..groups).map(|_| None).collect(),
            tallies: (0..groups).map(|_| Tally::default()).collect(),
            sureness: GuessConfidence::default(),
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

    /// The same, for a plan without early routers.
    pub fn without_early_routers(self) -> Predictions {
        Predictions { auto: Auto::new(false), ..self }
    }

    /// The strategy that is used now.
    pub fn current(&self) -> Option<Strategy> {
        match self.choice {
            Choice::Off => None,
            Choice::Always(strategy) => Some(strategy),
            Choice::Auto => self.auto.current(),
        }
    }

    /// The odds that a guess needs to be read ahead. A right guess saves the time in which the drive reads it and would have been idle. A wrong one
    /// costs the time of the reads that were begun for it, where a router's choice has to wait for them: the choice of its own layer, or of the layers
    /// that come while half of it is read, each of which takes as long as the drive is idle for it. As long as the drive is unknown, saving and cost
    /// are taken to be equal.
    fn sure_enough(&self) -> f64 {
        let (saves, costs) = self.pace.map_or((1.0, self.waiting), |TokenTiming { idle, right, wrong }| {
            let layers = 1.0 + wrong / (2.0 * idle.max(1e-9));
            (idle.min(right), wrong * (1.0 - (1.0 - self.waiting).powf(layers)))
        });
        (costs / (saves + costs).max(1e-12)).max(LEAST_SURE)
    }

    /// How fast the drive is now.
    pub fn pace(&mut self, pace: TokenTiming) {
        self.pace = Some(pace);
    }

    /// What [`Choice::Auto`] does and why, in words.
    pub fn explain(&self) -> String {
        match self.choice {
            Choice::Off => "prediction is off".into(),
            Choice::Always(strategy) => format!("{strategy}, as was asked for"),
            Choice::Auto => self.auto.explain(),
        }
    }

    /// What is done over what, and why, where nobody asked for anything.
    pub fn decided(&self) -> Option<Decided> {
        match self.choice {
            Choice::Off | Choice::Always(_) => None,
            Choice::Auto => Some(self.auto.decided()),
        }
    }

    /// What the plan's early router says of a layer, likeliest first. To be said before [`Predictions::predict`].
    pub fn given(&mut self, group: u32, experts: &[u32]) {
        self.strategies.iter_mut().for_each(|scored| scored.predictor.given(group, experts));
    }

    /// The experts to keep or to read ahead for a group, at most `width`, likeliest first; none while no strategy is used. `resident` says
    /// which are in memory; of the others only those that are likely enough to be right are named. A second call before [`Predictions::observe`] takes the place of the first.
    pub fn predict(&mut self, group: u32, width: usize, resident: impl Fn(u32) -> bool) -> Vec<u32> {
        let (current, sure_enough) = (self.current(), self.sure_enough());
        let mut used = Vec::new();
        for ((_, strategy), scored) in Strategy::ALL.into_iter().zip(&mut self.strategies) {
            let Some(place) = scored.guesses.get_mut(group as usize) else { continue };
            let experts = scored.predictor.predict(group, width);
            let guess = |(rank, &expert): (usize, &u32)| {
                let probability = scored.sureness.odds(Named { group, rank, expert });
                let sure = scored.sureness.counted(group, probability) >= sure_enough;
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

    /// The router has chosen: scores all strategies, and lets them learn.
    pub fn observe(&mut self, group: u32, observed: &Observed<'_>) {
        self.waiting += (f64::from(u8::from(observed.waits)) - self.waiting) / REMEMBERED;
        for scored in &mut self.strategies {
            let guess = scored.guesses.get_mut(group as usize).and_then(Option::take);
            if let (Some(guess), Some(tally)) = (guess, scored.tallies.get_mut(group as usize)) {
                let chosen = |guess: &&Guess| observed.experts.contains(&guess.expert);
                let right = guess.iter().filter(chosen).count();
                for (rank, guess) in guess.iter().enumerate() {
                    let named = Named { group, rank, expert: guess.expert };
                    scored.sureness.learn(named, guess.probability, guess.resident, chosen(&guess));
                }
                let read = guess.iter().filter(|guess| !guess.resident && guess.sure);
                let (useful, useless): (Vec<&Guess>, Vec<&Guess>) = read.partition(chosen);
                let (useful, useless) = (useful.len() as u64, useless.len() as u64);
                // What says nothing yet is no guess.
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

    /// A token is done, which took so long: [`Choice::Auto`] judges by it.
    pub fn end_token(&mut self, took: Duration) {
        let scores: Vec<(Strategy, i64)> = Strategy::ALL
            .into_iter()
            .zip(&mut self.strategies)
            .map(|((_, strategy), scored)| {
                let (useful, useless) = std::mem::take(&mut scored.token);
                (strategy, useful as i64 - useless as i64)
            })
            .collect();
        self.auto.end_token(took, &scores);
    }

    /// What was predicted and not yet chosen is no prediction any more: something else is run in between.
    pub fn forget(&mut self) {
        self.strategies.iter_mut().flat_map(|scored| &mut scored.guesses).for_each(|guess| *guess = None);
        self.auto.interrupt();
    }

    /// How all strategies did.
    pub fn report(&self) -> Report {
        let tallies = Strategy::ALL.into_iter().zip(&self.strategies);
        Report {
            now: self.explain(),
            decided: self.decided(),
            tallies: tallies.map(|((_, strategy), scored)| (strategy, scored.tallies.clone())).collect(),
        }
    }

    /// How a strategy did in a group.
    pub fn tally(&self, strategy: Strategy, group: u32) -> Tally {
        let index = Strategy::ALL.iter().position(|(_, other)| *other == strategy);
        let scored = index.and_then(|index| self.strategies.get(index));
        scored.and_then(|scored| scored.tallies.get(group as usize)).copied().unwrap_or_default()
    }
}
