//! VNNI, BF16 and FP16 lanes against the processor manual's pseudocode, transcribed here a second time over `exact`.

use std::cmp::Ordering;

use ixc_codegen::emulator::soft::Rounding;
use ixc_codegen::emulator::{dot, half_ops};
use ixc_codegen::rows::inputs::Random;

use crate::exact::{ROUNDINGS, add32, fma32, half_units, round_to_half};

/// Single precision with everything that is special about it.
pub const SPECIAL_SINGLES: [u32; 28] = [
    0x0000_0000,
    0x8000_0000, // zeros
    0x0000_0001,
    0x8000_0001,
    0x007f_ffff,
    0x807f_ffff, // denormals
    0x0080_0000,
    0x8080_0000,
    0x0080_0001,
    0x00ff_ffff, // smallest normals
    0x3f80_0000,
    0xbf80_0000,
    0x3f80_0001,
    0x3f7f_ffff, // around one
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000, // largest, infinities
    0x7fc0_0000,
    0xffc0_0001,
    0x7fc1_2345,
    0x7f80_0001,
    0xff81_0000,
    0x7fff_ffff, // quiet and signalling NaN
    0x1f80_0000,
    0x2000_0000,
    0x5f80_0000,
    0x9f80_0000, // products at the edge of underflow
];

pub const SPECIAL_HALVES: [u16; 20] = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400, 0x3c00, 0xbc00, 0x3c01, 0x3bff, 0x7bff, 0xfbff,
    0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0xfd55,
];

/// A byte, often at the ends of the signed and unsigned ranges.
pub fn byte(random: &mut Random) -> u8 {
    let bits = random.bits();
    match bits & 3 {
        0 => [0x00, 0x01, 0x7f, 0x80, 0x81, 0xff, 0xfe, 0x40][(bits >> 8) as usize % 8],
        _ => (bits >> 8) as u8,
    }
}

pub fn dword_of_bytes(random: &mut Random) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|_| byte(random)))
}

/// Bits of single precision: any, special, or of a narrow range, so that sums cancel.
pub fn single(random: &mut Random) -> u32 {
    let bits = random.bits();
    let any = (bits >> 32) as u32;
    match bits & 7 {
        0 => SPECIAL_SINGLES[(bits >> 8) as usize % SPECIAL_SINGLES.len()],
        1 => any,
        2 => any & 0x80ff_ffff | 0x1f00_0000, // products near 2^-130
        3 => any & 0x81ff_ffff,               // near the smallest normal numbers
        _ => any & 0x83ff_ffff | 0x3e00_0000,
    }
}

pub fn half(random: &mut Random) -> u16 {
    let bits = random.bits();
    let any = (bits >> 32) as u16;
    match bits & 7 {
        0 => SPECIAL_HALVES[(bits >> 8) as usize % SPECIAL_HALVES.len()],
        1 => any & 0x87ff,
        2 => any & 0x8fff | 0x3000,
        _ => any,
    }
}

/// What is flushed differently before and after rounding, and what sums round twice.
fn edges() -> Vec<[u32; 3]> {
    let mut list = Vec::new();
    for x in SPECIAL_SINGLES {
        for y in SPECIAL_SINGLES {
            list.extend(SPECIAL_SINGLES.map(|z| [x, y, z]));
        }
    }
    // (1 - 2^-24) · 2^-126 + a little: around where a tiny result rounds to the smallest normal number.
    for low in 0..64 {
        list.push([0x3f7f_ffc0 | low, 0x0080_0000, 0]);
        list.push([0x3f7f_fff0, 0x0080_0000 + low, 0]);
        list.push([0x2000_0000 + low, 0x1fff_fff0 - low, 0x8000_0000]);
        list.push([0x9fff_ffff, 0x1fff_ffc0 + low, 0x0080_0000 + low]);
    }
    // An exact sum 2^-70 beside a midpoint of two floats: an f64 in between sees the midpoint itself.
    for half_ulp in [0x3380_0000u32, 0xb380_0000, 0x3300_0000] {
        for z in [0x3f80_0000u32, 0x3f80_0001, 0xbf80_0000, 0xbf80_0001, 0x3f7f_ffff] {
            list.push([half_ulp, 0x3f80_0000, z]);
            list.push([half_ulp + 1, 0x3f7f_fffe, z]); // (1 + 2^-23) (1 - 2^-23) = 1 - 2^-46
            list.push([half_ulp + 2, 0x3f7f_fffc, z]);
        }
    }
    list
}

