//! Checks that hot code uses AVX-512: broadcast memory operands, masks, ternary logic, dot products
//! that add, and 32 registers.

use ixc_codegen::x64::listing;
use ixc_ir::kernel::{Kernel, KernelBuilder, Op, Type, ValueId};
use ixc_targets::Target;

use super::quality::{agree, compile_for};

fn target(name: &str) -> Target {
    Target::from_name(name).unwrap_or_else(|| panic!("no target {name}"))
}

/// Compiles and runs a kernel, and returns its listing. There must be no spill, and no move in
/// innermost loops.
fn clean(kernel: &Kernel, target: Target) -> String {
    let compiled = compile_for(kernel, target);
    let stats = compiled.stats;
    assert_eq!((stats.vector_spills, stats.gpr_spills, stats.moves_in_innermost_loops), (0, 0, 0), "{}", kernel.name);
    agree(std::slice::from_ref(kernel), target);
    listing::text(&compiled, kernel)
}

/// Returns the number of lines that contain all of the given substrings.
fn lines(text: &str, parts: &[&str]) -> usize {
    text.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count()
}

/// Returns a kernel of fused multiply-adds with a register tile of 14 x 2 sums.
fn fma_tile() -> Kernel {
    let mut b = KernelBuilder::new("fma_tile_z");
    let (n, ty) = (b.dim("n", 0, 64), Type::f32(16));
    let (w, x, y) = (b.read("w", n * 128), b.read("x", n * 56), b.write("y", 28 * 64));
    let zero = b.splat_f32(16, 0.0);
    let sums = b.for_carry("k", n, &[zero; 28], |b, k, sums| {
        let columns = [0, 64].map(|at| b.load(ty, w, k * 128 + at));
        let mut next = Vec::new();
        for row in 0..14 {
            let a = b.load_splat(ty, x, k * 56 + row * 4);
            next.extend(columns.iter().enumerate().map(|(j, &c)| b.fma(a, c, sums[row as usize * 2 + j])));
        }
        next
    });
    for (i, sum) in sums.into_iter().enumerate() {
        b.store(y, i as i64 * 64, sum);
    }
    b.finish()
}

#[test]
fn fma_tile_uses_embedded_broadcasts() {
    let text = clean(&fma_tile(), Target::AVX512);
    assert_eq!(lines(&text, &["vfmadd231ps zmm", "{1to16}"]), 28, "{text}");
    assert_eq!(lines(&text, &["vbroadcast"]), 0, "{text}");
}

#[test]
fn broadcasts_are_folded_for_at_most_two_uses() {
    let kernel = |uses: usize| {
        let mut b = KernelBuilder::new("equal_lanes");
        let (n, ty) = (b.dim("n", 0, 64), Type::i32(16));
        let (x, y) = (b.read("x", n * 4 + 64), b.write("y", n * 64));
        b.for_each("i", n, |b, i| {
            let mut v = b.load(ty, x, 0);
            let a = b.load_splat(ty, x, i * 4);
            for _ in 0..uses {
                let doubled = b.iadd(v, v);
                v = b.same(Op::IMax, &[doubled, a]);
            }
            b.store(y, i * 64, v);
        });
        b.finish()
    };
    for uses in 1..4 {
        let text = clean(&kernel(uses), Target::AVX512);
        let folded = if uses <= 2 { uses } else { 0 };
        assert_eq!(lines(&text, &["vpmaxsd zmm", "{1to16}"]), folded, "{text}");
        assert_eq!(lines(&text, &["vpbroadcastd"]), usize::from(folded == 0), "{text}");
    }
}

#[test]
fn store_prevents_folding_of_an_earlier_broadcast() {
    let mut b = KernelBuilder::new("store_between");
    let (n, ty) = (b.dim("n", 0, 64), Type::i32(16));
    let (x, y) = (b.read("x", 64), b.buffer("y", ixc_ir::kernel::BufferKind::ReadWrite, n * 4 + 64));
    b.for_each("i", n, |b, i| {
        let a = b.load_splat(ty, y, i * 4);
        let v = b.load(ty, x, 0);
        b.store(y, i * 4, v);
        let sum = b.iadd(a, v);
        b.store(y, i * 4, sum);
    });
    let text = clean(&b.finish(), Target::AVX512);
    assert_eq!(lines(&text, &["vpbroadcastd zmm"]), 1, "{text}");
}

