//! Queue of events in the order of their times: a wheel of lists, one for each of the next cycles,
//! and a heap for later events.
//!
//! Nearly all events are a few hundred cycles ahead. Inserting such an event pushes it to a list,
//! and removing it only looks at a bit. Events of a cycle come out in the order in which they were
//! put into its list.
//!
//! ```
//! use ixc_dataflow::queue::Queue;
//!
//! let mut queue = Queue::default();
//! [(9, 'c'), (3, 'a'), (3, 'b'), (1_000_000, 'd')].into_iter().for_each(|(at, event)| queue.push(at, event));
//! let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
//! assert_eq!(order, [(3, 'a'), (3, 'b'), (9, 'c'), (1_000_000, 'd')]);
//! ```
//!
//! Invariant: time never goes back. An event for the past comes out at the current time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of cycles that the wheel covers, a power of two.
const WHEEL: usize = 1 << 14;
const WORD: usize = 64;

/// An event after the cycles of the wheel. Of two events with the same time, the one added first is
/// less.
#[derive(Debug)]
struct Later<E> {
    at: u64,
    number: u64,
    event: E,
}

impl<E> PartialEq for Later<E> {
    fn eq(&self, other: &Later<E>) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl<E> Eq for Later<E> {}

impl<E> PartialOrd for Later<E> {
    fn partial_cmp(&self, other: &Later<E>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Later<E> {
    fn cmp(&self, other: &Later<E>) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Queue of events.
#[derive(Debug)]
pub struct Queue<E> {
    /// Lists of events: those of cycle `now + i` are at `(now + i) % WHEEL`.
    wheel: Vec<Vec<E>>,
    /// Bit set of the non-empty lists of the wheel.
    full: Vec<u64>,
    /// List of the current cycle, and the number of its events that have already come out.
    current: Vec<E>,
    taken: usize,
    now: u64,
    later: BinaryHeap<Reverse<Later<E>>>,
    pushed: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue {
            wheel: (0..WHEEL).map(|_| Vec::new()).collect(),
            full: vec![0; WHEEL / WORD],
            current: Vec::new(),
            taken: 0,
            now: 0,
            later: BinaryHeap::new(),
            pushed: 0,
        }
    }
}

impl<E: Copy> Queue<E> {
    /// Returns the time of the last removed event.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns the number of events that were added so far.
    pub fn push_count(&self) -> u64 {
        self.pushed
    }

    /// Adds an event.
    pub fn push(&mut self, at: u64, event: E) {
        self.pushed += 1;
        let at = at.max(self.now);
        if at == self.now {
            self.current.push(event);
        } else if at - self.now < WHEEL as u64 {
            self.put(at, event);
        } else {
            self.later.push(Reverse(Later { at, number: self.pushed, event }));
        }
    }

    fn put(&mut self, at: u64, event: E) {
        let place = at as usize % WHEEL;
        self.wheel[place].push(event);
        self.full[place / WORD] |= 1 << (place % WORD);
    }

    /// Removes and returns the next event.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        loop {
            if let Some(event) = self.current.get(self.taken) {
                self.taken += 1;
                return Some((self.now, *event));
            }
            self.current.clear();
            self.taken = 0;
            self.advance()?;
        }
    }

    /// Advances to the next time with an event.
    fn advance(&mut self) -> Option<()> {
        let near = self.near();
        let far = self.later.peek().map(|Reverse(later)| later.at);
        let next = match (near, far) {
            (Some(near), Some(far)) => near.min(far),
            (near, far) => near.or(far)?,
        };
        self.now = next;
        // Moves later events to lists that the wheel now covers. They keep their order: they were
        // added before all events that these lists will get from now on.
        while let Some(Reverse(later)) = self.later.peek() {
            if later.at - self.now >= WHEEL as u64 {
                break;
            }
            if let Some(Reverse(later)) = self.later.pop() {
                self.put(later.at, later.event);
            }
        }
        let place = self.now as usize % WHEEL;
        std::mem::swap(&mut self.current, &mut self.wheel[place]);
        self.full[place / WORD] &= !(1 << (place % WORD));
        Some(())
    }

    /// Returns the next time in the wheel that has an event.
    fn near(&self) -> Option<u64> {
        let start = (self.now as usize + 1) % WHEEL;
        let mut word = start / WORD;
        let mut bits = self.full[word] & (u64::MAX << (start % WORD));
        for _ in 0..=WHEEL / WORD {
            if bits != 0 {
                let place = word * WORD + bits.trailing_zeros() as usize;
                let ahead = (place + WHEEL - start) % WHEEL;
                return Some(self.now + 1 + ahead as u64);
            }
            word = (word + 1) % (WHEEL / WORD);
            bits = self.full[word];
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use ixc_ir::random::Random;

    use super::*;

    #[test]
    fn events_are_ordered_by_time_then_insertion() {
        let mut queue = Queue::default();
        let mut random = Random::new(7);
        let mut waiting: Vec<(u64, u64)> = Vec::new();
        let (mut number, mut last) = (0, 0);
        for round in 0..20_000 {
            for _ in 0..(round % 3) {
                let far = if random.once_in(16) { 100_000 } else { 300 };
                let at = queue.now() + random.below(far);
                queue.push(at, number);
                waiting.push((at, number));
                number += 1;
            }
            if let Some((at, event)) = queue.pop() {
                let place = waiting.iter().position(|(_, other)| *other == event).unwrap();
                let (right, _) = waiting.swap_remove(place);
                assert_eq!(at, right);
                assert!(waiting.iter().all(|(other, _)| *other >= at));
                assert!(at >= last);
                last = at;
            }
        }
        while queue.pop().is_some() {}
        assert_eq!(queue.push_count(), number);
    }

    #[test]
    fn past_events_are_queued_at_current_time() {
        let mut queue = Queue::default();
        queue.push(50, 'a');
        assert_eq!(queue.pop(), Some((50, 'a')));
        queue.push(3, 'b');
        queue.push(50, 'c');
        queue.push(50 + WHEEL as u64, 'e');
        queue.push(49 + WHEEL as u64, 'd');
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [(50, 'b'), (50, 'c'), (16433, 'd'), (16434, 'e')]);
    }
}
