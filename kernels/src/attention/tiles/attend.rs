//! Generator of attention with tile products: loops over runs of positions, with queries and
//! accumulators in scratch memory.

use ixc_ir::kernel::{Affine, BufferId, BufferKind, DimId, Kernel, KernelBuilder, Op, Type, ValueId};

use super::super::heads::{self, Heads};
use super::panels::{BLOCK, KEYS, Panels, Sizes};
use super::scratch::{LOW_WEIGHTS, Places, Scratch, whole};
use super::{AttentionTiles, PAIR, RUN, RUN_BLOCKS};
use crate::generator::bf16_tile::{BF16, LANES, LINE, ROWS, STEP, SUM, Side, TILE, UPPER, multiply};
use crate::generator::cache::Field;
use crate::generator::generate::MAX_POSITIONS;
use crate::generator::math;
use crate::generator::text::Bits;
use crate::generator::vectors::for_vectors;

/// Number of queries of a strip: the rows of a tile.
const STRIP: i64 = ROWS;
/// Number of strips that are computed together.
const STRIPS: i64 = PAIR as i64 / STRIP;
/// Score of positions that a row does not see. It is below every real score.
const MASKED: f32 = -1.0e30;
/// Maximum number of masked runs of an item, in addition to one run for each RUN of its rows. A run
/// is masked if some rows see it and other rows do not see all of it.
const MORE_MASKED: i64 = 2;

/// Consecutive blocks of positions that are computed together.
struct Span<'a> {
    /// Index of the first block in the buffers.
    first: &'a Affine,
    /// Number of blocks.
    blocks: &'a Affine,
    /// Whether some rows do not see all positions of the span.
    masked: bool,
}

struct Attend {
    sizes: Sizes,
    group: i64,
    heads: i64,
    /// Factor on products of queries and keys, times log2 e.
    scale: f32,
    /// Cap on scores, times log2 e.
    cap: Option<f32>,
    /// Number of rows of a unit.
    unit: i64,
    q: BufferId,
    position: BufferId,
    slopes: Option<BufferId>,
    y: BufferId,
    scratch: BufferId,
    at: Places,
    panels: Panels,
    units: DimId,
    rest: DimId,
    partial: DimId,
    /// Window of the rows, or `None` if rows see all positions.
    window: Option<Window>,
}

/// Window of the rows: its size, and a dim with the number of blocks before the buffers' first
/// block.
#[derive(Clone, Copy)]
struct Window {
    seen: heads::Window,
    /// Dim with the last position of the text, if the kernel's position of a row may be after it.
    end: Option<DimId>,
    first: DimId,
    /// Dim with the number of blocks before the first whole run. `head` counts runs that begin
    /// before the window of the last row.
    lead: DimId,
    head: DimId,
}

