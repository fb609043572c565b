//! Ops whose lowering is not one instruction, against definitions that share nothing with it: the `half` crate, Rust's own
//! arithmetic, lane-by-lane integer formulas.

use half::f16;
use ixc_ir::kernel::{Elem, Imm, Op, Type};

use super::*;

/// Floats where rounding, sign, overflow or NaN handling go wrong.
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

/// Random bits, and edges among them.
fn floats(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random(seed);
    let pick = |i: usize| match random.next() {
        r if i < EDGES.len() || r % 5 == 0 => EDGES[if i < EDGES.len() { i } else { (r >> 8) as usize % EDGES.len() }],
        r if r % 5 == 1 => f32::from_bits((r >> 32) as u32),
        // Near one another, so that sums cancel and round.
        r => f32::from_bits(0x3f80_0000 | (r >> 40) as u32 & 0x80ff_ffff),
    };
    (0..count).map(pick).collect()
}

#[track_caller]
fn assert_same_float(got: f32, right: f32, what: impl std::fmt::Display) {
    let same = got.to_bits() == right.to_bits() || got.is_nan() && right.is_nan();
    assert!(same, "{what}: {got} ({:#x}), right is {right} ({:#x})", got.to_bits(), right.to_bits());
}

#[test]
fn every_half_becomes_the_right_single() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for lanes in [1, 4, 16] {
        let got = apply(Op::F16ToF32, Imm::None, &[(Type::f16(lanes), &halves)], Type::f32(lanes));
        for (half, got) in u16s(&halves).into_iter().zip(f32s(&got)) {
            assert_eq!(got.to_bits(), f16::from_bits(half).to_f32().to_bits(), "{half:#06x}");
        }
    }
}

#[test]
fn singles_become_the_right_halves() {
    let mut singles = floats(1, 1 << 15);
    // Each half's value, the middle to the next one, and both neighbours of that middle.
    for half in (0..=u16::MAX).step_by(7) {
        let value = f16::from_bits(half).to_f32().to_bits();
        singles.extend([0, 0xfff, 0x1000, 0x1001, 0x1fff].map(|low| f32::from_bits(value.wrapping_add(low))));
    }
    // Subnormal results: all magnitudes around them.
    singles.extend((0x3280_0000..0x3900_0000).step_by(1021).map(f32::from_bits));
    singles.truncate(singles.len() / 16 * 16);
    for lanes in [2, 16] {
        let bytes = f32_bytes(&singles);
        let got = apply(Op::F32ToF16, Imm::None, &[(Type::f32(lanes), &bytes)], Type::f16(lanes));
        for (single, got) in singles.iter().zip(u16s(&got)) {
            assert_eq!(got, f16::from_f32(*single).to_bits(), "{single} {:#x}", single.to_bits());
        }
    }
}

#[test]
fn fused_multiply_add_rounds_once_with_and_without_the_instruction() {
    let count = 1 << 14;
    let (mut a, mut b, mut c) = (floats(2, count), floats(3, count), floats(4, count));
    for x in EDGES {
        for y in EDGES {
            for z in EDGES {
                a.push(x);
                b.push(y);
                c.push(z);
            }
        }
    }
    // Sums that cancel to the product's own rounding error, and products between two subnormals.
    for i in 0..count {
        let (x, y) = (a[i], b[count - 1 - i]);
        a.push(x);
        b.push(y);
        c.push(-(x * y));
        let (x, y) = (x * 2f32.powi(-70), y * 2f32.powi(-70));
        a.push(x);
        b.push(y);
        c.push(f32::from_bits(i as u32 & 7));
    }
    let ty = Type::f32(8);
    for list in [&mut a, &mut b, &mut c] {
        list.truncate(list.len() / 8 * 8);
    }
    let (a_bytes, b_bytes, c_bytes) = (f32_bytes(&a), f32_bytes(&b), f32_bytes(&c));
    for machine in MACHINES {
        let got = apply_on(machine, Op::Fma, Imm::None, &[(ty, &a_bytes), (ty, &b_bytes), (ty, &c_bytes)], ty);
        for (i, got) in f32s(&got).into_iter().enumerate() {
            assert_same_float(
                got,
                a[i].mul_add(b[i], c[i]),
                format_args!("{} * {} + {}, {machine:?}", a[i], b[i], c[i]),
            );
        }
    }
}

