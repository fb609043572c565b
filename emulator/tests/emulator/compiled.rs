//! Tests of compiled kernels: the emulator's results are compared with those of the interpreter.

use ixc_codegen::x64::{self, CompiledKernel, X64Error};
use ixc_emulator::{Program, Slice};
use ixc_ir::kernel::{BufferKind, Kernel, Op, interpret};
use ixc_targets::Target;
use ixc_testing::random_kernels::{KernelOptions, random_buffers, random_dims, random_kernel_with};

/// First seed of the random kernels.
const SEED: u64 = 0x71e5;
/// Number of random kernels.
const KERNELS: u64 = 200;

/// Generates a random kernel with all ops that the target supports, compiles it and decodes its
/// code.
fn program(seed: u64, target: Target, full: &mut u64) -> (Kernel, Program) {
    let widest = target.isa().vector_bytes;
    let everything = KernelOptions { widest, tiles: target.isa().tile_registers > 0, has: |_| true };
    let basic = KernelOptions {
        widest,
        tiles: false,
        has: |op| !matches!(op, Op::Dot4U8S8 | Op::ToBf16 | Op::Bf16ToF32 | Op::ToBf16Pairs),
    };
    let mut kernel = random_kernel_with(seed, everything);
    let compiled = match x64::compile(&kernel, target) {
        // A random kernel has several tiles that are live at once and used several times. The
        // target's eight tile registers may not suffice.
        Err(
            X64Error::NoLowering { .. }
            | X64Error::Unsupported { .. }
            | X64Error::TileCopy { .. }
            | X64Error::OutOfTiles,
        ) => {
            kernel = random_kernel_with(seed, basic);
            x64::compile(&kernel, target)
        }
        compiled => {
            *full += 1;
            compiled
        }
    };
    let compiled = compiled.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let program = decode(&compiled, target);
    (kernel, program)
}

fn decode(compiled: &CompiledKernel, target: Target) -> Program {
    let code = [&compiled.code[..], &compiled.constants].concat();
    let program = Program::new(&code, compiled.code_bytes, target.features());
    program.unwrap_or_else(|e| panic!("{}: {e}", compiled.name))
}

/// Compiles a kernel and decodes its code.
pub fn decoded(kernel: &Kernel, target: Target) -> Program {
    decode(&x64::compile(kernel, target).unwrap_or_else(|e| panic!("{}: {e}", kernel.name)), target)
}

pub fn call(program: &Program, kernel: &Kernel, dims: &[i64], buffers: &mut [Vec<u8>]) -> Result<u64, String> {
    let slices: Vec<Slice> = kernel
        .buffers
        .iter()
        .zip(buffers)
        .map(|(b, bytes)| match b.kind {
            BufferKind::Read | BufferKind::Index { .. } => Slice::read(&b.name, bytes),
            BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch => Slice::write(&b.name, bytes),
        })
        .collect();
    program.call(&slices, dims).map(|stats| stats.instructions).map_err(|fault| fault.to_string())
}

fn random_kernels(target: Target) {
    let (mut instructions, mut full) = (0, 0);
    for seed in SEED..SEED + KERNELS {
        let (kernel, program) = program(seed, target, &mut full);
        let dims = random_dims(&kernel, seed);
        let buffers = random_buffers(&kernel, &dims, seed);
        let (mut right, mut got) = (buffers.clone(), buffers);
        interpret::run(&kernel, &dims, &mut right).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        instructions += call(&program, &kernel, &dims, &mut got).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        for (b, (got, right)) in got.iter().zip(&right).enumerate() {
            let at = got.iter().zip(right).position(|(a, b)| a != b);
            assert_eq!(at, None, "seed {seed}, dims {dims:?}: buffer %{} differs", kernel.buffers[b].name);
        }
    }
    println!("{KERNELS} kernels for {}, {full} of them with any op, {instructions} instructions", target.name());
}

#[test]
fn random_avx2_kernels_match_the_interpreter() {
    random_kernels(Target::AVX2);
}

#[test]
fn random_avx512_kernels_match_the_interpreter() {
    random_kernels(Target::AVX512);
}

#[test]
fn random_amx_kernels_match_the_interpreter() {
    random_kernels(Target::AMX);
}
