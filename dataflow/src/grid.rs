//! A dataflow machine: a grid of processing elements (PEs), each with its own memory, joined by links to its neighbours.
//!
//! One TOML file describes one machine; each number stands there with its public source, and [`Grid::not_public`] names those that have
//! none and are estimates.
//!
//! Invariant: a grid that [`Grid::check`] takes has PEs, memory, links and a clock, all within what 32 bits of coordinates and a
//! simulator's clock hold.

use serde::{Deserialize, Serialize};

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// Name, as in `--target dataflow:NAME`.
    pub name: String,
    /// What machine it stands for, in a line.
    pub description: String,
    /// Where the numbers are from: titles or addresses of public documents.
    pub sources: Vec<String>,
    /// Fields whose values are not public, as paths (`pe.sram_ports.read_bytes`), each an estimate.
    pub not_public: Vec<String>,
    /// Columns of PEs; x counts from west to east.
    pub width: u32,
    /// Rows of PEs; y counts from north to south.
    pub height: u32,
    /// Cycles per second of PEs and links.
    pub clock_hz: f64,
    /// Each PE.
    pub pe: Pe,
    /// Each link between neighbours; there is one in each direction.
    pub link: Link,
    /// Where data comes in and goes out.
    pub io: Io,
}

/// A processing element.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Pe {
    /// Bytes of memory for weights, buffers, state and code.
    pub sram_bytes: u64,
    /// Bytes of it that the machine's own software takes.
    pub reserved_bytes: u64,
    /// Bytes read from memory in a cycle.
    pub read_bytes: u32,
    /// Bytes written to memory in a cycle.
    pub write_bytes: u32,
    /// Operations in a cycle, by what is computed with.
    pub operations: Operations,
    /// Cycles from a program's being ready to its first operation.
    pub start_cycles: u32,
}

/// Operations in a cycle of a PE. A multiply-add is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Operations {
    /// Products of bytes, added to 32 bits.
    pub int8: f64,
    /// Other integer operations of up to 32 bits: nibbles, shifts, additions.
    pub int: f64,
    /// f32 multiply-adds, multiplications, additions.
    pub f32: f64,
    /// Conversions, divisions, square roots.
    pub special: f64,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Bytes in a cycle.
    pub bytes: u32,
    /// Cycles from a PE's router to the next one's.
    pub hop_cycles: u32,
    /// How streams share links.
    pub routing: Routing,
}

/// How streams share links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Routing {
    /// A link has so many colours: virtual channels of messages that carry where they go to. During a wave a colour of a link belongs to one tensor from one end.
    Colours(u32),
    /// Messages carry where they go to; they only wait for each other.
    Packets,
}

/// The grid's edge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Io {
    /// Edges that data comes in and goes out by.
    pub edges: Vec<Edge>,
    /// Bytes per second, in and out together, all edges together.
    pub bytes_per_second: f64,
    /// Seconds from the host's sending to the edge.
    pub latency_seconds: f64,
}

/// An edge of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// x = 0.
    West,
    /// x = width - 1.
    East,
    /// y = 0.
    North,
    /// y = height - 1.
    South,
}

/// Why a grid is none.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("grid {grid}: {field} is {found}; {expected}")]
pub struct GridError {
    /// The grid's name.
    pub grid: String,
    /// The field.
    pub field: String,
    /// Its value.
    pub found: String,
    /// What would be right.
    pub expected: String,
}

/// Columns and rows at most.
const MOST_SIDE: u32 = 1 << 14;
/// PEs at most.
const MOST_PES: u64 = 1 << 22;
/// Colours of a link at most: a mask has a bit for each.
const MOST_COLOURS: u32 = 64;
/// Bytes of a PE's memory at most.
const MOST_SRAM: u64 = 1 << 32;

impl Grid {
    /// Checks the numbers.
    ///
    /// # Errors
    /// The first field whose value makes no machine.
    pub fn check(&self) -> Result<(), GridError> {
        let wrong = |field: &str, found: String, expected: &str| {
            Err(GridError { grid: self.name.clone(), field: field.to_owned(), found, expected: expected.to_owned() })
        };
        for (field, side) in [("width", self.width), ("height", self.height)] {
            if !(1..=MOST_SIDE).contains(&side) {
                return wrong(field, side.to_string(), "it must be 1 to 16384");
            }
        }
        if self.pes() > MOST_PES {
            return wrong("width x height", self.pes().to_string(), "there may be 4194304 PEs");
        }
        if !(1..=MOST_SRAM).contains(&self.pe.sram_bytes) {
            return wrong("pe.sram_bytes", self.pe.sram_bytes.to_string(), "it must be 1 to 4 GiB");
        }
        if self.pe.reserved_bytes >= self.pe.sram_bytes {
            return wrong(
                "pe.reserved_bytes",
                self.pe.reserved_bytes.to_string(),
                "it must be less than pe.sram_bytes",
            );
        }
        let counts = [
            ("pe.read_bytes", self.pe.read_bytes),
            ("pe.write_bytes", self.pe.write_bytes),
            ("link.bytes", self.link.bytes),
        ];
        for (field, count) in counts {
            if count == 0 {
                return wrong(field, count.to_string(), "it must be at least 1");
            }
        }
        let operations = &self.pe.operations;
        let rates = [
            ("clock_hz", self.clock_hz),
            ("pe.operations.int8", operations.int8),
            ("pe.operations.int", operations.int),
            ("pe.operations.f32", operations.f32),
            ("pe.operations.special", operations.special),
            ("io.bytes_per_second", self.io.bytes_per_second),
        ];
        for (field, rate) in rates {
            if !(rate.is_finite() && rate > 0.0) {
                return wrong(field, rate.to_string(), "it must be a positive number");
            }
        }
        if !(self.io.latency_seconds.is_finite() && self.io.latency_seconds >= 0.0) {
            return wrong("io.latency_seconds", self.io.latency_seconds.to_string(), "it must be a number from 0 on");
        }
        if self.io.edges.is_empty() {
            return wrong("io.edges", "[]".to_owned(), "there must be one that data comes in by");
        }
        if let Routing::Colours(colours) = self.link.routing
            && !(1..=MOST_COLOURS).contains(&colours)
        {
            return wrong("link.routing.colours", colours.to_string(), "there must be 1 to 64");
        }
        Ok(())
    }

    /// Number of PEs.
    pub fn pes(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Bytes of a PE that programs may take.
    pub fn usable_bytes(&self) -> u64 {
        self.pe.sram_bytes.saturating_sub(self.pe.reserved_bytes)
    }
}
