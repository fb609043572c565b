//! Tests of FP16 lanes against the processor manual's pseudocode, which this file implements with
//! `exact`.

use std::cmp::Ordering;

use ixc_emulator::half_ops;
use ixc_emulator::soft::Rounding;
use ixc_ir::random::Random;

use crate::exact::{ROUNDINGS, half_units, round_to_half};
use crate::manual::{SPECIAL_HALVES, SPECIAL_SINGLES, half, single};

pub const QUIET: u16 = 0x200;
const INDEFINITE: u16 = 0xfe00;

pub fn is_nan(x: u16) -> bool {
    x & 0x7fff > 0x7c00
}

pub fn infinite(x: u16) -> bool {
    x & 0x7fff == 0x7c00
}

pub fn negative(x: u16) -> bool {
    x >> 15 == 1
}

/// Returns the value of a half in units of 2^-25, with its sign.
pub fn units(x: u16) -> i128 {
    let size = half_units(x & 0x7fff);
    if negative(x) { -size } else { size }
}

/// Rounds `sum · 2^-50` to half precision. If the terms had different signs, an exact zero is
/// positive, or negative if the mode rounds down.
pub fn round_units(sum: i128, both_negative: bool, unlike: bool, rounding: Rounding) -> u16 {
    let sign = match sum.cmp(&0) {
        Ordering::Less => true,
        Ordering::Equal if unlike => rounding == Rounding::Down,
        Ordering::Equal => both_negative,
        Ordering::Greater => false,
    };
    round_to_half(sign, rounding, |units| sum.abs().cmp(&(units << 25)))
}

pub fn reference_fma(x: u16, y: u16, z: u16, rounding: Rounding) -> u16 {
    if let Some(nan) = [x, y, z].into_iter().find(|v| is_nan(*v)) {
        return nan | QUIET;
    }
    let zero = |v: u16| v & 0x7fff == 0;
    let sign = negative(x) != negative(y);
    if infinite(x) || infinite(y) {
        return match () {
            () if zero(x) || zero(y) => INDEFINITE,
            () if infinite(z) && negative(z) != sign => INDEFINITE,
            () => 0x7c00 | u16::from(sign) << 15,
        };
    }
    if infinite(z) {
        return z;
    }
    round_units(units(x) * units(y) + (units(z) << 25), sign && negative(z), sign != negative(z), rounding)
}

pub fn reference_div(a: u16, b: u16, rounding: Rounding) -> u16 {
    if let Some(nan) = [a, b].into_iter().find(|v| is_nan(*v)) {
        return nan | QUIET;
    }
    let sign = negative(a) != negative(b);
    let (x, y) = (units(a).abs(), units(b).abs());
    match (infinite(a), infinite(b)) {
        (true, true) => INDEFINITE,
        (true, false) => 0x7c00 | u16::from(sign) << 15,
        (false, true) => u16::from(sign) << 15,
        (false, false) if x == 0 && y == 0 => INDEFINITE,
        (false, false) if y == 0 => 0x7c00 | u16::from(sign) << 15,
        (false, false) => round_to_half(sign, rounding, |units| (x << 25).cmp(&(units * y))),
    }
}

pub fn reference_sqrt(a: u16, rounding: Rounding) -> u16 {
    match () {
        () if is_nan(a) => a | QUIET,
        () if a == 0x8000 => a,
        () if negative(a) => INDEFINITE,
        () if infinite(a) => a,
        () => round_to_half(false, rounding, |root| (units(a) << 25).cmp(&(root * root))),
    }
}

pub fn flip(x: u16) -> u16 {
    if is_nan(x) { x } else { x ^ 0x8000 }
}

pub fn reference_add(a: u16, b: u16, rounding: Rounding) -> u16 {
    reference_fma(a, 0x3c00, b, rounding)
}

/// Returns `a · b ± 0`. The added zero has the product's sign, so that a zero product keeps its
/// sign.
pub fn reference_mul(a: u16, b: u16, rounding: Rounding) -> u16 {
    reference_fma(a, b, (a ^ b) & 0x8000, rounding)
}

