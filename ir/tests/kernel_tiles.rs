//! Tests of tiles: results of tile ops on asymmetric operands, the verifier's proofs of their
//! accesses, and which ops accept tiles.

use std::collections::BTreeSet;

use ixc_ir::kernel::interpret::{self, InterpretError};
use ixc_ir::kernel::op::{ImmKind, MAX_STRIDE, OPS};
use ixc_ir::kernel::parse::parse;
use ixc_ir::kernel::verify::{Problem, verify};
use ixc_ir::kernel::*;
use ixc_testing::random_kernels::{KernelOptions, MAX_LIVE_TILES, random_kernel_with};

/// Runs one `tile_dot_` op on tiles that are stored without gaps between rows.
fn dot(op: Op, ty: Type, acc: &[u8], (a_ty, a): (Type, &[u8]), (b_ty, b): (Type, &[u8])) -> Vec<u8> {
    let mut k = KernelBuilder::new("dot");
    let types = [ty, a_ty, b_ty];
    let [x, y, z] = [("acc", acc), ("a", a), ("b", b)].map(|(name, bytes)| k.read(name, bytes.len() as i64));
    let out = k.write("out", i64::from(ty.bytes()));
    let load = |k: &mut KernelBuilder, i: usize| k.tile_load(types[i], [x, y, z][i], 0, types[i].row_bytes().into());
    let [acc_tile, a_tile, b_tile] = [0, 1, 2].map(|i| load(&mut k, i));
    let result = k.tile_dot(op, acc_tile, a_tile, b_tile);
    k.tile_store(out, 0, result, ty.row_bytes().into());
    let kernel = k.finish();
    assert_eq!(verify(&kernel), Ok(()));
    let mut buffers = vec![acc.to_vec(), a.to_vec(), b.to_vec(), vec![0xa5; ty.bytes() as usize]];
    assert_eq!(interpret::run(&kernel, &[], &mut buffers), Ok(()));
    buffers.pop().unwrap_or_default()
}

/// Runs an op with four bytes of `a`, four of `b`, and one element of `acc`.
fn dot_one(op: Op, acc: [u8; 4], a: [u8; 4], b: [u8; 4]) -> [u8; 4] {
    let (sum, elem) = if op == Op::TileDotBf16 { (Elem::F32, Elem::Bf16) } else { (Elem::I32, Elem::I8) };
    let group = (4 / elem.bytes()) as u16;
    let of = Type::tile(elem, 1, group);
    let found = dot(op, Type::tile(sum, 1, 1), &acc, (of, &a), (of, &b));
    found.try_into().unwrap_or_default()
}

#[test]
fn tile_dot_suffixes_determine_signedness() {
    // As signed bytes, 200 is -56, 129 is -127, and 255 is -1.
    let (a, b) = ([200, 3, 255, 1], [129, 250, 2, 128]);
    let (sa, sb) = ([-56, 3, -1, 1], [-127, -6, 2, -128]);
    let (ua, ub) = ([200, 3, 255, 1], [129, 250, 2, 128]);
    let sum = |a: [i32; 4], b: [i32; 4]| 7 + (0..4).map(|i| a[i] * b[i]).sum::<i32>();
    let cases = [
        (Op::TileDotS8S8, sum(sa, sb)),
        (Op::TileDotS8U8, sum(sa, ub)),
        (Op::TileDotU8S8, sum(ua, sb)),
        (Op::TileDotU8U8, sum(ua, ub)),
    ];
    for (op, expected) in cases {
        let found = i32::from_le_bytes(dot_one(op, 7i32.to_le_bytes(), a, b));
        assert_eq!(found, expected, "{}", op.row().mnemonic);
    }
    assert_eq!(dot_one(Op::TileDotU8U8, i32::MAX.to_le_bytes(), [255, 0, 0, 0], [255, 0, 0, 0]), {
        i32::MAX.wrapping_add(255 * 255).to_le_bytes()
    });
    assert_eq!(dot_one(Op::TileDotS8S8, i32::MIN.to_le_bytes(), [255, 0, 0, 0], [1, 0, 0, 0]), i32::MAX.to_le_bytes());
}

