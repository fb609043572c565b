//! Checks of a program: its ports against tensors, weights and the kernel's buffers, and the PEs of
//! its instances.

use std::collections::HashMap;

use crate::descriptor::{Axis, Descriptor, Port, Program, Slice, TensorSource, program_name};
use ixc_ir::kernel::{Affine, Atom, Buffer, BufferKind, Kernel};
use ixc_ir::plan::{DimError, DimExpr, DimInput};

use super::{CheckError, MAX_INSTANCES, MAX_ROPE, MAX_ROW, MAX_STEPS, exists, malformed_error, received_slice};
use crate::cost::{cost, evaluate};
use crate::dims::Firing;

/// Cached step counts of kernels, by kernel and dims. Many programs have the same kernel and dims,
/// and counting the steps of a kernel can take long.
#[derive(Debug, Default)]
pub(super) struct Steps(HashMap<(u32, Vec<i64>), u64>);

impl Steps {
    fn count(&mut self, kernels: &[Kernel], number: u32, dims: &[i64]) -> u64 {
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
    exists(program_name(d, number), "kernel", program.kernel, d.kernels.len())?;
    let kernel = &kernels[program.kernel as usize];
    let check = ProgramCheck { d, kernel, number, program };
    check.references()?;
    check.counts()?;
    for (i, port) in program.ports.iter().enumerate() {
        check.port(i, port)?;
    }
    let values = check.dims()?;
    let steps = steps.count(kernels, program.kernel, &values);
    if steps > MAX_STEPS {
        return check
            .wrong(format!("kernel {} executes {steps} statements for a row; the limit is {MAX_STEPS}", kernel.name));
    }
    for (i, (buffer, port)) in kernel.buffers.iter().zip(&program.ports).enumerate() {
        check.size(i, buffer, port, &values)?;
        check.access(i, buffer, port)?;
    }
    Ok(())
}

/// The checks of one program.
struct ProgramCheck<'a> {
    d: &'a Descriptor,
    kernel: &'a Kernel,
    number: usize,
    program: &'a Program,
}

