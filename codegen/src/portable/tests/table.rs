//! Every row of the op table with every type that its rule allows, against the interpreter.

use ixc_ir::kernel::op::{ImmKind, Memory, OPS, OpRow};
use ixc_ir::kernel::{Elem, Imm, Op, Type};

use super::values::floats;
use super::*;

/// Number of vectors of test values for each operand.
const VECTORS: usize = 24;

fn types() -> impl Iterator<Item = Type> {
    let lanes = (0..7).map(|i| 1u16 << i);
    Elem::ALL
        .into_iter()
        .flat_map(move |elem| lanes.clone().map(move |lanes| Type::new(elem, lanes)))
        .filter(|t| t.is_valid())
}

/// Returns all operand types that are possible for a result type.
fn operand_types(row: &OpRow, ty: Type, imm: i64) -> Vec<Vec<Type>> {
    let allowed = |operands: &Vec<Type>| (row.rule)(operands, ty, imm).is_ok();
    if row.operands == 0 {
        return vec![Vec::new()].into_iter().filter(allowed).collect();
    }
    // In every type rule, the operands after the first have the type of the first operand or of the
    // result. Or the first operand has the result's type.
    let with_result = |rest: Type| [vec![ty], vec![rest; row.operands - 1]].concat();
    let with = |first: Type, rest: Type| [vec![first], vec![rest; row.operands - 1]].concat();
    let mut all: Vec<_> =
        types().flat_map(|first| [with(first, first), with(first, ty), with_result(first)]).filter(allowed).collect();
    all.sort();
    all.dedup();
    all
}

fn immediates(row: &OpRow, ty: Type, random: &mut Random) -> Vec<Imm> {
    match (row.imm, ty.elem) {
        (ImmKind::None, _) => vec![Imm::None],
        (ImmKind::Scalar, Elem::F32) => [0.0, -0.0, 1.5, f32::INFINITY].map(Imm::Float).to_vec(),
        (ImmKind::Scalar, _) => [0, 1, -1, 127, -128].map(Imm::Int).to_vec(),
        (ImmKind::Int, _) => (0..64).map(Imm::Int).collect(),
        (ImmKind::Bytes, _) => vec![Imm::Bytes(random.bytes(ty.bytes() as usize))],
    }
}

/// Returns operands with edge cases: masks for `select`, otherwise random bits mixed with extreme
/// values.
fn operand(op: Op, index: usize, ty: Type, random: &mut Random) -> Vec<u8> {
    let count = VECTORS * usize::from(ty.lanes);
    match ty.elem {
        Elem::I32 if op == Op::Select && index == 0 => {
            random.bytes(count).iter().flat_map(|b| [(b & 1) * 255; 4]).collect()
        }
        Elem::F32 => f32_bytes(&floats(random.bits(), count)),
        Elem::I8 | Elem::I16 | Elem::I32 | Elem::F16 | Elem::Bf16 => {
            let size = ty.elem.bytes() as usize;
            let mut bytes = random.bytes(count * size);
            for element in bytes.chunks_mut(size) {
                match random.bits() % 8 {
                    0 => element.fill(0),
                    1 => element.fill(0xff),
                    // The smallest and the largest signed value.
                    2 => element.iter_mut().rev().enumerate().for_each(|(i, b)| *b = if i == 0 { 0x80 } else { 0 }),
                    3 => element.iter_mut().rev().enumerate().for_each(|(i, b)| *b = if i == 0 { 0x7f } else { 0xff }),
                    _ => {}
                }
            }
            bytes
        }
    }
}

#[test]
fn every_op_agrees_with_the_interpreter_on_every_type() {
    let mut random = Random::new(20);
    for row in OPS.iter().filter(|row| row.memory == Memory::None && !row.op.takes_tiles()) {
        let mut cases = 0;
        for ty in types() {
            for imm in immediates(row, ty, &mut random) {
                let int = if let Imm::Int(value) = imm { value } else { 0 };
                for operands in operand_types(row, ty, int) {
                    let bytes: Vec<_> =
                        operands.iter().enumerate().map(|(i, ty)| operand(row.op, i, *ty, &mut random)).collect();
                    let operands: Vec<_> = operands.into_iter().zip(bytes.iter().map(Vec::as_slice)).collect();
                    apply(row.op, imm.clone(), &operands, ty);
                    cases += 1;
                }
            }
        }
        assert!(cases > 0, "{} was never tried", row.mnemonic);
    }
}

#[test]
fn every_type_loads_splats_and_stores() {
    for ty in types() {
        let (size, lanes) = (i64::from(ty.bytes()), i64::from(ty.elem.bytes()));
        let mut b = KernelBuilder::new(format!("memory_{ty}"));
        let count = b.dim("count", 0, 9);
        let (x, y) = (b.read("x", count * (size + 3) + 5), b.write("y", count * (2 * size + 1)));
        b.for_each("i", count, |b, i| {
            let whole = b.load(ty, x, i * (size + 3) + 3);
            let splat = b.load_splat(ty, x, i * (size + 3) + (size + 3 - lanes));
            b.store(y, i * (2 * size + 1), whole);
            b.store(y, i * (2 * size + 1) + (size + 1), splat);
        });
        let kernel = b.finish();
        for count in [0, 1, 9] {
            let bytes = Random::new(21).bytes((count * (size + 3) + 5) as usize);
            agree(&kernel, &[bytes, vec![0x11; (count * (2 * size + 1)) as usize]], &[count], Compare::Bytes);
        }
    }
}
