//! A watchdog ends a step that exceeds its time limit.
//!
//! The watchdog's thread sleeps until the deadline of the running step. If the step still runs
//! then, the thread raises a flag. The threads of the step read the flag before each item, and
//! while they wait for an expert. They then skip the rest of their work and meet at the barriers
//! as usual, so that none hangs. Kernels have counted loops, and the plan's check limits their work
//! ([`crate::program::work`]), so each item ends soon.
//!
//! ```text
//! step    begin ─────────────────────────── end      begin ── end
//! thread    sleep until the limit ─▶ raise             sleep ...
//! ```
//!
//! Invariant: the flag is raised only while a step runs, and [`RunningStep`] lowers it at the end.
//! A thread that saw the flag raised arrives at the next barrier after that. So all threads see it
//! raised after the barrier.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Flag that ends the running step. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Whether the running step must end.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Raises the flag that ends the running step.
    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Lowers the flag, and returns whether it was raised.
    fn lower(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// State of the running step.
#[derive(Debug, Default)]
struct State {
    /// Time at which the running step must end; `None` without a step.
    deadline: Option<Instant>,
    /// Whether the thread sleeps without a deadline.
    is_parked: bool,
    /// Whether the thread must end.
    stops: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    flag: StopFlag,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises the flag at the deadlines of steps, until the watchdog is dropped.
    fn watch(&self) {
        let mut state = self.lock();
        while !state.stops {
            let Some(deadline) = state.deadline else {
                state.is_parked = true;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.is_parked = false;
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.flag.raise();
                state.deadline = None;
            } else {
                // The deadline of a later step is later, so it needs no notice.
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// A thread that ends steps at their deadline.
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<Shared>,
    limit: Duration,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts a watchdog that gives each step this much time.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn new(limit: Duration) -> io::Result<Watchdog> {
        let shared = Arc::<Shared>::default();
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("ixc-watchdog".to_owned()).spawn(move || watched.watch())?;
        Ok(Watchdog { shared, limit, thread: Some(thread) })
    }

    /// Returns the flag that ends the running step.
    pub fn flag(&self) -> StopFlag {
        self.shared.flag.clone()
    }

    /// Returns the time limit of a step.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Begins a step. Its time ends when the result is dropped.
    pub(crate) fn begin_step(&self) -> RunningStep<'_> {
        let mut state = self.shared.lock();
        // A limit beyond the clock's range never ends a step.
        state.deadline = Instant::now().checked_add(self.limit);
        if state.is_parked {
            self.shared.changed.notify_one();
        }
        RunningStep(self)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.lock().stops = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}

/// A step that the watchdog watches.
pub(crate) struct RunningStep<'w>(&'w Watchdog);

impl RunningStep<'_> {
    /// Returns the time limit if the step has exceeded it.
    pub(crate) fn exceeded_limit(&self) -> Option<Duration> {
        self.0.shared.flag.is_raised().then_some(self.0.limit)
    }
}

impl Drop for RunningStep<'_> {
    fn drop(&mut self) {
        let mut state = self.0.shared.lock();
        state.deadline = None;
        self.0.shared.flag.lower();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_is_raised_at_the_deadline_and_lowered_after_the_step() {
        let watchdog = Watchdog::new(Duration::from_millis(1)).unwrap();
        let flag = watchdog.flag();
        for _ in 0..20 {
            assert!(!flag.is_raised());
            let step = watchdog.begin_step();
            while !flag.is_raised() {
                std::thread::yield_now();
            }
            assert_eq!(step.exceeded_limit(), Some(Duration::from_millis(1)));
            drop(step);
        }
        assert!(!flag.is_raised());
    }

    #[test]
    fn short_steps_end_without_the_flag() {
        let watchdog = Watchdog::new(Duration::from_secs(3600)).unwrap();
        for _ in 0..1000 {
            assert_eq!(watchdog.begin_step().exceeded_limit(), None);
        }
    }
}
