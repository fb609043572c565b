//! Dot products of neighbouring lanes.

use super::bf16;
use super::vector::Vector;

/// Returns sums of two products of neighbouring bytes, unsigned times signed. Sums saturate to 16
/// bits.
pub fn dot2_u8s8(lanes: usize, a: &Vector, b: &Vector) -> Vector {
    let product = |i: usize| i32::from(a.lane::<u8>(i)) * i32::from(b.lane::<i8>(i));
    Vector::from_lanes(lanes, |i| {
        let sum = product(2 * i) + product(2 * i + 1);
        sum.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
    })
}

/// Returns sums of two products of neighbouring 16-bit integers.
pub fn dot2_s16(lanes: usize, a: &Vector, b: &Vector) -> Vector {
    let product = |i: usize| i32::from(a.lane::<i16>(i)) * i32::from(b.lane::<i16>(i));
    Vector::from_lanes(lanes, |i| product(2 * i).wrapping_add(product(2 * i + 1)))
}

/// Adds four products of neighbouring bytes, unsigned times signed, to each lane of `acc`.
pub fn dot4_u8s8(lanes: usize, acc: &Vector, u: &Vector, s: &Vector) -> Vector {
    let product = |i: usize| i32::from(u.lane::<u8>(i)) * i32::from(s.lane::<i8>(i));
    Vector::from_lanes(lanes, |i| (4 * i..4 * i + 4).map(product).fold(acc.lane::<i32>(i), i32::wrapping_add))
}

/// Adds two products of neighbouring bf16 to each lane of `acc`, the odd one first. Each addition
/// is rounded.
pub fn dot2_bf16(lanes: usize, acc: &Vector, a: &Vector, b: &Vector) -> Vector {
    let single = |v: &Vector, i: usize| bf16::to_f32(v.lane(i));
    Vector::from_lanes(lanes, |i| {
        let odd = bf16::fma(single(a, 2 * i + 1), single(b, 2 * i + 1), acc.lane(i));
        bf16::fma(single(a, 2 * i), single(b, 2 * i), odd)
    })
}
