//! Compiles kernels and runs them, with canaries around every buffer.

mod random;
mod statements;
mod table;
mod values;

use cranelift_codegen::isa::OwnedTargetIsa;
use ixc_ir::kernel::{BufferId, Elem, Imm, Kernel, KernelBuilder, Op, Type, interpret, verify};
use ixc_ir::random::Random;
use ixc_kernels::{KernelSpec, generate};

use ixc_targets::Target;

use super::{Code, Effort, PortableError, Text, compile, compile_for, compile_with_text, finish_isa};

/// Bytes on each side of a buffer that a kernel must not change.
const CANARY_BYTES: usize = 128;
const CANARY: u8 = 0xc5;

/// Target machine of a test compilation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Machine {
    /// This machine, with all its instructions.
    Native,
    /// This machine restricted to the instructions of the first CPUs of its architecture.
    Baseline,
}

const MACHINES: [Machine; 2] = [Machine::Native, Machine::Baseline];

fn isa(machine: Machine) -> OwnedTargetIsa {
    let builder = cranelift_native::builder_with_options(machine == Machine::Native).unwrap();
    finish_isa(builder, true, Effort::Usual).unwrap()
}

/// Runs compiled code. The kernel must stay inside buffers of these sizes.
fn run(code: &Code, buffers: &mut [Vec<u8>], dims: &[i64]) {
    let mut map = memmap2::MmapMut::map_anon(code.bytes.len()).unwrap();
    map[..code.bytes.len()].copy_from_slice(&code.bytes);
    let map = map.make_exec().unwrap();
    let mut guarded: Vec<Vec<u8>> =
        buffers.iter().map(|bytes| [&[CANARY; CANARY_BYTES][..], bytes, &[CANARY; CANARY_BYTES]].concat()).collect();
    let mut pointers: Vec<*mut u8> = guarded.iter_mut().map(|bytes| bytes[CANARY_BYTES..].as_mut_ptr()).collect();
    let pointers_before = pointers.clone();
    #[cfg(target_arch = "x86_64")]
    type Entry = extern "sysv64" fn(*const *mut u8, *const i64);
    #[cfg(not(target_arch = "x86_64"))]
    type Entry = extern "C" fn(*const *mut u8, *const i64);
    // SAFETY: the map holds code for this machine with this signature, which touches only the
    // buffers that the caller sized for it, and outlives the call.
    let entry: Entry = unsafe { std::mem::transmute(map.as_ptr()) };
    entry(pointers.as_mut_ptr(), dims.as_ptr());
    assert_eq!(pointers, pointers_before, "{}: the array of buffers was written", code.name);
    for (i, (bytes, guarded)) in buffers.iter_mut().zip(&guarded).enumerate() {
        let (before, rest) = guarded.split_at(CANARY_BYTES);
        let (inside, after) = rest.split_at(bytes.len());
        assert!(before.iter().chain(after).all(|b| *b == CANARY), "{}: wrote around buffer {i}", code.name);
        bytes.copy_from_slice(inside);
    }
}

/// Returns a kernel that applies one op to vector after vector.
fn op_kernel(op: Op, imm: Imm, operands: &[Type], ty: Type) -> Kernel {
    let mut b = KernelBuilder::new(format!("{}_{ty}", op.row().mnemonic));
    let count = b.dim("count", 0, 1 << 20);
    let buffers: Vec<_> =
        operands.iter().enumerate().map(|(i, ty)| b.read(&format!("x{i}"), count * i64::from(ty.bytes()))).collect();
    let out = b.write("y", count * i64::from(ty.bytes()));
    b.for_each("i", count, |b, i| {
        let load = |(&ty, &buffer): (&Type, &BufferId)| b.load(ty, buffer, i * i64::from(ty.bytes()));
        let values: Vec<_> = operands.iter().zip(&buffers).map(load).collect();
        let result = match imm {
            Imm::None => b.op(op, ty, &values),
            Imm::Int(value) if op == Op::Splat => b.splat_int(ty, value),
            Imm::Int(value) => b.op_imm(op, ty, &values, value),
            Imm::Float(value) => b.splat_f32(ty.lanes, value),
            Imm::Bytes(bytes) => b.bytes(ty, bytes),
        };
        b.store(out, i * i64::from(ty.bytes()), result);
    });
    b.finish()
}

/// Method for comparing two buffers.
#[derive(Clone, Copy, PartialEq)]
enum Compare {
    /// All bytes must be equal.
    Bytes,
    /// Floats: any NaN equals any NaN. The bits of a NaN are unspecified, because the Rust compiler
    /// may exchange operands in the interpreter.
    Floats,
}

