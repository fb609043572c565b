//! Which positions a row attends to, where a model chooses: those whose keys score highest with the queries of an index.
//!
//! ```text
//! score(j) = sum over heads of w[h] * max(q[h] . k[j], 0)      // j up to the row's own position
//! ```
//!
//! The `top_k` highest are chosen, of equal ones the first. What is left is a bit for each position, 32 of them to a word, by which the runtime puts what attention reads
//! one behind the other.
//!
//! A score becomes an integer of the same order. The lowest that is chosen is found bit by bit, from the highest: it is the largest number that at least `top_k`
//! scores are not below, so that each bit costs a count over the scores, and nothing depends on them but what is counted. How far the ones that equal it are
//! chosen is found in the same way. Counts are one operation for a vector of positions; the scores are `heads * d` of them.
//!
//! One row alone is scored in parts by several threads ([`crate::IndexScores`]), whose scores are chosen among as one ([`crate::IndexChoose`]): what is chosen
//! is the same.
//!
//! **Runs.** Where so many positions share a key (GLM-5.3-Flash), whole runs of them are scored and chosen in place of positions; a row sees the positions of the
//! chosen ones, and those behind the last whole run. Of a word of bits each run has some side by side.
//!
//! **Entries.** Where it is places that are chosen and not their positions (DeepSeek-V4), those that are whole are as positions up to a row's own, and have a bit each.

use ixc_ir::kernel::{Affine, BufferId, BufferKind, Kernel, KernelBuilder, Op, Type, ValueId, VarId};
use ixc_ir::plan::{ATTENTION_BLOCK, DimRule, KEY_LANES};

use crate::catalogue::{Row, row};
use crate::definition::Definition;
use crate::generate::{GenerateError, MAX_POSITIONS, Vectors, check};
use crate::reference::{Mismatch, Run, UNIT, close};
use crate::signature::{Holds, Signature};
use crate::text::spec;
use crate::work::{Arithmetic, Call, Work};

const BLOCK: i64 = ATTENTION_BLOCK as i64;
const KEYS: i64 = KEY_LANES as i64;
/// Blocks behind those that a row sees whole: its own.
const MOST_MASKED: i64 = 1;

spec! {
    /// A bit for each position that a row attends to.
    pub struct IndexTopK "index_top_k" {
        /// Query heads of the index.
        pub heads: u32,
        /// Elements of a query or key.
        pub d: u32,
        /// Positions that are chosen, where there are more.
        pub chosen: u32,
        /// Most positions.
        pub positions: u32,
        /// Positions that share a key, where each has not its own.
        pub every: Option<u32>,
        /// Whether what they share is chosen, and has the bit.
        pub entries: bool,
    }
}

/// Representative ones.
#[rustfmt::skip] // One line each.
const ROWS: &[Row] = &[
    row("index_top_k", 128, "index_top_k heads=64 d=128 chosen=2048 positions=163840"),
    row("index_top_k_runs", 128, "index_top_k heads=32 d=128 chosen=2048 positions=163840 every=4"),
    row("index_top_k_entries", 512, "index_top_k heads=64 d=128 chosen=512 positions=1048576 every=4 entries"),
];

impl Definition for IndexTopK {
    fn name(&self) -> String {
        let IndexTopK { heads, d, chosen: top_k, positions, every, entries } = *self;
        let every = every.map_or(String::new(), |every| format!("e{every}"));
        let entries = if entries { "_entries" } else { "" };
        format!("index_top_k{top_k}_h{heads}d{d}p{positions}{every}{entries}")
    }

