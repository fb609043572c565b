//! Tiles of bf16 and their products: 16 rows of 32 summed elements, times 16 columns of which a tile's row has two elements each, give 16 x 16 f32.
//!
//! What does not fit bf16 is split in two, high and low; of four products the one of both low parts is left out.

use ixc_ir::kernel::{Elem, KernelBuilder, Op, Type, ValueId};

/// Rows of a tile, and of a strip of what fills tiles.
pub const ROWS: i64 = 16;
/// f32 lanes of a vector, and columns of a tile.
pub const LANES: u16 = 16;
/// Summed elements of a product.
pub const STEP: i64 = 32;
/// Bytes of a tile's row.
pub const LINE: i64 = 64;
/// Bytes of a tile.
pub const TILE: i64 = 1024;
/// The upper half of a single: a bf16.
pub const UPPER: i64 = 0xffff_0000u32 as i32 as i64;

/// A factor.
pub const BF16: Type = Type::tile(Elem::Bf16, 16, 32);
/// Sums.
pub const SUM: Type = Type::tile(Elem::F32, 16, 16);

/// Makes a tile of a product: of which rows or columns, counted in tiles, and which part.
pub type Make<'a> = &'a dyn Fn(&mut KernelBuilder, i64, i64) -> ValueId;

/// Tiles of one side of a product: parts, how many tiles there are side by side, and each.
pub type Side<'a> = (i64, i64, Make<'a>);

/// Adds `rows(row) * columns(column)` to `sums[row][column]`: high times high, low times high, high times low, of the parts that there are.
pub fn multiply(
    b: &mut KernelBuilder,
    sums: &mut [ValueId],
    (row_parts, height, rows): Side<'_>,
    (column_parts, width, columns): Side<'_>,
) {
    for row_part in 0..row_parts {
        let rows: Vec<ValueId> = (0..height).map(|row| rows(b, row, row_part)).collect();
        for column_part in 0..column_parts.min(2 - row_part) {
            for column in 0..width {
                let right = columns(b, column, column_part);
                for (row, left) in (0i64..).zip(&rows) {
                    let sum = &mut sums[(row * width + column) as usize];
                    *sum = b.tile_dot(Op::TileDotBf16, *sum, *left, right);
                }
            }
        }
    }
}

/// The upper halves of singles, or of dwords, in place; the lower halves are zeros.
pub fn cut(b: &mut KernelBuilder, value: ValueId) -> ValueId {
    let dwords = Type::i32(b.ty(value).lanes);
    let (bits, upper) = (b.bitcast(dwords, value), b.splat_int(dwords, UPPER));
    b.same(Op::And, &[bits, upper])
}

/// Upper halves of dwords in pairs, of `even` the lower words; the lower halves of `odd` must be zeros.
pub fn pair(b: &mut KernelBuilder, even: ValueId, odd: ValueId) -> ValueId {
    let even = b.shift(Op::ShrU, even, 16);
    b.same(Op::Or, &[odd, even])
}
