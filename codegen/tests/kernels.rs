//! Tests of all kernels. A test row is a kernel spec and the number of rows of an item. For each
//! test row and target, the generated IR is verified. The interpreter, portable code and native
//! code must give the same bits. Kernels are also compared with their formula in f64, within the
//! bound that the comparison states. Each test prints how each target's code was run.
//!
//! A failure message contains the test row's name;
//! `cargo test -p ixc-codegen --test kernels -- NAME` runs its group again.

#[path = "kernels/attention.rs"]
mod attention;
#[path = "kernels/products.rs"]
mod products;
mod support;

use ixc_codegen::module::check_arguments;
use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{Activation, RopeStyle};
use ixc_kernels::catalogue::ROWS;
use ixc_kernels::catalogue::inputs;
use ixc_kernels::{
    AddBias, AppendPlaces, AttentionEntries, Bits, Cache, Centre, Clamp, ColumnSquares, Combine, Compress, Copy,
    DeltaNet, DeltaNetChunks, Elementwise, Embed, ExpertGroups, Gated, Gather, Heads, HeadsSum, HeadsTemperature,
    IndexChoose, IndexScores, IndexTopK, Map, MatmulStrategy, Pace, Quantise, Relu, RmsNorm, RmsNormPiece, RopeAppend,
    RopeHeads, Route, RouteIdentities, RouteOwned, Scale, ScaleHeads, Score, Scores, ShortConv, Softcap, Softmax,
    SsmScan, StreamAttend, StreamInput, StreamMix, StreamParts, StreamWeights, SumSquares, Swiglu, Temperature, Wkv,
    Xielu, generate,
};
use ixc_targets::Target;
use products::formats;
use support::Group;

/// The default cache format.
const HALVES: Cache = Cache { keys: Format::F16, values: Format::F16 };

/// Sizes that have found most errors in kernels: around one, two and four vectors.
const ODD: [u32; 6] = [1, 15, 16, 17, 31, 33];

#[test]
fn rows_of_one() {
    let mut group = Group::new("rows_of_one");
    for n in ODD {
        for function in [Elementwise::Add, Elementwise::Mul, Elementwise::Silu] {
            group.one(Map { function, n });
        }
        group.one(AddBias { n });
        group.one(Softmax { n });
        group.one(RmsNorm { n, eps: Bits::from_value(1e-6), out: Format::F32, plain: false });
        group.one(SumSquares { n });
        group.one(RmsNormPiece { n, row: 3 * n, parts: 3, eps: Bits::from_value(1e-6), out: Format::F32 });
        group.one(Quantise { n, out: Format::F32 });
        group.rows(Gather { bytes: n }, 9);
        for residual in [false, true] {
            group.rows(Combine { n, slots: 3, residual }, 9);
        }
    }
    for (out, n) in [
        (Format::A8Super, 256),
        (Format::A8Super, 768),
        (Format::A8Small, 32),
        (Format::A8Small, 96),
        (Format::A8SuperTile, 512),
        (Format::A8SmallTile, 32),
        (Format::A8SmallTile, 96),
        (Format::Bf16x2, 32),
        (Format::Bf16x2, 160),
        (Format::Bf16x1, 32),
        (Format::Bf16x1, 160),
    ] {
        group.one(Quantise { n, out });
        group.one(RmsNorm { n, eps: Bits::from_value(1e-5), out, plain: false });
        for parts in [1, 2, 33] {
            group.one(RmsNormPiece { n, row: parts * n, parts, eps: Bits::from_value(1e-5), out });
        }
    }
    for format in formats(false) {
        let n = 2 * format.block_len().max(17) as u32;
        group.one(Embed { format, rows: 5, n });
    }
    group.done();
}

