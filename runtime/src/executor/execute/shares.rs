//! How a stage's items are divided among threads.
//!
//! Each thread begins with its own stretch of them, the same one at every step, whose counter is in a cache line that nobody else wants yet.
//! It takes stretches of it, shorter towards the end, and when it has none left it takes the back half of what another thread still
//! has. So neighbouring items, which are neighbouring weight rows, are read by one thread one after the other, and no counter is shared
//! by all: one that is costs 16 threads 0.4 µs a call.
//!
//! Items that are worth most in order (experts as they arrive from the drive) are taken from one stretch by all threads.
//!
//! ```text
//! 3 threads, 12 items     thread 0: 0..4, thread 1: 4..8, thread 2: 8..12
//! thread 0 is done first  and takes 10..12 where thread 2 is at 9
//! ```
//!
//! Invariant: every item of a round is given once. A stretch is only ever cut, never joined, so that no counter comes back to a value that it had in
//! this round, and a thread that saw it then changes nothing.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::{Line, is_crowded};

/// A thread takes this part of what it has left.
const PARTS: u64 = 8;
/// Bits of a place in a stage: items beyond that are taken several at a time.
const BITS: u32 = 20;
const MASK: u64 = (1 << BITS) - 1;
/// Rounds are told apart by so many; [`Shares::between`] sees to it that no counter is older than half of that.
const ROUNDS: u64 = 1 << (64 - 2 * BITS);

/// One counter for each thread: of which round it is, the first unit that is left, the first that belongs to others.
pub(super) struct Shares {
    counters: Box<[Line<AtomicU64>]>,
    /// There are more threads than CPUs: some may not run for long.
    is_crowded: bool,
}

/// What a counter says.
#[derive(Clone, Copy)]
struct Stretch {
    next: u64,
    end: u64,
}

impl Stretch {
    fn len(self) -> u64 {
        self.end.saturating_sub(self.next)
    }

    /// In a counter.
    fn packed(self, round: u64) -> u64 {
        (round % ROUNDS) << (2 * BITS) | self.next << BITS | self.end
    }
}

/// A stage's items, as one thread is given them.
pub(super) struct Turn<'s> {
    shares: &'s Shares,
    thread: u64,
    /// Of this pass; the first is 1.
    round: u64,
    total: u64,
    /// Items that are given at once, at least.
    unit: u64,
    /// All take from one stretch, in order.
    in_order: bool,
}

impl Shares {
    pub(super) fn new(threads: usize) -> Shares {
        Shares { counters: (0..threads.max(1)).map(|_| Line::default()).collect(), is_crowded: is_crowded(threads) }
    }

    /// How many threads share.
    pub(super) fn threads(&self) -> u64 {
        self.counters.len() as u64
    }

    /// Called by one thread while all others wait between a round and the next.
    pub(super) fn between(&self, round: u64) {
        // Counters that a round does not need keep what they had.
        if round.is_multiple_of(ROUNDS / 2) {
            let nothing = Stretch { next: 0, end: 0 }.packed(round);
            self.counters.iter().for_each(|counter| counter.0.store(nothing, Ordering::Relaxed));
        }
    }

    /// Every thread has a turn of every round, with the same total and order; between two rounds all threads meet.
    pub(super) fn turn(&self, thread: usize, round: u64, total: u64, in_order: bool) -> Turn<'_> {
        let unit = total.div_ceil(MASK).max(1);
        Turn { shares: self, thread: thread as u64, round, total, unit, in_order }
    }
}

