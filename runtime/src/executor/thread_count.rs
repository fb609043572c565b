//! The number of threads of decode steps. It is reduced when other processes use the processors,
//! too.
//!
//! In a step of one token, all threads meet some hundred times. The scheduler can take a processor
//! away from a thread for milliseconds, in the middle of an item, while all other threads wait.
//! With 16 threads on 16 processors, one busy process can make steps slower by half; with 15
//! threads, only by a sixteenth.
//!
//! When threads wait for each other longer than any item of a step takes, some steps are tried with
//! one thread less. The faster number is kept. The other number is tried again after a while, which
//! becomes longer with each failed trial.
//!
//! ```text
//! 16 steps with 2 threads    31 ms each, including 14 ms of waiting for a thread that did not run
//! 8 steps with 1 thread      24 ms each: continue with one
//! 16 steps later             8 steps with 2 threads: 33 ms each; try again 32 steps later
//! ```
//!
//! Only steps of one token are measured. Larger steps have larger items, and long waits with other
//! causes. Results do not depend on the number of threads.

use std::time::Duration;

/// Number of steps in one measurement (a window).
const WINDOW: u32 = 8;
/// Minimum and maximum number of windows between two trials. At the maximum, failed trials cost
/// less than a thousandth of the time.
const PATIENCE: (u32, u32) = (2, 64);
/// Minimum waiting time of a thread that starts a trial with one thread less, as a fraction of one
/// thread's work.
const WORTH: f64 = 0.8;
/// Minimum relative speedup at which a trial's number of threads is kept.
const GAIN: f64 = 0.03;

/// The controller of the number of threads in decode steps.
#[derive(Clone, Debug)]
pub(crate) struct ThreadCount {
    max: usize,
    /// Number of processors, which is the maximum number of threads that can run at the same time.
    processors: usize,
    /// The best number of threads so far.
    threads: usize,
    /// The number of threads on trial, and the time of a step with the best number so far.
    trial: Option<(usize, f64)>,
    /// Measurements of the current window.
    window: Window,
    /// Time of a step in the previous window, if threads waited long in that window.
    late_step: Option<f64>,
    /// Number of windows between two trials. The next field counts the windows since the last
    /// trial.
    patience: u32,
    passed: u32,
    /// Number of steps that ran with fewer than all threads.
    reduced: u64,
    /// Whether steps have ever waited long for a thread that had no processor.
    crowded: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    steps: u32,
    wall: Duration,
    late: Duration,
}

impl ThreadCount {
    /// Creates a controller for at most `max` threads on `processors` processors.
    pub(crate) fn new(max: usize, processors: usize) -> ThreadCount {
        ThreadCount {
            max,
            processors,
            threads: max,
            trial: None,
            window: Window::default(),
            late_step: None,
            patience: PATIENCE.0,
            passed: PATIENCE.0,
            reduced: 0,
            crowded: false,
        }
    }

    /// Returns the number of threads of the next step of one token.
    pub(crate) fn threads(&self) -> usize {
        self.trial.map_or(self.threads, |(threads, _)| threads)
    }

    /// Returns the number of steps, since the last call, that ran with fewer than all threads.
    pub(crate) fn take_reduced(&mut self) -> u64 {
        std::mem::take(&mut self.reduced)
    }

