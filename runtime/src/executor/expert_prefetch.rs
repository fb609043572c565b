//! Predictions of experts in the executor: when they are made, compared with the routers' choices,
//! and used to read experts.
//!
//! In decode, tokens are computed one by one. When a layer's router has chosen experts, these are
//! requested, and the choice is compared with the predictions of all strategies. Then the next
//! layer's experts are predicted, so that they are read while this layer computes. After the last
//! layer follows the first layer of the next token. If the plan has an early router for a layer,
//! its ids are known before the prediction, at the same barrier.
//!
//! ```text
//! barrier   on_routed(group 3, [5, 9])         scores the guesses for group 3, made at group 2
//!           on_early_router(group 4, [1, 7])   without early routers, `on_routed` predicts at once
//!           ExpertCache::predict(group 4, ...) reads the guesses after all requests
//! ```
//!
//! In prefill, no predictions are needed: the tokens of a prompt need most experts of each layer,
//! and these are read ahead anyway. Only the plan's early routers predict there, if the settings
//! enable them.
//!
//! Invariant: this module changes when blocks are read, but never the results.

use std::time::{Duration, Instant};

use crate::program::{BarrierAction, Program};
use crate::streaming::counters::Counters;
use crate::streaming::drive::PREDICTED_DEPTH;
use crate::streaming::predict::{PredictionSettings, Predictions, Report, RouterChoice, TokenTiming};
use crate::streaming::store::{CHUNK, ExpertCache};
use crate::streaming::{Block, BlockId};

/// Number of tokens over which statistics of reads are averaged.
const AVERAGED_TOKENS: f64 = 16.0;

/// The properties of a group of experts.
#[derive(Clone, Copy, Debug, Default)]
struct GroupProperties {
    experts: u32,
    /// Number of experts that one token needs.
    top_k: u32,
    /// Number of bytes that are read for one expert.
    block_bytes: u64,
    /// Whether the plan has an early router for the group.
    early_router: bool,
    /// Number of windows (from a request of experts to their release) in which the group's routing
    /// is computed.
    windows: usize,
}

/// Experts that a group's router chose for the current token, in the windows that are already
/// known.
#[derive(Clone, Debug, Default)]
struct RoutedExperts {
    /// Numbers of the windows whose experts are known.
    windows: Vec<u32>,
    experts: Vec<u32>,
}

/// Returns the distinct experts in `ids`: first those that are likeliest for any token, then the
/// second likeliest, and so on. `ids` has `count` ids for each token, likeliest first.
pub(crate) fn by_rank(ids: &[u32], count: u32, experts: u32) -> Vec<u32> {
    let (mut seen, mut likely) = (vec![false; experts as usize], Vec::new());
    for rank in 0..count as usize {
        for &id in ids.iter().skip(rank).step_by(count.max(1) as usize) {
            if let Some(seen) = seen.get_mut(id as usize).filter(|seen| !**seen) {
                *seen = true;
                likely.push(id);
            }
        }
    }
    likely
}

/// The predictions for all expert groups of a plan.
pub(crate) struct Prefetcher {
    predictions: Predictions,
    settings: PredictionSettings,
    groups: Vec<GroupProperties>,
    routed: Vec<RoutedExperts>,
    threads: u32,
    /// Sums over the last tokens, whose weight decays. They are: bytes read, seconds with a running
    /// read, seconds without a running read of requested experts, and layers.
    pace: [f64; 4],
    /// Start time of the current token, and the drive's counters at that time; `None` in prefill.
    begun: Option<(Instant, Counters)>,
}

