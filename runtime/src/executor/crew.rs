//! How many threads the steps of a text have, where others use the processors, too.
//!
//! All threads meet some hundred times in a step of one token, and the scheduler takes a processor away from a thread for milliseconds, with an item half
//! done: all others wait for it. Who has 16 threads on 16 processors and one neighbour may then be slower by half, and with 15 threads by a
//! sixteenth. So where threads wait for each other for longer than any item of such a step takes, some steps are tried with a thread less; the faster
//! way is kept, and the other tried again after a while, each time a longer one.
//!
//! ```text
//! 16 steps with 2 threads    31 ms each, of which threads waited 14 for one that did not run
//! 8 steps with 1 thread      24 ms each: go on with one
//! 16 steps later             8 steps with 2 threads: 33 ms each: go on with one, and try again 32 steps later
//! ```
//!
//! Only steps of one token count: those with more have larger items, and longer waits that are nobody's fault. What is computed does not depend on the
//! number of threads.

use std::time::Duration;

/// Steps that are compared with as many others.
const WINDOW: u32 = 8;
/// Windows until another number of threads is tried again, at first and at most: a try that is of no use costs a part of a thousandth of the time then.
const PATIENCE: (u32, u32) = (2, 64);
/// What steps must lose by waiting, as a part of what a thread does, for trying to go without one.
const WORTH: f64 = 0.8;
/// What another number of threads has to gain to be kept.
const GAIN: f64 = 0.03;

/// How many threads steps have.
#[derive(Clone, Debug)]
pub(crate) struct Crew {
    most: usize,
    /// Processors: more threads than that cannot run at once.
    processors: usize,
    /// The number that was best so far.
    threads: usize,
    /// What is tried instead, and how long a step took without it.
    trial: Option<(usize, f64)>,
    /// What was measured since the last decision.
    window: Window,
    /// How long a step took in the last window, where that was one with much waiting.
    late_step: Option<f64>,
    /// Windows that the next trial waits for, and how many have passed.
    patience: u32,
    passed: u32,
    /// Steps that had less threads than there are.
    reduced: u64,
    /// Whether some step waited for threads that did not run.
    crowded: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    steps: u32,
    wall: Duration,
    late: Duration,
}

impl Crew {
    /// Of so many threads, for so many processors.
    pub(crate) fn new(most: usize, processors: usize) -> Crew {
        Crew {
            most,
            processors,
            threads: most,
            trial: None,
            window: Window::default(),
            late_step: None,
            patience: PATIENCE.0,
            passed: PATIENCE.0,
            reduced: 0,
            crowded: false,
        }
    }

    /// Threads of the next step of one token.
    pub(crate) fn threads(&self) -> usize {
        self.trial.map_or(self.threads, |(threads, _)| threads)
    }

    /// How many steps had less threads than there are, since this was asked last.
    pub(crate) fn take_reduced(&mut self) -> u64 {
        std::mem::take(&mut self.reduced)
    }