#[test]
fn column_squares() {
    let mut group = Group::new("column_squares");
    let floats = ODD.map(|n| (Format::F32, n));
    let quantised = [
        (Format::A8Super, 512),
        (Format::A8Small, 96),
        (Format::A8Row, 192),
        (Format::A8SuperTile, 256),
        (Format::A8SmallTile, 64),
        (Format::Bf16x2, 96),
        (Format::Bf16x1, 64),
    ];
    for (format, n) in floats.into_iter().chain(quantised) {
        for rows in [1, 5] {
            group.rows(ColumnSquares { format, n }, rows);
        }
    }
    group.done();
}

#[test]
fn rope() {
    let mut group = Group::new("rope");
    for style in [RopeStyle::Neox, RopeStyle::Norm] {
        for (d, dims) in [(64, 64), (64, 32), (80, 80), (34, 30), (128, 128)] {
            for norm in [None, Some(Bits::from_value(1e-6))] {
                group.rows(RopeHeads { heads: 3, d, dims, style, norm }, 4);
                group.rows(RopeAppend { d, dv: d - 2, dims, style, norm, cache: HALVES }, 4);
            }
        }
    }
    group.done();
}

/// Tests gated linear units of all kinds, alone and after two products with biases, and scaled
/// parts of rows.
#[test]
fn gates() {
    let pace = Pace::default();
    let mut group = Group::new("gates");
    let acts = [Activation::Silu, Activation::Gelu, Activation::QuickGelu];
    let limits = [None, Some(Bits::from_value(0.5))];
    for n in ODD {
        for act in acts {
            for limit in limits {
                group.one(Gated { act, n, limit, shift: limit.map(|_| Bits::from_value(1.0)), bend: None });
            }
        }
        group.one(Map { function: Elementwise::Sigmoid, n });
        group.one(Scale { n, factor: Bits::from_value(12.5) });
        for residual in [false, true] {
            group.one(ScaleHeads { n, residual });
        }
    }
    for (format, k, tile, out) in [
        (Format::Q8_0R16, 128, 32, Format::A8Small),
        (Format::Q4KR16, 256, 256, Format::A8Super),
        (Format::F32, 33, 16, Format::F32),
        (Format::F32, 33, 5, Format::F32),
    ] {
        for (act, biases) in
            acts.into_iter().flat_map(|act| [[true, true], [true, false], [false, true]].map(|b| (act, b)))
        {
            for strategy in [MatmulStrategy::Gemv, MatmulStrategy::Gemm] {
                let (gate, up, x, n) = (format, format, format.activation(), 2 * tile);
                let ([gate_bias, up_bias], [limit, shift]) = (biases, [0.25, 1.0].map(|x| Some(Bits::from_value(x))));
                group.rows(
                    Swiglu {
                        gate,
                        up,
                        x,
                        k,
                        tile,
                        n,
                        out,
                        rows: 13,
                        act,
                        limit,
                        shift,
                        bend: None,
                        gate_bias,
                        up_bias,
                        strategy,
                        pace,
                    },
                    13,
                );
            }
        }
    }
    group.done();
}

/// Tests gates with a limit on the activation's result.
#[test]
fn limited_gates() {
    let pace = Pace::default();
    let mut group = Group::new("limited_gates");
    let act = Activation::LimitedSilu;
    for n in ODD {
        for limit in [None, Some(Bits::from_value(0.5))] {
            group.one(Gated { act, n, limit, shift: None, bend: None });
        }
    }
    for strategy in [MatmulStrategy::Gemv, MatmulStrategy::Gemm] {
        let (gate, k, tile, out) = (Format::Q4KR16, 256, 32, Format::A8Small);
        let (up, x, n, limit) = (gate, gate.activation(), 2 * tile, Some(Bits::from_value(0.25)));
        let (shift, bend, gate_bias, up_bias, rows) = (None, None, false, false, 13);
        group.rows(
            Swiglu { gate, up, x, k, tile, n, out, rows, act, limit, shift, bend, gate_bias, up_bias, strategy, pace },
            13,
        );
    }
    group.done();
}

