//! Attention of the query heads that share a key head, over the KV cache, in blocks of [`ATTENTION_BLOCK`] positions (the online
//! softmax of FlashAttention): for each block the scores, then the running maximum and sums, then the weighted values.
//!
//! Keys lie as `[position / 16][d][position % 16]`: a lane is a position, so a block's scores need no horizontal sum. Queries are the
//! heads of one row, or of a few rows together, so that a load and its conversion from f16 serve several of them, whose
//! accumulators hide the latency of a fused multiply-add (4 cycles at two a cycle: eight chains). The factor on scores is put on the
//! queries once: for heads of 64 it is a power of two, and exact. Scores, weights and accumulators are f32; the cache is f16, or in blocks.
//!
//! ```text
//! for each block                                     // first those that all rows see whole, then those that need a mask
//!   p[query][position] = q . k                       // tiles of queries x positions, in registers over d
//!   for each query: maximum, p = e^(p - maximum), sums += p
//!   acc[query][dv] = acc * e^(old maximum - maximum) + p v    // tiles of queries x elements of a value, in registers
//! ```
//!
//! **Keys in blocks** ([`ixc_ir::cache`]) are multiplied as bytes: a query is rounded once, like activations of products of weights, to bytes in
//! -127..=127 with an f32 scale for each block, and a block's sum of products is an integer, which both scales are put on. What is lost is at most
//! 1/254 of the largest magnitude of a query's block; llama.cpp rounds queries so, too. **Values in blocks** are integers that are multiplied
//! in f32 with weights that their scale was put on.
//!
//! ```text
//! score = sum over blocks of dq * dk * (sum of q * k)          // integers; a key's code is unsigned, less its zero point times the sum of q
//! acc += (p * dv) * v                                          // p * dv once for a position and 32 elements
//! ```
//!
//! While a block is worked on, the next one is prefetched, line by line: hardware prefetchers stop at the end of a page, which
//! a block of keys (4 KiB for heads of 64) is.
//!
//! A row's result does not depend on how many rows are worked on together. Long contexts are attended in parts
//! ([`crate::AttentionPart`]), which give maximum, sum and unscaled accumulator of each head; [`crate::AttentionCombine`]
//! makes the result of them.

use ixc_ir::kernel::{Affine, BufferId, BufferKind, DimId, Kernel, KernelBuilder, Op, Type, ValueId};
use ixc_ir::plan::{ATTENTION_BLOCK, KEY_LANES};

use crate::cache::{Blocks, Cache, Elements, Field};
use crate::generate::{GenerateError, MAX_POSITIONS, check};
use crate::math;
use crate::quantise::Scale;
use crate::reference::{Buffers, Mismatch};
use crate::text::Bits;
use crate::vectors::{for_rest, for_vectors};

const BLOCK: i64 = ATTENTION_BLOCK as i64;
const KEYS: i64 = KEY_LANES as i64;
/// Bytes that a prefetch brings.
const LINE: i64 = 64;
/// Score of positions after the row's own; below every real score.
const MASKED: f32 = -1.0e30;
/// Positions of the value loop, and elements of the score loop, that are unrolled.
const UNROLL: i64 = 4;
/// Masked blocks of an item at most: rows side by side end in two neighbouring blocks, or in one.
const MOST_MASKED: i64 = 2;
/// Rows worked on together at most, so that they end in two neighbouring blocks.
pub const MOST_ROWS: u32 = ATTENTION_BLOCK;

/// Queries that share a load, and accumulators of an inner loop, by the lanes of a vector: of 16 registers eight are accumulators,
/// of 32 (which targets with 16 lanes have) sixteen.
const fn tile(lanes: u16) -> (i64, i64) {
    if lanes >= 16 { (8, 16) } else { (4, 8) }
}

/// Accumulators of a loop that has as many sums beside them.
const fn half_tile(lanes: u16) -> i64 {
    tile(lanes).1 / 2
}

/// What a call leaves.
enum Outcome {
    /// The weighted mean of the values, for each row: a row of the result has so many bytes.
    Mean { y: BufferId, row_bytes: i64 },
    /// Of each query head the accumulator, the maximum, the sum.
    Part(BufferId),
}

/// Places in scratch memory, in bytes.
struct Scratch {
    buffer: BufferId,
    /// Scores, then weights: a block for each query.
    p: i64,
    /// Where positions are chosen: the word of a block for each query, and the bit of each position of a block.
    marks: i64,
    bits: i64,
    /// Queries times the factor on scores; for keys in blocks rounded, with [`ROUNDED`] bytes beside each block's codes.
    q: i64,
    /// Sums of weighted values: a value for each query.
    acc: i64,
    /// A vector of sums of weights for each query.
    sums: i64,
    /// For each query: maximum, factor that the new maximum puts on the past, and the row's position.
    stats: i64,
    /// Bytes of those.
    stats_bytes: i64,
    /// Weights times the scales of values in blocks: a block for each query of a tile and each panel that is worked on at once.
    scaled: i64,
}

/// Bytes that a rounded query's block has beside its codes: an f32 scale, and the sum of codes times the keys' zero point, negative.
const ROUNDED: i64 = 8;

/// Bytes of a query's, and places in them.
const STATS: i64 = 12;
const FACTOR: i64 = 4;
const OWN: i64 = 8;
/// Of a query with entries there is the last one that it sees, too.
const STATS_WITH_ENTRIES: i64 = 16;
const LAST_ENTRY: i64 = 12;

/// Keys and values that queries attend over, and which of them.
struct Places {
    keys: BufferId,
    values: BufferId,
    of_keys: Field,
    of_values: Field,
    /// The first block's number.
    first: Option<DimId>,
    /// Which positions a row sees, where not all.
    window: Option<Window>,
    /// Where of a query's stats the last place that it sees stands.
    last: i64,
}

/// Keys and values of places that several positions share.
struct Entries {
    places: Places,
    /// For each row how many are whole.
    whole: BufferId,
    /// Their blocks.
    blocks: DimId,
}

struct Attend {
    lanes: u16,
    group: i64,
    d: i64,
    dv: i64,
    scores: Scores,
    q: BufferId,
    q_row_bytes: i64,
    position: BufferId,
    places: Places,
    entries: Option<Entries>,
    /// A score of each head without a value.
    sinks: Option<BufferId>,
    outcome: Outcome,
    scratch: Scratch,
    /// Blocks that every row sees whole, and those after them.
    full: DimId,
    masked: DimId,
    /// Which positions a row sees, where not all: a word of bits for each block, and the bytes of a row of them.
    chosen: Option<(BufferId, i64)>,
}

