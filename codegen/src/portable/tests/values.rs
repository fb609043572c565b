//! Tests of ops that are built from other ops because cranelift lacks them. They use far more
//! operands than the test of the op table.

use half::f16;
use ixc_ir::kernel::{Imm, Op, Type};

use super::*;

/// Floats that are difficult for rounding, signs, overflow or NaN handling.
const EDGES: [f32; 36] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    3.5,
    1e-45,
    -1e-45,
    f32::MIN_POSITIVE,
    f32::EPSILON,
    1.0 + f32::EPSILON,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    65504.0,
    65519.996,
    65520.0,
    65536.0,
    -65520.0,
    5.960_464_5e-8,
    2.980_232_2e-8,
    2.980_232_6e-8,
    6.103_515_6e-5,
    6.100_535_4e-5,
    8_388_607.5,
    8_388_609.0,
    2_147_483_520.0,
    2_147_483_648.0,
    -2_147_483_648.0,
    -2_147_483_904.0,
];

/// Returns random bit patterns mixed with edge cases.
pub(super) fn floats(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    let pick = |i: usize| match random.bits() {
        r if i < EDGES.len() || r % 5 == 0 => EDGES[if i < EDGES.len() { i } else { (r >> 8) as usize % EDGES.len() }],
        r if r % 5 == 1 => f32::from_bits((r >> 32) as u32),
        // Numbers of similar magnitude, so that sums cancel and round.
        r => f32::from_bits(0x3f80_0000 | (r >> 40) as u32 & 0x80ff_ffff),
    };
    (0..count).map(pick).collect()
}

#[test]
fn every_f16_converts_exactly_to_f32() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for lanes in [1, 4, 16] {
        apply(Op::F16ToF32, Imm::None, &[(Type::f16(lanes), &halves)], Type::f32(lanes));
    }
}

#[test]
fn f32_converts_to_f16_with_correct_rounding() {
    let mut singles = floats(1, 1 << 15);
    // The value of each half, the midpoint between it and the next half, and both neighbours of
    // that midpoint.
    for half in (0..=u16::MAX).step_by(7) {
        let value = f16::from_bits(half).to_f32().to_bits();
        singles.extend([0, 0xfff, 0x1000, 0x1001, 0x1fff].map(|low| f32::from_bits(value.wrapping_add(low))));
    }
    // Singles over the whole range that becomes subnormal halves, and beyond.
    singles.extend((0x3280_0000..0x3900_0000).step_by(1021).map(f32::from_bits));
    for lanes in [2, 16] {
        apply(Op::F32ToF16, Imm::None, &[(Type::f32(lanes), &f32_bytes(&singles))], Type::f16(lanes));
    }
}

#[test]
fn every_bf16_converts_exactly_to_f32() {
    let bf16: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for lanes in [1, 8, 16] {
        apply(Op::Bf16ToF32, Imm::None, &[(Type::bf16(lanes), &bf16)], Type::f32(lanes));
    }
}

#[test]
fn f32_converts_to_bf16_with_correct_rounding() {
    let mut singles = floats(6, 1 << 15);
    // Each bf16, including NaN, infinities and denormals; the midpoint between it and the next
    // bf16, and both neighbours of that midpoint.
    for upper in (0..=u16::MAX).step_by(3) {
        singles.extend([0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| f32::from_bits(u32::from(upper) << 16 | low)));
    }
    let bytes = f32_bytes(&singles);
    let backwards = f32_bytes(&singles.iter().rev().copied().collect::<Vec<_>>());
    for lanes in [1, 4, 16] {
        let ty = Type::f32(lanes);
        apply(Op::ToBf16, Imm::None, &[(ty, &bytes)], Type::bf16(lanes));
        apply(Op::ToBf16Pairs, Imm::None, &[(ty, &bytes), (ty, &backwards)], Type::bf16(2 * lanes));
    }
}

