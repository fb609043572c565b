//! Tests of every op with every combination of types and immediates that its rule allows, against
//! the interpreter. Operands are loaded from memory in two variants. With one use, they may be
//! memory operands; with two uses, they are registers.

use ixc_ir::kernel::op::{ImmKind, Memory, OPS, OpRow};
use ixc_ir::kernel::{Elem, Imm, Kernel, KernelBuilder, Op, Type, interpret};
use ixc_targets::Target;

use super::native::{Engine, has_lowering, targets};
use ixc_ir::random::Random;

const SEED: u64 = 0x1c5e_ed02;
/// Number of vectors that a kernel processes in a run.
const COUNT: usize = 24;
const EDGES: [f32; 24] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    -2.5,
    1e-45,
    f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    65504.0,
    65520.0,
    2_147_483_520.0,
    2_147_483_648.0,
    -2_147_483_904.0,
    // Midpoints between two bf16 values; the last midpoint is between the largest value and
    // infinity. After them comes the largest denormal.
    f32::from_bits(0x3f80_8000),
    f32::from_bits(0xbf81_8000),
    f32::from_bits(0x7f7f_8000),
    f32::from_bits(0x007f_ffff),
];

/// Returns all types of up to `widest` bytes.
fn types(widest: u32) -> Vec<Type> {
    let all = Elem::ALL.iter().flat_map(|&e| [1, 2, 4, 8, 16, 32, 64].map(|lanes| Type::new(e, lanes)));
    all.filter(|ty| ty.bytes() <= widest).collect()
}

#[derive(Clone, Debug)]
struct Case {
    op: Op,
    operands: Vec<Type>,
    ty: Type,
    imm: Imm,
}

fn cases(row: &OpRow, widest: u32) -> Vec<Case> {
    let types = types(widest);
    let imms: Vec<i64> = match row.imm {
        ImmKind::Int => (0..64).collect(),
        _ => vec![0],
    };
    let mut operands = vec![Vec::new()];
    for _ in 0..row.operands {
        operands = operands
            .into_iter()
            .flat_map(|o: Vec<Type>| types.iter().map(move |ty| [&o[..], &[*ty]].concat()))
            .collect();
    }
    let mut cases = Vec::new();
    for o in &operands {
        for &ty in &types {
            for &imm in &imms {
                if (row.rule)(o, ty, imm).is_err() {
                    continue;
                }
                let case = |imm| Case { op: row.op, operands: o.clone(), ty, imm };
                match row.imm {
                    ImmKind::Int => cases.push(case(Imm::Int(imm))),
                    ImmKind::None => cases.push(case(Imm::None)),
                    ImmKind::Scalar if ty.elem == Elem::F32 => {
                        cases.extend([0.0, -0.0, 1.25, f32::NAN].map(|x| case(Imm::Float(x))));
                    }
                    ImmKind::Scalar => cases.extend([0, -1, 1, 93].map(|x| case(Imm::Int(x)))),
                    ImmKind::Bytes => {
                        cases.push(case(Imm::Bytes((0..ty.bytes() as u8).map(|b| b.wrapping_mul(37)).collect())));
                    }
                }
            }
        }
    }
    cases
}