/// Query heads that share a key head, and what they attend over.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// How many there are.
    pub group: u32,
    /// Elements of a query or key head.
    pub d: u32,
    /// Elements of a value head.
    pub dv: u32,
    /// Formats of keys and values.
    pub cache: Cache,
}

/// What scores are, besides products of queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct Scores {
    /// Factor on products.
    pub scale: Bits,
    /// What scores are bent to stay within.
    pub cap: Option<Bits>,
    /// Whether each head has one more, without a value.
    pub sinks: bool,
}

impl Scores {
    /// How they are called in a kernel's name.
    pub fn name(&self) -> String {
        let cap = self.cap.map_or(String::new(), |cap| format!("c{:x}", cap.0));
        format!("s{:x}{cap}{}", self.scale.0, if self.sinks { "_sinks" } else { "" })
    }

    /// The score of a product, in f64.
    pub fn of(&self, product: f64) -> f64 {
        self.bent(product * f64::from(self.scale.value()))
    }

    /// The score of a product with the factor on it.
    fn bent(&self, score: f64) -> f64 {
        self.cap.map_or(score, |cap| f64::from(cap.value()) * (score / f64::from(cap.value())).tanh())
    }
}

/// Which positions up to its own a row sees.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The last so many.
    pub positions: u32,
    /// Or those from the last multiple of as many on: then it is a power of two.
    pub chunked: bool,
}

impl Window {
    /// How it is called in a kernel's name.
    pub fn name(&self) -> String {
        format!("{}{}", if self.chunked { "chunk" } else { "window" }, self.positions)
    }

    /// The first position that the row at one sees.
    pub fn first(&self, position: u64) -> u64 {
        let positions = u64::from(self.positions.max(1));
        if self.chunked { position / positions * positions } else { (position + 1).saturating_sub(positions) }
    }

    /// The same as kernel IR, for positions `own`; it may be below 0 where nothing before the first is left out.
    pub fn first_of(&self, b: &mut KernelBuilder, own: ValueId) -> ValueId {
        let (ty, positions) = (b.ty(own), i64::from(self.positions));
        if self.chunked {
            let multiples = b.splat_int(ty, -positions);
            return b.same(Op::And, &[own, multiples]);
        }
        let before = b.splat_int(ty, 1 - positions);
        b.iadd(own, before)
    }

    /// Checks that it is one.
    pub fn check(&self, name: &str) -> Result<(), GenerateError> {
        let Window { positions, chunked } = *self;
        let fits = (1..=MAX_POSITIONS).contains(&positions.into());
        check(name, "a window of positions", positions.into(), fits, format!("1 to {MAX_POSITIONS}"))?;
        let ok = !chunked || (positions.is_power_of_two() && positions >= ATTENTION_BLOCK);
        check(name, "a chunk of positions", positions.into(), ok, format!("a power of two, at least {ATTENTION_BLOCK}"))
    }
}

/// Checks that a cap is one.
pub fn check_cap(name: &str, cap: Option<Bits>) -> Result<(), GenerateError> {
    let Some(cap) = cap else { return Ok(()) };
    let expected = "those of a number above 0 whose inverse is one";
    check(name, "cap (its bits)", cap.0.into(), math::is_cap(cap.value()), expected)
}

/// Attention of a key head of several in a row, for some rows together, or a part of it, which begins at a block of its own; with a `window` a
/// row sees so many positions, and blocks begin where the first row's do.
pub fn kernel(
    name: String,
    lanes: u16,
    sizes: Heads,
    scores: &Scores,
    [heads, rows]: [u32; 2],
    part: bool,
    window: Option<Window>,
) -> Result<Kernel, GenerateError> {
    generated(name, lanes, sizes, scores, [heads, rows], part, Seen { window, ..Seen::ALL })
}

/// Attention of one row over a window and over entries, places that several positions share and that are whole.
pub fn kernel_with_entries(
    name: String,
    lanes: u16,
    sizes: Heads,
    scores: &Scores,
    window: u32,
) -> Result<Kernel, GenerateError> {
    let window = Some(Window { positions: window, chunked: false });
    generated(name, lanes, sizes, scores, [1, 1], false, Seen { window, entries: true, ..Seen::ALL })
}

/// Attention over chosen positions: rows have so many words of bits, one for each block.
pub fn chosen_kernel(
    name: String,
    lanes: u16,
    sizes: Heads,
    scale: Bits,
    rows: [u32; 2],
    part: bool,
    words: u32,
) -> Result<Kernel, GenerateError> {
    let scores = Scores { scale, cap: None, sinks: false };
    generated(name, lanes, sizes, &scores, rows, part, Seen { words: Some(words), ..Seen::ALL })
}

/// What a row sees of the positions up to its own, where not all, and besides.
struct Seen {
    window: Option<Window>,
    entries: bool,
    words: Option<u32>,
}

impl Seen {
    /// All of them, and nothing besides.
    const ALL: Seen = Seen { window: None, entries: false, words: None };
}

