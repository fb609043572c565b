//! From graph ops to tasks.
//!
//! Every value of the graph is a buffer of rows ([`Stored`]): a row is all of a token's elements, or of a token's slot once
//! it is routed, so that splitting and merging heads is nothing at all. Routed values lie in the order of their experts,
//! whatever the graph's `[T, slots, n]` says: only `expert.*` ops and elementwise ones touch them before they are combined.
//!
//! ```text
//! expert.swiglu %x, %ids, @gate, @up    bucket (ids sorted by expert), gather (rows of %x), swiglu
//! expert.down %y, %ids, %p, @down, %r   linear, combine (+ %r)
//! ```

use std::collections::HashMap;

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{self, RopeAttrs, RouteAttrs, RouteScore};
use ixc_ir::graph::interpret::{WeightSource, math::rope_angles};
use ixc_ir::graph::types::Caches;
use ixc_ir::graph::{Element, Function, Module, Op, OpKind, Operand, Type, ValueId, WeightId};
use ixc_ir::plan::spec::{Bits, Elementwise, Score};
use ixc_ir::plan::{
    Arg, BucketId, BufferId, CacheLayer, DimRule, Input, KernelId, KernelSpec, PlanWeight, RopeStyle, RopeTable,
    RowAxis, RowCount, Source, Step, Task, Variant,
};

use super::arena::Draft;
use super::matrix::{Product, scratch_arg};
use super::steps::{Resource, What, Work};
use super::{ScheduleError, Settings};

/// What the rows of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rows {
    Tokens,
    Outputs,
    /// Tokens' slots in the order of a routing.
    Routed {
        bucket: BucketId,
        top_k: u32,
    },
}

impl Rows {
    pub(super) fn axis(self) -> RowAxis {
        match self {
            Rows::Tokens => RowAxis::Tokens,
            Rows::Outputs => RowAxis::Outputs,
            Rows::Routed { bucket, .. } => RowAxis::Routed(bucket),
        }
    }

    fn count(self) -> RowCount {
        match self {
            Rows::Tokens => RowCount::Tokens,
            Rows::Outputs => RowCount::Outputs,
            Rows::Routed { top_k, .. } => RowCount::Routed { top_k },
        }
    }
}

/// A value in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stored {
    pub(super) buffer: BufferId,
    pub(super) rows: Rows,
    /// Elements of a row.
    pub(super) width: u64,
    /// `f32` for ids, which are as wide.
    pub(super) format: Format,
}

impl Stored {
    pub(super) fn row_bytes(&self) -> Result<u64, ScheduleError> {
        row_bytes(self.format, self.width)
    }
}

/// What a value of the graph is in the plan.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    Stored(Stored),
    Ids,
    Positions,
    WantedRows,
    Token,
    /// A dequantised weight, which only products may read, as it is stored.
    Weight(WeightId),
}

/// Whether a task reads an argument or writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// The plan as it grows.
pub(super) struct Lowering<'a> {
    pub(super) module: &'a Module,
    function: &'a Function,
    source: &'a dyn WeightSource,
    settings: &'a Settings,
    meanings: Vec<Option<Meaning>>,
    /// Experts of the `route` that gave these ids.
    routes: HashMap<BufferId, u64>,
    routings: HashMap<BufferId, Rows>,
    /// Experts of each bucket.
    experts: Vec<u64>,
    quantised: HashMap<(BufferId, Format), Stored>,
    gathered: HashMap<(BufferId, BucketId), Stored>,
    kernel_ids: HashMap<KernelSpec, KernelId>,
    weight_ids: HashMap<WeightId, u32>,
    /// Position in [`Lowering::cache`] of a graph's layer.
    layers: HashMap<i64, u32>,
    pub(super) buffers: Vec<Draft>,
    pub(super) work: Vec<Work>,
    pub(super) kernels: Vec<KernelSpec>,
    pub(super) plan_weights: Vec<PlanWeight>,
    pub(super) ropes: Vec<RopeTable>,
    pub(super) cache: Vec<CacheLayer>,
    pub(super) buckets: u32,
}

/// A number as the plan holds it.
pub(super) fn fit(what: &str, value: u64) -> Result<u32, ScheduleError> {
    u32::try_from(value).map_err(|_| ScheduleError::TooLarge {
        what: what.to_string(),
        value: value.to_string(),
        limit: u32::MAX.into(),
    })
}

/// Bytes of `width` elements.
pub(super) fn row_bytes(format: Format, width: u64) -> Result<u64, ScheduleError> {
    format.row_bytes(width).ok_or_else(|| ScheduleError::TooLarge {
        what: format!("a row of {format} in bytes"),
        value: format!("{width} elements"),
        limit: u64::MAX,
    })
}

fn unsupported<T>(op: &'static str, problem: impl Into<String>) -> Result<T, ScheduleError> {
    Err(ScheduleError::Unsupported { op, problem: problem.into() })
}

/// An argument that is the same for every item.
fn whole(source: Source) -> Arg {
    by_row(source, 0)
}

