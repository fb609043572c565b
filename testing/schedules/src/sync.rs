//! The scheduler's locks, atomics and threads, under the names that the modules use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use shuttle::hint;
pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, atomic, mpsc};

/// Returns the rounds of spinning before a thread sleeps: one, so that most schedules sleep.
pub const fn spin_rounds(_: u32) -> u32 {
    1
}

/// A stack for signal handlers. The scheduler's threads get no signals.
#[derive(Debug, Default)]
pub struct SignalStack;

impl SignalStack {
    /// Runs some work.
    pub fn run<T>(&mut self, work: impl FnOnce() -> T) -> T {
        work()
    }
}

/// Time that passes at each look at the clock.
const TICK: u64 = 1_000;
/// Nanoseconds of the simulated clock.
static NOW: AtomicU64 = AtomicU64::new(0);

/// Threads of the scheduler. A sleep lets simulated time pass.
pub mod thread {
    pub use shuttle::thread::{Builder, JoinHandle, current, scope, spawn, yield_now};

    use super::{AtomicU64, Duration, NOW, Ordering};

    /// Lets time pass, and other threads run.
    pub fn sleep(time: Duration) {
        let now: &AtomicU64 = &NOW;
        now.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        yield_now();
    }

    /// Sleeps, also if another thread wakes this one: a schedule may be that late.
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

    /// Returns the time since this time.
    pub fn elapsed(self) -> Duration {
        Instant::now().saturating_duration_since(self)
    }

    /// Returns the time from an earlier time to this one; zero from a later one.
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
