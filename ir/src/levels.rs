//! Longest ways, where things come in an order in which each stands behind all that it waits for.
//!
//! ```
//! use ixc_ir::levels::Levels;
//!
//! let mut written = Levels::default();
//! written.reach("a", 0);
//! written.reach("b", 3);
//! assert_eq!(written.longest(["a", "b", "c"]), Some(3));
//! assert_eq!(written.longest(["c"]), None);
//! ```
//!
//! The steps of a plan and the programs of a grid are both counted so: the level of a task is one more than that of what it reads, and what
//! it writes has its level.

use std::collections::HashMap;
use std::hash::Hash;

/// By what things leave, the length of the longest way to it: a number of links, or whatever else lengths are compared by.
#[derive(Clone, Debug)]
pub struct Levels<K, L = usize>(HashMap<K, L>);

impl<K, L> Default for Levels<K, L> {
    fn default() -> Levels<K, L> {
        Levels(HashMap::new())
    }
}

impl<K: Eq + Hash, L: Copy + Ord> Levels<K, L> {
    /// The longest of the ways to these; `None` where nothing leads to any.
    pub fn longest(&self, keys: impl IntoIterator<Item = K>) -> Option<L> {
        keys.into_iter().filter_map(|key| self.0.get(&key)).max().copied()
    }

    /// Says that a way of this length leads there.
    pub fn reach(&mut self, key: K, level: L) {
        let longest = self.0.entry(key).or_insert(level);
        *longest = level.max(*longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_way_changes_nothing() {
        let mut levels = Levels::default();
        for level in [2, 5, 1] {
            levels.reach('x', level);
        }
        levels.reach('y', 4);
        assert_eq!((levels.longest(['x', 'y']), levels.longest(['y']), levels.longest([])), (Some(5), Some(4), None));
    }
}
