//! Checks that generated kernels give the same bits as on the `portable` target, and have no spills
//! in hot loops.

use ixc_ir::format::{FORMATS, Format};
use ixc_ir::graph::attrs::{Activation, RopeStyle};
use ixc_ir::kernel::{Atom, BufferKind, Kernel};
use ixc_kernels::{
    AddBias, Attention, AttentionCombine, AttentionPart, Bits, Cache, Combine, Elementwise, Embed, Gather, Heads,
    KernelSpec, Linear, Map, MatmulStrategy, Pack, Quantise, RmsNorm, RmsNormPiece, RopeAppend, RopeHeads, Route,
    Score, Scores, Softmax, SumSquares, Swiglu, generate,
};
use ixc_targets::Target;

use super::native::{Engine, Guard, targets};
use ixc_ir::random::Random;

const SEED: u64 = 0x9e17;

fn specs() -> Vec<KernelSpec> {
    let eps = Bits::from_value(1e-6);
    let mut specs: Vec<KernelSpec> =
        FORMATS.iter().filter(|row| row.rows > 1).map(|row| Pack { to: row.format }.into()).collect();
    for format in FORMATS.iter().map(|row| row.format).filter(|format| format.is_weight()) {
        if format.rows() == 1 {
            specs.push(Embed { format, rows: 5, n: 512 }.into());
        }
        for strategy in [MatmulStrategy::Gemv, MatmulStrategy::Gemm] {
            let x = format.activation();
            specs.push(
                Linear {
                    format,
                    x,
                    k: 512,
                    tile: 16,
                    n: 32,
                    bias: true,
                    residual: true,
                    strategy,
                    pace: ixc_kernels::Pace::default(),
                }
                .into(),
            );
            specs.push(
                Swiglu {
                    gate: format,
                    up: format,
                    x,
                    k: 512,
                    tile: 32,
                    n: 64,
                    out: Format::A8Small,
                    rows: 13,
                    act: Activation::Silu,
                    limit: None,
                    shift: None,
                    bend: None,
                    gate_bias: false,
                    up_bias: false,
                    strategy,
                    pace: ixc_kernels::Pace::default(),
                }
                .into(),
            );
        }
    }
    for out in [Format::F32, Format::A8Small, Format::A8Super] {
        specs.push(RmsNorm { n: 512, eps, out, plain: false }.into());
        specs.push(RmsNormPiece { n: 512, row: 8192, parts: 16, eps, out }.into());
        specs.push(Quantise { n: 512, out }.into());
    }
    for style in [RopeStyle::Norm, RopeStyle::Neox] {
        for norm in [None, Some(eps)] {
            specs.push(RopeHeads { heads: 3, d: 64, dims: 64, style, norm }.into());
            specs.push(RopeAppend { d: 64, dv: 64, dims: 64, style, norm, cache: Cache::default() }.into());
        }
    }
    for group in [1, 4] {
        let (heads, scores) = (Heads { group, d: 64, dv: 64 }, Scores::with_scale(0.125));
        specs.push(Attention { heads, scores, key_heads: 8, rows: 16 / group, cache: Cache::default() }.into());
        specs.push(AttentionPart { heads, scores, cache: Cache::default() }.into());
        specs.push(AttentionCombine { group, dv: heads.dv, parts: 16 }.into());
    }
    for score in [Score::Softmax, Score::Sigmoid] {
        specs.push(
            Route {
                experts: 16,
                top_k: 4,
                score,
                groups: 1,
                kept: 1,
                highest: false,
                bias: false,
                scales: false,
                normalise: true,
                scale: Bits::from_value(1.0),
                listed: 0,
            }
            .into(),
        );
    }
    specs.push(SumSquares { n: 512 }.into());
    specs.push(Gather { bytes: 100 }.into());
    specs.push(Combine { n: 72, slots: 4, residual: true }.into());
    for function in [Elementwise::Add, Elementwise::Mul, Elementwise::Silu] {
        specs.push(Map { function, n: 45 }.into());
    }
    specs.push(AddBias { n: 45 }.into());
    specs.push(Softmax { n: 1003 }.into());
    specs
}

