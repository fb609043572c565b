//! Loops over the lanes of vectors.
//!
//! Functions that do the same in every lane use [`one`], [`two`] or [`three`]. These process pieces
//! of 16 bytes, so that compilers can use the host's vector instructions. Pieces beyond the
//! vector's length are not computed.

use crate::op::Op;
use crate::state::Vector;

/// Type of a number that a lane can hold.
pub(crate) trait Lane: Copy + PartialOrd {
    const BYTES: usize;
    /// Returns lane `i` of a piece of 16 bytes.
    fn read(piece: &[u8; 16], i: usize) -> Self;
    fn put(self, piece: &mut [u8; 16], i: usize);
    /// Returns the lane of a vector at index `i`, modulo the number of lanes.
    fn get(v: &Vector, i: usize) -> Self;
    fn set(self, v: &mut Vector, i: usize);
}

macro_rules! lanes {
    ($($t:ty)*) => {$(
        impl Lane for $t {
            const BYTES: usize = size_of::<$t>();
            #[inline(always)]
            fn read(piece: &[u8; 16], i: usize) -> Self {
                Self::from_le_bytes(piece.as_chunks().0[i])
            }
            #[inline(always)]
            fn put(self, piece: &mut [u8; 16], i: usize) {
                piece.as_chunks_mut().0[i] = self.to_le_bytes();
            }
            #[inline(always)]
            fn get(v: &Vector, i: usize) -> Self {
                Self::from_le_bytes(v.0.as_chunks().0[i % (64 / Self::BYTES)])
            }
            #[inline(always)]
            fn set(self, v: &mut Vector, i: usize) {
                v.0.as_chunks_mut().0[i % (64 / Self::BYTES)] = self.to_le_bytes();
            }
        }
    )*};
}
lanes!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

fn pieces(v: &Vector) -> &[[u8; 16]] {
    v.0.as_chunks().0
}

fn pieces_mut(v: &mut Vector) -> &mut [[u8; 16]] {
    v.0.as_chunks_mut().0
}

/// Computes `r = f(b)` in every lane.
#[inline(always)]
pub(crate) fn one<T: Lane, R: Lane>(r: &mut Vector, b: &Vector, op: &Op, f: impl Fn(T) -> R) {
    const { assert!(T::BYTES == R::BYTES) };
    for (r, b) in pieces_mut(r).iter_mut().zip(pieces(b)).take(usize::from(op.bytes).div_ceil(16)) {
        for i in 0..16 / T::BYTES {
            f(T::read(b, i)).put(r, i);
        }
    }
}

/// Computes `r = f(a, b)` in every lane.
#[inline(always)]
pub(crate) fn two<T: Lane, R: Lane>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op, f: impl Fn(T, T) -> R) {
    const { assert!(T::BYTES == R::BYTES) };
    let pieces = pieces_mut(r).iter_mut().zip(pieces(a)).zip(pieces(b));
    for ((r, a), b) in pieces.take(usize::from(op.bytes).div_ceil(16)) {
        for i in 0..16 / T::BYTES {
            f(T::read(a, i), T::read(b, i)).put(r, i);
        }
    }
}

/// Computes `r = f(r, a, b)` in every lane.
#[inline(always)]
pub(crate) fn three<T: Lane>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op, f: impl Fn(T, T, T) -> T) {
    let pieces = pieces_mut(r).iter_mut().zip(pieces(a)).zip(pieces(b));
    for ((r, a), b) in pieces.take(usize::from(op.bytes).div_ceil(16)) {
        for i in 0..16 / T::BYTES {
            f(T::read(r, i), T::read(a, i), T::read(b, i)).put(r, i);
        }
    }
}

/// Returns a mask with one bit for each lane: the result of `f`.
#[inline(always)]
pub(crate) fn bits<T: Lane>(a: &Vector, b: &Vector, op: &Op, f: impl Fn(T, T) -> bool) -> u64 {
    let mut bits = 0;
    for i in 0..usize::from(op.count) {
        bits |= u64::from(f(T::get(a, i), T::get(b, i))) << i;
    }
    bits
}

/// Computes `r[i] = f(i)` for every element of the result.
#[inline(always)]
pub(crate) fn each<T: Lane>(r: &mut Vector, op: &Op, f: impl Fn(usize) -> T) {
    for i in 0..usize::from(op.count) {
        f(i).set(r, i);
    }
}

/// Computes `r[i] = f(first, position)` for every element. `first` is the index of the first
/// element of the same 128 bits, and `position` that of the element in them. Most shuffles have
/// this form.
#[inline(always)]
pub(crate) fn by_128<T: Lane>(r: &mut Vector, op: &Op, f: impl Fn(usize, usize) -> T) {
    let per = 16 / T::BYTES;
    for piece in 0..usize::from(op.bytes) / 16 {
        for i in 0..per {
            f(piece * per, i).set(r, piece * per + i);
        }
    }
}

/// Replaces elements of `r` by those of `old` where the mask bit is clear, for elements of `E`
/// bytes.
#[inline(always)]
fn select_elements<const E: usize>(r: &mut Vector, old: &Vector, mask: u64, count: usize) {
    let pairs = r.0.as_chunks_mut::<E>().0.iter_mut().zip(old.0.as_chunks::<E>().0);
    for (i, (r, old)) in pairs.take(count).enumerate() {
        *r = if mask >> i & 1 == 1 { *r } else { *old };
    }
}

/// Replaces elements of `r` by those of `old` where the mask bit is clear.
#[inline]
pub(crate) fn select(r: &mut Vector, old: &Vector, mask: u64, op: &Op) {
    let count = usize::from(op.count);
    match op.element {
        1 => select_elements::<1>(r, old, mask, count),
        2 => select_elements::<2>(r, old, mask, count),
        4 => select_elements::<4>(r, old, mask, count),
        _ => select_elements::<8>(r, old, mask, count),
    }
}