impl ProgramCheck<'_> {
    fn name(&self) -> String {
        program_name(self.d, self.number)
    }

    fn wrong<T>(&self, problem: String) -> Result<T, CheckError> {
        Err(malformed_error(self.name(), problem))
    }

    /// Checks that a program's wave, axis and state exist, and checks the number of its instances.
    fn references(&self) -> Result<(), CheckError> {
        exists(self.name(), "wave", self.program.wave, self.d.waves.len())?;
        if let Axis::Routed(routing) = self.program.axis {
            exists(self.name(), "routing", routing, self.d.routings.len())?;
        }
        if let Some(state) = self.program.state {
            exists(self.name(), "state", state, self.d.states.len())?;
            if self.program.axis != Axis::Tokens {
                return self.wrong(
                    "it works on a state, but does not fire for each token; expected the axis of tokens".to_owned(),
                );
            }
            if self.program.columns != self.d.states[state as usize].heads {
                let heads = self.d.states[state as usize].heads;
                return self.wrong(format!(
                    "it has {} columns, but its state has {heads} heads; expected one column for each head",
                    self.program.columns
                ));
            }
        } else if self.program.appends {
            return self.wrong("it appends keys and values, but names no state".to_owned());
        }
        if self.program.columns == 0 {
            return self.wrong("the number of its columns is 0; expected at least 1".to_owned());
        }
        if self.d.instances(self.program) > MAX_INSTANCES {
            return self
                .wrong(format!("it has {} instances; the limit is {MAX_INSTANCES}", self.d.instances(self.program)));
        }
        Ok(())
    }

    /// Checks the numbers of dims and ports, and that at least one port receives.
    fn counts(&self) -> Result<(), CheckError> {
        if self.program.dims.len() != self.kernel.dims.len() || self.program.ports.len() != self.kernel.buffers.len() {
            let (dims, buffers) = (self.kernel.dims.len(), self.kernel.buffers.len());
            let (found, ports) = (self.program.dims.len(), self.program.ports.len());
            return self.wrong(format!(
                "it has {found} dims and {ports} ports; its kernel {} has {dims} dims and {buffers} buffers",
                self.kernel.name
            ));
        }
        if !self.program.ports.iter().any(|port| received_slice(port).is_some()) {
            return self.wrong("no port of it receives rows, so it would never fire".to_owned());
        }
        Ok(())
    }

    fn port(&self, i: usize, port: &Port) -> Result<(), CheckError> {
        let (d, program) = (self.d, self.program);
        let columns = program.columns;
        let at = || format!("{}, port {i}", self.name());
        match port {
            Port::Weight { weight, offset, column_stride, expert_stride, bytes } => {
                exists(at(), "weight", *weight, d.weights.len())?;
                let last = |stride: u64, count: u32| stride.checked_mul(u64::from(count.saturating_sub(1)));
                let end = last(*column_stride, columns)
                    .and_then(|end| end.checked_add(last(*expert_stride, d.experts(program))?))
                    .and_then(|end| end.checked_add(*offset)?.checked_add(*bytes));
                let weight = &d.weights[*weight as usize];
                if end.is_none_or(|end| end > weight.bytes) {
                    let end = end.map_or("too many".to_owned(), |end| end.to_string());
                    return Err(malformed_error(
                        at(),
                        format!(
                            "it reads up to byte {end} of weight {}, whose number of bytes is {}",
                            weight.name, weight.bytes
                        ),
                    ));
                }
            }
            Port::Receive(slice) => check_receive(d, &at(), program, slice, ReceivedPart::Row)?,
            Port::ReceiveRope(slice) => check_receive(d, &at(), program, slice, ReceivedPart::Rope)?,
            Port::ReceiveSlots(slice) => check_receive(d, &at(), program, slice, ReceivedPart::Slots)?,
            Port::ReceiveParts { slice, state } => {
                exists(at(), "state", *state, d.states.len())?;
                let count = d.states[*state as usize].parts.count;
                check_receive(d, &at(), program, slice, ReceivedPart::Parts(count))?;
                let slices = u64::from(columns).saturating_mul(count.into());
                if slices > MAX_INSTANCES {
                    return Err(malformed_error(
                        at(),
                        format!(
                            "it receives {slices} parts for all its columns together; the limit is {MAX_INSTANCES}"
                        ),
                    ));
                }
            }
            Port::Send(slice) => {
                check_slice(d, &at(), slice, columns, d.parts(program))?;
                let tensor = &d.tensors[slice.tensor as usize];
                if tensor.source != TensorSource::Programs || tensor.axis != program.axis {
                    return Err(malformed_error(
                        at(),
                        format!(
                            "it sends tensor {}, but its program does not fire for the rows of that tensor",
                            tensor.name
                        ),
                    ));
                }
            }
            Port::Keys(state) | Port::Values(state) => {
                if Some(*state) != program.state {
                    return Err(malformed_error(
                        at(),
                        format!("it has state {state}, which is not the state of its program"),
                    ));
                }
            }
            Port::SlotNumbers(routing) => exists(at(), "routing", *routing, d.routings.len())?,
            Port::Position | Port::PositionBlock | Port::PositionLane | Port::Scratch { .. } => {}
        }
        Ok(())
    }

    /// Returns the largest values of the dims. If no dim differs from row to row, checks that the
    /// values are in range.
    fn dims(&self) -> Result<Vec<i64>, CheckError> {
        let constant = self.program.dims.iter().all(|dim| !dim.uses_positions());
        let values = match largest_dims(self.d, self.program) {
            Ok(values) => values,
            Err(error) => return self.wrong(format!("dim {error}")),
        };
        for (dim, (expression, value)) in self.kernel.dims.iter().zip(self.program.dims.iter().zip(&values)) {
            if constant && !(dim.lo..=dim.hi).contains(value) {
                let name = &dim.name;
                return self.wrong(format!(
                    "dim %{name} has the value {value} ({expression}); it must be in {}..={}",
                    dim.lo, dim.hi
                ));
            }
        }
        Ok(values)
    }

    /// Checks the bytes of a port.
    fn size(&self, i: usize, buffer: &Buffer, port: &Port, values: &[i64]) -> Result<(), CheckError> {
        let (right, found) = (evaluate(&buffer.size, values), port_bytes(self.d, self.program, port));
        if matches!(port, Port::ReceiveRope(_)) {
            // The size must be the same for each firing, because the buffer is allocated once.
            if let Some((name, dim)) = differs(&buffer.size, self.kernel, self.program) {
                return self.wrong(format!(
                    "port {i} is for a rotary table; the size of buffer %{} of kernel {} has dim %{name} ({dim}), and must have none that differs from row to row",
                    buffer.name, self.kernel.name
                ));
            }
            // The port must have the bytes of the whole buffer, which has a row for each lane of a
            // part's blocks. Only the current row takes memory.
            if right != found || right > MAX_ROPE {
                let name = &buffer.name;
                return self.wrong(format!(
                    "port {i} receives {found} bytes of a rotary table, and may receive at most {MAX_ROPE}; buffer %{name} of kernel {} has {right} bytes",
                    self.kernel.name
                ));
            }
        } else if found < right || found > right && (received_slice(port).is_some() || matches!(port, Port::Send(_))) {
            let name = &buffer.name;
            return self.wrong(format!(
                "port {i} has {found} bytes; its buffer %{name} of kernel {} has {right} bytes",
                self.kernel.name
            ));
        }
        Ok(())
    }

    /// Checks that the kernel's access to a buffer fits its port.
    fn access(&self, i: usize, buffer: &Buffer, port: &Port) -> Result<(), CheckError> {
        let writes = match buffer.kind {
            BufferKind::Read | BufferKind::Index { .. } => false,
            BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch => true,
        };
        let may_write = matches!(port, Port::Send(_) | Port::Keys(_) | Port::Values(_) | Port::Scratch { .. });
        if writes && !may_write {
            return self.wrong(format!(
                "port {i} must not be written, but kernel {} writes its buffer %{}",
                self.kernel.name, buffer.name
            ));
        }
        if matches!(buffer.kind, BufferKind::Index { .. })
            && !matches!(port, Port::PositionBlock | Port::PositionLane | Port::SlotNumbers(_))
        {
            return self.wrong(format!(
                "port {i} is bound to the index buffer %{}; only ports of positions and slots may be bound to such a buffer",
                buffer.name
            ));
        }
        // Kernels of products also read the sums that they have written, so `ReadWrite` is allowed.
        if matches!(port, Port::Send(_)) && !matches!(buffer.kind, BufferKind::Write | BufferKind::ReadWrite) {
            return self.wrong(format!(
                "port {i} sends buffer %{}, which the kernel does not write; expected a written buffer",
                buffer.name
            ));
        }
        Ok(())
    }
}

