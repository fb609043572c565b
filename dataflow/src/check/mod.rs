//! Checks of a descriptor before a simulation: indices, sizes, kernels, memory, routes.
//!
//! The input is any descriptor. The result is a [`Machine`], which guarantees:
//!
//! - Indices are in range, and slices lie inside their tensors and weights.
//! - Kernels verify and fit their ports.
//! - The contents of each PE fit into the PE's memory.
//! - Both ends of each stream exist.
//!
//! | module | what it checks |
//! | --- | --- |
//! | `tables` | everything that programs refer to, except streams |
//! | `program` | a program, its ports and its place |
//! | `streams` | streams, and programs that share a state |
//! | [`coverage`] | each needed byte is sent exactly once |

pub mod coverage;
mod program;
mod streams;
mod tables;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashMap;
use std::fmt;

use crate::descriptor::{Descriptor, End, Port, Slice, VERSION, program_name};
use crate::grid::GridError;
use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_ir::kernel::parse::ParseError;

use self::coverage::Fault;
use crate::layout::Layout;
use crate::memory::{self, MemoryError};
use crate::routes::{self, RouteConflict};

/// Maximum instances: more than fit on any grid.
const MAX_INSTANCES: u64 = 1 << 25;
/// Max arrival counters; each has 4 bytes.
const MAX_ARRIVALS: u64 = 1 << 29;
/// Max number of streams, of programs, of tensors, and of the entries of each other table.
const MAX_ITEMS: usize = 1 << 20;
/// Max bytes of a row.
const MAX_ROW: u64 = 1 << 26;
/// Max number of experts for each token.
const MAX_TOP_K: u32 = 4096;
/// Maximum number of experts of all routings together, and of parts of all heads and states
/// together. The simulator has a list for each of them.
const MAX_LISTS: u64 = 1 << 22;
/// Max waves; placement makes no more.
const MAX_WAVES: usize = 4096;
/// Max programs that work on one state; placement makes about four.
const MAX_SHARERS: usize = 256;
/// Max bytes of a kernel's buffer for a rotary table: a row at each position of a part.
const MAX_ROPE: u64 = 1 << 28;
/// Max steps of a kernel in one firing.
pub(super) const MAX_STEPS: u64 = 1 << 32;

/// Reasons why a descriptor cannot run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// The version is not supported.
    #[error("the descriptor has version {found}; this program only reads version {VERSION}")]
    Version {
        /// Version that the descriptor states.
        found: u32,
    },
    /// The grid is invalid.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// A reference to something that does not exist, or a number out of range.
    #[error("{what}: {problem}")]
    Malformed {
        /// The object with the problem: a program, a stream, ...
        what: String,
        /// The problem, and the expected value.
        problem: String,
    },
    /// A kernel cannot be parsed or verified.
    #[error("kernel {name}: {source}")]
    Kernel {
        /// Name of the kernel.
        name: String,
        /// The error of parsing or verifying.
        source: Box<ParseError>,
    },
    /// An instance is outside of the grid.
    #[error(
        "{program}: the instance of column {column}, expert {expert}, part {part} is at PE ({x}, {y}); the grid has only {width} x {height} PEs"
    )]
    Outside {
        /// Number and label of the program.
        program: String,
        /// Number of the column.
        column: u32,
        /// Number of the expert.
        expert: u32,
        /// Number of the part.
        part: u32,
        /// Column of the PE.
        x: u32,
        /// Row of the PE.
        y: u32,
        /// Columns of the grid.
        width: u32,
        /// Rows of the grid.
        height: u32,
    },
    /// A port receives a tensor that no stream sends to it.
    #[error("{program}: port {port} receives tensor {tensor}, but no stream brings that tensor")]
    NoSendingStream {
        /// Name of the receiving program.
        program: String,
        /// Number of the port.
        port: usize,
        /// Name of the tensor.
        tensor: String,
    },
    /// A stream goes to a program without a port for it.
    #[error("stream {stream} brings tensor {tensor} to {program}, which has no port for that tensor")]
    NoReceivingPort {
        /// Number of the stream.
        stream: usize,
        /// Name of the tensor.
        tensor: String,
        /// Name of the receiving program.
        program: String,
    },
    /// A port sends a tensor that no stream takes.
    #[error("{program}: port {port} sends tensor {tensor}, but no stream takes that tensor")]
    NoTakingStream {
        /// Name of the sending program.
        program: String,
        /// Number of the port.
        port: usize,
        /// Name of the tensor.
        tensor: String,
    },
    /// A stream starts at a program that does not send the tensor.
    #[error("stream {stream} takes tensor {tensor} from {program}, which does not send that tensor")]
    NotSent {
        /// Number of the stream.
        stream: usize,
        /// Name of the tensor.
        tensor: String,
        /// Number and label of the program.
        program: String,
    },
    /// Bytes of a row are not sent exactly once.
    #[error("{receiver}: bytes {from}..{to} of {tensor} {fault}")]
    Coverage {
        /// Receiver of the bytes, as text.
        receiver: String,
        /// Name of the tensor.
        tensor: String,
        /// First affected byte of the row.
        from: u64,
        /// End of the affected bytes, exclusive.
        to: u64,
        /// Fault of the bytes.
        fault: Fault,
    },
    /// The contents of a PE exceed its memory.
    #[error(transparent)]
    Memory(#[from] Box<MemoryError>),
    /// Two streams need the same colour of a link.
    #[error(transparent)]
    Route(#[from] Box<RouteConflict>),
}

impl CheckError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            CheckError::Version { .. }
            | CheckError::Grid(_)
            | CheckError::Malformed { .. }
            | CheckError::Kernel { .. }
            | CheckError::Outside { .. }
            | CheckError::NoSendingStream { .. }
            | CheckError::NoReceivingPort { .. }
            | CheckError::NoTakingStream { .. }
            | CheckError::NotSent { .. }
            | CheckError::Coverage { .. }
            | CheckError::Memory(_)
            | CheckError::Route(_) => Class::Data,
        }
    }
}