#[test]
fn conversion_to_integers_rounds_to_even_and_marks_what_is_out_of_range() {
    let mut singles = floats(5, 1 << 12);
    singles.extend((-2000..2000).map(|i| i as f32 * 0.25));
    singles.truncate(singles.len() / 8 * 8);
    let got = apply(Op::ToI32, Imm::None, &[(Type::f32(8), &f32_bytes(&singles))], Type::i32(8));
    for (x, got) in singles.iter().zip(i32s(&got)) {
        let nearest = f64::from(*x).round_ties_even();
        let right = if (-2147483648.0..2147483648.0).contains(&nearest) { nearest as i32 } else { i32::MIN };
        assert_eq!(got, right, "{x}");
    }
}

#[test]
fn minimum_and_maximum_give_the_second_operand_where_nothing_is_less() {
    let (a, b) = (floats(6, 1 << 12), floats(7, 1 << 12));
    let ty = Type::f32(4);
    for op in [Op::Min, Op::Max] {
        let got = apply(op, Imm::None, &[(ty, &f32_bytes(&a)), (ty, &f32_bytes(&b))], ty);
        for ((a, b), got) in a.iter().zip(&b).zip(f32s(&got)) {
            let first = if op == Op::Min { a < b } else { a > b };
            let right = if first { *a } else { *b };
            assert_eq!(got.to_bits(), right.to_bits(), "{op:?} of {a} and {b}");
        }
    }
}

#[test]
fn byte_dot_products_saturate() {
    let mut random = Random(8);
    let (mut a, mut b) = (random.bytes(1 << 12), random.bytes(1 << 12));
    a.extend([255; 64]);
    b.extend([127; 32].into_iter().chain([128; 32]));
    for lanes in [1, 8, 32] {
        let (from, to) = (Type::i8(lanes * 2), Type::i16(lanes));
        let got = apply(Op::Dot2U8S8, Imm::None, &[(from, &a), (from, &b)], to);
        for (i, got) in u16s(&got).into_iter().enumerate() {
            let term = |j: usize| i32::from(a[j]) * i32::from(b[j] as i8);
            let right = (term(2 * i) + term(2 * i + 1)).clamp(i32::from(i16::MIN), i32::from(i16::MAX));
            assert_eq!(i32::from(got as i16), right, "lane {i} of {lanes}");
        }
    }
}

#[test]
fn word_dot_products_wrap() {
    let mut random = Random(9);
    let (mut a, mut b) = (random.bytes(1 << 12), random.bytes(1 << 12));
    for list in [&mut a, &mut b] {
        list.extend([0x00, 0x80].repeat(32));
    }
    for lanes in [1, 4, 16] {
        let (from, to) = (Type::i16(lanes * 2), Type::i32(lanes));
        let got = apply(Op::Dot2S16, Imm::None, &[(from, &a), (from, &b)], to);
        let (a, b) = (u16s(&a), u16s(&b));
        for (i, got) in i32s(&got).into_iter().enumerate() {
            let term = |j: usize| i32::from(a[j] as i16) * i32::from(b[j] as i16);
            assert_eq!(got, term(2 * i).wrapping_add(term(2 * i + 1)), "lane {i} of {lanes}");
        }
    }
}

#[test]
fn byte_shuffles_take_the_low_four_bits_and_clear_by_the_top_bit() {
    let mut random = Random(10);
    for lanes in [16, 64] {
        let ty = Type::i8(lanes);
        let (a, index) = (random.bytes(1 << 10), random.bytes(1 << 10));
        let got = apply(Op::ShuffleBytes, Imm::None, &[(ty, &a), (ty, &index)], ty);
        for (i, got) in got.into_iter().enumerate() {
            let right = if index[i] >= 0x80 { 0 } else { a[i / 16 * 16 + usize::from(index[i] & 15)] };
            assert_eq!(got, right, "byte {i}");
        }
    }
}