    /// Whether steps ever waited for threads that did not run, so that it was worth a try to go without one.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Notes a step of one token: how long it took, and how long threads waited in it for others beyond spinning, all together.
    pub(crate) fn note(&mut self, wall: Duration, late: Duration) {
        let threads = self.threads();
        self.reduced += u64::from(threads < self.most);
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
        // All but one wait. Without that one work takes longer by its part of it, or by less where memory bounds it.
        let waited = late.as_secs_f64() / (threads.max(2) - 1) as f64;
        let is_late = threads > 1 && waited * threads as f64 >= WORTH * wall.as_secs_f64();
        // Something that runs for a moment now and then is gone before a trial would be over.
        let before = std::mem::replace(&mut self.late_step, is_late.then_some(step));
        let lasts = before.filter(|_| is_late);
        self.crowded |= lasts.is_some();
        if self.passed < self.patience {
            return;
        }
        self.trial = match lasts {
            Some(before) => Some(((threads - 1).min(self.processors.max(1)), (before + step) / 2.0)),
            None if threads < self.most => Some((threads + 1, step)),
            None => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which a step of so many threads takes so long, of which each of them waits so long.
    fn steps(crew: &mut Crew, count: u32, machine: impl Fn(usize) -> (u64, u64)) -> Vec<usize> {
        let step = |_| {
            let threads = crew.threads();
            let (wall, late) = machine(threads);
            crew.note(Duration::from_micros(wall), Duration::from_micros(late * (threads as u64 - 1)));
            threads
        };
        (0..count).map(step).collect()
    }

    #[test]
    fn who_is_alone_keeps_all_threads() {
        let mut crew = Crew::new(16, 16);
        // Some waits are nobody's fault, and are less than what a thread does; or much, but soon over.
        assert!(steps(&mut crew, 1000, |_| (10_000, 300)).into_iter().all(|threads| threads == 16));
        for _ in 0..100 {
            assert!(steps(&mut crew, 3 * WINDOW, |_| (10_000, 0)).into_iter().all(|threads| threads == 16));
            assert!(steps(&mut crew, WINDOW, |_| (20_000, 9000)).into_iter().all(|threads| threads == 16));
        }
        assert_eq!((crew.take_reduced(), crew.is_crowded()), (0, false));
        let mut single = Crew::new(1, 4);
        assert!(steps(&mut single, 100, |_| (10_000, 9000)).into_iter().all(|threads| threads == 1));
        assert!(!single.is_crowded());
    }

    #[test]
    fn a_thread_that_is_waited_for_is_left_out_as_long_as_that_pays() {
        let neighbour = |threads| match threads {
            16 => (20_000, 9000),
            threads => (160_000 / threads as u64, 0),
        };
        let mut crew = Crew::new(16, 16);
        let found = steps(&mut crew, 1000, neighbour);
        let first = 2 * WINDOW as usize;
        assert!(found[..first].iter().all(|threads| *threads == 16) && found[first] == 15);
        let with_all = found[first..].iter().filter(|threads| **threads == 16).count();
        assert!((8..=48).contains(&with_all) && found.iter().all(|threads| (15..=16).contains(threads)), "{with_all}");
        assert_eq!(crew.take_reduced(), (1000 - first - with_all) as u64);
        assert!(crew.take_reduced() == 0 && crew.is_crowded());
        // When it has gone, all threads are back before long, and stay.
        let found = steps(&mut crew, 2000, |threads| (160_000 / threads as u64, 0));
        let first = found.iter().position(|threads| *threads == 16).unwrap();
        assert!(first <= 8 * 65 && found[first..].iter().all(|threads| *threads == 16), "{first}");
    }

    #[test]
    fn waiting_that_fewer_threads_do_not_spare_costs_little() {
        let mut crew = Crew::new(4, 4);
        let found = steps(&mut crew, 8000, |threads| (40_000 / threads as u64 + 4000, 4000));
        let tried = found.iter().filter(|threads| **threads < 4).count();
        assert!(tried <= 8000 / 32 && found.iter().all(|threads| *threads >= 3), "{tried}");
    }

    #[test]
    fn more_threads_than_processors_are_soon_as_many() {
        let mut crew = Crew::new(16, 2);
        let found = steps(&mut crew, 1000, |threads| {
            (10_000 * threads as u64, if threads > 2 { 8000 * threads as u64 } else { 0 })
        });
        assert_eq!(found[16..24], [2; 8]);
        assert!(found[24..].iter().filter(|threads| **threads == 2).count() >= 900);
    }

    #[test]
    fn several_neighbours_take_several_threads() {
        let mut crew = Crew::new(8, 8);
        let found = steps(&mut crew, 2000, |threads| match threads {
            6.. => (threads as u64 * 4000, 10_000),
            threads => (50_000 / threads as u64, 0),
        });
        assert!(found[1000..].iter().filter(|threads| **threads == 5).count() >= 900);
    }
}
