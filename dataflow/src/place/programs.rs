//! Conversion of tasks to programs: each task of a plan in pieces becomes a program, and each
//! streamed buffer of the arena becomes a tensor.
//!
//! ```text
//! gather x                    nothing: routed programs receive their token's row
//! attention in parts          a program over heads and parts, and one over heads for all parts
//! ```
//!
//! Result: ports have the sizes that their kernels need for one row. The programs have no PEs yet.

use std::collections::HashMap;

use crate::account;
use crate::descriptor::{
    Axis, Descriptor, Embedding, KernelText, Lattice, Parts, Port, Program, Routing, Sites, Slice, State, Tensor,
    TensorSource, VERSION, WeightInfo,
};
use crate::dims::Firing;
use crate::grid::Grid;
use ixc_ir::kernel::{Affine, Atom, BufferKind, Kernel};
use ixc_ir::plan::{
    ATTENTION_BLOCK, Arg, BufferId, DimExpr, DimInput, Division, Input, Output, Plan, RowAxis, RowCount, RowInput,
    Source, Split, Step, Task,
};
use ixc_ir::state::StateKind;

use super::{PlaceError, PlacementOptions};

/// Default number of rows for which a slice has memory: with two, the next row can arrive during a
/// firing.
pub(super) const ROWS: u32 = 2;
fn plan_error<T>(task: &str, problem: impl Into<String>) -> Result<T, PlaceError> {
    Err(PlaceError::Plan { task: task.to_string(), problem: problem.into() })
}

const NO_SITES: Sites = Sites { x: 0, y: 0, columns: Lattice::ONE, experts: Lattice::ONE, parts: Lattice::ONE };

struct DescriptorBuilder<'a> {
    plan: &'a Plan<Kernel>,
    descriptor: Descriptor,
    /// Index of each buffer's tensor in the descriptor, by the buffer's index in the plan.
    tensors: HashMap<u32, u32>,
    /// Original buffer of each buffer that holds copied rows.
    copies: HashMap<u32, u32>,
    /// Index of each kernel in the descriptor, by its index in the plan.
    kernels: HashMap<u32, u32>,
    ropes: HashMap<u32, u32>,
    division: Division,
}

/// Builds a descriptor that has no PEs, waves or streams yet.
pub(super) fn programs(plan: &Plan<Kernel>, grid: &Grid, options: &PlacementOptions) -> Result<Descriptor, PlaceError> {
    let mut builder = DescriptorBuilder::new(plan, grid, options)?;
    let mut embedded = false;
    for step in &plan.steps {
        match step {
            Step::Run { tasks, .. } => {
                for task in tasks {
                    embedded |= builder.task(task)?;
                }
            }
            Step::Bucket { bucket, ids, first, top_k, experts, nobody } => {
                if bucket.0 as usize != builder.descriptor.routings.len() {
                    return plan_error("bucket", "the plan's routings are not in the order of their numbers");
                }
                let row = plan.buffers.get(ids.0 as usize).map(|buffer| buffer.row_bytes);
                if *first != 0 || row != Some(u64::from(*top_k) * 4) {
                    return plan_error(
                        "bucket",
                        "a routing by some of a token's ids, as for deferred experts, is not supported",
                    );
                }
                if *nobody {
                    return plan_error(
                        "bucket",
                        "a routing with empty slots, as for experts without matrices, is not supported",
                    );
                }
                let ids = builder.tensor(ids.0)?;
                builder.descriptor.routings.push(Routing { ids, top_k: *top_k, experts: *experts });
            }
            Step::Request { .. } | Step::Predict { .. } | Step::Release { .. } => {
                return plan_error("experts", "experts are loaded on demand; a grid must hold all of them");
            }
            Step::Exchange(_) => {
                return plan_error("ranks", "the plan is the part of a rank; a grid needs a whole model");
            }
        }
    }
    if !embedded {
        return plan_error("embed", "the plan has no task that reads the embedding");
    }
    match plan.output {
        Output::Logits { .. } => {}
        Output::Hidden { .. } => {
            return plan_error("output", "the plan returns hidden states; a grid can only return logits");
        }
        Output::Experts { .. } => {
            return plan_error(
                "output",
                "the plan has expert layers without a model; a grid needs a model that returns logits",
            );
        }
    }
    builder.descriptor.logits = builder.tensor(plan.logits.0)?;
    Ok(builder.descriptor)
}

