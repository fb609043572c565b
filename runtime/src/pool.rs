//! A pool of persistent threads. All of them run the same job at a time, and meet at barriers
//! inside it.
//!
//! Thread 0 is the caller's thread. A thread that waits spins for some microseconds, because the
//! next work usually comes at once. Then it sleeps, so that an idle engine uses no CPU time.
//!
//! Calls of `sched_yield` between spinning and sleeping did not help. While another process used
//! half or all of one of two CPUs, the speed with them was 0.96 to 1.03 times the speed without.
//!
//! ```
//! use ixc_runtime::pool::{Barrier, Pool};
//! use std::sync::atomic::{AtomicUsize, Ordering};
//!
//! let mut pool = Pool::new(3).unwrap();
//! let (sum, barrier) = (AtomicUsize::new(0), Barrier::new(3));
//! pool.run(&|thread| {
//!     sum.fetch_add(thread, Ordering::Relaxed);
//!     barrier.wait(thread, || assert_eq!(sum.load(Ordering::Relaxed), 3)); // the last to come runs this, alone
//! }).unwrap();
//! ```
//!
//! Invariant: a panic in a job becomes an error of [`Pool::run`]. If a thread panicked before a
//! barrier of the job, the other threads would wait there forever. So jobs with barriers catch
//! panics between barriers (`execute` does).

use std::any::Any;
use std::cell::UnsafeCell;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{OnceLock, atomic};
use std::time::{Duration, Instant};

use crate::processors::{self, ThreadId};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use crate::sync::thread::{Builder, JoinHandle};
use crate::sync::{Arc, Condvar, Mutex, PoisonError, SignalStack, hint, spin_rounds};

/// Maximum number of threads of a pool.
pub const MAX_THREADS: usize = 1024;

/// Number of rounds that a thread spins before it sleeps. A round has a pause of 15 to 45 ns, so
/// spinning takes 50 to 150 µs. Waking a thread takes about as long.
const SPINS: u32 = spin_rounds(3000);
/// Number of rounds that a thread spins if there are more threads than CPUs. Longer spinning would
/// keep working threads from running.
const SPINS_CROWDED: u32 = spin_rounds(50);
/// Maximum length of a sleep that longer spinning would have avoided: the time of [`SPINS`] rounds.
const SHORT_SLEEP: Duration = Duration::from_micros(150);

/// Current number of spin rounds of a worker without a job. It adapts to the pauses between jobs,
/// and no other decision depends on it.
static JOB_SPINS: atomic::AtomicU32 = atomic::AtomicU32::new(SPINS);
/// Current number of spin rounds of a thread that waits for other threads in a job.
static BARRIER_SPINS: atomic::AtomicU32 = atomic::AtomicU32::new(SPINS);

/// The reason why a job failed.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The job panicked on a thread.
    #[error("thread {thread} panicked: {message}")]
    Panicked {
        /// Number of the thread that panicked; 0 is the caller's thread.
        thread: usize,
        /// Message of the panic.
        message: String,
    },
}

/// Returns the message of a panic from its payload.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_string(),
        (None, Some(text)) => text.clone(),
        (None, None) => "no message".to_string(),
    }
}

/// Number of threads that meet at one counter. The last thread of each such group then meets the
/// last threads of the other groups. One counter for all threads would cost more, because each
/// change of a counter by another thread transfers its cache line.
const GROUP_THREADS: usize = 4;

/// A value aligned to two cache lines, because processors fetch cache lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);

/// A counter for whose change threads wait. A waiting thread spins, and then sleeps.
///
/// Each sleep changes the number of spin rounds. A long sleep shows that another thread needs the
/// CPU, for example one of another process. Then later waits spin less. A short sleep shows that
/// longer spinning would have been faster.
struct Event {
    value: AtomicU32,
    sleepers: AtomicU32,
    /// Number of spin rounds before a sleep, which all events of one kind share.
    spins: &'static atomic::AtomicU32,
    /// Maximum number of spin rounds of this event.
    max_spins: u32,
    lock: Mutex<()>,
    changed: Condvar,
}

