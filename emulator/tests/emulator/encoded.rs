//! Tests encoded FP16 and AVX-VNNI instructions, which few CPUs have. The expected results follow
//! the manual's Operation sections: operands, masks, broadcast, rounding, and unchanged bytes of
//! the destination.

use std::collections::BTreeSet;

use iced_x86::{CpuidFeature, Instruction, Mnemonic, OpKind, Register, RoundingControl};
use ixc_emulator::soft::Rounding;
use ixc_ir::random::Random;

use crate::bochs::emulate;
use crate::function::{self, FLAGS, Function, GENERAL, MASKS, MEMORY, Page, VECTORS};
use crate::half::{
    flip, reference_add, reference_compare, reference_div, reference_fma, reference_from_f32, reference_from_f64,
    reference_from_integer, reference_max, reference_min, reference_mul, reference_round_scale, reference_sqrt,
    reference_to_f32, reference_to_f64, reference_to_integer,
};
use crate::manual::reference_vnni;

/// Number of random operands for each instruction.
const TRIES: usize = 60;
/// Expected number of FP16 instructions.
const FP16_CODES: usize = 193;
const VNNI_CODES: usize = 8;

/// FP16 instructions that are not emulated: approximations, complex numbers, and other instructions
/// that kernels do not use.
#[rustfmt::skip]
const NOT_EMULATED: &[&str] = &[
    "vfcmaddcph", "vfcmaddcsh", "vfcmulcph", "vfcmulcsh", "vfmaddcph", "vfmaddcsh", "vfmulcph", "vfmulcsh", "vfpclassph",
    "vfpclasssh", "vgetexpph", "vgetexpsh", "vgetmantph", "vgetmantsh", "vrcpph", "vrcpsh", "vreduceph", "vreducesh",
    "vrsqrtph", "vrsqrtsh", "vscalefph", "vscalefsh",
];

type Lane<'a> = Box<dyn Fn(usize, u64, u64, u64) -> u64 + 'a>;