/// Generates the kernel of a spec whose sizes were checked.
pub(super) fn kernel(name: String, spec: &AttentionTiles) -> Kernel {
    let AttentionTiles { heads: Heads { group, d, dv }, scores, key_heads, rows, cache, .. } = *spec;
    let (of_keys, of_values) = (cache.keys(d), cache.values(dv));
    let unit = i64::from(AttentionTiles::unit(group));
    let [group, d, dv, heads, rows] = [group, d, dv, key_heads, rows].map(i64::from);
    let parts = if spec.exact { 2 } else { 1 };
    let sizes = Sizes { d, dv, padded_d: whole(d, STEP), padded_dv: whole(dv, i64::from(LANES)), parts };
    let mut b = KernelBuilder::new(name);
    let (max_masked, max_rest) = (rows / RUN + MORE_MASKED, i64::from(RUN_BLOCKS) - 1);
    // An item may have the last row of a chunk and the first row of the next chunk. The latter row
    // sees no run of the former row.
    let max_head = max_masked + if spec.chunked { spec.window.map_or(0, i64::from) / RUN } else { 0 };
    let mut window = spec.window().map(|seen| Window {
        seen,
        end: None,
        first: b.dim("first", 0, MAX_POSITIONS / BLOCK),
        lead: b.dim("run_lead", 0, max_rest),
        head: b.dim("head_runs", 0, max_head),
    });
    let full = b.dim("full_runs", 0, MAX_POSITIONS / RUN);
    let masked = b.dim("masked_runs", 0, max_masked);
    let last = b.dim("run_rest", 0, max_rest);
    let (units, rest) = (b.dim("units", 0, rows / unit), b.dim("rest", 0, unit - 1));
    let partial = b.dim("partial", 0, 1);
    if let Some(window) = window.as_mut().filter(|window| window.seen.both) {
        window.end = Some(b.dim("end", 0, MAX_POSITIONS));
    }
    // Buffers have whole rows, except the bytes before this head in the first row and after it in
    // the last row.
    let extent = |elements: i64| -> Affine {
        let row = heads * group * elements * 4;
        units * (unit * row) + rest * row + (group * elements * 4 - row)
    };
    let q = b.read("q", extent(d));
    let position = b.read("position", units * (unit * 4) + rest * 4);
    let held = |field: Field| {
        let (block, run) = (field.block_bytes(), RUN / BLOCK * field.block_bytes());
        let before = window.map(|window| window.lead * block + window.head * run);
        before.unwrap_or_default() + full * run + masked * run + last * block
    };
    let (keys, values) = (b.read("keys", held(of_keys)), b.read("values", held(of_values)));
    let slopes = scores.slopes.then(|| b.read("slopes", group * 4));
    let y = b.write("y", extent(dv));

    // The number includes an incomplete unit, and one more unit for the pair that is computed after
    // the last pair.
    let queries = (rows + 2 * unit) * group;
    let Scratch { keys_at, values_at, at, bytes } = Scratch::new(&sizes, queries, window.is_some(), slopes.is_some());
    let scratch = b.buffer("scratch", BufferKind::Scratch, bytes);
    let panels = Panels { sizes, keys, values, of_keys, of_values, scratch, keys_at, values_at };
    let of_powers = |x: Bits| (f64::from(x.value()) * std::f64::consts::LOG2_E) as f32;
    let (scale, cap) = (of_powers(scores.scale), scores.cap.map(of_powers));
    let attend = Attend {
        sizes,
        group,
        heads,
        scale,
        cap,
        unit,
        q,
        position,
        slopes,
        y,
        scratch,
        at,
        panels,
        units,
        rest,
        partial,
        window,
    };

    attend.begin(&mut b);
    let mut first = Affine::default();
    if let Some(Window { lead, head, .. }) = window {
        attend.run(&mut b, &first, &lead.into(), true);
        first = attend.runs(&mut b, lead.into(), head, true);
    }
    let first = attend.runs(&mut b, first, full, false);
    let first = attend.runs(&mut b, first, masked, true);
    attend.run(&mut b, &first, &last.into(), true);
    attend.end(&mut b);
    b.finish()
}

/// Emits a loop over blocks. It is unrolled if the number of blocks is constant.
fn for_blocks(
    b: &mut KernelBuilder,
    blocks: &Affine,
    inits: &[ValueId],
    mut body: impl FnMut(&mut KernelBuilder, Affine, &[ValueId]) -> Vec<ValueId>,
) -> Vec<ValueId> {
    match blocks.as_constant() {
        Some(n) => (0..n).fold(inits.to_vec(), |carried, block| body(b, block.into(), &carried)),
        None => b.for_carry("block", blocks.clone(), inits, |b, block, carried| body(b, block.into(), carried)),
    }
}

impl Attend {
    /// Returns the number of pairs of strips, including pairs of an incomplete last unit.
    fn pairs(&self) -> Affine {
        (self.units + self.partial) * (self.unit * self.group / i64::from(PAIR))
    }

    /// Emits `body` in loops over all rows and query heads. `body` gets the row, the head and the
    /// index of the query.
    fn each(&self, b: &mut KernelBuilder, body: impl FnOnce(&mut KernelBuilder, Affine, Affine, Affine)) {
        b.for_each("row", self.units * self.unit + self.rest, |b, row| {
            b.for_each("h", self.group, |b, h| body(b, row.into(), h.into(), row * self.group + h));
        });
    }