fn generated(
    name: String,
    lanes: u16,
    sizes: Heads,
    scores: &Scores,
    [heads, rows]: [u32; 2],
    part: bool,
    Seen { window, entries, words }: Seen,
) -> Result<Kernel, GenerateError> {
    let what = ["query heads", "elements of a key head", "elements of a value head"];
    check_cap(&name, scores.cap)?;
    let Heads { group, d, dv, cache } = sizes;
    what.into_iter().zip([group, d, dv]).try_for_each(|(what, n)| check(&name, what, n.into(), n > 0, "at least 1"))?;
    cache.check(&name, d, dv)?;
    let (of_keys, of_values) = (cache.keys(d), cache.values(dv));
    let [group, d, dv] = [group, d, dv].map(i64::from);
    let (heads, rows) = (i64::from(heads), i64::from(rows));
    let mut b = KernelBuilder::new(name);
    let (full, masked) = (b.dim("full", 0, MAX_POSITIONS / BLOCK), b.dim("masked", 0, MOST_MASKED));
    let first = (part || window.is_some()).then(|| b.dim("first", 0, MAX_POSITIONS / BLOCK));
    let several = (rows > 1).then(|| (b.dim("groups", 0, 1), b.dim("rest", 0, rows - 1)));
    let blocks = entries.then(|| b.dim("entries", 0, MAX_POSITIONS / BLOCK));
    // Whole rows but for what stands before and after this head in the first and last.
    let extent = |elements: i64| -> Affine {
        match several {
            None => Affine::constant(elements * 4),
            Some((groups, rest)) => {
                groups * (rows * heads * elements * 4)
                    + rest * (heads * elements * 4)
                    + (elements - heads * elements) * 4
            }
        }
    };
    let q = b.read("q", extent(group * d));
    let position = match several {
        None => b.read("position", 4),
        Some((groups, rest)) => b.read("position", groups * (rows * 4) + rest * 4),
    };
    let held = |field: Field| full * field.block_bytes() + masked * field.block_bytes();
    let (keys, values) = (b.read("keys", held(of_keys)), b.read("values", held(of_values)));
    let places = Places { keys, values, of_keys, of_values, first, window, last: OWN };
    let entries = blocks.map(|blocks| {
        let whole = b.read("whole", 4);
        let [keys, values] = [("entry_keys", of_keys), ("entry_values", of_values)]
            .map(|(name, of)| b.read(name, blocks * of.block_bytes()));
        let places = Places { keys, values, of_keys, of_values, first: None, window: None, last: LAST_ENTRY };
        Entries { places, whole, blocks }
    });
    let sinks = scores.sinks.then(|| b.read("sinks", group * 4));
    let chosen = words.map(|words| {
        let row = i64::from(words) * 4;
        let before = first.map_or(Affine::constant(0), |first| first * 4);
        let rows = several.map_or(Affine::constant(0), |(groups, rest)| groups * (rows * row) + rest * row + -row);
        (b.read("chosen", before + full * 4 + masked * 4 + rows), row)
    });
    let outcome = match part {
        true => Outcome::Part(b.write("part", group * (dv + 2) * 4)),
        false => Outcome::Mean { y: b.write("y", extent(group * dv)), row_bytes: heads * group * dv * 4 },
    };
    let stats = if entries.is_some() { STATS_WITH_ENTRIES } else { STATS };
    let scratch = scratch(&mut b, lanes, group * rows, [of_keys, of_values], stats, chosen.is_some());
    let q_row_bytes = heads * group * d * 4;
    let attend = Attend {
        lanes,
        group,
        d,
        dv,
        scores: *scores,
        q,
        q_row_bytes,
        position,
        places,
        entries,
        sinks,
        outcome,
        scratch,
        full,
        masked,
        chosen,
    };
    attend.bits(&mut b);
    match several {
        None => attend.rows(&mut b, 1, Affine::constant(0)),
        Some((groups, rest)) => {
            b.for_each("g", groups, |b, i| attend.rows(b, rows, i * rows));
            b.for_each("r", rest, |b, i| attend.rows(b, 1, groups * rows + i));
        }
    }
    Ok(b.finish())
}

fn scratch(
    b: &mut KernelBuilder,
    lanes: u16,
    queries: i64,
    [keys, values]: [Field; 2],
    stats_bytes: i64,
    chosen: bool,
) -> Scratch {
    let mut end = 0;
    let mut place = |bytes: i64| {
        let at = end;
        // Vectors do not cross lines.
        end = (end + bytes + LINE - 1) / LINE * LINE;
        at
    };
    let (p, q) = (place(queries * BLOCK * 4), place(queries * query_bytes(&keys)));
    let acc = place(queries * values.width * 4);
    let (sums, stats) = (place(queries * i64::from(lanes) * 4), place(queries * stats_bytes));
    let marks = place(queries * i64::from(chosen) * 4);
    let scaled = place(values.codes().map_or(0, |blocks| most_panels(&blocks, lanes) * BLOCK * 4));
    let bits = end;
    if chosen {
        end += BLOCK * 4;
    }
    let buffer = b.buffer("scratch", BufferKind::Scratch, end);
    Scratch { buffer, p, marks, bits, q, acc, sums, stats, stats_bytes, scaled }
}

/// Bytes of a query in scratch memory.
fn query_bytes(keys: &Field) -> i64 {
    keys.codes().map_or(keys.width * 4, |blocks| blocks.count * (blocks.len() + ROUNDED))
}

/// Panels of all queries of a tile together, at most.
fn most_panels(blocks: &Blocks, lanes: u16) -> i64 {
    let (queries, accumulators) = tile(lanes);
    (accumulators * i64::from(lanes) / blocks.len()).max(queries)
}

/// Queries in tiles of one size: the first query, the size, and how many tiles.
type Tiles = Vec<(i64, i64, i64)>;

/// `queries` in tiles of at most `most`, which differ by one at most.
fn tiles(queries: i64, most: i64) -> Tiles {
    let count = (queries + most - 1) / most;
    let (small, larger) = (queries / count, queries % count);
    [(0, small + 1, larger), (larger * (small + 1), small, count - larger)]
        .into_iter()
        .filter(|tiles| tiles.2 > 0)
        .collect()
}

/// Makes one of several values.
type Make<'a> = (i64, &'a dyn Fn(&mut KernelBuilder, i64) -> ValueId);

/// Adds `scalar(i) * vector(j)` to `sums[i][j]`. Those that are fewer are in registers together, the others one by one.
fn outer_product(b: &mut KernelBuilder, sums: &mut [ValueId], (rows, scalar): Make<'_>, (columns, vector): Make<'_>) {
    let mut add = |b: &mut KernelBuilder, i: usize, j: usize, scalar, vector| {
        let sum = &mut sums[i * columns as usize + j];
        *sum = b.fma(vector, scalar, *sum);
    };
    if columns <= rows {
        let vectors: Vec<ValueId> = (0..columns).map(|j| vector(b, j)).collect();
        for i in 0..rows {
            let scalar = scalar(b, i);
            vectors.iter().enumerate().for_each(|(j, &vector)| add(b, i as usize, j, scalar, vector));
        }
    } else {
        let scalars: Vec<ValueId> = (0..rows).map(|i| scalar(b, i)).collect();
        for j in 0..columns {
            let vector = vector(b, j);
            scalars.iter().enumerate().for_each(|(i, &scalar)| add(b, i, j as usize, scalar, vector));
        }
    }
}

impl Attend {
    /// `rows` rows from `row` of the item's on.
    fn rows(&self, b: &mut KernelBuilder, rows: i64, row: Affine) {
        self.begin(b, rows, &row);
        let queries = rows * self.group;
        // What a window or a choice leaves out may lie in any of them.
        let begins = self.places.window.is_some() || self.chosen.is_some();
        b.for_each("block", self.full, |b, block| {
            self.marks(b, (rows, &row), &block.into());
            self.block(b, &self.places, queries, block.into(), begins);
        });
        b.for_each("block", self.masked, |b, block| {
            let block = Affine::from(block) + self.full;
            self.marks(b, (rows, &row), &block);
            self.block(b, &self.places, queries, block, true);
        });
        if let Some(entries) = &self.entries {
            b.for_each("block", entries.blocks, |b, block| {
                self.block(b, &entries.places, queries, block.into(), true);
            });
        }
        match self.outcome {
            Outcome::Mean { y, row_bytes } => self.mean(b, rows, y, row * row_bytes, row_bytes),
            Outcome::Part(part) => self.part(b, part),
        }
    }