/// Tests gates and up projections with a smooth limit.
#[test]
fn bent_gates() {
    let pace = Pace::default();
    let mut group = Group::new("bent_gates");
    let (act, bend) = (Activation::BentSilu, Some(Bits::from_value(0.75)));
    for n in ODD {
        for limit in [None, Some(Bits::from_value(0.5))] {
            group.one(Gated { act, n, limit, shift: None, bend });
        }
    }
    for strategy in [MatmulStrategy::Gemv, MatmulStrategy::Gemm] {
        let (gate, k, tile, out) = (Format::Q4KR16, 256, 32, Format::A8Small);
        let (up, x, n, limit) = (gate, gate.activation(), 2 * tile, Some(Bits::from_value(0.25)));
        let (shift, gate_bias, up_bias, rows) = (None, false, false, 13);
        group.rows(
            Swiglu { gate, up, x, k, tile, n, out, rows, act, limit, shift, bend, gate_bias, up_bias, strategy, pace },
            13,
        );
    }
    group.done();
}

/// Tests attention of a row over its streams from earlier layers.
#[test]
fn stream_attends() {
    let mut group = Group::new("stream_attends");
    for d in ODD {
        for streams in [1, 3, 8, 16] {
            group.one(StreamAttend { streams, d, eps: Bits::from_value(1e-5) });
        }
    }
    group.done();
}

/// Tests the gates of a function without parameters: alone, and after both products.
fn gates_of(name: &'static str, act: Activation) {
    let pace = Pace::default();
    let mut group = Group::new(name);
    let (limit, shift, bend) = (None, None, None);
    for n in ODD {
        group.one(Gated { act, n, limit, shift, bend });
    }
    for strategy in [MatmulStrategy::Gemv, MatmulStrategy::Gemm] {
        let (gate, k, tile, out) = (Format::Q4KR16, 256, 32, Format::A8Small);
        let (up, x, n, gate_bias, up_bias, rows) = (gate, gate.activation(), 2 * tile, false, false, 13);
        group.rows(
            Swiglu { gate, up, x, k, tile, n, out, rows, act, limit, shift, bend, gate_bias, up_bias, strategy, pace },
            13,
        );
    }
    group.done();
}

#[test]
fn rectified_gates() {
    gates_of("rectified_gates", Activation::Relu);
}

#[test]
fn squared_gates() {
    gates_of("squared_gates", Activation::ReluSquared);
}

#[test]
fn erf_gates() {
    gates_of("erf_gates", Activation::GeluErf);
}

/// Tests identity experts, which return their input: all ids, some of the ids or none of them are
/// identity experts.
#[test]
fn route_identities() {
    let mut group = Group::new("route_identities");
    for n in [1, 3, 8, 12, 17] {
        for experts in [1, 6, 64] {
            group.one(RouteIdentities { n, experts });
        }
    }
    group.done();
}

/// Tests routes on a rank that owns all, some or none of the experts.
#[test]
fn route_owned() {
    let mut group = Group::new("route_owned");
    for n in [1, 3, 8, 17] {
        for (first, experts) in [(0, 1), (2, 6), (32, 32)] {
            group.one(RouteOwned { n, first, experts });
        }
    }
    group.done();
}

#[test]
fn expert_groups() {
    let mut group = Group::new("expert_groups");
    for n in [1, 3, 8, 17] {
        for size in [1, 2, 64] {
            group.one(ExpertGroups { n, size });
        }
    }
    group.done();
}

/// Tests heads times the temperature of their position, which depends on two parameters of the
/// head.
#[test]
fn temperatures_of_heads() {
    let mut group = Group::new("temperatures_of_heads");
    for n in ODD {
        group.rows(HeadsTemperature { n }, 3);
    }
    group.done();
}

/// Tests rows minus their means, rows times the temperature of their position, and sparse-mixer
/// routing.
#[test]
fn layer_norms_temperatures_and_mixers() {
    let mut group = Group::new("layer_norms_temperatures_and_mixers");
    for n in ODD {
        group.one(Centre { n });
        group.rows(Temperature { n }, 3);
    }
    for (experts, top_k) in [(1, 1), (2, 1), (15, 2), (16, 2), (17, 8), (33, 8), (128, 8)] {
        let (score, groups, kept, scale) = (Score::SparseMixer, 1, 1, Bits::from_value(2.5));
        for normalise in [false, true] {
            group.one(Route {
                experts,
                top_k,
                score,
                groups,
                kept,
                highest: false,
                bias: false,
                scales: false,
                normalise,
                scale,
                listed: 0,
            });
        }
    }
    group.done();
}

