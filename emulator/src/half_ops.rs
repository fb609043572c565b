//! Lane arithmetic of AVX512-FP16. Half-precision values are 16 bits in a `u16`.
//!
//! Each function computes one lane of a half-precision instruction. Every operation is exact in
//! integers and then rounded once, so double rounding cannot occur. A finite half is less than 2⁴⁰
//! units of 2⁻²⁴. A product of two halves is a multiple of 2⁻⁴⁸ below 2³², and sums of products and
//! halves fit in 128 bits. Quotients and roots record whether there is a remainder.
//!
//! Half-precision denormals are always kept, because these instructions ignore MXCSR.DAZ and
//! MXCSR.FTZ for them. For inputs in single or double precision, the caller applies DAZ. If several
//! operands are NaN, the result is the first of them, made quiet.
//!
//! ```
//! use ixc_emulator::{half_ops, soft::Rounding};
//! let (one, third) = (0x3c00, half_ops::div(0x3c00, 0x4200, Rounding::Nearest));
//! assert_eq!(third, 0x3555);
//! assert_eq!(half_ops::div(one, 0x4200, Rounding::Up), 0x3556);
//! assert_eq!(half_ops::fma(third, 0x4200, 0xbc00, Rounding::Nearest), 0x8c00); // 3 · third − 1 = −2⁻¹²
//! ```

use crate::soft::Rounding;

const SIGN: u16 = 0x8000;
const INFINITY: u16 = 0x7c00;
const QUIET: u16 = 0x0200;
/// Result of an invalid operation: the QNaN floating-point indefinite.
const INDEFINITE: u16 = 0xfe00;
const LARGEST: u16 = 0x7bff;
/// Exponent of the last bit of a denormal.
const UNIT: i32 = -24;
/// Number of bits of a normal number's significand after the leading bit.
const FRACTION_BITS: i32 = 10;

/// A number other than NaN.
#[derive(Clone, Copy)]
enum Number {
    Infinite {
        negative: bool,
    },
    /// A finite number of the size `size · 2⁻²⁴`.
    Finite {
        negative: bool,
        size: u64,
    },
}

use Number::{Finite, Infinite};

fn is_nan(bits: u16) -> bool {
    bits & !SIGN > INFINITY
}

/// Decodes the bits of a number that is not NaN.
fn number(bits: u16) -> Number {
    let negative = bits & SIGN != 0;
    let (exponent, fraction) = (bits >> FRACTION_BITS & 0x1f, u64::from(bits & 0x03ff));
    match exponent {
        0 => Finite { negative, size: fraction },
        0x1f => Infinite { negative },
        _ => Finite { negative, size: (fraction | 0x0400) << (exponent - 1) },
    }
}

fn signed(negative: bool, bits: u16) -> u16 {
    if negative { bits | SIGN } else { bits }
}

/// Returns the first operand that is NaN, made quiet, or `None`.
fn first_nan<const N: usize>(operands: [u16; N]) -> Option<u16> {
    operands.into_iter().find(|bits| is_nan(*bits)).map(|bits| bits | QUIET)
}

/// An exact unsigned value: `size · 2^exponent`. If `more` is set, the value is larger by less than
/// `2^exponent`.
#[derive(Clone, Copy)]
struct Exact {
    size: u128,
    exponent: i32,
    more: bool,
}

impl Exact {
    /// Rounds to a multiple of `2^unit`. If `more` is set, `unit` must be above the exponent.
    fn to_multiple_of(self, unit: i32, negative: bool, rounding: Rounding) -> u128 {
        let shift = unit - self.exponent;
        if shift <= 0 {
            debug_assert!(!self.more && self.size.leading_zeros() as i32 >= -shift, "digits are missing");
            return self.size << -shift;
        }
        let (floor, rest, half) = match shift {
            1..128 => (self.size >> shift, self.size & ((1 << shift) - 1), 1 << (shift - 1)),
            128 => (0, self.size, 1 << 127),
            _ => (0, u128::from(self.size != 0), u128::MAX),
        };
        let up = match rounding {
            Rounding::Nearest => rest > half || rest == half && (self.more || floor & 1 == 1),
            Rounding::Down => negative && (rest != 0 || self.more),
            Rounding::Up => !negative && (rest != 0 || self.more),
            Rounding::Zero => false,
        };
        floor + u128::from(up)
    }