impl Prefetcher {
    /// Creates a prefetcher for the expert groups of a checked plan. `blocks` are the blocks of all
    /// experts.
    pub(crate) fn new(program: &Program, blocks: &[Block], settings: PredictionSettings, threads: usize) -> Prefetcher {
        let facts = |(number, group): (u32, &crate::program::Group)| GroupProperties {
            experts: group.experts,
            top_k: program.experts_of_token(number),
            windows: program.windows_of(number).count(),
            ..GroupProperties::default()
        };
        let mut groups: Vec<GroupProperties> = (0u32..).zip(&program.groups).map(facts).collect();
        for block in blocks {
            if let Some(facts) = groups.get_mut(block.id.group as usize) {
                facts.block_bytes = facts.block_bytes.max(block.span());
            }
        }
        for then in program.stages.iter().flat_map(|stage| &stage.then) {
            if let BarrierAction::Predict { group, .. } = then
                && let Some(facts) = groups.get_mut(*group as usize)
            {
                facts.early_router = true;
            }
        }
        let mut predictions = Predictions::new(settings.choice, groups.len() as u32);
        if !groups.iter().any(|group| group.early_router) {
            predictions = predictions.without_early_routers();
        }
        Prefetcher {
            predictions,
            settings,
            routed: vec![RoutedExperts::default(); groups.len()],
            groups,
            threads: u32::try_from(threads.max(1)).unwrap_or(u32::MAX),
            pace: [0.0; 4],
            begun: None,
        }
    }

    /// Begins a step of `tokens` tokens.
    pub(crate) fn begin_step(&mut self, store: &ExpertCache, tokens: u32) {
        self.routed.fill_with(RoutedExperts::default);
        self.begun = (tokens == 1).then(|| (Instant::now(), store.drive()));
        if self.begun.is_none() {
            self.predictions.forget();
        }
    }

    /// Returns whether the step has a single token.
    pub(crate) fn is_token(&self) -> bool {
        self.begun.is_some()
    }

    /// Ends a successful step, and updates the time measurements of predictions.
    pub(crate) fn end_step(&mut self, store: &ExpertCache) {
        let Some((begun, before)) = self.begun.take() else { return };
        let (took, drive) = (begun.elapsed(), store.drive().since(&before));
        let idle = took.saturating_sub(drive.busy_routed);
        let now = [drive.bytes() as f64, drive.busy.as_secs_f64(), idle.as_secs_f64(), self.groups.len() as f64];
        self.pace.iter_mut().zip(now).for_each(|(lately, now)| *lately += now - *lately / AVERAGED_TOKENS);
        let [read, busy, idle, layers] = self.pace;
        if read > 0.0 {
            let block = self.groups.iter().map(|facts| facts.block_bytes).max().unwrap_or(0);
            let reading = |bytes: u64| bytes as f64 * busy / read;
            self.predictions.pace(TokenTiming {
                idle: idle / layers,
                right: reading(block),
                // A wrong prediction costs the read requests that were already submitted, because
                // these are completed.
                wrong: reading(block.min(PREDICTED_DEPTH as u64 * CHUNK)),
            });
        }
        self.predictions.end_token(took);
    }

    /// Ends a failed step, and forgets its predictions.
    pub(crate) fn forget(&mut self) {
        self.begun = None;
        self.predictions.forget();
    }

    /// Records the experts that the router chose in one window of a group. When all windows of the
    /// group are known, in any order, the choice is complete.
    pub(crate) fn on_window(&mut self, store: &ExpertCache, group: u32, window: u32, experts: &[u32]) {
        let (Some(routed), Some(facts)) = (self.routed.get_mut(group as usize), self.groups.get(group as usize)) else {
            return;
        };
        if routed.windows.contains(&window) {
            return;
        }
        routed.windows.push(window);
        routed.experts.extend_from_slice(experts);
        if routed.windows.len() == facts.windows {
            let experts = std::mem::take(&mut routed.experts);
            self.on_routed(store, group, &experts);
        }
    }

    /// Compares predictions with the choice of a group's router. Then predicts the next group's
    /// experts, unless an early router predicts them. Called after the chosen experts were
    /// requested.
    fn on_routed(&mut self, store: &ExpertCache, group: u32, experts: &[u32]) {
        let (Some(facts), true) = (self.groups.get(group as usize), self.begun.is_some()) else { return };
        let read_time: Duration = store.miss_time(group) / self.threads;
        let waits = experts.iter().any(|&expert| store.ready(BlockId { group, expert }).is_none());
        self.predictions.observe(group, &RouterChoice { experts, waits, block_bytes: facts.block_bytes, read_time });
        let next = (group + 1) % self.groups.len().max(1) as u32;
        if self.groups.get(next as usize).is_some_and(|next| !next.early_router) {
            self.prefetch(store, next);
        }
    }

