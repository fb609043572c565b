//! `place`: turns a plan in pieces into a descriptor, the placement of programs on the processing
//! elements (PEs) of a grid.
//!
//! Input: a plan in pieces ([`crate::pieces`]) with kernels as IR, and a grid. Result: a
//! [`Descriptor`] with these properties:
//!
//! - Every slice of every matrix is on one PE, and no PE holds more than its memory.
//! - Every program receives its inputs by streams.
//! - During a wave, no colour of a link is used for two tensors.
//!
//! Equal plans and grids always give equal descriptors. The pass reads no bytes of weights.
//!
//! ```text
//! linear w:    tokens x 32, gemv_.._k512       program 3 at (4, 0), columns +1 x:
//!                                              on PEs (4, 0) to (35, 0)
//! linear w 1:  tokens x 32, gemv_.._k512_add   program 4 at (4, 1), columns +1 x:
//!                                              each receives from the PE above it
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`sizing`] | sizes of the pieces, from least latency to least memory |
//! | [`search`] | the first sizes that have room |
//! | [`kernels`] | kernels of all tried sizes |
//! | `programs` | tasks to programs, buffers to tensors, parts to states |
//! | `blocks` | programs placed together: chains below each other, states with their programs |
//! | `shelf_packing` | blocks side by side on shelves, a PE for each instance |
//! | `shared` | many instances on a PE, and waves if they are still too many |
//! | `streams` | senders and receivers of tensors |
//! | `colours` | routes and colours |

mod blocks;
mod colours;
pub mod kernels;
mod programs;
mod rooms;
pub mod search;
mod shared;
mod shelf_packing;
pub mod sizing;
mod streams;

use crate::descriptor::{Descriptor, Port, Wave};
use crate::grid::{Grid, GridError};
use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_passes::decision::Decisions;

/// Name of this pass in recorded decisions.
pub const DECIDES: &str = "place";

/// Method of distributing instances over PEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Each column has its own PE for its instances.
    OnePerPe,
    /// Several instances on a PE, with the whole model on the grid at once.
    Shared,
    /// Several instances on a PE, in as many waves as needed.
    TimeMultiplexed,
}

impl Placement {
    /// All methods of placement, the fastest first.
    const ALL: [Placement; 3] = [Placement::OnePerPe, Placement::Shared, Placement::TimeMultiplexed];

    /// Returns a description of the method, as text for users.
    fn describe(self) -> &'static str {
        match self {
            Placement::OnePerPe => "a PE of its own for each instance",
            Placement::Shared => "several instances on each PE, all in one wave",
            Placement::TimeMultiplexed => "several instances on each PE, in several waves",
        }
    }
}

/// Inputs of placement in addition to the plan and the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementOptions {
    /// Description of the model for the descriptor.
    pub model: String,
    /// Positions of the KV cache, for which the plan was cut into pieces.
    pub context: u32,
    /// Method of distributing instances over PEs.
    pub placement: Placement,
}

/// Reasons why placement failed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The grid is invalid.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The plan has something that no PE can do.
    #[error("{task}: {problem}")]
    Plan {
        /// Label of the task, or the part of the plan with the problem.
        task: String,
        /// The problem, and the expected value.
        problem: String,
    },
    /// A single instance needs more than a PE's memory.
    #[error(
        "an instance of {task} needs {bytes} bytes on its PE ({weights} of weights and states, {messages} of messages, {code} of code, {scratch} of working memory); a PE of grid {grid} has {available} bytes"
    )]
    Instance {
        /// The program's label.
        task: String,
        /// Number of bytes that one instance of the program needs.
        bytes: u64,
        /// Bytes of slices of weights, and of keys and values.
        weights: u64,
        /// Bytes for messages on the PE, if there is room for only one row of each message.
        messages: u64,
        /// Bytes of code.
        code: u64,
        /// Bytes of working memory.
        scratch: u64,
        /// The grid's name.
        grid: String,
        /// Bytes that a PE of the grid has.
        available: u64,
    },
    /// The grid has no room for all programs.
    #[error("grid {grid} has no room for {task}: {problem}")]
    Room {
        /// The first program for which no PEs were found.
        task: String,
        /// The grid's name.
        grid: String,
        /// The resource that is used up, as text.
        problem: String,
    },
    /// More tensors need a link than it has colours.
    #[error(
        "tensor {tensor} needs a colour on the link {direction} from PE ({x}, {y}), but all {colours} colours of this link are taken"
    )]
    Colours {
        /// Name of the tensor.
        tensor: String,
        /// Direction of the link.
        direction: &'static str,
        /// Column of the PE where the link begins.
        x: u32,
        /// Row of the PE where the link begins.
        y: u32,
        /// Number of colours of a link.
        colours: u32,
    },
}