    fn to_half(self, negative: bool, rounding: Rounding) -> u16 {
        if self.size == 0 && !self.more {
            return signed(negative, 0);
        }
        let first_bit = 127 - self.size.leading_zeros() as i32 + self.exponent;
        let unit = (first_bit - FRACTION_BITS).max(UNIT);
        // The exponent field and the significand are added. The leading bit of a normal number thus
        // adds one to the exponent field. If the significand is rounded up to the next power of
        // two, it also carries into the exponent field.
        let bits = (i64::from(unit - UNIT) << FRACTION_BITS) + self.to_multiple_of(unit, negative, rounding) as i64;
        if bits < i64::from(INFINITY) {
            return signed(negative, bits as u16);
        }
        let away = match rounding {
            Rounding::Nearest => true,
            Rounding::Down => negative,
            Rounding::Up => !negative,
            Rounding::Zero => false,
        };
        signed(negative, if away { INFINITY } else { LARGEST })
    }
}

/// Rounds `sum · 2^exponent` to half precision. If the sum is zero, it has the sign of x − x in
/// this rounding mode.
fn round_sum(sum: i128, exponent: i32, rounding: Rounding) -> u16 {
    let negative = sum < 0 || sum == 0 && rounding == Rounding::Down;
    Exact { size: sum.unsigned_abs(), exponent, more: false }.to_half(negative, rounding)
}

fn apply_sign(negative: bool, size: u128) -> i128 {
    if negative { -(size as i128) } else { size as i128 }
}

/// Returns `a + b` (`VADDPH`, `VADDSH`).
pub fn add(a: u16, b: u16, rounding: Rounding) -> u16 {
    if let Some(nan) = first_nan([a, b]) {
        return nan;
    }
    match (number(a), number(b)) {
        (Infinite { negative: x }, Infinite { negative: y }) if x != y => INDEFINITE,
        (Infinite { .. }, _) => a,
        (_, Infinite { .. }) => b,
        (Finite { negative: x, size: 0 }, Finite { negative: y, size: 0 }) if x == y => a,
        (Finite { negative: x, size: a }, Finite { negative: y, size: b }) => {
            round_sum(apply_sign(x, a.into()) + apply_sign(y, b.into()), UNIT, rounding)
        }
    }
}

/// Returns `a − b` (`VSUBPH`, `VSUBSH`).
pub fn sub(a: u16, b: u16, rounding: Rounding) -> u16 {
    match first_nan([a, b]) {
        Some(nan) => nan,
        None => add(a, b ^ SIGN, rounding),
    }
}

/// Returns `a · b` (`VMULPH`, `VMULSH`).
pub fn mul(a: u16, b: u16, rounding: Rounding) -> u16 {
    if let Some(nan) = first_nan([a, b]) {
        return nan;
    }
    let negative = (a ^ b) & SIGN != 0;
    match (number(a), number(b)) {
        (Infinite { .. }, Finite { size: 0, .. }) | (Finite { size: 0, .. }, Infinite { .. }) => INDEFINITE,
        (Infinite { .. }, _) | (_, Infinite { .. }) => signed(negative, INFINITY),
        (Finite { size: a, .. }, Finite { size: b, .. }) => {
            Exact { size: u128::from(a) * u128::from(b), exponent: 2 * UNIT, more: false }.to_half(negative, rounding)
        }
    }
}