/// An argument that is a row of the item's.
fn by_row(source: Source, row_stride: u64) -> Arg {
    by_column(source, row_stride, 0)
}

/// An argument that is a column of a row.
fn by_column(source: Source, row_stride: u64, column_stride: u64) -> Arg {
    Arg { source, offset: 0, row_stride, column_stride, expert_stride: 0 }
}

/// Ids and positions are i32.
const INDEX_BYTES: u64 = 4;

impl<'a> Lowering<'a> {
    pub(super) fn new(
        module: &'a Module,
        function: &'a Function,
        source: &'a dyn WeightSource,
        settings: &'a Settings,
    ) -> Result<Lowering<'a>, ScheduleError> {
        let mut meanings = vec![None; function.values.len()];
        let kinds = [Meaning::Ids, Meaning::Positions, Meaning::WantedRows, Meaning::Token];
        let types: Vec<&Type> = function.params.iter().map(|&param| function.ty(param)).collect();
        let index = |ty: &Type| ty.element() == Some(Element::I32) && ty.dims().len() == 1;
        match types[..] {
            [ids, pos, rows, Type::Token] if index(ids) && pos == ids && index(rows) && rows != ids => {}
            _ => return Err(ScheduleError::Step { problem: "its parameters are not these".to_string() }),
        }
        for (&param, kind) in function.params.iter().zip(kinds) {
            meanings[param.index()] = Some(kind);
        }
        let mut lowering = Lowering {
            module,
            function,
            source,
            settings,
            meanings,
            routes: HashMap::new(),
            routings: HashMap::new(),
            experts: Vec::new(),
            quantised: HashMap::new(),
            gathered: HashMap::new(),
            kernel_ids: HashMap::new(),
            weight_ids: HashMap::new(),
            layers: HashMap::new(),
            buffers: Vec::new(),
            work: Vec::new(),
            kernels: Vec::new(),
            plan_weights: Vec::new(),
            ropes: Vec::new(),
            cache: Vec::new(),
            buckets: 0,
        };
        for (layer, shape) in Caches::of(module, function).layers() {
            lowering.layers.insert(layer, lowering.cache.len() as u32);
            lowering.cache.push(CacheLayer {
                heads: fit("key heads", shape.heads)?,
                key_len: fit("elements of a key", shape.key)?,
                value_len: fit("elements of a value", shape.value)?,
            });
        }
        Ok(lowering)
    }

    /// Lowers one op.
    pub(super) fn op(&mut self, op: &Op) -> Result<(), ScheduleError> {
        let name = op.kind.row().mnemonic;
        let meaning = match op.kind {
            OpKind::Embed => self.embed(op)?,
            OpKind::Dequantise => Meaning::Weight(self.weight_operand(op, "w")),
            OpKind::Matmul => {
                let Meaning::Weight(w) = self.meaning(name, self.value_operand(op, "w")?)? else {
                    return unsupported(name, "a product of two values; one must be a dequantised weight");
                };
                let x = self.operand(op, "x")?;
                let x = self.quantise(x, self.module.weights[w.index()].format.activation())?;
                Meaning::Stored(
                    self.product(name, &Product { label: self.label(op.kind, w), x, w, bias: None, residual: None })?,
                )
            }
            OpKind::Add => self.map(op, Elementwise::Add)?,
            OpKind::Mul => self.map(op, Elementwise::Mul)?,
            OpKind::Silu => self.map(op, Elementwise::Silu)?,
            OpKind::AddBias => self.add_bias(op)?,
            OpKind::RmsNorm => self.rms_norm(op, Format::F32)?,
            OpKind::RmsNormQuantise => self.rms_norm(op, op.attr("format").format())?,
            OpKind::SplitHeads | OpKind::MergeHeads => {
                let x = self.operand(op, "x")?;
                // A routed row is one slot's, not all of a token's.
                if matches!(x.rows, Rows::Routed { .. }) {
                    return unsupported(name, "slots as heads");
                }
                Meaning::Stored(x)
            }
            OpKind::Rope => self.rope_heads(op, None)?,
            OpKind::RopeHeads => self.rope_heads(op, self.opt_weight(op, "norm"))?,
            OpKind::KvAppend => self.append(op, None)?,
            OpKind::RopeAppend => self.append(op, Some(RopeAttrs::from_op(op)))?,
            OpKind::Attention => {
                let y = self.attention(op)?;
                self.meanings[op.results[1].index()] = Some(Meaning::Token);
                y
            }
            OpKind::Route => self.route(op)?,
            OpKind::TakeRows => self.take_rows(op)?,
            OpKind::Quantise => {
                let x = self.operand(op, "x")?;
                Meaning::Stored(self.quantise(x, op.attr("format").format())?)
            }
            OpKind::Linear => {
                let w = self.weight_operand(op, "w");
                Meaning::Stored(self.product(
                    name,
                    &Product {
                        label: self.label(op.kind, w),
                        x: self.operand(op, "x")?,
                        w,
                        bias: self.opt_weight(op, "bias"),
                        residual: self.opt_operand(op, "residual")?,
                    },
                )?)
            }
            OpKind::LinearQkv => {
                for (i, (x, w, b)) in
                    [("xq", "wq", "bq"), ("xk", "wk", "bk"), ("xv", "wv", "bv")].into_iter().enumerate()
                {
                    let w = self.weight_operand(op, w);
                    let y = self.product(
                        name,
                        &Product {
                            label: self.label(op.kind, w),
                            x: self.operand(op, x)?,
                            w,
                            bias: self.opt_weight(op, b),
                            residual: None,
                        },
                    )?;
                    self.meanings[op.results[i].index()] = Some(Meaning::Stored(y));
                }
                return Ok(());
            }
            OpKind::LinearSwiglu => {
                let weights = (self.weight_operand(op, "gate"), self.weight_operand(op, "up"));
                let x = self.operand(op, "x")?;
                let label = self.label(op.kind, weights.0);
                Meaning::Stored(self.swiglu(name, &label, &x, weights, op.attr("format").format())?)
            }
            OpKind::ExpertSwiglu => {
                let weights = (self.weight_operand(op, "gate"), self.weight_operand(op, "up"));
                let x = self.operand(op, "x")?;
                let x = self.routed(op, x)?;
                let label = self.label(op.kind, weights.0);
                Meaning::Stored(self.swiglu(name, &label, &x, weights, op.attr("format").format())?)
            }
            OpKind::ExpertMatmul => {
                let Meaning::Weight(w) = self.meaning(name, self.value_operand(op, "w")?)? else {
                    return unsupported(name, "a product of two values; one must be a dequantised weight");
                };
                let x = self.operand(op, "x")?;
                // Quantised first: a row is quantised once for all its experts, and the copies are shorter.
                let x = self.quantise(x, self.module.weights[w.index()].format.activation())?;
                let x = self.routed(op, x)?;
                Meaning::Stored(
                    self.product(name, &Product { label: self.label(op.kind, w), x, w, bias: None, residual: None })?,
                )
            }
            OpKind::ExpertCombine => {
                let y = self.operand(op, "y")?;
                let p = self.operand(op, "p")?;
                Meaning::Stored(self.combine(name, name.to_string(), y, p, None)?)
            }
            OpKind::ExpertDown => {
                let w = self.weight_operand(op, "w");
                let x = self.operand(op, "x")?;
                let x = self.routed(op, x)?;
                let label = self.label(op.kind, w);
                let y = self.product(name, &Product { label: label.clone(), x, w, bias: None, residual: None })?;
                let p = self.operand(op, "p")?;
                let residual = self.opt_operand(op, "residual")?;
                Meaning::Stored(self.combine(name, format!("{label} combine"), y, p, residual)?)
            }
        };
        self.meanings[op.results[0].index()] = Some(meaning);
        Ok(())
    }

    // Operands. Their kinds are the op table's, which the verifier has checked.

    fn meaning(&self, op: &'static str, value: ValueId) -> Result<Meaning, ScheduleError> {
        match self.meanings.get(value.index()) {
            Some(Some(meaning)) => Ok(*meaning),
            Some(None) | None => unsupported(op, format!("value {} is used before it is defined", value.0)),
        }
    }

    /// A value that lies in the arena.
    pub(super) fn stored(&self, op: &'static str, value: ValueId) -> Result<Stored, ScheduleError> {
        match self.meaning(op, value)? {
            Meaning::Stored(stored) => Ok(stored),
            Meaning::Weight(w) => unsupported(
                op,
                format!(
                    "the dequantised weight @{} as a value; only products read weights",
                    self.module.weights[w.index()].name
                ),
            ),
            other => unsupported(op, format!("the parameter {other:?} as data")),
        }
    }

    fn value_operand(&self, op: &Op, name: &str) -> Result<ValueId, ScheduleError> {
        match op.operand(name) {
            Operand::Value(value) => Ok(value),
            Operand::Weight(_) | Operand::Absent => unsupported(op.kind.row().mnemonic, format!("no value for {name}")),
        }
    }

    fn operand(&self, op: &Op, name: &str) -> Result<Stored, ScheduleError> {
        self.stored(op.kind.row().mnemonic, self.value_operand(op, name)?)
    }

    fn opt_operand(&self, op: &Op, name: &str) -> Result<Option<Stored>, ScheduleError> {
        match op.operand(name) {
            Operand::Value(value) => self.stored(op.kind.row().mnemonic, value).map(Some),
            Operand::Weight(_) | Operand::Absent => Ok(None),
        }
    }

    fn opt_weight(&self, op: &Op, name: &str) -> Option<WeightId> {
        match op.operand(name) {
            Operand::Weight(weight) => Some(weight),
            Operand::Value(_) | Operand::Absent => None,
        }
    }

    fn weight_operand(&self, op: &Op, name: &str) -> WeightId {
        match self.opt_weight(op, name) {
            Some(weight) => weight,
            None => unreachable!("operand {name} of {} is a weight, as the op table says", op.kind.row().mnemonic),
        }
    }

    /// `x` is rows of `width` in `format`.
    pub(super) fn expect(&self, op: &'static str, x: &Stored, format: Format, width: u64) -> Result<(), ScheduleError> {
        if (x.format, x.width) == (format, width) {
            return Ok(());
        }
        unsupported(op, format!("rows of {} {} where {width} {format} are wanted", x.width, x.format))
    }

    fn label(&self, kind: OpKind, w: WeightId) -> String {
        let name = &self.module.weights[w.index()].name;
        format!("{} {}", kind.row().mnemonic, name.strip_suffix(".weight").unwrap_or(name))
    }

    /// Rows take positions one to one: only tokens have them.
    fn positions(&self, op: &Op, x: &Stored) -> Result<(), ScheduleError> {
        let name = op.kind.row().mnemonic;
        match (self.meaning(name, self.value_operand(op, "pos")?)?, x.rows) {
            (Meaning::Positions, Rows::Tokens) => Ok(()),
            _ => unsupported(name, "positions other than the parameter's, or rows other than tokens"),
        }
    }

    // Parts of the plan.

    pub(super) fn buffer(
        &mut self,
        name: &str,
        rows: Rows,
        format: Format,
        width: u64,
    ) -> Result<Stored, ScheduleError> {
        let draft = Draft { name: name.to_string(), row_bytes: row_bytes(format, width)?, rows: rows.count() };
        let buffer = BufferId(fit("number of buffers", self.buffers.len() as u64)?);
        self.buffers.push(draft);
        Ok(Stored { buffer, rows, width, format })
    }

    pub(super) fn kernel(&mut self, spec: KernelSpec) -> Result<KernelId, ScheduleError> {
        if let Some(&id) = self.kernel_ids.get(&spec) {
            return Ok(id);
        }
        let id = KernelId(fit("number of kernels", self.kernels.len() as u64)?);
        self.kernels.push(spec.clone());
        self.kernel_ids.insert(spec, id);
        Ok(id)
    }

    /// A weight's position in the plan.
    pub(super) fn weight(&mut self, w: WeightId) -> Result<u32, ScheduleError> {
        if let Some(&id) = self.weight_ids.get(&w) {
            return Ok(id);
        }
        let weight = &self.module.weights[w.index()];
        let name = || weight.name.clone();
        let place = weight.place.ok_or_else(|| ScheduleError::NoPlace { name: name() })?;
        let (&last, lead) = weight.shape.split_last().ok_or_else(|| ScheduleError::NoPlace { name: name() })?;
        let row = row_bytes(weight.format, last)?;
        let bytes = lead.iter().try_fold(row, |bytes, &n| bytes.checked_mul(n)).unwrap_or(u64::MAX);
        let available = self.settings.files.get(place.file as usize).map_or(0, |file| file.bytes);
        if place.offset.checked_add(bytes).is_none_or(|end| end > available) {
            let (file, offset) = (place.file, place.offset);
            return Err(ScheduleError::Place { name: name(), file, offset, bytes, available });
        }
        let id = fit("number of weights", self.plan_weights.len() as u64)?;
        self.plan_weights.push(PlanWeight {
            name: name(),
            format: weight.format,
            shape: weight.shape.clone(),
            file: place.file,
            offset: place.offset,
            bytes,
        });
        self.weight_ids.insert(w, id);
        Ok(id)
    }

    /// A weight of floats that kernels read as such.
    pub(super) fn vector(&mut self, op: &'static str, w: WeightId) -> Result<u32, ScheduleError> {
        let weight = &self.module.weights[w.index()];
        if weight.format != Format::F32 {
            return unsupported(op, format!("@{} in {}; norms and biases must be f32", weight.name, weight.format));
        }
        self.weight(w)
    }

    /// Adds a task; what it waits for follows from its arguments.
    pub(super) fn task(&mut self, mut task: Task, args: Vec<(Arg, Access)>) {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        if let RowAxis::Routed(bucket) = task.rows {
            reads.push(Resource::Bucket(bucket.0));
        }
        for (arg, access) in &args {
            let resource = match arg.source {
                Source::Arena(buffer) => Resource::Buffer(buffer.0),
                Source::Keys(layer) | Source::Values(layer) => Resource::Cache(layer),
                Source::Input(Input::RoutedToken(bucket) | Input::RoutedSlot(bucket)) => Resource::Bucket(bucket.0),
                Source::Weight(_) | Source::Rope(_) | Source::Scratch | Source::Input(_) => continue,
            };
            match access {
                Access::Read => reads.push(resource),
                Access::Write => writes.push(resource),
            }
        }
        task.args = args.into_iter().map(|(arg, _)| arg).collect();
        self.work.push(Work { what: What::Task(task), reads, writes });
    }

    /// A task with an item for each row and column.
    fn by_rows(
        &mut self,
        label: String,
        rows: Rows,
        columns: u64,
        (spec, dims): (KernelSpec, Vec<DimRule>),
        args: Vec<(Arg, Access)>,
    ) -> Result<(), ScheduleError> {
        let columns = fit("columns of a task", columns)?;
        let kernel = self.kernel(spec)?;
        let variants = vec![Variant { up_to_rows: u32::MAX, row_chunk: 1, kernel, dims }];
        self.task(Task { label, rows: rows.axis(), columns, variants, args: Vec::new() }, args);
        Ok(())
    }

    fn rope_table(&mut self, rope: &RopeAttrs, factors: Option<WeightId>) -> Result<u32, ScheduleError> {
        let factors = factors.map(|w| self.floats(w)).transpose()?;
        let (frequencies, magnitude) = rope_angles(rope, factors.as_deref());
        self.add_rope(RopeTable { style: plan_style(rope.style), frequencies, magnitude })
    }

    fn add_rope(&mut self, table: RopeTable) -> Result<u32, ScheduleError> {
        if let Some(i) = self.ropes.iter().position(|other| *other == table) {
            return Ok(i as u32);
        }
        self.ropes.push(table);
        fit("number of rotary tables", self.ropes.len() as u64 - 1)
    }

    /// A small weight's elements.
    fn floats(&self, w: WeightId) -> Result<Vec<f32>, ScheduleError> {
        let weight = &self.module.weights[w.index()];
        let name = || weight.name.clone();
        let bytes = self.source.bytes(w).map_err(|error| ScheduleError::Weight { name: name(), error })?;
        let elements = bytes.len() / weight.format.block_bytes() * weight.format.block_len();
        if weight.shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim)) != Some(elements as u64)
            || !bytes.len().is_multiple_of(weight.format.block_bytes())
        {
            let error = format!("{} bytes for {:?}", bytes.len(), weight.shape).into();
            return Err(ScheduleError::Weight { name: name(), error });
        }
        let mut floats = vec![0.0; elements];
        weight.format.dequantise(&bytes, &mut floats);
        Ok(floats)
    }

    // Ops, in the order of the op table.

    fn embed(&mut self, op: &Op) -> Result<Meaning, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let Meaning::Ids = self.meaning(name, self.value_operand(op, "ids")?)? else {
            return unsupported(name, "ids other than the parameter's, which alone are checked");
        };
        let w = self.weight_operand(op, "table");
        let &[rows, n] = &self.module.weights[w.index()].shape[..] else { return unsupported(name, "no table") };
        let format = self.module.weights[w.index()].format;
        let label = self.label(op.kind, w);
        let y = self.buffer(&label, Rows::Tokens, Format::F32, n)?;
        let spec = KernelSpec::Embed { format, rows: fit("rows of a table", rows)?, n: fit("columns of a table", n)? };
        let args = vec![
            (by_row(Source::Input(Input::Tokens), INDEX_BYTES), Access::Read),
            (whole(Source::Weight(self.weight(w)?)), Access::Read),
            (by_row(Source::Arena(y.buffer), y.row_bytes()?), Access::Write),
        ];
        self.by_rows(label, y.rows, 1, (spec, Vec::new()), args)?;
        Ok(Meaning::Stored(y))
    }

    fn map(&mut self, op: &Op, function: Elementwise) -> Result<Meaning, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let operands = op.operands.len();
        let mut inputs = Vec::with_capacity(operands);
        for operand in &op.operands {
            if let Operand::Value(value) = operand {
                inputs.push(self.stored(name, *value)?);
            }
        }
        let Some(&first) = inputs.first() else { return unsupported(name, "no operand") };
        for input in &inputs {
            self.expect(name, input, Format::F32, first.width)?;
            if input.rows != first.rows {
                return unsupported(name, "rows of different routings");
            }
        }
        let y = self.buffer(name, first.rows, Format::F32, first.width)?;
        let row = y.row_bytes()?;
        let mut args: Vec<_> = inputs.iter().map(|x| (by_row(Source::Arena(x.buffer), row), Access::Read)).collect();
        args.push((by_row(Source::Arena(y.buffer), row), Access::Write));
        let spec = KernelSpec::Map { function, n: fit("elements of a row", y.width)? };
        self.by_rows(name.to_string(), y.rows, 1, (spec, Vec::new()), args)?;
        Ok(Meaning::Stored(y))
    }

    fn add_bias(&mut self, op: &Op) -> Result<Meaning, ScheduleError> {
        let x = self.operand(op, "x")?;
        let w = self.weight_operand(op, "bias");
        let label = self.label(op.kind, w);
        let n = self.last(w);
        let y = self.buffer(&label, x.rows, Format::F32, x.width)?;
        let (row, column) = (y.row_bytes()?, row_bytes(Format::F32, n)?);
        let args = vec![
            (by_column(Source::Arena(x.buffer), row, column), Access::Read),
            (whole(Source::Weight(self.vector(op.kind.row().mnemonic, w)?)), Access::Read),
            (by_column(Source::Arena(y.buffer), row, column), Access::Write),
        ];
        let spec = KernelSpec::AddBias { n: fit("elements of a bias", n)? };
        self.by_rows(label, y.rows, x.width / n, (spec, Vec::new()), args)?;
        Ok(Meaning::Stored(y))
    }

    /// Elements in the last dimension of a weight, at least 1.
    fn last(&self, w: WeightId) -> u64 {
        self.module.weights[w.index()].shape.last().copied().unwrap_or(1).max(1)
    }

    fn rms_norm(&mut self, op: &Op, out: Format) -> Result<Meaning, ScheduleError> {
        let x = self.operand(op, "x")?;
        let w = self.weight_operand(op, "w");
        let label = self.label(op.kind, w);
        let n = self.last(w);
        let y = self.buffer(&label, x.rows, out, x.width)?;
        let args = vec![
            (by_column(Source::Arena(x.buffer), x.row_bytes()?, row_bytes(Format::F32, n)?), Access::Read),
            (whole(Source::Weight(self.vector(op.kind.row().mnemonic, w)?)), Access::Read),
            (by_column(Source::Arena(y.buffer), y.row_bytes()?, row_bytes(out, n)?), Access::Write),
        ];
        let eps = Bits::of(op.attr("eps").float());
        let spec = KernelSpec::RmsNorm { n: fit("elements of a norm", n)?, eps, out };
        self.by_rows(label, y.rows, x.width / n, (spec, Vec::new()), args)?;
        Ok(Meaning::Stored(y))
    }

    /// `x` in an activation format; the same rows are quantised once.
    fn quantise(&mut self, x: Stored, out: Format) -> Result<Stored, ScheduleError> {
        if x.format == out {
            return Ok(x);
        }
        if let Some(&done) = self.quantised.get(&(x.buffer, out)) {
            return Ok(done);
        }
        let y = self.buffer("quantise", x.rows, out, x.width)?;
        let args = vec![
            (by_row(Source::Arena(x.buffer), x.row_bytes()?), Access::Read),
            (by_row(Source::Arena(y.buffer), y.row_bytes()?), Access::Write),
        ];
        let spec = KernelSpec::Quantise { n: fit("elements of a row", x.width)?, out };
        self.by_rows("quantise".to_string(), x.rows, 1, (spec, Vec::new()), args)?;
        self.quantised.insert((x.buffer, out), y);
        Ok(y)
    }

    fn rope_heads(&mut self, op: &Op, norm: Option<WeightId>) -> Result<Meaning, ScheduleError> {
        let x = self.operand(op, "x")?;
        self.positions(op, &x)?;
        let rope = RopeAttrs::from_op(op);
        let [_, heads, d] = self.function.ty(op.results[0]).dims() else {
            return unsupported(op.kind.row().mnemonic, "no heads");
        };
        let (heads, d) = (heads.fixed().unwrap_or(0), d.fixed().unwrap_or(0));
        let table = self.rope_table(&rope, self.opt_weight(op, "factors"))?;
        let label = op.kind.row().mnemonic.to_string();
        let y = self.buffer(&label, x.rows, Format::F32, x.width)?;
        let row = y.row_bytes()?;
        let mut args = vec![(by_row(Source::Arena(x.buffer), row), Access::Read)];
        if let Some(norm) = norm {
            args.push((whole(Source::Weight(self.vector(op.kind.row().mnemonic, norm)?)), Access::Read));
        }
        args.extend(rope_args(table));
        args.push((by_row(Source::Arena(y.buffer), row), Access::Write));
        let spec = KernelSpec::RopeHeads {
            heads: fit("heads", heads)?,
            d: fit("elements of a head", d)?,
            dims: fit("rotated elements", rope.dims)?,
            style: plan_style(rope.style),
            norm: norm.map(|_| Bits::of(op.attr("eps").float())),
        };
        self.by_rows(label, y.rows, 1, (spec, vec![DimRule::CacheBlocks]), args)?;
        Ok(Meaning::Stored(y))
    }

    /// Keys and values into the cache; without `rope` the keys are rotated already, and turn by nothing here.
    fn append(&mut self, op: &Op, rope: Option<RopeAttrs>) -> Result<Meaning, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (k, v) = (self.operand(op, "k")?, self.operand(op, "v")?);
        self.positions(op, &k)?;
        let (layer, cache) = self.layer(op)?;
        let (table, style, dims, norm) = match &rope {
            Some(rope) => {
                let table = self.rope_table(rope, self.opt_weight(op, "factors"))?;
                (table, plan_style(rope.style), rope.dims, self.opt_weight(op, "norm"))
            }
            None if cache.key_len < 2 => return unsupported(name, "keys of one element; they must have two"),
            None => {
                // One pair that turns by no angle: 1 * a - 0 * b is a, exactly.
                let style = RopeStyle::Neox;
                (self.add_rope(RopeTable { style, frequencies: vec![0.0], magnitude: 1.0 })?, style, 2, None)
            }
        };
        let (d, dv) = (u64::from(cache.key_len), u64::from(cache.value_len));
        self.expect(name, &k, Format::F32, d * u64::from(cache.heads))?;
        self.expect(name, &v, Format::F32, dv * u64::from(cache.heads))?;
        let mut args = vec![
            (by_column(Source::Arena(k.buffer), k.row_bytes()?, row_bytes(Format::F32, d)?), Access::Read),
            (by_column(Source::Arena(v.buffer), v.row_bytes()?, row_bytes(Format::F32, dv)?), Access::Read),
        ];
        if let Some(norm) = norm {
            args.push((whole(Source::Weight(self.vector(name, norm)?)), Access::Read));
        }
        args.extend(rope_args(table));
        args.push((whole(Source::Keys(layer)), Access::Write));
        args.push((whole(Source::Values(layer)), Access::Write));
        args.push((scratch_arg(), Access::Read));
        let spec = KernelSpec::RopeAppend {
            d: cache.key_len,
            dv: cache.value_len,
            dims: fit("rotated elements", dims)?,
            style,
            norm: norm.map(|_| Bits::of(op.attr("eps").float())),
        };
        let label = format!("{name} layer {layer}");
        self.by_rows(label, k.rows, cache.heads.into(), (spec, vec![DimRule::CacheBlocks]), args)?;
        Ok(Meaning::Token)
    }

    fn layer(&self, op: &Op) -> Result<(u32, CacheLayer), ScheduleError> {
        let layer = op.attr("layer").int();
        match self.layers.get(&layer).and_then(|&i| Some((i, self.cache.get(i as usize)?.clone()))) {
            Some(layer) => Ok(layer),
            None => unsupported(op.kind.row().mnemonic, format!("layer {layer}, to which nothing is appended")),
        }
    }

    fn attention(&mut self, op: &Op) -> Result<Meaning, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let q = self.operand(op, "q")?;
        self.positions(op, &q)?;
        let (layer, cache) = self.layer(op)?;
        let (d, dv, kv_heads) = (u64::from(cache.key_len), u64::from(cache.value_len), u64::from(cache.heads));
        let heads = q.width / d.max(1);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return unsupported(name, format!("{heads} query heads on {kv_heads} key heads"));
        }
        let group = heads / kv_heads;
        let label = format!("{name} layer {layer}");
        let y = self.buffer(&label, q.rows, Format::F32, heads * dv)?;
        let args = vec![
            (by_column(Source::Arena(q.buffer), q.row_bytes()?, row_bytes(Format::F32, group * d)?), Access::Read),
            (by_row(Source::Input(Input::Positions), INDEX_BYTES), Access::Read),
            (whole(Source::Keys(layer)), Access::Read),
            (whole(Source::Values(layer)), Access::Read),
            (by_column(Source::Arena(y.buffer), y.row_bytes()?, row_bytes(Format::F32, group * dv)?), Access::Write),
            (scratch_arg(), Access::Read),
        ];
        let spec = KernelSpec::Attention {
            group: fit("query heads of a key head", group)?,
            d: cache.key_len,
            dv: cache.value_len,
            scale: Bits::of(op.attr("scale").float()),
        };
        self.by_rows(label, q.rows, kv_heads, (spec, vec![DimRule::PositionBlocks]), args)?;
        Ok(Meaning::Stored(y))
    }

    fn route(&mut self, op: &Op) -> Result<Meaning, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let logits = self.operand(op, "logits")?;
        let route = RouteAttrs::from_op(op);
        let ids = self.buffer("route ids", logits.rows, Format::F32, route.top_k)?;
        let p = self.buffer("route weights", logits.rows, Format::F32, route.top_k)?;
        let args = vec![
            (by_row(Source::Arena(logits.buffer), logits.row_bytes()?), Access::Read),
            (by_row(Source::Arena(ids.buffer), ids.row_bytes()?), Access::Write),
            (by_row(Source::Arena(p.buffer), p.row_bytes()?), Access::Write),
            (scratch_arg(), Access::Read),
        ];
        let spec = KernelSpec::Route {
            experts: fit("experts", logits.width)?,
            top_k: fit("experts of a token", route.top_k)?,
            score: match route.score {
                RouteScore::Softmax => Score::Softmax,
                RouteScore::Sigmoid => Score::Sigmoid,
            },
            normalise: route.normalise,
            scale: Bits::of(route.scale),
        };
        self.by_rows(name.to_string(), logits.rows, 1, (spec, Vec::new()), args)?;
        self.routes.insert(ids.buffer, logits.width);
        self.meanings[op.results[1].index()] = Some(Meaning::Stored(p));
        Ok(Meaning::Stored(ids))
    }

    /// The rows of the routing that `ids` is, bucketed where it was not yet.
    fn routing(&mut self, op: &'static str, ids: Stored) -> Result<Rows, ScheduleError> {
        if let Some(&rows) = self.routings.get(&ids.buffer) {
            return Ok(rows);
        }
        let Some(&experts) = self.routes.get(&ids.buffer) else {
            return unsupported(op, "ids that no route gave");
        };
        if ids.rows != Rows::Tokens {
            return unsupported(op, "routing of rows other than tokens");
        }
        let (bucket, top_k) = (BucketId(self.buckets), fit("experts of a token", ids.width)?);
        self.buckets += 1;
        self.experts.push(experts);
        let step = Step::Bucket { bucket, ids: ids.buffer, top_k, experts: fit("experts", experts)? };
        self.work.push(Work {
            what: What::Bucket(step),
            reads: vec![Resource::Buffer(ids.buffer.0)],
            writes: vec![Resource::Bucket(bucket.0)],
        });
        let rows = Rows::Routed { bucket, top_k };
        self.routings.insert(ids.buffer, rows);
        Ok(rows)
    }

    /// How many experts a routing is into.
    pub(super) fn experts_of(&self, bucket: BucketId) -> Option<u64> {
        self.experts.get(bucket.0 as usize).copied()
    }

    /// `x` in the order of the op's routing; the same rows are copied once.
    fn routed(&mut self, op: &Op, x: Stored) -> Result<Stored, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let ids = self.operand(op, "ids")?;
        let rows = self.routing(name, ids)?;
        let Rows::Routed { bucket, .. } = rows else { return unsupported(name, "rows that are not routed") };
        if x.rows == rows {
            return Ok(x);
        }
        if x.rows != Rows::Tokens {
            return unsupported(name, "rows of another routing");
        }
        if let Some(&done) = self.gathered.get(&(x.buffer, bucket)) {
            return Ok(done);
        }
        let y = self.buffer("gather", rows, x.format, x.width)?;
        let row = x.row_bytes()?;
        let args = vec![
            (by_row(Source::Input(Input::RoutedToken(bucket)), INDEX_BYTES), Access::Read),
            (whole(Source::Arena(x.buffer)), Access::Read),
            (by_row(Source::Arena(y.buffer), row), Access::Write),
        ];
        let spec = KernelSpec::Gather { bytes: fit("bytes of a row", row)? };
        self.by_rows("gather".to_string(), rows, 1, (spec, vec![DimRule::All(RowCount::Tokens)]), args)?;
        self.gathered.insert((x.buffer, bucket), y);
        Ok(y)
    }

    fn combine(
        &mut self,
        op: &'static str,
        label: String,
        y: Stored,
        p: Stored,
        residual: Option<Stored>,
    ) -> Result<Stored, ScheduleError> {
        let Rows::Routed { bucket, top_k } = y.rows else { return unsupported(op, "slots that are not routed") };
        if p.rows != Rows::Tokens || p.width != u64::from(top_k) {
            return unsupported(op, "weights of other slots than those of y");
        }
        let out = self.buffer(&label, Rows::Tokens, Format::F32, y.width)?;
        let row = out.row_bytes()?;
        let slots = u64::from(top_k) * INDEX_BYTES;
        let mut args = vec![
            (by_row(Source::Input(Input::RoutedSlot(bucket)), slots), Access::Read),
            (by_row(Source::Arena(p.buffer), p.row_bytes()?), Access::Read),
            (whole(Source::Arena(y.buffer)), Access::Read),
        ];
        if let Some(residual) = residual {
            self.expect(op, &residual, Format::F32, y.width)?;
            if residual.rows != Rows::Tokens {
                return unsupported(op, "a residual of rows other than tokens");
            }
            args.push((by_row(Source::Arena(residual.buffer), row), Access::Read));
        }
        args.push((by_row(Source::Arena(out.buffer), row), Access::Write));
        let spec =
            KernelSpec::Combine { n: fit("elements of a row", y.width)?, slots: top_k, residual: residual.is_some() };
        let dims = vec![DimRule::All(RowCount::Routed { top_k })];
        self.by_rows(label, out.rows, 1, (spec, dims), args)?;
        Ok(out)
    }

    fn take_rows(&mut self, op: &Op) -> Result<Meaning, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let x = self.operand(op, "x")?;
        let Meaning::WantedRows = self.meaning(name, self.value_operand(op, "rows")?)? else {
            return unsupported(name, "rows other than the parameter's, which alone are checked");
        };
        if x.rows != Rows::Tokens {
            return unsupported(name, "rows of something else than tokens");
        }
        let y = self.buffer(name, Rows::Outputs, x.format, x.width)?;
        let row = y.row_bytes()?;
        let args = vec![
            (by_row(Source::Input(Input::OutputRows), INDEX_BYTES), Access::Read),
            (whole(Source::Arena(x.buffer)), Access::Read),
            (by_row(Source::Arena(y.buffer), row), Access::Write),
        ];
        let spec = KernelSpec::Gather { bytes: fit("bytes of a row", row)? };
        self.by_rows(name.to_string(), y.rows, 1, (spec, vec![DimRule::All(RowCount::Tokens)]), args)?;
        Ok(Meaning::Stored(y))
    }
}

fn plan_style(style: attrs::RopeStyle) -> RopeStyle {
    match style {
        attrs::RopeStyle::Norm => RopeStyle::Norm,
        attrs::RopeStyle::Neox => RopeStyle::Neox,
    }
}

/// The row of a rotary table that a position names, by its block and its lane, and the table.
fn rope_args(table: u32) -> [(Arg, Access); 3] {
    [
        (by_row(Source::Input(Input::PositionBlock), INDEX_BYTES), Access::Read),
        (by_row(Source::Input(Input::PositionLane), INDEX_BYTES), Access::Read),
        (whole(Source::Rope(table)), Access::Read),
    ]
}