#[test]
fn fused_sums_are_those_of_the_manual() {
    let check = |[x, y, z]: [u32; 3]| {
        let (found, right) = (dot::fma_flushed(x, y, z), fma32(x, y, z));
        assert_eq!(found, right, "{x:08x} · {y:08x} + {z:08x} = {right:08x}, not {found:08x}");
        assert_eq!(dot::add_flushed(x, z), add32(x, z), "{x:08x} + {z:08x}");
    };
    edges().into_iter().for_each(check);
    let mut random = Random(0x6d_616e_7561_6c01);
    for _ in 0..300_000 {
        let [x, y, z] = std::array::from_fn(|_| single(&mut random));
        check([x, y, z]);
        // An addend that takes away most of the product, and one a midpoint away from it.
        let product = (f32::from_bits(x) * f32::from_bits(y)).to_bits();
        check([x, y, product ^ 0x8000_0000]);
        check([x, y, product.wrapping_sub(0x0c00_0000)]);
        check([x, y, product.wrapping_add(0x0c00_0000)]);
    }
}

#[test]
fn vnni_lanes_are_those_of_the_manual() {
    let check = |sum: u32, a: u32, b: u32| {
        // p1word..p4word, p1dword, p2dword: exact integers.
        let bytes: i128 =
            (0..4).map(|i| i128::from(a >> (8 * i) & 0xff) * i128::from((b >> (8 * i)) as u8 as i8)).sum();
        let words: i128 = (0..2).map(|i| i128::from((a >> (16 * i)) as i16) * i128::from((b >> (16 * i)) as i16)).sum();
        let origin = i128::from(sum as i32);
        let wrap = |x: i128| x.rem_euclid(1 << 32) as u32;
        let saturate = |x: i128| match x {
            0x8000_0000.. => 0x7fff_ffff,
            ..-0x8000_0000 => 0x8000_0000,
            _ => wrap(x),
        };
        let found =
            [dot::pdpbusd(sum, a, b), dot::pdpbusds(sum, a, b), dot::pdpwssd(sum, a, b), dot::pdpwssds(sum, a, b)];
        let right = [wrap(origin + bytes), saturate(origin + bytes), wrap(origin + words), saturate(origin + words)];
        assert_eq!(found, right, "busd, busds, wssd, wssds of {sum:08x}, {a:08x}, {b:08x}");
    };
    let mut random = Random(0x766e_6e69);
    // Every pair of bytes in every place, among random others.
    for a in 0..=255u32 {
        for b in 0..=255u32 {
            let place = 8 * (random.bits() as u32 % 4);
            let (x, y) = (dword_of_bytes(&mut random), dword_of_bytes(&mut random));
            check(random.bits() as u32, x & !(0xff << place) | a << place, y & !(0xff << place) | b << place);
        }
    }
    for sum in [0, 1, 0x7fff_ffff, 0x8000_0000, 0x7fff_0000, 0x8000_ffff, 0xffff_ffff] {
        for a in [0, 0xffff_ffff, 0x8000_8000, 0x7fff_7fff, 0x8080_8080, 0x7f7f_7f7f, 0x8000_7fff] {
            for b in [0, 0xffff_ffff, 0x8000_8000, 0x7fff_7fff, 0x8080_8080, 0x7f7f_7f7f, 0x7fff_8000] {
                check(sum, a, b);
            }
        }
    }
}

#[test]
fn bf16_lanes_are_those_of_the_manual() {
    let mut random = Random(0x6266_3136);
    for _ in 0..300_000 {
        let [sum, a, b] = std::array::from_fn(|_| single(&mut random));
        // Bits of two bfloat16 each; the low one gets special values of its own.
        let (a, b) = (a & !0xffff | single(&mut random) >> 16, b & !0xffff | single(&mut random) >> 16);
        let make = |x: u32| (x & 0xffff) << 16;
        let right = fma32(make(a >> 16), make(b >> 16), sum);
        let right = fma32(make(a), make(b), right);
        assert_eq!(dot::dpbf16ps(sum, a, b), right, "{sum:08x} + {a:08x} · {b:08x}");
    }
}