fn buffers(kernel: &Kernel, dims: &[i64], random: &mut Random) -> Vec<Vec<u8>> {
    let value = |atom| match atom {
        Atom::Dim(d) => dims[d.index()],
        Atom::Var(_) => unreachable!("sizes are made of dims"),
    };
    kernel
        .buffers
        .iter()
        .map(|buffer| {
            let size = buffer.size.evaluate(value).unwrap().max(0) as usize;
            match &buffer.kind {
                BufferKind::Index { below } => {
                    let below = below.evaluate(value).unwrap() as u64;
                    (0..size / 4).flat_map(|_| ((random.bits() % below) as u32).to_le_bytes()).collect()
                }
                // Finite floats of magnitude below two, of either sign, in every float format.
                _ => random.bytes(size).iter().map(|b| b & 0xbf).collect(),
            }
        })
        .collect()
}

#[test]
fn x64_kernels_match_portable_code() {
    let specs = specs();
    let generated = targets().into_iter().map(|target| {
        let kernels = specs.iter().map(|spec| generate(spec, target).unwrap_or_else(|e| panic!("{e}")));
        (target, kernels.collect::<Vec<_>>())
    });
    let generated: Vec<(Target, Vec<Kernel>)> = generated.collect();
    // Many kernels differ only in their names on several targets. Each distinct kernel is compiled
    // once for `portable`, which takes most of the time.
    let mut distinct: Vec<Kernel> = Vec::new();
    let mut number = |kernel: Kernel| {
        distinct.iter().position(|other| *other == kernel).unwrap_or_else(|| {
            distinct.push(kernel);
            distinct.len() - 1
        })
    };
    let of_target = |(_, kernels): &(Target, Vec<Kernel>)| -> Vec<usize> {
        let renamed = kernels.iter().zip(&specs).map(|(kernel, spec)| Kernel { name: spec.name(), ..kernel.clone() });
        renamed.map(&mut number).collect()
    };
    let numbers: Vec<Vec<usize>> = generated.iter().map(of_target).collect();
    println!("{} distinct kernels of {}", distinct.len(), generated.len() * specs.len());
    let portable = Engine::new(&distinct, Target::PORTABLE);
    let pairs: Vec<_> = generated.iter().zip(&numbers).collect();
    ixc_codegen::parallel::map(&pairs, |((target, kernels), numbers)| compare(*target, kernels, &portable, numbers));
}

/// Compares the results of a target's kernels with those of `portable`. `numbers` are the kernels'
/// numbers in `portable`.
fn compare(target: Target, kernels: &[Kernel], portable: &Engine, numbers: &[usize]) {
    println!("{}, seed {SEED:#x}", target.name());
    let mut random = Random::new(SEED);
    let native = Engine::new(kernels, target);
    for (i, kernel) in kernels.iter().enumerate() {
        if let Some(compiled) = native.compiled(i) {
            let stats = compiled.stats;
            println!("{}: {stats:?}", kernel.name);
            // Kernels other than products may move values that have later uses: for example, the
            // exponential starts from a constant.
            let product = kernel.name.starts_with("gem");
            if product && !kernel.name.contains("swiglu") && kernel.name.contains("_r16_") {
                assert_eq!(stats.moves_in_innermost_loops, 0, "{}", kernel.name);
            }
            // Packing works on more vectors at once than there are registers.
            let packs = kernel.name.starts_with("pack") || product && !kernel.name.contains("_r16_");
            // Lookups with indices above eight bits need vectors for the high bits. These vectors
            // compete for registers with two scales for 32 columns (VBMI), or with products of four
            // bytes (16 registers).
            let looks_up = ["_iq2_s_", "_iq2_xs_", "_iq3_s_"].iter().any(|grid| kernel.name.contains(grid));
            assert!(stats.vector_spills == 0 || packs || looks_up, "{}", kernel.name);
        }
        for step in 0..3 {
            let dims: Vec<i64> = kernel.dims.iter().map(|d| (d.lo + step).min(d.hi)).collect();
            let (mut right, mut got) = {
                let buffers = buffers(kernel, &dims, &mut random);
                (buffers.clone(), buffers)
            };
            portable.run(numbers[i], kernel, &dims, &mut right, Guard::After);
            native.run(i, kernel, &dims, &mut got, Guard::After);
            for (b, (got, right)) in got.iter().zip(&right).enumerate() {
                let at = got.iter().zip(right).position(|(a, b)| a != b);
                assert_eq!(at, None, "{} with {dims:?}: buffer %{} differs", kernel.name, kernel.buffers[b].name);
            }
        }
    }
}