    /// Writes the initial data of the queries: queries times the factor on scores, sums, maxima and
    /// positions.
    fn begin(&self, b: &mut KernelBuilder) {
        let Sizes { d, padded_d, padded_dv, .. } = self.sizes;
        let (at, scratch) = (&self.at, self.scratch);
        self.panels.clear(b);
        b.for_each("strip", self.pairs() * STRIPS, |b, strip| {
            let (zeros, lowest) = (b.splat_f32(LANES, 0.0), b.splat_f32(LANES, MASKED));
            b.store(scratch, strip * (STRIP * 4) + at.maxima, lowest);
            b.store(scratch, strip * (STRIP * 4) + at.own, zeros);
            if self.window.is_some() {
                b.store(scratch, strip * (STRIP * 4) + at.seen, zeros);
            }
            if self.slopes.is_some() {
                b.store(scratch, strip * (STRIP * 4) + at.slopes, zeros);
                b.store(scratch, strip * (STRIP * 4) + at.places, zeros);
            }
            let mut fill = |name: &str, at: i64, lines: i64| {
                b.for_each(name, lines, |b, line| b.store(scratch, strip * (lines * LINE) + line * LINE + at, zeros));
            };
            fill("sum", at.sums, STRIP);
            fill("acc", at.acc, STRIP * padded_dv * 4 / LINE);
            if padded_d > d {
                fill("q", at.queries, STRIP * self.sizes.query_bytes() / LINE);
            }
        });
        if padded_d == d {
            // Queries of the missing rows of the last unit are zeros.
            b.for_each("partial", self.partial, |b, _| {
                let zeros = b.splat_f32(LANES, 0.0);
                let unit = self.unit * self.group * self.sizes.query_bytes();
                b.for_each("line", unit / LINE, |b, line| {
                    b.store(scratch, self.units * unit + line * LINE + at.queries, zeros);
                });
            });
        }
        let row_bytes = self.heads * self.group * d * 4;
        self.each(b, |b, row, h, query| {
            for_vectors(b, LANES, d as u32, |b, e, lanes| {
                let x = b.load(Type::f32(lanes), self.q, row.clone() * row_bytes + h.clone() * (d * 4) + e.clone() * 4);
                let scale = b.splat_f32(lanes, self.scale);
                let x = b.mul(x, scale);
                let high = b.to_bf16(x);
                let to = query.clone() * self.sizes.query_bytes() + e * 2 + at.queries;
                b.store(scratch, to.clone(), high);
                let high = b.bf16_to_f32(high);
                let low = b.sub(x, high);
                let low = b.to_bf16(low);
                b.store(scratch, to + padded_d * 2, low);
            });
            let own = b.load(Type::i32(1), self.position, row * 4);
            b.store(scratch, query.clone() * 4 + at.own, own);
            if let Some(slopes) = self.slopes {
                let (slope, log2e) = (b.load(Type::f32(1), slopes, h * 4), b.splat_f32(1, std::f32::consts::LOG2_E));
                let slope = b.mul(slope, log2e);
                b.store(scratch, query.clone() * 4 + at.slopes, slope);
                let place = b.op(Op::ToF32, Type::f32(1), &[own]);
                b.store(scratch, query.clone() * 4 + at.places, place);
            }
            if let Some(window) = self.window {
                let seen = window.seen.first_of(b, own);
                b.store(scratch, query * 4 + at.seen, seen);
            }
        });
    }

    /// Emits attention over `runs` whole runs from the block `first` on. Returns the index of the
    /// block after them.
    fn runs(&self, b: &mut KernelBuilder, first: Affine, runs: DimId, masked: bool) -> Affine {
        let blocks = i64::from(RUN_BLOCKS);
        b.for_each("run", runs, |b, run| self.run(b, &(first.clone() + run * blocks), &blocks.into(), masked));
        first + runs * blocks
    }