/// Returns a kernel that applies `f` to one vector per step and stores the result.
fn map(name: &str, ty: Type, f: impl Fn(&mut KernelBuilder, [ValueId; 3]) -> ValueId) -> Kernel {
    let mut b = KernelBuilder::new(name);
    let (n, bytes) = (b.dim("n", 0, 64), i64::from(ty.bytes()));
    let inputs = ["p", "q", "r"].map(|name| b.read(name, n * bytes));
    let y = b.write("y", n * bytes);
    b.for_each("i", n, |b, i| {
        let values = inputs.map(|x| b.load(ty, x, i * bytes));
        let v = f(b, values);
        b.store(y, i * bytes, v);
    });
    b.finish()
}

#[test]
fn bitwise_op_pairs_become_vpternlog() {
    for lanes in [16, 32, 64] {
        let kernel = map("field", Type::i8(lanes), |b, [p, q, r]| {
            let mask = b.splat_int(Type::i8(lanes), 0x30);
            let low = b.same(Op::And, &[p, mask]);
            let both = b.same(Op::Or, &[low, q]);
            b.same(Op::Xor, &[both, r])
        });
        let text = clean(&kernel, Target::AVX512);
        assert_eq!(lines(&text, &["vpternlogd"]), 1, "{text}");
        assert_eq!(lines(&text, &["vpand"]) + lines(&text, &["vpor"]) + lines(&text, &["vpxor"]), 1, "{text}");
    }
}

#[test]
fn comparisons_become_masks_and_selects_are_masked() {
    for lanes in [4, 8, 16] {
        let kernel = map("positive", Type::f32(lanes), |b, [p, q, r]| {
            let mask = b.op(Op::CmpLtF, Type::i32(lanes), &[p, q]);
            let least = b.op(Op::Select, Type::f32(lanes), &[mask, p, r]);
            b.op(Op::Select, Type::f32(lanes), &[mask, q, least])
        });
        let text = clean(&kernel, Target::AVX512);
        assert_eq!((lines(&text, &["vcmpltps k"]) + lines(&text, &["vcmplt_oqps k"])), 2, "{text}");
        assert_eq!((lines(&text, &["vblendmps"]), lines(&text, &["vpmovm2d"])), (2, 0), "{text}");
        // If the mask is a vector, the selection is one instruction, too.
        let kernel = map("picked", Type::i32(lanes), |b, [p, q, r]| {
            let mask = b.op(Op::CmpGt, Type::i32(lanes), &[p, q]);
            let none = b.op(Op::CmpEq, Type::i32(lanes), &[q, r]);
            let mask = b.same(Op::And, &[mask, none]);
            b.op(Op::Select, Type::i32(lanes), &[mask, p, r])
        });
        let text = clean(&kernel, Target::AVX512);
        assert_eq!((lines(&text, &["vpternlogd"]), lines(&text, &["vblendm"])), (1, 0), "{text}");
    }
}

#[test]
fn vnni_targets_accumulate_word_products_directly() {
    let mut b = KernelBuilder::new("words");
    let n = b.dim("n", 0, 64);
    let (x, w, y) = (b.read("x", n * 4), b.read("w", n * 64), b.write("y", 64));
    let zero = b.splat_int(Type::i32(16), 0);
    let sums = b.for_carry("k", n, &[zero], |b, k, sums| {
        let w = b.load(Type::i16(32), w, k * 64);
        let x = b.load_splat(Type::i32(16), x, k * 4);
        let x = b.bitcast(Type::i16(32), x);
        let p = b.op(Op::Dot2S16, Type::i32(16), &[x, w]);
        vec![b.iadd(sums[0], p)]
    });
    b.store(y, 0, sums[0]);
    let kernel = b.finish();
    let text = clean(&kernel, target("icelake"));
    assert_eq!((lines(&text, &["vpdpwssd zmm", "{1to16}"]), lines(&text, &["vpaddd"])), (1, 0), "{text}");
    let text = clean(&kernel, Target::AVX512);
    assert_eq!((lines(&text, &["vpmaddwd"]), lines(&text, &["vpaddd"])), (1, 1), "{text}");
}

/// Returns a product of 16 weight rows with `tokens` rows of activations: a lane is a weight row,
/// and each step takes four bytes of K.
fn dot4_tile(lanes: u16, tokens: i64) -> Kernel {
    let mut b = KernelBuilder::new(format!("dot4_tile_{lanes}_{tokens}"));
    let (ty, bytes) = (Type::i32(lanes), 4 * i64::from(lanes));
    let n = b.dim("n", 0, 64);
    let (w, x) = (b.read("w", n * (4 * bytes)), b.read("x", n * (16 * tokens)));
    let y = b.write("y", tokens * bytes);
    let zero = b.splat_int(ty, 0);
    let sums = b.for_carry("k", n, &vec![zero; tokens as usize], |b, k, sums| {
        let mut sums = sums.to_vec();
        for step in 0..4 {
            let w = b.load(Type::i8(4 * lanes), w, k * (4 * bytes) + step * bytes);
            for (token, sum) in (0..).zip(&mut sums) {
                let x = b.load_splat(ty, x, k * (16 * tokens) + (token * 16 + step * 4));
                let x = b.bitcast(Type::i8(4 * lanes), x);
                *sum = b.op(Op::Dot4U8S8, ty, &[*sum, w, x]);
            }
        }
        sums
    });
    for (token, sum) in (0..).zip(sums) {
        b.store(y, token * bytes, sum);
    }
    b.finish()
}

