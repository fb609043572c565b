//! Memory of each instance on its PE. Placement uses these numbers, and the simulator checks them.
//!
//! A PE's memory holds three kinds of items: [`Descriptor::instance_bytes`] of each of its
//! instances; [`State::part_bytes`] of each head and part of a state that it keeps; and the code of
//! each kernel once. Instances share no buffers, even if their buffers hold the same bytes.
//!
//! **Code** is estimated. An instruction of kernel IR takes 8 bytes (a vector instruction with a
//! descriptor of its operands), a loop 16 more. Loops that a CPU kernel unrolls are counted as
//! loops, because a PE has little memory.
//!
//! ```text
//! for %i in 0..8 { %a = load ..  store .. }    2 * 8 + 16 = 32 bytes
//! ```

use crate::descriptor::{Axis, Descriptor, Port, Program, Slice, State, Wave};
use ixc_ir::kernel::{Kernel, Stmt};

/// Bytes of an instruction's code.
const INSTRUCTION: u64 = 8;
/// Bytes of a loop's code, in addition to its body.
const LOOP: u64 = 16;
/// Bytes of code to set up buffers and dims.
const ENTRY: u64 = 64;

/// Estimates the bytes of code that a kernel takes on a PE.
pub fn code_bytes(kernel: &Kernel) -> u64 {
    let mut bytes = ENTRY;
    let mut open: Vec<&[Stmt]> = vec![&kernel.body];
    while let Some(body) = open.pop() {
        for stmt in body {
            match stmt {
                Stmt::Inst(_) | Stmt::LoadIndex { .. } => bytes += INSTRUCTION,
                Stmt::For(inner) => {
                    bytes += LOOP;
                    open.push(&inner.body);
                }
            }
        }
    }
    bytes
}

/// Bytes that an instance takes on its PE, by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstanceBytes {
    /// Bytes of slices of weights.
    pub weights: u64,
    /// Bytes of the buffers for received rows.
    pub receives: u64,
    /// Bytes of the buffers for rows that the instance computes.
    pub sends: u64,
    /// Bytes of working memory, positions and slot numbers.
    pub scratch: u64,
}

impl InstanceBytes {
    /// Returns the sum of these bytes over all uses.
    pub fn total(&self) -> u64 {
        [self.weights, self.receives, self.sends, self.scratch].into_iter().fold(0, u64::saturating_add)
    }
}

/// Bytes of a position, a block or a lane.
const INDEX_BYTES: u64 = 4;
/// Bytes of an element of a key or value (f16).
const STATE_ELEMENT: u64 = 2;

impl State {
    /// Returns the number of bytes of the keys of one head's part.
    pub fn key_bytes(&self) -> u64 {
        u64::from(self.parts.positions).saturating_mul(u64::from(self.key_len) * STATE_ELEMENT)
    }

    /// Returns the number of bytes of the values of one head's part.
    pub fn value_bytes(&self) -> u64 {
        u64::from(self.parts.positions).saturating_mul(u64::from(self.value_len) * STATE_ELEMENT)
    }

    /// Returns the number of bytes of one head's part.
    pub fn part_bytes(&self) -> u64 {
        self.key_bytes().saturating_add(self.value_bytes())
    }
}

impl Slice {
    /// Returns the number of bytes of the buffer in which an instance keeps this slice of several
    /// rows.
    pub fn memory_bytes(&self) -> u64 {
        self.bytes.saturating_mul(self.rows.into())
    }
}

impl Descriptor {
    /// Returns the number of experts of a program, each with its own instances; 1 if the program is
    /// not routed.
    pub fn experts(&self, program: &Program) -> u32 {
        match program.axis {
            Axis::Routed(routing) => self.routings.get(routing as usize).map_or(0, |routing| routing.experts),
            Axis::Tokens | Axis::Outputs => 1,
        }
    }

    /// Returns the number of state parts of a program, each with its own instances; 1 without a
    /// state.
    pub fn parts(&self, program: &Program) -> u32 {
        match program.state {
            Some(state) => self.states.get(state as usize).map_or(0, |state| state.parts.count),
            None => 1,
        }
    }

    /// Returns the number of instances of a program.
    pub fn instances(&self, program: &Program) -> u64 {
        let columns = u64::from(program.columns);
        columns.saturating_mul(self.experts(program).into()).saturating_mul(self.parts(program).into())
    }

    /// Returns the memory that each instance of a program takes on its PE, without code and states.
    /// Sums saturate.
    pub fn instance_bytes(&self, program: &Program) -> InstanceBytes {
        let mut bytes = InstanceBytes::default();
        for port in &program.ports {
            let (to, more) = match port {
                Port::Weight { bytes: weight, .. } => (&mut bytes.weights, *weight),
                Port::Receive(slice) | Port::ReceiveRope(slice) => (&mut bytes.receives, slice.memory_bytes()),
                Port::ReceiveSlots(slice) => {
                    let tensor = self.tensors.get(slice.tensor as usize);
                    let slots = match tensor.map(|tensor| tensor.axis) {
                        Some(Axis::Routed(routing)) => self.routings.get(routing as usize).map_or(0, |r| r.top_k),
                        Some(Axis::Tokens | Axis::Outputs) | None => 1,
                    };
                    (&mut bytes.receives, slice.memory_bytes().saturating_mul(slots.into()))
                }
                Port::ReceiveParts { slice, state } => {
                    let parts = self.states.get(*state as usize).map_or(0, |state| state.parts.count);
                    (&mut bytes.receives, slice.memory_bytes().saturating_mul(parts.into()))
                }
                Port::Send(slice) => (&mut bytes.sends, slice.memory_bytes()),
                Port::Keys(_) | Port::Values(_) => continue,
                Port::Position | Port::PositionBlock | Port::PositionLane => (&mut bytes.scratch, INDEX_BYTES),
                Port::SlotNumbers(routing) => {
                    let slots = self.routings.get(*routing as usize).map_or(0, |routing| routing.top_k);
                    (&mut bytes.scratch, INDEX_BYTES * u64::from(slots))
                }
                Port::Scratch { bytes: scratch } => (&mut bytes.scratch, *scratch),
            };
            *to = to.saturating_add(more);
        }
        bytes
    }

    /// Returns the bytes that each wave loads and stores. If there is only one wave, it loads and
    /// stores nothing, because its weights stay on the PEs. Indices of programs must be in range.
    /// Sums saturate.
    pub fn traffic(&self) -> Vec<Wave> {
        let mut waves = vec![Wave { load_bytes: 0, store_bytes: 0 }; self.waves.len()];
        if waves.len() < 2 {
            return waves;
        }
        let mut seen = std::collections::BTreeSet::new();
        for program in &self.programs {
            let Some(wave) = waves.get_mut(program.wave as usize) else { continue };
            let weights = self.instance_bytes(program).weights.saturating_mul(self.instances(program));
            wave.load_bytes = wave.load_bytes.saturating_add(weights);
            let state = program.state.filter(|state| seen.insert((program.wave, *state)));
            if let Some(state) = state.and_then(|state| self.states.get(state as usize)) {
                let parts = u64::from(state.heads).saturating_mul(state.parts.count.into());
                let states = state.part_bytes().saturating_mul(parts);
                wave.load_bytes = wave.load_bytes.saturating_add(states);
                wave.store_bytes = wave.store_bytes.saturating_add(states);
            }
        }
        waves
    }
}
