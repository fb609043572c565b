//! Tests of kept blocks, and of eviction at the caller's request.

use super::super::super::store::{EvictionResult, KeptBlocks};
use super::*;

/// Makes a configuration with room for `more` blocks beyond the minimum. The given blocks are kept
/// in up to half of all slots.
fn keeping(model: &Model, top_k: u32, more: u64, blocks: &[BlockId]) -> Config {
    let bytes = model.blocks[0].slot_bytes();
    let keep = KeptBlocks { blocks: blocks.to_vec(), percent: 50 };
    Config { keep, policy: Kind::Lru, ..config(model.minimum(top_k) + more * bytes, top_k) }
}

/// Reads the kept blocks, as a load does.
fn read_kept(model: &Model, store: &ExpertCache) -> Vec<BlockId> {
    let kept = store.read_kept();
    std::thread::scope(|scope| {
        for &block in &kept {
            scope.spawn(move || assert!(holds(store.wait(block).unwrap(), model.block(block))));
        }
    });
    (0..3).for_each(|group| store.release(group));
    kept
}

#[test]
fn kept_blocks_are_read_once_and_never_evicted() {
    for raw in [false, true] {
        let model = model(3, 8, raw, |_| 3 * PAGE);
        // Duplicates and unknown blocks are ignored.
        let wanted = [id(1, 7), id(0, 3), id(1, 7), id(9, 9), id(2, 2), id(0, 0)];
        let store = model.store(&keeping(&model, 2, 4, &wanted));
        let slots: u32 = store.stats().classes.iter().map(|class| class.count).sum();
        let kept = read_kept(&model, &store);
        let mut expected = vec![id(1, 7), id(0, 3), id(2, 2), id(0, 0)];
        expected.truncate(slots as usize / 2);
        expected.sort_by_key(|block| (block.group, block.expert));
        assert_eq!(kept, expected, "{slots} slots");
        let bytes =
            |stats: &super::super::super::store::stats::Stats| stats.groups.iter().map(|g| g.bytes).sum::<u64>();
        let before = store.stats();
        assert_eq!(bytes(&before), kept.iter().map(|block| model.block(*block).span()).sum::<u64>());
        // Reads of kept blocks count neither as hits nor as misses.
        assert!(before.groups.iter().all(|group| (group.misses, group.hits, group.on_the_way) == (0, 0, 0)));
        for round in 0..40u32 {
            let group = round % 3;
            let others: Vec<u32> = (0..8).filter(|&expert| !kept.contains(&id(group, expert))).collect();
            let pair = [others[(round / 3) as usize % others.len()], others[(round / 3 + 1) as usize % others.len()]];
            store.predict((group + 1) % 3, &(0..8).collect::<Vec<_>>());
            model.use_all(&store, group, &pair);
            store.release(group);
            for &block in &kept {
                assert!(store.ready(block).is_some(), "{block} after round {round}");
            }
        }
        let hits = store.stats().groups[1].hits;
        let stays = kept.iter().find(|block| block.group == 1).unwrap().expert;
        model.use_all(&store, 1, &[stays]);
        store.release(1);
        assert_eq!(store.stats().groups[1].hits, hits + 1);
        let held = store.blocks_by_group();
        assert_eq!(held.iter().map(|held| held.kept as usize).sum::<usize>(), kept.len());
        assert!(held.iter().map(|held| held.in_memory).sum::<u32>() <= slots);
        assert!(store.bytes() <= keeping(&model, 2, 4, &wanted).budget);
    }
}

/// Tests that kept blocks leave enough slots for any two layers. A prompt that uses all experts
/// then runs in smaller windows.
#[test]
fn kept_blocks_shrink_the_windows_of_large_layers() {
    let model = model(2, 16, false, |_| PAGE);
    let wanted: Vec<BlockId> = (0..16).map(|expert| id(0, expert)).collect();
    let mut config = keeping(&model, 2, 4, &wanted);
    config.keep.percent = 100;
    let store = model.store(&config);
    // Four of the eight slots remain, which is the minimum.
    let kept = read_kept(&model, &store);
    assert_eq!(kept.len(), 4);
    let all: Vec<u32> = (0..16).collect();
    assert_eq!((store.window(1, &all), store.window(0, &all)), (4, 8), "what is kept needs no room of its own");
    let refused = store.request(1, &all[..5]).map(|_| ());
    assert_eq!(refused, Err(StreamError::TooMany { group: 1, wanted: 5, possible: 4 }));
    for group in [0, 1, 0] {
        let mut rest = &all[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(store.window(group, rest));
            model.use_all(&store, group, now);
            store.release(group);
            rest = later;
        }
    }
    assert!(kept.iter().all(|&block| store.ready(block).is_some()));
    // With the minimum budget, no block can be kept.
    let min = Config { budget: model.minimum(2), ..config };
    assert!(read_kept(&model, &model.store(&min)).is_empty());
}

