//! (no tests) A second implementation of the manual's arithmetic. It finds results by a search, and
//! does not compute them.
//!
//! A single-precision sum is exact in one wide fixed-point number, which is then rounded. A
//! half-precision result is found by comparing the exact value with the midpoints of all halves.

use std::cmp::Ordering;

use ixc_emulator::soft::Rounding;

pub const ROUNDINGS: [Rounding; 4] = [Rounding::Nearest, Rounding::Down, Rounding::Up, Rounding::Zero];

/// A non-negative multiple of 2^-300. It has room for every product of two single-precision
/// numbers, and 276 bits above 2^0.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Wide([u64; 9]);

const WIDE_UNIT: i32 = -300;

impl Wide {
    /// Returns the number `significand · 2^exponent`.
    fn new(significand: u64, exponent: i32) -> Wide {
        let shift = usize::try_from(exponent - WIDE_UNIT).unwrap();
        let mut limbs = [0; 9];
        let placed = u128::from(significand) << (shift % 64);
        limbs[shift / 64] = placed as u64;
        if placed >> 64 != 0 {
            limbs[shift / 64 + 1] = (placed >> 64) as u64;
        }
        Wide(limbs)
    }

    fn compare(&self, other: &Wide) -> Ordering {
        self.0.iter().rev().cmp(other.0.iter().rev())
    }

    fn add(&self, other: &Wide) -> Wide {
        let mut carry = false;
        Wide(std::array::from_fn(|i| {
            let (sum, first) = self.0[i].overflowing_add(other.0[i]);
            let (sum, second) = sum.overflowing_add(carry.into());
            carry = first || second;
            sum
        }))
    }

    /// Subtracts a smaller number.
    fn sub(&self, other: &Wide) -> Wide {
        let mut borrow = false;
        Wide(std::array::from_fn(|i| {
            let (rest, first) = self.0[i].overflowing_sub(other.0[i]);
            let (rest, second) = rest.overflowing_sub(borrow.into());
            borrow = first || second;
            rest
        }))
    }

    fn bit(&self, i: i32) -> bool {
        usize::try_from(i).is_ok_and(|i| self.0[i / 64] >> (i % 64) & 1 == 1)
    }

    /// Rounds to 24 bits, to nearest even, as single precision with an unlimited exponent. A result
    /// below 2^-126 then becomes zero.
    fn flushed(&self) -> u32 {
        let Some(first) = (0..576).rev().find(|i| self.bit(*i)) else { return 0 };
        let mut significand = (0..24).fold(0u64, |bits, i| bits << 1 | u64::from(self.bit(first - i)));
        let below = self.bit(first - 24);
        let rest = (0..first - 24).any(|i| self.bit(i));
        if below && (rest || significand & 1 == 1) {
            significand += 1;
        }
        let carried = significand == 1 << 24;
        let exponent = first + WIDE_UNIT + i32::from(carried);
        if carried {
            significand >>= 1;
        }
        match exponent {
            ..-126 => 0,
            128.. => 0x7f80_0000,
            _ => ((exponent + 127) as u32) << 23 | (significand as u32 & 0x7f_ffff),
        }
    }
}

enum Single {
    NaN,
    Infinite,
    Finite(u64, i32),
}

/// Decodes the sign and the value of a single-precision number. Denormals count as zero.
fn single(bits: u32) -> (bool, Single) {
    let fraction = u64::from(bits & 0x7f_ffff);
    let class = match bits >> 23 & 0xff {
        0 => Single::Finite(0, 0),
        0xff if fraction == 0 => Single::Infinite,
        0xff => Single::NaN,
        exponent => Single::Finite(fraction | 0x80_0000, exponent as i32 - 150),
    };
    (bits >> 31 == 1, class)
}

/// Returns `x · y + z`. Denormal inputs and results become zero. If several operands are NaN, the
/// result is the first of x, y and z.
pub fn fma32(x: u32, y: u32, z: u32) -> u32 {
    use Single::{Finite, Infinite, NaN};
    for operand in [x, y, z] {
        if matches!(single(operand).1, NaN) {
            return operand | 1 << 22;
        }
    }
    let ((sign_x, class_x), (sign_y, class_y), (sign_z, class_z)) = (single(x), single(y), single(z));
    let sign = sign_x != sign_y;
    let infinity = |negative: bool| if negative { 0xff80_0000 } else { 0x7f80_0000 };
    let (product, addend) = match (class_x, class_y, class_z) {
        (Infinite, Finite(0, _), _) | (Finite(0, _), Infinite, _) => return 0xffc0_0000,
        (Infinite, _, Infinite) | (_, Infinite, Infinite) if sign != sign_z => return 0xffc0_0000,
        (Infinite, _, _) | (_, Infinite, _) => return infinity(sign),
        (_, _, Infinite) => return infinity(sign_z),
        (Finite(x, ex), Finite(y, ey), Finite(z, ez)) => (Wide::new(x * y, ex + ey), Wide::new(z, ez)),
        _ => unreachable!("NaN are gone"),
    };
    let (negative, sum) = if sign == sign_z {
        (sign, product.add(&addend))
    } else {
        match product.compare(&addend) {
            Ordering::Less => (sign_z, addend.sub(&product)),
            Ordering::Equal => (false, Wide([0; 9])),
            Ordering::Greater => (sign, product.sub(&addend)),
        }
    };
    sum.flushed() | u32::from(negative) << 31
}

/// Returns `x + y` with the rules of [`fma32`].
pub fn add32(x: u32, y: u32) -> u32 {
    // `x · 1 + y` has the same value, and a NaN in x has priority over 1 and y.
    fma32(x, 0x3f80_0000, y)
}

/// Returns a finite non-negative half as a number of units of 2^-25. Midpoints between two halves
/// are then integers too.
pub fn half_units(bits: u16) -> i128 {
    let (exponent, fraction) = (bits >> 10, i128::from(bits & 0x3ff));
    match exponent {
        0 => fraction * 2,
        _ => (1024 + fraction) << exponent,
    }
}

/// Returns the rounded half of an exact magnitude. `compare` compares the magnitude with a number
/// of units of 2^-25.
pub fn round_to_half(negative: bool, rounding: Rounding, compare: impl Fn(i128) -> Ordering) -> u16 {
    const LARGEST: u16 = 0x7bff;
    // Finds the largest half that is not greater than the magnitude.
    let (mut below, mut above) = (0, LARGEST + 1);
    while above - below > 1 {
        let middle = (below + above) / 2;
        if compare(half_units(middle)) == Ordering::Less { above = middle } else { below = middle }
    }
    // The number after the largest half would be 65536. Its bits would be those of infinity.
    let above = below + 1;
    let exact = compare(half_units(below)) == Ordering::Equal;
    let up = match rounding {
        _ if exact => false,
        Rounding::Nearest => match compare((half_units(below) + half_units(above)) / 2) {
            Ordering::Less => false,
            Ordering::Equal => below % 2 == 1,
            Ordering::Greater => true,
        },
        Rounding::Down => negative,
        Rounding::Up => !negative,
        Rounding::Zero => false,
    };
    (if up { above } else { below }) | u16::from(negative) << 15
}