    /// Runs `body` for every row and head, with the number of the query.
    fn queries(&self, b: &mut KernelBuilder, rows: i64, body: impl FnOnce(&mut KernelBuilder, Affine, Affine, Affine)) {
        b.for_each("i", rows, |b, r| {
            b.for_each("h", self.group, |b, h| body(b, r.into(), h.into(), r * self.group + h));
        });
    }

    /// Queries times the factor on scores, and nothing attended yet.
    fn begin(&self, b: &mut KernelBuilder, rows: i64, row: &Affine) {
        let s = &self.scratch;
        self.queries(b, rows, |b, r, h, query| {
            let from = (row.clone() + r.clone()) * self.q_row_bytes + h.clone() * (self.d * 4);
            let scaled = |b: &mut KernelBuilder, at: Affine, lanes: u16| {
                let x = b.load(Type::f32(lanes), self.q, from.clone() + at * 4);
                let scale = b.splat_f32(lanes, self.scores.scale.value());
                b.mul(x, scale)
            };
            let to = query.clone() * query_bytes(&self.places.of_keys) + s.q;
            match self.places.of_keys.codes() {
                Some(blocks) => self.round(b, &blocks, &to, &scaled),
                None => for_vectors(b, self.lanes, self.d as u32, |b, at, lanes| {
                    let x = scaled(b, at.clone(), lanes);
                    b.store(s.buffer, query.clone() * (self.d * 4) + at * 4 + s.q, x);
                }),
            }
            for_vectors(b, self.lanes, self.dv as u32, |b, at, lanes| {
                let zeros = b.splat_f32(lanes, 0.0);
                b.store(s.buffer, query.clone() * (self.dv * 4) + at * 4 + s.acc, zeros);
            });
            let zeros = b.splat_f32(self.lanes, 0.0);
            b.store(s.buffer, query.clone() * (i64::from(self.lanes) * 4) + s.sums, zeros);
            let lowest = b.splat_f32(1, MASKED);
            let top = match self.sinks {
                None => lowest,
                Some(sinks) => {
                    let sink = b.load(Type::f32(1), sinks, h.clone() * 4);
                    // A number, whatever the file says: then every score is compared with it as with another.
                    let sink = b.same(Op::Max, &[sink, lowest]);
                    let (top, sum) = self.sink(b, sink, lowest);
                    b.store(s.buffer, query.clone() * (i64::from(self.lanes) * 4) + s.sums, sum);
                    top
                }
            };
            b.store(s.buffer, query.clone() * s.stats_bytes + s.stats, top);
            let own = b.load(Type::i32(1), self.position, (row.clone() + r.clone()) * 4);
            b.store(s.buffer, query.clone() * s.stats_bytes + (s.stats + OWN), own);
            if let Some(entries) = &self.entries {
                let whole = b.load(Type::i32(1), entries.whole, (row.clone() + r) * 4);
                let one = b.splat_int(Type::i32(1), 1);
                let last = b.same(Op::ISub, &[whole, one]);
                b.store(s.buffer, query * s.stats_bytes + (s.stats + LAST_ENTRY), last);
            }
        });
    }

    /// Rounds a query to bytes, for keys in blocks.
    fn round(&self, b: &mut KernelBuilder, blocks: &Blocks, to: &Affine, query: Elements<'_>) {
        let lanes = self.lanes.min(blocks.len() as u16);
        let (width, buffer) = (i64::from(lanes), self.scratch.buffer);
        b.for_each("block", blocks.count, |b, block| {
            let to = to.clone() + block * (blocks.len() + ROUNDED);
            let vectors = 0..blocks.len() / width;
            let x: Vec<ValueId> = vectors.map(|i| query(b, block * blocks.len() + i * width, lanes)).collect();
            let magnitudes: Vec<ValueId> = x.iter().map(|x| math::abs(b, *x)).collect();
            let most = magnitudes[1..].iter().fold(magnitudes[0], |most, x| b.same(Op::Max, &[most, *x]));
            let most = b.op(Op::ReduceMax, Type::f32(1), &[most]);
            let Scale { d, inverse } = Scale::of(b, most);
            let inverse = b.broadcast(lanes, inverse);
            let mut sum = None;
            for (i, x) in x.into_iter().enumerate() {
                let x = b.mul(x, inverse);
                let codes = b.op(Op::ToI32, Type::i32(lanes), &[x]);
                let narrow = b.op(Op::NarrowS, Type::i8(lanes), &[codes]);
                b.store(buffer, to.clone() + i as i64 * width, narrow);
                sum = Some(sum.map_or(codes, |sum| b.iadd(sum, codes)));
            }
            let Some(sum) = sum else { return };
            let sum = b.op(Op::ReduceAdd, Type::i32(1), &[sum]);
            let zero = b.splat_int(Type::i32(1), -blocks.zero());
            let less = b.same(Op::IMul, &[sum, zero]);
            b.store(buffer, to.clone() + blocks.len(), d);
            b.store(buffer, to + (blocks.len() + 4), less);
        });
    }

    /// The bit of each position of a block in its word.
    fn bits(&self, b: &mut KernelBuilder) {
        let width = i64::from(self.lanes);
        for v in 0..if self.chosen.is_some() { BLOCK / width } else { 0 } {
            let bits = crate::index_top_k::bits(b, self.lanes, v * width);
            b.store(self.scratch.buffer, Affine::constant(self.scratch.bits + v * width * 4), bits);
        }
    }

    /// Each query's word of a block, where positions are chosen.
    fn marks(&self, b: &mut KernelBuilder, (rows, row): (i64, &Affine), block: &Affine) {
        let Some((chosen, row_bytes)) = self.chosen else { return };
        let block = self.places.first.map_or(block.clone(), |first| block.clone() + first);
        self.queries(b, rows, |b, r, _, query| {
            let word = b.load(Type::i32(1), chosen, (row.clone() + r) * row_bytes + block * 4);
            b.store(self.scratch.buffer, query * 4 + self.scratch.marks, word);
        });
    }