#[test]
fn evicted_blocks_are_reread_on_request() {
    let model = model(2, 8, false, |_| PAGE);
    let store = model.store(&keeping(&model, 2, 8, &[id(0, 5), id(1, 6)]));
    read_kept(&model, &store);
    model.use_all(&store, 0, &[1, 2]);
    model.use_all(&store, 1, &[3]);
    // Pinned blocks are not evicted.
    assert_eq!(store.evict(1, true), EvictionResult { blocks: 1, bytes: PAGE });
    assert!(store.ready(id(1, 6)).is_none() && store.ready(id(1, 3)).is_some());
    store.release(0);
    store.release(1);
    assert_eq!(store.evict(0, false), EvictionResult { blocks: 2, bytes: 2 * PAGE });
    assert!(store.ready(id(0, 1)).is_none() && store.ready(id(0, 5)).is_some() && store.ready(id(1, 3)).is_some());
    assert_eq!(store.evict(0, false), EvictionResult::default());
    let held = |group: usize| (store.blocks_by_group()[group].in_memory, store.blocks_by_group()[group].kept);
    assert_eq!((held(0), held(1)), ((1, 1), (1, 0)));
    assert_eq!(store.evict(0, true), EvictionResult { blocks: 1, bytes: PAGE });
    assert_eq!((held(0), store.evict(7, true)), ((0, 0), EvictionResult::default()));
    let misses = store.stats().groups[0].misses;
    model.use_all(&store, 0, &[5, 1]);
    store.release(0);
    assert_eq!(store.stats().groups[0].misses, misses + 2);
    // Requests can use all slots again.
    let all: Vec<u32> = (0..8).collect();
    assert_eq!(store.window(0, &all), 8);
    // Eviction also ends predictions.
    store.evict(1, false);
    assert!(store.predict(1, &[0, 1]) > 0);
    while store.blocks_by_group()[1].in_memory < 2 {
        std::thread::yield_now();
    }
    assert_eq!(store.evict(1, false), EvictionResult { blocks: 2, bytes: 2 * PAGE });
}

/// Tests that a kept block whose read failed is read again when it is requested, and is kept from
/// then on.
#[test]
fn kept_block_with_failed_read_is_retried_on_request() {
    let model = model(1, 8, false, |_| PAGE);
    let broken = Arc::new(AtomicBool::new(true));
    let faulty = Arc::clone(&broken);
    let store = model.planted(&keeping(&model, 2, 4, &[id(0, 1), id(0, 2)]), &Arc::default(), move |_| {
        if faulty.load(Ordering::Relaxed) { Fate::Errno(EIO) } else { Fate::Good }
    });
    for block in store.read_kept() {
        assert!(matches!(store.wait(block), Err(StreamError::Read { errno: EIO, .. })));
    }
    store.release(0);
    broken.store(false, Ordering::Relaxed);
    model.use_all(&store, 0, &[1, 7]);
    store.release(0);
    for expert in [3, 4, 5, 6, 0] {
        model.use_all(&store, 0, &[expert]);
        store.release(0);
        assert!(store.ready(id(0, 1)).is_some(), "it stays from now on");
    }
}

/// Tests that no wait is endless and that kept blocks stay in memory, for any order of calls and
/// any policy.
#[test]
fn kept_blocks_never_cause_endless_waits() {
    for (name, policy) in Kind::ALL {
        for raw in [false, true] {
            let model = model(3, 9, raw, |group| 1000 + 2000 * u64::from(group));
            let wanted: Vec<BlockId> = (0..27).map(|i| id(i % 3, (5 * i) % 9)).collect();
            let mut config = keeping(&model, 3, 9, &wanted);
            (config.policy, config.keep.percent) = (policy, 80);
            let store = model.store(&config);
            let kept = read_kept(&model, &store);
            assert!(kept.len() > 1, "{name} {kept:?}");
            let mut random = Random::new(5);
            for _ in 0..200 {
                let group = random.below(3) as u32;
                let first = random.below(9) as u32;
                store.predict((group + 1) % 3, &[random.below(9) as u32, random.below(9) as u32]);
                model.use_all(&store, group, &[first, (first + 1) % 9, (first + 5) % 9]);
                if random.below(16) == 0 {
                    store.evict(random.below(3) as u32, false);
                }
                store.release(group);
            }
            assert!(kept.iter().all(|&block| store.ready(block).is_some()), "{name}");
        }
    }
}