#[test]
fn lanes_move_as_the_op_table_says() {
    let a: Vec<u8> = (0..64).collect();
    let b: Vec<u8> = (64..128).collect();
    for elem in Elem::ALL {
        let size = elem.bytes() as usize;
        for lanes in [1, 2, 4, 8, 16, 32, 64] {
            let ty = Type::new(elem, lanes);
            if !ty.is_valid() {
                continue;
            }
            let bytes = ty.bytes() as usize;
            let broadcast = apply(Op::Broadcast, Imm::None, &[(Type::new(elem, 1), &a[8 - size..8])], ty);
            assert_eq!(broadcast, a[8 - size..8].repeat(usize::from(lanes)), "broadcast {ty}");
            for lane in 0..usize::from(lanes) {
                let one = Type::new(elem, 1);
                let got = apply(Op::Extract, Imm::Int(lane as i64), &[(ty, &a[..bytes])], one);
                assert_eq!(got, a[lane * size..][..size], "extract {lane} of {ty}");
            }
            if bytes < 64 {
                let operands = [(ty, &a[..bytes]), (ty, &b[..bytes])];
                let got = apply(Op::Concat, Imm::None, &operands, Type::new(elem, lanes * 2));
                assert_eq!(got, [&a[..bytes], &b[..bytes]].concat(), "concat {ty}");
            }
            for narrow in (0..6).map(|i| 1 << i).take_while(|n| *n < lanes) {
                for first in (0..lanes).step_by(usize::from(narrow)) {
                    let to = Type::new(elem, narrow);
                    let got = apply(Op::Slice, Imm::Int(i64::from(first)), &[(ty, &a[..bytes])], to);
                    let right = &a[usize::from(first) * size..][..to.bytes() as usize];
                    assert_eq!(got, right, "slice {to} from {first} of {ty}");
                }
            }
        }
    }
    for unit in [1, 2, 4, 8] {
        for (op, half) in [(Op::UnpackLo, 0), (Op::UnpackHi, 8)] {
            let ty = Type::i8(32);
            let got = apply(op, Imm::Int(unit as i64), &[(ty, &a[..32]), (ty, &b[..32])], ty);
            let mut right = Vec::new();
            for chunk in [0, 16] {
                for at in (chunk + half..chunk + half + 8).step_by(unit) {
                    right.extend_from_slice(&a[at..at + unit]);
                    right.extend_from_slice(&b[at..at + unit]);
                }
            }
            assert_eq!(got, right, "{op:?} {unit}");
        }
    }
}

#[test]
fn narrowing_saturates_and_extension_keeps_the_value() {
    let mut random = Random(11);
    let words = random.bytes(1 << 10);
    let edges =
        [127, 128, -128, -129, 32767, 32768, -32768, -32769, i32::MAX, i32::MIN, 65535, -65536].map(i32::to_le_bytes);
    let wide = [words, edges.repeat(4).concat()].concat();
    for lanes in [1, 4, 16] {
        let got = apply(Op::NarrowS, Imm::None, &[(Type::i32(lanes), &wide)], Type::i8(lanes));
        for (x, got) in i32s(&wide).into_iter().zip(got) {
            assert_eq!(i32::from(got as i8), x.clamp(-128, 127));
        }
        for (op, signed) in [(Op::ExtendS, true), (Op::ExtendU, false)] {
            let got = apply(op, Imm::None, &[(Type::i8(lanes), &wide)], Type::i32(lanes));
            for (x, got) in wide.iter().zip(i32s(&got)) {
                assert_eq!(got, if signed { i32::from(*x as i8) } else { i32::from(*x) });
            }
        }
    }
}

#[test]
fn float_sums_fold_the_upper_half_onto_the_lower() {
    for lanes in [1, 2, 4, 8, 16] {
        let values = floats(12, 1 << 10);
        let ty = Type::f32(lanes);
        let got = apply(Op::ReduceAdd, Imm::None, &[(ty, &f32_bytes(&values))], Type::f32(1));
        for (values, got) in values.chunks(usize::from(lanes)).zip(f32s(&got)) {
            let mut left = values.to_vec();
            while left.len() > 1 {
                let upper = left.split_off(left.len() / 2);
                left = left.iter().zip(upper).map(|(low, high)| low + high).collect();
            }
            assert_same_float(got, left[0], ty);
        }
    }
}
