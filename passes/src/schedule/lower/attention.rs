//! Rotation, keys and values, and attention.
//!
//! ```text
//! rope.append %kv, %k, %v, %pos    rope_append: tokens x key heads, into the state
//! attention %q, %kv, %pos          attention: tokens x key heads, each with the query heads that share it; one token in parts, if it has no
//!                                  window, many by tiles
//! ```

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{self, RopeAttrs};
use ixc_ir::graph::interpret::math::rope_angles;
use ixc_ir::graph::types::CacheShape;
use ixc_ir::graph::{Op, OpKind, StateId, ValueId, WeightId};
use ixc_ir::plan::{Division, Input, RopeStyle, RopeTable, Source, State};
use ixc_kernels::{
    Attention, AttentionCombine, AttentionPart, AttentionTiles, AttentionWindow, Bits, RopeAppend, RopeHeads,
};

use super::{ArenaRows, Binding, INDEX_BYTES, KernelChoice, Lowering, Named, Parts, ScheduleError};
use super::{by_column, by_row, fit, row_bytes, scratch_arg, unsupported, whole};

/// Queries that attention works on together: what shares the conversion of a block of keys and values.
const QUERIES: u32 = 16;
/// Most rows that tile products do not pay for, as with those of weights: below, threads would lack items.
const FEW_ROWS: u32 = 15;
/// Queries of an item of attention by tiles, at most.
const TILE_QUERIES: u32 = 256;
/// To convert a position for tiles costs some 40 cycles, a query's products and weights with it 1.5: how many queries the one is as long as.
const CONVERSION: f64 = 27.0;
/// Up to so many rows items are of half as many queries, so that 16 threads have some each.
const SHORT_ROWS: u32 = 128;