    /// Emits attention over `blocks` blocks, from the block `first` on.
    fn run(&self, b: &mut KernelBuilder, first: &Affine, blocks: &Affine, masked: bool) {
        let span = Span { first, blocks, masked };
        self.panels.fill(b, first, blocks);
        let steps = self.sizes.padded_d / STEP;
        let each = i64::from(PAIR) / (i64::from(RUN_BLOCKS) * steps);
        let together = !masked && each * steps * i64::from(RUN_BLOCKS) == i64::from(PAIR);
        if !together {
            b.for_each("pair", self.pairs(), |b, pair| {
                let pair = pair * i64::from(PAIR);
                self.scores(b, &pair, blocks, |_, _, _| {});
                b.for_each("strip", STRIPS, |b, strip| self.maxima(b, &pair, strip.into(), &span, None));
                b.for_each("query", i64::from(PAIR), |b, i| self.weights(b, &pair, &i.into(), &span, self.at.scores));
                self.weigh(b, &pair, blocks);
            });
            return;
        }
        // The tile unit computes the next pair's scores while the vector units compute weights.
        // Each step of score products is therefore followed by the weights of `each` queries.
        self.scores(b, &0.into(), blocks, |_, _, _| {});
        b.for_each("pair", self.pairs(), |b, pair| {
            let pair = pair * i64::from(PAIR);
            b.for_each("strip", STRIPS, |b, strip| self.maxima(b, &pair, strip.into(), &span, Some(self.at.read)));
            self.scores(b, &(pair.clone() + i64::from(PAIR)), blocks, |b, block, step| {
                for i in 0..each {
                    let i = block.clone() * (steps * each) + step.clone() * each + i;
                    self.weights(b, &pair, &i, &span, self.at.read);
                }
            });
            self.weigh(b, &pair, blocks);
        });
    }

    /// Emits the scores of the pair that begins with the query `pair`. `between` may emit code
    /// after the products of each block and step.
    fn scores(
        &self,
        b: &mut KernelBuilder,
        pair: &Affine,
        blocks: &Affine,
        mut between: impl FnMut(&mut KernelBuilder, Affine, Affine),
    ) {
        let (at, scratch) = (&self.at, self.scratch);
        let (row, strip_bytes) = (self.sizes.query_bytes(), self.sizes.padded_d / 2 * LINE);
        b.for_each("block", blocks.clone(), |b, block| {
            let zeros: Vec<ValueId> = (0..2 * STRIPS).map(|_| b.tile_zero(SUM)).collect();
            let sums = b.for_carry("step", self.sizes.padded_d / STEP, &zeros, |b, step, sums| {
                let mut sums = sums.to_vec();
                let queries = |b: &mut KernelBuilder, strip: i64, part: i64| {
                    let part = part * self.sizes.padded_d * 2;
                    let from = pair.clone() * row + step * LINE + (strip * STRIP * row + part + at.queries);
                    b.tile_load(BF16, scratch, from, row)
                };
                let keys = |b: &mut KernelBuilder, strip: i64, part: i64| {
                    let from = block * (BLOCK / KEYS * strip_bytes) + step * TILE;
                    let part = part * self.sizes.low_keys();
                    b.tile_load(BF16, scratch, from + (strip * strip_bytes + part + self.panels.keys_at), LINE)
                };
                let queries = Side { parts: 2, tiles: STRIPS, emit: &queries };
                multiply(b, &mut sums, &queries, &Side { parts: 2, tiles: BLOCK / KEYS, emit: &keys });
                between(b, block.into(), step.into());
                sums
            });
            for (i, sum) in (0i64..).zip(sums) {
                let to = i / 2 * STRIP * RUN * 4 + i % 2 * LINE + at.scores;
                b.tile_store(scratch, block * (BLOCK * 4) + to, sum, RUN * 4);
            }
        });
    }

    /// Returns the offset of a vector of scores of query `i` of a pair. The rows of scores begin at
    /// `at`. The vector has positions `16 * half` to `16 * half + 15` of the block.
    fn score(at: i64, i: Affine, block: &Affine, half: i64) -> Affine {
        i * (RUN * 4) + block.clone() * (BLOCK * 4) + (half * LINE + at)
    }

    /// Emits the positions of the vector at [`Attend::score`].
    fn positions(&self, b: &mut KernelBuilder, first: &Affine, block: &Affine, half: i64) -> ValueId {
        let before = self.window.map(|window| Affine::from(window.first)).unwrap_or_default();
        let start = b.index((before + first.clone() + block.clone()) * BLOCK + half * KEYS);
        let start = b.broadcast(LANES, start);
        let lanes = b.op(Op::Iota, Type::i32(LANES), &[]);
        b.iadd(start, lanes)
    }

