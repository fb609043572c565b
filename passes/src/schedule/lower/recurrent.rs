//! Recurrent ops: each is one task. An item has some columns of the state and all rows of the step,
//! because each row changes the state for the next row.
//!
//! ```text
//! short_conv %s, %x, @w {dilation = 1}    short_conv: tokens x 16 at once, the state's channels in 16 parts
//! ```
//!
//! The kernel's buffers have the names of the op's operands; `y` is the result. A kernel call gets
//! the part of each row and of the state that belongs to its column.

use ixc_ir::format::Format;
use ixc_ir::graph::op::Recurrent;
use ixc_ir::graph::{Dim, Op, Operand};
use ixc_ir::plan::{RowInput, Source};
use ixc_kernels::generator::signature::Role;
use ixc_kernels::{Bits, Compress, DeltaNet, DeltaNetChunks, KernelSpec, ShortConv, SsmScan, Wkv};

use super::{Binding, KernelChoice, Lowering, ScheduleError};
use super::{INDEX_BYTES, bind, by_column, by_row, fit, row_bytes, scratch_arg, unsupported_error};

/// Channels of an item of a convolution: enough for a few vectors, and few enough that several
/// threads share a row.
const CHANNELS: u64 = 256;

/// Elements of a compressed row in an item. Each element takes two or three exponentials.
const COMPRESSED: u64 = 128;

/// Elements of the scan states in an item. There are enough that a kernel call costs little even in
/// a step of one row. They are few enough that several threads share the work.
const STATE: u64 = 1 << 14;

/// A kernel for some columns of a state.
struct Columns {
    spec: KernelSpec,
    /// Kernel for many rows, with the minimum number of rows for its use.
    many: Option<(u32, KernelSpec)>,
    /// Number of columns, that is, of kernel calls for the whole op.
    count: u64,
    /// Elements from one column to the next in each buffer. For a buffer that is not listed, this
    /// is its width divided by the number of columns.
    strides: Vec<(&'static str, u64)>,
}

impl Lowering<'_> {
    /// Returns the kernel of an op.
    fn columns(&self, op: &Op, kind: Recurrent) -> Result<Columns, ScheduleError> {
        match kind {
            Recurrent::DeltaNet => self.delta_net(op),
            Recurrent::ShortConv => self.short_conv(op),
            Recurrent::Compress => self.compress(op),
            Recurrent::Wkv => self.wkv(op),
            Recurrent::SsmScan => self.ssm_scan(op),
        }
    }

    /// Returns the number of heads of an operand, and the elements of each.
    fn heads(&self, op: &Op, name: &str) -> Result<[u32; 2], ScheduleError> {
        let number = |dim: usize| {
            let dim = self.function.ty(self.value_operand(op, name)?).dims().get(dim).and_then(Dim::fixed);
            fit("heads", dim.unwrap_or(0))
        };
        Ok([number(1)?, number(2)?])
    }

    /// Returns the kernels of a delta rule. An item is a key head with its value heads.
    fn delta_net(&self, op: &Op) -> Result<Columns, ScheduleError> {
        let ([heads, d], [all, dv]) = (self.heads(op, "q")?, self.heads(op, "v")?);
        let interleaved = op.attr("keys").word() == "interleaved";
        let channels = self.function.ty(self.value_operand(op, "alpha")?).dims().len() == 3;
        let eps = Bits::from_value(op.attr("eps").float());
        let bound = Some(op.attr("bound").float()).filter(|&bound| bound != 0.0).map(Bits::from_value);
        let rate = Some(op.attr("rate").float()).filter(|&rate| rate != 0.0).map(Bits::from_value);
        let group = all / heads.max(1);
        let spec = DeltaNet { heads, group, d, dv, eps, interleaved, channels, bound, rate }.into();
        let many = DeltaNetChunks { heads, group, d, dv, eps, interleaved, channels, bound, rate }.into();
        // Unless heads are interleaved, the value heads of a key head are adjacent. All key heads
        // have equally large parts of every buffer.
        let matrix = u64::from(d) * u64::from(dv);
        let decays = if channels { d.into() } else { 1 };
        let one_head = [("alpha", decays), ("beta", 1), ("a", 1), ("dt", decays)];
        let strides = [("state", matrix), ("v", dv.into()), ("y", dv.into())].into_iter().chain(one_head);
        let strides = if interleaved { strides.collect() } else { Vec::new() };
        Ok(Columns { spec, many: Some((DeltaNetChunks::MIN_ROWS, many)), count: heads.into(), strides })
    }