/// A checked descriptor, ready to run.
#[derive(Debug)]
pub struct Machine {
    /// The descriptor.
    pub descriptor: Descriptor,
    /// Verified kernels of the descriptor.
    pub kernels: Vec<Kernel>,
    /// Instances of the programs.
    pub layout: Layout,
    /// Bytes used on each PE.
    pub memory: Vec<u64>,
}

fn malformed_error(what: impl fmt::Display, problem: impl Into<String>) -> CheckError {
    CheckError::Malformed { what: what.to_string(), problem: problem.into() }
}

impl Machine {
    /// Checks a descriptor.
    ///
    /// The first problem.
    pub fn new(descriptor: Descriptor) -> Result<Machine, CheckError> {
        let kernels = tables::tables(&descriptor)?;
        let mut instances = 0u64;
        let mut arrivals = 0u64;
        let mut outlets = 0u64;
        let mut steps = program::Steps::default();
        let mut taken: HashMap<(u32, u32), u64> = HashMap::new();
        for stream in &descriptor.streams {
            if let End::Program(from) = stream.from {
                *taken.entry((from, stream.tensor)).or_default() += 1;
            }
        }
        for (number, program) in descriptor.programs.iter().enumerate() {
            program::check_program(&descriptor, &kernels, &mut steps, number, program)?;
            let count = descriptor.instances(program);
            instances = instances.saturating_add(count);
            let rows =
                program.ports.iter().map(|port| received_slice(port).map_or(1, |slice| slice.rows)).max().unwrap_or(1);
            arrivals = arrivals.saturating_add(count.saturating_mul(rows.into()));
            // The ids of a routing need no stream. They are checked like logits that the host
            // receives.
            let sends = program.ports.iter().filter_map(|port| match port {
                Port::Send(slice) => Some(taken.get(&(number as u32, slice.tensor)).copied().unwrap_or(1)),
                _ => None,
            });
            let sends = sends.fold(0, u64::saturating_add);
            outlets = outlets.saturating_add(count.saturating_mul(sends));
            for (what, found, most) in [
                ("instances", instances, MAX_INSTANCES),
                ("rows in buffers", arrivals, MAX_ARRIVALS),
                ("outlets", outlets, 2 * MAX_INSTANCES),
            ] {
                if found > most {
                    let problem = format!(
                        "with this program, the number of {what} of all programs is {found}; the limit is {most}"
                    );
                    return Err(malformed_error(program_name(&descriptor, number), problem));
                }
            }
            program::check_sites(&descriptor, number, program)?;
        }
        streams::streams(&descriptor)?;
        coverage::check(&descriptor)?;
        streams::states(&descriptor)?;
        waves(&descriptor)?;
        let layout = Layout::new(&descriptor);
        let memory = memory::check(&descriptor, &layout)?;
        streams::colours(&descriptor)?;
        routes::check(&descriptor, &layout)?;
        Ok(Machine { descriptor, kernels, layout, memory })
    }
}

/// Checks that each wave loads and stores exactly the weights and states of its programs.
fn waves(d: &Descriptor) -> Result<(), CheckError> {
    for (number, (right, found)) in d.traffic().iter().zip(&d.waves).enumerate() {
        if found != right {
            let problem = format!(
                "it loads {} bytes and stores {} bytes; the weights and states of its programs need {} and {} bytes",
                found.load_bytes, found.store_bytes, right.load_bytes, right.store_bytes
            );
            return Err(malformed_error(format!("wave {number}"), problem));
        }
    }
    Ok(())
}

/// Returns the slice that a port receives, if any.
pub(super) fn received_slice(port: &Port) -> Option<&Slice> {
    match port {
        Port::Receive(slice) | Port::ReceiveSlots(slice) | Port::ReceiveRope(slice) => Some(slice),
        Port::ReceiveParts { slice, .. } => Some(slice),
        Port::Weight { .. } | Port::Send(_) | Port::Keys(_) | Port::Values(_) => None,
        Port::Position | Port::PositionBlock | Port::PositionLane => None,
        Port::SlotNumbers(_) | Port::Scratch { .. } => None,
    }
}

fn exists(what: impl fmt::Display, kind: &str, index: u32, count: usize) -> Result<(), CheckError> {
    if (index as usize) < count {
        return Ok(());
    }
    Err(malformed_error(what, format!("{kind} {index} does not exist; the descriptor has {count}, numbered from 0")))
}