/// Returns a kernel that applies the op to vector after vector and stores the results. With
/// `reuse`, it stores the operands too.
fn kernel(case: &Case, reuse: bool) -> Kernel {
    let Case { op, operands, ty, imm } = case;
    let imms: String = format!("{imm:?}").chars().take(40).collect();
    let mut name = format!("{}_{ty}_{imms}_{reuse}", op.row().mnemonic);
    operands.iter().for_each(|o| name += &format!("_{o}"));
    let mut b = KernelBuilder::new(name.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
    let n = b.dim("n", 0, COUNT as i64);
    let from: Vec<_> =
        operands.iter().enumerate().map(|(i, o)| b.read(&format!("x{i}"), n * i64::from(o.bytes()))).collect();
    let memory = b.read("memory", n * i64::from(ty.bytes()));
    let to = b.write("y", n * i64::from(ty.bytes()));
    let copies: Vec<_> =
        operands.iter().enumerate().map(|(i, o)| b.write(&format!("z{i}"), n * i64::from(o.bytes()))).collect();
    b.for_each("i", n, |b, i| {
        let values: Vec<_> =
            operands.iter().zip(&from).map(|(&o, &x)| b.load(o, x, i * i64::from(o.bytes()))).collect();
        let at = i * i64::from(ty.bytes());
        let result = match (op.row().memory, imm) {
            (Memory::Load, _) => b.load(*ty, memory, at.clone()),
            (Memory::LoadElement, _) => b.load_splat(*ty, memory, at.clone()),
            (Memory::Index, _) => b.index(i * 12_345 + n * 3 + 7),
            (Memory::Store, _) => values[0],
            (Memory::Hint, _) => {
                b.prefetch(memory, at.clone() + -1_000_000);
                b.load(*ty, memory, at.clone())
            }
            (Memory::LoadRows | Memory::StoreRows, _) => panic!("{} is about tiles", op.row().mnemonic),
            (Memory::None, Imm::None) => b.op(*op, *ty, &values),
            (Memory::None, Imm::Int(x)) if *op == Op::Splat => b.splat_int(*ty, *x),
            (Memory::None, Imm::Int(x)) => b.op_imm(*op, *ty, &values, *x),
            (Memory::None, Imm::Float(x)) => b.splat_f32(ty.lanes, *x),
            (Memory::None, Imm::Bytes(bytes)) => b.bytes(*ty, bytes.clone()),
        };
        b.store(to, at, result);
        if reuse {
            for ((&value, &copy), o) in values.iter().zip(&copies).zip(operands) {
                b.store(copy, i * i64::from(o.bytes()), value);
            }
        }
    });
    b.finish()
}

fn operand(random: &mut Random, op: Op, position: usize, ty: Type) -> Vec<u8> {
    let mut bytes = random.bytes(ty.bytes() as usize * COUNT);
    if op == Op::Select && position == 0 {
        for lane in bytes.chunks_exact_mut(4) {
            lane.copy_from_slice(&[if lane[0] & 1 == 0 { 0 } else { 0xff }; 4]);
        }
    } else if op == Op::Dot2Bf16 && random.once_in(2) {
        // Sums around the smallest normal number. The addend is that number or a neighbour, and the
        // products are fractions of the distance between the two.
        for lane in bytes.as_chunks_mut::<4>().0 {
            let bits = u32::from_le_bytes(*lane);
            let lane_bits = match position {
                0 => bits & 0x8000_0000 | (f32::MIN_POSITIVE.to_bits() - 1 + bits % 3),
                _ => bits & 0x81ff_81ff | 0x1900_1900,
            };
            *lane = lane_bits.to_le_bytes();
        }
    } else if ty.elem == Elem::F32 {
        for lane in bytes.chunks_exact_mut(4) {
            let bits = u32::from_le_bytes([lane[0], lane[1], lane[2], lane[3]]);
            let edge = EDGES[(bits >> 8) as usize % EDGES.len()];
            match bits % 4 {
                0 => lane.copy_from_slice(&edge.to_le_bytes()),
                // Numbers of similar magnitude, so that sums cancel and round.
                1 | 2 => lane.copy_from_slice(&(0x3f80_0000 | bits & 0x80ff_ffff).to_le_bytes()),
                _ => {}
            }
        }
    } else if ty.elem == Elem::I32 && position == 1 {
        // Sets every third lane of the second operand to 0.
        for lane in bytes.chunks_exact_mut(4).step_by(3) {
            lane.fill(0);
        }
    }
    bytes
}

/// Whether bytes are the same. If the op computes floats, any two NaNs count as the same.
fn same(case: &Case, a: &[u8], b: &[u8]) -> bool {
    if a == b {
        return true;
    }
    let computes = matches!(
        case.op,
        Op::Add
            | Op::Sub
            | Op::Mul
            | Op::Div
            | Op::Sqrt
            | Op::Fma
            | Op::Dot2Bf16
            | Op::ReduceAdd
            | Op::F16ToF32
            | Op::F32ToF16
    );
    let lanes = |bytes: &[u8]| -> Vec<f32> {
        match case.ty.elem {
            Elem::F32 => bytes.as_chunks().0.iter().map(|c| f32::from_le_bytes(*c)).collect(),
            Elem::F16 => bytes.as_chunks().0.iter().map(|c| half::f16::from_le_bytes(*c).to_f32()).collect(),
            Elem::I8 | Elem::I16 | Elem::I32 | Elem::Bf16 => Vec::new(),
        }
    };
    let (a, b) = (lanes(a), lanes(b));
    computes && !a.is_empty() && a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}

fn compare(target: Target) {
    println!("seed {SEED:#x}");
    let mut random = Random::new(SEED);
    for row in OPS.iter().filter(|row| has_lowering(row.op)) {
        let cases: Vec<(Case, bool)> =
            cases(row, target.isa().vector_bytes).into_iter().flat_map(|c| [(c.clone(), false), (c, true)]).collect();
        assert!(!cases.is_empty(), "{} has no types", row.mnemonic);
        let kernels: Vec<Kernel> = cases.iter().map(|(case, reuse)| kernel(case, *reuse)).collect();
        let native = Engine::new(&kernels, target);
        for (i, (case, _)) in cases.iter().enumerate() {
            let mut buffers: Vec<Vec<u8>> =
                case.operands.iter().enumerate().map(|(p, o)| operand(&mut random, case.op, p, *o)).collect();
            buffers.push(random.bytes(case.ty.bytes() as usize * COUNT));
            let result = buffers.len();
            buffers.push(random.bytes(case.ty.bytes() as usize * COUNT));
            for o in &case.operands {
                buffers.push(vec![0xa5; o.bytes() as usize * COUNT]);
            }
            let dims = [COUNT as i64];
            let mut right = buffers.clone();
            interpret::run(&kernels[i], &dims, &mut right).unwrap_or_else(|e| panic!("{}: {e}", kernels[i].name));
            for &guard in native.guards() {
                let mut got = buffers.clone();
                native.run(i, &kernels[i], &dims, &mut got, guard);
                for (b, (got, right)) in got.iter().zip(&right).enumerate() {
                    let name = &kernels[i].name;
                    if b == result {
                        assert!(same(case, got, right), "{name}:\n got  {got:02x?}\n right {right:02x?}");
                    } else {
                        assert_eq!(got, right, "{name}: buffer {b}");
                    }
                }
            }
        }
        println!("{}: {} kernels", row.mnemonic, kernels.len());
    }
}

#[test]
fn x64_ops_match_the_interpreter_on_every_type() {
    ixc_codegen::parallel::map(&targets(), |target| {
        println!("{}", target.name());
        compare(*target);
    });
}
