//! The choice of a strategy by measurement.
//!
//! The first tokens miss most experts. They run with the plan's early routers, if it has some,
//! because confident early routers rarely cost time.
//!
//! A measurement then has three parts: tokens without prediction, tokens with the best strategy,
//! and tokens without again. The best strategy would have made the most useful reads minus useless
//! ones. While the cache fills, each token is faster than the last by some factor; the geometric
//! mean of before and after cancels this.
//!
//! If the median with the strategy is clearly below that mean, the strategy is kept for a while.
//! Then the measurement is repeated, since texts change. Otherwise prediction is off until the
//! next measurement. This pause doubles after each failure, so models without a benefit lose little
//! time on measurements.
//!
//! A prompt ends a measurement, because it leaves other experts in memory. The previous state is
//! then restored for 30 tokens.

use std::collections::VecDeque;
use std::time::Duration;

use super::{NO_PREDICTION, Strategy, StrategyDecision};

/// Tokens measured with a strategy; an odd number, so the median is one of them.
pub const WINDOW: usize = 15;
/// Number of tokens measured without a strategy, both before and after the measured strategy; also
/// odd.
pub const HALF: usize = 7;
/// Tokens before the first measurement.
pub const FIRST: usize = 2 * WINDOW;
/// Windows (of [`WINDOW`] tokens) for which a faster strategy is kept before it is measured again.
pub const WINDOWS_TO_KEEP: usize = 16;
/// Max windows without prediction between two measurements.
pub const LONGEST_REST: usize = 64;
/// Min speed-up in percent; less is noise.
const CLEARLY_PERCENT: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Measurement without prediction.
    Before,
    /// Measurement with this strategy, and the median time before it.
    With(Strategy, Duration),
    /// Second measurement without prediction: the strategy, the median before it, and the median
    /// with it.
    After(Strategy, Duration, Duration),
    /// Use of the strategy that was faster.
    Using(Strategy),
    /// No prediction, since it was not faster.
    Resting,
}

/// Useful reads minus useless reads, by strategy.
type Gains = [(Strategy, i64); Strategy::ALL.len()];

/// Result of the last measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measurement {
    /// No measurement yet.
    Nothing {
        /// Whether the plan has early routers, with which a run begins.
        early: bool,
    },
    /// No strategy had a positive gain, so none was tried.
    NoGain,
    /// The tried strategy, and the time of a token without and with it.
    Tried(Strategy, Duration, Duration),
}

/// Returns whether a strategy is fast enough to be kept.
fn pays(without: Duration, with: Duration) -> bool {
    with.saturating_mul(100) < without.saturating_mul(100 - CLEARLY_PERCENT)
}

/// Gain that a strategy would have had on a token.
#[derive(Clone, Copy, Debug)]
pub struct Score {
    /// Strategy with the gain.
    pub strategy: Strategy,
    /// Useful reads minus useless ones.
    pub gain: i64,
}

/// The measurement and its state.
#[derive(Debug)]
pub struct Auto {
    phase: Phase,
    /// Remaining tokens of this phase.
    left: usize,
    /// Windows without prediction after the next measurement in which no strategy was faster.
    rest: usize,
    durations: Vec<Duration>,
    /// Gains of the strategies on each of the last tokens: useful reads minus useless ones.
    scores: VecDeque<Vec<Score>>,
    /// The last comparison: strategy, time without it, time with it.
    comparison: Option<(Strategy, Duration, Duration)>,
    measurement: Measurement,
    /// Gains of each strategy at the start of the last finished measurement.
    gains: Gains,
    /// Gains at the start of the current measurement.
    gains_at_start: Gains,
    /// Phase before the current measurement.
    previous_phase: Phase,
}

impl Auto {
    /// Makes the state for a plan with (`early`) or without early routers.
    pub fn new(early: bool) -> Auto {
        let (durations, scores) = (Vec::new(), VecDeque::new());
        let first = if early { Phase::Using(Strategy::EarlyRouter) } else { Phase::Resting };
        let (measurement, gains) = (Measurement::Nothing { early }, Strategy::ALL.map(|(_, strategy)| (strategy, 0)));
        let (rest, comparison, previous_phase) = (1, None, first);
        Auto {
            phase: first,
            left: FIRST,
            rest,
            durations,
            scores,
            comparison,
            measurement,
            gains,
            gains_at_start: gains,
            previous_phase,
        }
    }

    /// Aborts a measurement, because other work ran between two tokens.
    pub fn interrupt(&mut self) {
        if let Phase::Before | Phase::With(..) | Phase::After(..) = self.phase {
            (self.phase, self.left) = (self.previous_phase, FIRST);
            self.durations.clear();
        }
    }

    /// Returns the strategy for the next token.
    pub fn current(&self) -> Option<Strategy> {
        match self.phase {
            Phase::Before | Phase::After(..) | Phase::Resting => None,
            Phase::With(strategy, _) | Phase::Using(strategy) => Some(strategy),
        }
    }