/// Part of a row that a port receives.
enum ReceivedPart {
    Row,
    Rope,
    Slots,
    Parts(u32),
}

fn check_receive(
    d: &Descriptor,
    at: &str,
    program: &Program,
    slice: &Slice,
    what: ReceivedPart,
) -> Result<(), CheckError> {
    let parts = match what {
        ReceivedPart::Parts(count) => count,
        ReceivedPart::Row | ReceivedPart::Rope | ReceivedPart::Slots => d.parts(program),
    };
    check_slice(d, at, slice, program.columns, parts)?;
    let tensor = &d.tensors[slice.tensor as usize];
    let is_rope = matches!(tensor.source, TensorSource::Rope(_));
    let (program_axis, axis) = (program.axis, tensor.axis);
    let good = match what {
        ReceivedPart::Rope => is_rope && slice.bytes == tensor.row_bytes && program_axis == Axis::Tokens,
        ReceivedPart::Row => match (program_axis, axis) {
            (Axis::Tokens | Axis::Outputs | Axis::Routed(_), Axis::Tokens) => true,
            (Axis::Outputs, Axis::Outputs) => true,
            (Axis::Routed(a), Axis::Routed(b)) => a == b,
            (Axis::Tokens | Axis::Routed(_), Axis::Outputs) => false,
            (Axis::Tokens | Axis::Outputs, Axis::Routed(_)) => false,
        },
        ReceivedPart::Slots => matches!((program_axis, axis), (Axis::Tokens | Axis::Outputs, Axis::Routed(_))),
        ReceivedPart::Parts(_) => axis == Axis::Tokens && program_axis == Axis::Tokens && program.state.is_none(),
    };
    if good {
        return Ok(());
    }
    let name = &tensor.name;
    Err(malformed_error(
        at,
        format!(
            "it receives tensor {name} with rows of {axis:?}, which does not fit its program, which fires for rows of {program_axis:?}"
        ),
    ))
}

fn check_slice(d: &Descriptor, at: &str, slice: &Slice, columns: u32, parts: u32) -> Result<(), CheckError> {
    exists(at, "tensor", slice.tensor, d.tensors.len())?;
    let tensor = &d.tensors[slice.tensor as usize];
    let sums = [slice.offset, slice.column_stride, slice.part_stride, slice.bytes];
    if slice.rows == 0 || slice.bytes == 0 {
        let (bytes, rows) = (slice.bytes, slice.rows);
        let problem = format!("its slice has {bytes} bytes and room for {rows} rows; both numbers must be at least 1");
        return Err(malformed_error(at, problem));
    }
    if let Some(bytes) = sums.iter().find(|bytes| **bytes > MAX_ROW) {
        let problem = format!("its slice has an offset, a stride or a size of {bytes} bytes; the limit is {MAX_ROW}");
        return Err(malformed_error(at, problem));
    }
    // The sum fits: it has three terms, each at most 2^32 times 2^32.
    let end = u128::from(slice.offset)
        + u128::from(slice.column_stride) * u128::from(columns.saturating_sub(1))
        + u128::from(slice.part_stride) * u128::from(parts.saturating_sub(1))
        + u128::from(slice.bytes);
    if end > u128::from(tensor.row_bytes) {
        return Err(malformed_error(
            at,
            format!(
                "its slice ends at byte {end} of a row of tensor {}; the number of bytes of a row is {}",
                tensor.name, tensor.row_bytes
            ),
        ));
    }
    Ok(())
}

/// Returns a dim in `size` whose value differs from row to row, if there is one.
fn differs<'k>(size: &Affine, kernel: &'k Kernel, program: &'k Program) -> Option<(&'k str, &'k DimExpr)> {
    size.terms.iter().find_map(|(atom, _)| {
        let Atom::Dim(dim) = atom else { return None };
        let value = program.dims.get(dim.index()).filter(|value| value.uses_positions())?;
        Some((kernel.dims.get(dim.index())?.name.as_str(), value))
    })
}

/// Returns the largest values of the dims: those for a row that sees all positions of a part.
/// Checks that all dims can be evaluated for every row.
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

/// Returns the number of bytes of a port for one firing.
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