#[test]
fn plain_norms() {
    let mut group = Group::new("plain_norms");
    for n in ODD {
        group.one(RmsNorm { n, eps: Bits::from_value(1e-6), out: Format::F32, plain: true });
    }
    group.one(RmsNorm { n: 512, eps: Bits::from_value(1e-6), out: Format::A8Super, plain: true });
    group.done();
}

#[test]
fn route_with_scales() {
    let mut group = Group::new("route_with_scales");
    for score in [Score::Softmax, Score::Sigmoid, Score::Chosen, Score::RootSoftplus] {
        for (experts, top_k) in [(1, 1), (2, 1), (15, 2), (16, 2), (17, 8), (31, 2), (33, 8), (128, 8)] {
            for bias in [false, true] {
                let (groups, kept, scale) = (1, 1, Bits::from_value(2.5));
                group.one(Route {
                    experts,
                    top_k,
                    score,
                    groups,
                    kept,
                    highest: false,
                    bias,
                    scales: true,
                    normalise: bias,
                    scale,
                    listed: 0,
                });
            }
        }
    }
    group.done();
}

#[test]
fn route_of_groups() {
    let mut group = Group::new("route_of_groups");
    for score in [Score::Softmax, Score::Sigmoid, Score::Chosen, Score::RootSoftplus] {
        for (experts, groups, kept, top_k) in
            [(1, 1, 1, 1), (15, 1, 1, 2), (33, 1, 1, 8), (32, 4, 2, 4), (34, 17, 3, 5), (256, 8, 4, 8)]
        {
            for bias in [false, true] {
                let scale = Bits::from_value(2.5);
                group.one(Route {
                    experts,
                    top_k,
                    score,
                    groups,
                    kept,
                    highest: false,
                    bias,
                    scales: false,
                    normalise: bias,
                    scale,
                    listed: 0,
                });
            }
        }
    }
    group.done();
}

#[test]
fn route_of_groups_by_their_best() {
    let mut group = Group::new("route_of_groups_by_their_best");
    for (experts, groups, kept, top_k) in [(15, 1, 1, 2), (32, 4, 2, 4), (34, 17, 3, 5), (160, 8, 3, 6)] {
        for bias in [false, true] {
            let (score, highest, scale) = (Score::Softmax, true, Bits::from_value(16.0));
            let (scales, normalise, listed) = (false, bias, 0);
            group.one(Route { experts, top_k, score, groups, kept, highest, bias, scales, normalise, scale, listed });
        }
    }
    group.done();
}

#[test]
fn route() {
    let mut group = Group::new("route");
    for experts in [1, 2, 8, 15, 16, 17, 31, 33, 128] {
        for top_k in [1, 2, 8] {
            for score in [Score::Softmax, Score::Sigmoid] {
                if top_k <= experts {
                    let normalise = top_k != 2;
                    let scale = Bits::from_value(if top_k == 1 { 2.5 } else { 1.0 });
                    group.one(Route {
                        experts,
                        top_k,
                        score,
                        groups: 1,
                        kept: 1,
                        highest: false,
                        bias: false,
                        scales: false,
                        normalise,
                        scale,
                        listed: 0,
                    });
                }
            }
        }
    }
    group.done();
}

#[test]
fn recurrent() {
    let mut group = Group::new("recurrent");
    for n in ODD {
        for (taps, rows) in [(2, 1), (4, 1), (4, 2), (4, 7), (8, 33)] {
            group.rows(ShortConv { channels: n + 3, n, taps, dilation: None }, rows);
        }
        delta_net(&mut group, n, false, [None; 2]);
    }
    group.done();
}

