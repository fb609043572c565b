//! Tests that the expert cache returns the correct bytes, reads each block once and stays within
//! its budget, for any order of calls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::pool::Pool;
use crate::storage::memory::Region;

use super::super::backend::Read;
use super::super::cache::Kind;
use super::super::files::PAGE;
use super::super::store::{Config, ExpertCache, Pack, State};
use super::super::{Block, BlockEncoding, BlockId, Extent, StreamError};
use super::planted::{Fate, Gate, Planted};
use super::*;

mod foreseen;
mod kept;

const EIO: i32 = 5;

/// Returns the byte at this offset of a block's extent.
fn byte_of(id: BlockId, extent: usize, at: u64) -> u8 {
    byte_at(at + (u64::from(id.group) << 40 | u64::from(id.expert) << 32 | (extent as u64) << 28))
}

fn id(group: u32, expert: u32) -> BlockId {
    BlockId { group, expert }
}

/// A file of blocks with their descriptions.
struct Model {
    file: Temporary,
    blocks: Vec<Block>,
}

/// Makes blocks for `groups` groups of `experts` experts each. Packed blocks begin at page
/// boundaries. Raw blocks have three parts at unaligned offsets, like those in a model file.
fn model(groups: u32, experts: u32, raw: bool, bytes: impl Fn(u32) -> u64) -> Model {
    let mut content = Vec::new();
    let mut blocks = Vec::new();
    let parts = if raw { 3 } else { 1 };
    for part in 0..parts {
        for group in 0..groups {
            if raw {
                content.resize(content.len().next_multiple_of(32) + 32, 0xee);
            }
            for expert in 0..experts {
                if !raw {
                    content.resize(content.len().next_multiple_of(PAGE as usize), 0xee);
                }
                let extent = Extent { file: 0, offset: content.len() as u64, bytes: bytes(group), at: 0 };
                let id = id(group, expert);
                content.extend((0..extent.bytes).map(|at| byte_of(id, part, at)));
                if part == 0 {
                    let form = if raw { BlockEncoding::Raw { bytes: 3 * bytes(group) } } else { BlockEncoding::Packed };
                    blocks.push(Block { id, extents: Vec::new(), form });
                }
                blocks.iter_mut().find(|block| block.id == id).unwrap().extents.push(extent);
            }
        }
    }
    Model { file: Temporary::new(&content), blocks }
}

fn bytes_of(region: Region) -> &'static [u8] {
    // SAFETY: tests read a region only while they have a pin on a ready block or a claim. So no
    // thread writes to it.
    unsafe { std::slice::from_raw_parts(region.base(), region.bytes() as usize) }
}

/// A packer that inverts all bits of all parts and stores the parts one after another.
struct Inverting;

impl Pack for Inverting {
    unsafe fn pack(&self, block: BlockId, raw: &[Region], slot: Region) -> Result<(), String> {
        let mut at = 0;
        for region in raw {
            let part = slot.part(at, region.bytes()).ok_or(format!("{block} does not fit"))?;
            for (i, byte) in bytes_of(*region).iter().enumerate() {
                // SAFETY: the byte is inside the part, which only this call accesses.
                unsafe { part.base().add(i).write(!byte) };
            }
            at += region.bytes();
        }
        Ok(())
    }
}

/// Returns whether a region contains the block.
fn holds(region: Region, block: &Block) -> bool {
    let invert = matches!(block.form, BlockEncoding::Raw { .. });
    let mut at = 0;
    block.extents.iter().enumerate().all(|(i, extent)| {
        let part = &bytes_of(region)[at..][..extent.bytes as usize];
        at += part.len();
        (0..)
            .zip(part)
            .all(|(at, byte)| *byte == if invert { !byte_of(block.id, i, at) } else { byte_of(block.id, i, at) })
    })
}

impl Model {
    fn block(&self, id: BlockId) -> &Block {
        self.blocks.iter().find(|block| block.id == id).unwrap()
    }

    fn packer(&self) -> Option<Box<dyn Pack>> {
        matches!(self.blocks[0].form, BlockEncoding::Raw { .. }).then(|| Box::new(Inverting) as Box<dyn Pack>)
    }

    fn minimum(&self, top_k: u32) -> u64 {
        ExpertCache::minimum_bytes(&self.blocks, top_k)
    }

    fn store(&self, config: &Config) -> ExpertCache {
        ExpertCache::new(config, std::slice::from_ref(&self.file.0), self.blocks.clone(), self.packer()).unwrap()
    }

