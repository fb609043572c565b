//! Ops on rows: embedding, elementwise ops, norms, quantisation, selection of the requested rows.
//!
//! ```text
//! rms_norm %x, @norm    rms_norm: tokens x 1, or x heads where the norm is of a head
//! ```

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::ngram_hash;
use ixc_ir::graph::{Op, OpKind, Operand, Unary, WeightId};
use ixc_ir::plan::{Arg, DimInput, Input, Ngram, RowInput, Source};
use ixc_kernels::generator::signature::{NamedValue, Role};
use ixc_kernels::{
    AddBias, Bits, Centre, Clamp, ColumnSquares, Copy, Elementwise, Embed, Gather, HeadsSum, KernelSpec, Map, Quantise,
    Relu, RmsNorm, Scale, ScaleHeads, Softcap, StreamAttend, StreamInput, StreamMix, StreamParts, StreamWeights, Xielu,
};

use super::{ArenaRows, Binding, INDEX_BYTES, KernelChoice, Lowering, NamedArg, Rows, ScheduleError};
use super::{bind, by_column, by_row, fit, part_bytes, row_bytes, unsupported_error, whole};

impl Lowering<'_> {
    /// Lowers sums of squares. All rows of an expert are one item, because the item adds them to
    /// the expert's sums.
    pub(super) fn column_squares(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (state, mut x) = (self.state(op, "sums")?, self.operand(op, "x")?);
        if op.operand("ids") != Operand::Absent {
            x = self.routed_rows(op, x)?;
        }
        let field = self.states[state.index()].fields[0];
        let experts = match x.rows {
            Rows::Tokens | Rows::Outputs => Some(1),
            Rows::Routed { bucket, .. } => self.experts_of(bucket),
        };
        if experts != Some(field.columns.into()) {
            return unsupported_error(name, format!("sums of {} experts for rows of {experts:?}", field.columns));
        }
        let sums = Arg {
            expert_stride: if field.columns > 1 { row_bytes(Format::F32, field.width.into())? } else { 0 },
            ..whole(self.field(state, "value"))
        };
        let args = vec![bind("sums", sums), bind("x", by_row(Source::Arena(x.buffer), x.row_bytes()?))];
        let spec = ColumnSquares { format: x.format, n: fit("columns of a weight", x.width)? };
        let choices = vec![KernelChoice::by_chunks(u32::MAX, spec)];
        let label = format!("{name} {}", self.module.states[state.index()].name);
        self.tasks.task(label, x.rows.axis(), 1, choices, &[], args)?;
        Ok(Binding::Token)
    }

    pub(super) fn embed(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let ids = match self.meaning(name, self.value_operand(op, "ids")?)? {
            Binding::Ids => Input::Tokens,
            Binding::Positions => Input::Row(RowInput::Positions),
            Binding::Ngram(ngram) => Input::Ngram(ngram),
            _ => {
                return unsupported_error(
                    name,
                    "ids that are neither a parameter nor the result of ngram; only these are range-checked",
                );
            }
        };
        let w = self.weight_operand(op, "table");
        let &[rows, n] = &self.module.weights[w.index()].shape[..] else {
            return unsupported_error(name, "a table that is not a matrix");
        };
        let format = self.module.weights[w.index()].format;
        let label = self.label(op.kind, w);
        let y = self.buffer(&label, Rows::Tokens, Format::F32, n)?;
        let spec = Embed { format, rows: fit("rows of a table", rows)?, n: fit("columns of a table", n)? };
        let args = vec![
            bind("id", by_row(Source::Input(ids), INDEX_BYTES)),
            bind("table", whole(Source::Weight(self.stored_weight(w)?))),
            bind("y", by_row(Source::Arena(y.buffer), y.row_bytes()?)),
        ];
        self.by_rows(label, y.rows, 1, spec, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }

    /// Binds the result to numbers of table rows. The runtime computes them; the plan has no task
    /// for them.
    pub(super) fn ngram(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let Binding::Ids = self.meaning(name, self.value_operand(op, "ids")?)? else {
            return unsupported_error(name, "token ids that are not the parameter `ids`");
        };
        let state = self.state(op, "tokens")?;
        Ok(Binding::Ngram(Ngram { state: state.0, hash: ngram_hash(op) }))
    }

    pub(super) fn heads_sum(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let (name, x, heads) = (op.kind.row().mnemonic, self.operand(op, "x")?, self.parts(op, "x")?);
        self.expect(name, &x, Format::F32, x.width)?;
        let (y, n) = (self.buffer(name, x.rows, Format::F32, heads)?, x.width / heads);
        let args = vec![
            bind("x", by_column(Source::Arena(x.buffer), x.row_bytes()?, row_bytes(Format::F32, n)?)),
            bind("y", by_column(Source::Arena(y.buffer), y.row_bytes()?, row_bytes(Format::F32, 1)?)),
        ];
        let spec = HeadsSum { n: fit("elements of a head", n)? };
        self.by_rows(name.to_string(), y.rows, heads, spec, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }

    /// Lowers an elementwise op whose operands and result have rows of equal length. `spec` returns
    /// the kernel for a number of elements.
    pub(super) fn elementwise(&mut self, op: &Op, spec: impl Fn(u32) -> KernelSpec) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let operands = op.operands.len();
        let mut inputs = Vec::with_capacity(operands);
        for operand in &op.operands {
            if let Operand::Value(value) = operand {
                inputs.push(self.arena_rows(name, *value)?);
            }
        }
        let Some(&first) = inputs.first() else { return unsupported_error(name, "no operands; expected at least one") };
        for input in &inputs {
            self.expect(name, input, Format::F32, first.width)?;
            if input.rows != first.rows {
                return unsupported_error(name, "operands whose rows belong to different routings");
            }
        }
        let y = self.buffer(name, first.rows, Format::F32, first.width)?;
        let row = y.row_bytes()?;
        let spec = spec(fit("elements of a row", y.width)?);
        let args = elementwise_args(&spec, &inputs, &y, |x| Ok(by_row(Source::Arena(x.buffer), row)))?;
        self.by_rows(name.to_string(), y.rows, 1, spec, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }

    pub(super) fn add_bias(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let x = self.operand(op, "x")?;
        let w = self.weight_operand(op, "bias");
        let label = self.label(op.kind, w);
        let n = self.last(w);
        let y = self.buffer(&label, x.rows, Format::F32, x.width)?;
        let (row, column) = (y.row_bytes()?, row_bytes(Format::F32, n)?);
        let args = vec![
            bind("x", by_column(Source::Arena(x.buffer), row, column)),
            bind("bias", whole(Source::Weight(self.vector(op.kind.row().mnemonic, w)?))),
            bind("y", by_column(Source::Arena(y.buffer), row, column)),
        ];
        let spec = AddBias { n: fit("elements of a bias", n)? };
        self.by_rows(label, y.rows, x.width / n, spec, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }

    pub(super) fn scale_heads(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (x, s, residual) = (self.operand(op, "x")?, self.operand(op, "s")?, self.opt_operand(op, "residual")?);
        let heads = s.width.max(1);
        self.expect(name, &x, Format::F32, x.width)?;
        self.expect(name, &s, Format::F32, heads)?;
        if s.rows != x.rows || residual.is_some_and(|residual| residual.rows != x.rows) {
            return unsupported_error(name, "operands whose rows belong to different routings");
        }
        let y = self.buffer(name, x.rows, Format::F32, x.width)?;
        let n = x.width / heads;
        let (row, column) = (y.row_bytes()?, row_bytes(Format::F32, n)?);
        let mut args = vec![
            bind("x", by_column(Source::Arena(x.buffer), row, column)),
            bind("s", by_column(Source::Arena(s.buffer), s.row_bytes()?, row_bytes(Format::F32, 1)?)),
        ];
        if let Some(residual) = residual {
            self.expect(name, &residual, Format::F32, x.width)?;
            args.push(bind("residual", by_column(Source::Arena(residual.buffer), row, column)));
        }
        args.push(bind("y", by_column(Source::Arena(y.buffer), row, column)));
        let spec = ScaleHeads { n: fit("elements of a head", n)?, residual: residual.is_some() };
        self.by_rows(name.to_string(), y.rows, heads, spec, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }

    pub(super) fn stream_weights(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let x = self.operand(op, "x")?;
        self.expect(name, &x, Format::F32, x.width)?;
        let [scale, base] = ["scale", "base"].map(|operand| self.weight_operand(op, operand));
        let label = self.label(op.kind, base);
        let y = self.buffer(&label, x.rows, Format::F32, x.width)?;
        let args = vec![
            bind("x", by_row(Source::Arena(x.buffer), x.row_bytes()?)),
            bind("scale", whole(Source::Weight(self.vector(name, scale)?))),
            bind("base", whole(Source::Weight(self.vector(name, base)?))),
            bind("y", by_row(Source::Arena(y.buffer), y.row_bytes()?)),
        ];
        let [streams, iterations] = ["streams", "iterations"].map(|attr| op.attr(attr).int().unsigned_abs());
        let spec = StreamWeights {
            streams: fit("streams", streams)?,
            parts: StreamParts::of_width(x.width, streams),
            iterations: fit("iterations", iterations)?,
            eps: Bits::from_value(op.attr("eps").float()),
            magnitude: Bits::from_value(op.attr("magnitude").float()),
        };
        self.by_rows(label, y.rows, 1, spec, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }

    /// Returns the residual streams of a row, the weights of the streams, and their number.
    fn streams(&self, op: &Op) -> Result<(ArenaRows, ArenaRows, u64), ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (x, w, streams) = (self.operand(op, "x")?, self.operand(op, "w")?, self.parts(op, "x")?);
        self.expect(name, &x, Format::F32, x.width)?;
        self.expect(name, &w, Format::F32, w.width)?;
        if w.rows != x.rows || matches!(x.rows, Rows::Routed { .. }) {
            return unsupported_error(name, "operands whose rows belong to different routings");
        }
        Ok((x, w, streams))
    }

    pub(super) fn stream_input(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (x, w, streams) = self.streams(op)?;
        let d = x.width / streams;
        let y = self.buffer(name, x.rows, Format::F32, d)?;
        let n = of_stream(d);
        let part = row_bytes(Format::F32, n)?;
        let args = vec![
            bind("x", by_column(Source::Arena(x.buffer), x.row_bytes()?, part)),
            bind("w", by_row(Source::Arena(w.buffer), w.row_bytes()?)),
            bind("y", by_column(Source::Arena(y.buffer), y.row_bytes()?, part)),
        ];
        let (streams, elements) = (fit("streams", streams)?, fit("elements of a stream", d)?);
        let spec = StreamInput { streams, d: elements, n: fit("elements of a stream", n)? };
        self.by_rows(name.to_string(), y.rows, d / n, spec, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }

    pub(super) fn stream_mix(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (x, w, streams) = self.streams(op)?;
        let (y, d) = (self.operand(op, "y")?, x.width / streams);
        self.expect(name, &y, Format::F32, d)?;
        if y.rows != x.rows {
            return unsupported_error(name, "operands whose rows belong to different routings");
        }
        let z = self.buffer(name, x.rows, Format::F32, x.width)?;
        let n = of_stream(d);
        let part = row_bytes(Format::F32, n)?;
        let args = vec![
            bind("x", by_column(Source::Arena(x.buffer), x.row_bytes()?, part)),
            bind("y", by_column(Source::Arena(y.buffer), y.row_bytes()?, part)),
            bind("w", by_row(Source::Arena(w.buffer), w.row_bytes()?)),
            bind("z", by_column(Source::Arena(z.buffer), z.row_bytes()?, part)),
        ];
        let (streams, elements) = (fit("streams", streams)?, fit("elements of a stream", d)?);
        let apart = w.width == 2 * u64::from(streams);
        let spec = StreamMix { streams, d: elements, n: fit("elements of a stream", n)?, apart };
        self.by_rows(name.to_string(), z.rows, d / n, spec, &[], args)?;
        Ok(Binding::ArenaRows(z))
    }

    pub(super) fn stream_attend(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (x, y, streams) = (self.operand(op, "x")?, self.operand(op, "y")?, self.parts(op, "x")?);
        let d = x.width / streams;
        self.expect(name, &x, Format::F32, x.width)?;
        self.expect(name, &y, Format::F32, d)?;
        if y.rows != x.rows || matches!(x.rows, Rows::Routed { .. }) {
            return unsupported_error(name, "operands whose rows belong to different routings");
        }
        let w = self.weight_operand(op, "w");
        let label = self.label(op.kind, w);
        let shares = self.buffer(&format!("{label} shares"), x.rows, Format::F32, streams + 1)?;
        let z = self.buffer(&label, x.rows, Format::F32, d)?;
        let args = vec![
            bind("x", by_row(Source::Arena(x.buffer), x.row_bytes()?)),
            bind("y", by_row(Source::Arena(y.buffer), y.row_bytes()?)),
            bind("w", whole(Source::Weight(self.vector(name, w)?))),
            bind("shares", by_row(Source::Arena(shares.buffer), shares.row_bytes()?)),
            bind("z", by_row(Source::Arena(z.buffer), z.row_bytes()?)),
        ];
        let (streams, d) = (fit("streams", streams)?, fit("elements of a stream", d)?);
        let spec = StreamAttend { streams, d, eps: Bits::from_value(op.attr("eps").float()) };
        self.by_rows(label, z.rows, 1, spec, &[], args)?;
        Ok(Binding::ArenaRows(z))
    }

    /// Returns the number of elements in the last dimension of a weight, at least 1.
    fn last(&self, w: WeightId) -> u64 {
        self.module.weights[w.index()].shape.last().copied().unwrap_or(1).max(1)
    }

    pub(super) fn rms_norm(&mut self, op: &Op, out: Format) -> Result<Binding, ScheduleError> {
        let x = self.operand(op, "x")?;
        let w = self.opt_weight(op, "w");
        let name = op.kind.row().mnemonic;
        let label = w.map_or_else(|| name.to_string(), |w| self.label(op.kind, w));
        let n = match self.function.ty(self.value_operand(op, "x")?).dims().last().and_then(|n| n.fixed()) {
            Some(n) if n > 0 => n,
            _ => return unsupported_error(name, "rows without a fixed number of elements"),
        };
        let y = self.buffer(&label, x.rows, out, x.width)?;
        let out = y.format;
        let eps = Bits::from_value(op.attr("eps").float());
        let mut args = vec![
            bind("x", by_column(Source::Arena(x.buffer), x.row_bytes()?, row_bytes(Format::F32, n)?)),
            bind("y", by_column(Source::Arena(y.buffer), y.row_bytes()?, part_bytes(out, n)?)),
        ];
        if let Some(w) = w {
            // All heads share a weight vector of one dimension; otherwise each head has its own.
            let part = if self.module.weights[w.index()].shape.len() == 1 { 0 } else { row_bytes(Format::F32, n)? };
            args.push(bind("w", by_column(Source::Weight(self.vector(name, w)?), 0, part)));
        }
        let spec = RmsNorm { n: fit("elements of a norm", n)?, eps, out, plain: w.is_none() };
        self.by_rows(label, y.rows, x.width / n, spec, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }

    pub(super) fn centre(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let (name, x) = (op.kind.row().mnemonic, self.operand(op, "x")?);
        self.expect(name, &x, Format::F32, x.width)?;
        let n = match self.function.ty(self.value_operand(op, "x")?).dims().last().and_then(|n| n.fixed()) {
            Some(n) if n > 0 => n,
            _ => return unsupported_error(name, "rows without a fixed number of elements"),
        };
        let y = self.buffer(name, x.rows, Format::F32, x.width)?;
        let (row, column) = (y.row_bytes()?, row_bytes(Format::F32, n)?);
        let args = vec![
            bind("x", by_column(Source::Arena(x.buffer), row, column)),
            bind("y", by_column(Source::Arena(y.buffer), row, column)),
        ];
        let spec = Centre { n: fit("elements of a row", n)? };
        self.by_rows(name.to_string(), y.rows, x.width / n, spec, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }

    /// Copies a part of each head of a row, or of the row if it has no heads.
    pub(super) fn slice(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let x = self.operand(op, "x")?;
        let (parts, from, count) = (self.parts(op, "x")?, op.attr("from").int(), op.attr("count").int());
        let (from, count) = (from.unsigned_abs(), count.unsigned_abs());
        let y = self.buffer(op.kind.row().mnemonic, x.rows, Format::F32, count.saturating_mul(parts))?;
        self.copy(op, Elements { rows: &x, first: from }, Elements { rows: &y, first: 0 }, parts, count)?;
        Ok(Binding::ArenaRows(y))
    }

    /// Copies both operands into the result, head by head.
    pub(super) fn concat(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (a, b, parts) = (self.operand(op, "a")?, self.operand(op, "b")?, self.parts(op, "a")?);
        if a.rows != b.rows {
            return unsupported_error(name, "operands whose rows belong to different routings");
        }
        let y = self.buffer(name, a.rows, Format::F32, a.width.saturating_add(b.width))?;
        let (m, n) = (a.width / parts, b.width / parts);
        self.copy(op, Elements { rows: &a, first: 0 }, Elements { rows: &y, first: 0 }, parts, m)?;
        self.copy(op, Elements { rows: &b, first: 0 }, Elements { rows: &y, first: m }, parts, n)?;
        Ok(Binding::ArenaRows(y))
    }

    /// Returns the number of heads of an operand's row; 1 if it has none. Slots are separate rows.
    fn parts(&self, op: &Op, name: &str) -> Result<u64, ScheduleError> {
        let mnemonic = op.kind.row().mnemonic;
        let value = self.value_operand(op, name)?;
        match (self.function.ty(value).dims(), self.arena_rows(mnemonic, value)?.rows) {
            ([_, _], _) | ([_, _, _], Rows::Routed { .. }) => Ok(1),
            ([_, heads, _], _) => Ok(heads.fixed().unwrap_or(1).max(1)),
            _ => unsupported_error(mnemonic, "a value that has neither rows nor heads"),
        }
    }

    /// Copies `count` elements of each of the `parts` parts of a row.
    fn copy(
        &mut self,
        op: &Op,
        from: Elements<'_>,
        to: Elements<'_>,
        parts: u64,
        count: u64,
    ) -> Result<(), ScheduleError> {
        let (name, x) = (op.kind.row().mnemonic, from.rows);
        self.expect(name, x, Format::F32, x.width)?;
        let arg = |Elements { rows, first }: Elements<'_>| -> Result<Arg, ScheduleError> {
            let (row, column) = (rows.row_bytes()?, row_bytes(Format::F32, rows.width / parts)?);
            let place = by_column(Source::Arena(rows.buffer), row, column);
            Ok(Arg { offset: row_bytes(Format::F32, first)?, ..place })
        };
        let args = vec![bind("x", arg(from)?), bind("y", arg(to)?)];
        self.by_rows(name.to_string(), x.rows, parts, Copy { n: fit("elements of a row", count)? }, &[], args)
    }

    /// Returns `x` in an activation format. Further calls with the same value and format return the
    /// same quantised rows.
    pub(in crate::schedule) fn quantise(&mut self, x: ArenaRows, out: Format) -> Result<ArenaRows, ScheduleError> {
        let out = self.stored_format(out);
        if x.format == out {
            return Ok(x);
        }
        if let Some(&done) = self.quantised.get(&(x.buffer, out)) {
            return Ok(done);
        }
        let y = self.buffer("quantise", x.rows, out, x.width)?;
        let args = vec![
            bind("x", by_row(Source::Arena(x.buffer), x.row_bytes()?)),
            bind("y", by_row(Source::Arena(y.buffer), y.row_bytes()?)),
        ];
        let spec = Quantise { n: fit("elements of a row", x.width)?, out };
        self.by_rows("quantise".to_string(), x.rows, 1, spec, &[], args)?;
        self.quantised.insert((x.buffer, out), y);
        Ok(y)
    }

    pub(super) fn take_rows(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let x = self.operand(op, "x")?;
        let Binding::WantedRows = self.meaning(name, self.value_operand(op, "rows")?)? else {
            return unsupported_error(
                name,
                "row indices that are not the parameter `rows`; only the parameter's are range-checked",
            );
        };
        if x.rows != Rows::Tokens {
            return unsupported_error(name, "rows other than tokens");
        }
        let y = self.buffer(name, Rows::Outputs, x.format, x.width)?;
        let row = y.row_bytes()?;
        let args = vec![
            bind("row", by_row(Source::Input(Input::OutputRows), INDEX_BYTES)),
            bind("x", whole(Source::Arena(x.buffer))),
            bind("y", by_row(Source::Arena(y.buffer), row)),
        ];
        let spec = Gather { bytes: fit("bytes of a row", row)? };
        self.by_rows(
            name.to_string(),
            y.rows,
            1,
            spec,
            &[NamedValue { name: "rows", value: DimInput::Tokens.into() }],
            args,
        )?;
        Ok(Binding::ArenaRows(y))
    }
}

/// A number of elements in each part of a row, starting at element `first` of the part.
#[derive(Clone, Copy)]
struct Elements<'r> {
    rows: &'r ArenaRows,
    first: u64,
}

/// Returns the number of elements of each stream in an item. They take a few kilobytes if this
/// number divides the stream evenly.
fn of_stream(d: u64) -> u64 {
    const ELEMENTS: u64 = 512;
    if d.is_multiple_of(ELEMENTS) { ELEMENTS.min(d.max(1)) } else { d.max(1) }
}

/// Returns a function from a row length to the kernel of `function`, which takes one or two rows.
pub(super) fn map(function: Elementwise) -> impl Fn(u32) -> KernelSpec {
    move |n| Map { function, n }.into()
}

/// Returns a function from a row length to the kernel of an elementwise op.
pub(super) fn unary(function: Unary, op: &Op) -> impl Fn(u32) -> KernelSpec {
    debug_assert_eq!(op.kind, OpKind::Unary(function));
    move |n| match function {
        Unary::Silu => Map { function: Elementwise::Silu, n }.into(),
        Unary::Sigmoid => Map { function: Elementwise::Sigmoid, n }.into(),
        Unary::SignedRoot => Map { function: Elementwise::SignedRoot, n }.into(),
        Unary::ReluSquared => Map { function: Elementwise::ReluSquared, n }.into(),
        Unary::Scale => Scale { n, factor: Bits::from_value(op.attr("factor").float()) }.into(),
        Unary::Softcap => Softcap { n, cap: Bits::from_value(op.attr("cap").float()) }.into(),
        Unary::Softplus => Map { function: Elementwise::Softplus, n }.into(),
        Unary::Gelu => Map { function: Elementwise::Gelu, n }.into(),
        Unary::GeluErf => Map { function: Elementwise::GeluErf, n }.into(),
        Unary::Exp => Map { function: Elementwise::Exp, n }.into(),
        Unary::Clamp => Clamp { n, limit: Bits::from_value(op.attr("limit").float()) }.into(),
        Unary::Relu => Relu { n, from: Bits::from_value(op.attr("from").float()) }.into(),
        Unary::Xielu => {
            let [alpha_n, alpha_p, beta, eps] =
                ["alpha_n", "alpha_p", "beta", "eps"].map(|attr| Bits::from_value(op.attr(attr).float()));
            Xielu { n, alpha_n, alpha_p, beta, eps }.into()
        }
    }
}

/// Returns the arguments of a kernel that reads `inputs`, in their order, and writes `y`.
fn elementwise_args(
    spec: &KernelSpec,
    inputs: &[ArenaRows],
    y: &ArenaRows,
    arg: impl Fn(&ArenaRows) -> Result<Arg, ScheduleError>,
) -> Result<Vec<NamedArg>, ScheduleError> {
    let signature = spec.signature();
    let of = |role: Role| signature.buffers.iter().filter(move |buffer| buffer.role == role).map(|buffer| buffer.name);
    of(Role::Read).zip(inputs).chain(of(Role::Write).zip([y])).map(|(name, x)| Ok(bind(name, arg(x)?))).collect()
}