#[test]
fn recurrent_with_decays_of_channels() {
    let mut group = Group::new("recurrent_with_decays_of_channels");
    for n in ODD {
        delta_net(&mut group, n, true, [None; 2]);
    }
    group.done();
}

/// Tests decays with bounded logarithms, for each head and for each channel.
#[test]
fn recurrent_with_bounded_decays() {
    let mut group = Group::new("recurrent_with_bounded_decays");
    for n in ODD {
        for channels in [false, true] {
            delta_net(&mut group, n, channels, [Some(Bits::from_value(-5.0)), None]);
        }
    }
    group.done();
}

/// Tests update rates of up to 2.
#[test]
fn recurrent_with_rates() {
    let mut group = Group::new("recurrent_with_rates");
    for n in ODD {
        delta_net(&mut group, n, n % 2 == 0, [None, Some(Bits::from_value(2.0))]);
    }
    group.done();
}

fn delta_net(group: &mut Group, n: u32, channels: bool, [bound, rate]: [Option<Bits>; 2]) {
    let eps = Bits::from_value(1e-6);
    for (heads, together, interleaved, rows) in [(1, 1, false, 1), (2, 2, false, 3), (3, 2, true, 2)] {
        group.rows(DeltaNet { heads, group: together, d: n, dv: n, eps, interleaved, channels, bound, rate }, rows);
        group
            .rows(DeltaNet { heads, group: together, d: 32, dv: n, eps, interleaved, channels, bound, rate }, rows + 5);
    }
}

/// Tests runs of positions that share a key: with none, fewer or more complete runs than are
/// chosen. A run has up to 32 positions, all bits of a word.
#[test]
fn indices_of_runs() {
    let mut group = Group::new("indices_of_runs");
    for (n, every) in ODD.into_iter().zip([2, 4, 8, 16, 32].into_iter().cycle()) {
        for (blocks, runs) in [(1, 2), (4, 1), (9, 3), (33, 8)] {
            let (chosen, positions) = (runs * every, 32 * blocks);
            let spec = IndexTopK { heads: 4, d: n, chosen, positions, every: Some(every), entries: false, local: None };
            group.rows(spec, blocks);
        }
    }
    group.done();
}

/// Tests the choice among blocks of positions; some of these blocks are local. There are fewer
/// blocks than chosen, as many, and more. Blocks have 32 positions or a multiple of 32. The choice
/// runs in one kernel, and from the scores of all parts.
#[test]
fn indices_of_blocks() {
    let mut group = Group::new("indices_of_blocks");
    for (n, every) in ODD.into_iter().zip([32, 64, 128, 256, 32].into_iter().cycle()) {
        for (blocks, count, local) in [(1, 2, 1), (4, 1, 1), (9, 3, 2), (33, 2, 1), (33, 5, 5), (40, 3, 1)] {
            let (chosen, positions, every, local) = (count * every, 32 * 40, Some(every), Some(local));
            group.rows(IndexTopK { heads: 1, d: n, chosen, positions, every, entries: false, local }, blocks);
            group.rows(IndexScores { heads: 1, d: n, positions, every: None, plain: true }, blocks);
            group.rows(IndexChoose { chosen, positions, every, local }, blocks);
        }
    }
    group.done();
}

/// Tests the choice of entries: fewer complete entries than chosen, the same number, and more.
#[test]
fn indices_of_entries() {
    let mut group = Group::new("indices_of_entries");
    for (n, every) in ODD.into_iter().zip([2, 4, 3, 128].into_iter().cycle()) {
        for (blocks, chosen) in [(1, 2), (2, 64), (4, 1), (9, n), (33, 500)] {
            let positions = 32 * 33 * every;
            let spec = IndexTopK { heads: 4, d: n, chosen, positions, every: Some(every), entries: true, local: None };
            group.rows(spec, blocks);
        }
    }
    group.done();
}

