//! Tests of VNNI and BF16 lanes against the processor manual's pseudocode, which this file
//! implements with `exact`.

use std::cmp::Ordering;

use ixc_emulator::dot;
use ixc_ir::random::Random;

use crate::exact::{add32, fma32};

/// Special values of single precision.
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

/// Returns a random byte, often at an end of the signed or unsigned range.
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

/// Returns the bits of a single-precision number: arbitrary, special, or in a narrow range so that
/// sums cancel.
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

/// Returns operands near two kinds of limits. In the first kind, flushing before rounding would
/// differ from flushing after it. In the second, a sum that is rounded twice would be wrong.
fn edges() -> Vec<[u32; 3]> {
    let mut list = Vec::new();
    for x in SPECIAL_SINGLES {
        for y in SPECIAL_SINGLES {
            list.extend(SPECIAL_SINGLES.map(|z| [x, y, z]));
        }
    }
    // Exact results near (1 - 2^-24) · 2^-126 plus a little may round to the smallest normal
    // number.
    for low in 0..64 {
        list.push([0x3f7f_ffc0 | low, 0x0080_0000, 0]);
        list.push([0x3f7f_fff0, 0x0080_0000 + low, 0]);
        list.push([0x2000_0000 + low, 0x1fff_fff0 - low, 0x8000_0000]);
        list.push([0x9fff_ffff, 0x1fff_ffc0 + low, 0x0080_0000 + low]);
    }
    // The exact sum differs by 2^-70 from a midpoint of two floats. In an f64, it is rounded to
    // this midpoint.
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
fn fused_sums_match_the_manual() {
    let check = |[x, y, z]: [u32; 3]| {
        let (found, right) = (dot::fma_flushed(x, y, z), fma32(x, y, z));
        assert_eq!(found, right, "{x:08x} · {y:08x} + {z:08x} = {right:08x}, not {found:08x}");
        assert_eq!(dot::add_flushed(x, z), add32(x, z), "{x:08x} + {z:08x}");
    };
    edges().into_iter().for_each(check);
    let mut random = Random::new(0x6d_616e_7561_6c01);
    for _ in 0..300_000 {
        let [x, y, z] = std::array::from_fn(|_| single(&mut random));
        check([x, y, z]);
        // The first addend cancels most of the product. The second is smaller than the product by
        // 2^24, and the third larger, so the sum is near a midpoint.
        let product = (f32::from_bits(x) * f32::from_bits(y)).to_bits();
        check([x, y, product ^ 0x8000_0000]);
        check([x, y, product.wrapping_sub(0x0c00_0000)]);
        check([x, y, product.wrapping_add(0x0c00_0000)]);
    }
}

/// Returns the results of `VPDPBUSD`, `VPDPBUSDS`, `VPDPWSSD` and `VPDPWSSDS` for one doubleword.
pub fn reference_vnni(sum: u32, a: u32, b: u32) -> [u32; 4] {
    // The variables p1word to p4word, p1dword and p2dword of the manual are exact integers.
    let bytes: i128 = (0..4).map(|i| i128::from(a >> (8 * i) & 0xff) * i128::from((b >> (8 * i)) as u8 as i8)).sum();
    let words: i128 = (0..2).map(|i| i128::from((a >> (16 * i)) as i16) * i128::from((b >> (16 * i)) as i16)).sum();
    let origin = i128::from(sum as i32);
    let wrap = |x: i128| x.rem_euclid(1 << 32) as u32;
    let saturate = |x: i128| match x {
        0x8000_0000.. => 0x7fff_ffff,
        ..-0x8000_0000 => 0x8000_0000,
        _ => wrap(x),
    };
    [wrap(origin + bytes), saturate(origin + bytes), wrap(origin + words), saturate(origin + words)]
}

#[test]
fn vnni_lanes_match_the_manual() {
    let check = |sum: u32, a: u32, b: u32| {
        let found =
            [dot::pdpbusd(sum, a, b), dot::pdpbusds(sum, a, b), dot::pdpwssd(sum, a, b), dot::pdpwssds(sum, a, b)];
        assert_eq!(found, reference_vnni(sum, a, b), "busd, busds, wssd, wssds of {sum:08x}, {a:08x}, {b:08x}");
    };
    let mut random = Random::new(0x766e_6e69);
    // Tests every pair of bytes at every position. The other positions have random bytes.
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
fn bf16_lanes_match_the_manual() {
    let mut random = Random::new(0x6266_3136);
    for _ in 0..300_000 {
        let [sum, a, b] = std::array::from_fn(|_| single(&mut random));
        // Each operand has the bits of two bfloat16. The low one gets a special value of its own.
        let (a, b) = (a & !0xffff | single(&mut random) >> 16, b & !0xffff | single(&mut random) >> 16);
        let make = |x: u32| (x & 0xffff) << 16;
        let right = fma32(make(a >> 16), make(b >> 16), sum);
        let right = fma32(make(a), make(b), right);
        assert_eq!(dot::dpbf16ps(sum, a, b), right, "{sum:08x} + {a:08x} · {b:08x}");
    }
}

#[test]
fn bf16_conversion_matches_the_manual() {
    let check = |x: u32| {
        let right = match x & 0x7fff_ffff {
            0..=0x007f_ffff => x >> 16 & 0x8000,
            0x7f80_0000 => x >> 16,
            0x7f80_0001.. => x >> 16 | 0x40,
            // Takes the nearer of the two neighbouring numbers, or the even one if both are equally
            // near.
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
