//! Simulated caches of a core: sets of lines, in which the least recently used line is replaced.
//!
//! A line's number is its virtual address divided by 64. The first level takes the index of a set
//! from bits within a page, which are the same in virtual and physical addresses. The second level
//! takes the index from the physical address. Physical addresses of pages are arbitrary, so a hash
//! gives each page an address, which is the same in every run. The third level hashes the number of
//! the line.
//!
//! ```text
//! | 32 rows with 8192 bytes from one to the next, a line of each
//! first level, 64 sets of 12:     bits 6 to 11 are equal, so all lines are in one set,
//!                                 and the first is replaced before its next use
//! second level, 2048 sets of 16:  each row is in a page of its own, at any place,
//!                                 so some sets have more lines than ways
//! ```

use ixc_ir::random::mix;
use ixc_targets::memory::{CacheShape, LINE, Level, Memory, PAGE, ThirdLevel};

/// Lines of a page.
const PAGE_LINES: u64 = PAGE / LINE;
/// Marks a way that has no line.
const EMPTY: u64 = u64::MAX;

/// Source of the index of a line's set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Index {
    /// The address within its page selects the set.
    InPage,
    /// The physical address selects the set.
    Physical,
    /// A hash of the line's address selects the set.
    Hashed,
}

/// A cache line that is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    number: u64,
    /// Whether the line was modified after it was read from memory.
    dirty: bool,
}

impl Line {
    fn pack(self) -> u64 {
        self.number << 1 | u64::from(self.dirty)
    }

    fn unpack(packed: u64) -> Line {
        Line { number: packed >> 1, dirty: packed & 1 == 1 }
    }
}

/// One cache level. The ways of a set are in order of their last use, the newest first.
#[derive(Clone, Debug)]
struct Cache {
    ways: usize,
    sets: u64,
    index: Index,
    lines: Vec<u64>,
}

impl Cache {
    fn new(shape: CacheShape, index: Index) -> Cache {
        let (ways, sets) = (shape.ways as usize, shape.sets());
        Cache { ways, sets, index, lines: vec![EMPTY; ways * sets as usize] }
    }

    fn set(&mut self, line: u64) -> &mut [u64] {
        let at = match self.index {
            Index::InPage => line,
            Index::Physical => mix(line / PAGE_LINES).wrapping_mul(PAGE_LINES).wrapping_add(line % PAGE_LINES),
            Index::Hashed => mix(line),
        };
        let first = (at % self.sets) as usize * self.ways;
        &mut self.lines[first..first + self.ways]
    }

    /// Returns whether the line is present. If so, makes it the newest of its set.
    fn touch(&mut self, line: u64, write: bool) -> bool {
        let set = self.set(line);
        let Some(at) = set.iter().position(|packed| packed >> 1 == line) else { return false };
        set[..=at].rotate_right(1);
        set[0] |= u64::from(write);
        true
    }

    /// Removes a line from its set. Returns the line, if it was in the cache.
    fn take(&mut self, line: u64) -> Option<Line> {
        let set = self.set(line);
        let at = set.iter().position(|packed| packed >> 1 == line)?;
        let taken = Line::unpack(set[at]);
        set[at..].rotate_left(1);
        set[set.len() - 1] = EMPTY;
        Some(taken)
    }

    /// Adds a line that is not present, and returns the line that it replaces.
    fn put(&mut self, line: Line) -> Option<Line> {
        let set = self.set(line.number);
        set.rotate_right(1);
        let gone = std::mem::replace(&mut set[0], line.pack());
        (gone != EMPTY).then(|| Line::unpack(gone))
    }
}

/// The caches of a core.
#[derive(Clone, Debug)]
pub struct Caches {
    l1: Cache,
    l2: Cache,
    l3: Cache,
    third: ThirdLevel,
}

impl Caches {
    /// Creates empty caches with the sizes and ways of `memory`.
    pub fn new(memory: &Memory) -> Caches {
        Caches {
            l1: Cache::new(memory.l1, Index::InPage),
            l2: Cache::new(memory.l2, Index::Physical),
            l3: Cache::new(memory.l3, Index::Hashed),
            third: memory.third,
        }
    }

    /// Reads or writes a line, and returns the level at which it was found. Afterwards, the line is
    /// in the first level.
    pub fn access(&mut self, line: u64, write: bool) -> Level {
        if self.l1.touch(line, write) {
            return Level::L1;
        }
        let level = if self.l2.touch(line, false) { Level::L2 } else { self.bring_to_l2(line) };
        self.fill_l1(Line { number: line, dirty: write });
        level
    }