/// Returns the column of the manual's table of predicates: 0 for greater, 1 for less, 2 for equal,
/// 3 for unordered.
fn relation(a: u16, b: u16) -> usize {
    let value = |x: u16| match x & 0x7fff {
        0x7c00 => Some(if negative(x) { i128::MIN } else { i128::MAX }),
        _ if is_nan(x) => None,
        _ => Some(units(x)),
    };
    match value(a).zip(value(b)).map(|(a, b)| a.cmp(&b)) {
        Some(Ordering::Greater) => 0,
        Some(Ordering::Less) => 1,
        Some(Ordering::Equal) => 2,
        None => 3,
    }
}

pub fn reference_compare(a: u16, b: u16, predicate: u8) -> bool {
    // Results of each predicate, for the relations greater, less, equal and unordered.
    const TABLE: [[u8; 4]; 16] = [
        [0, 0, 1, 0], // EQ_OQ
        [0, 1, 0, 0], // LT_OS
        [0, 1, 1, 0], // LE_OS
        [0, 0, 0, 1], // UNORD_Q
        [1, 1, 0, 1], // NEQ_UQ
        [1, 0, 1, 1], // NLT_US
        [1, 0, 0, 1], // NLE_US
        [1, 1, 1, 0], // ORD_Q
        [0, 0, 1, 1], // EQ_UQ
        [0, 1, 0, 1], // NGE_US
        [0, 1, 1, 1], // NGT_US
        [0, 0, 0, 0], // FALSE_OQ
        [1, 1, 0, 0], // NEQ_OQ
        [1, 0, 1, 0], // GE_OS
        [1, 0, 0, 0], // GT_OS
        [1, 1, 1, 1], // TRUE_UQ
    ];
    TABLE[usize::from(predicate % 16)][relation(a, b)] == 1
}

/// Returns the second operand unless the first is strictly less.
pub fn reference_min(a: u16, b: u16) -> u16 {
    if relation(a, b) == 1 { a } else { b }
}

/// Returns the second operand unless the first is strictly greater.
pub fn reference_max(a: u16, b: u16) -> u16 {
    if relation(a, b) == 0 { a } else { b }
}

/// Converts to double precision exactly. A NaN keeps its sign and payload, and becomes quiet.
pub fn reference_to_f64(x: u16) -> u64 {
    let sign = u64::from(negative(x)) << 63;
    match () {
        () if is_nan(x) => sign | 0x7ff << 52 | u64::from(x & 0x3ff | QUIET) << 42,
        () if infinite(x) => sign | 0x7ff << 52,
        () => sign | (units(x).abs() as f64 / f64::from(1 << 25)).to_bits(),
    }
}

/// Converts exactly to single precision, like [`reference_to_f64`].
pub fn reference_to_f32(x: u16) -> u32 {
    let wide = reference_to_f64(x);
    match is_nan(x) {
        true => (wide >> 63 << 31 | 0xff << 23 | (wide >> 29 & 0x7f_ffff)) as u32,
        false => (f64::from_bits(wide) as f32).to_bits(),
    }
}

pub fn reference_from_f64(bits: u64, rounding: Rounding) -> u16 {
    let x = f64::from_bits(bits);
    let sign = u16::from(x.is_sign_negative()) << 15;
    match () {
        () if x.is_nan() => sign | 0x7e00 | (bits >> 42 & 0x3ff) as u16,
        () if x.is_infinite() => sign | 0x7c00,
        // Multiples of 2^-25 up to 2^17 are exact in an f64, so this comparison is exact.
        () => round_to_half(sign != 0, rounding, |units| x.abs().total_cmp(&(units as f64 / f64::from(1 << 25)))),
    }
}

pub fn reference_from_f32(bits: u32, rounding: Rounding) -> u16 {
    let x = f32::from_bits(bits);
    match x.is_nan() {
        true => (bits >> 31 << 15 | 0x7e00 | bits >> 13 & 0x3ff) as u16,
        false => reference_from_f64(f64::from(x).to_bits(), rounding),
    }
}

/// Converts to an integer of `bits` bits in two's complement. A value that does not fit becomes the
/// integer indefinite: the least value if signed, or all ones if unsigned.
pub fn reference_to_integer(x: u16, rounding: Rounding, bits: u32, signed: bool) -> u64 {
    let (least, most) = match signed {
        true => (-1i128 << (bits - 1), (1i128 << (bits - 1)) - 1),
        false => (0, (1i128 << bits) - 1),
    };
    let exact = (!is_nan(x) && !infinite(x)).then(|| {
        let (floor, rest) = (units(x).div_euclid(1 << 25), units(x).rem_euclid(1 << 25));
        let up = match rounding {
            Rounding::Nearest => rest > 1 << 24 || rest == 1 << 24 && floor.rem_euclid(2) == 1,
            Rounding::Down => false,
            Rounding::Up => rest != 0,
            Rounding::Zero => rest != 0 && floor < 0,
        };
        floor + i128::from(up)
    });
    let integer = exact.filter(|i| (least..=most).contains(i)).unwrap_or(if signed { least } else { most });
    integer as u64 & (u64::MAX >> (64 - bits))
}