    fn signature(&self) -> Signature {
        let signature = Signature::new().read("q", Holds::Floats).read("w", Holds::Floats);
        // Where a row's position is: among those that share a key, too; or how many are whole before it.
        let signature = match (self.every, self.entries) {
            (Some(_), false) => signature.read("place", Holds::Whole).index("phase"),
            (Some(_), true) => signature.read("whole", Holds::Whole),
            (None, _) => signature.read("position", Holds::Positions),
        };
        let signature = signature.read("keys", Holds::Halves).write("chosen", Holds::Bytes).scratch("scores");
        if let (Some(every), true) = (self.every, self.entries) {
            return signature.dim("entries", DimRule::WholeBlocks(every));
        }
        let signature = signature.dim("full", DimRule::FullBlocks).dim("masked", DimRule::MaskedBlocks);
        match self.every {
            Some(every) => signature.dim("entries", DimRule::WholeBlocks(every)),
            None => signature,
        }
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let IndexTopK { heads, d, chosen: top_k, positions, every, entries } = *self;
        let sizes = [("heads", heads), ("elements of a key", d), ("chosen positions", top_k)];
        sizes.into_iter().try_for_each(|(what, n)| check(&name, what, n.into(), n > 0, "at least 1"))?;
        let limit = format!("1 to {MAX_POSITIONS}");
        check(&name, "positions", positions.into(), (1..=MAX_POSITIONS).contains(&i64::from(positions)), limit)?;
        if entries {
            let every = every.unwrap_or(1);
            check(&name, "positions of an entry", every.into(), every > 1, "at least 2")?;
            return Ok(of_entries(KernelBuilder::new(name), vectors.lanes, self, every));
        }
        if let Some(every) = every {
            let limit = "a power of two up to 32, of which the chosen positions are a multiple";
            let ok = every.is_power_of_two() && every <= ATTENTION_BLOCK && top_k.is_multiple_of(every);
            check(&name, "positions of a key", every.into(), ok, limit)?;
        }
        let mut b = KernelBuilder::new(name);
        let blocks = i64::from(positions.div_ceil(ATTENTION_BLOCK));
        let (full, masked) = (b.dim("full", 0, blocks), b.dim("masked", 0, MOST_MASKED));
        let (heads, d) = (i64::from(heads), i64::from(d));
        let of_positions = |bytes: i64| full * bytes + masked * bytes;
        let entries = every.map(|every| b.dim("entries", 0, blocks / i64::from(every) + 1));
        let scored = |bytes: i64| entries.map_or_else(|| of_positions(bytes), |entries| entries * bytes);
        let q = b.read("q", heads * d * 4);
        let w = b.read("w", heads * 4);
        let position = b.read(if every.is_some() { "place" } else { "position" }, 4);
        let below = |every: u32| BufferKind::Index { below: Affine::constant(every.into()) };
        let phase = every.map(|every| b.buffer("phase", below(every), 4));
        let keys = b.read("keys", scored(BLOCK * d * 2));
        let chosen = b.write("chosen", of_positions(4));
        // Of all runs that have a bit, those behind the last whole one, too.
        let behind = every.map_or_else(Affine::default, |every| of_positions(BLOCK / i64::from(every) * 4));
        let scores = b.buffer("scores", BufferKind::Scratch, scored(BLOCK * 4) + behind);
        let blocks = entries.map_or_else(|| Affine::from(full) + masked, Affine::from);
        let scored = Scored { lanes: vectors.lanes, scores, blocks };
        let index = Index { scored, heads, d, q, w, keys, first: Affine::default() };
        let words = Affine::from(full) + masked;
        let own = b.load(Type::i32(1), position, 0);
        let Some((every, phase)) = every.zip(phase) else {
            index.scores(&mut b, own);
            index.choose(&mut b, chosen, top_k, positions);
            return Ok(b.finish());
        };
        let phase = b.load_index("phase", phase, 0);
        let phase = b.index(phase);
        // Of the row's own position, and of the one behind it.
        let (length, one) = (b.splat_int(Type::i32(1), every.into()), b.splat_int(Type::i32(1), 1));
        let own = b.same(Op::IMul, &[own, length]);
        let own = b.iadd(own, phase);
        let behind = b.iadd(own, one);
        let whole = b.shift(Op::ShrS, behind, every.trailing_zeros().into());
        let last = b.same(Op::ISub, &[whole, one]);
        let of_word = BLOCK / i64::from(every);
        let lowest = b.splat_int(Type::i32(1), i32::MIN.into());
        b.for_each("behind", words.clone() * of_word, |b, run| b.store(scores, run * 4, lowest));
        index.scores(&mut b, last);
        let top_k = b.splat_int(Type::i32(1), (top_k / every).into());
        let least = index.least(&mut b, top_k);
        let end = index.end(&mut b, (top_k, least), positions.div_ceil(every));
        index.mark_runs(&mut b, (chosen, words), (least, end), ([whole, behind], every.into()));
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let IndexTopK { heads, d, chosen: top_k, every, entries, .. } = *self;
        let (heads, d) = (heads as usize, d as usize);
        let input = run.input();
        let (q, w, keys) = (input.floats("q")?, input.floats("w")?, input.halves("keys")?);
        let key = |p: usize, e: usize| keys[(p / 16 * d + e) * 16 + p % 16];
        // Scores, and the same with all terms of one sign.
        let score = |p: usize| {
            let head = |h: usize| {
                let products = (0..d).map(|e| q[h * d + e] * key(p, e));
                (w[h] * products.clone().sum::<f64>().max(0.0), w[h].abs() * products.map(f64::abs).sum::<f64>())
            };
            (0..heads).map(head).fold((0.0, 0.0), |(sum, size), (x, own)| (sum + x, size + own))
        };
        let words = run.output().ints("chosen")?;
        let has_bit = |p: usize| words[p / 32] >> (p % 32) & 1 == 1;
        // Runs, of one position where each has a key.
        let length = if entries { 1 } else { every.unwrap_or(1) as usize };
        // Positions up to the row's own, or entries.
        let (top_k, seen) = match (every, entries) {
            (Some(_), true) => (top_k as usize, input.id("whole")?),
            (Some(_), false) => (top_k as usize / length, input.id("place")? * length + input.id("phase")? + 1),
            (None, _) => (top_k as usize, input.id("position")? + 1),
        };
        let (all, every) = (seen / length, length);
        let whole = if self.every.is_some() { all.min(32 * run.dim("entries") as usize) } else { all };
        for p in 0..words.len() * 32 {
            let in_tail = (all * every..seen).contains(&p);
            let expected = if p < whole * every { has_bit(p / every * every) } else { in_tail };
            close(format_args!("the bit of position {p}"), has_bit(p).into(), expected.into(), 0.0)?;
        }
        let is_chosen = |run: usize| has_bit(run * every);
        let scores: Vec<(f64, f64)> = (0..whole).map(score).collect();
        let count = (0..whole).filter(|&run| is_chosen(run)).count();
        let expected = top_k.min(whole);
        close(format_args!("the number of chosen positions"), count as f64, expected as f64, 0.0)?;
        let mut falling: Vec<f64> = scores.iter().map(|(score, _)| *score).collect();
        falling.sort_by(|a, b| b.total_cmp(a));
        let Some(&least) = falling[..expected].last() else { return Ok(()) };
        for (p, (score, size)) in scores.iter().enumerate() {
            // Sums of d products and of the heads', whose differences decide.
            let bound = 2.0 * size * (d + heads + 2) as f64 * UNIT;
            let wrong = if is_chosen(p) { least - score } else { score - least };
            close(format_args!("how far position {p} is on the wrong side"), wrong.max(0.0), 0.0, bound)?;
        }
        Ok(())
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        if self.entries {
            return vec![i64::from(rows)];
        }
        let runs = self.every.map(|every| i64::from(rows / every.max(1)));
        [i64::from(rows) - 1, 1].into_iter().chain(runs).collect()
    }