/// Returns the number of CPUs that this process may use at a time.
pub(crate) fn processors() -> usize {
    // The number is cached, because the query reads several files.
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(usize::MAX, NonZeroUsize::get))
}

/// Returns whether `threads` is more than the number of CPUs.
pub(crate) fn is_crowded(threads: usize) -> bool {
    threads > processors()
}

/// Returns the new number of spin rounds, after a thread spun for `spins` rounds and then slept for
/// `slept`.
fn adapted_spins(spins: u32, slept: Duration, max_spins: u32) -> u32 {
    let spins = if slept <= SHORT_SLEEP { spins.saturating_mul(2) } else { spins / 2 };
    spins.clamp(SPINS_CROWDED, max_spins)
}

impl Event {
    fn new(threads: usize, spins: &'static atomic::AtomicU32) -> Event {
        let max_spins = if is_crowded(threads) { SPINS_CROWDED } else { SPINS };
        Event {
            value: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            spins,
            max_spins,
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    fn value(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Waits until the counter differs from `seen`. Returns the time that the thread waited after
    /// it stopped spinning. It is zero if all threads have a CPU and equal work.
    fn wait(&self, seen: u32) -> Duration {
        let spins = self.spins.load(Ordering::Relaxed).min(self.max_spins);
        for _ in 0..spins {
            if self.value() != seen {
                return Duration::ZERO;
            }
            hint::spin_loop();
        }
        let begin = Instant::now();
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // The operations here and in `advance` are sequentially consistent. So either this thread
        // sees the new value, or the advancing thread sees a sleeper. In the second case it takes
        // the lock, which this thread releases only when it sleeps.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.value.load(Ordering::SeqCst) == seen {
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
        let slept = begin.elapsed();
        self.spins.store(adapted_spins(spins, slept, self.max_spins), Ordering::Relaxed);
        slept
    }

    fn advance(&self) {
        self.value.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }
}

/// A barrier, at which all threads of a job meet. Groups of four threads meet first, and then the
/// last threads of all groups meet. Threads are released in reverse order. Counters of arrivals and
/// events of waiting lie in different cache lines.
pub struct Barrier {
    groups: Box<[Group]>,
    /// Number of groups whose threads have all arrived.
    arrived: Line<AtomicUsize>,
}

/// A group of threads that meet at one counter.
struct Group {
    threads: usize,
    arrived: Line<AtomicUsize>,
    event: Line<Event>,
}

impl Barrier {
    /// Creates a barrier for `threads` threads, at least 1.
    pub fn new(threads: usize) -> Barrier {
        let threads = threads.max(1);
        let group = |first: usize| Group {
            threads: GROUP_THREADS.min(threads - first),
            arrived: Line::default(),
            event: Line(Event::new(threads, &BARRIER_SPINS)),
        };
        Barrier { groups: (0..threads).step_by(GROUP_THREADS).map(group).collect(), arrived: Line::default() }
    }

    /// Waits for all threads; `thread` is the number of the calling thread. The last thread to
    /// arrive runs `serial` while the other threads wait. They then see its writes, and continue
    /// even if it panics. Returns the time that this thread waited after it stopped spinning.
    ///
    /// # Panics
    /// Panics if the barrier has no thread with this number.
    pub fn wait(&self, thread: usize, serial: impl FnOnce()) -> Duration {
        struct Advance<'a>(&'a [Group]);
        impl Drop for Advance<'_> {
            fn drop(&mut self) {
                self.0.iter().for_each(|group| group.event.0.advance());
            }
        }
        /// Counts an arrival, and returns whether it was the last of `of` arrivals.
        fn is_last(arrived: &Line<AtomicUsize>, of: usize) -> bool {
            let last = of == 1 || arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == of;
            if last {
                arrived.0.store(0, Ordering::Relaxed);
            }
            last
        }
        let group = &self.groups[thread / GROUP_THREADS];
        assert!(thread % GROUP_THREADS < group.threads, "no thread {thread} meets here");
        let seen = group.event.0.value();
        if is_last(&group.arrived, group.threads) && is_last(&self.arrived, self.groups.len()) {
            let _advance = Advance(&self.groups);
            serial();
            Duration::ZERO
        } else {
            group.event.0.wait(seen)
        }
    }
}

type Job<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    /// The current job. It is valid from just before the first event in `starts` advances until
    /// `running` is 0.
    job: UnsafeCell<Option<Job<'static>>>,
    /// For each worker, the event that starts it. A job for only some workers wakes only these.
    starts: Box<[Line<Event>]>,
    /// System id of each worker; set when the worker starts to run.
    ids: Box<[OnceLock<ThreadId>]>,
    done: Line<Event>,
    /// Number of workers that have not finished the current job.
    running: Line<AtomicUsize>,
    stop: AtomicBool,
    /// First panic of a worker in the current job.
    panic: Mutex<Option<PoolError>>,
}