    /// Handles the result of the plan's early router for a group: `ids` has `count` ids for each
    /// token, likeliest first.
    pub(crate) fn on_early_router(&mut self, store: &ExpertCache, group: u32, count: u32, ids: &[u32]) {
        let Some(facts) = self.groups.get(group as usize) else { return };
        let likely = by_rank(ids, count, facts.experts);
        if self.begun.is_some() {
            self.predictions.take_early_prediction(group, &likely);
            self.prefetch(store, group);
        } else if self.settings.early_routers().is_some() {
            store.predict(group, &likely);
        }
    }

    /// Requests, ahead of their use, the experts that the current strategy predicts for a group.
    fn prefetch(&mut self, store: &ExpertCache, group: u32) {
        let Some(facts) = self.groups.get(group as usize) else { return };
        let width = facts.top_k.saturating_add(self.settings.extra).min(facts.experts);
        let resident = |expert| store.ready(BlockId { group, expert }).is_some();
        let experts = self.predictions.predict(group, width as usize, resident);
        if !experts.is_empty() {
            store.predict(group, &experts);
        }
    }

    /// Returns the scores of all strategies.
    pub(crate) fn report(&self) -> Report {
        self.predictions.report()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streaming::predict::{Strategy, StrategyChoice, Tally};
    use crate::streaming::store::{Config, State};
    use crate::streaming::{BlockEncoding, Extent};

    const PAGE: u64 = 4096;

    /// A test model with two layers of four experts, each of one page. The cache has room for six
    /// experts, and each token needs two experts of a layer.
    struct Rig {
        store: ExpertCache,
        prefetcher: Prefetcher,
        path: std::path::PathBuf,
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    impl Rig {
        fn new(name: &str, choice: StrategyChoice, early_router: bool) -> Rig {
            let path = std::env::temp_dir().join(format!("ixc-prefetcher-{}-{name}", std::process::id()));
            std::fs::write(&path, vec![7; 8 * PAGE as usize]).unwrap();
            let block = |i: u32| Block {
                id: BlockId { group: i / 4, expert: i % 4 },
                extents: vec![Extent { file: 0, offset: u64::from(i) * PAGE, bytes: PAGE, at: 0 }],
                form: BlockEncoding::Packed,
            };
            let config = Config { budget: 6 * PAGE, top_k: 2, ..Config::default() };
            let store =
                ExpertCache::new(&config, std::slice::from_ref(&path), (0..8).map(block).collect(), None).unwrap();
            let facts =
                |early_router| GroupProperties { experts: 4, top_k: 2, block_bytes: PAGE, early_router, windows: 1 };
            let prefetcher = Prefetcher {
                predictions: Predictions::new(choice, 2),
                settings: PredictionSettings { choice, extra: 0 },
                groups: vec![facts(false), facts(early_router)],
                routed: vec![RoutedExperts::default(); 2],
                threads: 1,
                pace: [0.0; 4],
                begun: None,
            };
            Rig { store, prefetcher, path }
        }

        /// Does the work of a barrier after the router of `group`. `early` are the early router's
        /// ids for the next group. Waits until all experts have arrived.
        fn group(&mut self, group: u32, experts: &[u32], early: Option<&[u32]>) {
            let request = self.store.request(group, experts).unwrap();
            self.prefetcher.on_routed(&self.store, group, experts);
            if let Some(ids) = early {
                self.prefetcher.on_early_router(&self.store, group + 1, ids.len() as u32, ids);
            }
            for (&expert, state) in experts.iter().zip(request.states) {
                if matches!(state, State::Coming) {
                    self.store.wait(BlockId { group, expert }).unwrap();
                }
            }
            self.store.release(group);
        }

        fn tally(&self, strategy: Strategy, group: usize) -> Tally {
            let tally = self.prefetcher.predictions.tally(strategy, group as u32);
            // The time of reads varies, so it is not compared.
            Tally { saved: Duration::ZERO, ..tally }
        }
    }

    fn tally(chosen: u64, predicted: u64, right: u64, useful: u64, useless: u64) -> Tally {
        let wasted_bytes = useless * PAGE;
        Tally { chosen, predicted, right, useful, useless, wasted_bytes, saved: Duration::ZERO }
    }

    #[test]
    fn known_routing_is_scored_by_layer_and_token() {
        let mut rig = Rig::new("counted", StrategyChoice::Off, true);
        for (first, second, early) in [([0, 1], [2, 3], [0, 1]), ([0, 2], [2, 3], [3, 9]), ([2, 0], [1, 3], [1, 0])] {
            rig.prefetcher.begin_step(&rig.store, 1);
            rig.group(0, &first, Some(&early));
            rig.group(1, &second, None);
            rig.prefetcher.end_step(&rig.store);
        }
        // In layer 0, the previous token's experts predict [0, 1] for the choice [0, 2], and [0, 2]
        // for [2, 0]. All predicted experts are in memory.
        assert_eq!(rig.tally(Strategy::Previous, 0), tally(4, 4, 3, 0, 0));
        assert_eq!(rig.tally(Strategy::EarlyRouter, 0), Tally::default(), "no early router");
        // In layer 1, they predict [2, 3] for [2, 3], and [2, 3] for [1, 3].
        assert_eq!(rig.tally(Strategy::Previous, 1), tally(4, 4, 3, 0, 0));
        // The early router predicts [0, 1] for [2, 3]; [3] for [2, 3], because expert 9 does not
        // exist; and [1, 0] for [1, 3]. The other fields depend on the speed of the drive.
        let tally = rig.tally(Strategy::EarlyRouter, 1);
        assert_eq!((tally.chosen, tally.predicted, tally.right), (6, 5, 2));
        let stats = rig.store.stats();
        assert!(stats.groups.iter().all(|group| group.predicted_bytes == 0), "off reads nothing: {stats:?}");
        assert_eq!(rig.prefetcher.report().tallies.len(), Strategy::ALL.len());
    }

    #[test]
    fn predicted_experts_are_read_and_cancelled_when_wrong() {
        let mut rig = Rig::new("wrong", StrategyChoice::Always(Strategy::EarlyRouter), true);
        rig.prefetcher.begin_step(&rig.store, 1);
        rig.store.request(0, &[0, 1]).unwrap();
        rig.prefetcher.on_routed(&rig.store, 0, &[0, 1]);
        rig.prefetcher.on_early_router(&rig.store, 1, 2, &[2, 3]);
        let group = rig.store.stats().groups[1];
        assert_eq!(group.predicted_bytes, 2 * PAGE, "{group:?}");
        // The predicted experts 2 and 3 are not needed. They must make room for the experts that
        // the next layers request.
        rig.store.release(0);
        rig.group(1, &[0, 1], None);
        rig.group(0, &[2, 3], None);
        assert_eq!(rig.tally(Strategy::EarlyRouter, 1), tally(2, 2, 0, 0, 2));
        let group = rig.store.stats().groups[1];
        assert_eq!((group.right_bytes, group.misses, group.failures), (0, 2, 0), "{group:?}");
        // Each predicted expert was either cancelled before it was read, or read without use. If
        // its read was still running, another block may have been evicted instead.
        assert_eq!(group.cancelled * PAGE + group.predicted_bytes, 2 * PAGE, "{group:?}");
        assert!(group.wasted_bytes <= group.predicted_bytes, "{group:?}");
    }

    #[test]
    fn prompts_use_only_early_router_predictions() {
        for (choice, bytes) in [
            (StrategyChoice::Always(Strategy::EarlyRouter), 2 * PAGE),
            (StrategyChoice::Auto, 2 * PAGE),
            (StrategyChoice::Always(Strategy::Previous), 0),
            (StrategyChoice::Off, 0),
        ] {
            let mut rig = Rig::new(&format!("prompt-{choice}"), choice, true);
            // The experts of the last decoded token are not compared with those of a prompt.
            rig.prefetcher.begin_step(&rig.store, 1);
            rig.group(0, &[0, 1], None);
            rig.prefetcher.begin_step(&rig.store, 5);
            rig.group(0, &[0, 1], Some(&[2, 3]));
            rig.prefetcher.end_step(&rig.store);
            assert_eq!(rig.store.stats().groups[1].predicted_bytes, bytes, "{choice}");
            assert!(Strategy::ALL.iter().all(|(_, strategy)| rig.tally(*strategy, 0) == Tally::default()), "{choice}");
        }
    }
}