/// Effect of an instruction.
enum Meaning<'a> {
    /// Each lane of the result is `f(lane, destination, a, b)`. The numbers are the bytes of a
    /// result element and of a source element. If there is only one source, it is `b`.
    Packed(usize, usize, Lane<'a>),
    /// The lowest lane is computed as in `Packed`. The other bytes of the low 128 bits come from
    /// `a`.
    Scalar(usize, usize, Lane<'a>),
    /// The lowest lane is computed as in `Packed`. The other bytes do not change.
    ScalarKept(Lane<'a>),
    /// The result is a mask.
    Mask(bool, u8),
    /// The result is written to a general register.
    General(Box<dyn Fn(u64) -> u64 + 'a>),
    /// The flags ZF and CF are set.
    Flags,
    /// Only the low word is written, subject to the mask if there is one.
    Word,
}

fn meaning(i: &Instruction) -> Option<Meaning<'static>> {
    use Meaning::{Packed, Scalar, ScalarKept};
    use Mnemonic as M;
    let rounding = match i.rounding_control() {
        RoundingControl::None | RoundingControl::RoundToNearest => Rounding::Nearest,
        RoundingControl::RoundDown => Rounding::Down,
        RoundingControl::RoundUp => Rounding::Up,
        RoundingControl::RoundTowardZero => Rounding::Zero,
    };
    let imm = (0..i.op_count()).find(|n| i.op_kind(*n) == OpKind::Immediate8).map_or(0, |_| i.immediate8());
    let two = |f: fn(u16, u16, Rounding) -> u16| -> Lane<'static> {
        Box::new(move |_, _, a, b| f(a as u16, b as u16, rounding).into())
    };
    let one =
        |f: fn(u16, Rounding) -> u16| -> Lane<'static> { Box::new(move |_, _, _, b| f(b as u16, rounding).into()) };
    let scale = || -> Lane<'static> { Box::new(move |_, _, _, b| reference_round_scale(b as u16, imm).into()) };
    let to_integer = |bytes: usize, signed, rounding| {
        let f = move |_, _, _, b| reference_to_integer(b as u16, rounding, 8 * bytes as u32, signed);
        Packed(bytes, 2, Box::new(f))
    };
    let signed = |x: u64, bytes: usize| i128::from((x as i64) << (64 - 8 * bytes) >> (64 - 8 * bytes));
    let from_integer = |bytes: usize, is_signed: bool| {
        let f = move |_, _, _, b: u64| {
            let integer = if is_signed { signed(b, bytes) } else { b.into() };
            reference_from_integer(integer, rounding).into()
        };
        Packed(2, bytes, Box::new(f))
    };
    let to_general = |signed, rounding| {
        let bits = if i.op0_register().is_gpr64() { 64 } else { 32 };
        Meaning::General(Box::new(move |x| reference_to_integer(x as u16, rounding, bits, signed)))
    };
    let from_general = |is_signed: bool| {
        // The width of the integer is that of the register or of the memory operand.
        let register = i.op2_register();
        let bytes = match i.op2_kind() {
            OpKind::Memory => i.memory_size().size(),
            _ => register.size(),
        };
        let f = move |_, _, _, b: u64| {
            let b = b & (u64::MAX >> (64 - 8 * bytes));
            reference_from_integer(if is_signed { signed(b, bytes) } else { b.into() }, rounding).into()
        };
        Scalar(2, bytes, Box::new(f))
    };
    let dot = |which: usize| {
        let f = move |_, sum, a, b| reference_vnni(sum as u32, a as u32, b as u32)[which].into();
        Packed(4, 4, Box::new(f))
    };
    Some(match i.mnemonic() {
        M::Vpdpbusd => dot(0),
        M::Vpdpbusds => dot(1),
        M::Vpdpwssd => dot(2),
        M::Vpdpwssds => dot(3),
        M::Vaddph => Packed(2, 2, two(reference_add)),
        M::Vsubph => Packed(2, 2, two(|a, b, r| reference_add(a, flip(b), r))),
        M::Vmulph => Packed(2, 2, two(reference_mul)),
        M::Vdivph => Packed(2, 2, two(reference_div)),
        M::Vminph => Packed(2, 2, two(|a, b, _| reference_min(a, b))),
        M::Vmaxph => Packed(2, 2, two(|a, b, _| reference_max(a, b))),
        M::Vsqrtph => Packed(2, 2, one(reference_sqrt)),
        M::Vrndscaleph => Packed(2, 2, scale()),
        M::Vaddsh => Scalar(2, 2, two(reference_add)),
        M::Vsubsh => Scalar(2, 2, two(|a, b, r| reference_add(a, flip(b), r))),
        M::Vmulsh => Scalar(2, 2, two(reference_mul)),
        M::Vdivsh => Scalar(2, 2, two(reference_div)),
        M::Vminsh => Scalar(2, 2, two(|a, b, _| reference_min(a, b))),
        M::Vmaxsh => Scalar(2, 2, two(|a, b, _| reference_max(a, b))),
        M::Vsqrtsh => Scalar(2, 2, one(reference_sqrt)),
        M::Vrndscalesh => Scalar(2, 2, scale()),
        M::Vcmpph => Meaning::Mask(true, imm),
        M::Vcmpsh => Meaning::Mask(false, imm),
        M::Vcomish | M::Vucomish => Meaning::Flags,
        M::Vmovw => Meaning::Word,
        // In a load, the other bytes of the result are zero. Between registers, they come from the
        // second operand. A store writes no other bytes.
        M::Vmovsh if i.op_count() == 3 => Scalar(2, 2, Box::new(|_, _, _, b| b)),
        M::Vmovsh => Meaning::Word,
        M::Vcvtph2psx => Packed(4, 2, Box::new(|_, _, _, b| reference_to_f32(b as u16).into())),
        M::Vcvtph2pd => Packed(8, 2, Box::new(|_, _, _, b| reference_to_f64(b as u16))),
        M::Vcvtps2phx => Packed(2, 4, Box::new(move |_, _, _, b| reference_from_f32(b as u32, rounding).into())),
        M::Vcvtpd2ph => Packed(2, 8, Box::new(move |_, _, _, b| reference_from_f64(b, rounding).into())),
        M::Vcvtsh2ss => Scalar(4, 2, Box::new(|_, _, _, b| reference_to_f32(b as u16).into())),
        M::Vcvtsh2sd => Scalar(8, 2, Box::new(|_, _, _, b| reference_to_f64(b as u16))),
        M::Vcvtss2sh => Scalar(2, 4, Box::new(move |_, _, _, b| reference_from_f32(b as u32, rounding).into())),
        M::Vcvtsd2sh => Scalar(2, 8, Box::new(move |_, _, _, b| reference_from_f64(b, rounding).into())),
        M::Vcvtph2w => to_integer(2, true, rounding),
        M::Vcvtph2uw => to_integer(2, false, rounding),
        M::Vcvtph2dq => to_integer(4, true, rounding),
        M::Vcvtph2udq => to_integer(4, false, rounding),
        M::Vcvtph2qq => to_integer(8, true, rounding),
        M::Vcvtph2uqq => to_integer(8, false, rounding),
        M::Vcvttph2w => to_integer(2, true, Rounding::Zero),
        M::Vcvttph2uw => to_integer(2, false, Rounding::Zero),
        M::Vcvttph2dq => to_integer(4, true, Rounding::Zero),
        M::Vcvttph2udq => to_integer(4, false, Rounding::Zero),
        M::Vcvttph2qq => to_integer(8, true, Rounding::Zero),
        M::Vcvttph2uqq => to_integer(8, false, Rounding::Zero),
        M::Vcvtw2ph => from_integer(2, true),
        M::Vcvtuw2ph => from_integer(2, false),
        M::Vcvtdq2ph => from_integer(4, true),
        M::Vcvtudq2ph => from_integer(4, false),
        M::Vcvtqq2ph => from_integer(8, true),
        M::Vcvtuqq2ph => from_integer(8, false),
        M::Vcvtsh2si => to_general(true, rounding),
        M::Vcvtsh2usi => to_general(false, rounding),
        M::Vcvttsh2si => to_general(true, Rounding::Zero),
        M::Vcvttsh2usi => to_general(false, Rounding::Zero),
        M::Vcvtsi2sh => from_general(true),
        M::Vcvtusi2sh => from_general(false),
        _ => {
            let (f, scalar) = fused(i, rounding)?;
            if scalar { ScalarKept(f) } else { Packed(2, 2, f) }
        }
    })
}

/// Returns the effect of a fused multiply-add, from its name:
/// `VF[N]M(ADD|SUB|ADDSUB|SUBADD)(132|213|231)(PH|SH)`.
fn fused(i: &Instruction, rounding: Rounding) -> Option<(Lane<'static>, bool)> {
    let name = format!("{:?}", i.mnemonic()).to_lowercase();
    let rest = name.strip_prefix("vf")?;
    let (negate_product, rest) = match rest.strip_prefix('n') {
        Some(rest) => (true, rest.strip_prefix('m')?),
        None => (false, rest.strip_prefix('m')?),
    };
    let order = rest.find(|c: char| c.is_ascii_digit())?;
    let (what, order) = rest.split_at(order);
    let (order, kind) = order.split_at(3);
    let order = order.to_string();
    // Whether the addend is subtracted in even lanes, and in odd lanes.
    let subtract = match what {
        "add" => [false, false],
        "sub" => [true, true],
        "addsub" => [true, false],
        "subadd" => [false, true],
        _ => return None,
    };
    let f = move |lane: usize, destination: u64, a: u64, b: u64| {
        let (d, a, b) = (destination as u16, a as u16, b as u16);
        let (x, y, z) = match order.as_str() {
            "132" => (d, b, a),
            "213" => (a, d, b),
            _ => (a, b, d),
        };
        let x = if negate_product { flip(x) } else { x };
        let z = if subtract[lane % 2] { flip(z) } else { z };
        reference_fma(x, y, z, rounding).into()
    };
    Some((Box::new(f), kind == "sh"))
}

/// Values of the operands of a function's instruction, in its input page.
struct Operands<'a> {
    i: &'a Instruction,
    page: &'a [u8],
}