/// Tests operands whose dimensions all differ. The test's own loops compute the expected result.
#[test]
fn tile_dot_uses_correct_rows_and_columns() {
    let (m, n, k) = (3usize, 5usize, 2usize);
    let a: Vec<u8> = (0..m * 4 * k).map(|i| (i * 37 + 11) as u8).collect();
    let b: Vec<u8> = (0..k * 4 * n).map(|i| (i * 59 + 101) as u8).collect();
    let acc: Vec<i32> = (0..m * n).map(|i| i as i32 * 1000 - 7000).collect();
    let ty = Type::tile(Elem::I32, m as u8, n as u16);
    let (a_ty, b_ty) = (Type::tile(Elem::I8, m as u8, 4 * k as u16), Type::tile(Elem::I8, k as u8, 4 * n as u16));
    let acc_bytes: Vec<u8> = acc.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut expected = acc.clone();
    for depth in 0..4 * k {
        for column in 0..n {
            // The second factor is stored in groups of four consecutive rows of its matrix.
            let b = i32::from(b[(depth / 4) * 4 * n + 4 * column + depth % 4] as i8);
            for row in 0..m {
                expected[row * n + column] += i32::from(a[row * 4 * k + depth]) * b;
            }
        }
    }
    let found = dot(Op::TileDotU8S8, ty, &acc_bytes, (a_ty, &a), (b_ty, &b));
    let found: Vec<i32> = found.as_chunks().0.iter().map(|x| i32::from_le_bytes(*x)).collect();
    assert_eq!(found, expected);
}

#[test]
fn bf16_tile_dot_uses_correct_rows_and_columns() {
    let (m, n, k) = (2usize, 3usize, 4usize);
    // These integers are small, so they are exact in bf16, and all their sums are exact.
    let bf16 = |x: i32| ((x as f32).to_bits() >> 16) as u16;
    let a: Vec<i32> = (0..m * 2 * k).map(|i| (i as i32 * 7) % 23 - 9).collect();
    let b: Vec<i32> = (0..k * 2 * n).map(|i| (i as i32 * 5) % 19 - 11).collect();
    let bytes = |x: &[i32]| -> Vec<u8> { x.iter().flat_map(|x| bf16(*x).to_le_bytes()).collect() };
    let acc: Vec<u8> = (0..m * n).flat_map(|i| (i as f32 * 100.0).to_le_bytes()).collect();
    let (a_ty, b_ty) = (Type::tile(Elem::Bf16, m as u8, 2 * k as u16), Type::tile(Elem::Bf16, k as u8, 2 * n as u16));
    let ty = Type::tile(Elem::F32, m as u8, n as u16);
    let found = dot(Op::TileDotBf16, ty, &acc, (a_ty, &bytes(&a)), (b_ty, &bytes(&b)));
    for row in 0..m {
        for column in 0..n {
            let dot: i32 = (0..2 * k).map(|d| a[row * 2 * k + d] * b[(d / 2) * 2 * n + 2 * column + d % 2]).sum();
            let expected = (row * n + column) as f32 * 100.0 + dot as f32;
            let at = 4 * (row * n + column);
            assert_eq!(found[at..at + 4], expected.to_le_bytes(), "row {row}, column {column}");
        }
    }
}

fn pair(even: u16, odd: u16) -> [u8; 4] {
    (u32::from(odd) << 16 | u32::from(even)).to_le_bytes()
}

fn bf16_dot_one(acc: u32, a: (u16, u16), b: (u16, u16)) -> u32 {
    u32::from_le_bytes(dot_one(Op::TileDotBf16, acc.to_le_bytes(), pair(a.0, a.1), pair(b.0, b.1)))
}

