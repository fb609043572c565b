//! Choice of the positions that a row attends to: those whose keys have the highest scores with the
//! index's queries.
//!
//! ```text
//! score(j) = sum over heads of w[h] * max(q[h] . k[j], 0)      // j up to the row's own position
//! ```
//!
//! The `top_k` positions with the highest scores are chosen; of equal scores, the first. The result
//! is one bit for each position, 32 bits in a word. The runtime reads these bits and copies the
//! chosen keys and values into contiguous memory.
//!
//! A float score is converted to an integer with the same order. The lowest chosen score is found
//! bit by bit, from the highest bit on. It is the largest number that is greater than at most
//! `n - top_k` of the `n` scores. Each bit thus needs one count over all scores. If several
//! positions have this score, the last chosen position is found in the same way. A count takes one
//! operation for each vector of positions, while a score takes `heads * d` operations.
//!
//! For a single row, several threads compute the scores of parts of the positions
//! ([`crate::IndexScores`]). One item then chooses among all parts ([`crate::IndexChoose`]). The
//! result is the same.
//!
//! **Runs.** If `every` positions share a key (GLM-5.3-Flash), these positions form a run, and runs
//! are scored and chosen as a whole. A row then sees the positions of the chosen runs, and the
//! positions after the last whole run. The bits of a run are adjacent in a word.
//!
//! **Blocks.** If each position has its own key and each head chooses blocks of positions
//! (MiniMax-M3), the score of a block is the highest `q . k` of its positions. Positions of local
//! blocks, up to the row's own position, get the highest integer as their score. Other positions
//! get the score of their block. `top_k` is a multiple of the block's length, so blocks are chosen
//! as a whole.
//!
//! **Entries.** If compressed entries are chosen instead of positions (DeepSeek-V4), each complete
//! entry has one bit.

mod scores;

use ixc_ir::kernel::{Affine, BufferKind, Kernel, KernelBuilder, Op, Type};
use ixc_ir::plan::{ATTENTION_BLOCK, KEY_LANES};