impl Operands<'_> {
    fn bytes(&self, n: u32) -> Vec<u8> {
        let register = self.i.op_register(n);
        match self.i.op_kind(n) {
            OpKind::Memory => {
                let at = MEMORY + self.i.memory_displacement64() as usize;
                let size = self.i.memory_size().info().element_size();
                match self.i.is_broadcast() {
                    true => self.page[at..at + size].repeat(64 / size),
                    false => self.page[at..at + 64].to_vec(),
                }
            }
            OpKind::Register if register.is_gpr() => {
                let at = GENERAL + if register.full_register() == Register::RAX { 0 } else { 8 };
                self.page[at..at + 8].to_vec()
            }
            _ => {
                let at =
                    VECTORS + 64 * function::vectors_of(self.i).iter().position(|v| *v == register.number()).unwrap();
                self.page[at..at + 64].to_vec()
            }
        }
    }

    fn mask(&self) -> u64 {
        match self.i.op_mask() {
            Register::K1 => u64::from_le_bytes(self.page[MASKS..MASKS + 8].try_into().unwrap()),
            _ => u64::MAX,
        }
    }
}

fn element(bytes: &[u8], size: usize, n: usize) -> u64 {
    (0..size).rev().fold(0, |x, i| x << 8 | u64::from(bytes[size * n + i]))
}

