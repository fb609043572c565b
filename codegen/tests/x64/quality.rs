//! Quality of the generated code: no spills and no unnecessary moves, as in hand-written code.

use iced_x86::{CpuidFeature, Decoder, DecoderOptions, InstructionInfoFactory, Mnemonic, OpAccess};
use ixc_codegen::x64::{self, CompiledKernel, listing};
use ixc_ir::kernel::{Kernel, KernelBuilder, Op, Type, ValueId, interpret};
use ixc_targets::Target;

use super::native::{Engine, Guard, targets};
use ixc_ir::random::Random;

fn compile(kernel: &Kernel) -> CompiledKernel {
    compile_for(kernel, Target::AVX2)
}

pub fn compile_for(kernel: &Kernel, target: Target) -> CompiledKernel {
    let compiled = x64::compile(kernel, target).unwrap_or_else(|error| panic!("{error}"));
    println!("{}\n{:?}", listing::text(&compiled, kernel), compiled.stats);
    compiled
}

/// Returns a kernel of six activation rows times one vector of nibbles. The inner loop has six
/// 16-bit sums, the outer loop six 32-bit sums.
fn gemm_like() -> Kernel {
    let mut b = KernelBuilder::new("gemm_like");
    let n = b.dim("n", 1, 1024);
    let w = b.read("w", n * 256);
    let x = b.read("x", n * 6 * 64);
    let y = b.write("y", 6 * 32);
    let zero = b.splat_int(Type::i32(8), 0);
    let ones = b.splat_int(Type::i16(16), 1);
    let mask = b.splat_int(Type::i8(32), 15);
    let sums = b.for_carry("k", n, &[zero; 6], |b, k, sums| {
        let zero = b.splat_int(Type::i16(16), 0);
        let mut inner: Vec<ValueId> = vec![zero; 6];
        for j in 0..8 {
            let q = b.load(Type::i8(32), w, k * 256 + j * 32);
            let q = b.same(Op::And, &[q, mask]);
            for (m, sum) in inner.iter_mut().enumerate() {
                let at = k * 384 + (m as i64 * 64 + j * 4);
                let a = b.load_splat(Type::i32(8), x, at);
                let a = b.bitcast(Type::i8(32), a);
                let p = b.op(Op::Dot2U8S8, Type::i16(16), &[q, a]);
                *sum = b.iadd(*sum, p);
            }
        }
        let folded: Vec<ValueId> = inner.iter().map(|&t| b.op(Op::Dot2S16, Type::i32(8), &[t, ones])).collect();
        sums.iter().zip(folded).map(|(&s, t)| b.iadd(s, t)).collect()
    });
    for (m, sum) in sums.into_iter().enumerate() {
        b.store(y, m as i64 * 32, sum);
    }
    b.finish()
}

#[test]
fn twelve_integer_accumulators_need_no_spill_and_no_move() {
    let stats = compile(&gemm_like()).stats;
    assert_eq!((stats.vector_spills, stats.gpr_spills, stats.moves_in_innermost_loops), (0, 0, 0));
    assert_eq!(stats.moves, 0);
}

/// Returns a kernel of fused multiply-adds with a register tile of 4 x 3 sums.
fn fma_tile() -> Kernel {
    let mut b = KernelBuilder::new("fma_tile");
    let n = b.dim("n", 0, 1024);
    let w = b.read("w", n * 96);
    let x = b.read("x", n * 16);
    let y = b.write("y", 12 * 32);
    let zero = b.splat_f32(8, 0.0);
    let sums = b.for_carry("k", n, &[zero; 12], |b, k, sums| {
        let columns: Vec<ValueId> = (0..3).map(|j| b.load(Type::f32(8), w, k * 96 + j * 32)).collect();
        let mut next = Vec::new();
        for row in 0..4 {
            let a = b.load_splat(Type::f32(8), x, k * 16 + row * 4);
            for (j, &column) in columns.iter().enumerate() {
                next.push(b.fma(a, column, sums[row as usize * 3 + j]));
            }
        }
        next
    });
    for (i, sum) in sums.into_iter().enumerate() {
        b.store(y, i as i64 * 32, sum);
    }
    b.finish()
}

#[test]
fn fma_tile_uses_all_registers_without_spills() {
    let kernel = fma_tile();
    let compiled = compile(&kernel);
    let stats = compiled.stats;
    assert_eq!((stats.vector_spills, stats.gpr_spills, stats.moves), (0, 0, 0));
    // The loop has three loads, four broadcasts and twelve multiply-adds. It also advances two
    // pointers and the counter, and branches.
    let text = listing::text(&compiled, &kernel);
    assert_eq!(text.matches("vfmadd231ps").count(), 12, "{text}");
    assert_eq!(text.matches("[rip").count() + text.matches("[rel").count(), 0, "zeros are idioms");
}

/// Returns a dot product with four accumulators, memory operands and chains of two steps.
fn dot() -> Kernel {
    let mut b = KernelBuilder::new("dot");
    let n = b.dim("n", 0, 1024);
    let (x, y) = (b.read("x", n * 256), b.read("y", n * 256));
    let out = b.write("out", 4);
    let zero = b.splat_f32(8, 0.0);
    let sums = b.for_carry("i", n, &[zero; 4], |b, i, sums| {
        let step = |b: &mut KernelBuilder, sum: ValueId, at: i64| {
            let (p, q) = (b.load(Type::f32(8), x, i * 256 + at), b.load(Type::f32(8), y, i * 256 + at));
            b.fma(p, q, sum)
        };
        let first: Vec<ValueId> = (0..4).map(|j| step(b, sums[j as usize], j * 32)).collect();
        (0..4).map(|j| step(b, first[j as usize], 128 + j * 32)).collect()
    });
    let (a, c) = (b.add(sums[0], sums[1]), b.add(sums[2], sums[3]));
    let sum = b.add(a, c);
    let sum = b.op(Op::ReduceAdd, Type::f32(1), &[sum]);
    b.store(out, 0, sum);
    b.finish()
}

