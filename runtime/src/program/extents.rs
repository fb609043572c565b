//! A set of stretches of the arena, joined where they meet: whether one more overlaps any of them is a search and no walk.

use std::collections::BTreeMap;
use std::ops::Range;

/// Stretches, apart from each other: begin to end.
#[derive(Clone, Debug, Default)]
pub(super) struct Extents(BTreeMap<u64, u64>);

impl Extents {
    /// Adds a stretch. One of no bytes adds nothing.
    pub(super) fn add(&mut self, stretch: Range<u64>) {
        if stretch.is_empty() {
            return;
        }
        let Range { mut start, mut end } = stretch;
        // All that begin before its end, from the last on, as far as they reach it. Each is taken once, and was added once.
        while let Some((&first, &last)) = self.0.range(..=end).next_back().filter(|(_, last)| **last >= start) {
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.0.insert(start, end);
    }

    /// Whether a stretch has a byte in common with one of these.
    pub(super) fn overlap(&self, stretch: &Range<u64>) -> bool {
        !stretch.is_empty() && self.0.range(..stretch.end).next_back().is_some_and(|(_, last)| *last > stretch.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn overlaps_what_was_added(added in prop::collection::vec((0u64..60, 0u64..9), 0..20), at in 0u64..60, length in 0u64..9) {
            let mut extents = Extents::default();
            let mut bytes = [false; 80];
            for (at, length) in added {
                extents.add(at..at + length);
                bytes[at as usize..(at + length) as usize].fill(true);
            }
            let expected = bytes[at as usize..(at + length) as usize].contains(&true);
            prop_assert_eq!(extents.overlap(&(at..at + length)), expected);
            // Joined: no two meet.
            let all: Vec<_> = extents.0.iter().collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }
}