    /// Returns the kernel of a short convolution. An item is some channels.
    fn short_conv(&self, op: &Op) -> Result<Columns, ScheduleError> {
        let channels = self.operand(op, "x")?.width;
        let taps = self.shape(op, "w").last().copied().unwrap_or(0);
        let n = if channels.is_multiple_of(CHANNELS) { CHANNELS } else { channels };
        let [channels, n, taps] = [channels, n, taps].map(|n| fit("channels", n));
        let (channels, n) = (channels?, n?);
        let count = u64::from(channels / n.max(1));
        // A row of the state has as many channels as a row of tokens.
        let dilation = fit("dilation", op.attr("dilation").int().unsigned_abs())?;
        let dilation = Some(dilation).filter(|&dilation| dilation != 1);
        Ok(Columns {
            spec: ShortConv { channels, n, taps: taps?, dilation }.into(),
            many: None,
            count,
            strides: vec![("state", n.into())],
        })
    }

    /// Returns the kernel that compresses positions into entries. An item is some elements.
    fn compress(&self, op: &Op) -> Result<Columns, ScheduleError> {
        let overlap = op.attr("overlap").bool();
        let d = self.operand(op, "kv")?.width / if overlap { 2 } else { 1 };
        let n = if d.is_multiple_of(COMPRESSED) { COMPRESSED } else { d.max(1) };
        let spec = Compress {
            d: fit("elements of a row", d)?,
            n: fit("elements of a row", n)?,
            every: fit("positions of a row", op.attr("every").int().unsigned_abs())?,
            overlap,
        };
        // In every buffer, a column starts `n` elements after the previous one. The rows of a
        // column are a whole row of the buffer apart.
        let strides = ["state", "kv", "gate", "ape", "y"].map(|name| (name, n)).to_vec();
        Ok(Columns { spec: spec.into(), many: None, count: d / n, strides })
    }

    /// Returns the kernel of a WKV recurrence. An item is a key head with the heads that share it.
    fn wkv(&self, op: &Op) -> Result<Columns, ScheduleError> {
        let ([all, d], [heads, dv]) = (self.heads(op, "q")?, self.heads(op, "v")?);
        let [before, filled] = ["before", "filled"].map(|name| op.attr(name).bool());
        let finds = op.operand("find") != Operand::Absent;
        let spec = Wkv { heads, group: all / heads.max(1), d, dv, before, finds, filled }.into();
        // Heads that share a key head are adjacent, and all key heads have equally large parts of
        // every buffer.
        Ok(Columns { spec, many: None, count: heads.into(), strides: Vec::new() })
    }