/// Returns `a / b` (`VDIVPH`, `VDIVSH`).
pub fn div(a: u16, b: u16, rounding: Rounding) -> u16 {
    if let Some(nan) = first_nan([a, b]) {
        return nan;
    }
    let negative = (a ^ b) & SIGN != 0;
    match (number(a), number(b)) {
        (Infinite { .. }, Infinite { .. }) | (Finite { size: 0, .. }, Finite { size: 0, .. }) => INDEFINITE,
        (Infinite { .. }, _) | (_, Finite { size: 0, .. }) => signed(negative, INFINITY),
        (_, Infinite { .. }) => signed(negative, 0),
        (Finite { size: a, .. }, Finite { size: b, .. }) => {
            // The shifted quotient has at least 24 bits, because a is 0 or at least 1, and b is
            // below 2⁴⁰.
            let (a, b) = (u128::from(a) << 64, u128::from(b));
            Exact { size: a / b, exponent: -64, more: a % b != 0 }.to_half(negative, rounding)
        }
    }
}

/// Returns the square root (`VSQRTPH`, `VSQRTSH`).
pub fn sqrt(a: u16, rounding: Rounding) -> u16 {
    if is_nan(a) {
        return a | QUIET;
    }
    match number(a) {
        Finite { size: 0, .. } | Infinite { negative: false } => a,
        Finite { negative: true, .. } | Infinite { negative: true } => INDEFINITE,
        Finite { size, .. } => {
            // The shift makes the unit 2⁻²⁴ · 2⁻⁵⁶, which is the square of 2⁻⁴⁰.
            let square = u128::from(size) << 56;
            let root = square.isqrt();
            Exact { size: root, exponent: -40, more: root * root != square }.to_half(false, rounding)
        }
    }
}

/// Returns the minimum (`VMINPH`, `VMINSH`). If an operand is NaN, or both are zero, returns the
/// second operand.
pub fn min(a: u16, b: u16) -> u16 {
    if less(a, b) { a } else { b }
}

/// Returns the maximum (`VMAXPH`, `VMAXSH`). If an operand is NaN, or both are zero, returns the
/// second operand.
pub fn max(a: u16, b: u16) -> u16 {
    if less(b, a) { a } else { b }
}

/// Returns `x · y + z`, rounded once (`VFMADD…PH`, `VFMADD…SH`). [`fma_signed`] computes the forms
/// with negations.
pub fn fma(x: u16, y: u16, z: u16, rounding: Rounding) -> u16 {
    fma_signed(x, y, z, false, false, rounding)
}

/// Returns `±(x · y) ± z`, rounded once. `VFNMADD` negates the product, `VFMSUB` the addend, and
/// `VFNMSUB` both. A NaN operand keeps its sign.
pub fn fma_signed(x: u16, y: u16, z: u16, negate_product: bool, negate_addend: bool, rounding: Rounding) -> u16 {
    if let Some(nan) = first_nan([x, y, z]) {
        return nan;
    }
    let negative = ((x ^ y) & SIGN != 0) != negate_product;
    let z = if negate_addend { z ^ SIGN } else { z };
    match (number(x), number(y), number(z)) {
        (Infinite { .. }, Finite { size: 0, .. }, _) | (Finite { size: 0, .. }, Infinite { .. }, _) => INDEFINITE,
        (Infinite { .. }, _, Infinite { negative: n }) | (_, Infinite { .. }, Infinite { negative: n })
            if n != negative =>
        {
            INDEFINITE
        }
        (Infinite { .. }, _, _) | (_, Infinite { .. }, _) => signed(negative, INFINITY),
        (_, _, Infinite { .. }) => z,
        (Finite { size: x, .. }, Finite { size: y, .. }, Finite { negative: n, size: addend }) => {
            let product = u128::from(x) * u128::from(y);
            if product == 0 && addend == 0 && n == negative {
                return z;
            }
            let sum = apply_sign(negative, product) + apply_sign(n, u128::from(addend) << -UNIT);
            round_sum(sum, 2 * UNIT, rounding)
        }
    }
}

/// Whether `a < b`. Returns false if an operand is NaN.
fn less(a: u16, b: u16) -> bool {
    !is_nan(a) && !is_nan(b) && order(a) < order(b)
}