pub fn reference_from_integer(i: i128, rounding: Rounding) -> u16 {
    round_to_half(i < 0, rounding, |units| (i.abs() << 25).cmp(&units))
}

pub fn reference_round_scale(x: u16, imm: u8) -> u16 {
    if is_nan(x) || infinite(x) {
        return if is_nan(x) { x | QUIET } else { x };
    }
    let rounding = if imm & 4 != 0 { Rounding::Nearest } else { ROUNDINGS[usize::from(imm & 3)] };
    // Number of units of 2^-25 in a multiple of 2^-M.
    let step = 1i128 << (25 - (imm >> 4));
    let (floor, rest) = (units(x).abs() / step, units(x).abs() % step);
    let up = match rounding {
        Rounding::Nearest => 2 * rest > step || 2 * rest == step && floor % 2 == 1,
        Rounding::Down => rest != 0 && negative(x),
        Rounding::Up => rest != 0 && !negative(x),
        Rounding::Zero => false,
    };
    let size = (floor + i128::from(up)) * step;
    round_to_half(negative(x), Rounding::Zero, |units| size.cmp(&units))
}

fn check_half(a: u16, b: u16, c: u16, rounding: Rounding) {
    let context = || format!("{a:04x} {b:04x} {c:04x} {rounding:?}");
    assert_eq!(half_ops::add(a, b, rounding), reference_add(a, b, rounding), "add {}", context());
    assert_eq!(half_ops::sub(a, b, rounding), reference_add(a, flip(b), rounding), "sub {}", context());
    assert_eq!(half_ops::mul(a, b, rounding), reference_mul(a, b, rounding), "mul {}", context());
    assert_eq!(half_ops::div(a, b, rounding), reference_div(a, b, rounding), "div {}", context());
    assert_eq!(half_ops::sqrt(a, rounding), reference_sqrt(a, rounding), "sqrt {}", context());
    assert_eq!(half_ops::fma(a, b, c, rounding), reference_fma(a, b, c, rounding), "fma {}", context());
    for (product, addend) in [(false, true), (true, false), (true, true)] {
        // Negation does not change the sign of an operand that is NaN.
        let x = if product { flip(a) } else { a };
        let z = if addend { flip(c) } else { c };
        let right = reference_fma(x, b, z, rounding);
        assert_eq!(half_ops::fma_signed(a, b, c, product, addend, rounding), right, "{product} {addend} {}", context());
    }
}

#[test]
fn half_arithmetic_matches_the_manual() {
    for rounding in ROUNDINGS {
        for a in SPECIAL_HALVES {
            for b in SPECIAL_HALVES {
                SPECIAL_HALVES.into_iter().for_each(|c| check_half(a, b, c, rounding));
            }
        }
        let mut random = Random::new(0x6670_3136);
        for a in 0..=0xffffu16 {
            check_half(a, half(&mut random), half(&mut random), rounding);
        }
    }
}

#[test]
fn half_comparisons_match_the_manual() {
    for a in SPECIAL_HALVES {
        for b in SPECIAL_HALVES {
            for predicate in 0..32u8 {
                let right = reference_compare(a, b, predicate);
                assert_eq!(half_ops::compare(a, b, predicate), right, "{a:04x} {b:04x} {predicate}");
            }
            assert_eq!(half_ops::min(a, b), reference_min(a, b), "min {a:04x} {b:04x}");
            assert_eq!(half_ops::max(a, b), reference_max(a, b), "max {a:04x} {b:04x}");
        }
    }
}

#[test]
fn half_widens_exactly() {
    for x in 0..=0xffffu16 {
        assert_eq!(half_ops::to_f64(x), reference_to_f64(x), "{x:04x}");
        assert_eq!(half_ops::to_f32(x), reference_to_f32(x), "{x:04x}");
    }
}