    /// Makes a cache whose backend injects faults.
    fn planted(
        &self,
        config: &Config,
        gate: &Arc<Gate>,
        fate: impl FnMut(&Read) -> Fate + Send + 'static,
    ) -> ExpertCache {
        let (gate, files) = (Arc::clone(gate), std::slice::from_ref(&self.file.0));
        ExpertCache::with_backend(config, files, self.blocks.clone(), self.packer(), move |queue| {
            Box::new(Planted::new(queue.files(), &gate, fate))
        })
        .unwrap()
    }

    /// Requests experts, waits for them and checks their bytes.
    fn use_all(&self, store: &ExpertCache, group: u32, experts: &[u32]) {
        store.request(group, experts).unwrap();
        for &expert in experts {
            let region = store.wait(id(group, expert)).unwrap();
            assert!(holds(region, self.block(id(group, expert))), "{}", id(group, expert));
            assert_eq!(store.ready(id(group, expert)).map(Region::base), Some(region.base()));
        }
    }
}

fn config(budget: u64, top_k: u32) -> Config {
    let mut config = Config { budget, top_k, chunk: 2 * PAGE, ..Config::default() };
    (config.drive.depth, config.drive.predicted_depth) = (4, 2);
    config
}

#[test]
fn block_stays_cached_until_its_slot_is_needed() {
    let model = model(2, 6, false, |_| 3 * PAGE + 5);
    let store = model.store(&Config { policy: Kind::Lru, ..config(model.minimum(2), 2) });
    println!("{:?}", store.report());
    assert_eq!(store.bytes(), 4 * 4 * PAGE);
    for _ in 0..3 {
        model.use_all(&store, 0, &[1, 4]);
        store.release(0);
        model.use_all(&store, 1, &[0, 5]);
        store.release(1);
    }
    let stats = store.stats();
    for group in &stats.groups {
        assert_eq!((group.misses, group.hits, group.on_the_way, group.bytes), (2, 4, 0, 2 * 4 * PAGE));
    }
    // The file ends inside the last page of the last block.
    let bytes: u64 = stats.groups.iter().map(|group| group.bytes).sum();
    assert!((bytes - PAGE..=bytes).contains(&stats.drive.routed.bytes), "{bytes} {:?}", stats.drive);
    // The two new blocks replace two blocks of group 1. That group ran last, so it runs again later
    // than group 0. Group 0 keeps its blocks.
    model.use_all(&store, 1, &[1, 2]);
    store.release(1);
    let there = |group| (0..6).filter(|&expert| store.ready(id(group, expert)).is_some()).collect::<Vec<_>>();
    assert_eq!((there(0), there(1)), (vec![1, 4], vec![1, 2]));
}

#[test]
fn raw_blocks_are_packed_by_waiting_threads() {
    let model = model(3, 5, true, |group| 5000 + 100 * u64::from(group));
    for choice in [BackendChoice::Auto, BackendChoice::ThreadedReader] {
        let mut config = config(model.minimum(2), 2);
        config.drive.backend = choice;
        let store = model.store(&config);
        println!("{:?}", store.report());
        assert!(store.bytes() <= config.budget);
        let mut random = Random::new(11);
        for _ in 0..40 {
            let group = random.below(3) as u32;
            let first = random.below(5) as u32;
            store.predict(group, &[random.below(5) as u32, first]);
            model.use_all(&store, group, &[first, (first + 1) % 5]);
            store.release(group);
        }
    }
}

#[test]
fn a_layer_larger_than_the_store_is_used_in_windows() {
    let model = model(1, 32, false, |_| PAGE);
    let store = model.store(&config(model.minimum(3), 3));
    let all: Vec<u32> = (0..32).collect();
    assert_eq!(store.window(0, &all), 6);
    let refused = store.request(0, &all);
    assert_eq!(refused.map(|_| ()), Err(StreamError::TooMany { group: 0, wanted: 32, possible: 6 }));
    // Six blocks are pinned. Each release frees a slot for the next block.
    store.request(0, &all[..6]).unwrap();
    assert_eq!(store.window(0, &all), 6, "those that are pinned already need no room");
    assert_eq!(store.window(0, &all[6..]), 0);
    for expert in 0..32 {
        let region = store.wait(id(0, expert)).unwrap();
        assert!(holds(region, model.block(id(0, expert))));
        store.release_block(id(0, expert));
        if expert + 6 < 32 {
            store.request(0, &[expert + 6]).unwrap();
        }
    }
    assert_eq!(store.stats().drive.bytes(), 32 * PAGE);
    assert_eq!(store.window(0, &all), 6);
    // Pins are counted, so two requests need two releases.
    store.request(0, &[31]).unwrap();
    store.request(0, &[31]).unwrap();
    store.release_block(id(0, 31));
    assert_eq!(store.window(0, &all), 5);
    store.release_block(id(0, 31));
    store.release_block(id(0, 31));
    assert_eq!(store.window(0, &all), 6);
}

