//! Counters of all ranks of a model, for `/metrics`.

use std::time::{Duration, Instant};

use ixc_runtime::engine::{RankCounts, StepError};

use crate::model::Status;

/// Min time between two collections, since each one costs messages.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time and number of steps of the last collection of counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankWatch {
    last: Option<(Instant, u64)>,
}

impl RankWatch {
    /// Collects the counters into a status, if steps ran since the last time.
    pub(super) fn update(
        &mut self,
        now: Instant,
        status: &mut Status,
        collect: impl FnOnce() -> Result<Vec<RankCounts>, StepError>,
    ) {
        let is_due = |(time, steps): (Instant, u64)| steps != status.steps && now.duration_since(time) >= INTERVAL;
        if !self.last.is_none_or(is_due) {
            return;
        }
        self.last = Some((now, status.steps));
        // If another rank has ended, the next step fails and is reported.
        if let Ok(ranks) = collect() {
            status.ranks = ranks;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_collected_after_steps_once_a_second() {
        let (mut watch, mut status, begin) = (RankWatch::default(), Status::default(), Instant::now());
        let mut count = 0;
        let mut update = |milliseconds, steps| {
            status.steps = steps;
            watch.update(begin + Duration::from_millis(milliseconds), &mut status, || {
                count += 1;
                Ok(vec![RankCounts { memory_bytes: count, ..RankCounts::default() }])
            });
            status.ranks[0].memory_bytes
        };
        assert_eq!([update(0, 0), update(5000, 0), update(5001, 1), update(5002, 2)], [1, 1, 2, 2]);
        assert_eq!([update(6001, 2), update(9000, 2)], [3, 3]);
    }
}
