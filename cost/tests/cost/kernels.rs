//! Tests with the loops of generated kernels.

use ixc_codegen::x64;
use ixc_cost::{self as cost, LoopReport, Report};
use ixc_ir::format::{Codec, FORMATS, Float, Format};
use ixc_ir::graph::attrs::RopeStyle;
use ixc_kernels::{
    AddBias, Attention, AttentionCombine, AttentionPart, Bits, Cache, Combine, Elementwise, Embed, Gather, Heads,
    KernelSpec, Linear, Map, MatmulStrategy, Pack, Quantise, RmsNorm, RmsNormPiece, RopeAppend, RopeHeads, Route,
    Score, Scores, Softmax, SumSquares, generate,
};
use ixc_targets::{Feature, Target};

/// Returns a matrix product with one tile of 64 weight rows.
pub fn linear(format: Format, strategy: MatmulStrategy) -> KernelSpec {
    Linear {
        format,
        x: format.activation(),
        k: 2048,
        tile: 64,
        n: 2048,
        bias: true,
        residual: true,
        strategy,
        pace: ixc_kernels::Pace::default(),
    }
    .into()
}

/// Returns the report of a kernel for a target that can compile it.
pub fn report(spec: &KernelSpec, target: Target) -> Report {
    let kernel = generate(spec, target).unwrap();
    let compiled = x64::compile(&kernel, target).unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
    let model = cost::model(target).unwrap();
    cost::analyse(&compiled.code[..compiled.code_bytes], &compiled.lines, &kernel, model)
}

/// Returns the weight formats of files, or the packed formats.
fn formats(packed: bool) -> impl Iterator<Item = Format> {
    let weights = FORMATS.iter().filter(move |row| row.format.is_weight() && row.unpacked.is_some() == packed);
    weights.map(|row| row.format)
}