    /// The first maximum and the first sum of weights of a head with a sink. Of parts of the positions the first has it.
    fn sink(&self, b: &mut KernelBuilder, sink: ValueId, lowest: ValueId) -> (ValueId, ValueId) {
        let one = b.splat_f32(1, 1.0);
        let (Outcome::Part(_), Some(first)) = (&self.outcome, self.places.first) else { return (sink, one) };
        let (number, zero) = (b.index(first), b.splat_int(Type::i32(1), 0));
        let later = b.same(Op::CmpGt, &[number, zero]);
        let nothing = b.splat_f32(1, 0.0);
        let top = b.op(Op::Select, Type::f32(1), &[later, lowest, sink]);
        (top, b.op(Op::Select, Type::f32(1), &[later, nothing, one]))
    }

    fn block(&self, b: &mut KernelBuilder, places: &Places, queries: i64, block: Affine, masked: bool) {
        let most = tile(self.lanes).0;
        // The first tile brings the next block.
        let each = |b: &mut KernelBuilder, body: &dyn Fn(&mut KernelBuilder, Affine, i64, bool)| {
            for (i, (first, size, count)) in tiles(queries, most).into_iter().enumerate() {
                let (first, count) = if i == 0 {
                    body(b, Affine::constant(first), size, true);
                    (first + size, count - 1)
                } else {
                    (first, count)
                };
                if count > 0 {
                    b.for_each("tile", count, |b, t| body(b, t * size + first, size, false));
                }
            }
        };
        each(b, &|b, first, size, prefetch| self.scores(b, places, &block, (&first, size), masked, prefetch));
        b.for_each("query", queries, |b, query| self.weights(b, query.into(), masked));
        each(b, &|b, first, size, prefetch| self.weigh(b, places, &block, (&first, size), prefetch));
    }

    /// Scores of `size` queries from `first` on.
    fn scores(
        &self,
        b: &mut KernelBuilder,
        places: &Places,
        block: &Affine,
        (first, size): (&Affine, i64),
        masked: bool,
        prefetch: bool,
    ) {
        if let Some(blocks) = places.of_keys.codes() {
            return self.scores_of_bytes(b, &blocks, (places, block), (first, size), (masked, prefetch));
        }
        let (lanes, width, s) = (self.lanes, i64::from(self.lanes), &self.scratch);
        // Vectors of positions: at least those that lie side by side, at most a block.
        let least = (KEYS / width).max(1);
        let mut vectors = BLOCK / width;
        while vectors > least && vectors * size > tile(lanes).1 {
            vectors /= 2;
        }
        let unroll = [UNROLL, 2, 1].into_iter().find(|u| self.d % u == 0).unwrap_or(1);
        let block_bytes = BLOCK * self.d * 2;
        b.for_each("part", BLOCK / width / vectors, |b, part| {
            let zero = b.splat_f32(lanes, 0.0);
            let init = vec![zero; (size * vectors) as usize];
            let at = block.clone() * block_bytes + part * (vectors * width * self.d * 2);
            let sums = b.for_carry("e", self.d / unroll, &init, |b, e, sums| {
                let mut sums = sums.to_vec();
                let at = at.clone() + e * (unroll * KEYS * 2);
                if prefetch {
                    for strip in 0..vectors * width / KEYS {
                        for line in 0..(unroll * KEYS * 2 / LINE).max(1) {
                            b.prefetch(
                                places.keys,
                                at.clone() + (block_bytes + strip * KEYS * self.d * 2 + line * LINE),
                            );
                        }
                    }
                }
                for u in 0..unroll {
                    let query = |b: &mut KernelBuilder, query: i64| {
                        let at = (first.clone() + query) * (self.d * 4) + e * (unroll * 4) + (u * 4 + s.q);
                        self.splat(b, at, lanes)
                    };
                    let key = |b: &mut KernelBuilder, v: i64| {
                        let (strip, lane) = (v * width / KEYS, v * width % KEYS);
                        let at = at.clone() + (strip * KEYS * self.d * 2 + u * KEYS * 2 + lane * 2);
                        let k = b.load(Type::f16(lanes), places.keys, at);
                        b.op(Op::F16ToF32, Type::f32(lanes), &[k])
                    };
                    outer_product(b, &mut sums, (size, &query), (vectors, &key));
                }
                sums
            });
            self.put(b, (places, block), &(part * (vectors * width)), (first, size), &sums, masked);
        });
    }

    /// Stores scores of `size` queries, which are in vectors of positions from `at` of the block on.
    fn put(
        &self,
        b: &mut KernelBuilder,
        (places, block): (&Places, &Affine),
        at: &Affine,
        (first, size): (&Affine, i64),
        scores: &[ValueId],
        masked: bool,
    ) {
        let (lanes, width, s) = (self.lanes, i64::from(self.lanes), &self.scratch);
        let vectors = scores.len() as i64 / size;
        let lowest = b.splat_f32(lanes, MASKED);
        let iota = b.op(Op::Iota, Type::i32(lanes), &[]);
        for v in 0..vectors {
            let position = masked.then(|| {
                let start = places.first.map_or(block.clone(), |first| block.clone() + first);
                let p = b.index(start * BLOCK + at.clone() + v * width);
                let p = b.broadcast(lanes, p);
                b.iadd(p, iota)
            });
            for query in 0..size {
                let query_at = first.clone() + query;
                let mut score = scores[(query * vectors + v) as usize];
                if let Some(cap) = self.scores.cap {
                    score = math::softcap(b, score, cap.value());
                }
                if let Some(position) = position {
                    let own = b.load_splat(
                        Type::i32(lanes),
                        s.buffer,
                        query_at.clone() * s.stats_bytes + (s.stats + places.last),
                    );
                    let after = b.same(Op::CmpGt, &[position, own]);
                    score = b.op(Op::Select, Type::f32(lanes), &[after, lowest, score]);
                    if let Some(window) = places.window {
                        let before = match window.chunked {
                            true => {
                                let first = window.first_of(b, own);
                                b.same(Op::CmpGt, &[first, position])
                            }
                            false => {
                                let window = b.splat_int(Type::i32(lanes), i64::from(window.positions) - 1);
                                let end = b.iadd(position, window);
                                b.same(Op::CmpGt, &[own, end])
                            }
                        };
                        score = b.op(Op::Select, Type::f32(lanes), &[before, lowest, score]);
                    }
                    if self.chosen.is_some() {
                        let at = at.clone() * 4 + (v * width * 4 + s.bits);
                        let bit = b.load(Type::i32(lanes), s.buffer, at);
                        let word = b.load_splat(Type::i32(lanes), s.buffer, query_at.clone() * 4 + s.marks);
                        let (own, none) = (b.same(Op::And, &[word, bit]), b.splat_int(Type::i32(lanes), 0));
                        let unseen = b.same(Op::CmpEq, &[own, none]);
                        score = b.op(Op::Select, Type::f32(lanes), &[unseen, lowest, score]);
                    }
                }
                b.store(s.buffer, query_at * (BLOCK * 4) + at.clone() * 4 + (v * width * 4 + s.p), score);
            }
        }
    }

