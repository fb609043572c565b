//! Which strategy pays: measured, not believed.
//!
//! The first tokens, which miss most, are run with the plan's early routers where it has some: what these are sure of seldom costs anything.
//! Then some are run without prediction, some with the strategy that would have read most of use and least for nothing, and some
//! without again: while the cache fills tokens come sooner anyway, by some part each, which the geometric mean of before and after takes out.
//! Where the median with it is clearly faster than that, it is kept for a while, and then all of it is measured again, since texts change.
//! Where not, prediction rests, longer each time it loses. So a model for which it never pays spends little on finding that out. A prompt in
//! between ends a measurement, since it leaves other experts in memory: what was done before is done for 30 tokens more.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Decided, NOTHING, Strategy};

/// Tokens that are measured with a strategy; odd, so that there is a median.
pub const WINDOW: usize = 15;
/// Tokens that are measured without one before these, and behind them; odd, too.
pub const HALF: usize = 7;
/// Tokens before anything is measured.
pub const FIRST: usize = 2 * WINDOW;
/// How many windows a strategy that pays is kept for.
pub const KEPT: usize = 16;
/// The most windows that prediction rests for.
pub const LONGEST_REST: usize = 64;
/// How much faster tokens have to be, in percent: less is noise.
const CLEARLY_PERCENT: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Without prediction, measured.
    Before,
    /// With this one, measured, where the median before was this.
    With(Strategy, Duration),
    /// Without prediction again, measured, where the medians before and with this one were these.
    After(Strategy, Duration, Duration),
    /// With the one that paid.
    Kept(Strategy),
    /// Without prediction, since it did not pay.
    Resting,
}

/// Reads of use less those for nothing, by strategy.
type Gains = [(Strategy, i64); Strategy::ALL.len()];

/// What the last measurement came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// There was none.
    Nothing {
        /// Whether the plan has early routers, with which a run begins.
        early: bool,
    },
    /// No strategy would have gained anything, and none was tried.
    NoGain,
    /// This one was tried: the time of a token without it, and with it.
    Tried(Strategy, Duration, Duration),
}

/// Whether a strategy is kept.
fn pays(without: Duration, with: Duration) -> bool {
    with.saturating_mul(100) < without.saturating_mul(100 - CLEARLY_PERCENT)
}

/// The measuring.
#[derive(Debug)]
pub struct Auto {
    phase: Phase,
    /// Tokens of this phase that are left.
    left: usize,
    /// Windows that prediction rests for when it loses again.
    rest: usize,
    took: Vec<Duration>,
    /// What the strategies would have gained on each of the last tokens: useful reads less useless ones.
    scores: VecDeque<Vec<(Strategy, i64)>>,
    /// The last comparison: with what, without and with.
    compared: Option<(Strategy, Duration, Duration)>,
    found: Found,
    /// What each strategy would have gained when that was begun.
    gains: Gains,
    /// The same of the measurement that is on.
    began: Gains,
    /// What was done before the measurement that is on.
    settled: Phase,
}

impl Auto {
    /// For a plan that has early routers or not.
    pub fn new(early: bool) -> Auto {
        let (took, scores) = (Vec::new(), VecDeque::new());
        let first = if early { Phase::Kept(Strategy::EarlyRouter) } else { Phase::Resting };
        let (found, gains) = (Found::Nothing { early }, Strategy::ALL.map(|(_, strategy)| (strategy, 0)));
        let (rest, compared, settled) = (1, None, first);
        Auto { phase: first, left: FIRST, rest, took, scores, compared, found, gains, began: gains, settled }
    }

    /// Something else is run between two tokens.
    pub fn interrupt(&mut self) {
        if let Phase::Before | Phase::With(..) | Phase::After(..) = self.phase {
            (self.phase, self.left) = (self.settled, FIRST);
            self.took.clear();
        }
    }

    /// The strategy to use for the next token.
    pub fn current(&self) -> Option<Strategy> {
        match self.phase {
            Phase::Before | Phase::After(..) | Phase::Resting => None,
            Phase::With(strategy, _) | Phase::Kept(strategy) => Some(strategy),
        }
    }

    /// What it does and why.
    pub fn explain(&self) -> String {
        let now = match self.phase {
            Phase::Before | Phase::After(..) => "measuring without prediction".to_string(),
            Phase::With(strategy, _) => format!("measuring with {strategy}"),
            Phase::Kept(strategy) if self.compared.is_none() => format!("beginning with {strategy}"),
            Phase::Kept(strategy) => format!("using {strategy}"),
            Phase::Resting if self.rest == 1 => "measuring behind the first tokens".to_string(),
            Phase::Resting => "prediction does not pay".to_string(),
        };
        match self.compared {
            Some((strategy, without, with)) => {
                format!("{now}; last measured: {without:.1?} a token without, {with:.1?} with {strategy}")
            }
            None => now,
        }
    }

