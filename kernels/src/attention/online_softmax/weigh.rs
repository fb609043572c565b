//! Attention weights of a block of positions, and sums of its weighted values. The sums stay in
//! registers during the loop over positions.

use ixc_ir::kernel::{Affine, KernelBuilder, Op, Type, ValueId};

use super::{Attend, BLOCK, FACTOR, Factors, KEYS, LINE, MASKED, QueryTile, UNROLL, outer_product, tile};
use crate::generator::cache::Blocks;
use crate::generator::math;
use crate::generator::vectors::for_rest;

/// Columns of a value that are computed together: the first element, the number of vectors, and the
/// number of elements of a vector.
struct Columns {
    at: Affine,
    vectors: i64,
    lanes: u16,
}

/// Cache lines of the next block to prefetch: their offset and their number.
struct Ahead {
    at: Affine,
    lines: i64,
}

impl Attend {
    /// Emits the new maximum and the weights of a query.
    pub(super) fn weights(&self, b: &mut KernelBuilder, query: Affine, masked: bool) {
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

    /// Emits the addition of the block's weighted values, for a tile of queries.
    pub(super) fn weigh(&self, b: &mut KernelBuilder, queries: &QueryTile) {
        let QueryTile { places, block, size, prefetch, .. } = *queries;
        if let Some(blocks) = places.of_values.codes() {
            return self.weigh_integers(b, &blocks, queries);
        }
        let width = i64::from(self.lanes);
        let most = (tile(self.lanes).1 / size).max(1);
        let vectors = (1..=most).rev().find(|v| (self.dv / width) % v == 0).unwrap_or(1);
        if self.dv >= width {
            let parts = self.dv / width / vectors;
            // Each iteration prefetches an equal number of lines of the next block.
            let lines = if prefetch { BLOCK * self.dv * 2 / parts / LINE } else { 0 };
            b.for_each("v", parts, |b, part| {
                let at = block.clone() * (BLOCK * self.dv * 2) + part * (lines * LINE) + BLOCK * self.dv * 2;
                let columns = Columns { at: part * (vectors * width), vectors, lanes: self.lanes };
                self.weigh_columns(b, queries, columns, Ahead { at, lines });
            });
        }
        for_rest(b, self.lanes, self.dv as u32, &mut |b, at, lanes| {
            let nothing = Ahead { at: Affine::constant(0), lines: 0 };
            self.weigh_columns(b, queries, Columns { at, vectors: 1, lanes }, nothing);
        });
    }

    /// Emits the addition of the weighted values of some columns, with prefetches.
    fn weigh_columns(&self, b: &mut KernelBuilder, queries: &QueryTile, columns: Columns, ahead: Ahead) {
        let QueryTile { places, block, first, size, .. } = *queries;
        let (Columns { at, vectors, lanes }, Ahead { at: ahead, lines }) = (columns, ahead);
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
                let weights = Factors { count: size, emit: &weight };
                outer_product(b, &mut sums, &weights, &Factors { count: vectors, emit: &value });
            }
            sums
        });
        for (i, sum) in sums.iter().enumerate() {
            b.store(s.buffer, acc_at(i as i64 / vectors, i as i64 % vectors), *sum);
        }
    }

    /// Emits [`Attend::weigh`] for values in a block format. An iteration handles several panels,
    /// or some vectors of one panel.
    fn weigh_integers(&self, b: &mut KernelBuilder, blocks: &Blocks, queries: &QueryTile) {
        let QueryTile { places, block, first, size, prefetch, .. } = *queries;
        let lanes = self.lanes.min(blocks.len() as u16 / blocks.codes_per_byte() as u16);
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
}
