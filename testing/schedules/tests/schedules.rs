//! Random schedules of pool, barriers, work stealing, expert cache and transports.
//!
//! ```text
//! cargo test --manifest-path testing/schedules/Cargo.toml                       a few seconds
//! IXC_SCHEDULES=100000 cargo test --manifest-path testing/schedules/Cargo.toml  minutes
//! IXC_SCHEDULES_SEED=7                                                          other schedules
//! ```

use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize as Count, Ordering::SeqCst};

use ixc_schedules::pool::{Barrier, Pool};
use ixc_schedules::streaming::backend::{Backend, Completion, Read};
use ixc_schedules::streaming::queue::Wake;
use ixc_schedules::streaming::store::{Config as CacheConfig, ExpertCache, State};
use ixc_schedules::streaming::{Block, BlockEncoding, BlockId, Extent};
use ixc_schedules::sync::{Arc, Condvar, Mutex, thread};
use ixc_schedules::{Incoming, Outgoing, Receipt, Transport, TransportError, Work, linked_group, local};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Number of priority changes in a schedule of the scheduler with random priorities.
const DEPTH: usize = 3;

/// Runs a test in random schedules. Half of the schedules use random priorities that change a few
/// times. These schedules find faults that need one thread to be late for a long time.
fn schedules(test: impl Fn() + Send + Sync + Copy + 'static) {
    let number = |name: &str, default: usize| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (count, seed) = (number("IXC_SCHEDULES", 400), number("IXC_SCHEDULES_SEED", 1) as u64);
    println!("{count} schedules, seed {seed}");
    let mut config = Config::new();
    config.silence_warnings = true;
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new_from_seed(seed, count.div_ceil(2)), config.clone()).run(test);
    Runner::new(PctScheduler::new_from_seed(seed, DEPTH, count / 2), config).run(test);
}

/// Checks that threads of two groups meet at each barrier, and that exactly one of them runs the
/// serial part.
#[test]
fn barriers_separate_phases() {
    schedules(|| {
        const THREADS: usize = 5;
        let (barrier, done) = (Barrier::new(THREADS), Count::new(0));
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (barrier, done) = (&barrier, &done);
                scope.spawn(move || {
                    for phase in 1..=3 {
                        done.fetch_add(1, SeqCst);
                        barrier.wait(number, || {
                            assert_eq!(done.fetch_add(100, SeqCst), phase * THREADS + (phase - 1) * 100);
                        });
                        assert!(done.load(SeqCst) / 100 == phase, "a thread passed early");
                        // No thread begins the next phase before all threads have checked this one.
                        barrier.wait(number, || {});
                    }
                });
            }
        });
    });
}

#[test]
fn pool_runs_each_job_on_each_thread() {
    schedules(|| {
        let mut pool = Pool::new(3).unwrap();
        for threads in [3, 2, 3] {
            let ran = Count::new(0);
            pool.run_with(threads, &|thread| {
                ran.fetch_add(1 << (8 * thread), SeqCst);
                thread::yield_now();
            })
            .unwrap();
            assert_eq!(ran.into_inner(), 0x01_01_01 & ((1 << (8 * threads)) - 1));
        }
    });
}

#[test]
fn work_is_given_out_once() {
    schedules(|| {
        const THREADS: usize = 3;
        let (work, barrier) = (Work::new(THREADS), Barrier::new(THREADS));
        for (totals, in_order) in [([7, 2, 12], false), ([5, 1, 3], true)] {
            let taken: Vec<Mutex<Vec<_>>> = totals.iter().map(|_| Mutex::new(Vec::new())).collect();
            thread::scope(|scope| {
                for number in 0..THREADS {
                    let (work, barrier, taken) = (&work, &barrier, &taken);
                    scope.spawn(move || {
                        for (at, total) in totals.into_iter().enumerate() {
                            let round = at as u64 + if in_order { 11 } else { 1 };
                            // The lock is taken after the items, because holding it would keep
                            // threads from meeting.
                            let items = work.items(number, round, total, in_order);
                            taken[at].lock().unwrap().extend(items);
                            barrier.wait(number, || {});
                        }
                    });
                }
            });
            for (taken, total) in taken.into_iter().zip(totals) {
                let mut items: Vec<u64> = taken.into_inner().unwrap().into_iter().flatten().collect();
                items.sort_unstable();
                assert_eq!(items, (0..total).collect::<Vec<_>>());
            }
        }
    });
}