impl Lowering<'_> {
    pub(super) fn rope_heads(&mut self, op: &Op, norm: Option<WeightId>) -> Result<Binding, ScheduleError> {
        let x = self.operand(op, "x")?;
        self.positions(op, &x)?;
        let rope = RopeAttrs::from_op(op);
        let [_, heads, d] = self.function.ty(op.results[0]).dims() else {
            return unsupported(op.kind.row().mnemonic, "no heads");
        };
        let shape = (heads.fixed().unwrap_or(0), d.fixed().unwrap_or(0));
        Ok(Binding::ArenaRows(self.rotate(op, x, &rope, norm, shape)?))
    }

    /// `heads` heads of `d` elements, normed and rotated, all of a row at once.
    fn rotate(
        &mut self,
        op: &Op,
        x: ArenaRows,
        rope: &RopeAttrs,
        norm: Option<WeightId>,
        (heads, d): (u64, u64),
    ) -> Result<ArenaRows, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let table = self.rope_table(rope, self.opt_weight(op, "factors"))?;
        let y = self.buffer(name, x.rows, Format::F32, x.width)?;
        let row = y.row_bytes()?;
        let mut args = vec![("x", by_row(Source::Arena(x.buffer), row))];
        if let Some(norm) = norm {
            args.push(("norm", whole(Source::Weight(self.vector(name, norm)?))));
        }
        args.extend(rope_args(table));
        args.push(("y", by_row(Source::Arena(y.buffer), row)));
        let spec = RopeHeads {
            heads: fit("heads", heads)?,
            d: fit("elements of a head", d)?,
            dims: fit("rotated elements", rope.dims)?,
            style: plan_style(rope.style),
            norm: norm.map(|_| Bits::of(op.attr("eps").float())),
        };
        self.by_rows(name.to_string(), y.rows, 1, (spec, &[]), args)?;
        Ok(y)
    }

    /// Keys and values into their state; without `rope` the keys are rotated already, and turn by nothing here.
    pub(super) fn append(&mut self, op: &Op, rope: Option<RopeAttrs>) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (mut k, v) = (self.operand(op, "k")?, self.operand(op, "v")?);
        self.positions(op, &k)?;
        let (state, cache) = self.cache(op)?;
        let mut rope = rope;
        if let (Some(_), Some(turn)) = (self.module.states[state.index()].window, &rope) {
            // Where a window's positions lie is no position to rotate by: keys are rotated elsewhere.
            self.expect(name, &k, Format::F32, u64::from(cache.key) * u64::from(cache.heads))?;
            let shape = (cache.heads.into(), cache.key.into());
            k = self.rotate(op, k, turn, self.opt_weight(op, "norm"), shape)?;
            rope = None;
        }
        let (table, style, dims, norm) = match &rope {
            Some(rope) => {
                let table = self.rope_table(rope, self.opt_weight(op, "factors"))?;
                (table, plan_style(rope.style), rope.dims, self.opt_weight(op, "norm"))
            }
            None if cache.key < 2 => return unsupported(name, "keys of one element; they must have two"),
            None => {
                let table = RopeTable::still();
                let (style, dims) = (table.style, table.dims());
                (self.add_rope(table)?, style, dims, None)
            }
        };
        let (d, dv) = (u64::from(cache.key), u64::from(cache.value));
        self.expect(name, &k, Format::F32, d * u64::from(cache.heads))?;
        self.expect(name, &v, Format::F32, dv * u64::from(cache.heads))?;
        let mut args = vec![
            ("k", by_column(Source::Arena(k.buffer), k.row_bytes()?, row_bytes(Format::F32, d)?)),
            ("v", by_column(Source::Arena(v.buffer), v.row_bytes()?, row_bytes(Format::F32, dv)?)),
        ];
        if let Some(norm) = norm {
            args.push(("norm", whole(Source::Weight(self.vector(name, norm)?))));
        }
        args.extend(rope_args(table));
        args.push(("keys", whole(self.field(state, "keys"))));
        args.push(("values", whole(self.field(state, "values"))));
        args.push(("rotated", scratch_arg()));
        let spec = RopeAppend {
            d: cache.key,
            dv: cache.value,
            dims: fit("rotated elements", dims)?,
            style,
            norm: norm.map(|_| Bits::of(op.attr("eps").float())),
            cache: cache.formats,
        };
        let label = format!("{name} {}", self.module.states[state.index()].name);
        self.by_rows(label, k.rows, cache.heads.into(), (spec, &[]), args)?;
        Ok(Binding::Token)
    }

    /// The `paged` state that an op touches.
    fn cache(&self, op: &Op) -> Result<(StateId, Cache), ScheduleError> {
        let name = op.kind.row().mnemonic;
        let state = self.state(op, "kv")?;
        match CacheShape::of(&self.module.states[state.index()]) {
            Some(CacheShape { heads, key, value }) => {
                let heads = fit("key heads", heads)?;
                let format = |name: &str| {
                    let State { kind, fields, .. } = &self.states[state.index()];
                    fields[kind.field(name) as usize].format
                };
                let formats = ixc_kernels::Cache { keys: format("keys"), values: format("values") };
                let (key, value) = (fit("elements of a key", key)?, fit("elements of a value", value)?);
                Ok((state, Cache { heads, key, value, formats }))
            }
            None => unsupported(name, "a state that has no keys and values"),
        }
    }

    pub(super) fn attention(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let q = self.operand(op, "q")?;
        self.positions(op, &q)?;
        let (state, cache) = self.cache(op)?;
        let (d, dv, kv_heads) = (u64::from(cache.key), u64::from(cache.value), u64::from(cache.heads));
        let heads = q.width / d.max(1);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return unsupported(name, format!("{heads} query heads on {kv_heads} key heads"));
        }
        let group = heads / kv_heads;
        let label = format!("{name} {}", self.module.states[state.index()].name);
        let y = self.buffer(&label, q.rows, Format::F32, heads * dv)?;
        let sinks = self.opt_weight(op, "sinks");
        let mut args = vec![
            ("q", by_column(Source::Arena(q.buffer), q.row_bytes()?, row_bytes(Format::F32, group * d)?)),
            ("position", by_row(Source::Input(Input::Positions), INDEX_BYTES)),
            ("keys", whole(self.field(state, "keys"))),
            ("values", whole(self.field(state, "values"))),
        ];
        if let Some(sinks) = sinks {
            let sinks = Source::Weight(self.vector(name, sinks)?);
            args.push(("sinks", by_column(sinks, 0, row_bytes(Format::F32, group)?)));
        }
        let sinks = sinks.is_some();
        args.extend([
            ("y", by_column(Source::Arena(y.buffer), y.row_bytes()?, row_bytes(Format::F32, group * dv)?)),
            ("scratch", scratch_arg()),
        ]);
        let (d, dv, scale) = (cache.key, cache.value, Bits::of(op.attr("scale").float()));
        let (group, heads, cache) = (fit("query heads of a key head", group)?, cache.heads, cache.formats);
        let window = self.module.states[state.index()].window;
        let window = window.map(|window| fit("positions of a window", window)).transpose()?;
        let mut choices = match window {
            // A window is short: one item of each key head goes through it.
            Some(window) => {
                let rows = (QUERIES / group).max(2);
                let spec = AttentionWindow { group, d, dv, scale, sinks, heads, rows, window, cache };
                vec![KernelChoice::by_chunks(rows, spec)]
            }
            None => {
                // One token has few items, so those are divided by positions; rows of several share the loads of keys and values.
                let division = Division::THREADS;
                let combine = AttentionCombine { group, dv, parts: division.parts }.into();
                let one = KernelChoice {
                    up_to_rows: 1,
                    row_chunk: 1,
                    spec: AttentionPart { group, d, dv, scale, sinks, cache }.into(),
                    parts: Some(Parts { part: "part", result: "y", division, combine }),
                    bands: None,
                };
                let rows = (QUERIES / group).max(1);
                vec![one, KernelChoice::by_chunks(rows, Attention { group, d, dv, scale, sinks, heads, rows, cache })]
            }
        };
        // Tiles know no sinks.
        if self.tiles && !sinks {
            choices.iter_mut().for_each(|choice| choice.up_to_rows = choice.up_to_rows.min(FEW_ROWS));
            let rows = tile_rows(group, window);
            let exact = !self.is_quantised(op.results[0]);
            let spec = AttentionTiles { group, d, dv, scale, heads, rows, exact, window, cache };
            let short = rows.min(AttentionTiles::rows_of(group, TILE_QUERIES / 2));
            let shorter = (short < rows).then_some((SHORT_ROWS, short));
            for (up_to_rows, row_chunk) in shorter.into_iter().chain([(u32::MAX, rows)]) {
                choices.push(KernelChoice { up_to_rows, ..KernelChoice::by_chunks(row_chunk, spec) });
            }
        }
        self.tasks.task(label, (q.rows.axis(), kv_heads), choices, &[], args)?;
        Ok(Binding::ArenaRows(y))
    }

    /// Whether all that takes a value quantises it, if it does not merely cut it into heads or gate it.
    fn is_quantised(&self, value: ValueId) -> bool {
        let users = self.def_use.users(value).unwrap_or_default();
        !users.is_empty()
            && users.iter().all(|&user| {
                let op = &self.function.ops[user];
                match op.kind {
                    OpKind::Quantise | OpKind::RmsNormQuantise => op.attr("format").format().is_quantised(),
                    OpKind::SplitHeads | OpKind::MergeHeads | OpKind::Mul => self.is_quantised(op.results[0]),
                    _ => false,
                }
            })
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

/// Rows of an item of attention by tiles. Over all positions before them these are as many as may be. Rows of a window share conversions, too, but
/// what one of them sees and another does not is computed for both: an item goes through the window and as many positions as it has rows.
fn tile_rows(group: u32, window: Option<u32>) -> u32 {
    let most = AttentionTiles::rows_of(group, TILE_QUERIES);
    let Some(window) = window else { return most };
    let unit = AttentionTiles::unit(group);
    // Of a query, in what the products and weights with a position cost.
    let cost =
        |rows: u32| (f64::from(window) + f64::from(rows)) * (1.0 + CONVERSION / (f64::from(rows) * f64::from(group)));
    let rows = (1..=most / unit).map(|units| units * unit);
    rows.min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or(most)
}

/// Heads, sizes and formats of a `paged` state.
#[derive(Clone, Copy)]
struct Cache {
    heads: u32,
    key: u32,
    value: u32,
    formats: ixc_kernels::Cache,
}

fn plan_style(style: attrs::RopeStyle) -> RopeStyle {
    match style {
        attrs::RopeStyle::Norm => RopeStyle::Norm,
        attrs::RopeStyle::Neox => RopeStyle::Neox,
    }
}

/// The row of a rotary table that a position names, by its block and its lane, and the table.
fn rope_args(table: u32) -> [Named; 3] {
    [
        ("block", by_row(Source::Input(Input::PositionBlock), INDEX_BYTES)),
        ("lane", by_row(Source::Input(Input::PositionLane), INDEX_BYTES)),
        ("table", whole(Source::Rope(table))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_short_windows_have_few_rows() {
        let rows = |window, groups: [u32; 4]| groups.map(|group| tile_rows(group, window));
        assert_eq!(rows(None, [1, 3, 8, 64]), [256, 64, 32, 4]);
        assert_eq!(rows(Some(128), [1, 3, 8, 64]), [64, 32, 20, 4]);
        assert_eq!(rows(Some(1024), [1, 3, 8, 64]), [160, 64, 32, 4]);
        assert_eq!(rows(Some(1), [1, 3, 8, 64]), [32, 32, 4, 1]);
        assert_eq!(rows(Some(u32::MAX), [1, 3, 8, 64]), [256, 64, 32, 4]);
    }
}
