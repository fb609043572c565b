//! Tests that compare each policy with a simple implementation, which searches a list from end to
//! end.

use proptest::prelude::*;

use super::*;

const CAPACITY: usize = 20;
const LAYERS: u32 = 4;

#[derive(Clone, Debug)]
enum Action {
    Step,
    /// Use of a block. If the block is not in the cache, it is inserted; if the cache is full,
    /// another block is evicted first.
    Use(u32),
    Remove(u32),
}

#[derive(Clone, Debug)]
struct Entry {
    block: u32,
    step: u64,
    /// Segment of the cache; 0 is the segment that is evicted first: probation, or the small queue.
    segment: u8,
    uses: u8,
}

/// All policies in their simplest form.
struct Naive {
    kind: Kind,
    step: u64,
    entries: Vec<Entry>,
    ghost: Vec<u32>,
}

impl Naive {
    fn find(&mut self, block: u32) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.block == block)
    }

    fn remove(&mut self, block: u32) {
        self.entries.retain(|entry| entry.block != block);
    }

    fn insert(&mut self, block: u32) {
        self.remove(block);
        let known = self.kind == Kind::S3Fifo && self.ghost.contains(&block);
        self.ghost.retain(|&other| other != block);
        self.entries.push(Entry { block, step: self.step, segment: u8::from(known), uses: 0 });
    }

    fn touch(&mut self, block: u32) {
        let (kind, step) = (self.kind, self.step);
        let Some(entry) = self.find(block) else { return };
        match kind {
            Kind::Lru => entry.step = step,
            Kind::Slru => (entry.step, entry.segment) = (step, 1),
            Kind::S3Fifo => entry.uses = (entry.uses + 1).min(3),
        }
        if kind == Kind::Slru && self.entries.iter().filter(|entry| entry.segment == 1).count() > CAPACITY * 4 / 5 {
            let oldest = self
                .entries
                .iter_mut()
                .filter(|entry| entry.segment == 1)
                .min_by_key(|entry| (entry.step, entry.block));
            let oldest = oldest.unwrap();
            (oldest.step, oldest.segment) = (step, 0);
        }
    }

    fn victim(&mut self, ahead: Ahead<'_>) -> Option<u32> {
        let small = self.entries.iter().filter(|entry| entry.segment == 0).count();
        let first = if self.kind == Kind::S3Fifo && small <= CAPACITY / 10 { 1 } else { 0 };
        let found = self.victim_of(first, ahead).or_else(|| self.victim_of(1 - first, ahead));
        found.inspect(|&block| self.remove(block))
    }

    fn victim_of(&mut self, segment: u8, ahead: Ahead<'_>) -> Option<u32> {
        let may = |entry: &&mut Entry| entry.segment == segment && ahead(entry.block).is_some();
        let step = self.entries.iter_mut().filter(may).map(|entry| entry.step).min()?;
        let now = self.step;
        let mut alike: Vec<_> = self.entries.iter_mut().filter(may).filter(|entry| entry.step == step).collect();
        alike.sort_by_key(|entry| (std::cmp::Reverse(ahead(entry.block)), entry.block));
        let unused = alike.iter().find(|entry| entry.uses == 0).map(|entry| entry.block);
        if self.kind != Kind::S3Fifo {
            return unused;
        }
        if segment == 0 || unused.is_none() {
            for entry in alike.iter_mut().filter(|entry| entry.uses > 0) {
                entry.step = now;
                entry.uses = if segment == 0 { 0 } else { entry.uses - 1 };
                entry.segment = 1;
            }
        }
        if unused.is_some() && segment == 0 {
            self.ghost.extend(unused);
            if self.ghost.len() > CAPACITY {
                self.ghost.remove(0);
            }
        }
        unused.or_else(|| self.victim_of(segment, ahead))
    }
}