    /// Returns whether steps have ever waited long enough for a descheduled thread to justify a
    /// trial.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Records a step of one token, with its wall time. `late` is the time that threads waited
    /// after they stopped spinning, summed over all threads.
    pub(crate) fn note(&mut self, wall: Duration, late: Duration) {
        let threads = self.threads();
        self.reduced += u64::from(threads < self.max);
        self.window.steps += 1;
        self.window.wall += wall;
        self.window.late += late;
        if self.window.steps < WINDOW {
            return;
        }
        let Window { steps, wall, late } = std::mem::take(&mut self.window);
        let step = wall.as_secs_f64() / f64::from(steps);
        if let Some((tried, before)) = self.trial.take() {
            (self.passed, self.late_step) = (0, None);
            if step < before * (1.0 - GAIN) {
                (self.threads, self.patience) = (tried, PATIENCE.0);
            } else {
                self.patience = (self.patience * 2).min(PATIENCE.1);
            }
            return;
        }
        self.passed = self.passed.saturating_add(1);
        // All threads wait except the late one. Without the late thread, the other threads must
        // also do its work. This makes compute-bound steps longer by that thread's share, and
        // memory-bound steps by less.
        let waited = late.as_secs_f64() / (threads.max(2) - 1) as f64;
        let is_late = threads > 1 && waited * threads as f64 >= WORTH * wall.as_secs_f64();
        // Waits must last for two windows, because a shorter disturbance would end before the
        // trial.
        let before = std::mem::replace(&mut self.late_step, is_late.then_some(step));
        let lasts = before.filter(|_| is_late);
        self.crowded |= lasts.is_some();
        if self.passed < self.patience {
            return;
        }
        self.trial = match lasts {
            Some(before) => Some(((threads - 1).min(self.processors.max(1)), (before + step) / 2.0)),
            None if threads < self.max => Some((threads + 1, step)),
            None => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates `count` steps, and returns the number of threads of each. `machine` returns, for a
    /// number of threads, a step's wall time and the wait of each thread, in microseconds.
    fn steps(thread_count: &mut ThreadCount, count: u32, machine: impl Fn(usize) -> (u64, u64)) -> Vec<usize> {
        let step = |_| {
            let threads = thread_count.threads();
            let (wall, late) = machine(threads);
            thread_count.note(Duration::from_micros(wall), Duration::from_micros(late * (threads as u64 - 1)));
            threads
        };
        (0..count).map(step).collect()
    }

    #[test]
    fn undisturbed_steps_use_all_threads() {
        let mut thread_count = ThreadCount::new(16, 16);
        // Waits shorter than one thread's work are ignored, and so are long waits that soon end.
        assert!(steps(&mut thread_count, 1000, |_| (10_000, 300)).into_iter().all(|threads| threads == 16));
        for _ in 0..100 {
            assert!(steps(&mut thread_count, 3 * WINDOW, |_| (10_000, 0)).into_iter().all(|threads| threads == 16));
            assert!(steps(&mut thread_count, WINDOW, |_| (20_000, 9000)).into_iter().all(|threads| threads == 16));
        }
        assert_eq!((thread_count.take_reduced(), thread_count.is_crowded()), (0, false));
        let mut single = ThreadCount::new(1, 4);
        assert!(steps(&mut single, 100, |_| (10_000, 9000)).into_iter().all(|threads| threads == 1));
        assert!(!single.is_crowded());
    }

    #[test]
    fn slow_thread_is_excluded_while_that_pays() {
        let neighbour = |threads| match threads {
            16 => (20_000, 9000),
            threads => (160_000 / threads as u64, 0),
        };
        let mut thread_count = ThreadCount::new(16, 16);
        let found = steps(&mut thread_count, 1000, neighbour);
        let first = 2 * WINDOW as usize;
        assert!(found[..first].iter().all(|threads| *threads == 16) && found[first] == 15);
        let with_all = found[first..].iter().filter(|threads| **threads == 16).count();
        assert!((8..=48).contains(&with_all) && found.iter().all(|threads| (15..=16).contains(threads)), "{with_all}");
        assert_eq!(thread_count.take_reduced(), (1000 - first - with_all) as u64);
        assert!(thread_count.take_reduced() == 0 && thread_count.is_crowded());
        // After the other process ends, the controller returns to all threads and keeps them.
        let found = steps(&mut thread_count, 2000, |threads| (160_000 / threads as u64, 0));
        let first = found.iter().position(|threads| *threads == 16).unwrap();
        assert!(first <= 8 * 65 && found[first..].iter().all(|threads| *threads == 16), "{first}");
    }

    #[test]
    fn unavoidable_waits_rarely_reduce_the_thread_count() {
        let mut thread_count = ThreadCount::new(4, 4);
        let found = steps(&mut thread_count, 8000, |threads| (40_000 / threads as u64 + 4000, 4000));
        let tried = found.iter().filter(|threads| **threads < 4).count();
        assert!(tried <= 8000 / 32 && found.iter().all(|threads| *threads >= 3), "{tried}");
    }

    #[test]
    fn thread_count_drops_to_the_processor_count() {
        let mut thread_count = ThreadCount::new(16, 2);
        let found = steps(&mut thread_count, 1000, |threads| {
            (10_000 * threads as u64, if threads > 2 { 8000 * threads as u64 } else { 0 })
        });
        assert_eq!(found[16..24], [2; 8]);
        assert!(found[24..].iter().filter(|threads| **threads == 2).count() >= 900);
    }

    #[test]
    fn several_busy_neighbours_exclude_several_threads() {
        let mut thread_count = ThreadCount::new(8, 8);
        let found = steps(&mut thread_count, 2000, |threads| match threads {
            6.. => (threads as u64 * 4000, 10_000),
            threads => (50_000 / threads as u64, 0),
        });
        assert!(found[1000..].iter().filter(|threads| **threads == 5).count() >= 900);
    }
}