fn set(bytes: &mut [u8], size: usize, n: usize, x: u64) {
    bytes[size * n..size * (n + 1)].copy_from_slice(&x.to_le_bytes()[..size]);
}

/// Returns the number of bits of the last source. The code's name contains it, as in `xmmm64b16` or
/// `zmm`.
fn source_bits(function: &Function) -> usize {
    let name = format!("{:?}", function.code);
    let source = name.split('_').rfind(|part| part.contains("mm") && !part.starts_with("imm")).unwrap();
    match source.split_once("mmm") {
        Some((_, size)) => size.split('b').next().unwrap().parse().unwrap(),
        None => [128, 256, 512]["xyz".find(&source[..1]).unwrap()],
    }
}

fn check(function: &Function, input: &Page, output: &Page) -> Result<(), String> {
    let i = &function.instruction;
    let operands = Operands { i, page: &input.0 };
    let sources: Vec<u32> = (1..i.op_count()).filter(|n| i.op_kind(*n) != OpKind::Immediate8).collect();
    let b = operands.bytes(*sources.last().unwrap());
    let a = if sources.len() > 1 { operands.bytes(1) } else { b.clone() };
    let mask = operands.mask();
    let same = |what: &str, found: &[u8], right: &[u8]| match found == right {
        true => Ok(()),
        false => Err(format!("{}: {what} is {found:02x?}, by the manual {right:02x?}", function.name)),
    };
    let found = &output.0[VECTORS..VECTORS + 64];
    let low = |f: &Lane, to: usize, from: usize, rest: &[u8]| {
        let old = operands.bytes(0);
        let mut right = vec![0; 64];
        right[..16].copy_from_slice(&rest[..16]);
        let result = match mask & 1 == 1 {
            true => f(0, element(&old, to, 0), element(&a, from.min(to), 0), element(&b, from, 0)),
            false if i.zeroing_masking() => 0,
            false => element(&old, to, 0),
        };
        set(&mut right, to, 0, result);
        right
    };
    match meaning(i).ok_or_else(|| format!("{}: no reference", function.name))? {
        Meaning::Packed(to, from, f) => {
            let old = operands.bytes(0);
            let lanes = (source_bits(function) / 8 / from).min(i.op0_register().size() / to);
            let mut right = vec![0; 64];
            for n in 0..lanes {
                let result = match mask >> n & 1 == 1 {
                    true => f(n, element(&old, to, n), element(&a, from, n), element(&b, from, n)),
                    false if i.zeroing_masking() => 0,
                    false => element(&old, to, n),
                };
                set(&mut right, to, n, result);
            }
            same("result", found, &right)
        }
        Meaning::Scalar(to, from, f) => same("result", found, &low(&f, to, from, &a)),
        Meaning::ScalarKept(f) => same("result", found, &low(&f, 2, 2, &operands.bytes(0))),
        Meaning::Mask(packed, predicate) => {
            let lanes = if packed { source_bits(function) / 16 } else { 1 };
            let bits = (0..lanes).filter(|n| {
                let (a, b) = (element(&a, 2, *n) as u16, element(&b, 2, *n) as u16);
                mask >> n & 1 == 1 && reference_compare(a, b, predicate)
            });
            let right: u64 = bits.map(|n| 1u64 << n).sum();
            same("mask", &output.0[MASKS + 8..MASKS + 16], &right.to_le_bytes())
        }
        Meaning::General(f) => same("rax", &output.0[GENERAL..GENERAL + 8], &f(element(&b, 2, 0)).to_le_bytes()),
        Meaning::Word => {
            let mut right = vec![0; 64];
            let result = match mask & 1 == 1 {
                true => element(&b, 2, 0),
                // With zeroing, the old value counts as zero. Memory of the output page is zero
                // before the call.
                false if i.zeroing_masking() || i.op0_kind() == OpKind::Memory => 0,
                false => element(&operands.bytes(0), 2, 0),
            };
            set(&mut right, 2, 0, result);
            match i.op0_kind() {
                OpKind::Memory => {
                    let at = MEMORY + i.memory_displacement64() as usize;
                    same("memory", &output.0[at..at + 64], &right)
                }
                _ if i.op0_register().is_gpr() => same("rax", &output.0[GENERAL..GENERAL + 8], &right[..8]),
                _ => same("result", found, &right),
            }
        }
        Meaning::Flags => {
            // For this kind of instruction, `a` and `b` are the first and the second operand.
            let (a, b) = (element(&operands.bytes(0), 2, 0) as u16, element(&b, 2, 0) as u16);
            let unordered = reference_compare(a, b, 3);
            let right = [unordered || reference_compare(a, b, 0), unordered || reference_compare(a, b, 1)];
            same("ZF and CF", &output.0[FLAGS..FLAGS + 2], &right.map(u8::from))
        }
    }
}