/// Runs a kernel in the interpreter, and as compiled for each machine. All must produce the same
/// buffers.
fn agree(kernel: &Kernel, buffers: &[Vec<u8>], dims: &[i64], compare: Compare) {
    verify::verify(kernel).unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
    let mut right = buffers.to_vec();
    interpret::run(kernel, dims, &mut right).unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
    for machine in MACHINES {
        let code = compile_for(kernel, &*isa(machine), false).unwrap_or_else(|error| panic!("{error}"));
        let mut found = buffers.to_vec();
        run(&code, &mut found, dims);
        for (i, (found, right)) in found.iter().zip(&right).enumerate() {
            let difference = found.iter().zip(right).position(|(a, b)| a != b);
            let same = difference.is_none() || compare == Compare::Floats && same_floats(found, right);
            assert!(same, "{} on {machine:?}: byte {difference:?} of buffer {i}\n{found:?}\n{right:?}", kernel.name);
        }
    }
}

fn same_floats(a: &[u8], b: &[u8]) -> bool {
    f32s(a).into_iter().zip(f32s(b)).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}

/// Runs a kernel with one op on all vectors in the operands' bytes, and compares the results.
fn apply(op: Op, imm: Imm, operands: &[(Type, &[u8])], ty: Type) {
    let types: Vec<Type> = operands.iter().map(|(ty, _)| *ty).collect();
    let count = operands.first().map_or(1, |(ty, bytes)| bytes.len() / ty.bytes() as usize);
    let mut buffers: Vec<Vec<u8>> =
        operands.iter().map(|(ty, bytes)| bytes[..count * ty.bytes() as usize].to_vec()).collect();
    buffers.push(vec![0xee; count * ty.bytes() as usize]);
    let arithmetic = [Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Sqrt, Op::Fma, Op::Dot2Bf16, Op::ReduceAdd].contains(&op);
    let compare = if arithmetic && ty.elem == Elem::F32 { Compare::Floats } else { Compare::Bytes };
    agree(&op_kernel(op, imm, &types, ty), &buffers, &[count as i64], compare);
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn i32s(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn unverified_kernel_is_a_compile_error() {
    let mut kernel = op_kernel(Op::Add, Imm::None, &[Type::f32(4), Type::f32(4)], Type::f32(4));
    kernel.values.truncate(1);
    let error = compile(&kernel).unwrap_err();
    assert!(matches!(error, PortableError::Malformed { op: "result", .. }), "{error}");
}

#[test]
fn listing_is_returned_only_on_request() {
    let kernel = op_kernel(Op::Sqrt, Imm::None, &[Type::f32(8)], Type::f32(8));
    let Text { clif, disassembly } = compile_with_text(&kernel).unwrap().text.unwrap();
    assert_eq!(clif.matches("sqrt").count(), 2);
    assert!(disassembly.contains("sqrt"));
    assert_eq!(compile(&kernel).unwrap().text, None);
}

/// Regression test for issue 16: without `fma`, `attention` exceeded the limit of instructions, so
/// no model ran on such CPUs.
#[test]
fn attention_is_compiled_for_a_cpu_without_fma() {
    let spec: KernelSpec = "attention group=1 d=64 dv=64 scale=0.125 heads=2 rows=16".parse().unwrap();
    let kernel = generate(&spec, Target::PORTABLE).unwrap();
    let code = compile_for(&kernel, &*isa(Machine::Baseline), true).unwrap_or_else(|error| panic!("{error}"));
    let Text { clif, disassembly } = code.text.unwrap();
    assert!(disassembly.contains("probe"), "a frame of many pages is not touched page by page: {disassembly}");
    let lines = clif.lines().count();
    assert!(lines > 1 << 16, "{lines} lines of cranelift's IR: not what was refused");
}

/// Checks that every store and every loop has instructions, and that few instructions have no
/// statement.
#[test]
fn instructions_are_attributed_to_statements() {
    for spec in [
        "linear format=q4_k_r16 k=256 tile=16 n=16 shape=gemv",
        "attention group=2 d=64 dv=64 scale=0.125 heads=2 rows=8",
        "rms_norm n=256 eps=1e-6 out=f32",
    ] {
        let kernel = generate(&spec.parse::<KernelSpec>().unwrap(), Target::PORTABLE).unwrap();
        let code = compile(&kernel).unwrap();
        let told: std::collections::BTreeSet<u32> = code.lines.iter().filter_map(|line| line.origin).collect();
        for (statement, text) in (0..).zip(crate::x64::listing::statements(&kernel)) {
            if ["store", "for "].iter().any(|start| text.starts_with(start)) {
                assert!(told.contains(&statement), "{spec}: no instruction is of {statement}, `{text}`");
            }
        }
        let without = code.lines.iter().filter(|line| line.origin.is_none()).count();
        assert!(
            without * 3 < code.lines.len(),
            "{spec}: {without} of {} instructions are of no statement",
            code.lines.len()
        );
        assert!(code.code_bytes <= code.constants_at && code.constants_at <= code.bytes.len());
    }
}
