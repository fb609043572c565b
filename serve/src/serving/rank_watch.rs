//! Counters of all ranks of a model, and their use of NUMA nodes, for `/metrics`.

use std::time::{Duration, Instant};

use ixc_runtime::engine::{RankCounts, StepError};
use ixc_runtime::homes::NodeUse;

use crate::model::Status;

/// Min time between two collections, since each one costs messages.
const INTERVAL: Duration = Duration::from_secs(1);

/// Min time between two queries of the nodes of pages. A query of a large model takes some
/// milliseconds for each kind of its memory, and pages seldom change their nodes.
const NODE_INTERVAL: Duration = Duration::from_secs(60);

/// Collections of counters, and of the use of NUMA nodes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankWatch {
    counters: Collection,
    nodes: Collection,
}

/// Time and number of steps of the last collection.
#[derive(Clone, Copy, Debug, Default)]
struct Collection {
    last: Option<(Instant, u64)>,
}

impl Collection {
    /// Returns whether steps ran since the last collection, and it is long enough ago. If so, a
    /// collection begins.
    fn begins(&mut self, now: Instant, steps: u64, interval: Duration) -> bool {
        let is_due = |(time, before): (Instant, u64)| before != steps && now.duration_since(time) >= interval;
        let begins = self.last.is_none_or(is_due);
        if begins {
            self.last = Some((now, steps));
        }
        begins
    }
}

impl RankWatch {
    /// Collects the counters into a status, if steps ran since the last time.
    pub(super) fn update(
        &mut self,
        now: Instant,
        status: &mut Status,
        collect: impl FnOnce() -> Result<Vec<RankCounts>, StepError>,
    ) {
        // If another rank has ended, the next step fails and is reported.
        if self.counters.begins(now, status.steps, INTERVAL)
            && let Ok(ranks) = collect()
        {
            status.ranks = ranks;
        }
    }

    /// Queries the use of NUMA nodes into a status, if steps ran since the last time.
    pub(super) fn update_nodes(&mut self, now: Instant, status: &mut Status, query: impl FnOnce() -> Vec<NodeUse>) {
        // Before the first steps, states and activations have no pages. So the nodes are queried
        // again soon.
        let interval = if self.nodes.last.is_some_and(|(_, steps)| steps == 0) { INTERVAL } else { NODE_INTERVAL };
        if self.nodes.begins(now, status.steps, interval) {
            status.nodes = query();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_queried_again_soon_after_the_first_steps() {
        let (mut watch, mut status, begin) = (RankWatch::default(), Status::default(), Instant::now());
        let mut queried = |milliseconds, steps| {
            let mut queried = false;
            status.steps = steps;
            watch.update_nodes(begin + Duration::from_millis(milliseconds), &mut status, || {
                queried = true;
                Vec::new()
            });
            queried
        };
        assert_eq!(
            [(0, 0), (500, 1), (1000, 2), (9000, 3)].map(|(at, steps)| queried(at, steps)),
            [true, false, true, false]
        );
        assert_eq!([(61_000, 3), (62_000, 3), (63_000, 4)].map(|(at, steps)| queried(at, steps)), [true, false, false]);
    }

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