// SAFETY: `job` is the only field that is not `Sync` by itself. `Pool::run` writes it with
// exclusive access to the pool, while no worker runs (`running` is 0, read with acquire). Workers
// read it after they saw their event in `starts` advance. `run` advances the event after the write,
// with release. The job itself is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: the same reasons as for `Sync` hold; a shared reference to a `Sync` job may be sent.
unsafe impl Send for Shared {}

/// A pool of persistent threads.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Processors to which the caller's thread is bound while it runs a job; empty if it is not
    /// bound.
    caller_processors: Vec<usize>,
    /// Stack for signal handlers of the caller's thread while it runs a job.
    caller_stack: SignalStack,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Creates a pool of `threads` threads (at least 1), including the caller's thread.
    ///
    /// # Errors
    /// Returns the system's error if it cannot start a thread.
    pub fn new(threads: usize) -> io::Result<Pool> {
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            starts: (1..threads).map(|_| Line(Event::new(threads, &JOB_SPINS))).collect(),
            ids: (1..threads).map(|_| OnceLock::new()).collect(),
            done: Line(Event::new(threads, &BARRIER_SPINS)),
            running: Line::default(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool =
            Pool { shared, workers: Vec::new(), caller_processors: Vec::new(), caller_stack: SignalStack::default() };
        for thread in 1..threads {
            let shared = Arc::clone(&pool.shared);
            // If starting fails, the pool is dropped, which ends the threads that were started.
            let worker = Builder::new()
                .name(format!("ixc-{thread}"))
                .spawn(move || SignalStack::default().run(|| work(&shared, thread)))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Returns the number of threads, including the caller's thread.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Binds thread `i` to the processor `processors[i]`. The caller's thread (0) is bound only
    /// while it runs a job. Workers without a processor in the list may run on any of `others`.
    ///
    /// # Errors
    /// Returns the first error of the system.
    pub fn bind(&mut self, processors: &[usize], others: &[usize]) -> io::Result<()> {
        let sets: Vec<&[usize]> = processors.iter().map(std::slice::from_ref).collect();
        self.bind_to(&sets, others)
    }

    /// Binds threads like [`Pool::bind`], but thread `i` to the set of processors `sets[i]`.
    ///
    /// # Errors
    /// Returns the first error of the system.
    pub fn bind_to(&mut self, sets: &[&[usize]], others: &[usize]) -> io::Result<()> {
        self.caller_processors.clear();
        let own = sets.get(1..).unwrap_or_default().iter().copied();
        // A worker has no id for a moment after its start, so this waits for the id.
        let bind = |(id, set): (&OnceLock<_>, &[usize])| processors::bind_thread(*id.wait(), set);
        let mut workers = self.shared.ids.iter().zip(own.chain(std::iter::repeat(others)));
        if let Err(error) = workers.try_for_each(bind) {
            // If binding fails, the workers that were already bound are unbound. If the system
            // refuses this, too, none of them was bound.
            let _ = self.shared.ids.iter().map(|id| (id, others)).try_for_each(bind);
            return Err(error);
        }
        self.caller_processors = sets.first().copied().unwrap_or_default().to_vec();
        Ok(())
    }

    /// Runs `job` on every thread, with the thread's number as argument. Returns when all threads
    /// have finished.
    ///
    /// # Errors
    /// Fails if the job panicked on a thread.
    pub fn run(&mut self, job: Job<'_>) -> Result<(), PoolError> {
        self.run_with(self.threads(), job)
    }

    /// Runs a job like [`Pool::run`], but only on the first `threads` threads, and at least on the
    /// caller's thread. The other threads sleep.
    ///
    /// # Errors
    /// Fails if the job panicked on a thread.
    pub fn run_with(&mut self, threads: usize, job: Job<'_>) -> Result<(), PoolError> {
        // The caller's thread belongs to the embedding program, so it is unbound again after the
        // job.
        let _bound = Some(&*self.caller_processors)
            .filter(|processors| !processors.is_empty())
            .map(processors::ProcessorBinding::bind);
        let shared = &*self.shared;
        let starts = &shared.starts[..threads.saturating_sub(1).min(self.workers.len())];
        if !starts.is_empty() {
            // SAFETY: only the lifetime changes. No worker uses the job after it has decremented
            // `running`. This function neither returns nor unwinds before `running` is 0.
            let job = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
            // SAFETY: the pool is borrowed exclusively. Workers read the job only between the
            // advance of their event in `starts` and the decrement of `running`.
            unsafe { *shared.job.get() = Some(job) };
            shared.running.0.store(starts.len(), Ordering::Release);
        }
        starts.iter().for_each(|start| start.0.advance());
        let caller_processor = self.caller_stack.run(|| catch_unwind(AssertUnwindSafe(|| job(0))));
        loop {
            // `done` is read before `running`, and again in each iteration. A worker decrements
            // `running` before it advances `done`, so `done` may still advance for the previous
            // job.
            let done = shared.done.0.value();
            if shared.running.0.load(Ordering::Acquire) == 0 {
                break;
            }
            shared.done.0.wait(done);
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (caller_processor, panic) {
            (Err(payload), _) => Err(PoolError::Panicked { thread: 0, message: panic_message(&*payload) }),
            (Ok(()), Some(error)) => Err(error),
            (Ok(()), None) => Ok(()),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.starts.iter().for_each(|start| start.0.advance());
        for worker in self.workers.drain(..) {
            // The result is ignored, because a worker catches all panics of jobs.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, thread: usize) {
    let (Some(start), Some(id)) = (shared.starts.get(thread - 1), shared.ids.get(thread - 1)) else { return };
    id.get_or_init(ThreadId::current);
    // A worker cannot miss an advance of its event: the pool waits for all workers before it starts
    // them again.
    let mut seen = 0;
    loop {
        start.0.wait(seen);
        seen = seen.wrapping_add(1);
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: `run` wrote the job before it advanced this worker's event, and does not change
        // it until this worker has decremented `running`.
        let Some(job) = (unsafe { *shared.job.get() }) else { continue };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(thread))) {
            let error = PoolError::Panicked { thread, message: panic_message(&*payload) };
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        if shared.running.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            shared.done.0.advance();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_follow_the_length_of_sleeps() {
        let long = SHORT_SLEEP * 2;
        let after_long = std::iter::successors(Some(SPINS), |spins| Some(adapted_spins(*spins, long, SPINS)));
        assert_eq!(after_long.take(7).collect::<Vec<_>>(), [3000, 1500, 750, 375, 187, 93, SPINS_CROWDED]);
        assert_eq!(adapted_spins(SPINS_CROWDED, long, SPINS), SPINS_CROWDED);
        assert_eq!(adapted_spins(SPINS_CROWDED, SHORT_SLEEP, SPINS), 2 * SPINS_CROWDED);
        assert_eq!(adapted_spins(2000, Duration::ZERO, SPINS), SPINS);
        assert_eq!(adapted_spins(SPINS_CROWDED, Duration::ZERO, SPINS_CROWDED), SPINS_CROWDED);
    }

    #[test]
    fn every_thread_runs_every_job_and_barriers_separate_phases() {
        for threads in [1, 2, 3, 4, 5, 8, 17] {
            let mut pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for round in 0..40 {
                let barrier = Barrier::new(threads);
                let (counter, phase) = (AtomicUsize::new(0), AtomicUsize::new(0));
                pool.run(&|thread| {
                    for expected in 0..50 {
                        assert_eq!(phase.load(Ordering::Relaxed), expected);
                        counter.fetch_add(1, Ordering::Relaxed);
                        barrier.wait(thread, || {
                            assert_eq!(counter.load(Ordering::Relaxed), threads * (expected + 1), "round {round}");
                            phase.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                })
                .unwrap();
                assert_eq!(counter.load(Ordering::Relaxed), threads * 50);
            }
        }
    }

    #[test]
    fn parked_threads_wake() {
        let mut pool = Pool::new(3).unwrap();
        for _ in 0..20 {
            let count = AtomicUsize::new(0);
            pool.run(&|_| {
                count.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(count.into_inner(), 3);
            // Waits until all workers sleep, so that the next run must wake them.
            let sleeps = |start: &Line<Event>| start.0.sleepers.load(Ordering::SeqCst) > 0;
            while !pool.shared.starts.iter().all(sleeps) {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn partial_job_runs_on_the_requested_threads_only() {
        let mut pool = Pool::new(4).unwrap();
        for threads in [4, 2, 1, 3, 9, 0, 4, 2] {
            let ran = Mutex::new(Vec::new());
            pool.run_with(threads, &|thread| ran.lock().unwrap().push(thread)).unwrap();
            let mut ran = ran.into_inner().unwrap();
            ran.sort_unstable();
            assert!(ran.into_iter().eq(0..threads.clamp(1, 4)), "{threads}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn workers_stay_bound_and_caller_only_during_jobs() {
        // Returns the mask of allowed CPUs that the system reports for a thread of this process.
        let mask = |thread: ThreadId| {
            let status = std::fs::read_to_string(format!("/proc/self/task/{}/status", thread.number())).unwrap();
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
            processors::parse_list(list.trim()).unwrap()
        };
        let allowed = processors::allowed_cpus().unwrap();
        let [first, last] = [allowed[0], *allowed.last().unwrap()];
        let mut pool = Pool::new(4).unwrap();
        let masks = |pool: &mut Pool| {
            let masks = Mutex::new(vec![Vec::new(); 4]);
            pool.run(&|thread| masks.lock().unwrap()[thread] = mask(ThreadId::current())).unwrap();
            masks.into_inner().unwrap()
        };
        assert_eq!(masks(&mut pool), vec![allowed.clone(); 4]);
        pool.bind(&[last, first, last], &allowed).unwrap();
        assert_eq!(masks(&mut pool), [vec![last], vec![first], vec![last], allowed.clone()]);
        assert_eq!(mask(ThreadId::current()), allowed);
        let panics = pool.run(&|thread| assert!(thread > 0 || mask(ThreadId::current()).len() > 1));
        assert!(panics.is_err() && mask(ThreadId::current()) == allowed);
        pool.bind(&[], &allowed).unwrap();
        assert_eq!(masks(&mut pool), vec![allowed; 4]);
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_goes_on() {
        let mut pool = Pool::new(3).unwrap();
        for culprit in [0, 1, 2] {
            let PoolError::Panicked { thread, message } =
                pool.run(&|thread| assert_ne!(thread, culprit, "here")).unwrap_err();
            assert_eq!(thread, culprit);
            assert!(message.contains("here"), "{message}");
            pool.run(&|_| {}).unwrap();
        }
    }
}
