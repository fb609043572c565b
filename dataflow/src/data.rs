//! Bytes for simulations that also compute results: the contents of PEs' memories, and the calls of
//! the kernels.

use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;

use crate::descriptor::{Port, Program, TensorSource};
use ixc_failure::Class;
use ixc_ir::kernel::interpret::{self, InterpretError};

use crate::check::Machine;
use crate::cost::evaluate;
use crate::layout::InstancePlace;
use ixc_codegen::module::{ArgumentError, CodegenError, Module};
use ixc_targets::Target;

/// Source of the weights' bytes.
pub trait WeightBytes {
    /// Returns bytes of a weight of the descriptor, in the format that kernels read.
    ///
    /// # Errors
    /// The reason, as text.
    fn slice(&self, weight: u32, offset: u64, bytes: u64) -> Result<Cow<'_, [u8]>, String>;
}

/// Engine that runs the kernels of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// Portable machine code computes the rows.
    Compiled,
    /// The reference interpreter computes the rows. It is slow, but it defines the results.
    Interpreter,
}

/// Reasons why the bytes could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A weight cannot be read.
    #[error("weight {name}: {problem}")]
    Weight {
        /// Name of the weight.
        name: String,
        /// Reason why the weight cannot be read, as text.
        problem: String,
    },
    /// Kernels cannot be compiled.
    #[error(transparent)]
    Codegen(#[from] Box<CodegenError>),
    /// A kernel cannot be called.
    #[error("kernel {kernel}: {source}")]
    Argument {
        /// Name of the kernel.
        kernel: String,
        /// Reason why the kernel cannot be called.
        source: ArgumentError,
    },
    /// The interpreter refuses a kernel.
    #[error("kernel {kernel}: {source}")]
    Interpret {
        /// Name of the kernel.
        kernel: String,
        /// Reason why the interpreter refuses the kernel.
        source: InterpretError,
    },
}

impl DataError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            // The kernels are part of the descriptor.
            DataError::Codegen(_) => Class::Data,
            DataError::Weight { .. } | DataError::Argument { .. } | DataError::Interpret { .. } => Class::Data,
        }
    }
}

/// Bytes that a message carries.
pub(super) type Payload = Rc<[u8]>;

/// A part of a row for one firing of an instance. It has arrived, or is in a message on its way.
#[derive(Debug)]
pub(super) struct Pending {
    pub firing: u32,
    pub port: u32,
    /// Offset of this part in the port's buffer.
    pub to: u64,
    /// Offset of this part in the message.
    pub from: u64,
    /// Number of bytes of this part.
    pub bytes: u64,
    /// Bytes that the whole message carries.
    pub payload: Payload,
}

/// Memory of an instance.
#[derive(Debug, Default)]
struct Local {
    /// Buffers of the instance's kernel; empty until the instance first fires.
    buffers: Vec<Vec<u8>>,
    pending: Vec<Pending>,
    /// Rows that were computed and not yet sent, with the number of the firing and the port.
    made: Vec<(u32, u32, Payload)>,
}

#[derive(Debug, Default)]
struct StatePart {
    keys: Vec<u8>,
    values: Vec<u8>,
}

enum Kernels {
    Compiled(Box<Module>),
    Interpreter,
}

/// Weights, kernels and contents of memories, for a simulation that also computes results.
pub(super) struct Data<'w> {
    weights: &'w dyn WeightBytes,
    kernels: Kernels,
    instances: Vec<Local>,
    /// Contents of each part of a state, by state, head and part. Empty until a program uses the
    /// state.
    states: Vec<Vec<StatePart>>,
    /// Buffers of rotary tables, by port. They are zero between firings: each firing fills only the
    /// row at its own position.
    ropes: HashMap<usize, Vec<u8>>,
    /// Buffers of the embedding kernel.
    embedding: Vec<Vec<u8>>,
}

/// Values of a firing that depend on the row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'d> {
    pub position: u32,
    /// Index of the position's block of 16 positions within the instance's part of the cache.
    pub block: u32,
    pub dims: &'d [i64],
}

