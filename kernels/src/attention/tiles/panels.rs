//! Panels: keys and values as tiles of bf16. A tile has 32 summed elements and 16 columns. Each of
//! its rows has 64 bytes, in which two summed elements of a column are adjacent.
//!
//! ```text
//! keys      [d / 2] rows for every 16 positions: elements 2i and 2i + 1, two lines of the cache;
//!           first the high parts of all, then the low parts
//! values    [32 positions][dv / 16] tiles: row i has positions i and 16 + i of the block;
//!           first the high parts of all, then the low parts, if any
//! ```
//!
//! Positions may have any order, as long as values and weights have the same. With this order, two
//! vectors of weights become one vector of bf16 lane by lane.

use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};
use ixc_ir::plan::{ATTENTION_BLOCK, KEY_LANES};

use super::RUN;
use crate::generator::bf16_tile::{self, LANES, LINE, TILE, pair};
use crate::generator::cache::{Blocks, Field};
use crate::generator::vectors::for_rest;

pub(super) const BLOCK: i64 = ATTENTION_BLOCK as i64;
pub(super) const KEYS: i64 = KEY_LANES as i64;
/// Sizes of key and value heads, and the same sizes padded to whole tiles.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) d: i64,
    pub(super) dv: i64,
    pub(super) padded_d: i64,
    pub(super) padded_dv: i64,
    /// Number of bf16 parts of a weight or a value. Queries and keys always have two.
    pub(super) parts: i64,
}

impl Sizes {
    /// Returns the distance in bytes from the high parts of keys to the low parts.
    pub(super) fn low_keys(&self) -> i64 {
        RUN * self.padded_d * 2
    }

    /// Returns the number of bytes of the panel of keys.
    pub(super) fn keys_bytes(&self) -> i64 {
        2 * self.low_keys()
    }

    /// Returns the distance in bytes from the high parts of values to the low parts.
    pub(super) fn low_values(&self) -> i64 {
        RUN * self.padded_dv * 2
    }

    /// Returns the number of bytes of the panel of values.
    pub(super) fn values_bytes(&self) -> i64 {
        self.parts * self.low_values()
    }

    /// Returns the number of bytes of a query: high parts, then low parts.
    pub(super) fn query_bytes(&self) -> i64 {
        2 * self.padded_d * 2
    }
}

/// Panels in scratch memory, and the buffers of the KV cache that they are filled from.
pub(super) struct Panels {
    pub(super) sizes: Sizes,
    pub(super) keys: BufferId,
    pub(super) values: BufferId,
    pub(super) of_keys: Field,
    pub(super) of_values: Field,
    /// Scratch memory that contains the panels.
    pub(super) scratch: BufferId,
    pub(super) keys_at: i64,
    pub(super) values_at: i64,
}

impl Panels {
    /// Writes zeros to the padding of the panels. [`Panels::fill`] does not overwrite it.
    pub(super) fn clear(&self, b: &mut KernelBuilder) {
        let Sizes { d, dv, padded_d, padded_dv, .. } = self.sizes;
        let mut fill = |at: i64, bytes: i64| {
            let zeros = b.splat_int(Type::i32(LANES), 0);
            b.for_each("line", bytes / LINE, |b, line| b.store(self.scratch, line * LINE + at, zeros));
        };
        if padded_d > d {
            fill(self.keys_at, self.sizes.keys_bytes());
        }
        if padded_dv > dv {
            fill(self.values_at, self.sizes.values_bytes());
        }
    }

    /// Fills the panels from `blocks` blocks of the cache, from the block `first` on. Also
    /// prefetches the blocks after them.
    pub(super) fn fill(&self, b: &mut KernelBuilder, first: &Affine, blocks: &Affine) {
        b.for_each("block", blocks.clone(), |b, block| {
            let from = first.clone() + block;
            b.for_each("strip", BLOCK / KEYS, |b, strip| {
                self.keys(b, &from, block * (BLOCK / KEYS) + strip, strip.into());
            });
            b.for_each("i", BLOCK / 2, |b, i| self.values(b, &from, block.into(), i.into()));
        });
    }

