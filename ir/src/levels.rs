//! Longest paths through a graph whose items arrive in topological order.
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
//! Both the steps of a plan and the programs of a dataflow grid are numbered in this way. The level
//! of a task is one more than the highest level of its inputs, and its outputs have its level.

use std::collections::HashMap;
use std::hash::Hash;

/// Length of the longest path to each key: a number of edges, or another ordered measure.
#[derive(Clone, Debug)]
pub struct Levels<K, L = usize>(HashMap<K, L>);

impl<K, L> Default for Levels<K, L> {
    fn default() -> Levels<K, L> {
        Levels(HashMap::new())
    }
}

impl<K: Eq + Hash, L: Copy + Ord> Levels<K, L> {
    /// Returns the longest of the paths to these keys, or `None` if no key has a path.
    pub fn longest(&self, keys: impl IntoIterator<Item = K>) -> Option<L> {
        keys.into_iter().filter_map(|key| self.0.get(&key)).max().copied()
    }

    /// Records that a path of this length leads to a key.
    pub fn reach(&mut self, key: K, level: L) {
        let longest = self.0.entry(key).or_insert(level);
        *longest = level.max(*longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_path_does_not_lower_the_level() {
        let mut levels = Levels::default();
        for level in [2, 5, 1] {
            levels.reach('x', level);
        }
        levels.reach('y', 4);
        assert_eq!((levels.longest(['x', 'y']), levels.longest(['y']), levels.longest([])), (Some(5), Some(4), None));
    }
}