use crate::catalogue::{Row, row};
use crate::generator::blocks;
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_POSITIONS, Vectors, check};
use crate::generator::reference::{Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::work::{Arithmetic, Call, Work};
use scores::Runs;
pub(crate) use scores::{BlockScores, Blocks, Index, PositionScores, last_entry};

const BLOCK: i64 = ATTENTION_BLOCK as i64;
const KEYS: i64 = KEY_LANES as i64;
/// Maximum number of blocks after those that a row sees whole: the block with the row's position.
const MAX_MASKED: i64 = 1;

spec! {
    /// Bits that mark the positions that a row attends to.
    pub struct IndexTopK "index_top_k" {
        /// Number of query heads of the index.
        pub heads: u32,
        /// Number of elements of a query or key.
        pub d: u32,
        /// Number of positions to choose, if there are more.
        pub chosen: u32,
        /// Maximum number of positions.
        pub positions: u32,
        /// Number of positions that share a key or form a block. `None` if each position is chosen
        /// alone.
        pub every: Option<u32>,
        /// Whether compressed entries are chosen, each with one bit.
        pub entries: bool,
        /// Number of blocks that are always chosen, up to and including the row's own. If set, each
        /// position has its own key, and blocks of `every` positions are chosen by the highest
        /// product of one head.
        pub local: Option<u32>,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("index_top_k", 128, "index_top_k heads=64 d=128 chosen=2048 positions=163840"),
    row("index_top_k_runs", 128, "index_top_k heads=32 d=128 chosen=2048 positions=163840 every=4"),
    row("index_top_k_blocks", 128, "index_top_k heads=1 d=128 chosen=2048 positions=524288 every=128 local=1"),
    row("index_top_k_entries", 512, "index_top_k heads=64 d=128 chosen=512 positions=1048576 every=4 entries"),
];

impl Definition for IndexTopK {
    fn name(&self) -> String {
        let IndexTopK { heads, d, chosen: top_k, positions, every, entries, local } = *self;
        let every = every.map_or(String::new(), |every| format!("e{every}"));
        let entries = if entries { "_entries" } else { "" };
        let local = local.map_or(String::new(), |local| format!("l{local}"));
        format!("index_top_k{top_k}_h{heads}d{d}p{positions}{every}{entries}{local}")
    }

    fn signature(&self) -> Signature {
        let signature = Signature::new().read("q", BufferContents::Floats).read_if(
            self.local.is_none(),
            "w",
            BufferContents::Floats,
        );
        // If positions share a key, these buffers have the number of the row's run and the phase in
        // it. If entries are chosen, the buffer has the number of complete entries.
        let of_blocks = self.local.is_some();
        let signature = match (self.every.filter(|_| !of_blocks), self.entries) {
            (Some(_), false) => signature.read("place", BufferContents::Whole).index("phase"),
            (Some(_), true) => signature.read("whole", BufferContents::Whole),
            (None, _) => signature.read("position", BufferContents::Positions),
        };
        let signature =
            signature.read("keys", BufferContents::Halves).write("chosen", BufferContents::Bytes).scratch("scores");
        if let (Some(every), true) = (self.every, self.entries) {
            return signature.dim("entries", blocks::whole(every));
        }
        let signature = signature.dim("full", blocks::full()).dim("masked", blocks::masked_blocks());
        match self.every.filter(|_| !of_blocks) {
            Some(every) => signature.dim("entries", blocks::whole(every)),
            None => signature,
        }
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let IndexTopK { heads, d, chosen: top_k, positions, every, entries, local } = *self;
        let sizes = [("heads", heads), ("elements of a key", d), ("chosen positions", top_k)];
        sizes.into_iter().try_for_each(|(what, n)| check(&name, what, n.into(), n > 0, "at least 1"))?;
        let limit = format!("1 to {MAX_POSITIONS}");
        check(&name, "positions", positions.into(), (1..=MAX_POSITIONS).contains(&i64::from(positions)), limit)?;
        if let Some(local) = local {
            check(&name, "heads", heads.into(), heads == 1, "1, of blocks")?;
            let blocks = Blocks { top_k, every: every.unwrap_or(1), local }.check(&name)?;
            check(&name, "whether entries are chosen", entries.into(), !entries, "not of blocks")?;
            return Ok(of_blocks(KernelBuilder::new(name), vectors.lanes, self, &blocks));
        }
        if entries {
            let every = every.unwrap_or(1);
            check(&name, "positions of an entry", every.into(), every > 1, "at least 2")?;
            return Ok(of_entries(KernelBuilder::new(name), vectors.lanes, self, every));
        }
        if let Some(every) = every {
            let limit = "a power of two up to 32 that divides the number of chosen positions";
            let ok = every.is_power_of_two() && every <= ATTENTION_BLOCK && top_k.is_multiple_of(every);
            check(&name, "positions of a key", every.into(), ok, limit)?;
        }
        let mut b = KernelBuilder::new(name);
        let blocks = i64::from(positions.div_ceil(ATTENTION_BLOCK));
        let (full, masked) = (b.dim("full", 0, blocks), b.dim("masked", 0, MAX_MASKED));
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
        // All runs have bits, so scores of runs after the last complete run need space too.
        let behind = every.map_or_else(Affine::default, |every| of_positions(BLOCK / i64::from(every) * 4));
        let scores = b.buffer("scores", BufferKind::Scratch, scored(BLOCK * 4) + behind);
        let blocks = entries.map_or_else(|| Affine::from(full) + masked, Affine::from);
        let scored = BlockScores { lanes: vectors.lanes, scores, blocks };
        let index = Index { scored, heads, d, q, w: Some(w), keys, first: Affine::default() };
        let words = Affine::from(full) + masked;
        let own = b.load(Type::i32(1), position, 0);
        let Some((every, phase)) = every.zip(phase) else {
            index.scores(&mut b, own);
            index.choose(&mut b, chosen, top_k, positions);
            return Ok(b.finish());
        };
        let phase = b.load_index("phase", phase, 0);
        let phase = b.index(phase);
        // Computes the row's own position and the number of positions up to it.
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
        let end = index.end(&mut b, top_k, least, positions.div_ceil(every));
        let runs = Runs { whole, positions: behind, length: every.into() };
        index.mark_runs(&mut b, chosen, words, least, end, &runs);
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let IndexTopK { heads, d, chosen: top_k, every, entries, local, .. } = *self;
        if let (Some(every), Some(local)) = (every, local) {
            return self.reference_of_blocks(run, every as usize, local as usize);
        }
        let (heads, d) = (heads as usize, d as usize);
        let input = run.input();
        let (q, w, keys) = (input.floats("q")?, input.floats("w")?, input.halves("keys")?);
        let key = |p: usize, e: usize| keys[(p / 16 * d + e) * 16 + p % 16];
        // Returns the score of a key, and the sum of the magnitudes of its terms.
        let score = |p: usize| {
            let head = |h: usize| {
                let products = (0..d).map(|e| q[h * d + e] * key(p, e));
                (w[h] * products.clone().sum::<f64>().max(0.0), w[h].abs() * products.map(f64::abs).sum::<f64>())
            };
            (0..heads).map(head).fold((0.0, 0.0), |(sum, size), (x, own)| (sum + x, size + own))
        };
        let words = run.output().ints("chosen")?;
        let has_bit = |p: usize| words[p / 32] >> (p % 32) & 1 == 1;
        // Number of positions of a run, or 1 if each position has its own key.
        let length = if entries { 1 } else { every.unwrap_or(1) as usize };
        // Number of places to choose, and number of positions or entries that the row sees.
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
        falling.sort_unstable_by(|a, b| b.total_cmp(a));
        let Some(&least) = falling[..expected].last() else { return Ok(()) };
        for (p, (score, size)) in scores.iter().enumerate() {
            // The choice depends on differences of scores, each a sum over d products and over
            // heads.
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
        let runs = self.every.filter(|_| self.local.is_none()).map(|every| i64::from(rows / every.max(1)));
        [i64::from(rows) - 1, 1].into_iter().chain(runs).collect()
    }

    fn work(&self, call: &Call<'_>) -> Work {
        // Number of keys: one for each position, or one for each run or entry.
        let keys = match self.every.filter(|_| self.local.is_none()) {
            Some(_) => call.dims.last().map_or(&[][..], std::slice::from_ref),
            None => call.dims,
        };
        let blocks: i64 = keys.iter().sum();
        let multiply_adds = u64::from(self.heads) * u64::from(self.d) * 32 * blocks.max(0).unsigned_abs();
        Work { bytes: call.bytes("keys"), multiply_adds, arithmetic: Arithmetic::F32 }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// Generates the kernel that chooses blocks of positions.
fn of_blocks(mut b: KernelBuilder, lanes: u16, spec: &IndexTopK, of: &Blocks) -> Kernel {
    let most = i64::from(spec.positions.div_ceil(ATTENTION_BLOCK));
    let (full, masked) = (b.dim("full", 0, most), b.dim("masked", 0, MAX_MASKED));
    let d = i64::from(spec.d);
    let blocks = Affine::from(full) + masked;
    let of_positions = |bytes: i64| full * bytes + masked * bytes;
    let (q, position) = (b.read("q", d * 4), b.read("position", 4));
    let keys = b.read("keys", of_positions(BLOCK * d * 2));
    let chosen = b.write("chosen", of_positions(4));
    let best = of_positions(BLOCK * 4);
    let scores = b.buffer("scores", BufferKind::Scratch, best.clone() + of.best_bytes(blocks.clone()));
    let own = b.load(Type::i32(1), position, 0);
    let scored = BlockScores { lanes, scores, blocks };
    let index = Index { scored, heads: 1, d, q, w: None, keys, first: Affine::default() };
    index.scores(&mut b, own);
    index.choose_blocks(&mut b, of, &PositionScores { buffer: scores, best, own }, chosen, spec.positions);
    b.finish()
}

impl IndexTopK {
    fn reference_of_blocks(&self, run: &Run<'_>, every: usize, local: usize) -> Result<(), Mismatch> {
        let d = self.d as usize;
        let input = run.input();
        let (q, keys, own) = (input.floats("q")?, input.halves("keys")?, input.id("position")?);
        // Score of a block, and the largest sum of the magnitudes of a product's terms.
        let product = |p: usize| {
            let products = (0..d).map(|e| q[e] * keys[(p / 16 * d + e) * 16 + p % 16]);
            (products.clone().sum::<f64>(), products.map(f64::abs).sum::<f64>())
        };
        let score = |block: usize| {
            let products = (block * every..(block + 1) * every).map(product);
            products.fold((f64::NEG_INFINITY, 0.0f64), |(a, m), (b, n)| (a.max(b), m.max(n)))
        };
        let words = run.output().ints("chosen")?;
        let has_bit = |p: usize| words[p / 32] >> (p % 32) & 1 == 1;
        let first_local = (own / every + 1).saturating_sub(local);
        for p in 0..words.len() * 32 {
            let expected = if p > own { false } else { p / every >= first_local || has_bit(p / every * every) };
            close(format_args!("the bit of position {p}"), has_bit(p).into(), expected.into(), 0.0)?;
        }
        let is_chosen = |block: usize| has_bit(block * every);
        let expected = (self.chosen as usize / every - local).min(first_local);
        let count = (0..first_local).filter(|&block| is_chosen(block)).count();
        close(format_args!("the number of chosen blocks"), count as f64, expected as f64, 0.0)?;
        let scores: Vec<(f64, f64)> = (0..first_local).map(score).collect();
        let mut falling: Vec<f64> = scores.iter().map(|(score, _)| *score).collect();
        falling.sort_unstable_by(|a, b| b.total_cmp(a));
        let Some(&least) = falling[..expected].last() else { return Ok(()) };
        for (block, (score, size)) in scores.iter().enumerate() {
            // The choice depends on differences of scores, each a sum of d products.
            let bound = 2.0 * size * (d + 2) as f64 * UNIT;
            let wrong = if is_chosen(block) { least - score } else { score - least };
            close(format_args!("how far block {block} is on the wrong side"), wrong.max(0.0), 0.0, bound)?;
        }
        Ok(())
    }
}

/// Generates the kernel that chooses entries of `every` positions each.
fn of_entries(mut b: KernelBuilder, lanes: u16, spec: &IndexTopK, every: u32) -> Kernel {
    let entries = spec.positions.div_ceil(every);
    let blocks = b.dim("entries", 0, i64::from(entries.div_ceil(ATTENTION_BLOCK)));
    let (heads, d) = (i64::from(spec.heads), i64::from(spec.d));
    let (q, w) = (b.read("q", heads * d * 4), b.read("w", heads * 4));
    let (whole, keys) = (b.read("whole", 4), b.read("keys", blocks * (BLOCK * d * 2)));
    let chosen = b.write("chosen", blocks * 4);
    let scores = b.buffer("scores", BufferKind::Scratch, blocks * (BLOCK * 4));
    let scored = BlockScores { lanes, scores, blocks: blocks.into() };
    let index = Index { scored, heads, d, q, w: Some(w), keys, first: Affine::default() };
    let last = last_entry(&mut b, whole);
    index.scores(&mut b, last);
    index.choose(&mut b, chosen, spec.chosen, entries);
    b.finish()
}
