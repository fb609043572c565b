//! Tile ops in random kernels.
//!
//! A kernel has the three tile shapes of one matrix product, and few live tiles. Every target with
//! tile registers can thus compile it. Tiles of floats are loaded from a buffer that the kernel
//! fills with finite numbers below 2. Only products of tiles add to accumulators. Tiles thus
//! contain no NaN, whose bits could not be compared.

use super::*;

/// Bytes of each of the two buffers for tiles.
pub const BYTES: i64 = 2048;
/// Maximum number of accumulators in scope.
const POOLED: usize = 2;

/// State of the generator for tiles.
pub struct Tiles {
    /// Buffer from which tiles are loaded. In each word, the top bit of the exponent is zero, both
    /// as f32 and as two bf16.
    pub input: BufferId,
    /// Buffer to which tiles are stored.
    pub output: BufferId,
    /// Rows of accumulators and of left factors.
    m: u8,
    /// Columns of accumulators.
    n: u8,
    /// Rows of right factors.
    k: u8,
    /// Accumulators in scope, each with the number of loops around it.
    pool: Vec<(ValueId, usize)>,
}

impl Tiles {
    /// Adds the buffers to the kernel. Fills the input buffer from `x`, which must have at least
    /// 336 bytes.
    pub fn new(rng: &mut Random, b: &mut KernelBuilder, x: BufferId) -> Tiles {
        let input = b.buffer("tile_in", BufferKind::Scratch, BYTES);
        let output = b.buffer("tile_out", BufferKind::ReadWrite, BYTES);
        let words = Type::i32(8);
        let mask = b.splat_int(words, 0xbfff_bfff);
        let salt = b.splat_int(words, rng.below(1 << 32) as i64);
        b.for_each("fill", BYTES / 64, |b, i| {
            let low = b.load(words, x, i * 8);
            let high = b.load(words, x, i * 8 + 56);
            let high = b.same(Op::Xor, &[high, salt]);
            for (half, word) in [low, high].into_iter().enumerate() {
                let word = b.same(Op::And, &[word, mask]);
                b.store(input, i * 64 + half as i64 * 32, word);
            }
        });
        let mut size = |most: u64| if rng.once_in(3) { most as u8 } else { 1 + rng.below(most) as u8 };
        Tiles { input, output, m: size(16), n: size(16), k: size(16), pool: Vec::new() }
    }
}

impl Generator {
    /// Adds one statement with this op, and statements for its operands. Does nothing if the kernel
    /// has no tiles.
    pub(super) fn tile_op(&mut self, op: Op, depth: usize) {
        let Some(&Tiles { m, n, k, output, .. }) = self.tiles.as_ref() else { return };
        let sums = self.rng.pick(&[Elem::I32, Elem::F32]);
        let acc = Type::tile(sums, m, n.into());
        let (elem, factor_sums) = match op {
            Op::TileDotBf16 => (Elem::Bf16, Elem::F32),
            _ => (Elem::I8, Elem::I32),
        };
        let group = (4 / elem.bytes()) as u16;
        let factors = [Type::tile(elem, m, u16::from(k) * group), Type::tile(elem, k, u16::from(n) * group)];
        match op {
            Op::TileZero => {
                let zero = self.b.tile_zero(acc);
                self.push_tile(zero, depth);
            }
            Op::TileLoad => {
                let loaded = self.load_tile(acc);
                self.push_tile(loaded, depth);
                let factor = self.rng.pick(&factors);
                let loaded = self.load_tile(factor);
                self.store_tile(output, loaded);
            }
            Op::TileStore => {
                let value = self.accumulator(sums, depth);
                let buffer = self.rng.pick(&self.stores);
                let room = &self.sizes[buffer.index()];
                let fits = room.constant >= i64::from(acc.bytes());
                self.store_tile(if fits { buffer } else { output }, value);
            }
            _ => {
                let acc = self.accumulator(factor_sums, depth);
                let [a, b] = factors.map(|ty| self.load_tile(ty));
                let value = self.b.tile_dot(op, acc, a, b);
                self.push_tile(value, depth);
            }
        }
    }