fn all() -> Vec<KernelSpec> {
    let mut all = Vec::new();
    for format in formats(false) {
        all.extend([MatmulStrategy::Gemv, MatmulStrategy::Gemm].map(|strategy| linear(format, strategy)));
        all.push(Embed { format, rows: 100, n: 2048 }.into());
    }
    for out in [Format::F32, Format::A8Super, Format::A8Small] {
        all.push(RmsNorm { n: 2048, eps: Bits::from_value(1e-5), out, plain: false }.into());
        all.push(RmsNormPiece { n: 512, row: 8192, parts: 16, eps: Bits::from_value(1e-5), out }.into());
        if out != Format::F32 {
            all.push(Quantise { n: 2048, out }.into());
        }
    }
    for function in [Elementwise::Add, Elementwise::Mul, Elementwise::Silu] {
        all.push(Map { function, n: 2047 }.into());
    }
    all.push(SumSquares { n: 512 }.into());
    all.push(Softmax { n: 2047 }.into());
    all.push(AddBias { n: 2047 }.into());
    all.push(Gather { bytes: 999 }.into());
    all.push(Combine { n: 2047, slots: 8, residual: true }.into());
    let (heads, scores) = (Heads { group: 4, d: 128, dv: 128 }, Scores::with_scale(0.125));
    all.push(Attention { heads, scores, key_heads: 8, rows: 4, cache: Cache::default() }.into());
    all.push(AttentionPart { heads, scores, cache: Cache::default() }.into());
    all.push(AttentionCombine { group: heads.group, dv: heads.dv, parts: 16 }.into());
    for style in [RopeStyle::Norm, RopeStyle::Neox] {
        let norm = Some(Bits::from_value(1e-6));
        all.push(RopeHeads { heads: 8, d: 128, dims: 128, style, norm }.into());
        all.push(RopeAppend { d: 128, dv: 128, dims: 128, style, norm, cache: Cache::default() }.into());
    }
    for score in [Score::Softmax, Score::Sigmoid] {
        all.push(
            Route {
                experts: 64,
                top_k: 8,
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
    all
}

/// Returns vector products with packed weights, and the kernels that pack them.
fn packed() -> Vec<KernelSpec> {
    let of = |to| [linear(to, MatmulStrategy::Gemv), linear(to, MatmulStrategy::Gemm), Pack { to }.into()];
    formats(true).flat_map(of).collect()
}

/// Returns matrix products on tiles, if the target has tiles.
fn tiles(target: Target) -> Vec<KernelSpec> {
    let with_tiles = formats(true).filter_map(|format| Some((format, format.tile_activation()?)));
    let product = |(format, x)| {
        let (k, tile, n, strategy) = (2048, 64, 2048, MatmulStrategy::Tiles);
        Linear { format, x, k, tile, n, bias: false, residual: false, strategy, pace: ixc_kernels::Pace::default() }
            .into()
    };
    with_tiles.map(product).filter(|_| target.has(Feature::AmxTile)).collect()
}

#[test]
fn every_kernel_instruction_and_loop_is_modelled() {
    for target in Target::all().filter(|t| cost::model(*t).is_some()) {
        for spec in all().into_iter().chain(packed()).chain(tiles(target)) {
            let report = report(&spec, target);
            assert_eq!(report.unknown, [], "{} on {}", report.kernel, report.cpu);
            for l in &report.loops {
                assert!(l.statement.is_some() && l.label != "loop", "{}: {l:?}", report.kernel);
                assert!(
                    (l.body.cycles >= 1.0 || !l.repeats)
                        && l.body.tile_share <= 1.0
                        && l.body.multiply_share <= 1.0 + 1e-9
                );
            }
        }
    }
}

/// Returns the innermost loop with the most products. This is the loop that was tuned.
pub fn hot(report: &Report) -> &LoopReport {
    let products = |l: &&LoopReport| (l.body.mix.tile_dot + l.body.mix.dot + l.body.mix.fma, l.body.instructions);
    report.loops.iter().filter(|l| l.innermost && l.repeats).max_by_key(products).expect("a loop")
}

/// Returns the innermost loop with the most vector work other than products. This loop unpacks
/// weights.
pub fn unpacking(report: &Report) -> &LoopReport {
    let vector = |l: &&LoopReport| l.body.mix.vector;
    report.loops.iter().filter(|l| l.innermost && l.repeats).max_by_key(vector).expect("a loop")
}

#[test]
fn hot_loops_are_as_recorded() {
    let mut text = String::from("; The hot loop of each kernel: its instructions and its bound.\n");
    for name in ["haswell", "zen4", "sapphire-rapids"] {
        let target = Target::from_name(name).expect("a target");
        text += &format!("\n{name}\n");
        for spec in packed().into_iter().chain(tiles(target)) {
            if let KernelSpec::Linear(Linear { format, strategy, .. }) = &spec {
                let report = report(&spec, target);
                let l = hot(&report);
                let m = &l.body.mix;
                text += &format!(
                    "  {strategy:?} {format:<8} {:<22} {:>3} instructions: tile {}, dot {}, fma {}, vector {}, load {}, store {}, \
                     scalar {}; {:.2} cycles, {}\n",
                    l.label,
                    l.body.instructions,
                    m.tile_dot + m.tile_other,
                    m.dot,
                    m.fma,
                    m.vector,
                    m.load,
                    m.store,
                    m.scalar,
                    l.body.cycles,
                    l.body.bound_text()
                );
            }
        }
    }
    insta::assert_snapshot!("hot_loops", text);
}

/// Checks the share of time in which tile products of 512 rows use the tile unit, with all costs.
#[test]
fn tile_products_keep_the_tile_unit_busy() {
    for name in ["sapphire-rapids", "granite-rapids"] {
        let target = Target::from_name(name).expect("a target");
        for spec in tiles(target) {
            let KernelSpec::Linear(Linear { format, strategy, .. }) = &spec else { continue };
            let report = report(&spec, target);
            let whole = report.whole(&strategy.dim_values(512)).expect("a cost");
            println!("{report}\n{whole}");
            assert!(whole.share_drained >= 0.6, "{}: {whole}", report.kernel);
            // Number of tile products of 16 x 16 x 32 for 512 rows, 64 weight rows and 2048
            // columns. Float weights take two or three times this number. A product of bytes covers
            // twice the columns.
            let products = whole.tile_cycles / 16.0 / f64::from(32 * 4 * 64);
            let times = match format.codec() {
                _ if format.has_row_scale() => 0.5,
                Codec::Float(Float::F16) => 3.0,
                Codec::Float(_) => 2.0,
                _ => 1.0,
            };
            assert_eq!(products, times, "{}", report.kernel);
        }
    }
}
