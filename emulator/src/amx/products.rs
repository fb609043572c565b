//! Arithmetic of tile products.

use super::{DWORDS, MAX_ROW_BYTES, MAX_ROWS, Sums, Tile, TileProduct};
use crate::dot::{add_flushed, add_products_flushed};
use crate::half_ops;

/// Shape of a tile product, in doublewords.
#[derive(Clone, Copy)]
pub(super) struct ProductShape {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) inner: usize,
}

/// Adds the product of two tiles to the sums.
pub(super) fn add_product(sums: &mut Sums, product: TileProduct, left: &Tile, right: &Tile, shape: ProductShape) {
    match product {
        TileProduct::SignedSigned => bytes_product(sums, left, right, shape, signed, signed),
        TileProduct::SignedUnsigned => bytes_product(sums, left, right, shape, signed, unsigned),
        TileProduct::UnsignedSigned => bytes_product(sums, left, right, shape, unsigned, signed),
        TileProduct::UnsignedUnsigned => bytes_product(sums, left, right, shape, unsigned, unsigned),
        TileProduct::Bf16 => float_product(sums, left, right, shape, |h| u32::from(h) << 16),
        TileProduct::F16 => float_product(sums, left, right, shape, half_ops::to_f32),
    }
}

/// Returns the doublewords of a tile's row.
pub(super) fn dwords(row: &[u8; MAX_ROW_BYTES]) -> [u32; DWORDS] {
    std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|j| row[4 * i + j])))
}

fn signed(byte: u8) -> i32 {
    i32::from(byte as i8)
}

fn unsigned(byte: u8) -> i32 {
    i32::from(byte)
}

/// Adds products of bytes to the sums, modulo 2³². Columns beyond the shape are computed from
/// zeros, and the caller ignores them.
///
/// Tests run this code with little optimisation. It therefore uses loops over arrays of fixed
/// length instead of iterators, and `wrapping` operations although nothing can overflow. Both make
/// it several times faster.
fn bytes_product(
    sums: &mut Sums,
    left: &Tile,
    right: &Tile,
    shape: ProductShape,
    widen_left: fn(u8) -> i32,
    widen_right: fn(u8) -> i32,
) {
    let left: [_; MAX_ROWS] = std::array::from_fn(|m| left[m].map(widen_left));
    for (k, right) in right.iter().enumerate().take(shape.inner) {
        let right = right.map(widen_right);
        let (right, _) = right.as_chunks::<4>();
        for (sums, left) in sums.iter_mut().zip(&left).take(shape.rows) {
            let [a, b, c, d] = left.as_chunks::<4>().0[k];
            for n in 0..DWORDS {
                let [e, f, g, h] = right[n];
                // The products are at most 4 · 255², so only the addition to the sum can overflow.
                let low = a.wrapping_mul(e).wrapping_add(b.wrapping_mul(f));
                let high = c.wrapping_mul(g).wrapping_add(d.wrapping_mul(h));
                sums[n] = sums[n].wrapping_add(low.wrapping_add(high) as u32);
            }
        }
    }
}

/// Adds products of floats to the sums. Products of even and of odd elements have separate sums, in
/// the order of the rows of `right`. These two sums are added to each other, and then to the old
/// sum.
fn float_product(sums: &mut Sums, left: &Tile, right: &Tile, shape: ProductShape, widen: fn(u16) -> u32) {
    let halves = |row: &[u8; MAX_ROW_BYTES]| -> [u32; 2 * DWORDS] {
        std::array::from_fn(|i| widen(u16::from_le_bytes([row[2 * i], row[2 * i + 1]])))
    };
    let right: [_; MAX_ROWS] = std::array::from_fn(|k| halves(&right[k]));
    for (sums, left) in sums.iter_mut().zip(left).take(shape.rows) {
        let left = halves(left);
        let mut parts = [0u32; 2 * DWORDS];
        for (&pair, right) in left.as_chunks::<2>().0.iter().zip(&right).take(shape.inner) {
            add_products_flushed(&mut parts, pair, right);
        }
        for (sum, part) in sums.iter_mut().zip(parts.as_chunks::<2>().0) {
            *sum = add_flushed(*sum, add_flushed(part[0], part[1]));
        }
    }
}
