//! Coefficients and constants up to the limits of the verifier, which are more than a displacement
//! or an immediate can hold. The kernels run on every kind of target (emulated if this CPU lacks
//! it) and on `portable`. Results are compared with the interpreter.

use ixc_codegen::module::{CodegenError, Module};
use ixc_ir::kernel::{Affine, BufferKind, Kernel, KernelBuilder, Op, Type, interpret};
use ixc_targets::Target;

use super::native::{Engine, targets};
use ixc_ir::random::Random;

const MAX_COEFFICIENT: i64 = Affine::MAX_COEFFICIENT;
/// Values around the limits of signed and unsigned 32 bits, and at the verifier's limit.
const STRIDES: [i64; 10] = [
    (1 << 24) + 1,
    (1 << 31) - 1,
    1 << 31,
    (1 << 31) + 1,
    (1 << 32) - 1,
    (1 << 32) + 4,
    19_447_808,
    (1 << 39) + 7,
    MAX_COEFFICIENT - 1,
    MAX_COEFFICIENT,
];
const ITEMS: i64 = 5;

/// Returns a kernel whose strides cancel each other or are multiplied with 0. They multiply a dim,
/// an index value and the difference of two dims. They also multiply the variables of loops that
/// run once, whether the compiler knows this or not.
fn cancelling(stride: i64) -> Kernel {
    let mut b = KernelBuilder::new("cancelling");
    let (n, m, none, once) = (b.dim("n", 1, 1), b.dim("m", 0, ITEMS), b.dim("none", 0, 0), b.dim("once", 1, 1));
    let ids = b.buffer("ids", BufferKind::Index { below: Affine::constant(1) }, 4);
    let x = b.read("x", 64 * ITEMS);
    let y = b.write("y", 256 * ITEMS);
    let z = b.write("z", 8);
    // Small constants are added to this constant; the sums must still be valid.
    let constant = stride.clamp(1024 - MAX_COEFFICIENT, MAX_COEFFICIENT - 1024);
    let far = |sign: i64| n * (sign * constant) + -sign * constant;
    let whole = constant / 4 * 4;
    b.for_each("i", m, |b, i| {
        let a = b.load(Type::i32(8), x, far(1) + i * 64);
        let c = b.load_splat(Type::i32(8), x, far(-1) + i * 64 + 4);
        let sum = b.iadd(a, c);
        b.store(y, far(-1) + i * 256, sum);
        let row = b.load_index("row", ids, n * whole + -whole);
        let a = b.load(Type::f32(8), x, row * stride + i * 64 + 32);
        b.store(y, row * -stride + none * stride + i * 256 + 32, a);
        // This loop is compiled as a body after a test. The next one is a loop whose pointers
        // advance by the stride.
        b.for_each("j", once, |b, j| {
            let a = b.load(Type::i8(16), x, j * stride + i * 64 + 1);
            b.store(y, j * stride + i * 256 + 64, a);
        });
        let zero = b.splat_int(Type::i32(8), 0);
        let counted = b.for_carry("k", once, &[zero], |b, k, carried| {
            let a = b.load(Type::i32(8), x, k * stride + far(1) + i * 64);
            b.store(y, k * -stride + i * 256 + 128, a);
            vec![b.iadd(carried[0], a)]
        });
        b.store(y, i * 256 + 160, counted[0]);
    });
    // These results are stored as values instead of used as addresses, so that every bit is
    // visible.
    let value = b.index(n * constant + (1 - constant));
    b.store(z, 0, value);
    let value = b.index(n * -stride + stride);
    b.store(z, 4, value);
    b.finish()
}

#[test]
fn strides_and_constants_up_to_the_limit_are_computed_exactly() {
    let kernels: Vec<Kernel> = STRIDES.iter().flat_map(|&stride| [cancelling(stride), cancelling(-stride)]).collect();
    let mut targets = targets();
    targets.extend([Target::AMX, Target::PORTABLE]);
    for target in targets {
        let engine = Engine::new(&kernels, target);
        for (number, kernel) in kernels.iter().enumerate() {
            let mut random = Random::new(number as u64);
            let sizes = [4, 64 * ITEMS as usize, 256 * ITEMS as usize, 8];
            let mut buffers: Vec<Vec<u8>> = sizes.iter().map(|&size| random.bytes(size)).collect();
            buffers[0].fill(0);
            for &guard in engine.guards() {
                for m in [0, 1, ITEMS] {
                    let dims = [1, m, 0, 1];
                    let (mut right, mut got) = (buffers.clone(), buffers.clone());
                    interpret::run(kernel, &dims, &mut right).unwrap();
                    engine.run(number, kernel, &dims, &mut got, guard);
                    let stride = STRIDES[number / 2];
                    assert!(right == got, "{}, stride {stride}, dims {dims:?}", target.name());
                }
            }
        }
    }
}

/// Checks reads of rows whose distance exceeds 31 bits, by a loop variable and by an index value.
#[test]
fn rows_beyond_31_bit_offsets_are_read_correctly() {
    let stride = (1i64 << 31) + 64;
    let mut b = KernelBuilder::new("apart");
    let n = b.dim("n", 1, 1 << 20);
    let ids = b.buffer("ids", BufferKind::Index { below: n.into() }, n * 4);
    let (x, y) = (b.read("x", n * stride + (64 - stride)), b.write("y", n * 64));
    b.for_each("i", n, |b, i| {
        let row = b.load_index("row", ids, i * 4);
        let a = b.load(Type::i32(8), x, i * stride);
        b.store(y, i * 64, a);
        let c = b.load(Type::i32(8), x, row * stride + 32);
        let c = b.same(Op::IAdd, &[c, a]);
        b.store(y, i * 64 + 32, c);
    });
    let kernel = b.finish();
    // Pages of this large buffer that are not touched take no memory.
    let mut x = vec![0u8; stride as usize + 64];
    let mut random = Random::new(7);
    for row in [0, stride as usize] {
        x[row..row + 64].copy_from_slice(&random.bytes(64));
    }
    let ids = [1u32, 0].iter().flat_map(|id| id.to_le_bytes()).collect();
    let mut buffers = vec![ids, x, vec![0; 128]];
    interpret::run(&kernel, &[2], &mut buffers).unwrap();
    let right = std::mem::replace(&mut buffers[2], vec![0; 128]);
    for target in [Target::AVX2, Target::PORTABLE] {
        let module = match Module::compile(std::slice::from_ref(&kernel), target) {
            Err(CodegenError::MissingFeatures { .. }) => {
                println!("NOT RUN: this CPU lacks features of target {}", target.name());
                continue;
            }
            module => module.unwrap(),
        };
        buffers[2].fill(0);
        module.run_checked(0, &[2], &mut buffers).unwrap();
        assert_eq!(buffers[2], right, "{}", target.name());
    }
}
