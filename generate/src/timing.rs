//! Time of a part of a run: tokens, seconds, and the counters of streamed experts.
//!
//! ```text
//! 64 tokens in 4 s; 2300 of 3072 needed experts were in memory;
//! the drive read for 3.1 s; two threads waited 1.4 s in all
//! ```

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use ixc_runtime::engine::Engine;
use ixc_runtime::streaming::store::ExpertCache;
use ixc_runtime::streaming::store::stats::GroupStats;

/// Tokens of a prompt or of generated text, and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phase {
    /// Number of tokens.
    pub tokens: usize,
    /// Time of these tokens, in seconds.
    pub seconds: f64,
    /// Seconds that packing of weights on first use took, averaged over the threads.
    pub packing: f64,
    /// Counters of streamed experts; zero if all experts are in memory.
    pub streamed: StreamCounts,
}

/// Counters of streamed experts over some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamCounts {
    /// Bytes of experts that were read, both requested by routers and predicted.
    pub bytes: u64,
    /// Experts that routers requested.
    pub requested: u64,
    /// Requested experts in memory, without prefetched ones on their first use.
    pub kept: u64,
    /// Seconds with at least one read in flight.
    pub busy: f64,
    /// Seconds in which threads waited for experts, summed over threads, without packing.
    pub stall: f64,
}

impl StreamCounts {
    /// Returns the totals of an expert cache.
    fn from_cache(store: &ExpertCache) -> StreamCounts {
        let stats = store.stats();
        let all = GroupStats::sum(&stats.groups);
        StreamCounts {
            bytes: stats.drive.bytes(),
            requested: all.hits + all.on_the_way + all.misses,
            kept: all.hits - all.foreseen,
            busy: stats.drive.busy.as_secs_f64(),
            stall: all.stall.as_secs_f64(),
        }
    }

    fn since(self, before: StreamCounts) -> StreamCounts {
        StreamCounts {
            bytes: self.bytes.saturating_sub(before.bytes),
            requested: self.requested.saturating_sub(before.requested),
            kept: self.kept.saturating_sub(before.kept),
            busy: (self.busy - before.busy).max(0.0),
            stall: (self.stall - before.stall).max(0.0),
        }
    }

    /// Returns the share of requested experts that had to be read, before or after the request,
    /// from 0 to 1. Returns `None` without requests.
    pub fn miss_rate(&self) -> Option<f64> {
        (self.requested > 0).then(|| 1.0 - self.kept as f64 / self.requested as f64)
    }
}

impl AddAssign for StreamCounts {
    fn add_assign(&mut self, other: StreamCounts) {
        self.bytes += other.bytes;
        self.requested += other.requested;
        self.kept += other.kept;
        self.busy += other.busy;
        self.stall += other.stall;
    }
}

impl Phase {
    /// Returns tokens per second without the time of packing; 0 if packing took all of the time.
    pub fn rate_without_packing(&self) -> f64 {
        let seconds = self.seconds - self.packing;
        if seconds > 0.0 { self.tokens as f64 / seconds } else { 0.0 }
    }

    /// Returns the overlap of reading and computing with this many threads; `None` if nothing was
    /// read.
    pub fn overlap(&self, threads: usize) -> Option<Overlap> {
        let StreamCounts { busy, stall, .. } = self.streamed;
        (busy > 0.0 && self.seconds > 0.0).then(|| Overlap {
            reading: (busy / self.seconds).min(1.0),
            hidden: (1.0 - stall / threads.max(1) as f64 / busy).clamp(0.0, 1.0),
        })
    }
}

/// Overlap of reading and computing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// Share of the time with at least one outstanding read.
    pub reading: f64,
    /// Share of the time with outstanding reads in which threads did not wait for experts, averaged
    /// over the threads.
    pub hidden: f64,
}

/// Phase in progress.
#[derive(Debug)]
pub struct Meter {
    begin: Instant,
    packing: Duration,
    before: StreamCounts,
}

impl Meter {
    /// Starts to measure a phase now.
    pub fn new(engine: &Engine) -> Meter {
        let before = engine.stream().map(StreamCounts::from_cache).unwrap_or_default();
        Meter { begin: Instant::now(), packing: engine.packing_time(), before }
    }

    /// Returns the phase until now, with `tokens` computed tokens.
    pub fn phase(&self, tokens: usize, engine: &Engine) -> Phase {
        let seconds = self.begin.elapsed().as_secs_f64();
        let packing = engine.packing_time().saturating_sub(self.packing).as_secs_f64();
        let streamed =
            engine.stream().map(|store| StreamCounts::from_cache(store).since(self.before)).unwrap_or_default();
        Phase { tokens, seconds, packing, streamed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_covers_reading_time_of_all_threads() {
        let streamed = StreamCounts { busy: 3.0, stall: 1.5, ..StreamCounts::default() };
        let phase = Phase { tokens: 8, seconds: 4.0, packing: 0.0, streamed };
        assert_eq!(phase.overlap(2), Some(Overlap { reading: 0.75, hidden: 0.75 }));
        assert_eq!(phase.overlap(1), Some(Overlap { reading: 0.75, hidden: 0.5 }));
        // All threads waited during all reads, and a little longer: no read was hidden.
        let waited = Phase { streamed: StreamCounts { stall: 6.1, ..streamed }, ..phase };
        assert_eq!(waited.overlap(2).map(|overlap| overlap.hidden), Some(0.0));
        assert_eq!(Phase { streamed: StreamCounts::default(), ..phase }.overlap(2), None);
    }

    #[test]
    fn missed_share_counts_experts_not_in_cache() {
        let streamed = StreamCounts { requested: 40, kept: 30, ..StreamCounts::default() };
        assert_eq!(streamed.miss_rate(), Some(0.25));
        assert_eq!(StreamCounts::default().miss_rate(), None);
        let mut sum = streamed;
        sum += streamed;
        assert_eq!((sum.since(streamed), sum.requested), (streamed, 80));
    }
}