    /// Stores the tiles that are in scope at the end, so that tests can compare them.
    pub(super) fn store_tiles(&mut self) {
        let Some(tiles) = &self.tiles else { return };
        let output = tiles.output;
        for (value, _) in tiles.pool.clone() {
            self.store_tile(output, value);
        }
    }

    /// Returns the tile that a loop at `depth` carries, if any.
    pub(super) fn carried_tile(&mut self, depth: usize) -> Option<ValueId> {
        if self.tiles.is_none() || self.rng.once_in(3) {
            return None;
        }
        let elem = self.rng.pick(&[Elem::I32, Elem::F32]);
        Some(self.accumulator(elem, depth))
    }

    /// Returns a tile with the shape of the accumulators.
    pub(super) fn accumulator(&mut self, elem: Elem, depth: usize) -> ValueId {
        let Some(tiles) = &self.tiles else { return ValueId(u32::MAX) };
        let ty = Type::tile(elem, tiles.m, tiles.n.into());
        if let Some(&(value, _)) = tiles.pool.iter().rev().find(|(value, _)| self.b.ty(*value) == ty) {
            return value;
        }
        let value = if self.rng.once_in(2) { self.b.tile_zero(ty) } else { self.load_tile(ty) };
        self.push_tile(value, depth);
        value
    }

    /// Makes a tile available as an operand. If there are too many, drops the oldest one.
    pub(super) fn push_tile(&mut self, value: ValueId, depth: usize) {
        let Some(tiles) = &mut self.tiles else { return };
        tiles.pool.push((value, depth));
        if tiles.pool.len() > POOLED {
            tiles.pool.remove(0);
        }
    }

    /// Prepares the generator for a loop's body. An inner loop can use only the tiles that it
    /// carries, because other tiles of outer loops would stay live during the inner loop.
    pub(super) fn enter_loop(&mut self, depth: usize) {
        if let Some(tiles) = &mut self.tiles
            && depth > 0
        {
            tiles.pool.clear();
        }
    }

    /// Drops the tiles of a loop's body at its end.
    pub(super) fn leave_tiles(&mut self, depth: usize) {
        if let Some(tiles) = &mut self.tiles {
            tiles.pool.retain(|(_, defined)| *defined <= depth);
        }
    }

    fn load_tile(&mut self, ty: Type) -> ValueId {
        let Some(tiles) = &self.tiles else { return ValueId(u32::MAX) };
        let input = tiles.input;
        // At offsets that are not multiples of a word, numbers of the input may not be finite.
        let unit = if matches!(ty.elem, Elem::F32 | Elem::Bf16) { 4 } else { 1 };
        let stride = self.stride(ty, 0) / unit * unit;
        let offset = self.offset(input, ty.extent(stride).unwrap_or(0) as u32, unit);
        self.b.tile_load(ty, input, offset, stride)
    }

    fn store_tile(&mut self, buffer: BufferId, value: ValueId) {
        let ty = self.b.ty(value);
        let row = i64::from(ty.row_bytes());
        let stride = if self.tiles.as_ref().is_some_and(|t| t.output == buffer) { self.stride(ty, row) } else { row };
        let offset = self.offset(buffer, ty.extent(stride).unwrap_or(0) as u32, 1);
        self.b.tile_store(buffer, offset, value, stride);
    }

    /// Returns a random stride of at least `least` with which a tile fits its buffer. Often, there
    /// are no gaps between rows.
    fn stride(&mut self, ty: Type, least: i64) -> i64 {
        let row = i64::from(ty.row_bytes());
        let most = (BYTES - row) / i64::from(ty.rows).saturating_sub(1).max(1);
        if self.rng.once_in(3) { row } else { least + self.rng.below((most - least) as u64 + 1) as i64 }
    }
}
