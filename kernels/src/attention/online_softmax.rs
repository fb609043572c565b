//! Attention of the query heads that share a key head, over the KV cache. It uses the online
//! softmax of FlashAttention, in blocks of [`ATTENTION_BLOCK`] positions. Each block takes three
//! steps: scores, the running maximum with the sums of weights, and weighted values.
//!
//! Keys are stored as `[position / 16][d][position % 16]`. Each vector lane is a position, so the
//! scores of a block need no horizontal sum. Queries are the heads of one row, or of a few rows
//! together. Each load of a key, and its conversion from f16, then serves several queries. Eight
//! accumulators hide the latency of a fused multiply-add (4 cycles, two per cycle). Queries are
//! multiplied once by the factor on scores. For heads of 64 elements, the factor is a power of two,
//! so the product is exact. Scores, weights and accumulators are f32. The cache is f16 or a
//! quantised block format.
//!
//! ```text
//! for each block                // first blocks that all rows see whole, then blocks with a mask
//!   p[query][position] = q . k  // tiles of queries x positions, in registers over d
//!   for each query: maximum, p = e^(p - maximum), sums += p
//!   acc[query][dv] = acc * e^(old maximum - maximum) + p v
//!                               // tiles of queries x elements of a value, in registers
//! ```
//!
//! **Keys in a block format** ([`ixc_ir::cache`]) are multiplied as bytes. Like activations of
//! weight products, a query is rounded once, to bytes in -127..=127 with an f32 scale for each
//! block. The sum of products in a block is an integer, which is multiplied by the scales of query
//! and key. The rounding error is at most 1/254 of the largest magnitude of a query's block.
//! llama.cpp rounds queries in the same way. **Values in a block format** are integers. The
//! attention weights are multiplied by the values' scale, and then by the integers in f32.
//!
//! ```text
//! score = sum over blocks of dq * dk * (sum of q * k)
//!                      // integers; a key's code is unsigned, and its zero point times the sum of
//!                      // q is subtracted
//! acc += (p * dv) * v  // p * dv once for a position and 32 elements
//! ```
//!
//! While it works on a block, the kernel prefetches the next block, line by line. Hardware
//! prefetchers stop at the end of a page, and a block of keys has the size of a page (4 KiB for
//! heads of 64).
//!
//! **Slopes** (ALiBi): the scores of a head fall by its slope for each position of distance. The
//! kernel adds `slope * (position - own)`, one fused multiply-add with a difference that f32
//! represents exactly. Adding `slope * position` would give the same softmax, but that term grows
//! with the context. At position 100,000, a slope of 1/2 would round all scores to multiples of
//! 1/256. Near positions have the largest weights, and their differences are small and precise.
//!
//! A row's result does not depend on the number of rows that are computed together. Long contexts
//! are divided into parts ([`crate::AttentionPart`]). A part's result is the maximum score, the sum
//! of weights and the accumulator of each head. [`crate::AttentionCombine`] combines the parts.

mod reference;
mod scores;
mod weigh;

use ixc_ir::kernel::{Affine, BufferId, BufferKind, DimId, Kernel, KernelBuilder, Op, Type, ValueId};
use ixc_ir::plan::{ATTENTION_BLOCK, KEY_LANES};

use super::heads::{Heads, Operands, Scores, Window, check_cap};
use crate::generator::cache::{Blocks, Elements, Field};
use crate::generator::generate::{GenerateError, MAX_POSITIONS, check};
use crate::generator::math;
use crate::generator::quantise::Scale;
use crate::generator::vectors::for_vectors;
pub use reference::{AttentionSums, CacheBuffers, OfHead, attended, attended_in};

const BLOCK: i64 = ATTENTION_BLOCK as i64;
const KEYS: i64 = KEY_LANES as i64;
/// Number of bytes that one prefetch loads: a cache line.
const LINE: i64 = 64;
/// Score of positions after the row's position. It is below every real score.
const MASKED: f32 = -1.0e30;
/// Unrolling of two loops: over positions in the value loop, and over elements in the score loop.
const UNROLL: i64 = 4;
/// Maximum number of masked blocks of an item. The rows of an item end in one block, or in two
/// adjacent blocks.
const MAX_MASKED: i64 = 2;
/// Maximum number of rows that are computed together. They end in at most two adjacent blocks.
pub const MAX_ITEM_ROWS: u32 = ATTENTION_BLOCK;

