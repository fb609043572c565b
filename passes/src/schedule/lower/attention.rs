//! Lowering of appended keys and values, and of attention.
//!
//! ```text
//! rope.append %kv, %k, %v, %pos    rope_append: tokens x key heads, into the state
//! index.top_k %q, %w, %kv, %pos    index_top_k: tokens; one token is divided into parts
//!                                  a bit for each position or entry of the context
//! index.top_k %q, _, %kv, %pos     index_top_k: tokens x heads, each head with its own bits
//! attention %q, %kv, %pos          attention: tokens x key heads, each with its query heads
//!                                  one token in parts, if it has no window; many by tiles
//!                                  chosen positions as if there were no others
//! ```

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{RopeAttrs, ScoreAttrs};
use ixc_ir::graph::types::CacheShape;
use ixc_ir::graph::{Op, OpKind, Operand, State, StateId, ValueId};
use ixc_ir::plan::{
    ATTENTION_BLOCK, Arg, CHOSEN_BLOCK, ChoiceUnit, Division, Leaves, PositionChoice, RopeTable, RowAxis, RowInput,
    Source,
};
use ixc_kernels::attention::{AttentionRequest, Entries, Heads, Lookahead, Scores, Window};
use ixc_kernels::{
    self as kernels, AppendPlaces, Bits, IndexChoose, IndexScores, IndexTopK, MAX_POSITIONS, RopeAppend,
};

use super::rotation::{Rotation, rope_args};
use super::{ArenaRows, Binding, INDEX_BYTES, KernelChoice, Lowering, NamedArg, Parts, Rows, ScheduleError};
use super::{attend, bind, by_column, by_row, fit, row_bytes, scratch_arg, unsupported_error, whole};

/// Reason for the separate kernel for one token, as text of decisions.
const PARTS: &str = "with one token there are few items, so threads take parts of the positions instead";
/// Maximum number of heads with ALiBi slopes, many times that of any model. Limits the size of the
/// list of slopes.
const MOST_SLOPES: u64 = 1 << 16;

