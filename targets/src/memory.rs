//! Levels of memory, and the cost of moving data from each level to a core. Caches come from a
//! target's row.
//!
//! ```
//! use ixc_targets::memory::{Level, tile_load};
//! use ixc_targets::Target;
//!
//! let memory = Target::AMX.row().memory();
//! assert_eq!((memory.l2.bytes, memory.l2.ways, memory.l2.sets()), (2 << 20, 16, 2048));
//! assert_eq!(tile_load(Level::L3).map(|figure| figure.cycles), Some(114.0));
//! ```

use serde::Serialize;

/// Bytes of a cache line, which are the same on every x86-64 CPU.
pub const LINE: u64 = 64;
/// Bytes of a page. Some caches are indexed by physical addresses. In these, the lines of a page
/// keep their order, but the system chooses the physical address of the page.
pub const PAGE: u64 = 4096;
/// Number of cache lines in a whole tile, which has 16 rows of 64 bytes.
pub const TILE_LINES: u64 = 16;
/// Associativity that is assumed for a third-level cache. Real caches have 11 to 16 ways. Their
/// sets are hashed, so little depends on the number.
const L3_WAYS: u32 = 16;

/// Level of memory in which data is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// First-level data cache of a core.
    L1,
    /// Second-level cache of a core.
    L2,
    /// A core's share of the third-level cache.
    L3,
    /// Main memory.
    Memory,
}

impl Level {
    /// Array of all levels. The level nearest to a core is first.
    pub const ALL: [Level; 4] = [Level::L1, Level::L2, Level::L3, Level::Memory];

    /// Returns the name of the level in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Level::L1 => "L1",
            Level::L2 => "L2",
            Level::L3 => "L3",
            Level::Memory => "memory",
        }
    }

    /// Returns the level with a name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(name))
    }
}

/// Content of a third-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ThirdLevel {
    /// All lines of L1 and L2. An eviction from L3 also evicts the line from L1 and L2.
    Inclusive,
    /// Lines that the second level has evicted, except lines that were loaded again.
    Victims,
}

impl ThirdLevel {
    /// Returns the description for the documentation.
    pub const fn description(self) -> &'static str {
        match self {
            ThirdLevel::Inclusive => "inclusive: also holds the lines of L2",
            ThirdLevel::Victims => "victims: lines evicted from L2",
        }
    }
}

/// Shape of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheShape {
    /// Size of the cache in bytes.
    pub bytes: u64,
    /// Associativity: the number of lines in a set.
    pub ways: u32,
}

impl CacheShape {
    /// Returns the number of sets in the cache.
    pub const fn sets(self) -> u64 {
        self.bytes / LINE / self.ways as u64
    }
}

/// Caches that are available to a core, with their shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// First-level data cache, indexed by the bits of an address within its page.
    pub l1: CacheShape,
    /// Second-level cache, indexed by the lowest bits of a physical address.
    pub l2: CacheShape,
    /// A core's share of the third-level cache, indexed by a hash of the physical address.
    pub l3: CacheShape,
    /// Content of the third level.
    pub third: ThirdLevel,
}

impl Memory {
    /// Returns caches with sizes of `l1`, `l2` and `l3` bytes. `l3` is a core's share of the third
    /// level.
    pub const fn new(l1: u64, l2: u64, l3: u64, l2_ways: u32, third: ThirdLevel) -> Memory {
        Memory {
            // Bits within a page index the first level, so each of its ways has the size of a page.
            l1: CacheShape { bytes: l1, ways: (l1 / PAGE) as u32 },
            l2: CacheShape { bytes: l2, ways: l2_ways },
            l3: CacheShape { bytes: l3, ways: L3_WAYS },
            third,
        }
    }
}

/// Origin of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Measured on one CPU, an Emerald Rapids, and assumed to hold for all CPUs.
    Measured,
    /// Assumed from common values, without a measurement.
    Assumed,
}

impl Origin {
    /// Returns the mark that shows the origin in the documentation.
    pub const fn mark(self) -> &'static str {
        match self {
            Origin::Measured => "measured",
            Origin::Assumed => "assumed",
        }
    }
}

/// Cycles for each operation in a sequence of equal operations, and the origin of the number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cycles {
    /// Number of cycles per operation.
    pub cycles: f64,
    /// Origin of the number of cycles.
    pub origin: Origin,
}

const fn measured_cycles(cycles: f64) -> Cycles {
    Cycles { cycles, origin: Origin::Measured }
}

const fn assumed_cycles(cycles: f64) -> Cycles {
    Cycles { cycles, origin: Origin::Assumed }
}

/// Costs of a load, one for each level after the first.
struct LoadCycles {
    l2: Cycles,
    l3: Cycles,
    memory: Cycles,
}

impl LoadCycles {
    /// Returns the cost of a load from a level. Returns `None` for the first level, where only the
    /// load ports limit the load.
    const fn at(&self, level: Level) -> Option<Cycles> {
        match level {
            Level::L1 => None,
            Level::L2 => Some(self.l2),
            Level::L3 => Some(self.l3),
            Level::Memory => Some(self.memory),
        }
    }
}

/// Costs of a TILELOADD of 16 lines. From L2, 17 to 40 cycles were measured over 512 KiB to 1.5
/// MiB, with about 25 in the middle. From L3, 107 to 127 cycles were measured. From memory, a
/// core's share is 3 bytes per cycle if all cores read.
const TILE_LOAD: LoadCycles =
    LoadCycles { l2: measured_cycles(25.0), l3: measured_cycles(114.0), memory: assumed_cycles(341.0) };
/// Costs of a line that vector or integer instructions read. The assumed rates are 32 bytes per
/// cycle from L2, 16 from L3, and 3 from memory.
const LINE_LOAD: LoadCycles =
    LoadCycles { l2: assumed_cycles(2.0), l3: assumed_cycles(4.0), memory: assumed_cycles(21.0) };

/// Returns the cost of a TILELOADD of 16 rows of 64 bytes. Returns `None` for the first level,
/// where only the load ports limit it.
pub const fn tile_load(level: Level) -> Option<Cycles> {
    TILE_LOAD.at(level)
}

/// Returns the cost of a line that vector or integer instructions read. Returns `None` for the
/// first level, where only the load ports limit it.
pub const fn line_load(level: Level) -> Option<Cycles> {
    LINE_LOAD.at(level)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::TARGETS;

    #[test]
    fn cache_shapes_are_valid_and_grow_with_level() {
        for row in TARGETS {
            let Memory { l1, l2, l3, .. } = row.memory();
            for cache in [l1, l2, l3] {
                assert_eq!(cache.sets() * u64::from(cache.ways) * LINE, cache.bytes, "{}: {cache:?}", row.name);
            }
            assert_eq!(l1.sets() * LINE, PAGE, "{}", row.name);
            assert!(l2.sets().is_power_of_two(), "{}: {l2:?}", row.name);
            assert!(l1.bytes < l2.bytes && l2.ways >= 8, "{}", row.name);
        }
    }

    #[test]
    fn farther_memory_levels_cost_more_cycles() {
        for figure in [tile_load, line_load] {
            let cycles: Vec<f64> = Level::ALL.into_iter().filter_map(figure).map(|figure| figure.cycles).collect();
            assert!(cycles.len() == 3 && cycles.is_sorted(), "{cycles:?}");
        }
        assert_eq!(Level::ALL.map(|level| Level::from_name(&level.name().to_lowercase())), Level::ALL.map(Some));
    }
}