/// Tests sums of heads, signed roots, and convolutions with dilated taps.
#[test]
fn ngram_row_kernels() {
    let mut group = Group::new("ngram_row_kernels");
    for n in ODD {
        group.one(HeadsSum { n });
        group.one(Map { function: Elementwise::SignedRoot, n });
        for (taps, dilation, rows) in [(2, 3, 1), (4, 3, 2), (4, 3, 21), (2, 12, 5), (7, 2, 33)] {
            group.rows(ShortConv { channels: n + 3, n, taps, dilation: Some(dilation) }, rows);
        }
    }
    group.done();
}

/// Tests heads that don't fill tiles, keys of odd lengths, and fewer or more positions than are
/// chosen.
#[test]
fn indices() {
    let mut group = Group::new("indices");
    for n in ODD {
        for (blocks, top_k) in [(1, 5), (2, 64), (3, 1), (5, n)] {
            let (chosen, positions) = (top_k, 32 * 5);
            let spec = IndexTopK { heads: n, d: 34 - n, chosen, positions, every: None, entries: false, local: None };
            group.rows(spec, blocks);
            group.rows(IndexTopK { heads: 16, d: n, positions: 32 * blocks, ..spec }, blocks);
        }
    }
    group.done();
}

/// Tests the indices of [`indices`] and [`indices_of_entries`] in two kernels: one computes the
/// scores of a part, the other chooses from all scores.
#[test]
fn indices_in_parts() {
    let mut group = Group::new("indices_in_parts");
    for (n, every) in ODD.into_iter().zip([None, Some(2), Some(4), None, Some(128)].into_iter().cycle()) {
        for (blocks, chosen) in [(1, 5), (2, 64), (3, 1), (5, n), (33, 500)] {
            let positions = 32 * 64 * every.unwrap_or(1);
            let spec = IndexScores { heads: 4, d: n, positions, every, plain: false };
            group.rows(spec, blocks);
            group.rows(IndexScores { heads: n, d: 34 - n, ..spec }, blocks);
            group.rows(IndexChoose { chosen, positions: 32 * 40, every: None, local: None }, blocks);
        }
    }
    group.done();
}

#[test]
fn centres() {
    let mut group = Group::new("centres");
    for n in ODD {
        group.one(Centre { n });
    }
    group.done();
}

#[test]
fn route_of_a_table() {
    let mut group = Group::new("route_of_a_table");
    for score in [Score::Softmax, Score::Sigmoid, Score::Chosen, Score::RootSoftplus] {
        for (experts, top_k) in [(1, 1), (15, 2), (16, 2), (17, 8), (33, 8)] {
            for normalise in [false, true] {
                let (groups, kept, scale, listed) = (1, 1, Bits::from_value(1.5), 7);
                let (highest, bias, scales) = (false, false, false);
                group.one(Route {
                    experts,
                    top_k,
                    score,
                    groups,
                    kept,
                    highest,
                    bias,
                    scales,
                    normalise,
                    scale,
                    listed,
                });
            }
        }
    }
    group.done();
}

#[test]
fn compressed() {
    let mut group = Group::new("compressed");
    for n in ODD {
        for (every, overlap, rows) in [(1, false, 1), (2, true, 3), (4, true, 9), (128, false, 7)] {
            group.rows(Compress { d: n + 3, n, every, overlap }, rows);
        }
        for rows in [1, 2, 7] {
            group.rows(AppendPlaces { d: n, dv: 34 - n, heads: 2 }, rows);
        }
    }
    for (group_of, d, dv) in [(1, 64, 64), (3, 16, 24), (8, 64, 64), (5, 10, 33)] {
        for (sinks, window, every, blocks) in [(true, 20, 4, 1), (false, 64, 128, 2), (true, 500, 4, 3)] {
            let heads = Heads { group: group_of, d, dv };
            let scores = Scores { sinks, ..Scores::with_scale(0.125) };
            let spec = AttentionEntries { heads, scores, window, every, chosen: None };
            group.rows(spec, blocks);
        }
    }
    group.done();
}

