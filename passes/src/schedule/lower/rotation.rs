//! Rotation of heads. Temperatures are lowered as rotary tables that only scale.
//!
//! ```text
//! rope.heads %q, %pos, @n          rope_heads: tokens, with all heads of a row at once
//! temperature %x, %pos             temperature: tokens, each with the factor of its position
//! ```

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{RopeAttrs, TemperatureAttrs};
use ixc_ir::graph::interpret::math::rope_angles;
use ixc_ir::graph::{Op, WeightId};
use ixc_ir::plan::{LongFrequencies, RopeTable, RowInput, Source, Temperature};
use ixc_kernels::{self as kernels, Bits, RopeHeads};

use super::{ArenaRows, Binding, INDEX_BYTES, Lowering, NamedArg, ScheduleError};
use super::{bind, by_column, by_row, fit, row_bytes, unsupported_error, whole};

/// Rotation of an op, and its dependence on the position.
#[derive(Clone, Copy)]
pub(super) struct Rotation<'r> {
    pub(super) rope: &'r RopeAttrs,
    /// Each position is rounded down to a multiple of this number.
    pub(super) every: u32,
    /// Whether the rotation is in the opposite direction.
    pub(super) back: bool,
}

impl Rotation<'_> {
    /// Creates a forward rotation in which each position has its own angle.
    pub(super) fn each(rope: &RopeAttrs) -> Rotation<'_> {
        Rotation { rope, every: 1, back: false }
    }
}