#[test]
fn failed_read_reaches_all_waiters_and_is_retried() {
    for raw in [false, true] {
        let model = model(2, 4, raw, |_| 3 * PAGE);
        let broken = Arc::new(AtomicBool::new(true));
        let faulty = Arc::clone(&broken);
        let bad = model.block(id(0, 2)).extents[0];
        let store = model.planted(&config(model.minimum(4), 4), &Arc::default(), move |read| {
            let inside = (bad.offset..bad.offset + bad.bytes).contains(&(read.offset + PAGE));
            if inside && faulty.load(Ordering::Relaxed) { Fate::Errno(EIO) } else { Fate::Good }
        });
        store.request(0, &[0, 2]).unwrap();
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..4).map(|_| scope.spawn(|| store.wait(id(0, 2)).map(|_| ()))).collect();
            for waiter in waiters {
                let error = waiter.join().unwrap().unwrap_err();
                assert!(matches!(error, StreamError::Read { errno: EIO, file: 0, .. }), "{error}");
            }
        });
        assert!(holds(store.wait(id(0, 0)).unwrap(), model.block(id(0, 0))), "what arrived is kept");
        broken.store(false, Ordering::Relaxed);
        model.use_all(&store, 0, &[2, 0]);
        assert_eq!(store.stats().groups[0].failures, 1);
        // A failed prediction is not an error.
        store.release(0);
        broken.store(true, Ordering::Relaxed);
        model.use_all(&store, 1, &[0, 1, 2, 3]);
        store.release(1);
        assert_eq!(store.wait(id(1, 9)).map(|_| ()), Err(StreamError::UnknownBlock { block: id(1, 9) }));
    }
}

#[test]
fn a_file_cut_short_while_running_is_an_error() {
    let model = model(1, 8, false, |_| 2 * PAGE);
    let store = model.store(&config(model.minimum(2), 2));
    println!("{:?}", store.report());
    model.use_all(&store, 0, &[7]);
    assert_eq!(store.check_unchanged(), Ok(()));
    let file = std::fs::File::options().write(true).open(&model.file.0).unwrap();
    file.set_len(9 * PAGE).unwrap();
    model.use_all(&store, 0, &[7, 3]);
    store.request(0, &[4]).unwrap();
    let error = store.wait(id(0, 4)).unwrap_err();
    assert!(
        matches!(error, StreamError::Truncated { found, expected, .. } if found == 9 * PAGE && expected == 10 * PAGE),
        "{error}"
    );
    assert!(matches!(store.check_unchanged(), Err(StreamError::Changed { .. })));
}

#[test]
fn failed_packing_is_an_error_and_frees_its_slots() {
    struct Moody(AtomicU64);
    impl Pack for Moody {
        unsafe fn pack(&self, block: BlockId, raw: &[Region], slot: Region) -> Result<(), String> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                0 => Err("bad scales".into()),
                1 => panic!("planted panic"),
                // SAFETY: the caller guarantees the conditions.
                _ => unsafe { Inverting.pack(block, raw, slot) },
            }
        }
    }
    let model = model(1, 4, true, |_| 1000);
    let files = std::slice::from_ref(&model.file.0);
    let store =
        ExpertCache::new(&config(model.minimum(2), 2), files, model.blocks.clone(), Some(Box::new(Moody(0.into()))))
            .unwrap();
    store.request(0, &[0]).unwrap();
    let error = store.wait(id(0, 0)).unwrap_err();
    assert_eq!(error, StreamError::Pack { block: id(0, 0), why: "bad scales".into() });
    store.request(0, &[0]).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.wait(id(0, 0)).map(|_| ())));
    assert!(panicked.is_err());
    assert!(matches!(store.wait(id(0, 0)), Err(StreamError::Pack { .. })));
    for _ in 0..3 {
        model.use_all(&store, 0, &[0, 3]);
        store.release(0);
        model.use_all(&store, 0, &[1, 2]);
        store.release(0);
    }
}

#[test]
fn a_store_on_a_drive_that_never_answers_is_dropped_all_the_same() {
    let model = model(2, 4, false, |_| PAGE);
    let store = model.planted(&config(model.minimum(2), 2), &Arc::default(), |_| Fate::Stuck);
    store.request(0, &[0, 1]).unwrap();
    store.predict(1, &[0, 1]);
    assert!(store.ready(id(0, 0)).is_none());
    drop(store);
}