fn weights(plan: &Plan<Kernel>) -> Result<Vec<WeightInfo>, PlaceError> {
    let weights = plan.weights.iter().map(|weight| {
        let bytes = weight.bytes_in(weight.format).unwrap_or(0);
        let file = match weight.file {
            ixc_ir::plan::WeightFile::Source(file) => file,
            ixc_ir::plan::WeightFile::Derived(_) => {
                return plan_error(
                    &weight.name,
                    "the weight is derived from other tensors when it is read; a grid needs weights that are stored in model files",
                );
            }
            _ => return plan_error(&weight.name, "the weight is in the plan's own file; a grid needs weights that are stored in model files"),
        };
        let (name, format, stored) = (weight.name.clone(), weight.format.to_string(), weight.stored.to_string());
        Ok(WeightInfo { name, format, stored, shape: weight.shape.clone(), file, offset: weight.offset, bytes })
    });
    weights.collect()
}

/// Returns the parts of a state: as many as the context needs.
fn state_parts(division: &Division, context: u32) -> Result<Parts, PlaceError> {
    let positions = division.blocks.saturating_mul(ATTENTION_BLOCK);
    let parts = Parts { positions, count: context.div_ceil(positions.max(1)).max(1) };
    if parts.count > division.parts {
        let held = u64::from(division.parts) * u64::from(positions);
        return plan_error(
            "attention",
            format!("the parts of attention hold {held} positions; the context has {context} positions"),
        );
    }
    Ok(parts)
}

fn states(plan: &Plan<Kernel>, parts: Parts) -> Result<Vec<State>, PlaceError> {
    let states = plan.states.iter().map(|state| match (state.kind, &state.fields[..]) {
        (StateKind::Paged, &[keys, values]) if keys.format.is_quantised() || values.format.is_quantised() => {
            plan_error(&state.name, "the keys or values have a block format; a grid keeps keys and values in f16")
        }
        (StateKind::Paged, &[keys, values]) if state.window.is_none() && state.every == 1 => {
            Ok(State { heads: keys.columns, key_len: keys.width, value_len: values.width, parts })
        }
        _ => plan_error(&state.name, "the state is not supported; a grid only has keys and values of all positions"),
    });
    states.collect()
}

/// Returns the division of positions into parts for attention, which is the same for all layers.
fn division(plan: &Plan<Kernel>) -> Result<Division, PlaceError> {
    let mut found = None;
    for task in tasks(plan) {
        for split in task.variants.iter().filter_map(|variant| variant.split) {
            if found.is_some_and(|found| found != split.division) {
                return plan_error(&task.label, "the task divides positions differently than other tasks of the plan");
            }
            found = Some(split.division);
        }
    }
    Ok(found.unwrap_or(Division { parts: 1, blocks: 1 }))
}

fn tasks(plan: &Plan<Kernel>) -> impl Iterator<Item = &Task> {
    plan.steps.iter().flat_map(|step| match step {
        Step::Run { tasks, .. } => &tasks[..],
        Step::Bucket { .. }
        | Step::Request { .. }
        | Step::Predict { .. }
        | Step::Release { .. }
        | Step::Exchange(_) => &[],
    })
}

/// Returns the argument for a buffer of a task's kernel; buffers have the names of the kernel's
/// signature.
fn argument<'t>(task: &'t Task, kernel: &Kernel, name: &str) -> Result<&'t Arg, PlaceError> {
    let position = kernel.buffers.iter().position(|buffer| buffer.name == name);
    match position.and_then(|position| task.args.get(position)) {
        Some(arg) => Ok(arg),
        None => plan_error(&task.label, format!("no argument is bound to buffer %{name} of kernel {}", kernel.name)),
    }
}