    /// Converts 16 positions of keys: group `from` of a block, to group `to` of the panel.
    fn keys(&self, b: &mut KernelBuilder, block: &Affine, to: Affine, from: Affine) {
        let Sizes { d, padded_d, .. } = self.sizes;
        if let Some(blocks) = self.of_keys.codes() {
            return self.integer_keys(b, &blocks, block, to, from);
        }
        let line = KEYS * 2;
        let from = block.clone() * (BLOCK * d * 2) + from * (KEYS * d * 2);
        let to = to * (padded_d / 2 * LINE) + self.keys_at;
        let unroll = [4, 2, 1].into_iter().find(|n| (d / 2) % n == 0).unwrap_or(1);
        let key = |b: &mut KernelBuilder, at: Affine| {
            let key = b.load(Type::f16(LANES), self.keys, at);
            let key = b.op(Op::F16ToF32, Type::f32(LANES), &[key]);
            Parts::split_exact(b, key)
        };
        let store = |b: &mut KernelBuilder, at: Affine, even: &Parts, odd: &Parts| {
            self.put_keys(b, to.clone() + at, even, odd);
        };
        b.for_each("pair", d / 2 / unroll, |b, i| {
            for u in 0..unroll {
                let at = from.clone() + i * (unroll * 2 * line) + u * 2 * line;
                b.prefetch(self.keys, at.clone() + RUN * d * 2);
                let (even, odd) = (key(b, at.clone()), key(b, at + line));
                store(b, i * (unroll * LINE) + u * LINE, &even, &odd);
            }
        });
        if d % 2 == 1 {
            let even = key(b, from + (d - 1) * line);
            let none = b.splat_int(Type::i32(LANES), 0);
            store(b, Affine::constant(d / 2 * LINE), &even, &Parts { high: none, low: none });
        }
    }

    /// Stores a row of a tile of keys: the elements `even` and `odd` of 16 positions.
    fn put_keys(&self, b: &mut KernelBuilder, at: Affine, even: &Parts, odd: &Parts) {
        let (high, low) = (pair(b, even.high, odd.high), pair(b, even.low, odd.low));
        b.store(self.scratch, at.clone(), high);
        b.store(self.scratch, at + self.sizes.low_keys(), low);
    }

    /// Does the same as [`Panels::keys`] for keys in a block format. Heads have whole blocks, so
    /// each row of a tile has both elements.
    fn integer_keys(&self, b: &mut KernelBuilder, blocks: &Blocks, block: &Affine, to: Affine, from: Affine) {
        let strip = self.of_keys.strip_bytes();
        let from = block.clone() * self.of_keys.block_bytes() + from * strip;
        let to = to * (self.sizes.padded_d / 2 * LINE) + self.keys_at;
        b.for_each("panel", blocks.count, |b, i| {
            let panel = from.clone() + i * blocks.panel();
            for line in 0..(blocks.panel() + LINE - 1) / LINE {
                b.prefetch(self.keys, panel.clone() + (RUN / KEYS * strip + line * LINE));
            }
            let scale = blocks.scales(b, LANES, self.keys, panel.clone(), 0);
            for dword in 0..blocks.dwords() {
                let dwords = b.load(Type::i32(LANES), self.keys, panel.clone() + blocks.dword(dword));
                for part in 0..blocks.codes_per_byte() {
                    let codes = blocks.codes(b, dwords, part);
                    for byte in [0, 2] {
                        let [even, odd] = [byte, byte + 1].map(|byte| {
                            let key = blocks.key(b, codes, byte);
                            let key = b.mul(key, scale);
                            Parts::cut(b, key)
                        });
                        let row = i * (blocks.len() / 2) + (blocks.element(dword, part) + byte) / 2;
                        self.put_keys(b, to.clone() + row * LINE, &even, &odd);
                    }
                }
            }
        });
    }

    /// Stores values of two positions, which share a row of a tile. `parts` splits a value into two
    /// bf16, if the panel has high and low parts.
    fn put_values(
        &self,
        b: &mut KernelBuilder,
        to: Affine,
        near: ValueId,
        far: ValueId,
        parts: fn(&mut KernelBuilder, ValueId) -> Parts,
    ) {
        if self.sizes.parts == 1 {
            let both = b.to_bf16_pairs(near, far);
            b.store(self.scratch, to, both);
            return;
        }
        let (near, far) = (parts(b, near), parts(b, far));
        let (high, low) = (pair(b, near.high, far.high), pair(b, near.low, far.low));
        b.store(self.scratch, to.clone(), high);
        b.store(self.scratch, to + self.sizes.low_values(), low);
    }