    /// Selects `values` at positions that the row of a query sees, and `instead` at other
    /// positions.
    fn select_visible(
        &self,
        b: &mut KernelBuilder,
        positions: ValueId,
        query: &Affine,
        values: ValueId,
        instead: ValueId,
    ) -> ValueId {
        let own = b.load_splat(Type::i32(LANES), self.scratch, query.clone() * 4 + self.at.own);
        let after = b.same(Op::CmpGt, &[positions, own]);
        let values = b.op(Op::Select, Type::f32(LANES), &[after, instead, values]);
        let Some(window) = self.window else { return values };
        let values = match window.end {
            Some(end) => {
                let end = b.index(Affine::from(end));
                let end = b.broadcast(LANES, end);
                let behind = b.same(Op::CmpGt, &[positions, end]);
                b.op(Op::Select, Type::f32(LANES), &[behind, instead, values])
            }
            None => values,
        };
        let seen = b.load_splat(Type::i32(LANES), self.scratch, query.clone() * 4 + self.at.seen);
        let before = b.same(Op::CmpGt, &[seen, positions]);
        b.op(Op::Select, Type::f32(LANES), &[before, instead, values])
    }

    /// Emits the maxima of the queries of a strip, and the factors that rescale earlier sums for
    /// these maxima. First applies the cap and the slopes to the scores. If `copy` is given, also
    /// stores the scores there.
    fn maxima(&self, b: &mut KernelBuilder, pair: &Affine, strip: Affine, span: &Span<'_>, copy: Option<i64>) {
        let (at, scratch) = (&self.at, self.scratch);
        let lowest = b.splat_f32(LANES, MASKED);
        let query = |i: i64| strip.clone() * STRIP + i;
        let found = b.for_carry("block", span.blocks.clone(), &[lowest; STRIP as usize], |b, block, found| {
            let block: Affine = block.into();
            let mut found = found.to_vec();
            for half in 0..BLOCK / KEYS {
                let positions =
                    (span.masked || self.slopes.is_some()).then(|| self.positions(b, span.first, &block, half));
                let places = self.slopes.and(positions).map(|p| b.op(Op::ToF32, Type::f32(LANES), &[p]));
                for (i, found) in (0i64..).zip(&mut found) {
                    let mut score = b.load(Type::f32(LANES), scratch, Attend::score(at.scores, query(i), &block, half));
                    if let Some(cap) = self.cap {
                        score = math::softcap(b, score, cap);
                    }
                    if let Some(places) = places {
                        let query = (pair.clone() + query(i)) * 4;
                        let own = b.load_splat(Type::f32(LANES), scratch, query.clone() + at.places);
                        let slope = b.load_splat(Type::f32(LANES), scratch, query + at.slopes);
                        let before = b.sub(places, own);
                        score = b.fma(before, slope, score);
                    }
                    let changed = self.cap.is_some() || self.slopes.is_some();
                    if let Some(to) = copy.or(changed.then_some(at.scores)) {
                        b.store(scratch, Attend::score(to, query(i), &block, half), score);
                    }
                    if let Some(positions) = positions.filter(|_| span.masked) {
                        score = self.select_visible(b, positions, &(pair.clone() + query(i)), score, lowest);
                    }
                    *found = b.same(Op::Max, &[*found, score]);
                }
            }
            found
        });
        let new = maximum_of_each(b, &found);
        let place = (pair.clone() + query(0)) * 4 + at.maxima;
        let old = b.load(Type::f32(LANES), scratch, place.clone());
        let new = b.same(Op::Max, &[new, old]);
        let fall = b.sub(old, new);
        let factors = math::exp2_of_negative(b, fall);
        b.store(scratch, place, new);
        b.store(scratch, query(0) * 4 + at.factors, factors);
    }