#[test]
fn half_rounds_floats_as_the_manual_does() {
    let check = |x: f64, rounding: Rounding| {
        let right = reference_from_f64(x.to_bits(), rounding);
        assert_eq!(half_ops::from_f64(x.to_bits(), rounding), right, "{x:e} {rounding:?}");
        let single = (x as f32).to_bits();
        assert_eq!(half_ops::from_f32(single, rounding), reference_from_f32(single, rounding), "{x:e} {rounding:?}");
    };
    let mut random = Random::new(0x6376_7470_6832);
    for rounding in ROUNDINGS {
        for bits in 0..=0x7bffu16 {
            // Tests every half and every midpoint. Each is also slightly increased and decreased.
            let (low, middle) = (half_units(bits) * 2, half_units(bits) + half_units(bits + 1));
            for at in [low, middle] {
                let at = at as f64 / f64::from(1 << 26);
                let single = at as f32;
                for x in [at, at.next_up(), at.next_down(), single.next_up().into(), single.next_down().into()] {
                    check(x, rounding);
                    check(-x, rounding);
                }
            }
        }
        for x in [f64::MAX, f64::MIN_POSITIVE, 5e-324, -5e-324, f64::INFINITY, f64::NEG_INFINITY, 65519.99, 65520.0] {
            check(x, rounding);
        }
        let random = (0..50_000).map(|_| single(&mut random));
        for bits in SPECIAL_SINGLES.into_iter().chain(random) {
            assert_eq!(
                half_ops::from_f32(bits, rounding),
                reference_from_f32(bits, rounding),
                "{bits:08x} {rounding:?}"
            );
        }
        for (bits, right) in
            [(0x7f80_0001, 0x7e00), (0xffc0_2000, 0xfe01), (0xffff_ffff, 0xffff), (0x7f80_2000, 0x7e01)]
        {
            assert_eq!(half_ops::from_f32(bits, rounding), right, "{bits:08x}");
        }
        for (bits, right) in [(0x7ff0_0000_0000_0001, 0x7e00), (u64::MAX, 0xffff), (0x7ff8_0400_0000_0000, 0x7e01)] {
            assert_eq!(half_ops::from_f64(bits, rounding), right, "{bits:016x}");
        }
    }
}

#[test]
fn half_integer_conversions_match_the_manual() {
    let mut random = Random::new(0x0069_6e74_3136);
    for rounding in ROUNDINGS {
        for x in 0..=0xffffu16 {
            let context = || format!("{x:04x} {rounding:?}");
            let right = |bits, signed| reference_to_integer(x, rounding, bits, signed);
            assert_eq!(u64::from(half_ops::to_i16(x, rounding) as u16), right(16, true), "{}", context());
            assert_eq!(u64::from(half_ops::to_u16(x, rounding)), right(16, false), "{}", context());
            assert_eq!(u64::from(half_ops::to_i32(x, rounding) as u32), right(32, true), "{}", context());
            assert_eq!(u64::from(half_ops::to_u32(x, rounding)), right(32, false), "{}", context());
            assert_eq!(half_ops::to_i64(x, rounding) as u64, right(64, true), "{}", context());
            assert_eq!(half_ops::to_u64(x, rounding), right(64, false), "{}", context());

            // Tests every 16-bit word as an integer, and random integers with more bits.
            let right = |i: i128| reference_from_integer(i, rounding);
            assert_eq!(half_ops::from_u16(x, rounding), right(x.into()), "{}", context());
            assert_eq!(half_ops::from_i16(x as i16, rounding), right((x as i16).into()), "{}", context());
            let wide = random.bits() >> (random.bits() % 64);
            assert_eq!(half_ops::from_i32(wide as i32, rounding), right((wide as i32).into()), "{wide:x} {rounding:?}");
            assert_eq!(half_ops::from_u32(wide as u32, rounding), right((wide as u32).into()), "{wide:x} {rounding:?}");
            assert_eq!(half_ops::from_i64(wide as i64, rounding), right((wide as i64).into()), "{wide:x} {rounding:?}");
            assert_eq!(half_ops::from_u64(wide, rounding), right(wide.into()), "{wide:x} {rounding:?}");
        }
    }
}

#[test]
fn half_round_scale_matches_the_manual() {
    for x in 0..=0xffffu16 {
        for imm in (0..=255u8).filter(|imm| imm & 8 == 0) {
            assert_eq!(half_ops::round_scale(x, imm), reference_round_scale(x, imm), "{x:04x} {imm:02x}");
        }
    }
}