/// Checks all forms of the instructions of a CPU feature. Returns the number of instructions, and
/// the names of those that are not emulated.
fn check_all(feature: CpuidFeature) -> (usize, Vec<String>) {
    let mut random = Random::new(0x656e_636f_6465);
    let (mut cases, mut checked, mut unknown) = (0, BTreeSet::new(), BTreeSet::new());
    for code in function::codes().filter(|code| code.cpuid_features().contains(&feature)) {
        for _ in 0..TRIES {
            let Some(function) = function::function(code, &mut random) else { continue };
            let input = function::input(&mut random);
            let Some(output) = emulate(&function, &input) else {
                unknown.insert(format!("{:?}", code.mnemonic()).to_lowercase());
                continue;
            };
            check(&function, &input, &output).unwrap_or_else(|e| panic!("{e}"));
            checked.insert(code as u32);
            cases += 1;
        }
    }
    println!("{cases} cases of {} {feature:?} instructions, emulated; not emulated: {unknown:?}", checked.len());
    (checked.len(), unknown.into_iter().collect())
}

#[test]
fn encoded_half_instructions_match_the_manual() {
    let (checked, unknown) = check_all(CpuidFeature::AVX512_FP16);
    assert_eq!(unknown, NOT_EMULATED);
    assert_eq!(checked, FP16_CODES);
}

#[test]
fn encoded_avx_vnni_instructions_match_the_manual() {
    assert_eq!(check_all(CpuidFeature::AVX_VNNI), (VNNI_CODES, Vec::new()));
}