    /// What the last measurement chose, over what, and why; what a run begins with before the first.
    pub fn decided(&self) -> Decided {
        let gained = |strategy: Strategy| {
            let gain = self.gains.iter().find(|(other, _)| *other == strategy).map_or(0, |(_, gain)| *gain);
            format!("{gain} reads more of use than for nothing, of {WINDOW} tokens")
        };
        let others = |tried: Option<Strategy>| {
            let others = Strategy::ALL.into_iter().filter(move |(_, strategy)| Some(*strategy) != tried);
            others.map(|(name, strategy)| (name.to_owned(), gained(strategy)))
        };
        let name = |strategy: Strategy| strategy.to_string();
        match self.found {
            Found::Nothing { early } => {
                let router = name(Strategy::EarlyRouter);
                let (chosen, lost, why) = match early {
                    true => (router, NOTHING.to_owned(), "they miss most, and early routers seldom cost anything"),
                    false => (NOTHING.to_owned(), router, "the plan has no early routers"),
                };
                let later = "it knows nothing before them, and is measured behind them";
                let learn = [Strategy::Previous, Strategy::Frequency].map(|other| (name(other), later.to_owned()));
                let chosen = format!("{chosen} for the first {FIRST} tokens");
                let rejected = [(lost, why.to_owned())].into_iter().chain(learn).collect();
                Decided { chosen, why: None, rejected }
            }
            Found::NoGain => Decided { chosen: NOTHING.to_owned(), why: None, rejected: others(None).collect() },
            Found::Tried(strategy, without, with) => {
                let [before, after] = [without, with].map(|time| format!("{time:.1?} a token"));
                let (chosen, why, lost) = if pays(without, with) {
                    (name(strategy), format!("{after}; {}", gained(strategy)), (NOTHING.to_owned(), before))
                } else {
                    let slower = format!("{after}, which is not {CLEARLY_PERCENT} % less");
                    (NOTHING.to_owned(), before, (name(strategy), slower))
                };
                Decided { chosen, why: Some(why), rejected: [lost].into_iter().chain(others(Some(strategy))).collect() }
            }
        }
    }

    /// A token is done: how long it took, and what each strategy would have gained.
    pub fn end_token(&mut self, took: Duration, scores: &[(Strategy, i64)]) {
        self.took.push(took);
        self.scores.push_back(scores.to_vec());
        if self.scores.len() > WINDOW {
            self.scores.pop_front();
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return;
        }
        let mut took = std::mem::take(&mut self.took);
        took.sort_unstable();
        let median = took.get(took.len() / 2).copied().unwrap_or_default();
        (self.phase, self.left) = match self.phase {
            Phase::Before => {
                self.began = self.sums();
                match self.best() {
                    Some(strategy) => (Phase::With(strategy, median), WINDOW),
                    None => {
                        (self.found, self.gains) = (Found::NoGain, self.began);
                        self.resting()
                    }
                }
            }
            Phase::With(strategy, before) => (Phase::After(strategy, before, median), HALF),
            Phase::After(strategy, before, with) => {
                let without = Duration::from_secs_f64((before.as_secs_f64() * median.as_secs_f64()).sqrt());
                self.compared = Some((strategy, without, with));
                (self.found, self.gains) = (Found::Tried(strategy, without, with), self.began);
                if pays(without, with) {
                    self.rest = 1;
                    (Phase::Kept(strategy), KEPT * WINDOW)
                } else {
                    self.resting()
                }
            }
            Phase::Kept(_) | Phase::Resting => {
                self.settled = self.phase;
                (Phase::Before, HALF)
            }
        };
    }

    fn resting(&mut self) -> (Phase, usize) {
        let windows = self.rest;
        self.rest = (2 * self.rest).min(LONGEST_REST);
        (Phase::Resting, windows * WINDOW)
    }

    /// What each strategy would have gained on the last tokens.
    fn sums(&self) -> Gains {
        let sum = |strategy| -> i64 {
            self.scores.iter().flatten().filter(|(other, _)| *other == strategy).map(|(_, score)| score).sum()
        };
        Strategy::ALL.map(|(_, strategy)| (strategy, sum(strategy)))
    }

    /// The strategy that would have gained most on the last tokens, if any had gained at all.
    fn best(&self) -> Option<Strategy> {
        let gains = self.sums().into_iter().filter(|(_, gain)| *gain > 0);
        gains.max_by_key(|(_, gain)| *gain).map(|(strategy, _)| strategy)
    }
}