#[test]
fn bf16_conversion_is_that_of_the_manual() {
    let check = |x: u32| {
        let right = match x & 0x7fff_ffff {
            0..=0x007f_ffff => x >> 16 & 0x8000,
            0x7f80_0000 => x >> 16,
            0x7f80_0001.. => x >> 16 | 0x40,
            // The nearer of the two neighbours, and of equally near ones the even one.
            size => {
                let (low, high) = (size & 0xffff_0000, (size & 0xffff_0000) + 0x1_0000);
                let wide = |bits: u32| match bits {
                    0x7f80_0000 => 2f64.powi(128), // as if the exponent went on
                    _ => f64::from(f32::from_bits(bits)),
                };
                let middle = (wide(low) + wide(high)) / 2.0;
                let up = match wide(size).total_cmp(&middle) {
                    Ordering::Less => false,
                    Ordering::Equal => low >> 16 & 1 == 1,
                    Ordering::Greater => true,
                };
                (if up { high } else { low }) >> 16 | x >> 16 & 0x8000
            }
        };
        assert_eq!(u32::from(dot::cvtneps2bf16(x)), right, "{x:08x}");
    };
    SPECIAL_SINGLES.into_iter().for_each(check);
    for high in 0..=0xffffu32 {
        for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            check(high << 16 | low);
        }
    }
}

const QUIET: u16 = 0x200;
const INDEFINITE: u16 = 0xfe00;

fn nan(x: u16) -> bool {
    x & 0x7fff > 0x7c00
}

fn infinite(x: u16) -> bool {
    x & 0x7fff == 0x7c00
}

fn negative(x: u16) -> bool {
    x >> 15 == 1
}

/// Signed, in units of 2^-25.
fn units(x: u16) -> i128 {
    let size = half_units(x & 0x7fff);
    if negative(x) { -size } else { size }
}

/// Rounds `sum · 2^-50`; an exact zero of unlike signs is positive, but negative where rounding down.
fn round_units(sum: i128, both_negative: bool, unlike: bool, rounding: Rounding) -> u16 {
    let sign = match sum.cmp(&0) {
        Ordering::Less => true,
        Ordering::Equal if unlike => rounding == Rounding::Down,
        Ordering::Equal => both_negative,
        Ordering::Greater => false,
    };
    round_to_half(sign, rounding, |units| sum.abs().cmp(&(units << 25)))
}