#[test]
fn drive_failure_reaches_all_waiters() {
    let model = model(1, 8, true, |_| 3 * PAGE + 100);
    let gate = Arc::default();
    let store = model.planted(&config(model.minimum(8), 8), &gate, |_| panic!("planted: the drive's thread ends"));
    // The request has more blocks than there are staging buffers. So some blocks have no slot yet
    // when the drive's thread ends.
    let experts: Vec<u32> = (0..8).collect();
    for _ in 0..2 {
        store.request(0, &experts).unwrap();
        for &expert in &experts {
            let error = store.wait(id(0, expert)).unwrap_err();
            assert!(matches!(error, StreamError::Closed { .. }), "{error}");
        }
        store.release(0);
    }
}

#[test]
fn invalid_block_descriptions_are_refused() {
    let model = model(1, 4, false, |_| PAGE + 10);
    let try_with = |change: Change<'_>| {
        let mut blocks = model.blocks.clone();
        change(&mut blocks);
        ExpertCache::new(&config(1 << 20, 2), std::slice::from_ref(&model.file.0), blocks, None)
            .map(|_| ())
            .unwrap_err()
    };
    let bad: [(&str, Change<'_>); 9] = [
        ("description", &|blocks| blocks[1].id = blocks[0].id),
        ("layer", &|blocks| blocks[1].id.group = u32::MAX),
        ("extents", &|blocks| blocks[1].extents.clear()),
        ("file", &|blocks| blocks[1].extents[0].file = 1),
        ("length", &|blocks| blocks[1].extents[0].bytes = 0),
        ("length", &|blocks| blocks[1].extents[0].bytes = u64::MAX),
        ("place", &|blocks| blocks[1].extents[0].at = 1),
        ("packer", &|blocks| blocks[1].form = BlockEncoding::Raw { bytes: 1 }),
        ("page", &|blocks| {
            let extent = blocks[1].extents[0];
            blocks[1].extents.push(Extent { bytes: 1, at: PAGE, ..extent });
        }),
    ];
    for (word, change) in bad {
        let error = try_with(change);
        assert!(matches!(error, StreamError::BadBlock { what, .. } if what.contains(word)), "{word}: {error}");
    }
    let outside = try_with(&|blocks| blocks[3].extents[0].offset = u64::MAX - 5);
    assert!(matches!(outside, StreamError::Truncated { .. }), "{outside}");
    let files = std::slice::from_ref(&model.file.0);
    let poor = ExpertCache::new(&config(PAGE, 2), files, model.blocks.clone(), None).map(|_| ());
    assert_eq!(poor, Err(StreamError::Budget { budget: PAGE, needed: 4 * 2 * PAGE }));
    let store = model.store(&config(1 << 20, 2));
    assert!(matches!(store.request(7, &[]), Err(StreamError::UnknownBlock { .. })));
    assert!(matches!(store.request(0, &[9]), Err(StreamError::UnknownBlock { .. })));
    assert_eq!((store.window(7, &[1]), store.predict(7, &[1]), store.predict(0, &[99])), (0, 0, 0));
    store.refute(7);
    store.release(7);
    store.release_block(id(7, 7));
    assert!(store.ready(id(7, 7)).is_none());
}

type Change<'a> = &'a dyn Fn(&mut Vec<Block>);

/// Returns distinct random experts of a group.
fn choose(random: &mut Random, experts: u32, count: u64) -> Vec<u32> {
    let mut all: Vec<u32> = (0..experts).collect();
    (0..count).map(|_| all.swap_remove(random.below(all.len() as u64) as usize)).collect()
}