    /// Returns the kernel of a state-space scan. An item is either one group, or some heads of
    /// every group.
    fn ssm_scan(&self, op: &Op) -> Result<Columns, ScheduleError> {
        let ([heads, p], [groups, s]) = (self.heads(op, "x")?, self.heads(op, "b")?);
        let of_group = heads / groups.max(1);
        let head = u64::from(p) * u64::from(s);
        let channels = self.shape(op, "a").len() == 2;
        let spec = |of, n| SsmScan { heads, groups, of, n, p, s, channels }.into();
        if groups > of_group {
            // All groups have equally large parts of every buffer.
            return Ok(Columns { spec: spec(1, of_group), many: None, count: groups.into(), strides: Vec::new() });
        }
        // An item has the same number of heads of every group. In a row, the groups start
        // `of_group` heads apart.
        let enough = (STATE / head.saturating_mul(groups.into()).max(1)).clamp(1, of_group.max(1).into()) as u32;
        let n = (1..=enough).rev().find(|&n| of_group.is_multiple_of(n)).unwrap_or(1);
        let heads = ["x", "y"].map(|name| (name, u64::from(n) * u64::from(p)));
        let one_head = ["dt", "bias", "d"].map(|name| (name, n.into()));
        let rates = [("a", u64::from(n) * if channels { u64::from(s) } else { 1 })];
        let shared = ["b", "c"].map(|name| (name, 0));
        let strides =
            [("state", u64::from(n) * head)].into_iter().chain(heads).chain(one_head).chain(rates).chain(shared);
        Ok(Columns { spec: spec(groups, n), many: None, count: (of_group / n).into(), strides: strides.collect() })
    }

    /// Returns the dimensions of a weight operand.
    fn shape(&self, op: &Op, name: &str) -> &[u64] {
        &self.module.weights[self.weight_operand(op, name).index()].shape
    }

    pub(super) fn recurrent(&mut self, op: &Op, kind: Recurrent) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let Columns { spec, many, count, strides } = self.columns(op, kind)?;
        let state = self.state(op, "state")?;
        let width =
            self.function.ty(op.results[0]).dims().iter().skip(1).try_fold(1u64, |n, dim| n.checked_mul(dim.fixed()?));
        let label = format!("{name} {}", self.module.states[state.index()].name);
        let rows = super::Rows::Tokens;
        let y = self.buffer(&label, rows, Format::F32, width.unwrap_or(u64::MAX))?;
        let mut args = Vec::new();
        for buffer in &spec.signature().buffers {
            let own = strides.iter().find(|(name, _)| *name == buffer.name).map(|(_, stride)| *stride);
            let column = |elements: u64| row_bytes(Format::F32, own.unwrap_or(elements / count.max(1)));
            let arg = match (buffer.role, buffer.name) {
                (Role::Update, _) => {
                    let field = self.states[state.index()].fields[0];
                    let elements = u64::from(field.columns).saturating_mul(field.width.into());
                    by_column(self.field(state, "value"), 0, column(elements)?)
                }
                (Role::Scratch, _) => scratch_arg(),
                (Role::Index, _) => {
                    self.check_positions(op)?;
                    let every = fit("positions of a row", op.attr("every").int().unsigned_abs())?;
                    by_row(RowInput::Phase(every).into(), INDEX_BYTES)
                }
                (_, "y") => by_column(Source::Arena(y.buffer), y.row_bytes()?, column(y.width)?),
                (_, operand) => match op.operand(operand) {
                    Operand::Weight(w) => {
                        let elements = self.module.weights[w.index()].shape.iter().product();
                        by_column(Source::Weight(self.vector(name, w)?), 0, column(elements)?)
                    }
                    Operand::Value(_) | Operand::State(_) | Operand::Absent => {
                        let x = self.operand(op, operand)?;
                        if x.rows != rows {
                            return unsupported_error(name, "rows other than tokens");
                        }
                        by_column(Source::Arena(x.buffer), x.row_bytes()?, column(x.width)?)
                    }
                },
            };
            args.push(bind(buffer.name, arg));
        }
        // A call takes all rows, because each row changes the state for the next row.
        let mut choices = vec![KernelChoice::by_chunks(u32::MAX, spec)];
        if let Some((least, many)) = many {
            choices[0].up_to_rows = least.saturating_sub(1);
            choices.push(KernelChoice::by_chunks(u32::MAX, many));
        }
        self.tell_by_rows(&label, &choices, &["the kernel computes whole chunks of rows"], Vec::new);
        self.tasks.task(label, rows.axis(), count, choices, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }
}