/// Returns the number of queries that share a load, and the number of accumulators of an inner
/// loop, for a number of vector lanes. With 16 registers, eight are accumulators. Targets with 16
/// lanes have 32 registers, and use sixteen accumulators.
const fn tile(lanes: u16) -> (i64, i64) {
    if lanes >= 16 { (8, 16) } else { (4, 8) }
}

/// Returns the number of accumulators of a loop that keeps two sums for each of them.
const fn half_tile(lanes: u16) -> i64 {
    tile(lanes).1 / 2
}

/// Result of a call of the kernel.
enum Outcome {
    /// Weighted mean of the values, for each row. A row of the result has `row_bytes` bytes.
    Mean { y: BufferId, row_bytes: i64 },
    /// Accumulator, maximum and sum of each query head.
    Part(BufferId),
}

/// Offsets in scratch memory, in bytes. Each field names the data at its offset.
struct Scratch {
    buffer: BufferId,
    /// Scores, which are later replaced by weights: a block of positions for each query.
    p: i64,
    /// Queries times the factor on scores. If keys are in a block format, queries are rounded to
    /// codes, and each block has [`ROUNDED_QUERY_BYTES`] more bytes.
    q: i64,
    /// Sums of weighted values: one value vector for each query.
    acc: i64,
    /// A vector of sums of weights for each query.
    sums: i64,
    /// Statistics of each query: the maximum score, the factor that rescales earlier sums for a new
    /// maximum, and the row's position.
    stats: i64,
    /// Number of bytes of `stats` for each query.
    stats_bytes: i64,
    /// Weights times the scales of values in a block format. There is a block for each query of a
    /// tile and each panel of a loop iteration.
    scaled: i64,
}

/// Number of bytes that a rounded query's block has in addition to its codes: an f32 scale, and the
/// negative sum of codes times the keys' zero point.
const ROUNDED_QUERY_BYTES: i64 = 8;

/// Number of bytes of a query's statistics.
const STATS: i64 = 12;
const FACTOR: i64 = 4;
const OWN_STATS: i64 = 8;
/// Number of bytes of a query's statistics, if rows see entries. They then contain the last entry
/// that the query sees.
const STATS_WITH_ENTRIES: i64 = 16;
const LAST_ENTRY: i64 = 12;
/// Number of additional bytes in the statistics of a query with a slope: the slope, and the row's
/// position as f32.
const STATS_OF_SLOPE: i64 = 8;
const SLOPE: i64 = STATS_WITH_ENTRIES;
const PLACE: i64 = SLOPE + 4;

/// Queries whose attention over a block is computed together.
#[derive(Clone, Copy)]
struct QueryTile<'a> {
    places: &'a Places,
    /// Index of the block.
    block: &'a Affine,
    /// Index of the first query.
    first: &'a Affine,
    /// Number of queries.
    size: i64,
    /// Whether some queries do not see the whole block.
    masked: bool,
    /// Whether to prefetch the next block.
    prefetch: bool,
}

/// Keys and values in the cache, and the range of them that rows see.
struct Places {
    keys: BufferId,
    values: BufferId,
    of_keys: Field,
    of_values: Field,
    /// Dim with the index of the first block.
    first: Option<DimId>,
    /// Window of the rows; `None` if rows see all positions.
    window: Option<Window>,
    /// Dim with the last position of the text, if the kernel's position of a row may be after it.
    end: Option<DimId>,
    /// Offset, in a query's statistics, of the last visible position or entry.
    last: i64,
}

/// Keys and values of compressed entries, each of several positions.
struct Entries {
    places: Places,
    /// Buffer with the number of complete entries for each row.
    whole: BufferId,
    /// Dim with the number of blocks of entries.
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
    /// Buffer with the sink of each head: a score without a value.
    sinks: Option<BufferId>,
    /// Buffer with the slope of each head: the decrease of the scores per position.
    slopes: Option<BufferId>,
    outcome: Outcome,
    scratch: Scratch,
    /// Dim with the number of blocks that every row sees whole; `masked` counts later blocks.
    full: DimId,
    masked: DimId,
}

