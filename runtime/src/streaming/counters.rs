//! Counters of a drive: bytes, reads, busy time and latencies.

use std::time::{Duration, Instant};

pub use crate::reads::Class;

/// Counters of the reads of one class (routed or predicted).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Bytes that arrived. Because whole pages are read, they include unneeded bytes before and
    /// after a block.
    pub bytes: u64,
    /// Number of reads that ended, with success or failure.
    pub reads: u64,
}

/// Number of latency buckets. Bucket `i` counts reads that took 2^i to 2^(i+1) microseconds; the
/// last bucket also counts all longer reads.
pub const LATENCY_BUCKETS: usize = 24;

/// Counters since the start of the drive's thread.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Reads of blocks that the router has chosen.
    pub routed: Reads,
    /// Reads of blocks that were only predicted.
    pub predicted: Reads,
    /// Time with at least one outstanding read. All bytes arrived during this time, so bytes / busy
    /// is the drive's rate.
    pub busy: Duration,
    /// Time with at least one outstanding read of a routed block.
    pub busy_routed: Duration,
    /// Bytes of both classes that arrived during `busy_routed`: the drive's output while threads
    /// may wait for a block.
    pub bytes_while_routed: u64,
    /// Maximum number of outstanding reads.
    pub max_outstanding: usize,
    /// Number of reads that were restarted because they were short or interrupted.
    pub retries: u64,
    /// Number of reads by latency; see [`LATENCY_BUCKETS`].
    pub latency: [u64; LATENCY_BUCKETS],
    outstanding: [usize; 2],
    busy_since: Option<Instant>,
    routed_since: Option<Instant>,
}

impl Counters {
    /// Records the start of a read of class `class` at time `now`.
    pub(super) fn begin(&mut self, class: Class, now: Instant) {
        self.outstanding[class as usize] += 1;
        self.max_outstanding = self.max_outstanding.max(self.outstanding.iter().sum());
        self.busy_since.get_or_insert(now);
        if class == Class::Routed {
            self.routed_since.get_or_insert(now);
        }
    }

    /// Records the end of a read that was of class `class` when it started at `began`, and that
    /// read `bytes` bytes.
    pub(super) fn end(&mut self, class: Class, bytes: u64, began: Instant, now: Instant) {
        let reads = match class {
            Class::Routed => &mut self.routed,
            Class::Predicted => &mut self.predicted,
        };
        reads.bytes += bytes;
        reads.reads += 1;
        if self.outstanding[Class::Routed as usize] > 0 {
            self.bytes_while_routed += bytes;
        }
        let took = now.saturating_duration_since(began).as_micros().max(1);
        self.latency[(took.ilog2() as usize).min(LATENCY_BUCKETS - 1)] += 1;
        self.outstanding[class as usize] = self.outstanding[class as usize].saturating_sub(1);
        if self.outstanding[Class::Routed as usize] == 0 {
            self.busy_routed += since(&mut self.routed_since, now);
        }
        if self.outstanding == [0, 0] {
            self.busy += since(&mut self.busy_since, now);
        }
    }

    /// Returns the counters. The busy times include outstanding reads, up to now.
    pub(super) fn snapshot(&self) -> Counters {
        let (mut counters, now) = (self.clone(), Instant::now());
        counters.busy += since(&mut counters.busy_since, now);
        counters.busy_routed += since(&mut counters.routed_since, now);
        counters
    }

    /// Returns the differences from an earlier snapshot. Only `max_outstanding` stays the maximum
    /// since the start.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let reads = |now: Reads, then: Reads| Reads {
            bytes: now.bytes.saturating_sub(then.bytes),
            reads: now.reads.saturating_sub(then.reads),
        };
        let mut latency = self.latency;
        latency.iter_mut().zip(earlier.latency).for_each(|(now, then)| *now = now.saturating_sub(then));
        Counters {
            routed: reads(self.routed, earlier.routed),
            predicted: reads(self.predicted, earlier.predicted),
            busy: self.busy.saturating_sub(earlier.busy),
            busy_routed: self.busy_routed.saturating_sub(earlier.busy_routed),
            bytes_while_routed: self.bytes_while_routed.saturating_sub(earlier.bytes_while_routed),
            retries: self.retries.saturating_sub(earlier.retries),
            latency,
            ..self.clone()
        }
    }

    /// Returns the number of bytes of both classes together.
    pub fn bytes(&self) -> u64 {
        self.routed.bytes + self.predicted.bytes
    }

    /// Returns the bytes per second of the time with at least one outstanding read; 0 without
    /// reads.
    pub fn rate(&self) -> f64 {
        let seconds = self.busy.as_secs_f64();
        if seconds > 0.0 { self.bytes() as f64 / seconds } else { 0.0 }
    }

    /// Returns the bytes per second of the time with at least one outstanding routed read; 0
    /// without routed reads.
    pub fn routed_rate(&self) -> f64 {
        let seconds = self.busy_routed.as_secs_f64();
        if seconds > 0.0 { self.bytes_while_routed as f64 / seconds } else { 0.0 }
    }
}

fn since(began: &mut Option<Instant>, now: Instant) -> Duration {
    began.take().map_or(Duration::ZERO, |began| now.saturating_duration_since(began))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_difference_covers_only_the_interval() {
        let (start, mut counters) = (Instant::now(), Counters::default());
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        counters.begin(Class::Predicted, at(0));
        counters.end(Class::Predicted, 5, at(0), at(10));
        let before = counters.clone();
        counters.begin(Class::Routed, at(20));
        counters.end(Class::Routed, 3000, at(20), at(21));
        let since = counters.since(&before);
        assert_eq!((since.bytes(), since.routed.reads, since.predicted.reads), (3000, 1, 0));
        assert_eq!((since.busy, since.busy_routed), (Duration::from_millis(1), Duration::from_millis(1)));
        assert_eq!(since.latency.iter().sum::<u64>(), 1);
        assert!((since.routed_rate() - 3e6).abs() < 1.0 && counters.bytes() == 3005);
    }
}