/// Bytes of an expert's block: one page.
const BLOCK: u64 = 4096;
/// Number of experts in a group.
const EXPERTS: u32 = 4;
/// Error number of an interrupted read, which the cache repeats.
const INTERRUPTED: i32 = 4;

/// Reads that have begun; shared with the drive's waker.
#[derive(Default)]
struct Begun {
    reads: Mutex<(Vec<Read>, bool)>,
    changed: Condvar,
}

impl Wake for Begun {
    fn wake(&self) {
        self.reads.lock().unwrap().1 = true;
        self.changed.notify_one();
    }
}

/// A drive whose reads end in any order. Some reads are interrupted, and some return only a part of
/// the bytes.
#[derive(Default)]
struct RandomDrive(Arc<Begun>);

impl Backend for RandomDrive {
    fn describe(&self) -> String {
        "random".into()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.0) as Arc<dyn Wake>
    }

    unsafe fn start(&mut self, read: Read) {
        self.0.reads.lock().unwrap().0.push(read);
    }

    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let mut reads = self.0.reads.lock().unwrap();
        while reads.0.is_empty() && !reads.1 {
            reads = self.0.changed.wait(reads).unwrap();
        }
        reads.1 = false;
        if reads.0.is_empty() {
            return Ok(());
        }
        let at = thread_rng().gen_range(0..reads.0.len());
        let read = reads.0.swap_remove(at);
        let bytes = match thread_rng().gen_range(0..4) {
            0 => return Ok(done.push(Completion { tag: read.tag, result: Err(INTERRUPTED) })),
            1 => read.into.bytes().div_ceil(2),
            _ => read.into.bytes(),
        };
        // SAFETY: the region is mapped, and nothing else uses it until the completion is returned.
        unsafe { std::slice::from_raw_parts_mut(read.into.base(), bytes as usize) }
            .fill((read.offset / BLOCK) as u8 + 1);
        done.push(Completion { tag: read.tag, result: Ok(bytes as u32) });
        Ok(())
    }
}

/// Returns a file with the length of all blocks. The drive does not read it.
fn file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let (file, path) = tempfile::NamedTempFile::new().unwrap().keep().unwrap();
        file.set_len(u64::from(3 * EXPERTS) * BLOCK).unwrap();
        path
    })
}

/// Returns the first byte of a block in memory.
fn first_byte(cache: &ExpertCache, block: BlockId) -> u8 {
    let region = cache.wait(block).unwrap();
    assert_eq!(region.bytes(), BLOCK);
    // SAFETY: the block is pinned, so nothing writes to its slot.
    let bytes = unsafe { std::slice::from_raw_parts(region.base(), BLOCK as usize) };
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{block:?} has bytes of two blocks");
    bytes[0]
}

/// Checks that threads get the experts of a group that they wait for, while another thread predicts
/// those of the next group. Each block has its own bytes, and no thread waits forever.
#[test]
fn expert_cache_delivers_each_requested_block() {
    schedules(|| {
        let block = |number: u32| Block {
            id: BlockId { group: number / EXPERTS, expert: number % EXPERTS },
            extents: vec![Extent { file: 0, offset: u64::from(number) * BLOCK, bytes: BLOCK, at: 0 }],
            form: BlockEncoding::Packed,
        };
        let config = CacheConfig { budget: 5 * BLOCK, top_k: 2, ..CacheConfig::default() };
        let blocks = (0..3 * EXPERTS).map(block).collect();
        let make = |_: &_| Box::<RandomDrive>::default() as Box<dyn Backend>;
        let cache = ExpertCache::with_backend(&config, std::slice::from_ref(file()), blocks, None, make).unwrap();
        for group in 0..3 {
            let experts = [group % EXPERTS, (group + 1) % EXPERTS];
            let request = cache.request(group, &experts).unwrap();
            assert_eq!(request.states.len(), experts.len());
            thread::scope(|scope| {
                let cache = &cache;
                for _ in 0..2 {
                    scope.spawn(move || {
                        for expert in experts {
                            let number = group * EXPERTS + expert;
                            assert_eq!(first_byte(cache, BlockId { group, expert }), number as u8 + 1);
                        }
                    });
                }
                scope.spawn(move || {
                    cache.predict(group + 1, &[0, 3]);
                    cache.refute(group + 1);
                    cache.announce(group + 1, &[1]);
                });
            });
            cache.release(group);
            assert!(matches!(request.states[0], State::Ready(_) | State::Coming));
        }
    });
}