/// Generates attention over one of `heads` key heads, for items of up to `rows` rows. With `part`,
/// it begins at the first block of the item's part. With a `window`, it begins at the first block
/// that the first row sees.
pub(super) fn kernel(
    name: String,
    lanes: u16,
    operands: Operands,
    heads: u32,
    rows: u32,
    part: bool,
    window: Option<Window>,
) -> Result<Kernel, GenerateError> {
    generate_kernel(name, lanes, operands, heads, rows, part, Visibility { window, entries: false })
}

/// Generates attention of one row over a window and over complete entries.
pub(super) fn kernel_with_entries(
    name: String,
    lanes: u16,
    operands: Operands,
    window: u32,
) -> Result<Kernel, GenerateError> {
    let window = Some(Window { positions: window, chunked: false, both: false });
    generate_kernel(name, lanes, operands, 1, 1, false, Visibility { window, entries: true })
}

/// Positions and entries that a row sees.
struct Visibility {
    window: Option<Window>,
    /// Whether the row also sees entries.
    entries: bool,
}

fn generate_kernel(
    name: String,
    lanes: u16,
    operands: Operands,
    heads: u32,
    rows: u32,
    part: bool,
    Visibility { window, entries }: Visibility,
) -> Result<Kernel, GenerateError> {
    let what = ["query heads", "elements of a key head", "elements of a value head"];
    let Operands { heads: Heads { group, d, dv }, scores, cache } = operands;
    check_cap(&name, scores.cap)?;
    what.into_iter().zip([group, d, dv]).try_for_each(|(what, n)| check(&name, what, n.into(), n > 0, "at least 1"))?;
    cache.check(&name, d, dv)?;
    let (of_keys, of_values) = (cache.keys(d), cache.values(dv));
    let [group, d, dv] = [group, d, dv].map(i64::from);
    let (heads, rows) = (i64::from(heads), i64::from(rows));
    let mut b = KernelBuilder::new(name);
    let (full, masked) = (b.dim("full", 0, MAX_POSITIONS / BLOCK), b.dim("masked", 0, MAX_MASKED));
    let first = (part || window.is_some()).then(|| b.dim("first", 0, MAX_POSITIONS / BLOCK));
    let several = (rows > 1).then(|| (b.dim("groups", 0, 1), b.dim("rest", 0, rows - 1)));
    let end = window.is_some_and(|window| window.both).then(|| b.dim("end", 0, MAX_POSITIONS));
    let blocks = entries.then(|| b.dim("entries", 0, MAX_POSITIONS / BLOCK));
    // Buffers have whole rows, except the bytes before this head in the first row and after it in
    // the last row.
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
    let places = Places { keys, values, of_keys, of_values, first, window, end, last: OWN_STATS };
    let entries = blocks.map(|blocks| {
        let whole = b.read("whole", 4);
        let [keys, values] = [("entry_keys", of_keys), ("entry_values", of_values)]
            .map(|(name, of)| b.read(name, blocks * of.block_bytes()));
        let (first, window, end) = (None, None, None);
        let places = Places { keys, values, of_keys, of_values, first, window, end, last: LAST_ENTRY };
        Entries { places, whole, blocks }
    });
    let sinks = scores.sinks.then(|| b.read("sinks", group * 4));
    let slopes = scores.slopes.then(|| b.read("slopes", group * 4));
    let outcome = match part {
        true => Outcome::Part(b.write("part", group * (dv + 2) * 4)),
        false => Outcome::Mean { y: b.write("y", extent(group * dv)), row_bytes: heads * group * dv * 4 },
    };
    let stats = match (slopes, &entries) {
        (Some(_), _) => STATS_WITH_ENTRIES + STATS_OF_SLOPE,
        (None, Some(_)) => STATS_WITH_ENTRIES,
        (None, None) => STATS,
    };
    let scratch = scratch(&mut b, lanes, group * rows, of_keys, of_values, stats);
    let q_row_bytes = heads * group * d * 4;
    let attend = Attend {
        lanes,
        group,
        d,
        dv,
        scores,
        q,
        q_row_bytes,
        position,
        places,
        entries,
        sinks,
        slopes,
        outcome,
        scratch,
        full,
        masked,
    };
    match several {
        None => attend.rows(&mut b, 1, Affine::constant(0)),
        Some((groups, rest)) => {
            b.for_each("g", groups, |b, i| attend.rows(b, rows, i * rows));
            b.for_each("r", rest, |b, i| attend.rows(b, 1, groups * rows + i));
        }
    }
    Ok(b.finish())
}

