//! A dataflow machine: a grid of processing elements (PEs). Each has its own memory, and links to
//! its neighbours.
//!
//! One TOML file describes one machine. It contains the public source of each number;
//! [`Grid::not_public`] lists the numbers without a public source, which are estimates.
//!
//! Invariant: a grid that [`Grid::check`] accepts has PEs, memory, links and a clock. All numbers
//! fit 32-bit coordinates and the simulator's clock.

use serde::{Deserialize, Serialize};

/// A dataflow machine: a grid of PEs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// Name, used in `--target dataflow:NAME`.
    pub name: String,
    /// One-line description of the machine.
    pub description: String,
    /// Sources of the numbers: titles or addresses of public documents.
    pub sources: Vec<String>,
    /// Fields whose values are not public but estimated, as paths (`pe.sram_ports.read_bytes`).
    pub not_public: Vec<String>,
    /// Number of columns of PEs; x counts from west to east.
    pub width: u32,
    /// Number of rows of PEs; y counts from north to south.
    pub height: u32,
    /// Cycles per second of PEs and links.
    pub clock_hz: f64,
    /// Properties of each PE.
    pub pe: Pe,
    /// Properties of each link. Neighbours have two links, one in each direction.
    pub link: Link,
    /// Input and output of the grid.
    pub io: Io,
}

/// A processing element.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Pe {
    /// Bytes of memory for weights, buffers, state and code.
    pub sram_bytes: u64,
    /// Bytes of `sram_bytes` that the machine's system software needs.
    pub reserved_bytes: u64,
    /// Bytes read from memory per cycle.
    pub read_bytes: u32,
    /// Bytes written to memory per cycle.
    pub write_bytes: u32,
    /// Operations per cycle, by class.
    pub operations: Operations,
    /// Cycles between the time at which a program can fire and its first operation.
    pub start_cycles: u32,
}

/// Operations per cycle of a PE. A multiply-add is one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Operations {
    /// Products of int8, added to 32-bit sums.
    pub int8: f64,
    /// Other integer operations of up to 32 bits: unpacking of nibbles, shifts, additions.
    pub int: f64,
    /// f32 multiply-adds, multiplications and additions per cycle.
    pub f32: f64,
    /// Conversions, divisions and square roots.
    pub special: f64,
}

/// Properties of a link between neighbouring PEs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Bytes that the link transfers per cycle.
    pub bytes: u32,
    /// Cycles from one PE's router to the next PE's router.
    pub hop_cycles: u32,
    /// Method of sharing a link among streams.
    pub routing: Routing,
}

/// Method of sharing a link among streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Routing {
    /// Each link has this number of colours. A colour is a virtual channel; its messages carry
    /// their destination. During a wave, each colour of a link belongs to one tensor from one
    /// sender.
    Colours(u32),
    /// Messages carry their destination. They wait for each other, because there are no reserved
    /// channels.
    Packets,
}

/// Input and output at the grid's edges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Io {
    /// Edges for input and output.
    pub edges: Vec<Edge>,
    /// Bytes per second of all edges together, input and output.
    pub bytes_per_second: f64,
    /// Seconds from the host to the grid's edge.
    pub latency_seconds: f64,
}

/// An edge of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// The PEs with x = 0.
    West,
    /// The PEs with x = width - 1.
    East,
    /// The PEs with y = 0.
    North,
    /// The PEs with y = height - 1.
    South,
}

/// Reason why a grid is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("grid {grid}: {field} is {found}; {expected}")]
pub struct GridError {
    /// The grid's name.
    pub grid: String,
    /// Path of the invalid field.
    pub field: String,
    /// Value of the field.
    pub found: String,
    /// Description of valid values.
    pub expected: String,
}

/// Max columns, and max rows.
const MAX_SIDE: u32 = 1 << 14;
/// Max PEs.
const MAX_PES: u64 = 1 << 22;
/// Maximum colours of a link. Bit masks have a bit for each colour.
const MAX_COLOURS: u32 = 64;
/// Max bytes of a PE's memory.
const MAX_SRAM: u64 = 1 << 32;

impl Grid {
    /// Checks the numbers of the grid.
    ///
    /// # Errors
    /// The first field with an invalid value.
    pub fn check(&self) -> Result<(), GridError> {
        let wrong = |field: &str, found: String, expected: &str| {
            Err(GridError { grid: self.name.clone(), field: field.to_owned(), found, expected: expected.to_owned() })
        };
        for (field, side) in [("width", self.width), ("height", self.height)] {
            if !(1..=MAX_SIDE).contains(&side) {
                return wrong(field, side.to_string(), "it must be 1 to 16384");
            }
        }
        if self.pes() > MAX_PES {
            return wrong("width x height", self.pes().to_string(), "the grid may have at most 4194304 PEs");
        }
        if !(1..=MAX_SRAM).contains(&self.pe.sram_bytes) {
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
            return wrong("io.edges", "[]".to_owned(), "expected at least one edge of the grid for input");
        }
        if let Routing::Colours(colours) = self.link.routing
            && !(1..=MAX_COLOURS).contains(&colours)
        {
            return wrong("link.routing.colours", colours.to_string(), "expected 1 to 64 colours");
        }
        Ok(())
    }

    /// Returns the number of PEs.
    pub fn pes(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Returns the number of bytes of a PE that programs may use.
    pub fn usable_bytes(&self) -> u64 {
        self.pe.sram_bytes.saturating_sub(self.pe.reserved_bytes)
    }
}
