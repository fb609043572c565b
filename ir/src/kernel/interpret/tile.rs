//! Tile ops of the interpreter. A tile is a matrix of bytes, stored row after row without gaps.
//!
//! ```text
//! acc : tile<2x3xi32>, a : tile<2x8xi8>, b : tile<2x12xi8>
//! acc[m][n] += a[m][4k + j] * b[k][4n + j]      over k in 0..2 and j in 0..4
//! ```

use super::{InterpretError, Machine, bf16, int};
use crate::kernel::{Inst, Op, Type};

/// Bytes of a tile, row after row.
pub type Tile = Vec<u8>;

impl Machine<'_> {
    /// Reads a tile's rows from a buffer.
    pub fn tile_load(&self, inst: &Inst) -> Result<Tile, InterpretError> {
        let (op, stride) = (inst.op.row().mnemonic, int(&inst.imm));
        let Some(address) = &inst.address else { return Ok(Tile::new()) };
        if !self.kernel.buffers[address.buffer.index()].kind.may_load() {
            return Err(self.forbidden(op, address.buffer));
        }
        let at = self.place(op, address, inst.ty.extent(stride as i64).unwrap_or(u64::MAX))?;
        let (buffer, bytes) = (&self.buffers[address.buffer.index()], inst.ty.row_bytes() as usize);
        Ok((0..usize::from(inst.ty.rows)).flat_map(|row| &buffer[at + row * stride..][..bytes]).copied().collect())
    }

    /// Writes a tile's rows to a buffer.
    pub fn tile_store(&mut self, inst: &Inst) -> Result<(), InterpretError> {
        let (op, stride) = (inst.op.row().mnemonic, int(&inst.imm));
        let Some(address) = &inst.address else { return Ok(()) };
        if !self.kernel.buffers[address.buffer.index()].kind.may_store() {
            return Err(self.forbidden(op, address.buffer));
        }
        let at = self.place(op, address, inst.ty.extent(stride as i64).unwrap_or(u64::MAX))?;
        let (buffer, value) = (&mut self.buffers[address.buffer.index()], &self.tiles[inst.operands[0].index()]);
        for i in 0..usize::from(inst.ty.rows) {
            let bytes = &value[row(inst.ty, i)];
            buffer[at + i * stride..][..bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Returns the tile that a `tile_dot_` op computes.
    pub fn tile_dot(&self, inst: &Inst) -> Tile {
        let acc = &self.tiles[inst.operands[0].index()];
        let factor = |i: usize, signed: bool| {
            let value = inst.operands[i];
            Factor { tile: &self.tiles[value.index()], ty: self.kernel.ty(value), signed }
        };
        let of_bytes = |a: bool, b: bool| dot_bytes(inst.ty, acc, factor(1, a), factor(2, b));
        match inst.op {
            Op::TileDotS8S8 => of_bytes(true, true),
            Op::TileDotS8U8 => of_bytes(true, false),
            Op::TileDotU8S8 => of_bytes(false, true),
            Op::TileDotU8U8 => of_bytes(false, false),
            _ => dot_bf16(inst.ty, acc, factor(1, true), factor(2, true)),
        }
    }

    /// Sets the result of an instruction to a tile.
    pub fn set_tile(&mut self, inst: &Inst, tile: Tile) -> Result<(), InterpretError> {
        if let Some(value) = inst.result {
            self.tiles[value.index()] = tile;
        }
        Ok(())
    }
}

/// Returns the range of bytes of one row of a tile.
fn row(ty: Type, row: usize) -> std::ops::Range<usize> {
    let bytes = ty.row_bytes() as usize;
    row * bytes..(row + 1) * bytes
}

/// Factor of a product of two tiles.
#[derive(Clone, Copy)]
struct Factor<'a> {
    tile: &'a Tile,
    ty: Type,
    /// Whether the bytes of the factor are signed. Factors of bf16 are always signed.
    signed: bool,
}

impl Factor<'_> {
    /// Returns the four bytes of the factor in row `m` and column `n`.
    fn column(self, m: usize, n: usize) -> [u8; 4] {
        column(self.tile, self.ty, m, n)
    }

    /// Returns the value of a byte, signed or unsigned as the factor requires.
    fn number(self, byte: u8) -> i32 {
        if self.signed { i32::from(byte as i8) } else { i32::from(byte) }
    }
}

/// Returns the four bytes in row `m` and column `n`. They hold one sum, two bf16 numbers or four
/// integers.
fn column(tile: &Tile, ty: Type, m: usize, n: usize) -> [u8; 4] {
    tile[row(ty, m)].as_chunks().0[n]
}

/// Adds the dot products of groups of four integers to `acc`. Sums wrap.
fn dot_bytes(ty: Type, acc: &Tile, a: Factor<'_>, b: Factor<'_>) -> Tile {
    let mut result = Tile::with_capacity(acc.len());
    for m in 0..usize::from(ty.rows) {
        for n in 0..usize::from(ty.lanes) {
            let mut sum = i32::from_le_bytes(column(acc, ty, m, n));
            for k in 0..usize::from(b.ty.rows) {
                for (x, y) in a.column(m, k).into_iter().zip(b.column(k, n)) {
                    sum = sum.wrapping_add(a.number(x) * b.number(y));
                }
            }
            result.extend(sum.to_le_bytes());
        }
    }
    result
}

/// Adds the dot products of bf16 pairs to `acc`. The products of even elements and of odd elements
/// have separate sums, which are added at the end.
fn dot_bf16(ty: Type, acc: &Tile, a: Factor<'_>, b: Factor<'_>) -> Tile {
    let single = |pair: [u8; 4], i: usize| bf16::to_f32(u16::from_le_bytes([pair[2 * i], pair[2 * i + 1]]));
    let mut result = Tile::with_capacity(acc.len());
    for m in 0..usize::from(ty.rows) {
        for n in 0..usize::from(ty.lanes) {
            let mut sums = [0.0; 2];
            for k in 0..usize::from(b.ty.rows) {
                let (a, b) = (a.column(m, k), b.column(k, n));
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = bf16::fma(single(a, i), single(b, i), *sum);
                }
            }
            let acc = f32::from_le_bytes(column(acc, ty, m, n));
            result.extend(bf16::add(acc, bf16::add(sums[0], sums[1])).to_le_bytes());
        }
    }
    result
}
