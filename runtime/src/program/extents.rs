//! A set of byte ranges in the arena. Adjacent and overlapping ranges are merged, and overlaps with
//! another range are found by a tree search.

use std::collections::BTreeMap;
use std::ops::Range;

/// Map from the beginning of each range to its end. The ranges are disjoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Extents(BTreeMap<u64, u64>);

impl Extents {
    /// Adds a range. An empty range adds nothing.
    pub(super) fn add(&mut self, stretch: Range<u64>) {
        if stretch.is_empty() {
            return;
        }
        let Range { mut start, mut end } = stretch;
        // Removes all ranges that touch the new one, beginning with the last. A range is removed at
        // most once, so the amortised cost is low.
        while let Some((&first, &last)) = self.0.range(..=end).next_back().filter(|(_, last)| **last >= start) {
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.0.insert(start, end);
    }

    /// Returns whether a range has a byte in common with a range of this set.
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
        fn extents_report_overlap_with_added_ranges(added in prop::collection::vec((0u64..60, 0u64..9), 0..20), at in 0u64..60, length in 0u64..9) {
            let mut extents = Extents::default();
            let mut bytes = [false; 80];
            for (at, length) in added {
                extents.add(at..at + length);
                bytes[at as usize..(at + length) as usize].fill(true);
            }
            let expected = bytes[at as usize..(at + length) as usize].contains(&true);
            prop_assert_eq!(extents.overlap(&(at..at + length)), expected);
            // Ranges are merged, so no two of them touch.
            let all: Vec<_> = extents.0.iter().collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }
}
