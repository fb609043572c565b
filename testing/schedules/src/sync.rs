//! Locks, atomics and threads of the scheduler, under the names that the tested modules use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use shuttle::hint;
pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, atomic, mpsc};

/// Returns the number of spinning rounds before a thread sleeps: one, so that threads sleep in most
/// schedules.
pub const fn spin_rounds(_: u32) -> u32 {
    1
}

/// Stand-in for a stack for signal handlers. The scheduler's threads get no signals.
#[derive(Debug, Default)]
pub struct SignalStack;

impl SignalStack {
    /// Runs `work` directly.
    pub fn run<T>(&mut self, work: impl FnOnce() -> T) -> T {
        work()
    }
}

/// Nanoseconds that pass each time the clock is read.
const TICK: u64 = 1_000;
/// Current time of the simulated clock, in nanoseconds.
static NOW: AtomicU64 = AtomicU64::new(0);

/// Threads of the scheduler. While a thread sleeps, simulated time passes.
pub mod thread {
    pub use shuttle::thread::{Builder, JoinHandle, current, scope, spawn, yield_now};

    use super::{AtomicU64, Duration, NOW, Ordering};

    /// Lets simulated time pass, and lets other threads run.
    pub fn sleep(time: Duration) {
        let now: &AtomicU64 = &NOW;
        now.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        yield_now();
    }

    /// Sleeps for the whole time, even if another thread wakes this one, because a real wake-up may
    /// be as late.
    pub fn park_timeout(time: Duration) {
        sleep(time);
    }
}

/// A time of the simulated clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// Returns the current time.
    pub fn now() -> Instant {
        Instant(Duration::from_nanos(NOW.fetch_add(TICK, Ordering::Relaxed)))
    }

    /// Returns the time that has passed since this time.
    pub fn elapsed(self) -> Duration {
        Instant::now().saturating_duration_since(self)
    }

    /// Returns the time from `earlier` to this time; zero if `earlier` is later.
    pub fn saturating_duration_since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}

impl std::ops::AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}
