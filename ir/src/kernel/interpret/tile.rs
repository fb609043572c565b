//! The tile ops of the interpreter: matrices of bytes, row after row without gaps.
//!
//! ```text
//! acc : tile<2x3xi32>, a : tile<2x8xi8>, b : tile<2x12xi8>
//! acc[m][n] += a[m][4k + j] * b[k][4n + j]      over k in 0..2 and j in 0..4
//! ```

use super::{InterpretError, Machine, bf16, int};
use crate::kernel::{Inst, Op, Type};

/// The bytes of a tile.
pub type Tile = Vec<u8>;

impl Machine<'_> {
    /// Returns the rows at an address.
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

    /// Writes the rows to an address.
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

    /// Returns the result of a `tile_dot_` op.
    pub fn tile_dot(&self, inst: &Inst) -> Tile {
        let [acc, a, b] = [0, 1, 2].map(|i| &self.tiles[inst.operands[i].index()]);
        let [a_ty, b_ty] = [1, 2].map(|i| self.kernel.ty(inst.operands[i]));
        let signed = |a_signed: bool, b_signed: bool| dot_bytes(inst.ty, acc, (a, a_ty, a_signed), (b, b_ty, b_signed));
        match inst.op {
            Op::TileDotS8S8 => signed(true, true),
            Op::TileDotS8U8 => signed(true, false),
            Op::TileDotU8S8 => signed(false, true),
            Op::TileDotU8U8 => signed(false, false),
            _ => dot_bf16(inst.ty, acc, (a, a_ty), (b, b_ty)),
        }
    }

    /// Sets the result.
    pub fn set_tile(&mut self, inst: &Inst, tile: Tile) -> Result<(), InterpretError> {
        if let Some(value) = inst.result {
            self.tiles[value.index()] = tile;
        }
        Ok(())
    }
}

/// Returns the place of a row in a tile's bytes.
fn row(ty: Type, row: usize) -> std::ops::Range<usize> {
    let bytes = ty.row_bytes() as usize;
    row * bytes..(row + 1) * bytes
}

/// Returns column `n` of row `m`. A column has 4 bytes: one sum, two bf16 or four bytes.
fn column(tile: &Tile, ty: Type, m: usize, n: usize) -> [u8; 4] {
    tile[row(ty, m)].as_chunks().0[n]
}

/// Returns a signed or an unsigned byte.
fn byte(bits: u8, signed: bool) -> i32 {
    if signed { i32::from(bits as i8) } else { i32::from(bits) }
}

/// Adds the dot products of groups of 4 bytes to `acc`; sums wrap.
fn dot_bytes(ty: Type, acc: &Tile, (a, a_ty, a_signed): Factor, (b, b_ty, b_signed): Factor) -> Tile {
    let mut result = Tile::with_capacity(acc.len());
    for m in 0..usize::from(ty.rows) {
        for n in 0..usize::from(ty.lanes) {
            let mut sum = i32::from_le_bytes(column(acc, ty, m, n));
            for k in 0..usize::from(b_ty.rows) {
                let (a, b) = (column(a, a_ty, m, k), column(b, b_ty, k, n));
                for (a, b) in a.into_iter().zip(b) {
                    sum = sum.wrapping_add(byte(a, a_signed) * byte(b, b_signed));
                }
            }
            result.extend(sum.to_le_bytes());
        }
    }
    result
}

/// A tile of bytes, its type, and whether its bytes are signed.
type Factor<'a> = (&'a Tile, Type, bool);

/// Adds the dot products of bf16 pairs to `acc`. Even and odd products have separate sums, which
/// are added at the end.
fn dot_bf16(ty: Type, acc: &Tile, (a, a_ty): (&Tile, Type), (b, b_ty): (&Tile, Type)) -> Tile {
    let single = |pair: [u8; 4], i: usize| bf16::to_f32(u16::from_le_bytes([pair[2 * i], pair[2 * i + 1]]));
    let mut result = Tile::with_capacity(acc.len());
    for m in 0..usize::from(ty.rows) {
        for n in 0..usize::from(ty.lanes) {
            let mut sums = [0.0; 2];
            for k in 0..usize::from(b_ty.rows) {
                let (a, b) = (column(a, a_ty, m, k), column(b, b_ty, k, n));
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