impl PlaceError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            PlaceError::Grid(_)
            | PlaceError::Plan { .. }
            | PlaceError::Instance { .. }
            | PlaceError::Room { .. }
            | PlaceError::Colours { .. } => Class::Data,
        }
    }
}

/// Runs the pass, and records its decisions in `decisions`, if given.
///
/// # Errors
/// If the grid is invalid, the plan is not in pieces, or there is no room; see [`PlaceError`].
pub fn run(
    plan: &Plan<Kernel>,
    grid: &Grid,
    options: &PlacementOptions,
    decisions: Option<&Decisions>,
) -> Result<Descriptor, PlaceError> {
    grid.check()?;
    let mut descriptor = programs::programs(plan, grid, options)?;
    rooms::room_for_rows(&mut descriptor)?;
    let blocks = blocks::blocks(&descriptor);
    let waves = match options.placement {
        Placement::OnePerPe => shelf_packing::place(&mut descriptor, &blocks, decisions)?,
        Placement::Shared | Placement::TimeMultiplexed => {
            let waves = options.placement == Placement::TimeMultiplexed;
            shared::place(&mut descriptor, &blocks, waves, decisions)?
        }
    };
    descriptor.waves = vec![Wave { load_bytes: 0, store_bytes: 0 }; waves as usize];
    descriptor.waves = descriptor.traffic();
    streams::streams(&mut descriptor);
    let most = colours::colours(&mut descriptor)?;
    descriptor.reasons = reasons(&descriptor, &blocks, options, most);
    Ok(descriptor)
}

/// Returns the reasons for the placement, as text for users.
fn reasons(descriptor: &Descriptor, blocks: &[blocks::Block], options: &PlacementOptions, colours: u32) -> Vec<String> {
    let (usable, waves) = (descriptor.grid.usable_bytes(), descriptor.waves.len() as u32);
    let mut reasons = Vec::new();
    reasons.push(match options.placement {
        Placement::OnePerPe => {
            "each column's instances have PEs of their own: the grid is large enough for the pieces".to_string()
        }
        Placement::Shared => "instances share PEs, because there are more instances than PEs".to_string(),
        Placement::TimeMultiplexed => format!("{waves} waves: the grid's memory does not hold all weights at once"),
    });
    let (mut most, mut used, mut bytes) = ((0, 0, 0), 0u64, 0u64);
    for wave in 0..waves {
        for (pe, usage) in blocks::usage(descriptor, blocks, wave).iter().enumerate().filter(|(_, usage)| **usage > 0) {
            used += 1;
            bytes = bytes.saturating_add(*usage);
            if *usage > most.0 {
                most = (*usage, pe as u32 % descriptor.grid.width, pe as u32 / descriptor.grid.width);
            }
        }
    }
    let pes = descriptor.grid.pes().saturating_mul(waves.into());
    reasons.push(format!("{used} of {pes} PEs are used, their memory to {:.0} % on average", {
        100.0 * bytes as f64 / (used.max(1) as f64 * usable.max(1) as f64)
    }));
    reasons.push(format!("the fullest PE is ({}, {}): {} of {usable} bytes", most.1, most.2, most.0));
    let (mut slices, mut largest, mut which) = (0u64, 0, "");
    for program in &descriptor.programs {
        for port in &program.ports {
            if let Port::Weight { bytes, .. } = port {
                slices = slices.saturating_add(descriptor.instances(program));
                if *bytes > largest {
                    (largest, which) = (*bytes, &program.label);
                }
            }
        }
    }
    reasons.push(format!("{slices} slices of weights, the largest {largest} bytes ({which})"));
    if let Some(state) = descriptor.states.first() {
        let bytes = state.part_bytes();
        reasons.push(format!(
            "{} parts of {} positions for each head of the KV cache, {bytes} bytes each",
            state.parts.count, state.parts.positions
        ));
    }
    if colours > 0 {
        reasons.push(format!("the busiest link has {colours} colours in use"));
    }
    reasons
}