/// Returns an integer that has the order of the number. Both zeros return 0.
fn order(bits: u16) -> i32 {
    let size = i32::from(bits & !SIGN);
    if bits & SIGN != 0 { -size } else { size }
}

/// Returns the result of `VCMPPH` and `VCMPSH`. The 32 predicates are those of `VCMPPS`, and the
/// low five bits of the immediate select one. Some predicates signal quiet NaN, which does not
/// change a result.
pub fn compare(a: u16, b: u16, predicate: u8) -> bool {
    let unordered = is_nan(a) || is_nan(b);
    let (a, b) = (order(a), order(b));
    match predicate & 0x0f {
        0x0 => !unordered && a == b, // EQ
        0x1 => !unordered && a < b,  // LT
        0x2 => !unordered && a <= b, // LE
        0x3 => unordered,            // UNORD
        0x4 => unordered || a != b,  // NEQ, unordered is true
        0x5 => unordered || a >= b,  // NLT
        0x6 => unordered || a > b,   // NLE
        0x7 => !unordered,           // ORD
        0x8 => unordered || a == b,  // EQ, unordered is true
        0x9 => unordered || a < b,   // NGE
        0xa => unordered || a <= b,  // NGT
        0xb => false,                // FALSE
        0xc => !unordered && a != b, // NEQ, unordered is false
        0xd => !unordered && a >= b, // GE
        0xe => !unordered && a > b,  // GT
        _ => true,                   // TRUE
    }
}

/// Rounds to a multiple of 2^−M (`VRNDSCALEPH`). M is the number in the high four bits of the
/// immediate. The low two bits are the rounding mode. Bit 2 selects MXCSR's mode instead, which is
/// to nearest in kernels. A zero result keeps the operand's sign.
pub fn round_scale(a: u16, imm: u8) -> u16 {
    if is_nan(a) {
        return a | QUIET;
    }
    let rounding = if imm & 4 != 0 { Rounding::Nearest } else { Rounding::from_bits(imm) };
    let Finite { negative, size } = number(a) else { return a };
    let unit = -i32::from(imm >> 4);
    let size = Exact { size: size.into(), exponent: UNIT, more: false }.to_multiple_of(unit, negative, rounding);
    // From 2048 on, all halves are integers, so this conversion is exact.
    Exact { size, exponent: unit, more: false }.to_half(negative, Rounding::Nearest)
}

/// Converts to single precision (`VCVTPH2PSX`), which is exact.
pub fn to_f32(a: u16) -> u32 {
    let sign = u32::from(a & SIGN) << 16;
    if is_nan(a) {
        return sign | 0x7fc0_0000 | u32::from(a & 0x03ff) << 13;
    }
    match number(a) {
        Infinite { .. } => sign | 0x7f80_0000,
        // The result is exact: at most 11 bits are set, and the scale is a power of two.
        Finite { size, .. } => sign | (size as f32 * f32::from_bits(((127 + UNIT) as u32) << 23)).to_bits(),
    }
}

/// Converts to double precision (`VCVTPH2PD`), which is exact.
pub fn to_f64(a: u16) -> u64 {
    let sign = u64::from(a & SIGN) << 48;
    if is_nan(a) {
        return sign | 0x7ff8_0000_0000_0000 | u64::from(a & 0x03ff) << 42;
    }
    match number(a) {
        Infinite { .. } => sign | 0x7ff0_0000_0000_0000,
        Finite { size, .. } => sign | (size as f64 * f64::from_bits(((1023 + UNIT) as u64) << 52)).to_bits(),
    }
}