impl Lowering<'_> {
    /// Appends keys and values to their state. Without `rope`, keys are already rotated, so the
    /// kernel rotates by angle 0.
    pub(super) fn append(&mut self, op: &Op, rope: Option<RopeAttrs>) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let (mut k, v) = (self.operand(op, "k")?, self.operand(op, "v")?);
        self.positions(op, &k)?;
        let (state, cache) = self.cache(op)?;
        let mut rope = rope;
        let declared = &self.module.states[state.index()];
        let (elsewhere, shared) = (declared.window.is_some() || declared.every > 1, declared.every > 1);
        if let (true, Some(rotated)) = (elsewhere, &rope) {
            // With a window or shared entries, offsets in memory are not positions to rotate by, so
            // keys must already be rotated.
            self.expect(name, &k, Format::F32, u64::from(cache.key) * u64::from(cache.heads))?;
            let (heads, d) = (cache.heads.into(), cache.key.into());
            k = self.rotate(op, k, Rotation::each(rotated), self.opt_weight(op, "norm"), heads, d)?;
            rope = None;
        }
        if shared {
            cache.in_halves(name)?;
            return self.append_places(name, state, cache, k, v);
        }
        let (table, style, dims, norm) = match &rope {
            Some(rope) => {
                let table = self.rope_table(Rotation::each(rope), op)?;
                (table, rope.style, rope.dims, self.opt_weight(op, "norm"))
            }
            None if cache.key < 2 => {
                return unsupported_error(name, "keys of one element; expected two elements or more");
            }
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
            bind("k", by_column(Source::Arena(k.buffer), k.row_bytes()?, row_bytes(Format::F32, d)?)),
            bind("v", by_column(Source::Arena(v.buffer), v.row_bytes()?, row_bytes(Format::F32, dv)?)),
        ];
        if let Some(norm) = norm {
            args.push(bind("norm", whole(Source::Weight(self.vector(name, norm)?))));
        }
        args.extend(rope_args(table));
        args.push(bind("keys", whole(self.field(state, "keys"))));
        args.push(bind("values", whole(self.field(state, "values"))));
        args.push(bind("rotated", scratch_arg()));
        let spec = RopeAppend {
            d: cache.key,
            dv: cache.value,
            dims: fit("rotated elements", dims)?,
            style,
            norm: norm.map(|_| Bits::from_value(op.attr("eps").float())),
            cache: cache.formats,
        };
        let label = format!("{name} {}", self.module.states[state.index()].name);
        self.by_rows(label, k.rows, cache.heads.into(), spec, &[], args)?;
        Ok(Binding::Token)
    }

    /// Lowers an append to entries that several positions share. All rows of a step are one item
    /// for each head: rows may write the same entry, which then keeps the last of them.
    fn append_places(
        &mut self,
        name: &'static str,
        state: StateId,
        cache: Cache,
        k: ArenaRows,
        v: ArenaRows,
    ) -> Result<Binding, ScheduleError> {
        let (d, dv, heads) = (u64::from(cache.key), u64::from(cache.value), u64::from(cache.heads));
        self.expect(name, &k, Format::F32, d * heads)?;
        self.expect(name, &v, Format::F32, dv * heads)?;
        let args = vec![
            bind("k", by_column(Source::Arena(k.buffer), k.row_bytes()?, row_bytes(Format::F32, d)?)),
            bind("v", by_column(Source::Arena(v.buffer), v.row_bytes()?, row_bytes(Format::F32, dv)?)),
            bind("block", by_row(RowInput::PositionBlock.into(), INDEX_BYTES)),
            bind("lane", by_row(RowInput::PositionLane.into(), INDEX_BYTES)),
            bind("keys", whole(self.field(state, "keys"))),
            bind("values", whole(self.field(state, "values"))),
        ];
        let spec = AppendPlaces { d: cache.key, dv: cache.value, heads: cache.heads };
        let label = format!("{name} {}", self.module.states[state.index()].name);
        let choices = vec![KernelChoice::by_chunks(u32::MAX, spec)];
        self.tasks.task(label, k.rows.axis(), heads, choices, &[], args)?;
        Ok(Binding::Token)
    }

    /// Returns the `paged` state of an op.
    fn cache(&self, op: &Op) -> Result<(StateId, Cache), ScheduleError> {
        self.cache_of(op, "kv")
    }

    /// Returns the `paged` state of an op's token operand with this name.
    fn cache_of(&self, op: &Op, token: &str) -> Result<(StateId, Cache), ScheduleError> {
        let name = op.kind.row().mnemonic;
        let state = self.state(op, token)?;
        match CacheShape::from_state(&self.module.states[state.index()]) {
            Some(CacheShape { heads, key, value }) => {
                let heads = fit("key heads", heads)?;
                let format = |name: &str| {
                    let state = &self.states[state.index()];
                    state.fields[state.kind.field(name) as usize].format
                };
                let formats = kernels::Cache { keys: format("keys"), values: format("values") };
                let (key, value) = (fit("elements of a key", key)?, fit("elements of a value", value)?);
                Ok((state, Cache { heads, key, value, formats }))
            }
            None => unsupported_error(name, "a state that has no keys and values"),
        }
    }

    /// Returns the context length in positions, at most the maximum that kernels support.
    fn most_positions(&self) -> u32 {
        self.facts.context_length.clamp(1, MAX_POSITIONS as u32)
    }

    pub(super) fn index_top_k(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        if op.operand("w") == Operand::Absent {
            return self.index_blocks(op);
        }
        let (q, w) = (self.operand(op, "q")?, self.operand(op, "w")?);
        self.positions(op, &q)?;
        let (state, cache) = self.cache(op)?;
        cache.in_halves(name)?;
        self.expect(name, &q, Format::F32, u64::from(cache.key).saturating_mul(w.width))?;
        self.expect(name, &w, Format::F32, w.width)?;
        if self.module.states[state.index()].window.is_some() {
            return unsupported_error(name, "a state with a sliding window");
        }
        let label = format!("{name} {}", self.module.states[state.index()].name);
        let positions = self.most_positions();
        let every = match self.module.states[state.index()].every {
            1 => None,
            every => Some(fit("positions of a key", every)?),
        };
        let entries = op.attr("entries").bool();
        let of_bit = every.filter(|_| entries).unwrap_or(1);
        // The marks are words of 32 bits, allocated as f32, which has the same size.
        let words = positions.div_ceil(of_bit).div_ceil(ATTENTION_BLOCK);
        let marks = self.buffer(&label, q.rows, Format::F32, words.into())?;
        let mut args = vec![
            bind("q", by_row(Source::Arena(q.buffer), q.row_bytes()?)),
            bind("w", by_row(Source::Arena(w.buffer), w.row_bytes()?)),
            bind("keys", whole(self.field(state, "keys"))),
            bind("chosen", by_row(Source::Arena(marks.buffer), marks.row_bytes()?)),
            bind("scores", scratch_arg()),
        ];
        // Kernels need a position in units of the state's memory, which holds one entry for `every`
        // positions.
        let position = by_row(RowInput::Positions.into(), INDEX_BYTES);
        match every {
            Some(every) if entries => args.push(bind("whole", by_row(RowInput::Whole(every).into(), INDEX_BYTES))),
            Some(every) => args
                .extend([bind("place", position), bind("phase", by_row(RowInput::Phase(every).into(), INDEX_BYTES))]),
            None => args.push(bind("position", position)),
        }
        let top_k = fit("chosen positions", op.attr("top_k").int().unsigned_abs())?;
        let heads = fit("heads of an index", w.width)?;
        let spec = IndexTopK { heads, d: cache.key, chosen: top_k, positions, every, entries, local: None };
        let mut choices = vec![KernelChoice::by_chunks(1, spec)];
        // Parts do not contain the positions after the last complete entry, so an index that may
        // choose these positions is not divided.
        if every.is_none() || entries {
            let places = positions.div_ceil(of_bit);
            let combine = IndexChoose { chosen: top_k, positions: places, every: None, local: None }.into();
            let spec = IndexScores { heads, d: cache.key, positions, every, plain: false }.into();
            let (division, every, leaves) = (Division::THREADS, every.unwrap_or(1), Leaves::Words);
            let parts = Some(Parts { part: "part", result: "chosen", division, every, leaves, combine });
            choices.insert(0, KernelChoice { up_to_rows: 1, row_chunk: 1, spec, parts, bands: None });
        }
        self.tell_by_rows(&label, &choices, &[PARTS], Vec::new);
        self.tasks.task(label, q.rows.axis(), 1, choices, &[], args)?;
        let of = if entries { ChoiceUnit::Entries } else { ChoiceUnit::Positions };
        let choice = PositionChoice { top_k, every: every.unwrap_or(1), of };
        Ok(Binding::Marks { bits: marks, choice, stride: 0 })
    }

    /// Lowers an index whose heads choose blocks of positions independently. An item is one head of
    /// a row. A row of marks has separate bits for each head.
    fn index_blocks(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let q = self.operand(op, "q")?;
        self.positions(op, &q)?;
        let (state, cache) = self.cache(op)?;
        cache.in_halves(name)?;
        let d = u64::from(cache.key);
        let heads = q.width / d.max(1);
        self.expect(name, &q, Format::F32, heads * d)?;
        if self.module.states[state.index()].window.is_some() {
            return unsupported_error(name, "a state with a sliding window");
        }
        let [top_k, every, local] = ["top_k", "block", "local"].map(|name| op.attr(name).int().unsigned_abs());
        if !CHOSEN_BLOCK.contains(&every) || !every.is_power_of_two() {
            let limit = format!("a power of two from {} to {}", CHOSEN_BLOCK.start(), CHOSEN_BLOCK.end());
            return unsupported_error(name, format!("blocks of {every} positions; expected {limit} positions"));
        }
        let (top_k, every) = (fit("chosen positions", top_k)?, fit("positions of a block", every)?);
        let local = fit("local blocks", local)?;
        let label = format!("{name} {}", self.module.states[state.index()].name);
        let positions = self.most_positions();
        // Each head has its own words of 32 bits, allocated as f32, which has the same size.
        let words = u64::from(positions.div_ceil(ATTENTION_BLOCK));
        let marks = self.buffer(&label, q.rows, Format::F32, words.saturating_mul(heads))?;
        let stride = row_bytes(Format::F32, words)?;
        let args = vec![
            bind("q", by_column(Source::Arena(q.buffer), q.row_bytes()?, row_bytes(Format::F32, d)?)),
            bind("position", by_row(RowInput::Positions.into(), INDEX_BYTES)),
            bind("keys", whole(self.field(state, "keys"))),
            bind("chosen", by_column(Source::Arena(marks.buffer), marks.row_bytes()?, stride)),
            bind("scores", scratch_arg()),
        ];
        let (every, local) = (Some(every), Some(local));
        let spec = IndexTopK { heads: 1, d: cache.key, chosen: top_k, positions, every, entries: false, local };
        let combine = IndexChoose { chosen: top_k, positions, every, local }.into();
        let of_part = IndexScores { heads: 1, d: cache.key, positions, every: None, plain: true }.into();
        let (division, leaves) = (Division::THREADS, Leaves::Words);
        let parts = Some(Parts { part: "part", result: "chosen", division, every: 1, leaves, combine });
        let one = KernelChoice { up_to_rows: 1, row_chunk: 1, spec: of_part, parts, bands: None };
        let choices = vec![one, KernelChoice::by_chunks(1, spec)];
        self.tell_by_rows(&label, &choices, &[PARTS], Vec::new);
        self.tasks.task(label, q.rows.axis(), heads, choices, &[], args)?;
        let choice = PositionChoice { top_k, every: every.unwrap_or(1), of: ChoiceUnit::Blocks };
        Ok(Binding::Marks { bits: marks, choice, stride })
    }

    /// Returns the bits of the operand `chosen`, one for each position or for each entry of `every`
    /// positions. Returns `None` if a row sees all positions.
    fn marks(&self, op: &Op, every: u32) -> Result<Option<Marks>, ScheduleError> {
        let name = op.kind.row().mnemonic;
        match op.operand("chosen") {
            Operand::Value(chosen) => match self.meaning(name, chosen)? {
                Binding::Marks { bits, choice, stride } if choice.of_bit() == every => {
                    Ok(Some(Marks { bits, choice, stride }))
                }
                Binding::Marks { choice, .. } => {
                    let own = choice.of_bit();
                    let places = |every: u32| {
                        if every == 1 { "single positions".into() } else { format!("cache slots of {every} positions") }
                    };
                    unsupported_error(
                        name,
                        format!(
                            "positions chosen among {}; attention to this state takes positions chosen among {}",
                            places(own),
                            places(every)
                        ),
                    )
                }
                _ => unsupported_error(name, "chosen positions that are not the result of index.top_k"),
            },
            Operand::Weight(_) | Operand::State(_) | Operand::Absent => Ok(None),
        }
    }

    /// Returns the argument for a field of a state, restricted to the positions or entries that an
    /// index chose, if any.
    fn places(&self, state: StateId, name: &str, marks: Option<Marks>) -> Arg {
        match (self.field(state, name), marks) {
            (Source::State { state, field }, Some(Marks { bits, choice, stride })) => {
                by_column(Source::Chosen { state, field, marks: bits.buffer, choice }, 0, stride)
            }
            (field, _) => whole(field),
        }
    }

    pub(super) fn attention(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let q = self.operand(op, "q")?;
        let ends = matches!(self.meaning(name, self.value_operand(op, "pos")?)?, Binding::Ends);
        let scores = ScoreAttrs::from_op(op);
        let ahead = match scores.reach {
            _ if ends => Lookahead::Text,
            0 => Lookahead::Nothing,
            reach => Lookahead::Positions(fit("positions before and after a row", reach)?),
        };
        match (ahead, q.rows) {
            (Lookahead::Nothing, _) => self.positions(op, &q)?,
            (_, Rows::Tokens) => {}
            _ => return unsupported_error(name, "rows other than tokens"),
        }
        let (state, cache) = self.cache(op)?;
        let (d, dv, kv_heads) = (u64::from(cache.key), u64::from(cache.value), u64::from(cache.heads));
        let heads = q.width / d.max(1);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return unsupported_error(name, format!("{heads} query heads, not a multiple of the {kv_heads} key heads"));
        }
        let group = heads / kv_heads;
        let label = format!("{name} {}", self.module.states[state.index()].name);
        let y = self.buffer(&label, q.rows, Format::F32, heads * dv)?;
        let sinks = self.opt_weight(op, "sinks");
        let marks = self.marks(op, 1)?;
        // The row's position among the positions that it sees.
        let own = match ahead {
            Lookahead::Positions(reach) => RowInput::Ahead(reach),
            Lookahead::Text => RowInput::Ends,
            Lookahead::Nothing => RowInput::Positions,
        };
        let position = marks.map_or(own, |marks| RowInput::LastChosen(marks.choice));
        let mut args = vec![
            bind("q", by_column(Source::Arena(q.buffer), q.row_bytes()?, row_bytes(Format::F32, group * d)?)),
            bind("position", by_row(position.into(), INDEX_BYTES)),
            bind("keys", self.places(state, "keys", marks)),
            bind("values", self.places(state, "values", marks)),
        ];
        if let Some(sinks) = sinks {
            let sinks = Source::Weight(self.vector(name, sinks)?);
            args.push(bind("sinks", by_column(sinks, 0, row_bytes(Format::F32, group)?)));
        }
        let slopes = scores.max_bias != 0.0;
        if slopes {
            let slopes = Source::Weight(self.slopes(heads, &scores)?);
            args.push(bind("slopes", by_column(slopes, 0, row_bytes(Format::F32, group)?)));
        }
        args.extend([
            bind("y", by_column(Source::Arena(y.buffer), y.row_bytes()?, row_bytes(Format::F32, group * dv)?)),
            bind("scratch", scratch_arg()),
        ]);
        let cap = Some(scores.cap).filter(|&cap| cap != 0.0).map(Bits::from_value);
        let scores = Scores { scale: Bits::from_value(scores.scale), cap, sinks: sinks.is_some(), slopes };
        let chosen = marks.is_some();
        let request = AttentionRequest { ahead, chosen, ..self.request(op, state, cache, group, scores)? };
        self.attend(label, q.rows.axis(), kv_heads, name, &request, args)?;
        Ok(Binding::ArenaRows(y))
    }

    /// Returns the request for attention over a state. The caller sets chosen positions, and
    /// positions after a row's own.
    fn request(
        &self,
        op: &Op,
        state: StateId,
        cache: Cache,
        group: u64,
        scores: Scores,
    ) -> Result<AttentionRequest, ScheduleError> {
        let heads = Heads { group: fit("query heads of a key head", group)?, d: cache.key, dv: cache.value };
        let State { window, chunked, .. } = self.module.states[state.index()];
        let window = match window {
            Some(window) => Some(Window { positions: fit("positions of a window", window)?, chunked, both: false }),
            None => None,
        };
        let exact = !self.is_quantised(op.results[0]);
        let plain = AttentionRequest::plain(heads, scores, cache.heads);
        Ok(AttentionRequest { cache: cache.formats, window, exact, tiles: self.tiles, ..plain })
    }

    /// Adds the task of an attention, with the kernels that accept the request.
    fn attend(
        &mut self,
        label: String,
        rows: RowAxis,
        columns: u64,
        name: &'static str,
        request: &AttentionRequest,
        args: Vec<NamedArg>,
    ) -> Result<(), ScheduleError> {
        let selection = attend::select(name, request)?;
        self.tell_by_rows(&label, &selection.choices, &[], || selection.rejected_candidates());
        self.tasks.task(label, rows, columns, selection.choices, &[], args)
    }

    /// Returns a vector with the slope of each head: the decrease of its scores per position.
    fn slopes(&mut self, heads: u64, scores: &ScoreAttrs) -> Result<u32, ScheduleError> {
        if heads > MOST_SLOPES {
            return unsupported_error(
                "attention",
                format!("ALiBi slopes of {heads} heads; expected at most {MOST_SLOPES} heads"),
            );
        }
        let factor = if scores.slope == 0.0 { String::new() } else { format!(".{}", scores.slope) };
        let name = format!("slopes.{heads}.{}{factor}", scores.max_bias);
        let slopes: Vec<f32> = (0..heads).map(|head| scores.slope(head, heads) as f32).collect();
        self.made_vector(name, &slopes)
    }

    /// Lowers attention over a window of positions and over entries. An item is the query heads of
    /// a row that share a key head, or some of these heads if there are few rows.
    pub(super) fn attention_entries(&mut self, op: &Op) -> Result<Binding, ScheduleError> {
        let name = op.kind.row().mnemonic;
        let q = self.operand(op, "q")?;
        self.positions(op, &q)?;
        let ((state, cache), (entries, of_entries)) = (self.cache(op)?, self.cache_of(op, "entries")?);
        let (d, dv, kv_heads) = (u64::from(cache.key), u64::from(cache.value), u64::from(cache.heads));
        let heads = q.width / d.max(1);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return unsupported_error(name, format!("{heads} query heads, not a multiple of the {kv_heads} key heads"));
        }
        let every = fit("positions of an entry", self.module.states[entries.index()].every)?;
        let group = heads / kv_heads;
        let label = format!("{name} {}", self.module.states[state.index()].name);
        let y = self.buffer(&label, q.rows, Format::F32, heads * dv)?;
        let sinks = self.opt_weight(op, "sinks");
        let marks = self.marks(op, every)?;
        let count = marks.map_or(RowInput::Whole(every), |marks| RowInput::Chosen(marks.choice));
        let of_heads = |heads: u64, elements: u64| row_bytes(Format::F32, heads.saturating_mul(elements));
        let mut args = vec![
            bind("q", by_column(Source::Arena(q.buffer), q.row_bytes()?, of_heads(group, d)?)),
            bind("position", by_row(RowInput::Positions.into(), INDEX_BYTES)),
            bind("keys", whole(self.field(state, "keys"))),
            bind("values", whole(self.field(state, "values"))),
            bind("whole", by_row(count.into(), INDEX_BYTES)),
            bind("entry_keys", self.places(entries, "keys", marks)),
            bind("entry_values", self.places(entries, "values", marks)),
            bind("y", by_column(Source::Arena(y.buffer), y.row_bytes()?, of_heads(group, dv)?)),
            bind("scratch", scratch_arg()),
        ];
        if let Some(sinks) = sinks {
            let sinks = Source::Weight(self.vector(name, sinks)?);
            args.push(bind("sinks", by_column(sinks, 0, of_heads(group, 1)?)));
        }
        let scores = Scores { sinks: sinks.is_some(), ..Scores::with_scale(op.attr("scale").float()) };
        let chosen = marks.map(|marks| marks.choice.top_k);
        let entries = Some(Entries { every, chosen, cache: of_entries.formats });
        let request = AttentionRequest { entries, ..self.request(op, state, cache, group, scores)? };
        self.attend(label, q.rows.axis(), kv_heads, name, &request, args)?;
        Ok(Binding::ArenaRows(y))
    }

    /// Returns whether all users of a value quantise it, possibly after splitting heads, merging
    /// heads or gating.
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
}

/// Reason against keys and values in block formats, for ops that choose positions or share entries.
const IN_BLOCKS: &str = "keys or values in a block format; expected f16";

/// Positions or entries that an index chose for each row.
#[derive(Clone, Copy)]
struct Marks {
    /// Rows of bits.
    bits: ArenaRows,
    choice: PositionChoice,
    /// Bytes from a key head's bits to the next one's; 0 if all heads share them.
    stride: u64,
}

/// Heads, sizes and formats of a `paged` state.
#[derive(Clone, Copy)]
struct Cache {
    heads: u32,
    key: u32,
    value: u32,
    formats: kernels::Cache,
}

impl Cache {
    /// Rejects keys and values in block formats, for ops that do not support them.
    fn in_halves(self, op: &'static str) -> Result<(), ScheduleError> {
        if self.formats == kernels::Cache::default() { Ok(()) } else { unsupported_error(op, IN_BLOCKS) }
    }
}