impl<'a> DescriptorBuilder<'a> {
    fn new(
        plan: &'a Plan<Kernel>,
        grid: &Grid,
        options: &PlacementOptions,
    ) -> Result<DescriptorBuilder<'a>, PlaceError> {
        let weights = weights(plan)?;
        let division = division(plan)?;
        let states = states(plan, state_parts(&division, options.context)?)?;
        let descriptor = Descriptor {
            version: VERSION,
            model: options.model.clone(),
            grid: grid.clone(),
            context: options.context,
            vocabulary: plan.vocabulary,
            files: plan.files.clone(),
            weights,
            ropes: plan.ropes.iter().map(|table| table.for_context(options.context)).collect(),
            kernels: Vec::new(),
            tensors: Vec::new(),
            routings: Vec::new(),
            states,
            programs: Vec::new(),
            streams: Vec::new(),
            waves: Vec::new(),
            embedding: Embedding { kernel: 0, weight: 0, tensor: 0 },
            logits: 0,
            reasons: Vec::new(),
        };
        let (tensors, copies, kernels, ropes) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        Ok(DescriptorBuilder { plan, descriptor, tensors, copies, kernels, ropes, division })
    }

    fn kernel_of(&self, label: &str, number: u32) -> Result<&'a Kernel, PlaceError> {
        let plan: &'a Plan<Kernel> = self.plan;
        match plan.kernels.get(number as usize) {
            Some(kernel) => Ok(kernel),
            None => plan_error(label, format!("there is no kernel {number}")),
        }
    }

    /// Adds the programs of a task. Returns whether it is the embedding, which the host computes.
    fn task(&mut self, task: &Task) -> Result<bool, PlaceError> {
        let label = &task.label;
        let [variant] = &task.variants[..] else {
            return plan_error(
                label,
                "the task has several kernels for numbers of rows; a PE has one kernel, for one row",
            );
        };
        if variant.row_chunk != 1 {
            return plan_error(label, "the items of the task have several rows; a PE works on one row");
        }
        let kernel = self.kernel_of(label, variant.kernel.0)?;
        let axis = match task.rows {
            RowAxis::Tokens => Axis::Tokens,
            RowAxis::Outputs => Axis::Outputs,
            RowAxis::Routed(bucket) => Axis::Routed(bucket.0),
        };
        for arg in &task.args {
            match arg.source {
                Source::Input(Input::RoutedToken(_) | Input::OutputRows) => {
                    let named = |name: &str| argument(task, kernel, name).map(|arg| arg.source);
                    let (Source::Arena(x), Source::Arena(y)) = (named("x")?, named("y")?) else {
                        return plan_error(
                            label,
                            "the task copies rows from or to memory that is not a buffer of rows",
                        );
                    };
                    let x = self.copies.get(&x.0).copied().unwrap_or(x.0);
                    self.copies.insert(y.0, x);
                    return Ok(false);
                }
                Source::Input(Input::Tokens) => {
                    self.embedding(task, kernel)?;
                    return Ok(true);
                }
                _ => {}
            }
        }
        let state = task.args.iter().find_map(|arg| match arg.source {
            Source::State { state, .. } => Some(state),
            _ => None,
        });
        if state.is_some_and(|state| state as usize >= self.descriptor.states.len()) {
            return plan_error(label, "a missing state");
        }
        let (dims, sizes) = self.sizes(kernel, &variant.dims, state)?;
        let mut ports = Vec::with_capacity(kernel.buffers.len());
        let mut parts = None;
        for (i, (buffer, bytes)) in kernel.buffers.iter().zip(&sizes).enumerate() {
            let Some(arg) = task.args.get(i) else {
                return plan_error(label, "the task has fewer arguments than its kernel has buffers");
            };
            if let Some(split) = variant.split.filter(|split| split.argument as usize == i) {
                let slice = self.parts_tensor(task, &split, *bytes)?;
                parts = Some((slice, split, arg.clone()));
                ports.push(Port::Send(slice));
                continue;
            }
            ports.push(self.port(task, arg, &buffer.kind, *bytes)?);
        }
        let appends = state.is_some() && variant.split.is_none();
        let kernel = self.kernel(label, variant.kernel.0)?;
        let program = Program {
            label: label.clone(),
            kernel,
            dims,
            axis,
            columns: task.columns,
            state,
            appends,
            sites: NO_SITES,
            ports,
            wave: 0,
        };
        self.descriptor.programs.push(program);
        if let Some((slice, split, result)) = parts {
            self.combine(task, slice, &split, &result)?;
        }
        Ok(false)
    }

    /// Adds the programs that combine the parts of a task's result. There is one program, or one
    /// for each piece that can be combined alone.
    fn combine(&mut self, task: &Task, parts: Slice, split: &Split, result: &Arg) -> Result<(), PlaceError> {
        let label = format!("{} combined", task.label);
        let number = split.alone.unwrap_or(split.combine).0;
        let kernel = self.kernel_of(&label, number)?;
        let (dims, sizes) = self.sizes(kernel, &[DimInput::Parts.into()], None)?;
        let state = task.args.iter().find_map(|arg| match arg.source {
            Source::State { state, .. } => Some(state),
            _ => None,
        });
        let Some(state) = state else { return plan_error(&label, "the task has parts, but reads no state") };
        let count = u64::from(self.descriptor.states.first().map_or(1, |state| state.parts.count)).max(1);
        let piece = sizes.first().copied().unwrap_or(0) / count;
        if piece == 0 || !parts.bytes.is_multiple_of(piece) {
            return plan_error(
                &label,
                format!(
                    "the task's parts have {} bytes, but the combining kernel reads {piece} bytes of each part",
                    parts.bytes
                ),
            );
        }
        for number_of_piece in 0..parts.bytes / piece {
            let mut ports = Vec::with_capacity(kernel.buffers.len());
            for (buffer, bytes) in kernel.buffers.iter().zip(&sizes) {
                ports.push(match buffer.kind {
                    BufferKind::Read if buffer.name == "parts" => {
                        let offset = parts.offset.saturating_add(number_of_piece.saturating_mul(piece));
                        Port::ReceiveParts { slice: Slice { offset, bytes: piece, ..parts }, state }
                    }
                    BufferKind::Write => {
                        let offset = result.offset.saturating_add(number_of_piece.saturating_mul(*bytes));
                        self.port(task, &Arg { offset, ..result.clone() }, &buffer.kind, *bytes)?
                    }
                    BufferKind::Scratch => Port::Scratch { bytes: *bytes },
                    BufferKind::Read | BufferKind::ReadWrite | BufferKind::Index { .. } => {
                        return plan_error(
                            &label,
                            format!(
                                "the kernel that combines parts also reads buffer %{}; it may read only parts",
                                buffer.name
                            ),
                        );
                    }
                });
            }
            let label = if number_of_piece > 0 { format!("{label} {number_of_piece}") } else { label.clone() };
            let kernel = self.kernel(&label, number)?;
            let (columns, sites, dims) = (task.columns, NO_SITES, dims.clone());
            let (axis, state) = (Axis::Tokens, None);
            let appends = false;
            self.descriptor.programs.push(Program {
                label,
                kernel,
                dims,
                axis,
                columns,
                state,
                appends,
                sites,
                ports,
                wave: 0,
            });
        }
        Ok(())
    }

    /// Adds the tensor that holds the parts of a task's result: for each column, one part after the
    /// other.
    fn parts_tensor(&mut self, task: &Task, split: &Split, bytes: u64) -> Result<Slice, PlaceError> {
        if split.division != self.division || bytes == 0 {
            return plan_error(
                &task.label,
                "the task's parts have no bytes, or are divided differently than in other tasks of the plan",
            );
        }
        let count = self.descriptor.states.first().map_or(1, |state| state.parts.count);
        let column = bytes.saturating_mul(count.into());
        let tensor = self.add(Tensor {
            name: format!("{} parts", task.label),
            row_bytes: column.saturating_mul(task.columns.into()),
            axis: Axis::Tokens,
            source: TensorSource::Programs,
        });
        Ok(Slice { tensor, offset: 0, column_stride: column, part_stride: bytes, bytes, rows: ROWS })
    }

    fn embedding(&mut self, task: &Task, kernel: &Kernel) -> Result<(), PlaceError> {
        let named = |name: &str| argument(task, kernel, name).map(|arg| arg.source);
        let (Source::Weight(weight), Source::Arena(y)) = (named("table")?, named("y")?) else {
            return plan_error(&task.label, "the embedding has other arguments than ids, a table and rows");
        };
        let tensor = self.tensor(y.0)?;
        if let Some(tensor) = self.descriptor.tensors.get_mut(tensor as usize) {
            tensor.source = TensorSource::Embedding;
        }
        let kernel = task.variants.first().map_or(0, |variant| variant.kernel.0);
        let kernel = self.kernel(&task.label, kernel)?;
        self.descriptor.embedding = Embedding { kernel, weight, tensor };
        Ok(())
    }

    fn port(&mut self, task: &Task, arg: &Arg, kind: &BufferKind, bytes: u64) -> Result<Port, PlaceError> {
        let label = &task.label;
        let written = matches!(kind, BufferKind::Write | BufferKind::ReadWrite);
        let slice = |tensor: u32, offset: u64, bytes: u64| {
            // With a single column, the stride has no meaning.
            let column_stride = if task.columns > 1 { arg.column_stride } else { 0 };
            Slice { tensor, offset, column_stride, part_stride: 0, bytes, rows: ROWS }
        };
        Ok(match arg.source {
            Source::Arena(buffer) if written => {
                let tensor = self.tensor(buffer.0)?;
                Port::Send(slice(tensor, arg.offset, bytes))
            }
            Source::Arena(buffer) => {
                let slots = self.buffer(buffer)?;
                let tensor = self.tensor(buffer.0)?;
                match (slots, task.rows) {
                    (RowCount::Routed { top_k }, RowAxis::Tokens) => {
                        Port::ReceiveSlots(slice(tensor, arg.offset, bytes / u64::from(top_k.max(1))))
                    }
                    _ => Port::Receive(slice(tensor, arg.offset, bytes)),
                }
            }
            Source::Weight(weight) => Port::Weight {
                weight,
                offset: arg.offset,
                column_stride: if task.columns > 1 { arg.column_stride } else { 0 },
                expert_stride: arg.expert_stride,
                bytes,
            },
            Source::Rope(table) => {
                let tensor = self.rope(label, table)?;
                let bytes = self.descriptor.tensors.get(tensor as usize).map_or(0, |tensor| tensor.row_bytes);
                Port::ReceiveRope(Slice { column_stride: 0, ..slice(tensor, 0, bytes) })
            }
            Source::State { state, field } if field == StateKind::Paged.field("keys") => Port::Keys(state),
            Source::State { state, .. } => Port::Values(state),
            Source::Chosen { .. } => {
                return plan_error(
                    label,
                    "the task reads only positions that an index chose; no PE can gather such positions",
                );
            }
            Source::Scratch => Port::Scratch { bytes },
            Source::Input(Input::Row(RowInput::Positions)) => Port::Position,
            Source::Input(Input::Row(RowInput::PositionBlock)) => Port::PositionBlock,
            Source::Input(Input::Row(RowInput::PositionLane)) => Port::PositionLane,
            Source::Input(Input::RoutedSlot(bucket)) => Port::SlotNumbers(bucket.0),
            Source::Input(
                Input::Tokens | Input::Row(_) | Input::Ngram(_) | Input::OutputRows | Input::RoutedToken(_),
            ) => {
                return plan_error(label, "the task has an input that no PE can have");
            }
        })
    }

    fn buffer(&self, buffer: BufferId) -> Result<RowCount, PlaceError> {
        match self.plan.buffers.get(self.copies.get(&buffer.0).copied().unwrap_or(buffer.0) as usize) {
            Some(buffer) => Ok(buffer.rows),
            None => plan_error("plan", format!("a task names buffer {}, which the plan does not have", buffer.0)),
        }
    }

    /// Returns the tensor of a buffer, or of its original if it is a copy.
    fn tensor(&mut self, buffer: u32) -> Result<u32, PlaceError> {
        let buffer = self.copies.get(&buffer).copied().unwrap_or(buffer);
        if let Some(&tensor) = self.tensors.get(&buffer) {
            return Ok(tensor);
        }
        let Some(arena) = self.plan.buffers.get(buffer as usize) else {
            return plan_error("plan", format!("a task names buffer {buffer}, which the plan does not have"));
        };
        let axis = match arena.rows {
            RowCount::Tokens => Axis::Tokens,
            RowCount::Outputs => Axis::Outputs,
            // The rows belong to the last routing so far, because tasks come after the routing that
            // they use.
            RowCount::Routed { .. } => match self.descriptor.routings.len() {
                0 => return plan_error(&arena.name, "the buffer holds routed rows, but no routing comes before it"),
                n => Axis::Routed(n as u32 - 1),
            },
        };
        let source = TensorSource::Programs;
        let tensor = self.add(Tensor { name: arena.name.clone(), row_bytes: arena.row_bytes, axis, source });
        self.tensors.insert(buffer, tensor);
        Ok(tensor)
    }

    fn add(&mut self, tensor: Tensor) -> u32 {
        self.descriptor.tensors.push(tensor);
        self.descriptor.tensors.len() as u32 - 1
    }

    fn rope(&mut self, label: &str, table: u32) -> Result<u32, PlaceError> {
        if let Some(&tensor) = self.ropes.get(&table) {
            return Ok(tensor);
        }
        let Some(rope) = self.plan.ropes.get(table as usize) else { return plan_error(label, "a missing table") };
        let pairs = u32::try_from(rope.frequencies.len()).unwrap_or(u32::MAX);
        let row_bytes = rope.style.row_bytes(pairs.saturating_mul(2));
        let (name, axis, source) = (format!("rope {table}"), Axis::Tokens, TensorSource::Rope(table));
        let tensor = self.add(Tensor { name, row_bytes, axis, source });
        self.ropes.insert(table, tensor);
        Ok(tensor)
    }

    /// Adds a kernel of the plan and returns its number in the descriptor.
    fn kernel(&mut self, label: &str, number: u32) -> Result<u32, PlaceError> {
        if let Some(&kernel) = self.kernels.get(&number) {
            return Ok(kernel);
        }
        let Some(kernel) = self.plan.kernels.get(number as usize) else {
            return plan_error(label, format!("there is no kernel {number}"));
        };
        let (name, text, code_bytes) = (kernel.name.clone(), kernel.to_string(), account::code_bytes(kernel));
        self.descriptor.kernels.push(KernelText { name, text, code_bytes });
        let id = self.descriptor.kernels.len() as u32 - 1;
        self.kernels.insert(number, id);
        Ok(id)
    }

    /// Returns a kernel's dims, and the sizes of its buffers for one row.
    fn sizes(
        &self,
        kernel: &Kernel,
        dims: &[DimExpr],
        state: Option<u32>,
    ) -> Result<(Vec<DimExpr>, Vec<u64>), PlaceError> {
        if dims.len() != kernel.dims.len() {
            return plan_error(
                &kernel.name,
                format!("the task gives {} dims; the number of the kernel's dims is {}", dims.len(), kernel.dims.len()),
            );
        }
        let parts = state.and_then(|state| self.descriptor.states.get(state as usize)).map(|state| state.parts);
        let count = self.descriptor.states.first().map_or(1, |state| state.parts.count);
        let largest = Firing::largest(parts.map(|parts| parts.positions), count);
        let values = dims.iter().map(|dim| largest.dim(dim)).collect::<Result<Vec<i64>, _>>();
        let values = match values {
            Ok(values) => values,
            Err(error) => return plan_error(&kernel.name, format!("a dim: {error}")),
        };
        let size = |affine: &Affine| {
            let size = affine.evaluate(|atom| match atom {
                Atom::Dim(dim) => values.get(dim.index()).copied().unwrap_or(0),
                Atom::Var(_) => 0,
            });
            match size.map(u64::try_from) {
                Some(Ok(size)) => Ok(size),
                Some(Err(_)) => Ok(0),
                None => plan_error(&kernel.name, "a buffer has more bytes than fit 63 bits"),
            }
        };
        let sizes = kernel.buffers.iter().map(|buffer| size(&buffer.size)).collect::<Result<_, _>>()?;
        Ok((dims.to_vec(), sizes))
    }
}