#[test]
fn bf16_tile_dot_sums_in_order_and_flushes_denormals() {
    const ONE: u16 = 0x3f80;
    let bits = f32::to_bits;
    // The sum (even + odd) is rounded before `acc` is added: 2^24 + 1 becomes 2^24. A sum from left
    // to right would be 1.
    let (big, minus_big) = (0x4b80, 0xcb80); // 2^24, -2^24
    assert_eq!(bf16_dot_one(bits(-16_777_216.0), (big, ONE), (ONE, ONE)), bits(0.0));
    assert_eq!(bf16_dot_one(bits(1.0), (big, minus_big), (ONE, ONE)), bits(1.0));
    // A denormal factor, a denormal `acc`, and a product below the least normal number each count
    // as zero with their sign.
    assert_eq!(bf16_dot_one(0, (0x007f, 0), (0x7f00, 0)), 0);
    assert_eq!(bf16_dot_one(0, (0x7f00, 0), (0x007f, 0)), 0);
    assert_eq!(bf16_dot_one(0x007f_ffff, (ONE, 0), (ONE, 0)), bits(1.0));
    assert_eq!(bf16_dot_one(0x0040_0000, (0, 0), (0, 0)), 0);
    assert_eq!(bf16_dot_one(0x8040_0000, (0, 0), (0, 0)), 0, "-0 + +0 is +0");
    assert_eq!(bf16_dot_one(bits(0.0), (0x0080, 0), (0x3f00, 0)), 0, "2^-126 / 2 is denormal");
    // Both partial sums start at +0, so the result is never -0.
    assert_eq!(bf16_dot_one(0x8000_0000, (0x8000, 0x8000), (ONE, ONE)), 0);
    // The difference of two normal numbers is denormal, and becomes zero.
    assert_eq!(bf16_dot_one(0x8080_0000, (0x00c0, 0), (ONE, 0)), 0);
    // Infinity and NaN propagate as in IEEE arithmetic.
    assert_eq!(bf16_dot_one(0, (0x7f80, 0), (0xbf80, 0)), bits(f32::NEG_INFINITY));
    assert!(f32::from_bits(bf16_dot_one(0, (0x7f80, 0xff80), (ONE, ONE))).is_nan());
    assert!(f32::from_bits(bf16_dot_one(0, (0x7f80, 0), (0, 0))).is_nan());
    assert!(f32::from_bits(bf16_dot_one(bits(1.0), (0x7f81, 0), (ONE, 0))).is_nan());
}

