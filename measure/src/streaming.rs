//! Measurements of streamed experts.
//!
//! The rate of reading experts is given as a share of the drive's own rate. The own rate is that of
//! reads of the same size and queue depth, at random places of the same file, past the page cache.
//! It is measured before and after the run, since a drive's speed changes.

use std::time::Duration;

use ixc_generate::timing::Phase;
use ixc_runtime::streaming::store::ExpertCache;
use ixc_runtime::streaming::store::stats::Stats;

use crate::forecast::{PROMPT, Routing, StoredForecast, forecast};

/// Duration of a measurement of the drive alone, before and after a run.
pub const BASELINE: Duration = Duration::from_millis(250);

/// Returns the difference of the counts since `before`; the use of slots is the current one.
pub fn counts_since(mut stats: Stats, before: &Stats) -> Stats {
    for (now, then) in stats.groups.iter_mut().zip(&before.groups) {
        for (now, then) in [
            (&mut now.hits, then.hits),
            (&mut now.foreseen, then.foreseen),
            (&mut now.on_the_way, then.on_the_way),
            (&mut now.misses, then.misses),
            (&mut now.failures, then.failures),
            (&mut now.bytes, then.bytes),
            (&mut now.predicted_bytes, then.predicted_bytes),
            (&mut now.right_bytes, then.right_bytes),
            (&mut now.wasted_bytes, then.wasted_bytes),
            (&mut now.cancelled, then.cancelled),
        ] {
            *now = now.saturating_sub(then);
        }
        now.stall = now.stall.saturating_sub(then.stall);
    }
    stats.drive = stats.drive.since(&before.drive);
    stats
}

/// Returns a rate as a share of the mean of the rates `own`; `None` if the rate or the mean is
/// zero.
pub fn share(rate: f64, own: &[f64]) -> Option<f64> {
    let mean = own.iter().sum::<f64>() / own.len().max(1) as f64;
    (rate > 0.0 && mean > 0.0).then_some(rate / mean)
}

/// Min number of tokens for a statement about a model's routing.
const LEAST_TOKENS: usize = 16;

/// Measurements and conditions of one phase of a run.
#[derive(Clone, Copy, Debug)]
pub struct PhaseMeasurement {
    /// Times and counts of the phase.
    pub phase: Phase,
    /// Median rate of the drive alone, in bytes per second, before and after the phase.
    pub own: Option<f64>,
    /// Length of each prompt; `None` for decode.
    pub prompt: Option<usize>,
    /// Whether experts are deferred: see
    /// [`LoadedModel::defers`](ixc_generate::loaded_model::LoadedModel::defers).
    pub defers: bool,
}

/// Comparison of a phase with its forecast.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PhaseComparison {
    /// Time of a token, in decode, if the drive's own rate is known.
    pub token: Option<TokenTime>,
    /// Rates, if a forecast for the phase exists.
    pub forecast: Option<ForecastRates>,
}

/// Time of a token and of its parts alone, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenTime {
    /// Measured time of a token, in seconds.
    pub seconds: f64,
    /// Time of a token without reads, in seconds.
    pub compute: f64,
    /// Time of a token's reads alone, in seconds.
    pub reading: f64,
}

/// Rates of a phase in tokens per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForecastRates {
    /// The forecast of `ixc plan`.
    pub predicted: f64,
    /// Measured rate of the phase, in tokens per second.
    pub measured: f64,
}

impl PhaseMeasurement {
    /// Compares a token's time with computing alone, with reading alone, and with the forecast of
    /// `ixc plan`. Stored forecasts learn from the measurement.
    pub fn compare(&self, store: &ExpertCache, remembered: Option<&StoredForecast>) -> PhaseComparison {
        let mut comparison = PhaseComparison::default();
        let Phase { tokens, seconds, streamed, .. } = self.phase;
        let (Some(known), true) = (remembered, tokens > 0 && seconds > 0.0) else { return comparison };
        let slots = store.stats().classes.iter().map(|class| u64::from(class.count)).sum();
        let predicted = forecast(&known.shape, &known.costs, slots, &known.routing);
        if let Some(prompt) = self.prompt {
            // The forecast holds for prompts of its own length only.
            if prompt == PROMPT {
                let prompts = (tokens / PROMPT).max(1) as f64;
                if !self.defers {
                    let read = (streamed.requested - streamed.kept) as f64;
                    known.learn(None, Some(read / prompts / known.shape.all() as f64));
                }
                let predicted = PROMPT as f64 / predicted.prompt;
                comparison.forecast = Some(ForecastRates { predicted, measured: tokens as f64 / seconds });
            }
            return comparison;
        }
        let token = seconds / tokens as f64;
        if let Some(own) = self.own.filter(|own| *own > 0.0) {
            let compute = known.costs.dense + known.costs.experts;
            let reading = streamed.bytes as f64 / tokens as f64 / own;
            comparison.token = Some(TokenTime { seconds: token, compute, reading });
        }
        // Do not use bytes: reads for wrong predictions are not misses.
        if let Some(missed) = streamed.miss_rate().filter(|_| tokens >= LEAST_TOKENS && !self.defers) {
            known.learn(Routing::evenness_from_reads(slots as f64 / known.shape.all().max(1) as f64, missed), None);
        }
        comparison.forecast = Some(ForecastRates { predicted: 1.0 / predicted.token, measured: 1.0 / token });
        comparison
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_runtime::streaming::counters::Counters;
    use ixc_runtime::streaming::store::stats::GroupStats;

    #[test]
    fn answer_statistics_exclude_earlier_answers() {
        let group = |n: u64| GroupStats {
            hits: n,
            foreseen: 10 * n,
            on_the_way: 2 * n,
            misses: 3 * n,
            failures: 4 * n,
            bytes: 5 * n,
            predicted_bytes: 6 * n,
            right_bytes: 7 * n,
            wasted_bytes: 8 * n,
            cancelled: 9 * n,
            stall: Duration::from_secs(n),
        };
        let stats = |n: u64, busy| {
            let mut drive = Counters::default();
            drive.busy = Duration::from_secs(busy);
            Stats { groups: vec![group(n), group(2 * n)], classes: Vec::new(), drive }
        };
        let found = counts_since(stats(10, 7), &stats(4, 5));
        assert_eq!(found.groups, [group(6), group(12)]);
        assert_eq!(found.drive.busy, Duration::from_secs(2));
    }
}
