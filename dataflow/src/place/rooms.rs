//! Memory for rows that wait at a receiver. A slice gets memory for as many rows as are in flight
//! on a longer parallel path, if the PE has enough.

use crate::descriptor::{Axis, Descriptor, Port, Program, Slice, State};
use ixc_ir::levels::Levels;

use super::PlaceError;
use super::programs::ROWS;

/// Max number of rows for which a slice gets memory while they wait for rows on a longer path.
const MAX_ROWS: u32 = 64;
/// Divisor of a PE's memory: one slice may use a sixteenth for waiting rows.
const WAITING_SHARE: u64 = 16;

/// Gives each received slice memory for the rows that are in flight on a longer parallel path.
/// Slices on PEs without enough memory get less.
pub(super) fn room_for_rows(descriptor: &mut Descriptor) -> Result<(), PlaceError> {
    let available = descriptor.grid.usable_bytes();
    let (of_tensor, of_program) = levels(descriptor);
    let mut programs = std::mem::take(&mut descriptor.programs);
    for (number, program) in programs.iter_mut().enumerate() {
        for port in &mut program.ports {
            if let (Port::Send(slice), true) = (&mut *port, program.state.is_some()) {
                slice.rows = 1;
            }
            if let Port::Receive(slice) = port {
                if program.state.is_some() {
                    // Many programs share this PE with keys and values, which need the memory.
                    slice.rows = 1;
                    continue;
                }
                let gap = of_program[number].saturating_sub(of_tensor.longest([slice.tensor]).unwrap_or(0));
                let gap = u32::try_from(gap).unwrap_or(u32::MAX);
                let room = (available / WAITING_SHARE / slice.bytes.max(1)).min(MAX_ROWS.into()) as u32;
                slice.rows = gap.saturating_add(1).min(room).max(ROWS);
            }
        }
        let code = descriptor.kernels.get(program.kernel as usize).map_or(0, |kernel| kernel.code_bytes);
        let state = program.state.and_then(|state| descriptor.states.get(state as usize));
        let fixed = code.saturating_add(state.map_or(0, State::part_bytes));
        let total = |program: &Program| descriptor.instance_bytes(program).total().saturating_add(fixed);
        // If memory is short, the slices with the longest rows are the first to get room for fewer
        // rows.
        for most in [ROWS, 1] {
            while total(program) > available {
                let widest = program.ports.iter_mut().filter_map(slice_of).filter(|slice| slice.rows > most);
                let Some(slice) = widest.max_by_key(|slice| slice.bytes) else { break };
                slice.rows = most;
            }
        }
        let bytes = total(program);
        if bytes > available {
            let parts = descriptor.instance_bytes(program);
            return Err(PlaceError::Instance {
                task: program.label.clone(),
                bytes,
                weights: parts.weights.saturating_add(fixed - code),
                messages: parts.receives.saturating_add(parts.sends),
                code,
                scratch: parts.scratch,
                grid: descriptor.grid.name.clone(),
                available,
            });
        }
    }
    descriptor.programs = programs;
    Ok(())
}

fn slice_of(port: &mut Port) -> Option<&mut Slice> {
    match port {
        Port::Receive(slice) | Port::ReceiveSlots(slice) | Port::ReceiveRope(slice) | Port::Send(slice) => Some(slice),
        Port::ReceiveParts { slice, .. } => Some(slice),
        _ => None,
    }
}

/// Returns the length of the longest path to each tensor and program, as a number of programs.
fn levels(descriptor: &Descriptor) -> (Levels<u32>, Vec<usize>) {
    let mut tensors = Levels::default();
    let mut programs = Vec::with_capacity(descriptor.programs.len());
    for program in &descriptor.programs {
        let received = program.ports.iter().filter_map(|port| match port {
            Port::Receive(slice) | Port::ReceiveSlots(slice) | Port::ReceiveRope(slice) => Some(slice.tensor),
            Port::ReceiveParts { slice, .. } => Some(slice.tensor),
            _ => None,
        });
        let routed = match program.axis {
            Axis::Routed(routing) => descriptor.routings.get(routing as usize).map(|routing| routing.ids),
            Axis::Tokens | Axis::Outputs => None,
        };
        let level = tensors.longest(received.chain(routed)).unwrap_or(0) + 1;
        programs.push(level);
        for port in &program.ports {
            if let Port::Send(slice) = port {
                tensors.reach(slice.tensor, level);
            }
        }
    }
    (tensors, programs)
}