fn actions() -> impl Strategy<Value = Vec<(Action, u32, u32)>> {
    let action = prop_oneof![
        1 => Just(Action::Step),
        8 => (0..32u32).prop_map(Action::Use),
        1 => (0..32u32).prop_map(Action::Remove),
    ];
    // Each action has a random mask of pinned blocks, and the number of the running layer.
    prop::collection::vec((action, any::<u32>(), 0..LAYERS), 1..300)
}

fn check(kind: Kind, actions: Vec<(Action, u32, u32)>) {
    let mut policy = kind.policy(CAPACITY);
    let mut naive = Naive { kind, step: 0, entries: Vec::new(), ghost: Vec::new() };
    for (action, mask, layer) in actions {
        // Combines three shifts of the mask, so that usually few blocks are pinned.
        let pinned = |block: u32| (mask & mask >> 7 & mask >> 13) >> block & 1 == 1;
        let ahead = |block: u32| (!pinned(block)).then(|| (block % LAYERS + LAYERS - layer - 1) % LAYERS);
        match action {
            Action::Step => {
                policy.begin_step();
                naive.step += 1;
            }
            Action::Remove(block) => {
                policy.remove(block);
                naive.remove(block);
            }
            Action::Use(block) if naive.find(block).is_some() => {
                policy.touch(block);
                naive.touch(block);
            }
            Action::Use(block) => {
                if naive.entries.len() == CAPACITY {
                    let may_go: Vec<u32> =
                        naive.entries.iter().map(|entry| entry.block).filter(|&block| !pinned(block)).collect();
                    let victim = policy.victim(&ahead);
                    assert_eq!(victim, naive.victim(&ahead), "{kind:?}");
                    assert_eq!(victim.is_none(), may_go.is_empty(), "{kind:?}: something goes whenever something may");
                    assert!(
                        victim.is_none_or(|victim| may_go.contains(&victim)),
                        "{kind:?}: {victim:?} is pinned or not there"
                    );
                }
                if naive.entries.len() < CAPACITY {
                    policy.insert(block);
                    naive.insert(block);
                }
            }
        }
    }
    // In the end, evicting all remaining blocks must also give the same order.
    let all = |block: u32| Some(block % LAYERS);
    loop {
        let victim = policy.victim(&all);
        assert_eq!(victim, naive.victim(&all), "{kind:?}");
        if victim.is_none() {
            break;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(5), ..ProptestConfig::default() })]

    #[test]
    fn cache_policies_match_their_model_and_respect_pins(actions in actions()) {
        for (_, kind) in Kind::ALL {
            check(kind, actions.clone());
        }
    }
}

#[test]
fn cache_evicts_block_of_the_layer_needed_latest() {
    // Blocks 0 to 3 belong to layers 0 to 3, and all were used in this step. Layer 2 ran last, so
    // layer 3 runs next and layer 2 last.
    for (_, kind) in Kind::ALL {
        let mut policy = kind.policy(CAPACITY);
        (0..4).for_each(|block| policy.insert(block));
        let ahead = |block: u32| Some((block + LAYERS - 2 - 1) % LAYERS);
        let order: Vec<u32> = std::iter::from_fn(|| policy.victim(&ahead)).collect();
        assert_eq!(order, [2, 1, 0, 3], "{kind:?}");
    }
}

#[test]
fn cache_evicts_blocks_of_older_steps_first() {
    for (_, kind) in Kind::ALL {
        let mut policy = kind.policy(CAPACITY);
        policy.insert(7);
        policy.begin_step();
        policy.insert(3);
        assert_eq!(policy.victim(&|block| Some(u32::from(block == 3))), Some(7), "{kind:?}");
    }
}

#[test]
fn reused_blocks_outlive_blocks_used_once() {
    for kind in [Kind::Slru, Kind::S3Fifo] {
        let mut policy = kind.policy(CAPACITY);
        policy.insert(1);
        policy.touch(1);
        for block in 2..8 {
            policy.begin_step();
            policy.insert(block);
        }
        assert_eq!(policy.victim(&|_| Some(0)), Some(2), "{kind:?}");
    }
}