    /// As [`Attend::scores`], of keys in blocks: sums of products of bytes, block by block of the head.
    fn scores_of_bytes(
        &self,
        b: &mut KernelBuilder,
        blocks: &Blocks,
        (places, block): (&Places, &Affine),
        (first, size): (&Affine, i64),
        (masked, prefetch): (bool, bool),
    ) {
        let (lanes, width, s) = (self.lanes, i64::from(self.lanes), &self.scratch);
        let (f32s, i32s, i8s) = (Type::f32(lanes), Type::i32(lanes), Type::i8(4 * lanes));
        let most = half_tile(lanes);
        // Strips, or vectors of one.
        let strips = if width >= KEYS && BLOCK / KEYS * size <= most { BLOCK / KEYS } else { 1 };
        let of_strip = KEYS / width;
        let vectors = (1..=of_strip).rev().find(|v| of_strip % v == 0 && v * size <= most).unwrap_or(1);
        let strip_bytes = places.of_keys.strip_bytes();
        b.for_each("strip", BLOCK / KEYS / strips, |b, strip| {
            let at = block.clone() * places.of_keys.block_bytes() + strip * (strips * strip_bytes);
            for part in 0..of_strip / vectors {
                let vectors_at: Vec<(i64, i64)> = (0..strips)
                    .flat_map(|strip| (0..vectors).map(move |v| (strip * strip_bytes, (part * vectors + v) * width)))
                    .collect();
                let zero = b.splat_f32(lanes, 0.0);
                let init = vec![zero; size as usize * vectors_at.len()];
                let sums = b.for_carry("e", blocks.count, &init, |b, e, sums| {
                    let panel = at.clone() + e * blocks.panel();
                    if prefetch && part == 0 {
                        for strip in 0..strips {
                            for line in 0..(blocks.panel() + LINE - 1) / LINE {
                                let ahead = places.of_keys.block_bytes() + strip * strip_bytes + line * LINE;
                                b.prefetch(places.keys, panel.clone() + ahead);
                            }
                        }
                    }
                    let query = |query: i64, byte: i64| {
                        (first.clone() + query) * query_bytes(&places.of_keys)
                            + e * (blocks.len() + ROUNDED)
                            + (s.q + byte)
                    };
                    let mut ints = Vec::with_capacity(sums.len());
                    for q in 0..size {
                        let less = b.load_splat(i32s, s.buffer, query(q, blocks.len() + 4));
                        ints.extend(vectors_at.iter().map(|_| less));
                    }
                    for dword in 0..blocks.dwords() {
                        let keys: Vec<ValueId> = vectors_at
                            .iter()
                            .map(|(strip, lane)| {
                                let at = panel.clone() + (strip + blocks.dword(dword) + lane * 4);
                                b.load(i32s, places.keys, at)
                            })
                            .collect();
                        for part in 0..blocks.shared() {
                            let codes: Vec<ValueId> = keys
                                .iter()
                                .map(|key| {
                                    let codes = blocks.codes(b, *key, part);
                                    b.bitcast(i8s, codes)
                                })
                                .collect();
                            for q in 0..size {
                                let x = b.load_splat(i32s, s.buffer, query(q, blocks.element(dword, part)));
                                let x = b.bitcast(i8s, x);
                                for (v, codes) in codes.iter().enumerate() {
                                    let sum = &mut ints[q as usize * vectors_at.len() + v];
                                    *sum = b.dot4_u8s8(*sum, *codes, x);
                                }
                            }
                        }
                    }
                    let scales: Vec<ValueId> = vectors_at
                        .iter()
                        .map(|(strip, lane)| blocks.scales(b, lanes, places.keys, panel.clone() + *strip, *lane))
                        .collect();
                    let mut next = Vec::with_capacity(sums.len());
                    for q in 0..size {
                        let d = b.load_splat(f32s, s.buffer, query(q, blocks.len()));
                        for (v, scale) in scales.iter().enumerate() {
                            let i = q as usize * vectors_at.len() + v;
                            let sum = b.op(Op::ToF32, f32s, &[ints[i]]);
                            let sum = b.mul(sum, *scale);
                            next.push(b.fma(sum, d, sums[i]));
                        }
                    }
                    next
                });
                let position = strip * (strips * KEYS) + part * (vectors * width);
                self.put(b, (places, block), &position, (first, size), &sums, masked);
            }
        });
    }

    fn splat(&self, b: &mut KernelBuilder, at: Affine, lanes: u16) -> ValueId {
        match lanes {
            1 => b.load(Type::f32(1), self.scratch.buffer, at),
            _ => b.load_splat(Type::f32(lanes), self.scratch.buffer, at),
        }
    }

    /// Maximum and weights of a query.
    fn weights(&self, b: &mut KernelBuilder, query: Affine, masked: bool) {
        let (lanes, width, s) = (self.lanes, i64::from(self.lanes), &self.scratch);
        let row = query.clone() * (BLOCK * 4) + s.p;
        let stats = query.clone() * s.stats_bytes + s.stats;
        let scores: Vec<ValueId> =
            (0..BLOCK / width).map(|i| b.load(Type::f32(lanes), s.buffer, row.clone() + i * width * 4)).collect();
        let max = scores[1..].iter().fold(scores[0], |m, s| b.same(Op::Max, &[m, *s]));
        let max = b.op(Op::ReduceMax, Type::f32(1), &[max]);
        let old = b.load(Type::f32(1), s.buffer, stats.clone());
        let max = b.same(Op::Max, &[max, old]);
        let fall = b.sub(old, max);
        let factor = math::exp_of_negative(b, fall);
        b.store(s.buffer, stats.clone(), max);
        b.store(s.buffer, stats + FACTOR, factor);
        let (max, factor) = (b.broadcast(lanes, max), b.broadcast(lanes, factor));
        let sums_at = query * (width * 4) + s.sums;
        let past = b.load(Type::f32(lanes), s.buffer, sums_at.clone());
        let mut sums = b.mul(past, factor);
        for (i, score) in scores.iter().enumerate() {
            let x = b.sub(*score, max);
            let mut weight = math::exp_of_negative(b, x);
            if masked {
                let (none, lowest) = (b.splat_f32(lanes, 0.0), b.splat_f32(lanes, MASKED));
                let seen = b.op(Op::CmpLtF, Type::i32(lanes), &[lowest, *score]);
                weight = b.op(Op::Select, Type::f32(lanes), &[seen, weight, none]);
            }
            b.store(s.buffer, row.clone() + i as i64 * width * 4, weight);
            sums = b.add(sums, weight);
        }
        b.store(s.buffer, sums_at, sums);
    }