fn reference_fma(x: u16, y: u16, z: u16, rounding: Rounding) -> u16 {
    if let Some(nan) = [x, y, z].into_iter().find(|v| nan(*v)) {
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

fn reference_div(a: u16, b: u16, rounding: Rounding) -> u16 {
    if let Some(nan) = [a, b].into_iter().find(|v| nan(*v)) {
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

fn reference_sqrt(a: u16, rounding: Rounding) -> u16 {
    match () {
        () if nan(a) => a | QUIET,
        () if a == 0x8000 => a,
        () if negative(a) => INDEFINITE,
        () if infinite(a) => a,
        () => round_to_half(false, rounding, |root| (units(a) << 25).cmp(&(root * root))),
    }
}

fn check_half(a: u16, b: u16, c: u16, rounding: Rounding) {
    let (one, minus_zero) = (0x3c00, 0x8000);
    let flip = |x: u16| if nan(x) { x } else { x ^ 0x8000 };
    let sum = |x, y| reference_fma(x, one, y, rounding);
    // x · y + ±0 has the sign of x · y where it is zero, if the zero has it too.
    let product_zero = if negative(a) != negative(b) { minus_zero } else { 0 };
    let context = || format!("{a:04x} {b:04x} {c:04x} {rounding:?}");
    assert_eq!(half_ops::add(a, b, rounding), sum(a, b), "add {}", context());
    assert_eq!(half_ops::sub(a, b, rounding), sum(a, flip(b)), "sub {}", context());
    assert_eq!(half_ops::mul(a, b, rounding), reference_fma(a, b, product_zero, rounding), "mul {}", context());
    assert_eq!(half_ops::div(a, b, rounding), reference_div(a, b, rounding), "div {}", context());
    assert_eq!(half_ops::sqrt(a, rounding), reference_sqrt(a, rounding), "sqrt {}", context());
    assert_eq!(half_ops::fma(a, b, c, rounding), reference_fma(a, b, c, rounding), "fma {}", context());
    for (product, addend) in [(false, true), (true, false), (true, true)] {
        // A NaN's sign is not turned, whichever operand it is in.
        let x = if product { flip(a) } else { a };
        let z = if addend { flip(c) } else { c };
        let right = reference_fma(x, b, z, rounding);
        assert_eq!(half_ops::fma_signed(a, b, c, product, addend, rounding), right, "{product} {addend} {}", context());
    }
}

#[test]
fn half_arithmetic_is_that_of_the_manual() {
    for rounding in ROUNDINGS {
        for a in SPECIAL_HALVES {
            for b in SPECIAL_HALVES {
                SPECIAL_HALVES.into_iter().for_each(|c| check_half(a, b, c, rounding));
            }
        }
        let mut random = Random(0x6670_3136);
        for a in 0..=0xffffu16 {
            check_half(a, half(&mut random), half(&mut random), rounding);
        }
    }
}

#[test]
fn half_comparisons_are_those_of_the_manual() {
    // The manual's table: what each predicate gives for greater, less, equal, unordered.
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
    for a in SPECIAL_HALVES {
        for b in SPECIAL_HALVES {
            let value = |x: u16| match x & 0x7fff {
                0x7c00 => Some(if negative(x) { i128::MIN } else { i128::MAX }),
                _ if nan(x) => None,
                _ => Some(units(x)),
            };
            let column = match value(a).zip(value(b)).map(|(a, b)| a.cmp(&b)) {
                Some(Ordering::Greater) => 0,
                Some(Ordering::Less) => 1,
                Some(Ordering::Equal) => 2,
                None => 3,
            };
            for predicate in 0..32u8 {
                let right = TABLE[usize::from(predicate % 16)][column] == 1;
                assert_eq!(half_ops::compare(a, b, predicate), right, "{a:04x} {b:04x} {predicate}");
            }
            // MIN and MAX: the second operand unless the first is strictly the one asked for.
            assert_eq!(half_ops::min(a, b), if column == 1 { a } else { b }, "min {a:04x} {b:04x}");
            assert_eq!(half_ops::max(a, b), if column == 0 { a } else { b }, "max {a:04x} {b:04x}");
        }
    }
}

#[test]
fn half_widens_exactly() {
    for x in 0..=0xffffu16 {
        let (single, double) = (half_ops::to_f32(x), half_ops::to_f64(x));
        if nan(x) {
            let payload = u64::from(x & 0x3ff | QUIET);
            assert_eq!(u64::from(single), u64::from(negative(x)) << 31 | 0xff << 23 | payload << 13, "{x:04x}");
            assert_eq!(double, u64::from(negative(x)) << 63 | 0x7ff << 52 | payload << 42, "{x:04x}");
        } else {
            let value = match infinite(x) {
                true => f64::INFINITY.copysign(if negative(x) { -1.0 } else { 1.0 }),
                false => (units(x).abs() as f64 / f64::from(1 << 25)).copysign(if negative(x) { -1.0 } else { 1.0 }),
            };
            assert_eq!(double, value.to_bits(), "{x:04x}");
            assert_eq!(single, (value as f32).to_bits(), "{x:04x}");
        }
    }
}

#[test]
fn half_rounds_floats_as_the_manual_does() {
    let check = |x: f64, rounding: Rounding| {
        // Multiples of 2^-25 up to 2^17 are exact in an f64, so this comparison is.
        let compare = |units: i128| x.abs().total_cmp(&(units as f64 / f64::from(1 << 25)));
        let right = match x.is_infinite() {
            true => 0x7c00 | u16::from(x.is_sign_negative()) << 15,
            false => round_to_half(x.is_sign_negative(), rounding, compare),
        };
        assert_eq!(half_ops::from_f64(x.to_bits(), rounding), right, "{x:e} {rounding:?}");
        let single = x as f32;
        if f64::from(single) == x {
            assert_eq!(half_ops::from_f32(single.to_bits(), rounding), right, "{x:e} {rounding:?}");
        }
    };
    let mut random = Random(0x6376_7470_6832);
    for rounding in ROUNDINGS {
        for bits in 0..=0x7bffu16 {
            // Every number, every midpoint, and both with a little more and less.
            let (low, middle) = (half_units(bits) * 2, half_units(bits) + half_units(bits + 1));
            for at in [low, middle] {
                let at = at as f64 / f64::from(1 << 26);
                for x in [
                    at,
                    at.next_up(),
                    at.next_down(),
                    f64::from((at as f32).next_up()),
                    f64::from((at as f32).next_down()),
                ] {
                    check(x, rounding);
                    check(-x, rounding);
                }
            }
        }
        for bits in SPECIAL_SINGLES {
            let x = f32::from_bits(bits);
            if !x.is_nan() {
                check(x.into(), rounding);
            }
        }
        for x in [f64::MAX, f64::MIN_POSITIVE, 5e-324, -5e-324, f64::INFINITY, f64::NEG_INFINITY, 65519.99, 65520.0] {
            check(x, rounding);
        }
        for _ in 0..50_000 {
            let x = f32::from_bits(single(&mut random));
            if !x.is_nan() {
                check(x.into(), rounding);
            }
        }
        for (single, right) in
            [(0x7f80_0001, 0x7e00), (0xffc0_2000, 0xfe01), (0xffff_ffff, 0xffff), (0x7f80_2000, 0x7e01)]
        {
            assert_eq!(half_ops::from_f32(single, rounding), right, "{single:08x}");
        }
        for (double, right) in
            [(0x7ff0_0000_0000_0001, 0x7e00), (0xffff_ffff_ffff_ffff, 0xffff), (0x7ff8_0400_0000_0000, 0x7e01)]
        {
            assert_eq!(half_ops::from_f64(double, rounding), right, "{double:016x}");
        }
    }
}

#[test]
fn half_and_integers_convert_as_the_manual_says() {
    let mut random = Random(0x0069_6e74_3136);
    for rounding in ROUNDINGS {
        for x in 0..=0xffffu16 {
            // The neighbouring integers; one of them is it.
            let exact = (!nan(x) && !infinite(x)).then(|| {
                let (floor, rest) = (units(x).div_euclid(1 << 25), units(x).rem_euclid(1 << 25));
                floor
                    + i128::from(match rounding {
                        Rounding::Nearest => rest > 1 << 24 || rest == 1 << 24 && floor.rem_euclid(2) == 1,
                        Rounding::Down => false,
                        Rounding::Up => rest != 0,
                        Rounding::Zero => rest != 0 && floor < 0,
                    })
            });
            let context = || format!("{x:04x} {rounding:?}");
            let right = |bits: u32, signed: bool| {
                let (least, most) = match signed {
                    true => (-1i128 << (bits - 1), (1i128 << (bits - 1)) - 1),
                    false => (0, (1i128 << bits) - 1),
                };
                exact.filter(|i| (least..=most).contains(i)).unwrap_or(if signed { least } else { most })
            };
            assert_eq!(i128::from(half_ops::to_i16(x, rounding)), right(16, true), "{}", context());
            assert_eq!(i128::from(half_ops::to_u16(x, rounding)), right(16, false), "{}", context());
            assert_eq!(i128::from(half_ops::to_i32(x, rounding)), right(32, true), "{}", context());
            assert_eq!(i128::from(half_ops::to_u32(x, rounding)), right(32, false), "{}", context());
            assert_eq!(i128::from(half_ops::to_i64(x, rounding)), right(64, true), "{}", context());
            assert_eq!(i128::from(half_ops::to_u64(x, rounding)), right(64, false), "{}", context());

            // Every word as an integer, and random wider ones.
            let right = |i: i128| round_to_half(i < 0, rounding, |units| (i.abs() << 25).cmp(&units));
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
fn half_rounds_to_a_scale() {
    for x in 0..=0xffffu16 {
        for imm in (0..=255u8).filter(|imm| imm & 8 == 0) {
            let rounding = if imm & 4 != 0 { Rounding::Nearest } else { ROUNDINGS[usize::from(imm & 3)] };
            let right = match () {
                () if nan(x) => x | QUIET,
                () if infinite(x) => x,
                () => {
                    // Units of 2^-25 in one step of 2^-M.
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
            };
            assert_eq!(half_ops::round_scale(x, imm), right, "{x:04x} {imm:02x}");
        }
    }
}