/// Tests a product with two steps of k. Each fused multiply-add rounds once, and even and odd
/// products have separate sums.
#[test]
fn bf16_tile_dot_sums_even_and_odd_products_separately() {
    let (a_ty, b_ty) = (Type::tile(Elem::Bf16, 1, 4), Type::tile(Elem::Bf16, 2, 2));
    let ty = Type::tile(Elem::F32, 1, 1);
    let tile = |x: [u16; 4]| -> Vec<u8> { x.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let run = |a: [u16; 4], b: [u16; 4]| {
        let found = dot(Op::TileDotBf16, ty, &[0; 4], (a_ty, &tile(a)), (b_ty, &tile(b)));
        f32::from_le_bytes(found.try_into().unwrap_or_default())
    };
    const ONE: u16 = 0x3f80;
    // Operands: a[0][2k], a[0][2k+1]; b[k][0], b[k][1]. Even products: 2^24, then -2^24. Odd
    // products: 1, then 1. A single sum of all products would lose the ones.
    assert_eq!(run([0x4b80, ONE, 0xcb80, ONE], [ONE, ONE, ONE, ONE]), 2.0);
    // Even products: 2^24, then 1, which rounding loses. Odd products: -2^24, then 0.
    assert_eq!(run([0x4b80, 0xcb80, ONE, 0], [ONE, ONE, ONE, ONE]), 0.0);
    // (1 + 2^-7)^2 has 15 bits. Its sum with -2^23 is rounded only once.
    assert_eq!(run([0xcb00, 0, 0x3f81, 0], [ONE, 0, 0x3f81, 0]), (1.0078125f32).mul_add(1.0078125, -8_388_608.0));
}

#[test]
fn strided_accesses_touch_exactly_their_rows() {
    let ty = Type::tile(Elem::I8, 3, 4);
    let mut k = KernelBuilder::new("copy");
    let (x, y) = (k.read("x", 19), k.write("y", 27));
    let tile = k.tile_load(ty, x, 1, 7);
    k.tile_store(y, 2, tile, 10);
    let same = k.tile_load(ty, x, 0, 0);
    k.tile_store(y, 14, same, 4);
    let kernel = k.finish();
    assert_eq!(verify(&kernel), Ok(()));
    let mut buffers = vec![(0..19).collect(), vec![0xee; 27]];
    assert_eq!(interpret::run(&kernel, &[], &mut buffers), Ok(()));
    let e = 0xee;
    let expected = [e, e, 1, 2, 3, 4, e, e, e, e, e, e, 8, 9, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, e];
    assert_eq!(buffers[1], expected);
}

#[test]
fn verifier_checks_the_whole_extent_of_tile_accesses() {
    let kernel = |load: bool, size: i64, offset: i64, stride: i64| {
        let ty = Type::tile(Elem::Bf16, 16, 32);
        let mut k = KernelBuilder::new("k");
        let n = k.dim("n", 0, 4);
        let x = k.buffer("x", BufferKind::ReadWrite, n * 1024 + (size - 1024));
        k.for_each("i", n, |k, i| {
            if load {
                k.tile_load(ty, x, i * 1024 + offset, stride);
            } else {
                let zero = k.tile_zero(Type::tile(Elem::F32, 16, 16));
                k.tile_store(x, i * 1024 + offset, zero, stride);
            }
        });
        k.finish()
    };
    for load in [true, false] {
        let problem = |size, offset, stride| verify(&kernel(load, size, offset, stride)).err().map(|e| e.problem);
        let after = |excess| Some(Problem::AfterEnd { buffer: "x".into(), excess });
        assert_eq!(problem(15 * 100 + 64, 0, 100), None);
        assert_eq!(problem(15 * 100 + 63, 0, 100), after(1));
        assert_eq!(problem(15 * 100 + 64, 3, 100), after(3));
        assert_eq!(problem(1024, 0, 64), None);
        assert_eq!(problem(1024, 0, 65), after(15));
        assert_eq!(problem(1024, -1, 64), Some(Problem::BeforeStart { buffer: "x".into(), least: -1 }));
        assert_eq!(problem(1024, 0, MAX_STRIDE), after(15 * i128::from(MAX_STRIDE) + 64 - 1024));
        for stride in [-1, MAX_STRIDE + 1, i64::MIN, i64::MAX] {
            assert!(matches!(problem(1 << 40, 0, stride), Some(Problem::Types { .. })), "{stride}");
        }
        // Loads may have overlapping rows; stores may not.
        assert_eq!(problem(64, 0, 0).is_none(), load);
        assert_eq!(problem(1024, 0, 63).is_none(), load);
        // The interpreter checks bounds itself, without the verifier.
        for (size, stride, fine) in [(15 * 100 + 64, 100, true), (15 * 100 + 63, 100, false), (1024, MAX_STRIDE, false)]
        {
            let mut buffers = [vec![0; size as usize]];
            let result = interpret::run(&kernel(load, size, 0, stride), &[1], &mut buffers);
            let as_expected =
                if fine { result == Ok(()) } else { matches!(result, Err(InterpretError::OutOfBounds { .. })) };
            assert!(as_expected, "{size} {stride}: {result:?}");
        }
    }
}

#[test]
fn tiles_obey_the_kind_of_a_buffer() {
    let ty = Type::tile(Elem::I32, 1, 1);
    let forbidden = |kind: BufferKind, load: bool| {
        let mut k = KernelBuilder::new("k");
        let x = k.buffer("x", kind, 64);
        let zero = k.tile_zero(ty);
        if load {
            k.tile_load(ty, x, 0, 4);
        } else {
            k.tile_store(x, 0, zero, 4);
        }
        let kernel = k.finish();
        let verified = match verify(&kernel).map_err(|e| e.problem) {
            Ok(()) => true,
            Err(Problem::Forbidden { .. }) => false,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(interpret::run(&kernel, &[], &mut [vec![0; 64]]).is_ok(), verified);
        !verified
    };
    assert!(forbidden(BufferKind::Write, true) && forbidden(BufferKind::Read, false));
    assert!(forbidden(BufferKind::Index { below: 1.into() }, true));
    assert!(!forbidden(BufferKind::Read, true) && !forbidden(BufferKind::Write, false));
}

#[test]
fn tiles_are_valid_up_to_16_rows_of_64_bytes() {
    let valid = |elem, rows, lanes| Type::tile(elem, rows, lanes).is_valid();
    assert!(valid(Elem::I8, 16, 64) && valid(Elem::Bf16, 1, 2) && valid(Elem::F32, 7, 3) && valid(Elem::I8, 5, 12));
    assert!(!valid(Elem::I8, 17, 64) && !valid(Elem::I8, 16, 65) && !valid(Elem::I8, 16, 68) && !valid(Elem::I8, 1, 6));
    assert!(!valid(Elem::I8, 1, 0) && !valid(Elem::F32, 255, u16::MAX) && !valid(Elem::Bf16, 16, 33));
    assert_eq!((Type::tile(Elem::Bf16, 3, 10).bytes(), Type::tile(Elem::Bf16, 3, 10).row_bytes()), (60, 20));
    assert_eq!(Type::tile(Elem::I8, 16, 64).to_string(), "tile<16x64xi8>");
    assert_eq!(Type::tile(Elem::F32, 1, 1).extent(MAX_STRIDE), Some(4));
    assert!(!Type::bf16(3).is_valid() && Type::bf16(32).is_valid() && !Type::bf16(64).is_valid());
}

/// Tries tiles as every operand and result of every op. Vector ops must reject tiles, and tile ops
/// must reject vectors.
#[test]
fn vector_ops_refuse_tiles_and_tile_ops_vectors() {
    let tiles = [
        Type::tile(Elem::I8, 1, 4),
        Type::tile(Elem::I32, 1, 1),
        Type::tile(Elem::F32, 1, 1),
        Type::tile(Elem::Bf16, 1, 2),
        Type::tile(Elem::I8, 2, 8),
        Type::tile(Elem::I32, 2, 2),
        Type::tile(Elem::F32, 2, 2),
        Type::tile(Elem::Bf16, 2, 4),
    ];
    let vectors = [1, 4, 16].into_iter().flat_map(|lanes| Elem::ALL.map(|elem| Type::new(elem, lanes)));
    let types: Vec<Type> =
        tiles.into_iter().chain(vectors.filter(|ty| ty.is_valid())).chain([Type::f32(2), Type::i16(2)]).collect();
    for row in OPS {
        let mut accepted = 0;
        let mut operands = vec![Vec::new()];
        for _ in 0..row.operands {
            operands = operands
                .into_iter()
                .flat_map(|o: Vec<Type>| types.iter().map(move |ty| [&o[..], &[*ty]].concat()))
                .collect();
        }
        for o in &operands {
            for &ty in &types {
                let imms: &[i64] = if row.imm == ImmKind::Int { &[0, 1, 4, 8] } else { &[0] };
                if imms.iter().all(|&imm| (row.rule)(o, ty, imm).is_err()) {
                    continue;
                }
                accepted += 1;
                let all_alike = o.iter().chain([&ty]).all(|ty| ty.is_tile() == row.op.takes_tiles());
                assert!(all_alike, "{} took {o:?} and gave {ty}", row.mnemonic);
            }
        }
        assert!(accepted > 0, "{} has no types", row.mnemonic);
    }
}

#[test]
fn tiles_may_be_carried() {
    let text = "kernel sum where %n in 0..=9 {
        buffer %a : read 8*%n
        buffer %b : read 12*%n
        buffer %y : write 24
        %zero = tile_zero tile<2x3xi32>
        %sum = for %i in 0..%n carry(%acc = %zero) {
          %x = tile_load tile<2x4xi8> %a[8*%i], 4
          %w = tile_load tile<1x12xi8> %b[12*%i], 12
          %next = tile_dot_u8s8 tile<2x3xi32> %acc, %x, %w
          yield %next
        }
        tile_store tile<2x3xi32> %y[0], %sum, 12
      }";
    let kernel = parse(text).expect("reads");
    assert_eq!(parse(&kernel.to_string()).as_ref(), Ok(&kernel));
    let (a, b): (Vec<u8>, Vec<u8>) = ((0..16).map(|i| i * 16).collect(), (0..24).map(|i| 240 - i * 10).collect());
    let mut expected = vec![0i32; 6];
    for i in 0..2 {
        for (at, sum) in expected.iter_mut().enumerate() {
            let (row, column) = (at / 3, at % 3);
            let product = |j: usize| i32::from(a[8 * i + 4 * row + j]) * i32::from(b[12 * i + 4 * column + j] as i8);
            *sum += (0..4).map(product).sum::<i32>();
        }
    }
    let mut buffers = vec![a, b, vec![0; 24]];
    assert_eq!(interpret::run(&kernel, &[2], &mut buffers), Ok(()));
    let found: Vec<i32> = buffers[2].as_chunks().0.iter().map(|x| i32::from_le_bytes(*x)).collect();
    assert_eq!(found, expected);
    assert_eq!(interpret::run(&kernel, &[0], &mut buffers), Ok(()));
    assert_eq!(buffers[2], vec![0; 24], "a loop may run no time");
}

#[test]
fn random_kernels_with_tiles_read_back_the_same() {
    for seed in 0..200 {
        let kernel = random_kernel_with(seed, KernelOptions { widest: 64, tiles: true, has: |_| true });
        assert_eq!(parse(&kernel.to_string()).as_ref(), Ok(&kernel), "seed {seed}");
    }
}

/// Tests a guarantee of `random::tiles`: no tile contains a NaN, so results can be compared bit by
/// bit.
#[test]
fn random_tiles_hold_no_nan() {
    let mut tiles = 0;
    for seed in 0..200 {
        let mut kernel =
            random_kernel_with(seed, KernelOptions { widest: 32, tiles: true, has: |op| op.takes_tiles() });
        // Adds a store of every float tile, each to a separate buffer.
        fn floats(body: &mut [Stmt], to: BufferId, count: &mut usize) {
            for statement in body {
                match statement {
                    Stmt::Inst(inst) if inst.op == Op::TileStore && inst.ty.elem == Elem::F32 => {
                        inst.imm = Imm::Int(inst.ty.row_bytes().into());
                        inst.address = Some(Address { buffer: to, offset: 0.into() });
                        *count += 1;
                    }
                    Stmt::For(f) => floats(&mut f.body, to, count),
                    Stmt::Inst(_) | Stmt::LoadIndex { .. } => {}
                }
            }
        }
        let to = BufferId(kernel.buffers.len() as u32);
        let size = Affine::constant(1024);
        kernel.buffers.push(Buffer { name: "floats".into(), kind: BufferKind::Write, size });
        floats(&mut kernel.body, to, &mut tiles);
        let dims = ixc_testing::random_kernels::random_dims(&kernel, seed);
        let mut buffers = ixc_testing::random_kernels::random_buffers(&kernel, &dims, seed);
        buffers[to.index()].fill(0);
        assert_eq!(interpret::run(&kernel, &dims, &mut buffers), Ok(()), "seed {seed}");
        let lanes = buffers[to.index()].as_chunks().0.iter().map(|x| f32::from_le_bytes(*x));
        let lanes: Vec<f32> = lanes.collect();
        assert!(lanes.iter().all(|x| x.is_finite()), "seed {seed} {lanes:?} {kernel}");
    }
    assert!(tiles > 200, "{tiles}");
}

/// Returns the tiles that are live before the statements. `live` are the tiles that are live after
/// them.
fn live_before(kernel: &Kernel, body: &[Stmt], mut live: BTreeSet<ValueId>, most: &mut usize) -> BTreeSet<ValueId> {
    let is_tile = |value: &ValueId| kernel.ty(*value).is_tile();
    for statement in body.iter().rev() {
        match statement {
            Stmt::Inst(inst) => {
                live.extend(inst.result.filter(is_tile));
                *most = live.len().max(*most);
                live.retain(|value| Some(*value) != inst.result);
                live.extend(inst.operands.iter().copied().filter(is_tile));
            }
            Stmt::For(f) => {
                let of = |which: fn(&Carry) -> ValueId| f.carries.iter().map(which).filter(is_tile);
                live.extend(of(|c| c.result));
                *most = live.len().max(*most);
                live.retain(|value| of(|c| c.result).all(|result| result != *value));
                // Values from outside the loop that its body uses are live during all iterations.
                loop {
                    let after = live.iter().copied().chain(of(|c| c.next)).collect();
                    let mut inside = live_before(kernel, &f.body, after, most);
                    inside.extend(of(|c| c.inner));
                    *most = inside.len().max(*most);
                    inside.retain(|value| of(|c| c.inner).all(|inner| inner != *value));
                    if inside.is_subset(&live) {
                        break;
                    }
                    live.extend(inside);
                }
                live.extend(of(|c| c.init));
            }
            Stmt::LoadIndex { .. } => {}
        }
        *most = live.len().max(*most);
    }
    live
}

#[test]
fn random_kernels_limit_live_tiles_and_shapes() {
    let (mut most, mut total) = (0, 0);
    for seed in 0..400 {
        // Kernels with only tile ops, and kernels with all ops.
        let has = if seed % 2 == 0 { |op: Op| op.takes_tiles() } else { |_: Op| true };
        let kernel = random_kernel_with(seed, KernelOptions { widest: 32, tiles: true, has });
        let mut of_kernel = 0;
        let before = live_before(&kernel, &kernel.body, BTreeSet::new(), &mut of_kernel);
        assert!(before.is_empty());
        assert!(of_kernel <= MAX_LIVE_TILES, "seed {seed}: {of_kernel} tiles\n{kernel}");
        most = most.max(of_kernel);
        total += of_kernel;
        let tiles = kernel.values.iter().filter(|ty| ty.is_tile());
        let shapes: BTreeSet<_> = tiles.map(|ty| (ty.rows, ty.row_bytes())).collect();
        assert!(shapes.len() <= 3, "seed {seed}: {shapes:?}");
    }
    assert!(most + 1 >= MAX_LIVE_TILES && total > 800, "{most} {total}");
}