fn scratch(b: &mut KernelBuilder, lanes: u16, queries: i64, keys: Field, values: Field, stats_bytes: i64) -> Scratch {
    let mut end = 0;
    let mut place = |bytes: i64| {
        let at = end;
        // Each area starts on a cache line, so that vectors do not cross cache lines.
        end = (end + bytes + LINE - 1) / LINE * LINE;
        at
    };
    let (p, q) = (place(queries * BLOCK * 4), place(queries * query_bytes(&keys)));
    let acc = place(queries * values.width * 4);
    let (sums, stats) = (place(queries * i64::from(lanes) * 4), place(queries * stats_bytes));
    let scaled = place(values.codes().map_or(0, |blocks| max_panels(&blocks, lanes) * BLOCK * 4));
    let buffer = b.buffer("scratch", BufferKind::Scratch, end);
    Scratch { buffer, p, q, acc, sums, stats, stats_bytes, scaled }
}

/// Returns the number of bytes of a query in scratch memory.
fn query_bytes(keys: &Field) -> i64 {
    keys.codes().map_or(keys.width * 4, |blocks| blocks.count * (blocks.len() + ROUNDED_QUERY_BYTES))
}

/// Returns the maximum number of panels whose scaled weights are stored, for all queries of a tile.
fn max_panels(blocks: &Blocks, lanes: u16) -> i64 {
    let (queries, accumulators) = tile(lanes);
    (accumulators * i64::from(lanes) / blocks.len()).max(queries)
}

/// Groups of tiles of equal size: the group's first query, the tile size, and the number of tiles.
type Tiles = Vec<(i64, i64, i64)>;

/// Divides `queries` into tiles of at most `most` queries. Tile sizes differ by at most one.
fn tiles(queries: i64, most: i64) -> Tiles {
    let count = (queries + most - 1) / most;
    let (small, larger) = (queries / count, queries % count);
    [(0, small + 1, larger), (larger * (small + 1), small, count - larger)]
        .into_iter()
        .filter(|tiles| tiles.2 > 0)
        .collect()
}

/// Factors of one side of an outer product. Each is a vector.
struct Factors<'a> {
    count: i64,
    /// Emits the factor with this index.
    emit: &'a dyn Fn(&mut KernelBuilder, i64) -> ValueId,
}