/// Converts from single precision (`VCVTPS2PHX`, `VCVTSS2SH`). Denormal results are kept, and so
/// are denormal inputs: with MXCSR.DAZ, the caller replaces them by zero.
pub fn from_f32(bits: u32, rounding: Rounding) -> u16 {
    let negative = bits >> 31 != 0;
    let (exponent, fraction) = ((bits >> 23 & 0xff) as i32, bits & 0x007f_ffff);
    match (exponent, fraction) {
        (0xff, 0) => signed(negative, INFINITY),
        (0xff, _) => signed(negative, INFINITY | QUIET | (fraction >> 13) as u16),
        (0, _) => Exact { size: fraction.into(), exponent: -149, more: false }.to_half(negative, rounding),
        _ => {
            let size = u128::from(fraction | 0x0080_0000);
            Exact { size, exponent: exponent - 150, more: false }.to_half(negative, rounding)
        }
    }
}

/// Converts from double precision (`VCVTPD2PH`, `VCVTSD2SH`), with the rules of [`from_f32`].
pub fn from_f64(bits: u64, rounding: Rounding) -> u16 {
    let negative = bits >> 63 != 0;
    let (exponent, fraction) = ((bits >> 52 & 0x7ff) as i32, bits & 0x000f_ffff_ffff_ffff);
    match (exponent, fraction) {
        (0x7ff, 0) => signed(negative, INFINITY),
        (0x7ff, _) => signed(negative, INFINITY | QUIET | (fraction >> 42) as u16),
        (0, _) => Exact { size: fraction.into(), exponent: -1074, more: false }.to_half(negative, rounding),
        _ => {
            let size = u128::from(fraction | 0x0010_0000_0000_0000);
            Exact { size, exponent: exponent - 1075, more: false }.to_half(negative, rounding)
        }
    }
}

/// Rounds to an integer. Returns `None` if the integer is outside of `least..=most`.
fn to_integer(a: u16, rounding: Rounding, least: i128, most: i128) -> Option<i128> {
    if is_nan(a) {
        return None;
    }
    let Finite { negative, size } = number(a) else { return None };
    let size = Exact { size: size.into(), exponent: UNIT, more: false }.to_multiple_of(0, negative, rounding);
    Some(apply_sign(negative, size)).filter(|integer| (least..=most).contains(integer))
}

fn from_integer(a: i128, rounding: Rounding) -> u16 {
    // An integer zero becomes positive zero in every rounding mode.
    Exact { size: a.unsigned_abs(), exponent: 0, more: false }.to_half(a < 0, rounding)
}

macro_rules! integers {
    ($($to:ident $from:ident $type:ident $indefinite:expr, $doc_to:literal, $doc_from:literal;)*) => {
        $(
            #[doc = $doc_to]
            ///
            /// A value that does not fit becomes the integer indefinite: the least value of a
            /// signed type, or all ones of an unsigned type. For the truncating forms (`VCVTT…`),
            /// callers pass rounding to zero.
            pub fn $to(a: u16, rounding: Rounding) -> $type {
                to_integer(a, rounding, $type::MIN.into(), $type::MAX.into()).map_or($indefinite, |i| i as $type)
            }

            #[doc = $doc_from]
            pub fn $from(a: $type, rounding: Rounding) -> u16 {
                from_integer(a.into(), rounding)
            }
        )*
    };
}

integers! {
    to_i16 from_i16 i16 i16::MIN, "`VCVTPH2W`.", "`VCVTW2PH`.";
    to_u16 from_u16 u16 u16::MAX, "`VCVTPH2UW`.", "`VCVTUW2PH`.";
    to_i32 from_i32 i32 i32::MIN, "`VCVTPH2DQ`, `VCVTSH2SI`.", "`VCVTDQ2PH`, `VCVTSI2SH`.";
    to_u32 from_u32 u32 u32::MAX, "`VCVTPH2UDQ`, `VCVTSH2USI`.", "`VCVTUDQ2PH`, `VCVTUSI2SH`.";
    to_i64 from_i64 i64 i64::MIN, "`VCVTPH2QQ`, `VCVTSH2SI`.", "`VCVTQQ2PH`, `VCVTSI2SH`.";
    to_u64 from_u64 u64 u64::MAX, "`VCVTPH2UQQ`, `VCVTSH2USI`.", "`VCVTUQQ2PH`, `VCVTUSI2SH`.";
}