    /// Moves a line to a level, and removes it from all levels nearer to the core.
    pub fn place(&mut self, line: u64, level: Level) {
        for cache in [&mut self.l1, &mut self.l2, &mut self.l3] {
            cache.take(line);
        }
        let clean = Line { number: line, dirty: false };
        match level {
            Level::L1 => {
                self.access(line, false);
            }
            Level::L2 => {
                self.bring_to_l2(line);
            }
            Level::L3 => self.fill_l3(clean),
            Level::Memory => {}
        }
    }

    /// Brings a line to the second level, unless the first or second level has it already. Returns
    /// the level at which the line was found.
    fn bring_to_l2(&mut self, line: u64) -> Level {
        let (level, dirty) = match self.third {
            ThirdLevel::Victims => match self.l3.take(line) {
                Some(found) => (Level::L3, found.dirty),
                None => (Level::Memory, false),
            },
            ThirdLevel::Inclusive if self.l3.touch(line, false) => (Level::L3, false),
            ThirdLevel::Inclusive => {
                self.fill_l3(Line { number: line, dirty: false });
                (Level::Memory, false)
            }
        };
        self.fill_l2(Line { number: line, dirty });
        level
    }

    fn fill_l1(&mut self, line: Line) {
        // When L1 evicts a line, a clean line is dropped, and a modified line is written back to
        // L2.
        if let Some(gone) = self.l1.put(line)
            && gone.dirty
            && !self.l2.touch(gone.number, true)
        {
            self.fill_l2(gone);
        }
    }

    fn fill_l2(&mut self, line: Line) {
        let Some(gone) = self.l2.put(line) else { return };
        match self.third {
            ThirdLevel::Victims => self.fill_l3(gone),
            // An inclusive third level already has the line.
            ThirdLevel::Inclusive => {
                self.l3.touch(gone.number, gone.dirty);
            }
        }
    }

    fn fill_l3(&mut self, line: Line) {
        // The third level may already have the line, because the first level can write back a line
        // that the second level has evicted.
        if self.l3.touch(line.number, line.dirty) {
            return;
        }
        if let Some(gone) = self.l3.put(line)
            && self.third == ThirdLevel::Inclusive
        {
            self.l1.take(gone.number);
            self.l2.take(gone.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns caches with these shapes. L1: 4 KiB, 1 way. L2: 8 KiB, 2 ways. L3: 64 KiB, 16 ways.
    fn small(third: ThirdLevel) -> Caches {
        Caches::new(&Memory {
            l1: CacheShape { bytes: 4096, ways: 1 },
            l2: CacheShape { bytes: 8192, ways: 2 },
            l3: CacheShape { bytes: 65536, ways: 16 },
            third,
        })
    }

    #[test]
    fn cache_line_is_found_at_its_level() {
        for third in [ThirdLevel::Victims, ThirdLevel::Inclusive] {
            let mut caches = small(third);
            assert_eq!(caches.access(5, false), Level::Memory);
            assert_eq!(caches.access(5, true), Level::L1);
            // Lines whose addresses have equal bits within the page share a set. A set has one way
            // in the first level, and two ways in the second.
            assert_eq!(caches.access(5 + 64, false), Level::Memory);
            assert_eq!(caches.access(5, false), Level::L2);
            for far in 2..9 {
                caches.access(5 + 64 * far, false);
            }
            assert_eq!(caches.access(5, false), Level::L3, "{third:?}");
            for level in Level::ALL {
                caches.place(7, level);
                assert_eq!(caches.access(7, false), level, "{third:?}");
            }
        }
    }

    #[test]
    fn victim_cache_holds_more_lines_than_inclusive_cache() {
        let again = |third, lines: u64| {
            let mut caches = small(third);
            (0..lines).for_each(|line| {
                caches.access(line, false);
            });
            (0..lines).filter(|line| caches.access(*line, false) == Level::Memory).count()
        };
        // 1088 lines exceed an inclusive third level (1024 lines). They fit in the second level and
        // a victim cache together (1024 + 128). Some lines still miss, because sets are not filled
        // evenly.
        assert!(again(ThirdLevel::Victims, 1088) < again(ThirdLevel::Inclusive, 1088));
        assert_eq!(again(ThirdLevel::Victims, 128), 0);
    }

    #[test]
    fn only_dirty_lines_are_written_back() {
        let mut cache = Cache::new(CacheShape { bytes: 4096, ways: 1 }, Index::InPage);
        assert_eq!(cache.put(Line { number: 3, dirty: false }), None);
        assert!(cache.touch(3, true) && !cache.touch(4, true));
        assert_eq!(cache.put(Line { number: 67, dirty: false }), Some(Line { number: 3, dirty: true }));
        assert_eq!(cache.take(67), Some(Line { number: 67, dirty: false }));
        assert_eq!(cache.take(67), None);
    }
}
