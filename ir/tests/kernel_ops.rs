//! Tests every kernel op on difficult values: saturation, signs, NaN, ties, wrap-around. Each case
//! is one row, and the last test checks that every op has a row.

use ixc_ir::kernel::interpret::{self, InterpretError};
use ixc_ir::kernel::op::{Memory, OPS};
use ixc_ir::kernel::{BufferKind, CallError, Elem, Imm, Inst, KernelBuilder, Op, Stmt, Type};

const NAN: u32 = 0x7fc0_0000;
const INF: f32 = f32::INFINITY;

fn i8s(lanes: &[i8]) -> Vec<u8> {
    lanes.iter().map(|&x| x as u8).collect()
}

fn u8s(lanes: &[u8]) -> Vec<u8> {
    lanes.to_vec()
}

fn u16s(lanes: &[u16]) -> Vec<u8> {
    lanes.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn i16s(lanes: &[i16]) -> Vec<u8> {
    lanes.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn i32s(lanes: &[i32]) -> Vec<u8> {
    lanes.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn f32s(lanes: &[f32]) -> Vec<u8> {
    lanes.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn bf16s(lanes: &[f32]) -> Vec<u8> {
    lanes.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

fn f32_bits(lanes: &[u32]) -> Vec<u8> {
    lanes.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Returns the vector type of `elem` with as many lanes as `bytes` has.
fn over(elem: Elem, bytes: &[u8]) -> Type {
    Type::new(elem, (bytes.len() / elem.bytes() as usize) as u16)
}

/// Runs one op on the operands and returns the bytes of its result.
fn compute(op: Op, result: Type, operands: &[(Elem, Vec<u8>)], imm: Imm) -> Result<Vec<u8>, InterpretError> {
    let mut b = KernelBuilder::new("one_op");
    let mut buffers = Vec::new();
    let mut loaded = Vec::new();
    for (i, (elem, bytes)) in operands.iter().enumerate() {
        let buffer = b.read(&format!("in{i}"), bytes.len() as i64);
        loaded.push(b.load(over(*elem, bytes), buffer, 0));
        buffers.push(bytes.clone());
    }
    let out = b.write("out", i64::from(result.bytes()));
    buffers.push(vec![0xa5; result.bytes() as usize]);
    let value = b.op(op, result, &loaded);
    b.store(out, 0, value);
    let mut kernel = b.finish();
    for statement in &mut kernel.body {
        if let Stmt::Inst(inst) = statement
            && inst.result == Some(value)
        {
            *inst = Inst { imm: imm.clone(), ..inst.clone() };
        }
    }
    interpret::run(&kernel, &[], &mut buffers)?;
    Ok(buffers.pop().unwrap_or_default())
}

struct Case {
    op: Op,
    operands: Vec<(Elem, Vec<u8>)>,
    imm: Imm,
    result: (Elem, Vec<u8>),
}

fn case(op: Op, operands: &[(Elem, Vec<u8>)], imm: Imm, result: (Elem, Vec<u8>)) -> Case {
    Case { op, operands: operands.to_vec(), imm, result }
}

fn f2(op: Op, a: &[f32], b: &[f32], r: &[f32]) -> Case {
    case(op, &[(Elem::F32, f32s(a)), (Elem::F32, f32s(b))], Imm::None, (Elem::F32, f32s(r)))
}

fn b2(op: Op, a: &[i8], b: &[i8], r: &[i8]) -> Case {
    case(op, &[(Elem::I8, i8s(a)), (Elem::I8, i8s(b))], Imm::None, (Elem::I8, i8s(r)))
}

fn w2(op: Op, a: &[i16], b: &[i16], r: &[i16]) -> Case {
    case(op, &[(Elem::I16, i16s(a)), (Elem::I16, i16s(b))], Imm::None, (Elem::I16, i16s(r)))
}

fn d2(op: Op, a: &[i32], b: &[i32], r: &[i32]) -> Case {
    case(op, &[(Elem::I32, i32s(a)), (Elem::I32, i32s(b))], Imm::None, (Elem::I32, i32s(r)))
}

fn d1(op: Op, a: &[i32], imm: i64, r: &[i32]) -> Case {
    case(op, &[(Elem::I32, i32s(a))], Imm::Int(imm), (Elem::I32, i32s(r)))
}

fn cases() -> Vec<Case> {
    use Elem::*;
    let (min, max) = (i32::MIN, i32::MAX);
    let nan = f32::from_bits(NAN);
    let ramp: Vec<u8> = (0..32).collect();
    let high: Vec<u8> = (100..132).collect();
    let chunks = |first: [u8; 16], second: [u8; 16]| [first, second].concat();
    vec![
        case(Op::Splat, &[], Imm::Float(-0.0), (F32, f32s(&[-0.0; 8]))),
        case(Op::Splat, &[], Imm::Int(-1), (I16, i16s(&[-1; 4]))),
        case(Op::Splat, &[], Imm::Int(255), (I8, i8s(&[-1; 16]))),
        case(Op::Bytes, &[], Imm::Bytes(ramp.clone()), (I8, ramp.clone())),
        case(Op::Iota, &[], Imm::None, (I32, i32s(&[0, 1, 2, 3, 4, 5, 6, 7]))),
        case(Op::Broadcast, &[(F32, f32s(&[1.5]))], Imm::None, (F32, f32s(&[1.5; 4]))),
        case(Op::Broadcast, &[(I8, i8s(&[-3]))], Imm::None, (I8, i8s(&[-3; 32]))),
        case(Op::Extract, &[(I16, i16s(&[1, -2, 3, 4]))], Imm::Int(1), (I16, i16s(&[-2]))),
        case(Op::Slice, &[(I8, ramp.clone())], Imm::Int(24), (I8, ramp[24..].to_vec())),
        case(Op::Slice, &[(I32, i32s(&[1, 2, 3, 4]))], Imm::Int(2), (I32, i32s(&[3, 4]))),
        case(
            Op::Concat,
            &[(I8, ramp.clone()), (I8, high.clone())],
            Imm::None,
            (I8, [ramp.clone(), high.clone()].concat()),
        ),
        case(
            Op::JoinLo,
            &[(I8, ramp.clone()), (I8, high.clone())],
            Imm::None,
            (I8, [&ramp[..16], &high[..16]].concat()),
        ),
        case(
            Op::JoinHi,
            &[(I8, ramp.clone()), (I8, high.clone())],
            Imm::None,
            (I8, [&ramp[16..], &high[16..]].concat()),
        ),
        case(Op::Bitcast, &[(F32, f32s(&[-0.0, 1.0]))], Imm::None, (I16, i16s(&[0, -0x8000, 0, 0x3f80]))),
        case(
            Op::UnpackLo,
            &[(I8, ramp.clone()), (I8, high.clone())],
            Imm::Int(1),
            (
                I8,
                chunks(
                    [0, 100, 1, 101, 2, 102, 3, 103, 4, 104, 5, 105, 6, 106, 7, 107],
                    [16, 116, 17, 117, 18, 118, 19, 119, 20, 120, 21, 121, 22, 122, 23, 123],
                ),
            ),
        ),
        case(
            Op::UnpackHi,
            &[(I8, ramp.clone()), (I8, high.clone())],
            Imm::Int(4),
            (
                I8,
                chunks(
                    [8, 9, 10, 11, 108, 109, 110, 111, 12, 13, 14, 15, 112, 113, 114, 115],
                    [24, 25, 26, 27, 124, 125, 126, 127, 28, 29, 30, 31, 128, 129, 130, 131],
                ),
            ),
        ),
        case(
            Op::UnpackHi,
            &[(F32, f32s(&[0.0, 1.0, 2.0, 3.0])), (F32, f32s(&[4.0, 5.0, 6.0, 7.0]))],
            Imm::Int(8),
            (F32, f32s(&[2.0, 3.0, 6.0, 7.0])),
        ),
        case(
            Op::Interleave,
            &[(I16, i16s(&[0, 1, 2, 3, 4, 5, 6, 7]))],
            Imm::None,
            (I16, i16s(&[0, 4, 1, 5, 2, 6, 3, 7])),
        ),
        case(Op::SwapPairs, &[(F32, f32s(&[0.0, 1.0, 2.0, 3.0]))], Imm::None, (F32, f32s(&[1.0, 0.0, 3.0, 2.0]))),
        case(
            Op::ShuffleBytes,
            &[
                (I8, ramp.clone()),
                (I8, chunks([15, 0x7f, 0x80, 0xff, 0, 1, 0x10, 0x1f, 2, 3, 4, 5, 6, 7, 8, 9], [0; 16])),
            ],
            Imm::None,
            (I8, chunks([15, 15, 0, 0, 0, 1, 0, 15, 2, 3, 4, 5, 6, 7, 8, 9], [16; 16])),
        ),
        // Entries of iq2_xxs have eight two-bit indices, stored in nibbles. Entry numbers above 255
        // wrap.
        case(
            Op::Lookup,
            &[(I32, i32s(&[0, 1, 256, -255]))],
            Imm::Int(2),
            (I32, i32s(&[0x0000_0000, 0x0000_0002, 0x0000_0000, 0x0000_0002])),
        ),
        // The same entries. The op returns the third byte of each lane's entry.
        case(
            Op::LookupQuarter,
            &[(I8, vec![9, 9, 0, 9, 9, 9, 1, 9]), (I8, vec![0, 0, 7, 0, 0, 0, 0, 0])],
            Imm::Int(4 * 2 + 2),
            (I32, i32s(&[0x0000_0000, 0x0000_0002])),
        ),
        // First, entries of iq2_xxs, their bytes with the first four indices. Then the table of
        // signs, which computes the eighth sign from seven.
        case(Op::LookupByte, &[(I8, vec![0, 1, 0, 1]), (I8, vec![0, 0, 1, 7])], Imm::Int(4), (I8, vec![0, 2, 0, 2])),
        case(
            Op::LookupByte,
            &[(I8, vec![0, 1, 3, 0x87]), (I8, vec![0, 0, 9, 0])],
            Imm::Int(12),
            (I8, vec![0, 0x81, 3, 0x87]),
        ),
        case(
            Op::Multishift,
            &[(I8, vec![1, 2, 3, 4, 5, 6, 7, 0x80]), (I8, vec![0, 8, 4, 63, 64, 56, 60, 1])],
            Imm::None,
            (I8, vec![0x01, 0x02, 0x20, 0x03, 0x01, 0x80, 0x18, 0x00]),
        ),
        f2(Op::Add, &[1.0, INF, f32::MAX, -0.0], &[1e-8, 1.0, f32::MAX, 0.0], &[1.0, INF, INF, 0.0]),
        f2(Op::Sub, &[1.0, 0.0, -0.0, 3.5], &[1.0, 0.0, 0.0, -1.0], &[0.0, 0.0, -0.0, 4.5]),
        f2(Op::Mul, &[-0.0, 1e-30, f32::MAX, -2.0], &[5.0, 1e-30, 2.0, 0.5], &[-0.0, 0.0, INF, -1.0]),
        f2(Op::Div, &[1.0, -1.0, 1.0, 0.0], &[0.0, 0.0, 3.0, -1.0], &[INF, -INF, 1.0 / 3.0, -0.0]),
        f2(Op::Min, &[nan, 1.0, 0.0, -0.0], &[2.0, nan, -0.0, 0.0], &[2.0, nan, -0.0, 0.0]),
        f2(Op::Max, &[nan, 1.0, 0.0, -0.0], &[2.0, nan, -0.0, 0.0], &[2.0, nan, -0.0, 0.0]),
        f2(Op::Min, &[1.0, -INF], &[2.0, 3.0], &[1.0, -INF]),
        f2(Op::Max, &[1.0, -INF], &[2.0, 3.0], &[2.0, 3.0]),
        case(Op::Sqrt, &[(F32, f32s(&[2.0, -0.0, INF, 4.0]))], Imm::None, (F32, f32s(&[2f32.sqrt(), -0.0, INF, 2.0]))),
        // The exact result of (1 + 2^-12)^2 - 1. Two roundings would lose the last bit.
        case(
            Op::Fma,
            &[(F32, f32_bits(&[0x3f80_0800; 2])), (F32, f32_bits(&[0x3f80_0800; 2])), (F32, f32s(&[-1.0, 0.0]))],
            Imm::None,
            (F32, f32_bits(&[0x3a00_0400, 0x3f80_1000])),
        ),
        b2(Op::IAdd, &[127, -128, 1, 0], &[1, -1, -1, 0], &[-128, 127, 0, 0]),
        d2(Op::IAdd, &[max, min], &[1, -1], &[min, max]),
        w2(Op::ISub, &[i16::MIN, 5], &[1, 7], &[i16::MAX, -2]),
        w2(Op::IMul, &[300, -1], &[300, i16::MIN], &[24464, i16::MIN]),
        d2(Op::IMul, &[max, 65536], &[2, 65536], &[-2, 0]),
        b2(Op::IMin, &[-128, 5], &[127, 4], &[-128, 4]),
        b2(Op::IMax, &[-128, 5], &[127, 4], &[127, 5]),
        d2(Op::IMin, &[min, 1], &[max, 2], &[min, 1]),
        w2(Op::IMax, &[-1, 1], &[0, 2], &[0, 2]),
        case(Op::IAbs, &[(I8, i8s(&[-128, -1, 0, 127]))], Imm::None, (I8, i8s(&[-128, 1, 0, 127]))),
        case(Op::IAbs, &[(I32, i32s(&[min, -7]))], Imm::None, (I32, i32s(&[min, 7]))),
        b2(Op::Sign, &[-128, 5, 5, 5], &[-1, -9, 0, 9], &[-128, -5, 0, 5]),
        w2(Op::Sign, &[i16::MIN, 3], &[-1, -1], &[i16::MIN, -3]),
        d2(Op::And, &[0x0ff0, -1], &[0x00ff, min], &[0x00f0, min]),
        d2(Op::Or, &[0x0ff0, 0], &[0x00ff, min], &[0x0fff, min]),
        b2(Op::Xor, &[-1, 0x55], &[0x0f, 0x55], &[-16, 0]),
        d1(Op::Shl, &[1, -1, 3, 2], 31, &[min, min, min, 0]),
        case(Op::Shl, &[(I16, i16s(&[0x4001, -1]))], Imm::Int(1), (I16, i16s(&[-32766, -2]))),
        d1(Op::ShrU, &[-1, min], 28, &[15, 8]),
        case(Op::ShrU, &[(I16, i16s(&[-1, 0x7fff]))], Imm::Int(15), (I16, i16s(&[1, 0]))),
        d1(Op::ShrS, &[-1, min, 256, 15], 4, &[-1, min / 16, 16, 0]),
        case(Op::ShrS, &[(I16, i16s(&[-3, 3]))], Imm::Int(1), (I16, i16s(&[-2, 1]))),
        d2(Op::CmpEq, &[1, min, 0, 1], &[1, max, 0, 2], &[-1, 0, -1, 0]),
        d2(Op::CmpGt, &[1, min, max, 1], &[0, max, min, 1], &[-1, 0, -1, 0]),
        case(
            Op::CmpLtF,
            &[(F32, f32s(&[1.0, nan, 1.0, -0.0])), (F32, f32s(&[2.0, 1.0, nan, 0.0]))],
            Imm::None,
            (I32, i32s(&[-1, 0, 0, 0])),
        ),
        case(
            Op::Select,
            &[(I32, i32s(&[-1, 0])), (F32, f32s(&[-0.0, 1.0])), (F32, f32s(&[2.0, nan]))],
            Imm::None,
            (F32, f32s(&[-0.0, nan])),
        ),
        // 2^24 + 1 and 2^24 + 3 are each halfway between two floats, and round to the even one.
        case(
            Op::ToF32,
            &[(I32, i32s(&[16_777_217, 16_777_219, min, max]))],
            Imm::None,
            (F32, f32s(&[16_777_216.0, 16_777_220.0, -2_147_483_648.0, 2_147_483_648.0])),
        ),
        case(
            Op::ToI32,
            &[(F32, f32s(&[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 2.500_000_2, -0.0]))],
            Imm::None,
            (I32, i32s(&[0, 2, 2, 0, -2, -2, 3, 0])),
        ),
        case(
            Op::ToI32,
            &[(F32, f32s(&[nan, INF, -INF, 2_147_483_648.0, -2_147_483_648.0, 2_147_483_520.0, 1e30, -1e30]))],
            Imm::None,
            (I32, i32s(&[min, min, min, min, min, 2_147_483_520, min, min])),
        ),
        // Values: 1, -2, the smallest subnormal, the largest number, -0, infinity, a signalling NaN
        // that becomes quiet, a quiet NaN that stays.
        case(
            Op::F16ToF32,
            &[(F16, i16s(&[0x3c00, 0xc000u16 as i16, 1, 0x7bff, i16::MIN, 0x7c00, 0x7c01, 0x7e02]))],
            Imm::None,
            (
                F32,
                f32_bits(&[
                    0x3f80_0000,
                    0xc000_0000,
                    0x3380_0000,
                    0x477f_e000,
                    0x8000_0000,
                    0x7f80_0000,
                    0x7fc0_2000,
                    0x7fc0_4000,
                ]),
            ),
        ),
        // 1 + 2^-11 and 1 + 3 * 2^-11 are ties. 65520 is the smallest number that becomes infinity.
        // 2^-25 is a tie between 0 and the smallest subnormal.
        case(
            Op::F32ToF16,
            &[(
                F32,
                f32s(&[1.000_488_3, 1.001_464_8, 65_519.996, 65_520.0, 2.980_232_2e-8, 2.980_232_6e-8, -0.0, nan]),
            )],
            Imm::None,
            (F16, i16s(&[0x3c00, 0x3c02, 0x7bff, 0x7c00, 0, 1, i16::MIN, 0x7e00])),
        ),
        // 1 + 2^-8 and 1 + 3 * 2^-8 are ties, and then the same with the lowest bit set, which are
        // not. The largest f32 numbers become infinity.
        case(
            Op::ToBf16,
            &[(
                F32,
                f32_bits(&[
                    0x3f80_8000,
                    0x3f81_8000,
                    0xbf80_8001,
                    0xbf81_7fff,
                    0x7f7f_7fff,
                    0x7f7f_8000,
                    0xff7f_ffff,
                    0xff80_0000,
                ]),
            )],
            Imm::None,
            (Bf16, u16s(&[0x3f80, 0x3f82, 0xbf81, 0xbf81, 0x7f7f, 0x7f80, 0xff80, 0xff80])),
        ),
        // Denormals become zero, even if they would round to the least normal number. The least
        // normal number is unchanged. The last case is a signalling NaN whose upper half alone
        // would be infinity.
        case(
            Op::ToBf16,
            &[(
                F32,
                f32_bits(&[
                    1,
                    0x807f_ffff,
                    0x0080_0000,
                    0x8000_0000,
                    0x7f80_0001,
                    0xff91_8000,
                    0x7fff_ffff,
                    0xffc0_0000,
                ]),
            )],
            Imm::None,
            (Bf16, u16s(&[0, 0x8000, 0x0080, 0x8000, 0x7fc0, 0xffd1, 0x7fff, 0xffc0])),
        ),
        case(
            Op::Bf16ToF32,
            &[(Bf16, u16s(&[0x3f80, 0xc049, 1, 0x807f, 0x8000, 0xff80, 0x7f81, 0xffff]))],
            Imm::None,
            (
                F32,
                f32_bits(&[
                    0x3f80_0000,
                    0xc049_0000,
                    0x0001_0000,
                    0x807f_0000,
                    0x8000_0000,
                    0xff80_0000,
                    0x7f81_0000,
                    0xffff_0000,
                ]),
            ),
        ),
        case(
            Op::ToBf16Pairs,
            &[(F32, f32_bits(&[0x3f80_8000, 0x0000_ffff])), (F32, f32_bits(&[0xbf81_8000, 0x7f80_0001]))],
            Imm::None,
            (Bf16, u16s(&[0x3f80, 0xbf82, 0, 0x7fc0])),
        ),
        case(Op::ExtendS, &[(I8, i8s(&[-128, 127]))], Imm::None, (I16, i16s(&[-128, 127]))),
        case(Op::ExtendS, &[(I16, i16s(&[-1, 1]))], Imm::None, (I32, i32s(&[-1, 1]))),
        case(Op::ExtendU, &[(I8, i8s(&[-128, 127]))], Imm::None, (I32, i32s(&[128, 127]))),
        case(Op::ExtendU, &[(I16, i16s(&[-1, 1]))], Imm::None, (I32, i32s(&[65535, 1]))),
        case(Op::NarrowS, &[(I16, i16s(&[128, -129, 127, -128]))], Imm::None, (I8, i8s(&[127, -128, 127, -128]))),
        case(
            Op::NarrowS,
            &[(I32, i32s(&[max, min, 32768, 7]))],
            Imm::None,
            (I16, i16s(&[i16::MAX, i16::MIN, i16::MAX, 7])),
        ),
        case(Op::NarrowS, &[(I32, i32s(&[max, min, -1, 7]))], Imm::None, (I8, i8s(&[127, -128, -1, 7]))),
        // 255 * 127 * 2 and 255 * -128 * 2 do not fit in 16 bits, so they saturate.
        case(
            Op::Dot2U8S8,
            &[(I8, i8s(&[-1, -1, -1, -1, 1, 2, -1, 0])), (I8, i8s(&[127, 127, -128, -128, 3, -4, -1, 9]))],
            Imm::None,
            (I16, i16s(&[i16::MAX, i16::MIN, -5, -255])),
        ),
        // Neither sums of two products nor sums of four products saturate. Only the first factor is
        // unsigned. The addition to `acc` wraps.
        case(
            Op::Dot4U8S8,
            &[
                (I32, i32s(&[0, 5, max, min])),
                (I8, u8s(&[255, 255, 255, 255, 200, 129, 1, 2, 128, 0, 0, 0, 255, 0, 0, 0])),
                (I8, i8s(&[127, 127, 127, 127, -128, -2, 3, 4, 1, -1, -1, -1, -1, 9, 9, 9])),
            ],
            Imm::None,
            (I32, i32s(&[4 * 255 * 127, 5 - 25600 - 258 + 3 + 8, min + 127, max - 254])),
        ),
        case(
            Op::Dot2S16,
            &[(I16, i16s(&[i16::MIN, i16::MIN, 1, -2])), (I16, i16s(&[i16::MIN, i16::MIN, 3, 4]))],
            Imm::None,
            (I32, i32s(&[min, -5])),
        ),
        // The odd product is added first: 1 + 2^24 is 2^24, and adding the even product 1 does not
        // change it. In the other order, the sum would be 2^24 + 2. The other lanes have an exact
        // sum, a denormal factor, a denormal sum, and a denormal result.
        case(
            Op::Dot2Bf16,
            &[
                (F32, f32s(&[1.0, 3.0, f32::from_bits(1), f32::MIN_POSITIVE])),
                (Bf16, bf16s(&[1.0, 4096.0, 2f32.powi(-9), 2f32.powi(-9), 1e-39, 0.0, -0.5, 0.0])),
                (Bf16, bf16s(&[1.0, 4096.0, 2f32.powi(-12), 2f32.powi(-12), 1e30, 1.0, f32::MIN_POSITIVE, 0.0])),
            ],
            Imm::None,
            (F32, f32s(&[16_777_216.0, 3.0 + 2f32.powi(-20), 0.0, 0.0])),
        ),
        // The order is (1e8 + -1e8) + (1 + 1). The sum would be 1 from left to right, and 0 in
        // pairs of neighbours.
        case(Op::ReduceAdd, &[(F32, f32s(&[1e8, 1.0, -1e8, 1.0]))], Imm::None, (F32, f32s(&[2.0]))),
        case(Op::ReduceAdd, &[(F32, f32s(&[1e8, -1e8, 1.0, 1.0]))], Imm::None, (F32, f32s(&[0.0]))),
        case(Op::ReduceAdd, &[(I32, i32s(&[max, 1, 1, 0]))], Imm::None, (I32, i32s(&[min + 1]))),
        case(Op::ReduceAdd, &[(F32, f32s(&[7.0]))], Imm::None, (F32, f32s(&[7.0]))),
        // If the lower half has a NaN, the result is the upper half's number. If the upper half has
        // a NaN, the result is NaN.
        case(Op::ReduceMax, &[(F32, f32s(&[nan, 1.0]))], Imm::None, (F32, f32s(&[1.0]))),
        case(Op::ReduceMax, &[(F32, f32s(&[1.0, nan]))], Imm::None, (F32, f32s(&[nan]))),
        case(Op::ReduceMax, &[(I32, i32s(&[-5, min, -7, -6]))], Imm::None, (I32, i32s(&[-5]))),
        case(Op::ReduceMin, &[(F32, f32s(&[3.0, -1.0, -0.5, 2.0]))], Imm::None, (F32, f32s(&[-1.0]))),
        case(Op::ReduceMin, &[(I32, i32s(&[-5, max, -7, -6]))], Imm::None, (I32, i32s(&[-7]))),
    ]
}

#[test]
fn ops_give_the_stated_bits() {
    for (i, case) in cases().into_iter().enumerate() {
        let (elem, expected) = case.result;
        let found = compute(case.op, over(elem, &expected), &case.operands, case.imm);
        assert_eq!(found, Ok(expected), "case {i}, `{}`", case.op.row().mnemonic);
    }
}

#[test]
fn every_op_has_a_case() {
    let cases = cases();
    for row in OPS {
        let has = cases.iter().any(|case| case.op == row.op);
        // Ops with an address or an affine expression have separate tests below. Tests of tile ops
        // are in `kernel_tiles`.
        assert!(has || row.memory != Memory::None || row.op.takes_tiles(), "`{}` has no case", row.mnemonic);
    }
}

#[test]
fn memory_ops_touch_exactly_their_bytes() {
    let mut b = KernelBuilder::new("copy");
    let n = b.dim("n", 0, 9);
    let x = b.read("x", n * 5 + 3);
    let ids = b.buffer("ids", BufferKind::Index { below: n.into() }, n * 4);
    let y = b.write("y", n * 16);
    b.for_each("i", n, |b, i| {
        let row = b.load_index("row", ids, i * 4);
        let vector = b.load(Type::i8(8), x, row * 5);
        let element = b.load_splat(Type::i16(2), x, row * 5 + 1);
        let index = b.index(i * 3 + (row * -1 + 7));
        b.store(y, i * 16, vector);
        b.store(y, i * 16 + 8, element);
        b.store(y, i * 16 + 12, index);
    });
    let kernel = b.finish();
    let run = |n: i64, ids: &[u32], x: usize| {
        let x = (0..x as u8).collect();
        let ids = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let mut buffers = vec![x, ids, vec![0xee; 40]];
        interpret::run(&kernel, &[n], &mut buffers).map(|()| buffers.pop().unwrap_or_default())
    };
    let mut expected = vec![0xee; 40];
    expected[..16].copy_from_slice(&[5, 6, 7, 8, 9, 10, 11, 12, 6, 7, 6, 7, 6, 0, 0, 0]);
    expected[16..32].copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7, 1, 2, 1, 2, 10, 0, 0, 0]);
    assert_eq!(run(2, &[1, 0], 13), Ok(expected));
    assert_eq!(run(0, &[], 3), Ok(vec![0xee; 40]), "a loop may run no time");
    assert!(matches!(run(10, &[0; 10], 100), Err(InterpretError::Call(CallError::DimRange { found: 10, .. }))));
    assert!(matches!(run(2, &[1, 0], 12), Err(InterpretError::BufferSize { expected: 13, found: 12, .. })));
    assert!(matches!(run(2, &[1, 2], 13), Err(InterpretError::IndexValue { found: 2, below: 2, offset: 4, .. })));
    let call = |dims: &[i64]| interpret::run(&kernel, dims, &mut []);
    assert!(matches!(call(&[]), Err(InterpretError::Call(CallError::DimCount { found: 0, .. }))));
    assert!(matches!(call(&[1]), Err(InterpretError::Call(CallError::BufferCount { found: 0, .. }))));
}

#[test]
fn out_of_bounds_or_forbidden_accesses_are_errors() {
    let run = |kind: BufferKind, size: i64, access: fn(&mut KernelBuilder, ixc_ir::kernel::BufferId)| {
        let mut b = KernelBuilder::new("access");
        let buffer = b.buffer("x", kind, size);
        access(&mut b, buffer);
        interpret::run(&b.finish(), &[], &mut [vec![0; 64]])
    };
    let index = || BufferKind::Index { below: 8.into() };
    let load = |b: &mut KernelBuilder, x| {
        b.load(Type::f32(8), x, 1);
    };
    let splat = |b: &mut KernelBuilder, x| {
        b.load_splat(Type::f32(8), x, -1);
    };
    let row = |b: &mut KernelBuilder, x| {
        b.load_index("row", x, 4);
    };
    let store = |b: &mut KernelBuilder, x| {
        let value = b.splat_f32(8, 1.0);
        b.store(x, 1, value);
    };
    // The declared size of the buffer is the limit, not its actual size of 64 bytes.
    for kind in [BufferKind::Read, BufferKind::ReadWrite, BufferKind::Scratch] {
        assert!(matches!(run(kind.clone(), 32, load), Err(InterpretError::OutOfBounds { offset: 1, size: 32, .. })));
        assert!(matches!(run(kind.clone(), 32, splat), Err(InterpretError::OutOfBounds { offset: -1, bytes: 4, .. })));
        assert_eq!(run(kind, 33, load), Ok(()));
    }
    for kind in [BufferKind::Write, index()] {
        assert!(matches!(run(kind.clone(), 33, load), Err(InterpretError::Forbidden { op: "load", .. })));
        assert!(matches!(run(kind, 33, splat), Err(InterpretError::Forbidden { op: "load_splat", .. })));
    }
    for kind in [BufferKind::Read, index()] {
        assert!(matches!(run(kind, 33, store), Err(InterpretError::Forbidden { op: "store", .. })));
    }
    assert!(matches!(run(BufferKind::Write, 32, store), Err(InterpretError::OutOfBounds { .. })));
    assert!(matches!(run(BufferKind::Read, 33, row), Err(InterpretError::Forbidden { op: "load_index", .. })));
    assert!(matches!(run(index(), 7, row), Err(InterpretError::OutOfBounds { .. })));
    assert_eq!(run(index(), 8, row), Ok(()));
}

#[test]
fn invalid_select_mask_is_an_error() {
    let operands = [(Elem::I32, i32s(&[-1, 1])), (Elem::F32, f32s(&[0.0; 2])), (Elem::F32, f32s(&[0.0; 2]))];
    let found = compute(Op::Select, Type::f32(2), &operands, Imm::None);
    assert_eq!(found, Err(InterpretError::Mask { lane: 1, found: 1 }));
}

#[test]
fn carried_values_update_simultaneously() {
    let mut b = KernelBuilder::new("fibonacci");
    let n = b.dim("n", 0, 50);
    let y = b.write("y", 8);
    let (zero, one) = (b.splat_int(Type::i32(1), 0), b.splat_int(Type::i32(1), 1));
    let last = b.for_carry("i", n, &[zero, one], |b, _, carried| vec![carried[1], b.iadd(carried[0], carried[1])]);
    b.store(y, 0, last[0]);
    b.store(y, 4, last[1]);
    let kernel = b.finish();
    for (n, expected) in [(0, [0, 1]), (1, [1, 1]), (10, [55, 89])] {
        let mut buffers = [vec![0; 8]];
        assert_eq!(interpret::run(&kernel, &[n], &mut buffers), Ok(()));
        assert_eq!(buffers[0], i32s(&expected), "n = {n}");
    }
}
