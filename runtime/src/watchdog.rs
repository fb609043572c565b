//! A watchdog that ends steps that exceed their time limit.
//!
//! The watchdog's thread sleeps until the deadline of the running step. If the step is still
//! running then, the thread raises a flag. The threads of the step read the flag before each item
//! and while they wait for an expert. When it is raised, they skip the rest of their work and meet
//! at the barriers as usual, so no thread hangs. Kernels have counted loops, and the plan check
//! limits their work ([`crate::program::work`]), so each item ends soon.
//!
//! ```text
//! step    begin ─────────────────────────── end      begin ── end
//! thread    sleep until the limit ─▶ raise             sleep ...
//! ```
//!
//! Invariant: the flag is raised only while a step runs, and [`RunningStep`] lowers it at the end
//! of the step. A thread that has seen the raised flag arrives at the next barrier only after that.
//! So all threads see the raised flag after the barrier.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A flag that ends the running step. All clones share it.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Whether the running step must end.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Raises the flag, which ends the running step.
    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Lowers the flag. Returns whether it was raised.
    fn lower(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// State of the running step.
#[derive(Debug, Default)]
struct State {
    /// Time at which the running step must end. It is `None` while no step runs.
    deadline: Option<Instant>,
    /// Whether the watchdog's thread sleeps without a deadline.
    is_parked: bool,
    /// Whether the watchdog's thread must end.
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

    /// Waits for deadlines of steps and raises the flag at each, until the watchdog is dropped.
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
                // A later step has a later deadline, so its start does not need to wake this
                // thread.
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
    /// Starts a watchdog with this time limit for each step.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
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

    /// Begins a step. The time limit no longer applies when the returned value is dropped.
    pub(crate) fn begin_step(&self) -> RunningStep<'_> {
        let mut state = self.shared.lock();
        // If the limit exceeds the range of the clock, the watchdog never ends the step.
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
            // The thread has no result.
            let _ = thread.join();
        }
    }
}

/// A running step with a time limit.
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