    /// Does the same as [`Panels::values`] for values in a block format. Heads have whole blocks,
    /// so no tile has missing columns.
    fn integer_values(&self, b: &mut KernelBuilder, blocks: &Blocks, from: &Affine, to: Affine, i: Affine) {
        let strip = self.of_values.strip_bytes();
        let from = from.clone() * self.of_values.block_bytes();
        b.for_each("panel", blocks.count, |b, column| {
            let panels = [0, strip].map(|strip| from.clone() + column * blocks.panel() + strip);
            let scales = panels.clone().map(|panel| {
                b.prefetch(self.values, panel.clone() + blocks.position(i.clone()) + RUN / KEYS * strip);
                let d = blocks.scales(b, 1, self.values, panel + i.clone() * 2, 0);
                b.broadcast(LANES, d)
            });
            for part in 0..blocks.len() / i64::from(LANES) {
                let [near, far] = [0, 1].map(|half: usize| {
                    let codes = panels[half].clone() + blocks.position(i.clone());
                    let value = blocks.value(b, LANES, self.values, codes, part * i64::from(LANES));
                    b.mul(value, scales[half])
                });
                let tile = column * (blocks.len() / i64::from(LANES)) + part;
                self.put_values(b, to.clone() + tile * TILE, near, far, Parts::cut);
            }
        });
    }

    /// Converts the values of two positions of a block, which are row `i` of its tiles.
    fn values(&self, b: &mut KernelBuilder, from: &Affine, block: Affine, i: Affine) {
        let Sizes { dv, padded_dv, .. } = self.sizes;
        let row = from.clone() * (BLOCK * dv * 2) + i.clone() * (dv * 2);
        let to = block * (padded_dv / i64::from(LANES) * TILE) + i.clone() * LINE + self.values_at;
        if let Some(blocks) = self.of_values.codes() {
            return self.integer_values(b, &blocks, from, to, i);
        }
        let put = |b: &mut KernelBuilder, at: Affine, lanes: u16, to: Affine| {
            let value = |b: &mut KernelBuilder, row: Affine| {
                let v = b.load(Type::f16(lanes), self.values, row);
                b.op(Op::F16ToF32, Type::f32(lanes), &[v])
            };
            let near = row.clone() + at * 2;
            let (near, far) = (value(b, near.clone()), value(b, near + KEYS * dv * 2));
            self.put_values(b, to, near, far, Parts::split_exact);
        };
        let whole = dv / i64::from(LANES);
        // A cache line has two vectors, so every second vector prefetches a line.
        let unroll = [4, 2, 1].into_iter().find(|n| whole % n == 0).unwrap_or(1);
        b.for_each("column", whole / unroll, |b, c| {
            for u in 0..unroll {
                let at = c * (unroll * i64::from(LANES)) + u * i64::from(LANES);
                if u % 2 == 0 {
                    for row_of in [0, KEYS] {
                        b.prefetch(self.values, row.clone() + at.clone() * 2 + (RUN + row_of) * dv * 2);
                    }
                }
                put(b, at, LANES, to.clone() + c * (unroll * TILE) + u * TILE);
            }
        });
        for_rest(b, LANES, dv as u32, &mut |b, at, lanes| {
            let place = at.constant / i64::from(LANES) * TILE + at.constant % i64::from(LANES) * 4;
            put(b, at, lanes, to.clone() + place);
        });
    }
}

/// A vector of f32 values, each split into two bf16 that are in the upper halves of dwords. The
/// first bf16 is the value without its lower half. The second is the difference between the value
/// and the first.
struct Parts {
    high: ValueId,
    low: ValueId,
}

impl Parts {
    /// Splits f32 values that have more than 16 significant bits. The second bf16 is truncated.
    fn cut(b: &mut KernelBuilder, value: ValueId) -> Parts {
        let Parts { high, low } = Parts::split_exact(b, value);
        Parts { high, low: bf16_tile::cut(b, low) }
    }

    /// Splits f32 values that have up to 16 significant bits. The result is exact.
    fn split_exact(b: &mut KernelBuilder, value: ValueId) -> Parts {
        let lanes = b.ty(value).lanes;
        let high = bf16_tile::cut(b, value);
        let exact = b.bitcast(Type::f32(lanes), high);
        let low = b.sub(value, exact);
        Parts { high, low: b.bitcast(Type::i32(lanes), low) }
    }
}