    /// Adds the block's weighted values for `size` queries from `first` on.
    fn weigh(
        &self,
        b: &mut KernelBuilder,
        places: &Places,
        block: &Affine,
        (first, size): (&Affine, i64),
        prefetch: bool,
    ) {
        if let Some(blocks) = places.of_values.codes() {
            return self.weigh_integers(b, &blocks, (places, block), (first, size), prefetch);
        }
        let width = i64::from(self.lanes);
        let most = (tile(self.lanes).1 / size).max(1);
        let vectors = (1..=most).rev().find(|v| (self.dv / width) % v == 0).unwrap_or(1);
        if self.dv >= width {
            let parts = self.dv / width / vectors;
            // Parts share the lines of the next block.
            let lines = if prefetch { BLOCK * self.dv * 2 / parts / LINE } else { 0 };
            b.for_each("v", parts, |b, part| {
                let ahead = block.clone() * (BLOCK * self.dv * 2) + part * (lines * LINE) + BLOCK * self.dv * 2;
                self.weigh_columns(
                    b,
                    (places, block),
                    (first, size),
                    (part * (vectors * width), vectors, self.lanes),
                    (ahead, lines),
                );
            });
        }
        for_rest(b, self.lanes, self.dv as u32, &mut |b, at, lanes| {
            self.weigh_columns(b, (places, block), (first, size), (at, 1, lanes), (Affine::constant(0), 0));
        });
    }

    /// `vectors` vectors of `lanes` elements of the values, from the element `at` on.
    fn weigh_columns(
        &self,
        b: &mut KernelBuilder,
        (places, block): (&Places, &Affine),
        (first, size): (&Affine, i64),
        (at, vectors, lanes): (Affine, i64, u16),
        (ahead, lines): (Affine, i64),
    ) {
        let (width, s) = (i64::from(lanes), &self.scratch);
        let acc_at =
            |query: i64, v: i64| (first.clone() + query) * (self.dv * 4) + at.clone() * 4 + (v * width * 4 + s.acc);
        let mut init = Vec::new();
        for query in 0..size {
            let factor = self.splat(b, (first.clone() + query) * s.stats_bytes + (s.stats + FACTOR), lanes);
            for v in 0..vectors {
                let sum = b.load(Type::f32(lanes), s.buffer, acc_at(query, v));
                init.push(b.mul(sum, factor));
            }
        }
        let sums = b.for_carry("j", BLOCK / UNROLL, &init, |b, j, sums| {
            let mut sums = sums.to_vec();
            let per_trip = lines * UNROLL / BLOCK;
            for line in 0..per_trip {
                b.prefetch(places.values, ahead.clone() + j * (per_trip * LINE) + line * LINE);
            }
            for u in 0..UNROLL {
                let row = block.clone() * (BLOCK * self.dv * 2) + j * (UNROLL * self.dv * 2) + at.clone() * 2;
                let weight = |b: &mut KernelBuilder, query: i64| {
                    let at = (first.clone() + query) * (BLOCK * 4) + j * (UNROLL * 4) + (u * 4 + s.p);
                    self.splat(b, at, lanes)
                };
                let value = |b: &mut KernelBuilder, v: i64| {
                    let at = row.clone() + (u * self.dv * 2 + v * width * 2);
                    let value = b.load(Type::f16(lanes), places.values, at);
                    b.op(Op::F16ToF32, Type::f32(lanes), &[value])
                };
                outer_product(b, &mut sums, (size, &weight), (vectors, &value));
            }
            sums
        });
        for (i, sum) in sums.iter().enumerate() {
            b.store(s.buffer, acc_at(i as i64 / vectors, i as i64 % vectors), *sum);
        }
    }

    /// As [`Attend::weigh`], of values in blocks: some panels at once, or a part of one.
    fn weigh_integers(
        &self,
        b: &mut KernelBuilder,
        blocks: &Blocks,
        (places, block): (&Places, &Affine),
        (first, size): (&Affine, i64),
        prefetch: bool,
    ) {
        let lanes = self.lanes.min(blocks.len() as u16 / blocks.shared() as u16);
        let (width, s) = (i64::from(lanes), &self.scratch);
        let (most, of_panel) = ((tile(lanes).1 / size).max(1), blocks.len() / width);
        let panels = (1..=(most / of_panel).max(1)).rev().find(|n| blocks.count % n == 0).unwrap_or(1);
        let vectors = (1..=of_panel).rev().find(|v| of_panel % v == 0 && v * panels <= most).unwrap_or(1);
        let strip_bytes = places.of_values.strip_bytes();
        let scaled = |query: i64, panel: i64| s.scaled + (query * panels + panel) * (BLOCK * 4);
        b.for_each("panel", blocks.count / panels, |b, group| {
            let at = block.clone() * places.of_values.block_bytes() + group * (panels * blocks.panel());
            for strip in 0..BLOCK / KEYS {
                let at = at.clone() + strip * strip_bytes;
                if prefetch {
                    for line in 0..(panels * blocks.panel() + LINE - 1) / LINE {
                        b.prefetch(places.values, at.clone() + (places.of_values.block_bytes() + line * LINE));
                    }
                }
                for panel in 0..panels {
                    for lane in (0..KEYS).step_by(width as usize) {
                        let scale = blocks.scales(b, lanes, places.values, at.clone() + panel * blocks.panel(), lane);
                        for query in 0..size {
                            let place = (strip * KEYS + lane) * 4;
                            let p = (first.clone() + query) * (BLOCK * 4) + (place + s.p);
                            let p = b.load(Type::f32(lanes), s.buffer, p);
                            let p = b.mul(p, scale);
                            b.store(s.buffer, Affine::constant(scaled(query, panel) + place), p);
                        }
                    }
                }
            }
            for part in 0..of_panel / vectors {
                let acc_at = |query: i64, panel: i64, v: i64| {
                    (first.clone() + query) * (self.dv * 4)
                        + group * (panels * blocks.len() * 4)
                        + (panel * blocks.len() * 4 + (part * vectors + v) * (width * 4) + s.acc)
                };
                let vectors_at: Vec<(i64, i64)> =
                    (0..panels).flat_map(|panel| (0..vectors).map(move |v| (panel, v))).collect();
                let mut init = Vec::new();
                for query in 0..size {
                    let factor = self.splat(b, (first.clone() + query) * s.stats_bytes + (s.stats + FACTOR), lanes);
                    for &(panel, v) in &vectors_at {
                        let sum = b.load(Type::f32(lanes), s.buffer, acc_at(query, panel, v));
                        init.push(b.mul(sum, factor));
                    }
                }
                let sums = b.for_carry("strip", BLOCK / KEYS, &init, |b, strip, sums| {
                    b.for_carry("j", KEYS / UNROLL, sums, |b, j, sums| {
                        let mut sums = sums.to_vec();
                        for u in 0..UNROLL {
                            for (i, &(panel, v)) in vectors_at.iter().enumerate() {
                                let codes = at.clone()
                                    + strip * strip_bytes
                                    + panel * blocks.panel()
                                    + blocks.position(j * UNROLL + u);
                                let element = (part * vectors + v) * width;
                                let value = blocks.value(b, lanes, places.values, codes, element);
                                for query in 0..size {
                                    let weight = strip * (KEYS * 4) + j * (UNROLL * 4) + (u * 4 + scaled(query, panel));
                                    let weight = self.splat(b, weight, lanes);
                                    let sum = &mut sums[query as usize * vectors_at.len() + i];
                                    *sum = b.fma(value, weight, *sum);
                                }
                            }
                        }
                        sums
                    })
                });
                for (i, sum) in sums.iter().enumerate() {
                    let (query, (panel, v)) = (i / vectors_at.len(), vectors_at[i % vectors_at.len()]);
                    b.store(s.buffer, acc_at(query as i64, panel, v), *sum);
                }
            }
        });
    }

