//! Arithmetic, conversions and reductions of lanes.

use super::bf16;
use super::vector::{Lane, Vector};
use crate::kernel::{Elem, Type};

/// Returns `a < b ? a : b`. If an operand is NaN, or both are zeros, the result is `b`, as on x86.
pub fn min(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// Returns `a > b ? a : b`. If an operand is NaN, or both are zeros, the result is `b`, as on x86.
pub fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Returns the nearest integer, ties to even. Returns `i32::MIN` for NaN and for numbers out of
/// range.
pub fn to_i32(a: f32) -> i32 {
    // Both limits are exact in f32, and NaN is not in any range.
    const RANGE: std::ops::Range<f32> = -2147483648.0..2147483648.0;
    let nearest = a.round_ties_even();
    if RANGE.contains(&nearest) { nearest as i32 } else { i32::MIN }
}

/// Applies a function to each pair of float lanes.
#[inline]
pub fn float2(lanes: usize, a: &Vector, b: &Vector, f: impl Fn(f32, f32) -> f32) -> Vector {
    Vector::from_lanes(lanes, |i| f(a.lane(i), b.lane(i)))
}

/// Returns `a * b + c` of each lane, rounded once.
pub fn fma(lanes: usize, a: &Vector, b: &Vector, c: &Vector) -> Vector {
    Vector::from_lanes(lanes, |i| a.lane::<f32>(i).mul_add(b.lane(i), c.lane(i)))
}

/// Applies a function to each pair of integer lanes. It computes in 64 bits, which hold every exact
/// result, and truncates results to the element's width.
#[inline]
pub fn int2(ty: Type, a: &Vector, b: &Vector, f: impl Fn(i64, i64) -> i64) -> Vector {
    let lanes = usize::from(ty.lanes);
    match ty.elem {
        Elem::I8 => Vector::from_lanes(lanes, |i| f(i64::from(a.lane::<i8>(i)), i64::from(b.lane::<i8>(i))) as i8),
        Elem::I16 | Elem::F16 | Elem::Bf16 => {
            Vector::from_lanes(lanes, |i| f(i64::from(a.lane::<i16>(i)), i64::from(b.lane::<i16>(i))) as i16)
        }
        Elem::I32 | Elem::F32 => {
            Vector::from_lanes(lanes, |i| f(i64::from(a.lane::<i32>(i)), i64::from(b.lane::<i32>(i))) as i32)
        }
    }
}

/// Returns all ones in lanes where `a < b`, and zeros elsewhere.
pub fn less(lanes: usize, a: &Vector, b: &Vector) -> Vector {
    Vector::from_lanes(lanes, |i| -i32::from(a.lane::<f32>(i) < b.lane::<f32>(i)))
}

/// Shifts each integer lane right by `by` bits. The upper bits become zeros.
pub fn shift_unsigned(ty: Type, a: &Vector, by: usize) -> Vector {
    let mask = (1i64 << (8 * ty.elem.bytes())) - 1;
    int2(ty, a, a, |a, _| (a & mask) >> by)
}

/// Applies a function to each integer lane. The lanes of the result may have another width.
pub fn resize(ty: Type, from: Type, a: &Vector, f: impl Fn(i64) -> i64) -> Vector {
    Vector::from_ints(ty, |i| f(a.int(from.elem, i)))
}

/// Zero-extends integer lanes to a wider type.
pub fn extend_unsigned(ty: Type, from: Type, a: &Vector) -> Vector {
    let mask = (1i64 << (8 * from.elem.bytes())) - 1;
    resize(ty, from, a, |a| a & mask)
}

/// Saturates signed integer lanes to a narrower type.
pub fn narrow_signed(ty: Type, from: Type, a: &Vector) -> Vector {
    let limit = 1i64 << (8 * ty.elem.bytes() - 1);
    resize(ty, from, a, |a| a.clamp(-limit, limit - 1))
}

/// Applies a conversion to each lane.
pub fn convert<A: Lane, B: Lane>(lanes: usize, a: &Vector, f: impl Fn(A) -> B) -> Vector {
    Vector::from_lanes(lanes, |i| f(a.lane(i)))
}

/// Converts floats to bf16, and returns alternating lanes of `a` and `b`.
pub fn bf16_pairs(lanes: usize, a: &Vector, b: &Vector) -> Vector {
    Vector::from_lanes(lanes, |i| bf16::from_f32(if i % 2 == 0 { a.lane(i / 2) } else { b.lane(i / 2) }))
}

/// Applies `float` or `int` to the lower and the upper half, until one lane is left. The lower half
/// is the first operand.
pub fn reduce(ty: Type, a: &Vector, float: impl Fn(f32, f32) -> f32, int: impl Fn(i32, i32) -> i32) -> Vector {
    let mut folded = *a;
    let mut lanes = usize::from(ty.lanes);
    while lanes > 1 {
        lanes /= 2;
        folded = match ty.elem {
            Elem::F32 | Elem::F16 | Elem::Bf16 => {
                Vector::from_lanes(lanes, |i| float(folded.lane(i), folded.lane(i + lanes)))
            }
            Elem::I8 | Elem::I16 | Elem::I32 => {
                Vector::from_lanes(lanes, |i| int(folded.lane(i), folded.lane(i + lanes)))
            }
        };
    }
    folded
}