#[test]
fn streams() {
    let mut group = Group::new("streams");
    for n in ODD {
        for streams in [1, 3, 4, 8] {
            group.one(StreamInput { streams, d: n + 3, n });
            for apart in [false, true] {
                group.one(StreamMix { streams, d: n + 3, n, apart });
            }
        }
    }
    for (iterations, eps) in [(1, Bits::from_value(1e-6)), (2, Bits::from_value(1e-3)), (20, Bits::from_value(1e-6))] {
        let magnitude = Bits::from_value(2.0);
        for streams in [4, 8] {
            group.one(StreamWeights { streams, parts: StreamParts::Mixed, iterations, eps, magnitude });
        }
        for streams in [1, 3, 4] {
            group.one(StreamWeights { streams, parts: StreamParts::Input, iterations, eps, magnitude });
        }
    }
    for (streams, eps, magnitude) in [(1, 1e-6, 2.0), (3, 1e-3, 0.7), (4, 1e-6, 1.5), (8, 1e-2, 2.0)] {
        let (eps, magnitude) = (Bits::from_value(eps), Bits::from_value(magnitude));
        group.one(StreamWeights { streams, parts: StreamParts::Apart, iterations: 0, eps, magnitude });
    }
    group.done();
}

#[test]
fn copies() {
    let mut group = Group::new("copies");
    for n in ODD {
        group.one(Copy { n });
    }
    group.done();
}

#[test]
fn rectified_squares() {
    let mut group = Group::new("rectified_squares");
    for n in ODD {
        group.one(Map { function: Elementwise::ReluSquared, n });
        group.one(Map { function: Elementwise::Softplus, n });
        group.one(Map { function: Elementwise::Gelu, n });
    }
    group.done();
}

/// Tests state-space scans whose items are heads of one group, of all groups, or all heads.
#[test]
fn ssm_scans() {
    let mut group = Group::new("ssm_scans");
    for n in ODD {
        for (heads, groups, of, together, rows) in [(1, 1, 1, 1, 1), (6, 2, 1, 2, 3), (6, 2, 2, 2, 2), (4, 4, 2, 1, 7)]
        {
            group.rows(SsmScan { heads, groups, of, n: together, p: n, s: 40 - n, channels: false }, rows);
        }
        group.rows(SsmScan { heads: 3, groups: 1, of: 1, n: 2, p: 2 * n + 32, s: n, channels: false }, 5);
    }
    group.done();
}

#[test]
fn ssm_scans_with_decays_of_channels() {
    let mut group = Group::new("ssm_scans_with_decays_of_channels");
    for n in ODD {
        for (heads, groups, of, together, rows) in
            [(1, 1, 1, 1, 1), (6, 2, 1, 2, 3), (6, 2, 2, 2, 2), (40, 1, 1, 20, 7)]
        {
            group.rows(SsmScan { heads, groups, of, n: together, p: 1, s: n, channels: true }, rows);
        }
    }
    group.done();
}

#[test]
fn exponentials() {
    let mut group = Group::new("exponentials");
    for n in ODD {
        group.one(Map { function: Elementwise::Exp, n });
    }
    group.done();
}

/// Tests WKV heads with a key each and with a shared key, with and without reads of the state. Rows
/// are read before and after the update of the state.
#[test]
fn wkv() {
    let mut group = Group::new("wkv");
    for n in ODD {
        for (heads, of_key, before, finds, filled, rows) in [
            (1, 1, false, true, false, 1),
            (3, 1, false, true, false, 3),
            (2, 1, true, false, false, 2),
            (2, 3, false, false, true, 3),
            (1, 2, true, true, true, 7),
        ] {
            group.rows(Wkv { heads, group: of_key, d: 40 - n, dv: n, before, finds, filled }, rows);
        }
        group.rows(Wkv { heads: 2, group: 1, d: n, dv: 2 * n + 32, before: false, finds: true, filled: false }, 5);
    }
    group.done();
}

/// Tests chunks of rows and remaining rows, with sizes around those of chunks, vectors and blocks
/// of rows.
#[test]
fn recurrent_chunks() {
    delta_net_chunks("recurrent_chunks", &[false], [None; 2]);
}