    fn work(&self, call: &Call<'_>) -> Work {
        // Keys are of positions, or of runs or entries.
        let keys =
            if self.every.is_some() { call.dims.last().map_or(&[][..], std::slice::from_ref) } else { call.dims };
        let blocks: i64 = keys.iter().sum();
        let multiply_adds = u64::from(self.heads) * u64::from(self.d) * 32 * blocks.max(0).unsigned_abs();
        Work { bytes: call.bytes("keys"), multiply_adds, arithmetic: Arithmetic::F32 }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// The kernel that chooses entries, of so many positions each.
fn of_entries(mut b: KernelBuilder, lanes: u16, spec: &IndexTopK, every: u32) -> Kernel {
    let entries = spec.positions.div_ceil(every);
    let blocks = b.dim("entries", 0, i64::from(entries.div_ceil(ATTENTION_BLOCK)));
    let (heads, d) = (i64::from(spec.heads), i64::from(spec.d));
    let (q, w) = (b.read("q", heads * d * 4), b.read("w", heads * 4));
    let (whole, keys) = (b.read("whole", 4), b.read("keys", blocks * (BLOCK * d * 2)));
    let chosen = b.write("chosen", blocks * 4);
    let scores = b.buffer("scores", BufferKind::Scratch, blocks * (BLOCK * 4));
    let scored = Scored { lanes, scores, blocks: blocks.into() };
    let index = Index { scored, heads, d, q, w, keys, first: Affine::default() };
    let last = last_entry(&mut b, whole);
    index.scores(&mut b, last);
    index.choose(&mut b, chosen, spec.chosen, entries);
    b.finish()
}

/// The number of the last entry that is whole: one less than how many are.
pub(crate) fn last_entry(b: &mut KernelBuilder, whole: BufferId) -> ValueId {
    let (whole, one) = (b.load(Type::i32(1), whole, 0), b.splat_int(Type::i32(1), 1));
    b.same(Op::ISub, &[whole, one])
}

/// Scores in memory.
pub(crate) struct Scored {
    pub lanes: u16,
    /// Of each position, as integers of the same order; the lowest one is no position's.
    pub scores: BufferId,
    /// Blocks of positions that have scores, or of runs.
    pub blocks: Affine,
}

/// What scores are made of.
pub(crate) struct Index {
    /// Where they go.
    pub scored: Scored,
    pub heads: i64,
    pub d: i64,
    pub q: BufferId,
    pub w: BufferId,
    pub keys: BufferId,
    /// The number of the first block.
    pub first: Affine,
}

impl std::ops::Deref for Index {
    type Target = Scored;

    fn deref(&self) -> &Scored {
        &self.scored
    }
}

impl Scored {
    /// A bit for each of the `top_k` best positions, of at most so many.
    pub fn choose(&self, b: &mut KernelBuilder, chosen: BufferId, top_k: u32, positions: u32) {
        let top_k = b.splat_int(Type::i32(1), top_k.into());
        let least = self.least(b, top_k);
        let end = self.end(b, (top_k, least), positions);
        self.mark(b, chosen, least, end);
    }

    /// Vectors of a block of positions.
    fn vectors(&self) -> i64 {
        BLOCK / i64::from(self.lanes)
    }

    fn number(&self, b: &mut KernelBuilder, value: i64) -> ValueId {
        b.splat_int(Type::i32(self.lanes), value)
    }

    fn wide(&self, b: &mut KernelBuilder, x: ValueId) -> ValueId {
        if self.lanes == 1 { x } else { b.broadcast(self.lanes, x) }
    }

    /// The numbers of the positions of a vector.
    fn positions(&self, b: &mut KernelBuilder, first: Affine) -> ValueId {
        let first = b.index(first);
        let first = self.wide(b, first);
        let lanes = b.op(Op::Iota, Type::i32(self.lanes), &[]);
        b.iadd(first, lanes)
    }
}

impl Index {
    /// Scores of all positions; those behind the row's own have the lowest.
    pub fn scores(&self, b: &mut KernelBuilder, own: ValueId) {
        let (lanes, width) = (self.lanes, i64::from(self.lanes));
        let ty = Type::f32(lanes);
        // Strips of keys whole, and as many heads as make sums enough to hide the latency of a product.
        let vectors = (KEYS / width).max(2).min(self.vectors());
        let most = if lanes >= 16 { 8 } else { 4 };
        let together =
            [most, 4, 2, 1].into_iter().find(|n| self.heads % n == 0 && n * vectors <= 2 * most).unwrap_or(1);
        b.for_each("block", self.blocks.clone(), |b, block| {
            b.for_each("part", self.vectors() / vectors, |b, part| {
                let at = block * (BLOCK * self.d * 2) + part * (vectors * width * self.d * 2);
                let none = b.splat_f32(lanes, 0.0);
                let tiles = self.heads / together;
                let scores = b.for_carry("tile", tiles, &vec![none; vectors as usize], |b, tile, scores| {
                    let sums = self.products(b, (tile, together), (&at, vectors));
                    let mut scores = scores.to_vec();
                    for (h, sums) in sums.chunks(vectors as usize).enumerate() {
                        let w = b.load_splat(ty, self.w, tile * (together * 4) + h as i64 * 4);
                        for (score, &sum) in scores.iter_mut().zip(sums) {
                            let found = b.same(Op::Max, &[sum, none]);
                            *score = b.fma(found, w, *score);
                        }
                    }
                    scores
                });
                let own = self.wide(b, own);
                let (lowest, all) = (self.number(b, i32::MIN.into()), self.number(b, i32::MAX.into()));
                // The lowest is a NaN's otherwise.
                let above = self.number(b, i64::from(i32::MIN) + 1);
                for (v, score) in scores.into_iter().enumerate() {
                    // Of a negative number's bits all but the sign are turned.
                    let bits = b.bitcast(Type::i32(lanes), score);
                    let sign = b.shift(Op::ShrS, bits, 31);
                    let turn = b.same(Op::And, &[sign, all]);
                    let order = b.same(Op::Xor, &[bits, turn]);
                    let first = block * BLOCK + part * (vectors * width) + v as i64 * width;
                    let order = b.same(Op::IMax, &[order, above]);
                    let position = self.positions(b, self.first.clone() * BLOCK + first.clone());
                    let after = b.same(Op::CmpGt, &[position, own]);
                    let order = b.op(Op::Select, Type::i32(lanes), &[after, lowest, order]);
                    b.store(self.scores, first * 4, order);
                }
            });
        });
    }

    /// Products of some heads with some vectors of positions, by head.
    fn products(
        &self,
        b: &mut KernelBuilder,
        (tile, together): (VarId, i64),
        (at, vectors): (&Affine, i64),
    ) -> Vec<ValueId> {
        let (lanes, width) = (self.lanes, i64::from(self.lanes));
        let none = b.splat_f32(lanes, 0.0);
        b.for_carry("e", self.d, &vec![none; (together * vectors) as usize], |b, e, sums| {
            let key = |v: i64| {
                let (strip, lane) = (v * width / KEYS, v * width % KEYS);
                let at = at.clone() + e * (KEYS * 2) + (strip * KEYS * self.d * 2 + lane * 2);
                let k = b.load(Type::f16(lanes), self.keys, at);
                b.op(Op::F16ToF32, Type::f32(lanes), &[k])
            };
            let keys: Vec<ValueId> = (0..vectors).map(key).collect();
            let mut next = Vec::new();
            for (h, sums) in sums.chunks(vectors as usize).enumerate() {
                let at = tile * (together * self.d * 4) + h as i64 * (self.d * 4) + e * 4;
                let q = b.load_splat(Type::f32(lanes), self.q, at);
                next.extend(sums.iter().zip(&keys).map(|(&sum, &k)| b.fma(q, k, sum)));
            }
            next
        })
    }
}

impl Scored {
    /// How many positions are so: `mask` gives all ones for those, of scores and the first position of a vector.
    fn count(
        &self,
        b: &mut KernelBuilder,
        mut mask: impl FnMut(&mut KernelBuilder, ValueId, Affine) -> ValueId,
    ) -> ValueId {
        let width = i64::from(self.lanes);
        let none = self.number(b, 0);
        let counts = b.for_carry("block", self.blocks.clone(), &[none], |b, block, counts| {
            let mut count = counts[0];
            for v in 0..self.vectors() {
                let first = block * BLOCK + v * width;
                let score = b.load(Type::i32(self.lanes), self.scores, first.clone() * 4);
                // All ones are -1.
                let is = mask(b, score, first);
                count = b.same(Op::ISub, &[count, is]);
            }
            vec![count]
        });
        b.op(Op::ReduceAdd, Type::i32(1), &[counts[0]])
    }

    /// The lowest score that is chosen: where fewer than `top_k` positions are there, the lowest that a position can have.
    fn least(&self, b: &mut KernelBuilder, top_k: ValueId) -> ValueId {
        let all = b.index(self.blocks.clone() * BLOCK);
        let most_below = b.same(Op::ISub, &[all, top_k]);
        let lowest = b.splat_int(Type::i32(1), i32::MIN.into());
        // The first step goes from the lowest to 0.
        let found = b.for_carry("bit", 32, &[lowest, lowest], |b, _, carried| {
            let [least, step] = [carried[0], carried[1]];
            let next = b.iadd(least, step);
            let wide = self.wide(b, next);
            let below = self.count(b, |b, score, _| b.same(Op::CmpGt, &[wide, score]));
            let too_high = b.same(Op::CmpGt, &[below, most_below]);
            let least = b.op(Op::Select, Type::i32(1), &[too_high, least, next]);
            vec![least, b.shift(Op::ShrU, step, 1)]
        });
        let one = b.splat_int(Type::i32(1), 1);
        let above = b.iadd(lowest, one);
        b.same(Op::IMax, &[found[0], above])
    }

    /// The position up to which those are chosen that score no more than the lowest.
    fn end(&self, b: &mut KernelBuilder, (top_k, least): (ValueId, ValueId), positions: u32) -> ValueId {
        let wide = self.wide(b, least);
        let above = self.count(b, |b, score, _| b.same(Op::CmpGt, &[score, wide]));
        let left = b.same(Op::ISub, &[top_k, above]);
        let bits = i64::from(32 - positions.next_multiple_of(ATTENTION_BLOCK).leading_zeros());
        let (none, step) = (b.splat_int(Type::i32(1), 0), b.splat_int(Type::i32(1), 1 << (bits - 1)));
        let found = b.for_carry("bit", bits, &[none, step], |b, _, carried| {
            let [end, step] = [carried[0], carried[1]];
            let next = b.iadd(end, step);
            let before = self.wide(b, next);
            let count = self.count(b, |b, score, first| {
                let equal = b.same(Op::CmpEq, &[score, wide]);
                let position = self.positions(b, first);
                let before = b.same(Op::CmpGt, &[before, position]);
                b.same(Op::And, &[equal, before])
            });
            let too_many = b.same(Op::CmpGt, &[count, left]);
            let end = b.op(Op::Select, Type::i32(1), &[too_many, end, next]);
            vec![end, b.shift(Op::ShrU, step, 1)]
        });
        found[0]
    }

    /// A word of bits for each block.
    fn mark(&self, b: &mut KernelBuilder, chosen: BufferId, least: ValueId, end: ValueId) {
        let (lanes, width) = (self.lanes, i64::from(self.lanes));
        let (least, end) = (self.wide(b, least), self.wide(b, end));
        b.for_each("block", self.blocks.clone(), |b, block| {
            let mut word = self.number(b, 0);
            for v in 0..self.vectors() {
                let first = block * BLOCK + v * width;
                let score = b.load(Type::i32(lanes), self.scores, first.clone() * 4);
                let above = b.same(Op::CmpGt, &[score, least]);
                let equal = b.same(Op::CmpEq, &[score, least]);
                let position = self.positions(b, first);
                let before = b.same(Op::CmpGt, &[end, position]);
                let equal = b.same(Op::And, &[equal, before]);
                let is = b.same(Op::Or, &[above, equal]);
                let bit = bits(b, lanes, v * width);
                let own = b.same(Op::And, &[is, bit]);
                word = b.same(Op::Or, &[word, own]);
            }
            // Bits of different lanes are different.
            let word = b.op(Op::ReduceAdd, Type::i32(1), &[word]);
            b.store(chosen, block * 4, word);
        });
    }

    /// A word of bits for each block of positions: those of the chosen runs, and those from the last whole run up to the row's own.
    fn mark_runs(
        &self,
        b: &mut KernelBuilder,
        (chosen, words): (BufferId, Affine),
        (least, end): (ValueId, ValueId),
        ([whole, behind], every): ([ValueId; 2], i64),
    ) {
        let (lanes, width, scalar) = (self.lanes, i64::from(self.lanes), Type::i32(1));
        let of_word = BLOCK / every;
        let length = b.splat_int(scalar, every);
        let whole = b.same(Op::IMul, &[whole, length]);
        let [whole, behind] = [whole, behind].map(|x| self.wide(b, x));
        b.for_each("word", words, |b, word| {
            let mut tail = self.number(b, 0);
            for v in 0..self.vectors() {
                let position = self.positions(b, word * BLOCK + v * width);
                let before_whole = b.same(Op::CmpGt, &[whole, position]);
                let before_behind = b.same(Op::CmpGt, &[behind, position]);
                let is = b.same(Op::Xor, &[before_whole, before_behind]);
                let is = b.same(Op::And, &[is, before_behind]);
                let bit = bits(b, lanes, v * width);
                let own = b.same(Op::And, &[is, bit]);
                tail = b.same(Op::Or, &[tail, own]);
            }
            let mut all = b.op(Op::ReduceAdd, scalar, &[tail]);
            let first = b.index(word * of_word);
            for run in 0..of_word {
                let score = b.load(scalar, self.scores, word * (of_word * 4) + run * 4);
                let above = b.same(Op::CmpGt, &[score, least]);
                let equal = b.same(Op::CmpEq, &[score, least]);
                let offset = b.splat_int(scalar, run);
                let number = b.iadd(first, offset);
                let before = b.same(Op::CmpGt, &[end, number]);
                let equal = b.same(Op::And, &[equal, before]);
                let is = b.same(Op::Or, &[above, equal]);
                let bits = ((1u64 << every) - 1) << (run * every);
                let bits = b.splat_int(scalar, i64::from(bits as u32 as i32));
                let own = b.same(Op::And, &[is, bits]);
                all = b.same(Op::Or, &[all, own]);
            }
            b.store(chosen, word * 4, all);
        });
    }
}

/// The bits of a vector of positions from `first` on, in the word of their block.
pub(crate) fn bits(b: &mut KernelBuilder, lanes: u16, first: i64) -> ValueId {
    let bit = |lane: i64| (1u32 << (first + lane)).to_le_bytes();
    b.bytes(Type::i32(lanes), (0..i64::from(lanes)).flat_map(bit).collect())
}