    /// Emits the weights of query `i` of a pair, from rows of scores that begin at `scores`.
    /// Rescales the query's sums and accumulator by the factor for the new maximum.
    fn weights(&self, b: &mut KernelBuilder, pair: &Affine, i: &Affine, span: &Span<'_>, scores: i64) {
        let (at, scratch) = (&self.at, self.scratch);
        let query = pair.clone() + i.clone();
        let max = b.load_splat(Type::f32(LANES), scratch, query.clone() * 4 + at.maxima);
        let factor = b.load_splat(Type::f32(LANES), scratch, i.clone() * 4 + at.factors);
        let past = b.load(Type::f32(LANES), scratch, query.clone() * LINE + at.sums);
        let past = b.mul(past, factor);
        let sums = for_blocks(b, span.blocks, &[past], |b, block, sums| {
            let [near, far] = [0, 1].map(|half| {
                let score = b.load(Type::f32(LANES), scratch, Attend::score(scores, i.clone(), &block, half));
                let below = b.sub(score, max);
                let weight = math::exp2_of_negative(b, below);
                if !span.masked {
                    return weight;
                }
                let positions = self.positions(b, span.first, &block, half);
                let none = b.splat_f32(LANES, 0.0);
                self.select_visible(b, positions, &query, weight, none)
            });
            let pairs = b.to_bf16_pairs(near, far);
            let to = block * (STRIPS * TILE) + i.clone() * LINE + at.weights;
            b.store(scratch, to.clone(), pairs);
            if self.sizes.parts == 2 {
                let low = rounding_residue(b, pairs, near, far);
                b.store(scratch, to + LOW_WEIGHTS, low);
            }
            let sum = b.add(sums[0], near);
            vec![b.add(sum, far)]
        });
        b.store(scratch, query.clone() * LINE + at.sums, sums[0]);
        let row = self.sizes.padded_dv * 4;
        let unroll = (1..=8).rev().find(|n| row / LINE % n == 0).unwrap_or(1);
        let scale = |b: &mut KernelBuilder, lines: Affine| {
            for line in 0..unroll {
                let at = query.clone() * row + lines.clone() * (unroll * LINE) + (line * LINE + at.acc);
                let acc = b.load(Type::f32(LANES), scratch, at.clone());
                let acc = b.mul(acc, factor);
                b.store(scratch, at, acc);
            }
        };
        match row / LINE / unroll {
            1 => scale(b, 0.into()),
            trips => b.for_each("lines", trips, |b, lines| scale(b, lines.into())),
        }
    }

    /// Emits the addition of the run's weighted values, for the pair that begins with the query
    /// `pair`.
    fn weigh(&self, b: &mut KernelBuilder, pair: &Affine, blocks: &Affine) {
        let columns = self.sizes.padded_dv / STRIP;
        b.for_each("column", columns / 2, |b, column| self.columns(b, pair, blocks, column * 2, 2));
        if columns % 2 == 1 {
            self.columns(b, pair, blocks, (columns - 1).into(), 1);
        }
    }

    /// Emits the addition of the weighted values of `width` tiles of columns, from tile `column`
    /// on.
    fn columns(&self, b: &mut KernelBuilder, pair: &Affine, blocks: &Affine, column: Affine, width: i64) {
        let (at, scratch) = (&self.at, self.scratch);
        let row = self.sizes.padded_dv * 4;
        let place = |i: i64| {
            let (strip, tile) = (i / width, i % width);
            pair.clone() * row + column.clone() * LINE + (strip * STRIP * row + tile * LINE + at.acc)
        };
        let acc: Vec<ValueId> = (0..STRIPS * width).map(|i| b.tile_load(SUM, scratch, place(i), row)).collect();
        let block_bytes = self.sizes.padded_dv / STRIP * TILE;
        let acc = for_blocks(b, blocks, &acc, |b, block, acc| {
            let mut acc = acc.to_vec();
            let weights = |b: &mut KernelBuilder, strip: i64, part: i64| {
                let from = block.clone() * (STRIPS * TILE) + (strip * TILE + part * LOW_WEIGHTS + at.weights);
                b.tile_load(BF16, scratch, from, LINE)
            };
            let values = |b: &mut KernelBuilder, tile: i64, part: i64| {
                let from = block.clone() * block_bytes + column.clone() * TILE;
                let part = part * self.sizes.low_values();
                b.tile_load(BF16, scratch, from + (tile * TILE + part + self.panels.values_at), LINE)
            };
            let parts = self.sizes.parts;
            let weights = Side { parts, tiles: STRIPS, emit: &weights };
            multiply(b, &mut acc, &weights, &Side { parts, tiles: width, emit: &values });
            acc
        });
        for (i, sum) in (0i64..).zip(acc) {
            b.tile_store(scratch, place(i), sum, row);
        }
    }