impl<'w> Data<'w> {
    pub fn new(machine: &Machine, weights: &'w dyn WeightBytes, runner: Runner) -> Result<Data<'w>, DataError> {
        let kernels = match runner {
            Runner::Compiled => {
                let module = Module::compile(&machine.kernels, Target::PORTABLE).map_err(Box::new)?;
                Kernels::Compiled(Box::new(module))
            }
            Runner::Interpreter => Kernels::Interpreter,
        };
        Ok(Data {
            weights,
            kernels,
            instances: machine.layout.pe.iter().map(|_| Local::default()).collect(),
            states: machine.descriptor.states.iter().map(|_| Vec::new()).collect(),
            ropes: HashMap::new(),
            embedding: Vec::new(),
        })
    }

    fn weight(&self, machine: &Machine, weight: u32, offset: u64, bytes: u64) -> Result<Vec<u8>, DataError> {
        let found = self.weights.slice(weight, offset, bytes);
        let problem = match found {
            Ok(found) if found.len() as u64 == bytes => return Ok(found.into_owned()),
            Ok(found) => format!("{} bytes at {offset}, not {bytes}", found.len()),
            Err(problem) => problem,
        };
        let name = machine.descriptor.weights[weight as usize].name.clone();
        Err(DataError::Weight { name, problem })
    }

    /// Records a part of a message that is delivered to an instance.
    pub fn deliver(&mut self, instance: u32, part: Pending) {
        self.instances[instance as usize].pending.push(part);
    }

    /// Returns the row that an instance computed in a firing. With `last`, also removes it.
    pub fn take(&mut self, instance: u32, port: u32, firing: u32, last: bool) -> Payload {
        let made = &mut self.instances[instance as usize].made;
        let Some(place) = made.iter().position(|(f, p, _)| (*f, *p) == (firing, port)) else { return Rc::from([]) };
        if last { made.swap_remove(place).2 } else { Rc::clone(&made[place].2) }
    }

    /// Allocates the buffers of an instance. Buffers of states and of rotary tables stay empty,
    /// because a firing borrows their bytes.
    fn buffers(&mut self, machine: &Machine, instance: u32) -> Result<Vec<Vec<u8>>, DataError> {
        let number = machine.layout.program[instance as usize] as usize;
        let (unit, program) = (&machine.layout.units[number], &machine.descriptor.programs[number]);
        let InstancePlace { expert, column, .. } = unit.place(instance);
        let mut buffers = Vec::with_capacity(program.ports.len());
        for port in &program.ports {
            buffers.push(match port {
                Port::Weight { weight, offset, column_stride, expert_stride, bytes } => {
                    let at = offset + u64::from(column) * column_stride + u64::from(expert) * expert_stride;
                    self.weight(machine, *weight, at, *bytes)?
                }
                Port::SlotNumbers(routing) => {
                    let slots = machine.descriptor.routings[*routing as usize].top_k;
                    (0..slots).flat_map(u32::to_le_bytes).collect()
                }
                Port::Scratch { bytes } => vec![0; *bytes as usize],
                Port::Keys(_) | Port::Values(_) => Vec::new(),
                Port::Send(slice) | Port::Receive(slice) => vec![0; slice.bytes as usize],
                Port::ReceiveRope(_) => Vec::new(),
                Port::ReceiveSlots(_) | Port::ReceiveParts { .. } => {
                    let received = unit.receives.iter().find(|r| r.port as usize == buffers.len());
                    let count = received.map_or(1, |receive| match receive.kind {
                        crate::layout::Kind::Slots { top_k } => top_k,
                        crate::layout::Kind::Parts { count, .. } => count,
                        crate::layout::Kind::Row | crate::layout::Kind::Rope => 1,
                    });
                    vec![0; received.map_or(0, |r| r.slice.bytes as usize) * count as usize]
                }
                Port::Position | Port::PositionBlock | Port::PositionLane => vec![0; 4],
            });
        }
        Ok(buffers)
    }

    /// Runs an instance's kernel for a row.
    pub fn fire(&mut self, machine: &Machine, instance: u32, firing: u32, row: Row<'_>) -> Result<(), DataError> {
        let number = machine.layout.program[instance as usize] as usize;
        let (unit, program) = (&machine.layout.units[number], &machine.descriptor.programs[number]);
        let kernel = &machine.kernels[unit.kernel as usize];
        let InstancePlace { column, part, .. } = unit.place(instance);
        if self.instances[instance as usize].buffers.is_empty() {
            self.instances[instance as usize].buffers = self.buffers(machine, instance)?;
        }
        let local = &mut self.instances[instance as usize];
        let (pending, buffers) = (&mut local.pending, &mut local.buffers);
        for (number, port) in program.ports.iter().enumerate() {
            if !matches!(port, Port::ReceiveRope(_)) {
                continue;
            }
            let table = self.ropes.entry(number).or_default();
            table.resize(evaluate(&kernel.buffers[number].size, row.dims) as usize, 0);
            std::mem::swap(&mut buffers[number], table);
        }
        let lane = (u64::from(row.block) * 16 + u64::from(row.position % 16)) as usize;
        receive(pending, buffers, program, firing, lane);
        for (port, buffer) in program.ports.iter().zip(buffers.iter_mut()) {
            match port {
                Port::Position => *buffer = row.position.to_le_bytes().to_vec(),
                Port::PositionBlock => *buffer = row.block.to_le_bytes().to_vec(),
                Port::PositionLane => *buffer = (row.position % 16).to_le_bytes().to_vec(),
                Port::Keys(state) | Port::Values(state) => {
                    let shape = &machine.descriptor.states[*state as usize];
                    let place = (column * shape.parts.count + part) as usize;
                    let parts = &mut self.states[*state as usize];
                    if parts.is_empty() {
                        parts.resize_with(shape.heads as usize * shape.parts.count as usize, StatePart::default);
                    }
                    let held = &mut parts[place];
                    let (held, bytes) = match port {
                        Port::Keys(_) => (&mut held.keys, shape.key_bytes()),
                        _ => (&mut held.values, shape.value_bytes()),
                    };
                    if held.is_empty() {
                        held.resize(bytes as usize, 0);
                    }
                    std::mem::swap(buffer, held);
                }
                _ => {}
            }
        }
        let result = run(&self.kernels, machine, unit.kernel as usize, row.dims, buffers);
        for (number, (port, buffer)) in program.ports.iter().zip(buffers.iter_mut()).enumerate() {
            match port {
                Port::Keys(state) | Port::Values(state) => {
                    let parts = machine.descriptor.states[*state as usize].parts.count;
                    let held = &mut self.states[*state as usize][(column * parts + part) as usize];
                    let held = if matches!(port, Port::Keys(_)) { &mut held.keys } else { &mut held.values };
                    std::mem::swap(buffer, held);
                }
                Port::Send(_) => local.made.push((firing, number as u32, Rc::from(&buffer[..]))),
                Port::ReceiveRope(slice) => {
                    let from = lane.saturating_mul(slice.bytes as usize);
                    if let Some(row) = buffer.get_mut(from..from.saturating_add(slice.bytes as usize)) {
                        row.fill(0);
                    }
                    let table = self.ropes.entry(number).or_default();
                    std::mem::swap(buffer, table);
                }
                _ => {}
            }
        }
        result
    }

    /// Computes a token's row of the embedding table.
    pub fn embed(&mut self, machine: &Machine, token: u32) -> Result<Payload, DataError> {
        let embedding = machine.descriptor.embedding;
        let row = machine.descriptor.tensors[embedding.tensor as usize].row_bytes as usize;
        if self.embedding.is_empty() {
            let bytes = machine.descriptor.weights[embedding.weight as usize].bytes;
            let table = self.weight(machine, embedding.weight, 0, bytes)?;
            self.embedding = vec![vec![0; 4], table, vec![0; row]];
        }
        self.embedding[0] = token.to_le_bytes().to_vec();
        run(&self.kernels, machine, embedding.kernel as usize, &[], &mut self.embedding)?;
        Ok(Rc::from(&self.embedding[2][..]))
    }

    /// Returns the bytes of a rotary table's row.
    pub fn rope(machine: &Machine, tensor: u32, position: u32) -> Payload {
        let TensorSource::Rope(table) = machine.descriptor.tensors[tensor as usize].source else { return Rc::from([]) };
        let mut row = vec![0.0; machine.descriptor.tensors[tensor as usize].row_bytes as usize / 4];
        machine.descriptor.ropes[table as usize].fill_row(position, &mut row);
        row.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    /// Drops the rows of an abandoned step, including those in messages on their way.
    pub fn clear(&mut self) {
        for local in &mut self.instances {
            local.pending.clear();
            local.made.clear();
        }
    }
}

/// Copies the slices that have arrived for a firing to an instance's buffers.
fn receive(pending: &mut Vec<Pending>, buffers: &mut [Vec<u8>], program: &Program, firing: u32, lane: usize) {
    pending.retain(|pending| {
        if pending.firing != firing {
            return true;
        }
        let mut to = pending.to;
        if let Port::ReceiveRope(slice) = &program.ports[pending.port as usize] {
            to += lane as u64 * slice.bytes;
        }
        let (from, bytes, to) = (pending.from as usize, pending.bytes as usize, to as usize);
        let there = buffers[pending.port as usize].get_mut(to..to + bytes);
        if let (Some(there), Some(here)) = (there, pending.payload.get(from..from + bytes)) {
            there.copy_from_slice(here);
        }
        false
    });
}

fn run(
    kernels: &Kernels,
    machine: &Machine,
    kernel: usize,
    dims: &[i64],
    buffers: &mut [Vec<u8>],
) -> Result<(), DataError> {
    let name = || machine.kernels[kernel].name.clone();
    match kernels {
        Kernels::Compiled(module) => {
            module.run_checked(kernel, dims, buffers).map_err(|source| DataError::Argument { kernel: name(), source })
        }
        Kernels::Interpreter => interpret::run(&machine.kernels[kernel], dims, buffers)
            .map_err(|source| DataError::Interpret { kernel: name(), source }),
    }
}