/// Adds the product of factor `i` of `scalars` and factor `j` of `vectors` to `sums[i][j]`. All
/// factors of the shorter side stay in registers, and the factors of the other side are emitted one
/// by one.
fn outer_product(b: &mut KernelBuilder, sums: &mut [ValueId], scalars: &Factors<'_>, vectors: &Factors<'_>) {
    let Factors { count: rows, emit: scalar } = *scalars;
    let Factors { count: columns, emit: vector } = *vectors;
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
    /// Emits attention of `rows` rows of the item, from the row `row` on.
    fn rows(&self, b: &mut KernelBuilder, rows: i64, row: Affine) {
        self.begin(b, rows, &row);
        let queries = rows * self.group;
        // With a window, the first visible position may be in any block, so all blocks are masked.
        let begins = self.places.window.is_some();
        b.for_each("block", self.full, |b, block| {
            self.block(b, &self.places, queries, block.into(), begins);
        });
        b.for_each("block", self.masked, |b, block| {
            let block = Affine::from(block) + self.full;
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

    /// Emits `body` in loops over all rows and heads. `body` gets the row, the head and the index
    /// of the query.
    fn queries(&self, b: &mut KernelBuilder, rows: i64, body: impl FnOnce(&mut KernelBuilder, Affine, Affine, Affine)) {
        b.for_each("i", rows, |b, r| {
            b.for_each("h", self.group, |b, h| body(b, r.into(), h.into(), r * self.group + h));
        });
    }

    /// Writes the initial data of the queries: queries times the factor on scores, sums, maxima and
    /// positions.
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
                    // `max` replaces a NaN sink from the model file by a number, so that
                    // comparisons with scores work.
                    let sink = b.same(Op::Max, &[sink, lowest]);
                    let (top, sum) = self.sink(b, sink, lowest);
                    b.store(s.buffer, query.clone() * (i64::from(self.lanes) * 4) + s.sums, sum);
                    top
                }
            };
            b.store(s.buffer, query.clone() * s.stats_bytes + s.stats, top);
            let own = b.load(Type::i32(1), self.position, (row.clone() + r.clone()) * 4);
            b.store(s.buffer, query.clone() * s.stats_bytes + (s.stats + OWN_STATS), own);
            if let Some(slopes) = self.slopes {
                let slope = b.load(Type::f32(1), slopes, h.clone() * 4);
                b.store(s.buffer, query.clone() * s.stats_bytes + (s.stats + SLOPE), slope);
                let place = b.op(Op::ToF32, Type::f32(1), &[own]);
                b.store(s.buffer, query.clone() * s.stats_bytes + (s.stats + PLACE), place);
            }
            if let Some(entries) = &self.entries {
                let whole = b.load(Type::i32(1), entries.whole, (row.clone() + r) * 4);
                let one = b.splat_int(Type::i32(1), 1);
                let last = b.same(Op::ISub, &[whole, one]);
                b.store(s.buffer, query * s.stats_bytes + (s.stats + LAST_ENTRY), last);
            }
        });
    }

    /// Rounds a query to bytes, for keys in a block format.
    fn round(&self, b: &mut KernelBuilder, blocks: &Blocks, to: &Affine, query: Elements<'_>) {
        let lanes = self.lanes.min(blocks.len() as u16);
        let (width, buffer) = (i64::from(lanes), self.scratch.buffer);
        b.for_each("block", blocks.count, |b, block| {
            let to = to.clone() + block * (blocks.len() + ROUNDED_QUERY_BYTES);
            let vectors = 0..blocks.len() / width;
            let x: Vec<ValueId> = vectors.map(|i| query(b, block * blocks.len() + i * width, lanes)).collect();
            let magnitudes: Vec<ValueId> = x.iter().map(|x| math::abs(b, *x)).collect();
            let most = magnitudes[1..].iter().fold(magnitudes[0], |most, x| b.same(Op::Max, &[most, *x]));
            let most = b.op(Op::ReduceMax, Type::f32(1), &[most]);
            let Scale { d, inverse } = Scale::build(b, most);
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

    /// Returns the initial maximum and the initial sum of weights of a head with a sink. If
    /// positions are divided into parts, only the first part includes the sink.
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
        // Only the first tile prefetches the next block.
        let each = |b: &mut KernelBuilder, body: &dyn Fn(&mut KernelBuilder, &QueryTile)| {
            for (i, (start, size, count)) in tiles(queries, most).into_iter().enumerate() {
                let first = Affine::constant(start);
                let own = QueryTile { places, block: &block, first: &first, size, masked, prefetch: true };
                let (start, count) = if i == 0 {
                    body(b, &own);
                    (start + size, count - 1)
                } else {
                    (start, count)
                };
                if count > 0 {
                    b.for_each("tile", count, |b, t| {
                        body(b, &QueryTile { first: &(t * size + start), prefetch: false, ..own });
                    });
                }
            }
        };
        each(b, &|b, queries| self.scores(b, queries));
        b.for_each("query", queries, |b, query| self.weights(b, query.into(), masked));
        each(b, &|b, queries| self.weigh(b, queries));
    }

    fn splat(&self, b: &mut KernelBuilder, at: Affine, lanes: u16) -> ValueId {
        match lanes {
            1 => b.load(Type::f32(1), self.scratch.buffer, at),
            _ => b.load_splat(Type::f32(lanes), self.scratch.buffer, at),
        }
    }

    /// Returns the sum of a query's weights.
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
            let sum = self.sum(b, &query);
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
            let max = b.load(Type::f32(1), s.buffer, h * s.stats_bytes + s.stats);
            b.store(part, h * head + self.dv * 4, max);
            let sum = self.sum(b, &h.into());
            b.store(part, h * head + (self.dv + 1) * 4, sum);
        });
    }
}
