//! Scores of a block: products of queries and keys, with sums in registers over the elements of a
//! key.

use ixc_ir::kernel::{Affine, KernelBuilder, Op, Type, ValueId};

use super::{
    Attend, BLOCK, Factors, KEYS, LINE, MASKED, PLACE, QueryTile, ROUNDED_QUERY_BYTES, SLOPE, UNROLL, half_tile,
    outer_product, query_bytes, tile,
};
use crate::generator::cache::Blocks;
use crate::generator::math;

impl Attend {
    /// Emits the scores of a tile of queries for one block.
    pub(super) fn scores(&self, b: &mut KernelBuilder, queries: &QueryTile) {
        let QueryTile { places, block, first, size, prefetch, .. } = *queries;
        if let Some(blocks) = places.of_keys.codes() {
            return self.scores_of_bytes(b, &blocks, queries);
        }
        let (lanes, width, s) = (self.lanes, i64::from(self.lanes), &self.scratch);
        // Number of vectors of positions: at least those of one interleaved group, and at most
        // those of a block.
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
                    let queries = Factors { count: size, emit: &query };
                    outer_product(b, &mut sums, &queries, &Factors { count: vectors, emit: &key });
                }
                sums
            });
            self.put(b, queries, &(part * (vectors * width)), &sums);
        });
    }

    /// Stores the scores of a tile. They are vectors of positions, from position `at` of the block
    /// on.
    fn put(&self, b: &mut KernelBuilder, queries: &QueryTile, at: &Affine, scores: &[ValueId]) {
        let QueryTile { places, block, first, size, masked, .. } = *queries;
        let (lanes, width, s) = (self.lanes, i64::from(self.lanes), &self.scratch);
        let vectors = scores.len() as i64 / size;
        let lowest = b.splat_f32(lanes, MASKED);
        let iota = b.op(Op::Iota, Type::i32(lanes), &[]);
        for v in 0..vectors {
            let position = (masked || self.slopes.is_some()).then(|| {
                let start = places.first.map_or(block.clone(), |first| block.clone() + first);
                let p = b.index(start * BLOCK + at.clone() + v * width);
                let p = b.broadcast(lanes, p);
                b.iadd(p, iota)
            });
            let place = self.slopes.and(position).map(|p| b.op(Op::ToF32, Type::f32(lanes), &[p]));
            for query in 0..size {
                let query_at = first.clone() + query;
                let mut score = scores[(query * vectors + v) as usize];
                if let Some(cap) = self.scores.cap {
                    score = math::softcap(b, score, cap.value());
                }
                if let Some(place) = place {
                    let stats = query_at.clone() * s.stats_bytes + s.stats;
                    let (own, slope) =
                        (self.splat(b, stats.clone() + PLACE, lanes), self.splat(b, stats + SLOPE, lanes));
                    let before = b.sub(place, own);
                    score = b.fma(before, slope, score);
                }
                if let Some(position) = position.filter(|_| masked) {
                    let own = b.load_splat(
                        Type::i32(lanes),
                        s.buffer,
                        query_at.clone() * s.stats_bytes + (s.stats + places.last),
                    );
                    let after = b.same(Op::CmpGt, &[position, own]);
                    score = b.op(Op::Select, Type::f32(lanes), &[after, lowest, score]);
                    if let Some(end) = places.end {
                        let end = b.index(Affine::from(end));
                        let end = b.broadcast(lanes, end);
                        let behind = b.same(Op::CmpGt, &[position, end]);
                        score = b.op(Op::Select, Type::f32(lanes), &[behind, lowest, score]);
                    }
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
                }
                b.store(s.buffer, query_at * (BLOCK * 4) + at.clone() * 4 + (v * width * 4 + s.p), score);
            }
        }
    }

    /// Emits the scores for keys in a block format. They are sums of products of bytes, for each
    /// block of the head.
    fn scores_of_bytes(&self, b: &mut KernelBuilder, blocks: &Blocks, queries: &QueryTile) {
        let QueryTile { places, block, first, size, prefetch, .. } = *queries;
        let (lanes, width, s) = (self.lanes, i64::from(self.lanes), &self.scratch);
        let (f32s, i32s, i8s) = (Type::f32(lanes), Type::i32(lanes), Type::i8(4 * lanes));
        let most = half_tile(lanes);
        // An iteration computes several groups of interleaved positions, or some vectors of one
        // group.
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
                            + e * (blocks.len() + ROUNDED_QUERY_BYTES)
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
                        for part in 0..blocks.codes_per_byte() {
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
                self.put(b, queries, &position, &sums);
            }
        });
    }
}
