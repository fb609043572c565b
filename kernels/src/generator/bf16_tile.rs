//! Products of bf16 tiles. The first tile has 16 rows of 32 summed elements. The second has 16
//! columns, and each of its rows has two summed elements of every column. Their product is a tile
//! of 16 x 16 f32.
//!
//! A number that bf16 cannot represent is split into a high and a low part. Of the four products of
//! parts, the product of the two low parts is omitted.

use ixc_ir::kernel::{Elem, KernelBuilder, Op, Type, ValueId};

/// Number of rows of a tile.
pub const ROWS: i64 = 16;
/// Number of f32 lanes of a vector, and of columns of a tile.
pub const LANES: u16 = 16;
/// Number of summed elements of a product.
pub const STEP: i64 = 32;
/// Number of bytes of a tile's row.
pub const LINE: i64 = 64;
/// Number of bytes of a tile.
pub const TILE: i64 = 1024;
/// Mask of the upper half of an f32, which is a bf16.
pub const UPPER: i64 = 0xffff_0000u32 as i32 as i64;

/// Type of a factor of a product.
pub const BF16: Type = Type::tile(Elem::Bf16, 16, 32);
/// Type of the sums of products.
pub const SUM: Type = Type::tile(Elem::F32, 16, 16);

/// Factors of one side of a product.
pub struct Side<'a> {
    /// Number of bf16 parts of each number.
    pub parts: i64,
    /// Number of tiles next to each other.
    pub tiles: i64,
    /// Emits a tile, given the index of the tile and the index of the part.
    pub emit: &'a dyn Fn(&mut KernelBuilder, i64, i64) -> ValueId,
}

/// Adds tile `row` of `rows` times tile `column` of `columns` to `sums[row][column]`. The products
/// of parts are high * high, low * high and high * low. Products with a missing low part are
/// omitted.
pub fn multiply(b: &mut KernelBuilder, sums: &mut [ValueId], rows: &Side<'_>, columns: &Side<'_>) {
    for row_part in 0..rows.parts {
        let left: Vec<ValueId> = (0..rows.tiles).map(|row| (rows.emit)(b, row, row_part)).collect();
        for column_part in 0..columns.parts.min(2 - row_part) {
            for column in 0..columns.tiles {
                let right = (columns.emit)(b, column, column_part);
                for (row, left) in (0i64..).zip(&left) {
                    let sum = &mut sums[(row * columns.tiles + column) as usize];
                    *sum = b.tile_dot(Op::TileDotBf16, *sum, *left, right);
                }
            }
        }
    }
}

/// Keeps the upper half of each f32 or dword in place, and sets the lower half to zero.
pub fn cut(b: &mut KernelBuilder, value: ValueId) -> ValueId {
    let dwords = Type::i32(b.ty(value).lanes);
    let (bits, upper) = (b.bitcast(dwords, value), b.splat_int(dwords, UPPER));
    b.same(Op::And, &[bits, upper])
}

/// Joins the upper halves of dwords in pairs. Those of `even` become the lower words of the result,
/// those of `odd` stay in the upper words. The lower halves of `odd` must be zeros.
pub fn pair(b: &mut KernelBuilder, even: ValueId, odd: ValueId) -> ValueId {
    let even = b.shift(Op::ShrU, even, 16);
    b.same(Op::Or, &[odd, even])
}
