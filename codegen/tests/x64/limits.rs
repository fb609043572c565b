//! Kernels that exceed the target's limits give typed errors in a short time.

use ixc_codegen::x64::{X64Error, compile};
use ixc_ir::kernel::{KernelBuilder, Op, QUARTERS, Type, ValueId};
use ixc_targets::Target;

#[test]
fn vectors_wider_than_the_registers_are_refused() {
    let mut b = KernelBuilder::new("wide");
    let (x, y) = (b.read("x", 64), b.write("y", 64));
    let a = b.load(Type::f32(16), x, 0);
    b.store(y, 0, a);
    let kernel = b.finish();
    let target = Target::from_name("zen3").unwrap();
    let error = compile(&kernel, target).unwrap_err();
    assert_eq!(error, X64Error::Unsupported { target, value: ValueId(0), ty: Type::f32(16) });
    assert_eq!(error.to_string(), "value %0 has type f32x16 of 64 bytes; target zen3 has vectors of at most 32 bytes");
    assert!(compile(&kernel, Target::AVX512).is_ok());
}

/// Returns a kernel that loads `count` vectors and reads all of them again after a loop.
fn alive(count: i64) -> ixc_ir::kernel::Kernel {
    let mut b = KernelBuilder::new("alive");
    let (x, y) = (b.read("x", 32 * count), b.write("y", 32 * count));
    let values: Vec<ValueId> = (0..count).map(|i| b.load(Type::f32(8), x, 32 * i)).collect();
    b.for_each("i", count, |b, i| {
        let v = b.load(Type::f32(8), x, i * 32);
        b.store(y, i * 32, v);
    });
    let mut sum = values[0];
    for (i, &v) in (0..).zip(&values) {
        sum = b.add(sum, v);
        b.store(y, 32 * i, sum);
    }
    b.finish()
}

#[test]
fn frames_are_bounded() {
    let stats = compile(&alive(900), Target::AVX2).unwrap().stats;
    assert!(stats.vector_spills >= 880, "{stats:?}");
    assert!(matches!(compile(&alive(5000), Target::AVX2), Err(X64Error::FrameTooLarge { .. })));
}

#[test]
fn instructions_are_bounded() {
    let mut b = KernelBuilder::new("long");
    let (x, y) = (b.read("x", 32), b.write("y", 32));
    for _ in 0..70_000 {
        let v = b.load(Type::f32(8), x, 0);
        b.store(y, 0, v);
    }
    assert!(matches!(compile(&b.finish(), Target::AVX2), Err(X64Error::TooLarge { what: "instructions", .. })));
}

/// Checks that lookups use no frame: entry numbers are extracted from vectors, not stored.
#[test]
fn lookups_need_no_frame() {
    let lookups = |count: usize| {
        let mut b = KernelBuilder::new("lookups");
        let (x, y) = (b.read("x", 32), b.write("y", 32));
        for _ in 0..count {
            let low = b.load(Type::i8(32), x, 0);
            let entries = b.op_imm(Op::LookupQuarter, Type::i32(8), &[low, low], QUARTERS);
            b.store(y, 0, entries);
        }
        compile(&b.finish(), Target::AVX2)
    };
    assert_eq!(lookups(600).unwrap().stats.vector_spills, 0);
}