    /// Writes the weighted mean of the values for each row and head.
    fn end(&self, b: &mut KernelBuilder) {
        let Sizes { dv, padded_dv, .. } = self.sizes;
        let (at, scratch) = (&self.at, self.scratch);
        let row_bytes = self.heads * self.group * dv * 4;
        self.each(b, |b, row, h, query| {
            let sums = b.load(Type::f32(LANES), scratch, query.clone() * LINE + at.sums);
            let sum = b.op(Op::ReduceAdd, Type::f32(1), &[sums]);
            let one = b.splat_f32(1, 1.0);
            let inverse = b.same(Op::Div, &[one, sum]);
            for_vectors(b, LANES, dv as u32, |b, e, lanes| {
                let inverse = if lanes == 1 { inverse } else { b.broadcast(lanes, inverse) };
                let from = query.clone() * (padded_dv * 4) + e.clone() * 4 + at.acc;
                let acc = b.load(Type::f32(lanes), scratch, from);
                let mean = b.mul(acc, inverse);
                b.store(self.y, row.clone() * row_bytes + h.clone() * (dv * 4) + e * 4, mean);
            });
        });
    }
}

/// Returns the rounding errors of `pairs`, as pairs of bf16. `pairs` are the numbers `even` and
/// `odd` rounded to bf16.
fn rounding_residue(b: &mut KernelBuilder, pairs: ValueId, even: ValueId, odd: ValueId) -> ValueId {
    let (dwords, floats) = (Type::i32(LANES), Type::f32(LANES));
    let pairs = b.bitcast(dwords, pairs);
    let upper = b.splat_int(dwords, UPPER);
    let (low, high) = (b.shift(Op::Shl, pairs, 16), b.same(Op::And, &[pairs, upper]));
    let (low, high) = (b.bitcast(floats, low), b.bitcast(floats, high));
    let (even, odd) = (b.sub(even, low), b.sub(odd, high));
    b.to_bf16_pairs(even, odd)
}

/// Returns the largest lane of each of 16 vectors, in the order of the vectors. This takes three
/// ops for each vector; separate reductions would take eight.
fn maximum_of_each(b: &mut KernelBuilder, vectors: &[ValueId]) -> ValueId {
    let halves = |b: &mut KernelBuilder, [lower, upper]: [Op; 2], x: ValueId, y: ValueId, unit: Option<i64>| {
        let ty = b.ty(x);
        let [lower, upper] = [lower, upper].map(|op| match unit {
            Some(unit) => b.op_imm(op, ty, &[x, y], unit),
            None => b.op(op, ty, &[x, y]),
        });
        b.same(Op::Max, &[lower, upper])
    };
    let (units, joined) = ([Op::UnpackLo, Op::UnpackHi], [Op::JoinLo, Op::JoinHi]);
    // Each 16-byte chunk then has the maxima of four vectors in its four lanes.
    let quads: Vec<ValueId> = vectors
        .chunks_exact(4)
        .map(|v| {
            let (x, y) = (halves(b, units, v[0], v[1], Some(4)), halves(b, units, v[2], v[3], Some(4)));
            halves(b, units, x, y, Some(8))
        })
        .collect();
    // Combines the results of two chunks, then those of all chunks.
    let eights: Vec<ValueId> = quads
        .chunks_exact(2)
        .map(|v| {
            let both = halves(b, joined, v[0], v[1], None);
            let half = Type::f32(LANES / 2);
            let (x, y) =
                (b.op_imm(Op::Slice, half, &[both], 0), b.op_imm(Op::Slice, half, &[both], i64::from(LANES) / 2));
            halves(b, joined, x, y, None)
        })
        .collect();
    b.op(Op::Concat, Type::f32(LANES), &eights)
}