#[test]
fn byte_products_use_one_instruction_with_broadcast() {
    for tokens in [6, 8, 12] {
        for name in ["icelake", "zen4", "zen5", "sapphire-rapids"] {
            for (lanes, operand) in [(16, "{1to16}"), (8, "{1to8}")] {
                let text = clean(&dot4_tile(lanes, tokens), target(name));
                assert_eq!(lines(&text, &["vpdpbusd", operand]), 4 * tokens as usize, "{text}");
                assert_eq!((lines(&text, &["vpdpbusd"]), lines(&text, &["vpbroadcast"])), (4 * tokens as usize, 0));
                assert_eq!(lines(&text, &["vpadd"]), 0, "{text}");
                assert_eq!(lines(&text, &["vmovdqu"]), 4 + tokens as usize, "{text}");
            }
        }
    }
    // `alder-lake` has only VEX, which has no broadcast operands and only 16 registers.
    let text = clean(&dot4_tile(8, 8), target("alder-lake"));
    assert_eq!((lines(&text, &["vpdpbusd ymm"]), lines(&text, &["vpbroadcastd ymm"])), (32, 32), "{text}");
    // Targets without a dot-product instruction must not saturate either.
    for name in ["avx2", "avx512"] {
        let text = clean(&dot4_tile(8, 2), target(name));
        assert_eq!((lines(&text, &["vpmaddwd"]), lines(&text, &["vpmaddubsw"])), (16, 0), "{text}");
    }
}

#[test]
fn weights_shared_by_columns_keep_embedded_broadcasts() {
    // Two vectors of weight rows by 12 tokens need 24 sums, which leaves no register for
    // activations.
    let mut b = KernelBuilder::new("dot4_two");
    let (ty, n) = (Type::i32(16), b.dim("n", 0, 64));
    let (w, x, y) = (b.read("w", n * 128), b.read("x", n * 48), b.write("y", 24 * 64));
    let zero = b.splat_int(ty, 0);
    let sums = b.for_carry("k", n, &[zero; 24], |b, k, sums| {
        let w = [0, 64].map(|at| b.load(Type::i8(64), w, k * 128 + at));
        let mut next = Vec::new();
        for token in 0..12 {
            let x = b.load_splat(ty, x, k * 48 + token * 4);
            let x = b.bitcast(Type::i8(64), x);
            for (row, &w) in w.iter().enumerate() {
                next.push(b.op(Op::Dot4U8S8, ty, &[sums[token as usize * 2 + row], w, x]));
            }
        }
        next
    });
    for (i, sum) in (0..).zip(sums) {
        b.store(y, i * 64, sum);
    }
    let text = clean(&b.finish(), target("zen4"));
    assert_eq!((lines(&text, &["vpdpbusd zmm", "{1to16}"]), lines(&text, &["vpbroadcastd"])), (24, 0), "{text}");
}

#[test]
fn bf16_conversion_uses_native_instruction_if_present() {
    let mut b = KernelBuilder::new("bf16");
    let (n, ty) = (b.dim("n", 0, 64), Type::f32(16));
    let (x, y) = (b.read("x", n * 64), b.write("y", n * 160));
    b.for_each("i", n, |b, i| {
        let v = b.load(ty, x, i * 64);
        let half = b.op(Op::ToBf16, Type::bf16(16), &[v]);
        b.store(y, i * 160, half);
        let back = b.op(Op::Bf16ToF32, ty, &[half]);
        let pairs = b.op(Op::ToBf16Pairs, Type::bf16(32), &[v, back]);
        b.store(y, i * 160 + 64, pairs);
    });
    let text = clean(&b.finish(), target("zen4"));
    for part in ["vcvtneps2bf16", "vcvtne2ps2bf16", "vpermw", "vpmovzxwd", "vpslld"] {
        assert_eq!(lines(&text, &[part]), 1, "{part}: {text}");
    }
    assert_eq!(lines(&text, &["vp"]), 3, "{text}");
}