    /// Describes the current phase and the reason for it.
    pub fn explain(&self) -> String {
        let now = match self.phase {
            Phase::Before | Phase::After(..) => "measuring without prediction".to_string(),
            Phase::With(strategy, _) => format!("measuring with {strategy}"),
            Phase::Using(strategy) if self.comparison.is_none() => format!("beginning with {strategy}"),
            Phase::Using(strategy) => format!("using {strategy}"),
            Phase::Resting if self.rest == 1 => "measuring after the first tokens".to_string(),
            Phase::Resting => "prediction does not pay".to_string(),
        };
        match self.comparison {
            Some((strategy, without, with)) => {
                format!("{now}; last measured: {without:.1?} a token without, {with:.1?} with {strategy}")
            }
            None => now,
        }
    }

    /// Returns the choice of the last measurement with its reasons; before the first, the initial
    /// choice.
    pub fn decision(&self) -> StrategyDecision {
        let gained = |strategy: Strategy| {
            let gain = self.gains.iter().find(|(other, _)| *other == strategy).map_or(0, |(_, gain)| *gain);
            format!("{gain} more useful than useless reads in {WINDOW} tokens")
        };
        let others = |tried: Option<Strategy>| {
            let others = Strategy::ALL.into_iter().filter(move |(_, strategy)| Some(*strategy) != tried);
            others.map(|(name, strategy)| (name.to_owned(), gained(strategy)))
        };
        let name = |strategy: Strategy| strategy.to_string();
        match self.measurement {
            Measurement::Nothing { early } => {
                let router = name(Strategy::EarlyRouter);
                let (chosen, lost, why) = match early {
                    true => {
                        (router, NO_PREDICTION.to_owned(), "they miss most, and early routers seldom cost anything")
                    }
                    false => (NO_PREDICTION.to_owned(), router, "the plan has no early routers"),
                };
                let later = "it has no data before them, and is measured after them";
                let learn = [Strategy::Previous, Strategy::Frequency].map(|other| (name(other), later.to_owned()));
                let chosen = format!("{chosen} for the first {FIRST} tokens");
                let rejected = [(lost, why.to_owned())].into_iter().chain(learn).collect();
                StrategyDecision { chosen, why: None, rejected }
            }
            Measurement::NoGain => {
                StrategyDecision { chosen: NO_PREDICTION.to_owned(), why: None, rejected: others(None).collect() }
            }
            Measurement::Tried(strategy, without, with) => {
                let [before, after] = [without, with].map(|time| format!("{time:.1?} a token"));
                let (chosen, why, lost) = if pays(without, with) {
                    (name(strategy), format!("{after}; {}", gained(strategy)), (NO_PREDICTION.to_owned(), before))
                } else {
                    let slower = format!("{after}, which is not {CLEARLY_PERCENT} % less");
                    (NO_PREDICTION.to_owned(), before, (name(strategy), slower))
                };
                StrategyDecision {
                    chosen,
                    why: Some(why),
                    rejected: [lost].into_iter().chain(others(Some(strategy))).collect(),
                }
            }
        }
    }

    /// Ends a token: takes its time, and the gain that each strategy would have had.
    pub fn end_token(&mut self, durations: Duration, scores: &[Score]) {
        self.durations.push(durations);
        self.scores.push_back(scores.to_vec());
        if self.scores.len() > WINDOW {
            self.scores.pop_front();
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return;
        }
        let mut durations = std::mem::take(&mut self.durations);
        durations.sort_unstable();
        let median = durations.get(durations.len() / 2).copied().unwrap_or_default();
        (self.phase, self.left) = match self.phase {
            Phase::Before => {
                self.gains_at_start = self.sums();
                match self.best() {
                    Some(strategy) => (Phase::With(strategy, median), WINDOW),
                    None => {
                        (self.measurement, self.gains) = (Measurement::NoGain, self.gains_at_start);
                        self.resting()
                    }
                }
            }
            Phase::With(strategy, before) => (Phase::After(strategy, before, median), HALF),
            Phase::After(strategy, before, with) => {
                let without = Duration::from_secs_f64((before.as_secs_f64() * median.as_secs_f64()).sqrt());
                self.comparison = Some((strategy, without, with));
                (self.measurement, self.gains) = (Measurement::Tried(strategy, without, with), self.gains_at_start);
                if pays(without, with) {
                    self.rest = 1;
                    (Phase::Using(strategy), WINDOWS_TO_KEEP * WINDOW)
                } else {
                    self.resting()
                }
            }
            Phase::Using(_) | Phase::Resting => {
                self.previous_phase = self.phase;
                (Phase::Before, HALF)
            }
        };
    }

    fn resting(&mut self) -> (Phase, usize) {
        let windows = self.rest;
        self.rest = (2 * self.rest).min(LONGEST_REST);
        (Phase::Resting, windows * WINDOW)
    }

    /// Returns the gain that each strategy would have had on the last tokens.
    fn sums(&self) -> Gains {
        let sum = |strategy| -> i64 {
            self.scores.iter().flatten().filter(|score| score.strategy == strategy).map(|score| score.gain).sum()
        };
        Strategy::ALL.map(|(_, strategy)| (strategy, sum(strategy)))
    }

    /// Returns the strategy with the largest gain on the last tokens, if that is positive.
    fn best(&self) -> Option<Strategy> {
        let gains = self.sums().into_iter().filter(|(_, gain)| *gain > 0);
        gains.max_by_key(|(_, gain)| *gain).map(|(strategy, _)| strategy)
    }
}