#[test]
fn a_chain_over_a_carried_value_stays_in_one_register() {
    let kernel = dot();
    let compiled = compile(&kernel);
    let stats = compiled.stats;
    assert_eq!((stats.vector_spills, stats.gpr_spills, stats.moves), (0, 0, 0));
    assert_eq!(listing::text(&compiled, &kernel).matches("vfmadd231ps").count(), 8);
    // Each step has one load and one multiply-add with a memory operand. Each iteration advances
    // two pointers and the counter, and branches.
    let body = compiled.lines.iter().filter(|l| l.origin.is_some()).count();
    assert!(body <= 16 + 4 + 20, "{body} instructions");
}

/// Returns a kernel with more live vectors than registers, so that values are spilled.
fn crowded(lanes: u16) -> Kernel {
    let mut b = KernelBuilder::new(format!("crowded_{lanes}"));
    let (n, ty) = (b.dim("n", 0, 64), Type::f32(lanes));
    let bytes = i64::from(ty.bytes());
    let x = b.read("x", n * 4 + 40 * bytes);
    let y = b.write("y", 40 * bytes);
    let constants: Vec<ValueId> = (0..10).map(|i| b.splat_f32(lanes, i as f32 + 0.5)).collect();
    let loaded: Vec<ValueId> = (0..40).map(|i| b.load(ty, x, i * bytes)).collect();
    let sums = b.for_carry("i", n, &loaded, |b, i, sums| {
        let a = b.load_splat(ty, x, i * 4);
        sums.iter().enumerate().map(|(j, &s)| b.fma(a, constants[j % 10], s)).collect()
    });
    for (i, (&sum, &first)) in sums.iter().zip(&loaded).enumerate() {
        let v = b.mul(sum, first);
        b.store(y, i as i64 * bytes, v);
    }
    b.finish()
}

/// Compiles and runs kernels with one dim, and compares the results with the interpreter.
pub fn agree(kernels: &[Kernel], target: Target) {
    let native = Engine::new(kernels, target);
    println!("{}, seed 7", target.name());
    let mut random = Random::new(7);
    for (i, kernel) in kernels.iter().enumerate() {
        for n in [0, 1, 2, 7, 64].map(|n| n.clamp(kernel.dims[0].lo, kernel.dims[0].hi)) {
            let buffers: Vec<Vec<u8>> = kernel
                .buffers
                .iter()
                .map(|b| random.bytes(b.size.evaluate(|_| n).unwrap() as usize).iter().map(|b| b & 0x3f).collect())
                .collect();
            let (mut right, mut got) = (buffers.clone(), buffers);
            interpret::run(kernel, &[n], &mut right).unwrap();
            native.run(i, kernel, &[n], &mut got, Guard::After);
            assert_eq!(got, right, "{} with n = {n}", kernel.name);
        }
    }
}

#[test]
fn spilled_values_are_right() {
    for target in targets() {
        let mut kernels = vec![crowded(4), crowded(8), gemm_like(), fma_tile(), dot()];
        if target.isa().vector_bytes == 64 {
            kernels.push(crowded(16));
        }
        for kernel in &kernels[..2] {
            assert!(compile_for(kernel, target).stats.vector_spills > 0);
        }
        agree(&kernels, target);
    }
}

#[test]
fn instructions_keep_to_the_features_of_the_target() {
    let kernels = [gemm_like(), fma_tile(), dot(), crowded(8), crowded(16)];
    for (target, kernel) in targets().into_iter().flat_map(|target| kernels.iter().map(move |kernel| (target, kernel)))
    {
        if kernel.values.iter().any(|ty| ty.bytes() > target.isa().vector_bytes) {
            continue;
        }
        let compiled = compile_for(kernel, target);
        let mut info = InstructionInfoFactory::new();
        let code = &compiled.code[..compiled.code_bytes];
        let decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
        for instruction in decoder {
            let allowed = |feature: &CpuidFeature| {
                let baseline =
                    [CpuidFeature::INTEL8086, CpuidFeature::INTEL186, CpuidFeature::INTEL386, CpuidFeature::X64];
                baseline.contains(feature) || ixc_targets::instruction::feature(*feature).is_some_and(|f| target.has(f))
            };
            let features = instruction.cpuid_features();
            assert!(features.iter().all(allowed), "{target:?}: {instruction:?} needs {features:?}");
            assert_ne!(instruction.mnemonic(), Mnemonic::INVALID);
            // Only the code that creates and removes the frame changes the stack pointer.
            let info = info.info(&instruction);
            let writes_stack = info.used_registers().iter().any(|r| {
                r.register() == iced_x86::Register::RSP && matches!(r.access(), OpAccess::Write | OpAccess::ReadWrite)
            });
            let frame = matches!(
                instruction.mnemonic(),
                Mnemonic::Push
                    | Mnemonic::Pop
                    | Mnemonic::Ret
                    | Mnemonic::Sub
                    | Mnemonic::Add
                    | Mnemonic::And
                    | Mnemonic::Mov
            );
            assert!(!writes_stack || frame, "{instruction:?}");
        }
    }
}