/// Exchanges numbers between all ranks for several rounds, and closes the transport.
fn exchange_rounds(transport: &dyn Transport) {
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let peers: Vec<u32> = (0..ranks).filter(|peer| *peer != rank).collect();
    for round in 0..3 {
        let own = [rank as u8, round];
        let outgoing: Vec<_> = peers.iter().map(|peer| Outgoing { to: *peer, bytes: &own }).collect();
        let mut found = vec![[9; 2]; peers.len()];
        let mut incoming: Vec<_> =
            peers.iter().zip(&mut found).map(|(peer, bytes)| Incoming { from: *peer, bytes }).collect();
        transport.exchange(&outgoing, &mut incoming).unwrap();
        assert!(peers.iter().zip(&found).all(|(peer, bytes)| *bytes == [*peer as u8, round]));
    }
    transport.close().unwrap();
}

/// Exchanges numbers between all ranks, with two exchanges open at the same time, and closes the
/// transport.
fn exchange_in_halves(transport: &dyn Transport) {
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let peers: Vec<u32> = (0..ranks).filter(|peer| *peer != rank).collect();
    let receipts = |bytes: &dyn Fn(u32) -> Vec<u8>| -> Vec<Receipt> {
        peers.iter().map(|from| Receipt { from: *from, bytes: bytes(*from) }).collect()
    };
    for half in 0..2 {
        let own = [rank as u8, half];
        let outgoing: Vec<_> = peers.iter().map(|peer| Outgoing { to: *peer, bytes: &own }).collect();
        transport.begin(&outgoing, receipts(&|_| vec![9; 2])).unwrap();
        thread::yield_now();
    }
    for half in 0..2 {
        assert_eq!(transport.finish().unwrap(), receipts(&|from| vec![from as u8, half]));
    }
    transport.close().unwrap();
}

/// Ends the group on one rank while another rank has an open exchange. Checks that the other rank
/// gets the reason.
fn end_of_an_open_exchange(ranks: Vec<Box<dyn Transport>>) {
    let [first, second] = <[_; 2]>::try_from(ranks).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || first.end("the drive is full"));
        scope.spawn(move || {
            let begun = second.begin(&[], vec![Receipt { from: 0, bytes: vec![0] }]);
            let error = begun.and_then(|()| second.finish()).unwrap_err();
            assert_eq!(error, TransportError::Ended { by: 0, reason: "the drive is full".to_owned() });
        });
    });
}

/// Ends the group on one rank while another rank waits for a message. Checks that the other rank
/// gets the reason.
fn end_while_another_waits(ranks: Vec<Box<dyn Transport>>) {
    let [first, second] = <[_; 2]>::try_from(ranks).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || first.end("the drive is full"));
        scope.spawn(move || {
            let error = second.exchange(&[], &mut [Incoming { from: 0, bytes: &mut [0] }]).unwrap_err();
            assert_eq!(error, TransportError::Ended { by: 0, reason: "the drive is full".to_owned() });
        });
    });
}

fn local_group(ranks: u32) -> Vec<Box<dyn Transport>> {
    local::group(ranks).into_iter().map(|rank| Box::new(rank) as Box<dyn Transport>).collect()
}

fn exchange_in_threads(ranks: Vec<Box<dyn Transport>>, exchange: fn(&dyn Transport)) {
    thread::scope(|scope| {
        for transport in ranks {
            scope.spawn(move || exchange(&*transport));
        }
    });
}

#[test]
fn local_transport_exchanges_and_ends() {
    schedules(|| exchange_in_threads(local_group(3), exchange_rounds));
    schedules(|| exchange_in_threads(local_group(3), exchange_in_halves));
    schedules(|| end_of_an_open_exchange(local_group(2)));
    schedules(|| end_while_another_waits(local_group(2)));
}

#[test]
fn linked_transport_exchanges_and_ends() {
    schedules(|| exchange_in_threads(linked_group(2), exchange_rounds));
    schedules(|| exchange_in_threads(linked_group(2), exchange_in_halves));
    schedules(|| end_of_an_open_exchange(linked_group(2)));
    schedules(|| end_while_another_waits(linked_group(2)));
}
