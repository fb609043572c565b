//! What is wrong with a descriptor before anything runs: indices, sizes, kernels, memory, routes.
//!
//! Takes any descriptor whatever. Leaves a [`Machine`]: a descriptor whose indices are in range, whose slices lie inside what they are slices of, whose
//! kernels verify and fit their ports, whose PEs hold what is put there, and whose streams all have both ends.

use std::fmt;

use ixc_ir::dataflow::descriptor::{Axis, Descriptor, End, Port, Program, Slice, TensorSource, VERSION};
use ixc_ir::dataflow::grid::GridError;
use ixc_ir::kernel::parse::ParseError;
use ixc_ir::kernel::{BufferKind, Kernel};
use ixc_ir::plan::DimRule;

use super::cost::evaluate;
use super::layout::{Layout, start};
use super::memory::{self, MemoryError};
use super::routes::{self, RouteConflict};

/// Instances at most: more than any grid has room for.
const MOST_INSTANCES: u64 = 1 << 25;
/// Counts of arrivals at most: 4 bytes each.
const MOST_ARRIVALS: u64 = 1 << 29;
/// Streams, programs, tensors and so on at most, each.
const MOST_ITEMS: usize = 1 << 20;
/// Bytes of a row at most.
const MOST_ROW: u64 = 1 << 32;

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
    /// A PE that holds too much.
    #[error(transparent)]
    Memory(#[from] Box<MemoryError>),
    /// Two streams that want the same colour of a link.
    #[error(transparent)]
    Route(#[from] Box<RouteConflict>),
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

/// What names a program in errors: its number and label.
pub(super) fn program_name(descriptor: &Descriptor, number: usize) -> String {
    let label = descriptor.programs.get(number).map_or("", |program| program.label.as_str());
    format!("program {number} ({label})")
}

impl Machine {
    /// Checks a descriptor.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn new(descriptor: Descriptor) -> Result<Machine, CheckError> {
        let kernels = tables(&descriptor)?;
        let mut instances = 0u64;
        let mut arrivals = 0u64;
        let mut outlets = 0u64;
        for (number, program) in descriptor.programs.iter().enumerate() {
            check_program(&descriptor, &kernels, number, program)?;
            let count = descriptor.instances(program);
            instances = instances.saturating_add(count);
            let rows = program.ports.iter().map(|port| received(port).map_or(1, |slice| slice.rows)).max().unwrap_or(1);
            arrivals = arrivals.saturating_add(count.saturating_mul(rows.into()));
            let sends = program.ports.iter().filter(|port| matches!(port, Port::Send(_))).count() as u64;
            let streams = descriptor.streams.iter().filter(|s| s.from == End::Program(number as u32)).count() as u64;
            outlets = outlets.saturating_add(count.saturating_mul(sends.min(streams)));
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
            check_sites(&descriptor, number, program)?;
        }
        streams(&descriptor)?;
        states(&descriptor)?;
        let layout = Layout::new(&descriptor);
        let memory = memory::check(&descriptor, &layout)?;
        routes::check(&descriptor, &layout)?;
        Ok(Machine { descriptor, kernels, layout, memory })
    }
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

/// Checks all that programs refer to; gives the kernels.
fn tables(d: &Descriptor) -> Result<Vec<Kernel>, CheckError> {
    if d.version != VERSION {
        return Err(CheckError::Version { found: d.version });
    }
    d.grid.check()?;
    for (what, count) in [
        ("weights", d.weights.len()),
        ("kernels", d.kernels.len()),
        ("tensors", d.tensors.len()),
        ("routings", d.routings.len()),
        ("states", d.states.len()),
        ("programs", d.programs.len()),
        ("streams", d.streams.len()),
        ("waves", d.waves.len()),
    ] {
        if count > MOST_ITEMS {
            return Err(malformed(what, format!("{count}; {MOST_ITEMS} are the most")));
        }
    }
    if d.waves.is_empty() {
        return Err(malformed("waves", "there is none; there must be one at least"));
    }
    if d.vocabulary == 0 || d.context == 0 {
        return Err(malformed("vocabulary and context", "they must be at least 1"));
    }
    for (i, tensor) in d.tensors.iter().enumerate() {
        let what = || format!("tensor {i} ({})", tensor.name);
        if tensor.row_bytes == 0 || tensor.row_bytes > MOST_ROW {
            return Err(malformed(what(), format!("a row of {} bytes; it must be 1 to {MOST_ROW}", tensor.row_bytes)));
        }
        if let Axis::Routed(routing) = tensor.axis {
            exists(what(), "routing", routing, d.routings.len())?;
        }
        if let TensorSource::Rope(rope) = tensor.source {
            exists(what(), "rotary table", rope, d.ropes.len())?;
            let table = &d.ropes[rope as usize];
            let pairs = u32::try_from(table.frequencies.len()).unwrap_or(u32::MAX);
            let right = table.style.row_bytes(pairs.saturating_mul(2));
            if right != tensor.row_bytes {
                let problem = format!("a row of {} bytes; those of the table have {right}", tensor.row_bytes);
                return Err(malformed(what(), problem));
            }
        }
        if tensor.source != TensorSource::Programs && tensor.axis != Axis::Tokens {
            return Err(malformed(what(), "what the host makes has a row for each token"));
        }
    }
    for (i, routing) in d.routings.iter().enumerate() {
        let what = || format!("routing {i}");
        exists(what(), "tensor", routing.ids, d.tensors.len())?;
        let ids = &d.tensors[routing.ids as usize];
        if !(1..=routing.experts).contains(&routing.top_k) || ids.row_bytes != u64::from(routing.top_k) * 4 {
            let problem =
                format!("{} of {} experts and ids of {} bytes", routing.top_k, routing.experts, ids.row_bytes);
            return Err(malformed(what(), problem));
        }
        if ids.axis != Axis::Tokens {
            return Err(malformed(what(), "its ids must have a row for each token"));
        }
    }
    for (i, state) in d.states.iter().enumerate() {
        let parts = state.parts;
        let room = u64::from(parts.positions).saturating_mul(parts.count.into());
        let whole = parts.positions > 0 && parts.positions.is_multiple_of(32) && parts.count > 0;
        if !whole || room < u64::from(d.context) || room > 1 << 31 {
            let problem = format!(
                "{} parts of {} positions; they must hold {} and be multiples of 32",
                parts.count, parts.positions, d.context
            );
            return Err(malformed(format!("state {i}"), problem));
        }
        if state.heads == 0 || state.key_len > 1 << 16 || state.value_len > 1 << 16 {
            return Err(malformed(format!("state {i}"), "no heads, or heads of more than 65536 elements"));
        }
    }
    let kernels: Result<Vec<Kernel>, CheckError> = crate::parallel::map(&d.kernels, |kernel| {
        ixc_ir::kernel::parse::parse(&kernel.text)
            .map_err(|source| CheckError::Kernel { name: kernel.name.clone(), source: Box::new(source) })
    })
    .into_iter()
    .collect();
    let what = "embedding";
    exists(what, "kernel", d.embedding.kernel, d.kernels.len())?;
    exists(what, "weight", d.embedding.weight, d.weights.len())?;
    exists(what, "tensor", d.embedding.tensor, d.tensors.len())?;
    if d.tensors[d.embedding.tensor as usize].source != TensorSource::Embedding {
        return Err(malformed(what, "its tensor has another source"));
    }
    exists("logits", "tensor", d.logits, d.tensors.len())?;
    let logits = &d.tensors[d.logits as usize];
    if logits.axis != Axis::Outputs || logits.row_bytes != u64::from(d.vocabulary) * 4 {
        return Err(malformed("logits", "they must be f32 of the vocabulary, a row for each wanted output"));
    }
    kernels
}

fn exists(what: impl fmt::Display, kind: &str, index: u32, count: usize) -> Result<(), CheckError> {
    if (index as usize) < count {
        return Ok(());
    }
    Err(malformed(what, format!("{kind} {index}, of which there are {count}")))
}

fn check_program(d: &Descriptor, kernels: &[Kernel], number: usize, program: &Program) -> Result<(), CheckError> {
    let what = || program_name(d, number);
    let wrong = |problem: String| Err(malformed(program_name(d, number), problem));
    exists(what(), "kernel", program.kernel, d.kernels.len())?;
    exists(what(), "wave", program.wave, d.waves.len())?;
    if let Axis::Routed(routing) = program.axis {
        exists(what(), "routing", routing, d.routings.len())?;
    }
    if let Some(state) = program.state {
        exists(what(), "state", state, d.states.len())?;
        if program.axis != Axis::Tokens {
            return wrong("it works on a state and fires for something else than tokens".to_owned());
        }
        if program.columns != d.states[state as usize].heads {
            let heads = d.states[state as usize].heads;
            return wrong(format!("{} columns on a state of {heads} heads; a column is a head", program.columns));
        }
    } else if program.appends {
        return wrong("it appends to no state".to_owned());
    }
    if program.columns == 0 {
        return wrong("it has no columns".to_owned());
    }
    if d.instances(program) > MOST_INSTANCES {
        return wrong(format!("{} instances; {MOST_INSTANCES} are the most", d.instances(program)));
    }
    let kernel = &kernels[program.kernel as usize];
    if program.dims.len() != kernel.dims.len() || program.ports.len() != kernel.buffers.len() {
        let (dims, buffers) = (kernel.dims.len(), kernel.buffers.len());
        let (found, ports) = (program.dims.len(), program.ports.len());
        return wrong(format!("{found} dims and {ports} ports; kernel {} has {dims} and {buffers}", kernel.name));
    }
    if !program.ports.iter().any(|port| received(port).is_some()) {
        return wrong("it receives nothing, and would not know when to fire".to_owned());
    }
    let (columns, parts, experts) = (program.columns, d.parts(program), d.experts(program));
    for (i, port) in program.ports.iter().enumerate() {
        let at = || format!("{}, port {i}", program_name(d, number));
        match port {
            Port::Weight { weight, offset, column_stride, expert_stride, bytes } => {
                exists(at(), "weight", *weight, d.weights.len())?;
                let last = |stride: u64, count: u32| stride.checked_mul(u64::from(count.saturating_sub(1)));
                let end = last(*column_stride, columns)
                    .and_then(|end| end.checked_add(last(*expert_stride, experts)?))
                    .and_then(|end| end.checked_add(*offset)?.checked_add(*bytes));
                let weight = &d.weights[*weight as usize];
                if end.is_none_or(|end| end > weight.bytes) {
                    let end = end.map_or("too many".to_owned(), |end| end.to_string());
                    return Err(malformed(at(), format!("{end} bytes of {}, which has {}", weight.name, weight.bytes)));
                }
            }
            Port::Receive(slice) => check_receive(d, &at(), program, slice, Received::Row)?,
            Port::ReceiveRope(slice) => check_receive(d, &at(), program, slice, Received::Rope)?,
            Port::ReceiveSlots(slice) => check_receive(d, &at(), program, slice, Received::Slots)?,
            Port::ReceiveParts { slice, state } => {
                exists(at(), "state", *state, d.states.len())?;
                check_receive(d, &at(), program, slice, Received::Parts(d.states[*state as usize].parts.count))?;
            }
            Port::Send(slice) => {
                check_slice(d, &at(), slice, columns, parts)?;
                let tensor = &d.tensors[slice.tensor as usize];
                if tensor.source != TensorSource::Programs || tensor.axis != program.axis {
                    return Err(malformed(
                        at(),
                        format!("it sends {}, whose rows are others than it fires for", tensor.name),
                    ));
                }
            }
            Port::Keys(state) | Port::Values(state) => {
                if Some(*state) != program.state {
                    return Err(malformed(at(), format!("state {state}, which is not the program's")));
                }
            }
            Port::SlotNumbers(routing) => exists(at(), "routing", *routing, d.routings.len())?,
            Port::Position | Port::PositionBlock | Port::PositionLane | Port::Scratch { .. } => {}
        }
    }
    let constant = program.dims.iter().all(|rule| !depends_on_position(*rule));
    let values = largest_dims(d, program);
    for (dim, (rule, value)) in kernel.dims.iter().zip(program.dims.iter().zip(&values)) {
        if constant && !(dim.lo..=dim.hi).contains(value) {
            let name = &dim.name;
            return wrong(format!("dim %{name} is {value} ({rule:?}); it must be in {}..={}", dim.lo, dim.hi));
        }
    }
    for (i, (buffer, port)) in kernel.buffers.iter().zip(&program.ports).enumerate() {
        // What a rope's row lies in has no memory but the row's.
        if matches!(port, Port::ReceiveRope(_)) {
            continue;
        }
        let (right, found) = (evaluate(&buffer.size, &values), port_bytes(d, program, port));
        if found < right {
            let name = &buffer.name;
            return wrong(format!("port {i} has {found} bytes; buffer %{name} of kernel {} has {right}", kernel.name));
        }
        let writes = match buffer.kind {
            BufferKind::Read | BufferKind::Index { .. } => false,
            BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch => true,
        };
        let may_write = matches!(port, Port::Send(_) | Port::Keys(_) | Port::Values(_) | Port::Scratch { .. });
        if writes && !may_write {
            return wrong(format!("port {i} is not to be written; kernel {} writes %{}", kernel.name, buffer.name));
        }
        if matches!(buffer.kind, BufferKind::Index { .. })
            && !matches!(port, Port::PositionBlock | Port::PositionLane | Port::SlotNumbers(_))
        {
            return wrong(format!("port {i} feeds indices %{}; only positions and slots may", buffer.name));
        }
        // Products read what they have written before: sums so far.
        if matches!(port, Port::Send(_)) && !matches!(buffer.kind, BufferKind::Write | BufferKind::ReadWrite) {
            return wrong(format!("port {i} sends %{}, which the kernel must write", buffer.name));
        }
    }
    Ok(())
}

/// What a port takes of a row.
enum Received {
    Row,
    Rope,
    Slots,
    Parts(u32),
}

fn check_receive(d: &Descriptor, at: &str, program: &Program, slice: &Slice, what: Received) -> Result<(), CheckError> {
    let parts = match what {
        Received::Parts(count) => count,
        Received::Row | Received::Rope | Received::Slots => d.parts(program),
    };
    check_slice(d, at, slice, program.columns, parts)?;
    let tensor = &d.tensors[slice.tensor as usize];
    let is_rope = matches!(tensor.source, TensorSource::Rope(_));
    let (program_axis, axis) = (program.axis, tensor.axis);
    let good = match what {
        Received::Rope => is_rope && slice.bytes == tensor.row_bytes && program_axis == Axis::Tokens,
        Received::Row => match (program_axis, axis) {
            (Axis::Tokens | Axis::Outputs | Axis::Routed(_), Axis::Tokens) => true,
            (Axis::Outputs, Axis::Outputs) => true,
            (Axis::Routed(a), Axis::Routed(b)) => a == b,
            (Axis::Tokens | Axis::Routed(_), Axis::Outputs) => false,
            (Axis::Tokens | Axis::Outputs, Axis::Routed(_)) => false,
        },
        Received::Slots => matches!((program_axis, axis), (Axis::Tokens | Axis::Outputs, Axis::Routed(_))),
        Received::Parts(_) => axis == Axis::Tokens && program_axis == Axis::Tokens && program.state.is_none(),
    };
    if good {
        return Ok(());
    }
    let name = &tensor.name;
    Err(malformed(at, format!("it receives {name} (rows of {axis:?}) in a way that does not go with {program_axis:?}")))
}

fn check_slice(d: &Descriptor, at: &str, slice: &Slice, columns: u32, parts: u32) -> Result<(), CheckError> {
    exists(at, "tensor", slice.tensor, d.tensors.len())?;
    let tensor = &d.tensors[slice.tensor as usize];
    let sums = [slice.offset, slice.column_stride, slice.part_stride, slice.bytes];
    if sums.iter().any(|bytes| *bytes > MOST_ROW) || slice.rows == 0 || slice.bytes == 0 {
        return Err(malformed(at, format!("a slice of {} bytes with room for {} rows", slice.bytes, slice.rows)));
    }
    // They fit: each is at most 2^32 times 2^32, three of them.
    let end = u128::from(slice.offset)
        + u128::from(slice.column_stride) * u128::from(columns.saturating_sub(1))
        + u128::from(slice.part_stride) * u128::from(parts.saturating_sub(1))
        + u128::from(slice.bytes);
    if end > u128::from(tensor.row_bytes) {
        return Err(malformed(
            at,
            format!("it ends at byte {end} of {}, whose rows have {}", tensor.name, tensor.row_bytes),
        ));
    }
    Ok(())
}

/// Whether a dim differs from row to row.
pub(super) fn depends_on_position(rule: DimRule) -> bool {
    match rule {
        DimRule::FullBlocks | DimRule::MaskedBlocks | DimRule::FirstBlock | DimRule::Parts => true,
        DimRule::Rows | DimRule::RowGroups(_) | DimRule::RowRest(_) | DimRule::RowRestGroups { .. } => false,
        DimRule::RowPartial(_) | DimRule::CacheBlocks | DimRule::All(_) => false,
    }
}

/// The dims for a row that sees whole parts, and all of them.
fn largest_dims(d: &Descriptor, program: &Program) -> Vec<i64> {
    let positions = program.state.map_or(16, |state| d.states[state as usize].parts.positions);
    let parts = program.ports.iter().find_map(|port| match port {
        Port::ReceiveParts { state, .. } => Some(d.states[*state as usize].parts),
        _ => None,
    });
    let dim = |rule: &DimRule| match (rule, parts) {
        (DimRule::Parts, Some(parts)) => parts.count.into(),
        _ => super::simulate::dims::dim(*rule, positions, 0, positions - 1, None),
    };
    program.dims.iter().map(dim).collect()
}

/// Bytes that a port has for one firing.
fn port_bytes(d: &Descriptor, program: &Program, port: &Port) -> u64 {
    let state = |index: &u32| &d.states[*index as usize];
    match port {
        Port::Weight { bytes, .. } | Port::Scratch { bytes } => *bytes,
        Port::Receive(slice) | Port::Send(slice) | Port::ReceiveRope(slice) => slice.bytes,
        Port::ReceiveSlots(slice) => match d.tensors[slice.tensor as usize].axis {
            Axis::Routed(routing) => slice.bytes * u64::from(d.routings[routing as usize].top_k),
            Axis::Tokens | Axis::Outputs => slice.bytes,
        },
        Port::ReceiveParts { slice, state: index } => slice.bytes * u64::from(state(index).parts.count),
        Port::Keys(index) if program.state.is_some() => state(index).key_bytes(),
        Port::Values(index) if program.state.is_some() => state(index).value_bytes(),
        Port::Keys(_) | Port::Values(_) => 0,
        Port::Position | Port::PositionBlock | Port::PositionLane => 4,
        Port::SlotNumbers(routing) => u64::from(d.routings[*routing as usize].top_k) * 4,
    }
}

fn check_sites(d: &Descriptor, number: usize, program: &Program) -> Result<(), CheckError> {
    let (width, height) = (d.grid.width, d.grid.height);
    for expert in 0..d.experts(program) {
        for column in 0..program.columns {
            for part in 0..d.parts(program) {
                let (x, y) = program.sites.pe(column, expert, part);
                if x >= width || y >= height {
                    let program = program_name(d, number);
                    return Err(CheckError::Outside { program, column, expert, part, x, y, width, height });
                }
            }
        }
    }
    Ok(())
}

fn streams(d: &Descriptor) -> Result<(), CheckError> {
    let tensor_name = |tensor: u32| d.tensors[tensor as usize].name.clone();
    let mut brought = std::collections::BTreeSet::new();
    let mut taken = std::collections::BTreeSet::new();
    for (number, stream) in d.streams.iter().enumerate() {
        let what = format!("stream {number}");
        exists(&what, "tensor", stream.tensor, d.tensors.len())?;
        let tensor = &d.tensors[stream.tensor as usize];
        for end in [stream.from, stream.to] {
            if let End::Program(program) = end {
                exists(&what, "program", program, d.programs.len())?;
            }
        }
        if let End::Program(from) = stream.from {
            let program = &d.programs[from as usize];
            if !program.ports.iter().any(|port| matches!(port, Port::Send(slice) if slice.tensor == stream.tensor)) {
                let (tensor, program) = (tensor_name(stream.tensor), program_name(d, from as usize));
                return Err(CheckError::NotSent { stream: number, tensor, program });
            }
        }
        if let End::Program(to) = stream.to {
            let program = &d.programs[to as usize];
            if !program.ports.iter().any(|port| received(port).is_some_and(|slice| slice.tensor == stream.tensor)) {
                let (tensor, program) = (tensor_name(stream.tensor), program_name(d, to as usize));
                return Err(CheckError::NobodyReceives { stream: number, tensor, program });
            }
        }
        match (stream.from, stream.to) {
            (End::Host, End::Host) => return Err(malformed(what, "it goes from the host to the host")),
            (End::Host, End::Program(to)) => {
                // What programs make and a later wave reads waits at the host.
                let later = |p: u32| d.programs[p as usize].wave < d.programs[to as usize].wave;
                let stored = d.streams.iter().any(|s| {
                    s.tensor == stream.tensor && s.to == End::Host && matches!(s.from, End::Program(p) if later(p))
                });
                if tensor.source == TensorSource::Programs && !stored {
                    return Err(malformed(what, format!("the host has no {}: no wave before gives it", tensor.name)));
                }
            }
            (End::Program(from), End::Program(to)) => {
                let [from, to] = [from, to].map(|p| d.programs[p as usize].wave);
                if from != to {
                    return Err(malformed(what, format!("it goes from wave {from} to wave {to}, not by the host")));
                }
            }
            (End::Program(_), End::Host) => {}
        }
        if let End::Program(from) = stream.from {
            taken.insert((from, stream.tensor));
        }
        if let End::Program(to) = stream.to {
            brought.insert((to, stream.tensor));
        }
    }
    for (number, program) in d.programs.iter().enumerate() {
        for (port, at) in program.ports.iter().enumerate() {
            let program = || program_name(d, number);
            if let Some(slice) = received(at)
                && !brought.contains(&(number as u32, slice.tensor))
            {
                let tensor = tensor_name(slice.tensor);
                return Err(CheckError::NothingSent { program: program(), port, tensor });
            }
            // The ids of a routing say who fires, also where nobody reads them.
            if let Port::Send(slice) = at
                && !taken.contains(&(number as u32, slice.tensor))
                && !d.routings.iter().any(|routing| routing.ids == slice.tensor)
            {
                let tensor = tensor_name(slice.tensor);
                return Err(CheckError::NobodyTakes { program: program(), port, tensor });
            }
        }
    }
    let logits = d.streams.iter().any(|stream| stream.tensor == d.logits && stream.to == End::Host);
    if !logits {
        return Err(malformed("logits", "no stream brings them to the host"));
    }
    Ok(())
}

/// Programs of a state must be where its parts are.
fn states(d: &Descriptor) -> Result<(), CheckError> {
    let mut first: Vec<Option<usize>> = vec![None; d.states.len()];
    for (number, program) in d.programs.iter().enumerate() {
        let Some(state) = program.state else { continue };
        let Some(other) = first[state as usize] else {
            first[state as usize] = Some(number);
            continue;
        };
        for column in 0..program.columns {
            for part in 0..d.parts(program) {
                let right = d.programs[other].sites.pe(column, 0, part);
                let found = program.sites.pe(column, 0, part);
                if found != right {
                    let problem = format!(
                        "head {column}, part {part} of state {state} is at {found:?}, but for {} at {right:?}",
                        program_name(d, other)
                    );
                    return Err(malformed(program_name(d, number), problem));
                }
            }
        }
    }
    // A slice of a part must begin somewhere in the row.
    debug_assert!(d.programs.iter().flat_map(|p| &p.ports).filter_map(received).all(|s| start(s, 0, 0) <= MOST_ROW));
    Ok(())
}
