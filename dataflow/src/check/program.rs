//! Checks of a program: its ports against tensors, weights and the kernel's buffers, and the places
//! of its instances.

use std::collections::HashMap;

use crate::descriptor::{Axis, Descriptor, Port, Program, Slice, TensorSource, program_name};
use ixc_ir::kernel::{Affine, Atom, BufferKind, Kernel};
use ixc_ir::plan::{DimError, DimExpr, DimInput};

use super::{CheckError, MAX_INSTANCES, MAX_ROPE, MAX_ROW, MAX_STEPS, exists, malformed, received_slice};
use crate::cost::{cost, evaluate};
use crate::dims::Firing;

/// Cached steps of kernels, by kernel and dims: many programs share both, and walking a kernel can
/// take long.
#[derive(Debug, Default)]
pub(super) struct Steps(HashMap<(u32, Vec<i64>), u64>);

impl Steps {
    fn of(&mut self, kernels: &[Kernel], number: u32, dims: &[i64]) -> u64 {
        *self.0.entry((number, dims.to_vec())).or_insert_with(|| cost(&kernels[number as usize], dims).steps)
    }
}

pub(super) fn check_program(
    d: &Descriptor,
    kernels: &[Kernel],
    steps: &mut Steps,
    number: usize,
    program: &Program,
) -> Result<(), CheckError> {
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
            return wrong("it works on a state, but does not fire for tokens".to_owned());
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
    if d.instances(program) > MAX_INSTANCES {
        return wrong(format!("it has {} instances; the limit is {MAX_INSTANCES}", d.instances(program)));
    }
    let kernel = &kernels[program.kernel as usize];
    if program.dims.len() != kernel.dims.len() || program.ports.len() != kernel.buffers.len() {
        let (dims, buffers) = (kernel.dims.len(), kernel.buffers.len());
        let (found, ports) = (program.dims.len(), program.ports.len());
        return wrong(format!("{found} dims and {ports} ports; kernel {} has {dims} and {buffers}", kernel.name));
    }
    if !program.ports.iter().any(|port| received_slice(port).is_some()) {
        return wrong("it receives nothing, so it would never fire".to_owned());
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
                let count = d.states[*state as usize].parts.count;
                check_receive(d, &at(), program, slice, Received::Parts(count))?;
                let slices = u64::from(columns).saturating_mul(count.into());
                if slices > MAX_INSTANCES {
                    return Err(malformed(
                        at(),
                        format!("it receives {slices} parts for all columns; the limit is {MAX_INSTANCES}"),
                    ));
                }
            }
            Port::Send(slice) => {
                check_slice(d, &at(), slice, columns, parts)?;
                let tensor = &d.tensors[slice.tensor as usize];
                if tensor.source != TensorSource::Programs || tensor.axis != program.axis {
                    return Err(malformed(
                        at(),
                        format!("it sends {}, but it does not fire for rows of that tensor", tensor.name),
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
    let constant = program.dims.iter().all(|dim| !dim.uses_positions());
    let values = match largest_dims(d, program) {
        Ok(values) => values,
        Err(error) => return wrong(format!("dim {error}")),
    };
    for (dim, (expression, value)) in kernel.dims.iter().zip(program.dims.iter().zip(&values)) {
        if constant && !(dim.lo..=dim.hi).contains(value) {
            let name = &dim.name;
            return wrong(format!("dim %{name} is {value} ({expression}); it must be in {}..={}", dim.lo, dim.hi));
        }
    }
    let steps = steps.of(kernels, program.kernel, &values);
    if steps > MAX_STEPS {
        return wrong(format!("kernel {} takes {steps} steps for a row; the limit is {MAX_STEPS}", kernel.name));
    }
    for (i, (buffer, port)) in kernel.buffers.iter().zip(&program.ports).enumerate() {
        let (right, found) = (evaluate(&buffer.size, &values), port_bytes(d, program, port));
        if matches!(port, Port::ReceiveRope(_)) {
            // The size must be the same for each firing: a buffer of that size is made.
            if let Some((name, dim)) = differs(&buffer.size, kernel, program) {
                return wrong(format!(
                    "port {i} is for a rotary table; the size of buffer %{} of kernel {} has dim %{name} ({dim}), and must have none that differs from row to row",
                    buffer.name, kernel.name
                ));
            }
            // Only the row itself has memory. The buffer has a row for each lane of a part's
            // blocks.
            if right != found || right > MAX_ROPE {
                let name = &buffer.name;
                return wrong(format!(
                    "port {i} is for {found} bytes of a rotary table, of {MAX_ROPE} at most; buffer %{name} of kernel {} has {right}",
                    kernel.name
                ));
            }
        } else if found < right || found > right && (received_slice(port).is_some() || matches!(port, Port::Send(_))) {
            let name = &buffer.name;
            return wrong(format!("port {i} has {found} bytes; buffer %{name} of kernel {} has {right}", kernel.name));
        }
        let writes = match buffer.kind {
            BufferKind::Read | BufferKind::Index { .. } => false,
            BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch => true,
        };
        let may_write = matches!(port, Port::Send(_) | Port::Keys(_) | Port::Values(_) | Port::Scratch { .. });
        if writes && !may_write {
            return wrong(format!("port {i} must not be written, but kernel {} writes %{}", kernel.name, buffer.name));
        }
        if matches!(buffer.kind, BufferKind::Index { .. })
            && !matches!(port, Port::PositionBlock | Port::PositionLane | Port::SlotNumbers(_))
        {
            return wrong(format!("port {i} feeds indices %{}; only positions and slots may", buffer.name));
        }
        // Products read the sums that they have written before.
        if matches!(port, Port::Send(_)) && !matches!(buffer.kind, BufferKind::Write | BufferKind::ReadWrite) {
            return wrong(format!("port {i} sends %{}, which the kernel must write", buffer.name));
        }
    }
    Ok(())
}

/// Part of a row that a port receives.
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
    Err(malformed(at, format!("it receives {name} (rows of {axis:?}) in a way that does not fit {program_axis:?}")))
}

fn check_slice(d: &Descriptor, at: &str, slice: &Slice, columns: u32, parts: u32) -> Result<(), CheckError> {
    exists(at, "tensor", slice.tensor, d.tensors.len())?;
    let tensor = &d.tensors[slice.tensor as usize];
    let sums = [slice.offset, slice.column_stride, slice.part_stride, slice.bytes];
    if slice.rows == 0 || slice.bytes == 0 {
        let (bytes, rows) = (slice.bytes, slice.rows);
        let problem = format!("a slice of {bytes} bytes with room for {rows} rows; both must be at least 1");
        return Err(malformed(at, problem));
    }
    if let Some(bytes) = sums.iter().find(|bytes| **bytes > MAX_ROW) {
        let problem = format!("a slice has a size or stride of {bytes} bytes; the limit is {MAX_ROW}");
        return Err(malformed(at, problem));
    }
    // The sum fits: three terms, each at most 2^32 times 2^32.
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

/// Returns a dim of `size` that differs from row to row, if any.
fn differs<'k>(size: &Affine, kernel: &'k Kernel, program: &'k Program) -> Option<(&'k str, &'k DimExpr)> {
    size.terms.iter().find_map(|(atom, _)| {
        let Atom::Dim(dim) = atom else { return None };
        let value = program.dims.get(dim.index()).filter(|value| value.uses_positions())?;
        Some((kernel.dims.get(dim.index())?.name.as_str(), value))
    })
}

/// Returns the dims for a row that sees whole parts, and all of them. Checks that they have values
/// for all rows.
fn largest_dims(d: &Descriptor, program: &Program) -> Result<Vec<i64>, DimError> {
    let positions = program.state.map(|state| d.states[state as usize].parts.positions);
    let parts = program.ports.iter().find_map(|port| match port {
        Port::ReceiveParts { state, .. } => Some(d.states[*state as usize].parts.count),
        _ => None,
    });
    let largest = Firing::largest(positions, parts.unwrap_or(1));
    let dim = |dim: &DimExpr| {
        dim.range(DimInput::bounds)?;
        largest.dim(dim)
    };
    program.dims.iter().map(dim).collect()
}

/// Returns the bytes that a port has for one firing.
fn port_bytes(d: &Descriptor, program: &Program, port: &Port) -> u64 {
    let state = |index: &u32| &d.states[*index as usize];
    match port {
        Port::Weight { bytes, .. } | Port::Scratch { bytes } => *bytes,
        Port::Receive(slice) | Port::Send(slice) => slice.bytes,
        Port::ReceiveRope(slice) => {
            let lanes = program.state.map_or(16, |index| state(&index).parts.positions);
            slice.bytes.saturating_mul(lanes.into())
        }
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

pub(super) fn check_sites(d: &Descriptor, number: usize, program: &Program) -> Result<(), CheckError> {
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