#[test]
fn recurrent_chunks_with_decays_of_channels() {
    delta_net_chunks("recurrent_chunks_with_decays_of_channels", &[true], [None; 2]);
}

#[test]
fn recurrent_chunks_with_bounded_decays() {
    delta_net_chunks("recurrent_chunks_with_bounded_decays", &[false, true], [Some(Bits::from_value(-5.0)), None]);
}

#[test]
fn recurrent_chunks_with_rates() {
    delta_net_chunks("recurrent_chunks_with_rates", &[false, true], [None, Some(Bits::from_value(2.0))]);
}

fn delta_net_chunks(name: &'static str, of_channels: &[bool], [bound, rate]: [Option<Bits>; 2]) {
    let mut group = Group::new(name);
    let eps = Bits::from_value(1e-6);
    for &channels in of_channels {
        for (n, rows) in ODD.into_iter().zip([16, 17, 31, 32, 33, 48, 65].into_iter().cycle()) {
            let (heads, together, interleaved) = if n % 2 == 0 { (2, 2, false) } else { (3, 2, true) };
            let wide =
                DeltaNetChunks { heads, group: 1, d: 24, dv: n + 32, eps, interleaved: false, channels, bound, rate };
            group.rows(DeltaNetChunks { group: together, d: n, dv: n, interleaved, ..wide }, rows);
            group.rows(wide, rows + 1);
        }
    }
    group.done();
}

#[test]
fn softcap() {
    let mut group = Group::new("softcap");
    for n in [1, 15, 16, 17, 31, 33, 100] {
        // Inputs are in -2..2. With these caps, they reach the end of the polynomial's range and go
        // far beyond the cap.
        for cap in [0.25, 2.0, 30.0] {
            group.one(Softcap { n, cap: Bits::from_value(cap) });
        }
    }
    group.done();
}

#[test]
fn relu() {
    let mut group = Group::new("relu");
    for n in [1, 15, 16, 17, 31, 33, 100] {
        for from in [0.0, 0.5, -1.5] {
            group.one(Relu { n, from: Bits::from_value(from) });
        }
    }
    group.done();
}

#[test]
fn clamp() {
    let mut group = Group::new("clamp");
    for n in [1, 15, 16, 17, 31, 33, 100] {
        for limit in [0.0, 0.5, 8.0] {
            group.one(Clamp { n, limit: Bits::from_value(limit) });
        }
    }
    group.done();
}

#[test]
fn gelu_erf() {
    let mut group = Group::new("gelu_erf");
    for n in [1, 15, 16, 17, 31, 33, 100] {
        group.one(Map { function: Elementwise::GeluErf, n });
    }
    group.done();
}

#[test]
fn xielu() {
    let mut group = Group::new("xielu");
    for n in [1, 15, 16, 17, 31, 33, 100] {
        for [alpha_n, alpha_p, beta, eps] in [[0.8, 0.8, 0.5, -1e-6], [3.0, 0.1, 0.5, -0.5], [0.5, 2.0, -0.25, 0.0]] {
            let [alpha_n, alpha_p, beta, eps] = [alpha_n, alpha_p, beta, eps].map(Bits::from_value);
            group.one(Xielu { n, alpha_n, alpha_p, beta, eps });
        }
    }
    group.done();
}

#[test]
fn inputs_of_every_row_are_valid_and_depend_on_the_seed() {
    for row in ROWS.iter() {
        let spec = row.spec().unwrap();
        let kernel = generate(&spec, Target::AMX).unwrap();
        let dims = spec.dims_of_rows(row.rows.min(7));
        let buffers = inputs::fill(&kernel, Some(&spec), &dims, 1).unwrap();
        let views: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
        check_arguments(&kernel.dims, &kernel.buffers, &dims, &views).unwrap();
        assert_eq!(buffers, inputs::fill(&kernel, Some(&spec), &dims, 1).unwrap());
        assert_ne!(buffers, inputs::fill(&kernel, Some(&spec), &dims, 2).unwrap(), "{}", row.name);
    }
}