/// Runs tokens through the groups with several threads. Some predictions are correct, groups
/// overlap, and requests are divided into windows.
fn stress(model: &Model, store: &ExpertCache, seed: u64, top_k: u64, tokens: u32, failures: bool) {
    let mut random = Random::new(seed);
    let mut pool = Pool::new(3).unwrap();
    let (groups, experts) = (4, 12);
    let mut next = choose(&mut random, experts, top_k);
    let failed = AtomicU64::new(0);
    for step in 0..tokens * groups {
        let group = step % groups;
        let wanted = std::mem::replace(&mut next, choose(&mut random, experts, top_k));
        store.request(group, &wanted).unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
        if random.below(2) == 0 {
            // Half of the predicted experts are correct.
            let mut guess = next[..next.len() / 2].to_vec();
            guess.extend(choose(&mut random, experts, top_k));
            store.predict((group + 1) % groups, &guess);
        }
        let looked: Mutex<HashMap<u32, Region>> = Mutex::new(HashMap::new());
        let looks = |thread: usize| {
            for (i, &expert) in wanted.iter().enumerate() {
                // All threads wait for the first expert. For the others, each thread waits for a
                // different one.
                if i > 0 && i % 3 != thread {
                    continue;
                }
                match store.wait(id(group, expert)) {
                    Ok(region) => {
                        assert!(holds(region, model.block(id(group, expert))), "seed {seed}, step {step}, {expert}");
                        looked.lock().unwrap().insert(expert, region);
                    }
                    Err(StreamError::Read { errno: EIO, .. }) if failures => _ = failed.fetch_add(1, Ordering::Relaxed),
                    Err(error) => panic!("seed {seed}, step {step}: {error}"),
                }
            }
            if let Some(arrived) = store.claim_arrived() {
                arrived.pack(&Inverting);
            }
        };
        pool.run(&looks).unwrap();
        let stats = store.stats();
        for class in stats.classes {
            assert!(class.primary + class.shadow <= class.count, "{class:?}");
        }
        // No block of a pinned group was moved or overwritten, even after the next group began.
        if random.below(3) == 0 && store.window((group + 1) % groups, &next) == next.len() {
            store.request((group + 1) % groups, &next).unwrap();
            for &expert in &next {
                store.release_block(id((group + 1) % groups, expert));
            }
        }
        for (expert, region) in looked.into_inner().unwrap() {
            assert!(
                holds(region, model.block(id(group, expert))),
                "seed {seed}, step {step}: {expert} changed while pinned"
            );
            assert_eq!(store.ready(id(group, expert)).map(Region::base), Some(region.base()));
        }
        match random.below(2) {
            0 => store.release(group),
            _ => wanted.iter().for_each(|&expert| store.release_block(id(group, expert))),
        }
    }
    let stats = store.stats();
    let sum = super::super::store::stats::GroupStats::sum(&stats.groups);
    assert!(sum.right_bytes + sum.wasted_bytes <= sum.predicted_bytes, "{sum:?}");
    assert_eq!(failures, sum.failures > 0, "{sum:?}");
    println!("seed {seed}: {sum:?}, failed waits {}", failed.into_inner());
}

#[test]
fn random_requests_always_get_correct_bytes() {
    for raw in [false, true] {
        // Layers of two sizes result in two size classes of slots.
        let model = model(4, 12, raw, |group| if group < 2 { 2 * PAGE + 100 } else { 5000 });
        for (seed, (_, policy)) in (1..).zip(Kind::ALL) {
            for (choice, room) in [(BackendChoice::Auto, 100), (BackendChoice::ThreadedReader, 150)] {
                let mut config = config(model.minimum(4) * room / 100, 4);
                config.policy = policy;
                config.drive.backend = choice;
                let store = model.store(&config);
                println!("raw {raw}, {policy:?}, {room} % of the least budget: {:?}", store.report());
                assert!(store.bytes() <= config.budget);
                stress(&model, &store, seed, 4, 12, false);
            }
        }
    }
}

#[test]
fn random_faults_never_give_wrong_bytes() {
    for raw in [false, true] {
        let model = model(4, 12, raw, |_| 2 * PAGE + 100);
        let mut random = Random::new(21);
        // The test uses the page cache, because reads without it always end at page boundaries.
        let config = Config { direct: false, ..config(model.minimum(4) * 5 / 4, 4) };
        let store = model.planted(&config, &Arc::default(), move |read| match random.below(40) {
            0 => Fate::Errno(EIO),
            1..=3 => Fate::Errno(4),
            4..=6 => Fate::Short(random.below(read.into.bytes())),
            _ => Fate::Good,
        });
        stress(&model, &store, 77, 4, 40, true);
    }
}

#[test]
fn concurrent_requests_read_a_block_once() {
    let model = model(4, 12, false, |_| PAGE);
    let reads = Arc::new(Mutex::new(HashMap::new()));
    let log = Arc::clone(&reads);
    // All blocks fit into memory, so each is read exactly once.
    let store = model.planted(&config(1 << 30, 4), &Arc::default(), move |read| {
        *log.lock().unwrap().entry(read.offset).or_insert(0) += 1;
        Fate::Good
    });
    stress(&model, &store, 5, 4, 30, false);
    let reads = reads.lock().unwrap();
    assert!(reads.len() > 24 && reads.values().all(|&count| count == 1), "{reads:?}");
}