#[test]
fn pairs_of_bf16_are_summed_without_denormals() {
    let mut random = Random::new(8);
    let (mut sums, mut a, mut b) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..1 << 16 {
        let [x, y, z] = std::array::from_fn(|_| random.bits() as u32);
        // Three cases of sums: any size; sums around the smallest normal number, with products that
        // are fractions of its unit; and sums that cancel.
        let (sum, x, y) = match i % 3 {
            0 => (x, y, z),
            1 => (
                x & 0x8000_0000 | (f32::MIN_POSITIVE.to_bits() - 1 + x % 3),
                y & 0x81ff_81ff | 0x1900_1900,
                z & 0x81ff_81ff | 0x1900_1900,
            ),
            _ => {
                let (y, z) = (y & 0x81ff_81ff | 0x3e00_3e00, z & 0x81ff_81ff | 0x3e00_3e00);
                let odd = f32::from_bits(y & 0xffff_0000) * f32::from_bits(z & 0xffff_0000);
                ((-odd).to_bits() ^ x & 1, y, z)
            }
        };
        // The payload of a NaN result is unspecified, so NaN and infinities are excluded.
        let finite = |bits: u32| if bits & 0x7f80_0000 == 0x7f80_0000 { bits & 0xbfff_ffff } else { bits };
        let finite_pair = |bits: u32| finite(bits & 0xffff_0000) | finite(bits << 16) >> 16;
        sums.extend(finite(sum).to_le_bytes());
        a.extend(finite_pair(x).to_le_bytes());
        b.extend(finite_pair(y).to_le_bytes());
    }
    for lanes in [1, 4, 16] {
        let (sum, pairs) = (Type::f32(lanes), Type::bf16(2 * lanes));
        apply(Op::Dot2Bf16, Imm::None, &[(sum, &sums), (pairs, &a), (pairs, &b)], sum);
    }
}

#[test]
fn four_products_are_summed_without_saturation() {
    let mut random = Random::new(7);
    let pick = |random: &mut Random, extremes: [u8; 3]| match random.bits() {
        r if r % 2 == 0 => extremes[(r >> 8) as usize % 3],
        r => (r >> 16) as u8,
    };
    let unsigned: Vec<u8> = (0..1 << 14).map(|_| pick(&mut random, [255, 255, 128])).collect();
    let signed: Vec<u8> = (0..1 << 14).map(|_| pick(&mut random, [128, 127, 128])).collect();
    let sums = random.bytes(1 << 14);
    for lanes in [1, 4, 16] {
        let (sum, four) = (Type::i32(lanes), Type::i8(4 * lanes));
        apply(Op::Dot4U8S8, Imm::None, &[(sum, &sums), (four, &unsigned), (four, &signed)], sum);
    }
}

#[test]
fn fma_rounds_once_on_every_target() {
    let count = 1 << 14;
    let mut triples: Vec<[f32; 3]> =
        EDGES.iter().flat_map(|x| EDGES.map(|y| EDGES.map(|z| [*x, y, z]))).flatten().collect();
    let (a, b, c) = (floats(2, count), floats(3, count), floats(4, count));
    for i in 0..count {
        let (x, y) = (a[i], b[count - 1 - i]);
        triples.push([x, b[i], c[i]]);
        // Sums that equal the product's rounding error, and subnormal sums.
        triples.push([x, y, -(x * y)]);
        triples.push([x * 2f32.powi(-70), y * 2f32.powi(-70), f32::from_bits(i as u32 & 7)]);
    }
    let [a, b, c] = [0, 1, 2].map(|i| f32_bytes(&triples.iter().map(|triple| triple[i]).collect::<Vec<_>>()));
    let ty = Type::f32(8);
    apply(Op::Fma, Imm::None, &[(ty, &a), (ty, &b), (ty, &c)], ty);
}

#[test]
fn to_i32_rounds_to_even_and_marks_overflow() {
    let mut singles = floats(5, 1 << 12);
    singles.extend((-2000..2000).map(|i| i as f32 * 0.25));
    apply(Op::ToI32, Imm::None, &[(Type::f32(8), &f32_bytes(&singles))], Type::i32(8));
}