impl Turn<'_> {
    fn threads(&self) -> u64 {
        self.shares.counters.len() as u64
    }

    fn units(&self) -> u64 {
        self.total.div_ceil(self.unit)
    }

    /// What a thread has in a counter that reads `word`.
    fn stretch(&self, of: u64, word: u64) -> Stretch {
        if word >> (2 * BITS) == self.round % ROUNDS {
            return Stretch { next: word >> BITS & MASK, end: word & MASK };
        }
        // Its thread has not begun.
        match (self.in_order, of) {
            (true, 0) => Stretch { next: 0, end: self.units() },
            (true, _) => Stretch { next: 0, end: 0 },
            (false, _) => {
                let (units, threads) = (self.units(), self.threads());
                // Where there are fewer than threads, the first have them: they leave barriers first.
                Stretch { next: (units * of).div_ceil(threads), end: (units * (of + 1)).div_ceil(threads) }
            }
        }
    }

    /// Cuts what a thread has left, as `cut` says of what that is: what stays, and what is taken.
    fn take(&self, of: u64, cut: impl Fn(Stretch) -> (Stretch, Stretch)) -> Option<Stretch> {
        let counter = &self.shares.counters[of as usize].0;
        let mut word = counter.load(Ordering::Relaxed);
        loop {
            let stretch = self.stretch(of, word);
            if stretch.len() == 0 {
                return None;
            }
            let (rest, taken) = cut(stretch);
            // Counters order nothing but themselves: what items read was written before the threads met.
            match counter.compare_exchange_weak(word, rest.packed(self.round), Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(found) => word = found,
            }
        }
    }

    /// The next items, or `None` where there are none left.
    pub(super) fn next(&self) -> Option<Range<u64>> {
        let own = if self.in_order { 0 } else { self.thread };
        let parts = if self.in_order { PARTS * self.threads() } else { PARTS };
        let front = |stretch: Stretch| {
            let middle = stretch.next + (stretch.len() / parts).max(1);
            (Stretch { next: middle, ..stretch }, Stretch { end: middle, ..stretch })
        };
        let taken = self.take(own, front).or_else(|| {
            self.steal().map(|stolen| {
                let (rest, taken) = front(stolen);
                // Nobody else changes a counter that has nothing left.
                self.shares.counters[own as usize].0.store(rest.packed(self.round), Ordering::Relaxed);
                taken
            })
        });
        taken.map(|taken| taken.next * self.unit..taken.end.saturating_mul(self.unit).min(self.total))
    }

    /// The back half of what another thread has left.
    fn steal(&self) -> Option<Stretch> {
        // With one unit for each thread little is gained, since all of them are waited for; unless they wait for each other's CPU.
        if self.in_order || self.units() <= self.threads() && !self.shares.is_crowded {
            return None;
        }
        let back = |stretch: Stretch| {
            let middle = stretch.end - stretch.len().div_ceil(2);
            (Stretch { end: middle, ..stretch }, Stretch { next: middle, ..stretch })
        };
        (1..self.threads()).find_map(|i| self.take((self.thread + i) % self.threads(), back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Barrier;
    use std::sync::Mutex;

    /// Every thread takes what it is given, in rounds of these totals; gives the ranges of each round and who took them.
    fn rounds(threads: usize, totals: &[u64], in_order: bool) -> Vec<Vec<(usize, Range<u64>)>> {
        let (shares, barrier) = (Shares::new(threads), Barrier::new(threads));
        let taken: Vec<Mutex<Vec<_>>> = totals.iter().map(|_| Mutex::default()).collect();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (shares, barrier, taken) = (&shares, &barrier, &taken);
                scope.spawn(move || {
                    for (round, &total) in totals.iter().enumerate() {
                        let turn = shares.turn(thread, round as u64 + 1, total, in_order);
                        while let Some(range) = turn.next() {
                            taken[round].lock().unwrap().push((thread, range));
                            if thread == 0 {
                                std::thread::yield_now();
                            }
                        }
                        barrier.wait(thread, || {});
                    }
                });
            }
        });
        taken.into_iter().map(|taken| taken.into_inner().unwrap()).collect()
    }

    #[test]
    fn every_item_is_given_once() {
        let mut totals: Vec<u64> = (0..200).map(|i| i * i % 301).collect();
        totals.push(40_000);
        for threads in [1, 2, 3, 5, 16] {
            for in_order in [false, true] {
                for (mut taken, &total) in rounds(threads, &totals, in_order).into_iter().zip(&totals) {
                    taken.sort_by_key(|(_, range)| range.start);
                    let end = taken.iter().fold(0, |end, (_, range)| {
                        assert!(range.start == end && range.end > end, "{threads} threads, {total}: {taken:?}");
                        range.end
                    });
                    assert_eq!(end, total, "{threads} threads");
                }
            }
        }
    }

    #[test]
    fn counters_that_were_not_needed_for_very_many_rounds_hide_nothing() {
        let count = |shares: &Shares, round| {
            let turn = shares.turn(0, round, 10, false);
            std::iter::from_fn(|| turn.next()).map(|range| range.end - range.start).sum::<u64>()
        };
        // Otherwise a counter that no round needed reads as used up, and so does one of a round with the same tag.
        let unused = Shares::new(2);
        unused.between(ROUNDS / 2);
        assert_eq!(count(&unused, ROUNDS), 10);
        let used = Shares::new(2);
        assert_eq!(count(&used, 5), 10);
        [ROUNDS / 2, ROUNDS].into_iter().for_each(|round| used.between(round));
        assert_eq!(count(&used, ROUNDS + 5), 10);
    }

    #[test]
    fn items_beyond_a_counter_are_given_several_at_a_time() {
        let total = (1 << 22) + 5;
        let shares = Shares::new(1);
        let turn = shares.turn(0, 1, total, false);
        let ends = std::iter::from_fn(|| turn.next()).fold(0, |end, range| {
            assert_eq!(range.start, end);
            range.end
        });
        assert_eq!(ends, total);
    }

    #[test]
    fn a_thread_that_is_done_takes_the_back_half_of_anothers() {
        let shares = Shares::new(2);
        let [first, second] = [0, 1].map(|thread| shares.turn(thread, 7, 40, false));
        assert_eq!(first.next(), Some(0..2));
        // The second does not begin. What it has is taken by halves, from the back, the first of them when 2..20 are done.
        let rest: Vec<_> = std::iter::from_fn(|| first.next()).collect();
        let stolen = rest.iter().find(|range| range.start >= 20).unwrap();
        assert_eq!(stolen.start, 30);
        assert_eq!(rest.iter().map(|range| range.end - range.start).sum::<u64>(), 38);
        assert_eq!(second.next(), None);
        // In the next round it has its own again.
        assert_eq!(shares.turn(1, 8, 4, false).next(), Some(2..3));
        // One item each is not taken from a thread that is late, unless that may have no CPU.
        assert_eq!(shares.turn(0, 9, 2, false).next(), Some(0..1));
        let late = if shares.is_crowded { (Some(1..2), None) } else { (None, Some(1..2)) };
        assert_eq!((shares.turn(0, 9, 2, false).next(), shares.turn(1, 9, 2, false).next()), late);
        assert_eq!(shares.turn(0, 10, 1, false).next(), Some(0..1));
        assert_eq!(shares.turn(1, 10, 1, false).next(), None);
    }
}