    /// The sum of a query's weights.
    fn sum(&self, b: &mut KernelBuilder, query: &Affine) -> ValueId {
        let s = &self.scratch;
        let at = query.clone() * (i64::from(self.lanes) * 4) + s.sums;
        let sums = b.load(Type::f32(self.lanes), s.buffer, at);
        b.op(Op::ReduceAdd, Type::f32(1), &[sums])
    }

    fn mean(&self, b: &mut KernelBuilder, rows: i64, y: BufferId, from: Affine, row_bytes: i64) {
        let s = &self.scratch;
        self.queries(b, rows, |b, r, h, query| {
            let one = b.splat_f32(1, 1.0);
            let mut sum = self.sum(b, &query);
            if self.chosen.is_some() {
                // Of no positions the mean is 0. Of others the sum has a weight of 1.
                let one = b.splat_f32(1, 1.0);
                sum = b.same(Op::Max, &[sum, one]);
            }
            let inverse = b.same(Op::Div, &[one, sum]);
            for_vectors(b, self.lanes, self.dv as u32, |b, at, lanes| {
                let inverse = if lanes == 1 { inverse } else { b.broadcast(lanes, inverse) };
                let acc = query.clone() * (self.dv * 4) + at.clone() * 4 + s.acc;
                let acc = b.load(Type::f32(lanes), s.buffer, acc);
                let mean = b.mul(acc, inverse);
                let to = from.clone() + r.clone() * row_bytes + h.clone() * (self.dv * 4) + at * 4;
                b.store(y, to, mean);
            });
        });
    }

    fn part(&self, b: &mut KernelBuilder, part: BufferId) {
        let s = &self.scratch;
        let head = (self.dv + 2) * 4;
        b.for_each("h", self.group, |b, h| {
            for_vectors(b, self.lanes, self.dv as u32, |b, at, lanes| {
                let acc = b.load(Type::f32(lanes), s.buffer, h * (self.dv * 4) + at.clone() * 4 + s.acc);
                b.store(part, h * head + at * 4, acc);
            });
            let max = b.load(Type::f32(1), s.buffer, h * STATS + s.stats);
            b.store(part, h * head + self.dv * 4, max);
            let sum = self.sum(b, &h.into());
            b.store(part, h * head + (self.dv + 1) * 4, sum);
        });
    }
}

/// A query times the factor on scores, as it is multiplied with keys: in f32, rounded to bytes where those are in blocks.
fn multiplied(keys: &Field, q: &[f64], scale: f32) -> Vec<f64> {
    let q: Vec<f32> = q.iter().map(|&q| q as f32).collect();
    let Some(blocks) = keys.codes() else { return q.iter().map(|&q| f64::from(q) * f64::from(scale)).collect() };
    let rounded = q.chunks(blocks.len() as usize).flat_map(|block| {
        let block: Vec<f32> = block.iter().map(|q| q * scale).collect();
        let most = block.iter().fold(0f32, |most, x| most.max(x.abs()));
        let (d, inverse) = (most * (1.0 / 127.0), if most > 0.0 { 127.0 / most } else { 0.0 });
        block.into_iter().map(move |x| f64::from((x * inverse).round_ties_even()) * f64::from(d))
    });
    rounded.collect()
}

/// Maximum of the scores, and sums of weights and weighted values, of a query over the positions `from..=own`, where the buffers begin at
/// `first`: in f64. A sink takes part in the first two.
pub fn attended(
    input: &Buffers<'_>,
    q: &[f64],
    values: (usize, Cache),
    scores: &Scores,
    range: (usize, usize, usize),
    sink: Option<f64>,
) -> Result<(f64, f64, Vec<f64>), Mismatch> {
    attended_in(input, ["keys", "values"], q, values, scores, range, sink)
}

/// The same over keys and values of these names.
pub fn attended_in(
    input: &Buffers<'_>,
    [keys, values]: [&'static str; 2],
    q: &[f64],
    (dv, cache): (usize, Cache),
    scores: &Scores,
    (first, from, own): (usize, usize, usize),
    sink: Option<f64>,
) -> Result<(f64, f64, Vec<f64>), Mismatch> {
    let (of_keys, of_values) = (cache.keys(q.len() as u32), cache.values(dv as u32));
    let (d, q) = (q.len(), multiplied(&of_keys, q, scores.scale.value()));
    let (key, value) = (of_keys.reader(input, keys)?, of_values.reader(input, values)?);
    let positions = from - first..own + 1 - first;
    let score = |p: usize| scores.bent((0..d).map(|e| q[e] * key(p, e)).sum());
    let scores: Vec<f64> = positions.clone().map(score).collect();
    let begin = positions.start;
    let max = scores.iter().copied().fold(sink.unwrap_or(f64::MIN), f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    let acc = (0..dv).map(|e| positions.clone().map(|p| weights[p - begin] * value(p, e)).sum()).collect();
    Ok((max, sum, acc))
}