impl Lowering<'_> {
    pub(super) fn rope_heads(&mut self, op: &Op, norm: Option<WeightId>) -> Result<Binding, ScheduleError> {
        let x = self.operand(op, "x")?;
        let (every, back) = self.rotation(op, &x)?;
        let rope = RopeAttrs::from_op(op);
        let [_, heads, d] = self.function.ty(op.results[0]).dims() else {
            return unsupported_error(op.kind.row().mnemonic, "rows that are not split into heads");
        };
        let (heads, d) = (heads.fixed().unwrap_or(0), d.fixed().unwrap_or(0));
        let rotation = Rotation { rope: &rope, every, back };
        Ok(Binding::ArenaRows(self.rotate(op, x, rotation, norm, heads, d)?))
    }

    /// Adds the norm and rotation of `heads` heads of `d` elements. An item has all heads of a row.
    pub(super) fn rotate(
        &mut self,
        op: &Op,
        x: ArenaRows,
        rotation: Rotation<'_>,
        norm: Option<WeightId>,
        heads: u64,
        d: u64,
    ) -> Result<ArenaRows, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (table, rope) = (self.rope_table(rotation, op)?, rotation.rope);
        let y = self.buffer(name, x.rows, Format::F32, x.width)?;
        let row = y.row_bytes()?;
        let mut args = vec![bind("x", by_row(Source::Arena(x.buffer), row))];
        if let Some(norm) = norm {
            args.push(bind("norm", whole(Source::Weight(self.vector(name, norm)?))));
        }
        args.extend(rope_args(table));
        args.push(bind("y", by_row(Source::Arena(y.buffer), row)));
        let spec = RopeHeads {
            heads: fit("heads", heads)?,
            d: fit("elements of a head", d)?,
            dims: fit("rotated elements", rope.dims)?,
            style: rope.style,
            norm: norm.map(|_| Bits::from_value(op.attr("eps").float())),
        };
        self.by_rows(name.to_string(), y.rows, 1, spec, &[], args)?;
        Ok(y)
    }

    /// Lowers a temperature, which scales each row by a factor that depends on its position. It
    /// uses a rotary table of one pair that does not rotate.
    pub(super) fn temperature(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let (name, x) = (op.kind.row().mnemonic, self.operand(op, "x")?);
        self.positions(op, &x)?;
        self.expect(name, &x, Format::F32, x.width)?;
        let TemperatureAttrs { scale, length, offset } = TemperatureAttrs::from_op(op);
        let (length, offset) = (fit("positions of a step", length)?, fit("positions of a step", offset)?);
        let temperature = Some(Temperature { scale, length, offset });
        let table = self.add_rope(RopeTable { temperature, ..RopeTable::still() })?;
        let y = self.buffer(name, x.rows, Format::F32, x.width)?;
        let row = y.row_bytes()?;
        let mut args =
            vec![bind("x", by_row(Source::Arena(x.buffer), row)), bind("y", by_row(Source::Arena(y.buffer), row))];
        args.extend(rope_args(table));
        let spec = kernels::Temperature { n: fit("elements of a row", x.width)? };
        self.by_rows(name.to_string(), y.rows, 1, spec, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }

    /// Lowers a temperature for each head. Entries of the table are one plus a logarithm.
    pub(super) fn heads_temperature(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let (name, x) = (op.kind.row().mnemonic, self.operand(op, "x")?);
        self.positions(op, &x)?;
        self.expect(name, &x, Format::F32, x.width)?;
        let [scales, biases] = ["scales", "biases"].map(|name| self.weight_operand(op, name));
        let heads = self.module.weights[scales.index()].shape.first().copied().unwrap_or(1).max(1);
        let temperature = Some(Temperature { scale: 1.0, length: 1, offset: 0 });
        let table = self.add_rope(RopeTable { temperature, ..RopeTable::still() })?;
        let y = self.buffer(name, x.rows, Format::F32, x.width)?;
        let (row, head) = (y.row_bytes()?, row_bytes(Format::F32, x.width / heads)?);
        let mut args = vec![
            bind("x", by_column(Source::Arena(x.buffer), row, head)),
            bind("y", by_column(Source::Arena(y.buffer), row, head)),
        ];
        for (buffer, weight) in [("scale", scales), ("bias", biases)] {
            args.push(bind(
                buffer,
                by_column(Source::Weight(self.vector(name, weight)?), 0, row_bytes(Format::F32, 1)?),
            ));
        }
        args.extend(rope_args(table));
        let spec = kernels::HeadsTemperature { n: fit("elements of a head", x.width / heads)? };
        self.by_rows(name.to_string(), y.rows, heads, spec, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }

    /// Returns the number of the rotary table of an op.
    pub(super) fn rope_table(&mut self, rotation: Rotation<'_>, op: &Op) -> Result<u32, ScheduleError> {
        let Rotation { rope, every, back } = rotation;
        let [short, long] = ["factors", "long"].map(|name| self.opt_weight(op, name).map(|w| self.floats(w)));
        let (short, long) = (short.transpose()?, long.transpose()?);
        let (frequencies, magnitude) = rope_angles(rope, short.as_deref());
        let long = match long {
            Some(long) => Some(LongFrequencies {
                beyond: fit("positions of the context before scaling", rope.original_context)?,
                frequencies: rope_angles(rope, Some(&long)).0,
            }),
            None => None,
        };
        self.add_rope(RopeTable { style: rope.style, frequencies, magnitude, every, back, long, temperature: None })
    }

    pub(super) fn add_rope(&mut self, table: RopeTable) -> Result<u32, ScheduleError> {
        if let Some(i) = self.ropes.iter().position(|other| *other == table) {
            return Ok(i as u32);
        }
        self.ropes.push(table);
        fit("number of rotary tables", self.ropes.len() as u64 - 1)
    }

    /// Returns a small weight's elements as f32.
    fn floats(&self, w: WeightId) -> Result<Vec<f32>, ScheduleError> {
        let weight = &self.module.weights[w.index()];
        let name = || weight.name.clone();
        let bytes = self.facts.weights.bytes(w).map_err(|error| ScheduleError::Weight { name: name(), error })?;
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
}

/// Returns the arguments for a row of a rotary table: block and lane of the position, and the
/// table.
pub(super) fn rope_args(table: u32) -> [NamedArg; 3] {
    [
        bind("block", by_row(RowInput::PositionBlock.into(), INDEX_BYTES)),
        bind("lane", by_row(RowInput::PositionLane.into(), INDEX_BYTES)),
        bind("table", whole(Source::Rope(table))),
    ]
}
