//! Automatic choice of a prediction strategy, by measuring the time of tokens.
//!
//! During the first tokens, most experts are not in memory. These tokens use the plan's early
//! routers, if it has some, because their confident predictions rarely cost time.
//!
//! A measurement has three parts: tokens without prediction, tokens with the best strategy, and
//! again tokens without prediction. The best strategy is the one that would have made the most
//! useful reads minus useless reads. While the cache fills, each token is faster than the previous
//! one by some factor. The geometric mean of the times before and after cancels this factor.
//!
//! If the median time with the strategy is clearly below that mean, the strategy is kept for a
//! while. Then the measurement is repeated, because the text changes. Otherwise prediction is off
//! until the next measurement. This pause doubles after each failure, so measurements cost little
//! time for models without a benefit.
//!
//! A prompt interrupts a measurement, because it leaves other experts in memory. The state before
//! the measurement is then restored for 30 tokens.

use std::collections::VecDeque;
use std::time::Duration;

use super::{NO_PREDICTION, Strategy, StrategyDecision};

/// Number of tokens that are measured with a strategy. It is odd, so that the median is the time of
/// one of them.
pub const WINDOW: usize = 15;
/// Number of tokens that are measured without prediction, both before and after those with the
/// strategy. It is odd, too.
pub const HALF: usize = 7;
/// Number of tokens before the first measurement.
pub const FIRST: usize = 2 * WINDOW;
/// Number of windows (of [`WINDOW`] tokens) for which a faster strategy is kept before the next
/// measurement.
pub const WINDOWS_TO_KEEP: usize = 16;
/// Maximum number of windows without prediction between two measurements.
pub const LONGEST_REST: usize = 64;
/// Minimum speed-up of a strategy that is kept, in percent. A smaller speed-up is noise.
const CLEARLY_PERCENT: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// First part of a measurement: tokens without prediction.
    Before,
    /// Second part of a measurement: tokens with this strategy. The time is the median of the first
    /// part.
    With(Strategy, Duration),
    /// Third part of a measurement: tokens without prediction. It has the strategy, and the medians
    /// of the first and the second part.
    After(Strategy, Duration, Duration),
    /// Use of the strategy that was faster in the last measurement.
    Using(Strategy),
    /// No prediction, because no strategy was faster in the last measurement.
    Resting,
}

/// For each strategy, useful reads minus useless reads.
type Gains = [(Strategy, i64); Strategy::ALL.len()];

/// Result of the last measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measurement {
    /// There was no measurement yet.
    Nothing {
        /// Whether the plan has early routers, which are used for the first tokens.
        early: bool,
    },
    /// No strategy would have had a positive gain, so none was measured.
    NoGain,
    /// The strategy that was measured, and the time of a token without it and with it.
    Tried(Strategy, Duration, Duration),
}

/// Returns whether a strategy is so much faster that it is kept.
fn pays(without: Duration, with: Duration) -> bool {
    with.saturating_mul(100) < without.saturating_mul(100 - CLEARLY_PERCENT)
}

/// Gain that a strategy would have had for one token.
#[derive(Clone, Copy, Debug)]
pub struct Score {
    /// Strategy with the gain.
    pub strategy: Strategy,
    /// Useful reads minus useless reads.
    pub gain: i64,
}

/// The state of the automatic choice.
#[derive(Debug)]
pub struct Auto {
    phase: Phase,
    /// Number of tokens until the current phase ends.
    left: usize,
    /// Number of windows without prediction that follow the next measurement if no strategy is
    /// faster.
    rest: usize,
    durations: Vec<Duration>,
    /// For each of the last tokens, the gains that the strategies would have had: useful reads
    /// minus useless reads.
    scores: VecDeque<Vec<Score>>,
    /// The last comparison: the strategy, and the time of a token without it and with it.
    comparison: Option<(Strategy, Duration, Duration)>,
    measurement: Measurement,
    /// Gain of each strategy at the start of the last finished measurement.
    gains: Gains,
    /// Gain of each strategy at the start of the current measurement.
    gains_at_start: Gains,
    /// The phase before the current measurement.
    previous_phase: Phase,
}

impl Auto {
    /// Creates the state for a plan. `early` is true if the plan has early routers.
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

    /// Ends a measurement without a result, because other work ran between two tokens.
    pub fn interrupt(&mut self) {
        if let Phase::Before | Phase::With(..) | Phase::After(..) = self.phase {
            (self.phase, self.left) = (self.previous_phase, FIRST);
            self.durations.clear();
        }
    }

    /// Returns the strategy for the next token; `None` for no prediction.
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
            Phase::Resting => "prediction of experts does not make decode faster".to_string(),
        };
        match self.comparison {
            Some((strategy, without, with)) => {
                format!("{now}; last measured: {without:.1?} a token without, {with:.1?} with {strategy}")
            }
            None => now,
        }
    }

    /// Returns the choice of the last measurement, with its reasons. Before the first measurement,
    /// returns the initial choice.
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
                    true => (
                        router,
                        NO_PREDICTION.to_owned(),
                        "most experts are missed in the first tokens, and early routers seldom cost time",
                    ),
                    false => (NO_PREDICTION.to_owned(), router, "the plan has no early routers"),
                };
                let later = "this predictor has no data before the first tokens, and is measured after them";
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

    /// Ends a token. `durations` is its time, and `scores` are the gains that the strategies would
    /// have had.
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

    /// Returns the gain that each strategy would have had for the last tokens together.
    fn sums(&self) -> Gains {
        let sum = |strategy| -> i64 {
            self.scores.iter().flatten().filter(|score| score.strategy == strategy).map(|score| score.gain).sum()
        };
        Strategy::ALL.map(|(_, strategy)| (strategy, sum(strategy)))
    }

    /// Returns the strategy with the largest gain for the last tokens, if this gain is positive.
    fn best(&self) -> Option<Strategy> {
        let gains = self.sums().into_iter().filter(|(_, gain)| *gain > 0);
        gains.max_by_key(|(_, gain)| *gain).map(|(strategy, _)| strategy)
    }
}
