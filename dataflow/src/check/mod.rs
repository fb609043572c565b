//! What is wrong with a descriptor before anything runs: indices, sizes, kernels, memory, routes.
//!
//! Takes any descriptor whatever. Leaves a [`Machine`]: a descriptor whose indices are in range, whose slices lie inside what they are slices of, whose
//! kernels verify and fit their ports, whose PEs hold what is put there, and whose streams all have both ends.
//!
//! | module | what it checks |
//! | --- | --- |
//! | `tables` | all that programs refer to, but streams |
//! | `program` | a program, its ports and where it is |
//! | `streams` | streams, and programs that share a state |
//! | [`coverage`] | that every byte that is wanted comes once |

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

/// Instances at most: more than any grid has room for.
const MOST_INSTANCES: u64 = 1 << 25;
/// Counts of arrivals at most: 4 bytes each.
const MOST_ARRIVALS: u64 = 1 << 29;
/// Streams, programs, tensors and so on at most, each.
const MOST_ITEMS: usize = 1 << 20;
/// Bytes of a row at most.
const MOST_ROW: u64 = 1 << 26;
/// Experts of a token at most.
const MOST_TOP_K: u32 = 4096;
/// Experts of all routings, and heads' parts of all states, at most: the simulator has a list for each.
const MOST_LISTS: u64 = 1 << 22;
/// Waves at most: placement makes no more.
const MOST_WAVES: usize = 4096;
/// Programs that work on one state at most: placement makes some four.
const MOST_SHARERS: usize = 256;
/// Bytes of a kernel's buffer for a rotary table at most: a row at each position of a part.
const MOST_ROPE: u64 = 1 << 28;
/// Steps of one firing's kernel at most.
pub(super) const MOST_STEPS: u64 = 1 << 32;

/// Why a descriptor is none that can run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// Another version.
    #[error("the descriptor has version {found}; this program reads {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// A grid that is none.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// Something that names what is not there, or a number out of range.
    #[error("{what}: {problem}")]
    Malformed {
        /// Where: a program, a stream, ...
        what: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A kernel that does not read or verify.
    #[error("kernel {name}: {source}")]
    Kernel {
        /// The kernel.
        name: String,
        /// Why.
        source: Box<ParseError>,
    },
    /// An instance that lies outside of the grid.
    #[error(
        "{program}: column {column}, expert {expert}, part {part} is at ({x}, {y}); the grid has {width} x {height} PEs"
    )]
    Outside {
        /// The program.
        program: String,
        /// Column.
        column: u32,
        /// Expert.
        expert: u32,
        /// Part.
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
    /// A port that receives what no stream brings.
    #[error("{program}: port {port} receives {tensor}, which no stream brings")]
    NothingSent {
        /// The program.
        program: String,
        /// Number of the port.
        port: usize,
        /// The tensor.
        tensor: String,
    },
    /// A stream to a program that has no port for it.
    #[error("stream {stream} brings {tensor} to {program}, which has no port that receives it")]
    NobodyReceives {
        /// Number of the stream.
        stream: usize,
        /// The tensor.
        tensor: String,
        /// The program.
        program: String,
    },
    /// A program that makes what no stream takes away.
    #[error("{program}: port {port} sends {tensor}, which no stream takes away")]
    NobodyTakes {
        /// The program.
        program: String,
        /// Number of the port.
        port: usize,
        /// The tensor.
        tensor: String,
    },
    /// A stream from a program that does not make its tensor.
    #[error("stream {stream} takes {tensor} from {program}, which does not send it")]
    NotSent {
        /// Number of the stream.
        stream: usize,
        /// The tensor.
        tensor: String,
        /// The program.
        program: String,
    },
    /// Bytes of a row that do not come once.
    #[error("{receiver}: bytes {from}..{to} of {tensor} {fault}")]
    Coverage {
        /// Who wants them.
        receiver: String,
        /// The tensor.
        tensor: String,
        /// The first byte of the row.
        from: u64,
        /// Behind the last.
        to: u64,
        /// What is wrong with them.
        fault: Fault,
    },
    /// A PE that holds too much.
    #[error(transparent)]
    Memory(#[from] Box<MemoryError>),
    /// Two streams that want the same colour of a link.
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
            | CheckError::NothingSent { .. }
            | CheckError::NobodyReceives { .. }
            | CheckError::NobodyTakes { .. }
            | CheckError::NotSent { .. }
            | CheckError::Coverage { .. }
            | CheckError::Memory(_)
            | CheckError::Route(_) => Class::Data,
        }
    }
}

/// A descriptor that was checked, ready to run.
#[derive(Debug)]
pub struct Machine {
    /// The descriptor.
    pub descriptor: Descriptor,
    /// Its kernels, verified.
    pub kernels: Vec<Kernel>,
    /// Its programs' instances.
    pub layout: Layout,
    /// Bytes of each PE that are taken.
    pub memory: Vec<u64>,
}

fn malformed(what: impl fmt::Display, problem: impl Into<String>) -> CheckError {
    CheckError::Malformed { what: what.to_string(), problem: problem.into() }
}

impl Machine {
    /// Checks a descriptor.
    ///
    /// # Errors
    /// The first thing that is wrong.
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
            let rows = program.ports.iter().map(|port| received(port).map_or(1, |slice| slice.rows)).max().unwrap_or(1);
            arrivals = arrivals.saturating_add(count.saturating_mul(rows.into()));
            // Those of a routing's ids need no stream, and are looked at all the same.
            let sends = program.ports.iter().filter_map(|port| match port {
                Port::Send(slice) => Some(taken.get(&(number as u32, slice.tensor)).copied().unwrap_or(1)),
                _ => None,
            });
            let sends = sends.fold(0, u64::saturating_add);
            outlets = outlets.saturating_add(count.saturating_mul(sends));
            for (what, found, most) in [
                ("instances", instances, MOST_INSTANCES),
                ("rows that there is room for", arrivals, MOST_ARRIVALS),
                ("outlets", outlets, 2 * MOST_INSTANCES),
            ] {
                if found > most {
                    let problem = format!("with it there are {found} {what}; {most} are the most");
                    return Err(malformed(program_name(&descriptor, number), problem));
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

/// Waves must load and store what programs on them have.
fn waves(d: &Descriptor) -> Result<(), CheckError> {
    for (number, (right, found)) in d.traffic().iter().zip(&d.waves).enumerate() {
        if found != right {
            let problem = format!(
                "it loads {} bytes and stores {}; its programs' weights and states are {} and {}",
                found.load_bytes, found.store_bytes, right.load_bytes, right.store_bytes
            );
            return Err(malformed(format!("wave {number}"), problem));
        }
    }
    Ok(())
}

/// What a port receives.
pub(super) fn received(port: &Port) -> Option<&Slice> {
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
    Err(malformed(what, format!("{kind} {index}, of which there are {count}")))
}
