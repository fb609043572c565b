//! Products of weights with rows of activations, and the packing of weights.

use ixc_codegen::x64;
use ixc_ir::format::{FORMATS, Format};
use ixc_ir::graph::attrs::Activation;
use ixc_kernels::{Combine, Linear, MatmulStrategy, Pace, Pack, ScaleBy, Swiglu, generate};
use ixc_targets::Target;

use crate::ODD;
use crate::support::{Group, run_changed};

/// Returns the weight formats of files, or the packed formats.
pub fn formats(packed: bool) -> Vec<Format> {
    let weights = FORMATS.iter().filter(|row| row.format.is_weight() && row.unpacked.is_some() == packed);
    weights.map(|row| row.format).collect()
}

/// Returns the activation formats that a weight format takes.
fn activations(format: Format) -> Vec<Format> {
    let own = format.activation();
    let tiles = if own.is_quantised() { own.row().tiles } else { format.tile_activation() };
    [Some(own), tiles, format.pair_activation()].into_iter().flatten().collect()
}

#[test]
fn pack() {
    let mut group = Group::new("pack");
    for to in formats(true) {
        for rows in [1, 3, 17] {
            group.rows(Pack { to }, rows);
        }
    }
    group.done();
}

#[test]
fn packed_gemv() {
    let pace = Pace::default();
    let mut group = Group::new("packed_gemv");
    for format in formats(true) {
        for x in activations(format) {
            for (tile, n, blocks) in [(16, 16, 1), (32, 48, 2), (48, 64, 3)] {
                for rows in [1, 2, 4, 7] {
                    let k = blocks * format.block_len().max(x.block_len()) as u32;
                    let (bias, residual) = (tile == 32, rows % 2 == 1);
                    let strategy = MatmulStrategy::Gemv;
                    group.rows(Linear { format, x, k, tile, n, bias, residual, strategy, pace }, rows);
                }
            }
        }
    }
    // Dot products of floats, of any length.
    for format in [Format::F32R16, Format::F16R16, Format::Bf16R16] {
        for k in ODD {
            let (x, strategy) = (Format::F32, MatmulStrategy::Gemv);
            group.rows(Linear { format, x, k, tile: 16, n: 16, bias: true, residual: true, strategy, pace }, 5);
        }
    }
    group.done();
}

#[test]
fn packed_gemm() {
    let pace = Pace::default();
    let mut group = Group::new("packed_gemm");
    for format in formats(true) {
        for x in activations(format) {
            for rows in [1, 12, 15, 16, 17, 31, 33] {
                let k = 2 * format.block_len().max(x.block_len()) as u32;
                let (tile, bias, residual) = (if rows == 17 { 48 } else { 16 }, rows % 2 == 1, rows > 16);
                let (n, strategy) = (tile + 16, MatmulStrategy::Gemm);
                group.rows(Linear { format, x, k, tile, n, bias, residual, strategy, pace }, rows);
            }
        }
    }
    group.done();
}

/// Tests products that take six rows of floats at a time. Cases are columns with and without a
/// remainder, row counts that are not a multiple of six, and unpacked weights.
#[test]
fn packed_gemm6() {
    let (pace, x, strategy) = (Pace::default(), Format::F32, MatmulStrategy::Gemm6);
    let mut group = Group::new("packed_gemm6");
    for format in formats(true).into_iter().chain(formats(false)).filter(|format| !format.is_quantised()) {
        for (rows, k, tile) in
            [(1, 5, 16), (5, 3, 16), (11, 4, 32), (12, 600, 16), (13, 256, 48), (24, 7, 16), (31, 257, 16)]
        {
            let (n, bias, residual) = (tile + 16, rows % 2 == 1, rows > 12);
            group.rows(Linear { format, x, k, tile, n, bias, residual, strategy, pace }, rows);
        }
    }
    let (gate, up, out, k, tile, rows, act) = (Format::F16R16, Format::Bf16R16, x, 260, 32, 29, Activation::Silu);
    let (limit, shift, bend, gate_bias, up_bias, n) = (None, None, None, true, false, 2 * tile);
    group.rows(
        Swiglu { gate, up, x, k, tile, n, out, rows, act, limit, shift, bend, gate_bias, up_bias, strategy, pace },
        rows,
    );
    group.done();
}

#[test]
fn packed_swiglu() {
    let pace = Pace::default();
    let mut group = Group::new("packed_swiglu");
    for (gate, up, x, out) in [
        (Format::Q4KR16, Format::Q4KR16, Format::A8Super, Format::A8Super),
        (Format::Q4KR16, Format::Q6KR16, Format::A8SuperTile, Format::A8SuperTile),
        (Format::Q8_0R16, Format::Q4_0R16, Format::A8Small, Format::A8Small),
        (Format::Q4_0R16, Format::Q8_0R16, Format::A8SmallTile, Format::A8SmallTile),
        (Format::F16R16, Format::Bf16R16, Format::F32, Format::F32),
        (Format::F16R16, Format::F16R16, Format::Bf16x2, Format::Bf16x2),
        (Format::Bf16R16, Format::Bf16R16, Format::Bf16x1, Format::Bf16x1),
        (Format::Q5KR16, Format::Q5KR16, Format::A8Super, Format::F32),
        (Format::I8RowR16, Format::I4RowR16, Format::A8Row, Format::F32),
        (Format::I4RowR16, Format::I4RowR16, Format::A8Row, Format::F32),
        (Format::I4G128R16, Format::I8RowR16, Format::A8Row, Format::F32),
    ] {
        for (strategy, rows) in [
            (MatmulStrategy::Gemv, 1),
            (MatmulStrategy::Gemv, 6),
            (MatmulStrategy::Gemm, 13),
            (MatmulStrategy::Gemm, 7),
        ] {
            let k = gate.block_len().max(x.block_len()) as u32;
            let tile = out.block_len().max(32) as u32;
            group.rows(
                Swiglu {
                    gate,
                    up,
                    x,
                    k,
                    tile,
                    n: 2 * tile,
                    out,
                    rows: 13,
                    act: Activation::Silu,
                    limit: None,
                    shift: None,
                    bend: None,
                    gate_bias: false,
                    up_bias: false,
                    strategy,
                    pace,
                },
                rows,
            );
        }
    }
    group.done();
}

/// Tests items with fewer weight rows than a block of the result has. Each item writes its band of
/// the block.
#[test]
fn bands() {
    let pace = Pace::default();
    let mut group = Group::new("bands");
    for (gate, up, x, out) in [
        (Format::Q4KR16, Format::Q4KR16, Format::A8Super, Format::A8Super),
        (Format::Q4KR16, Format::Q6KR16, Format::A8SuperTile, Format::A8SuperTile),
        (Format::Q5KR16, Format::Q5KR16, Format::A8Super, Format::A8Super),
        (Format::Q5K, Format::Q6K, Format::A8Super, Format::A8Super),
        (Format::Q8_0R16, Format::Q8_0R16, Format::A8Small, Format::A8Super),
        (Format::F16R16, Format::Bf16R16, Format::F32, Format::A8Super),
    ] {
        for (tile, rows) in [(32, 1), (32, 5), (64, 2), (64, 7), (128, 13)] {
            let (k, strategy) = (gate.block_len().max(x.block_len()) as u32, MatmulStrategy::Gemv);
            group.rows(
                Swiglu {
                    gate,
                    up,
                    x,
                    k,
                    tile,
                    n: 512,
                    out,
                    rows: 13,
                    act: Activation::Silu,
                    limit: None,
                    shift: None,
                    bend: None,
                    gate_bias: false,
                    up_bias: false,
                    strategy,
                    pace,
                },
                rows,
            );
        }
        let (k, strategy) = (gate.block_len().max(x.block_len()) as u32, MatmulStrategy::Gemm);
        group.rows(
            Swiglu {
                gate,
                up,
                x,
                k,
                tile: 32,
                n: 512,
                out,
                rows: 13,
                act: Activation::Silu,
                limit: None,
                shift: None,
                bend: None,
                gate_bias: false,
                up_bias: false,
                strategy,
                pace,
            },
            13,
        );
    }
    group.done();
}

/// Max spilled values in a product with a grid format.
const SPILLS_OF_GRIDS: usize = 4;

/// Checks that inner loops have no spills and no moves, as in hand-written code. Targets are `zen4`
/// and `zen3`, on which the kernels were tuned, and `alder-lake`. The last is between them: it has
/// 16 registers, and instructions for products of four bytes. In grid formats, the looked-up values
/// of a sub-block take extra registers, so a few values are spilled.
#[test]
fn packed_product_loops_have_no_spills_or_moves() {
    let pace = Pace::default();
    let mut others = Vec::new();
    for (target, format) in
        ["zen4", "zen3", "alder-lake"].into_iter().flat_map(|name| formats(true).into_iter().map(move |f| (name, f)))
    {
        let target = Target::from_name(target).unwrap();
        for x in activations(format) {
            // Without an instruction for bf16 pairs, the op becomes 60 instructions, and no plan
            // uses it.
            if format.pair_activation() == Some(x) && !target.has_dot2_bf16() {
                continue;
            }
            let sixes = (!format.is_quantised() && x == Format::F32).then_some(MatmulStrategy::Gemm6);
            for strategy in [MatmulStrategy::Gemv, MatmulStrategy::Gemm].into_iter().chain(sixes) {
                let spec =
                    Linear { format, x, k: 2048, tile: 32, n: 2048, bias: false, residual: true, strategy, pace };
                let kernel = generate(&spec.into(), target).unwrap();
                let stats = x64::compile(&kernel, target).unwrap_or_else(|e| panic!("{}: {e}", kernel.name)).stats;
                let most =
                    if format.quants().is_some_and(|codec| codec.grid().is_some()) { SPILLS_OF_GRIDS } else { 0 };
                if stats.vector_spills > most || stats.moves_in_innermost_loops > 0 {
                    others.push(format!("{}: {stats:?}", kernel.name));
                }
            }
        }
    }
    assert!(others.is_empty(), "{}", others.join("\n"));
}

/// Tests the packing of unpacked weights: strips with missing rows, blocks with missing columns,
/// and complete ones.
#[test]
fn linear_by_packing() {
    let pace = Pace::default();
    let mut group = Group::new("linear_by_packing");
    for format in formats(false) {
        let len = format.block_len().max(8) as u32;
        let forms = activations(format);
        for (strategy, blocks, tile, rows) in [
            (MatmulStrategy::Gemv, 3, 1, 1),
            (MatmulStrategy::Gemv, 2, 7, 5),
            (MatmulStrategy::Gemv, 1, 16, 4),
            (MatmulStrategy::Gemm, 1, 15, 6),
            (MatmulStrategy::Gemm, 3, 16, 17),
            (MatmulStrategy::Gemm, 2, 32, 13),
        ] {
            let (bias, residual) = (tile % 2 == 1, rows % 2 == 1);
            let (x, k, n) = (forms[blocks as usize % forms.len()], blocks * len, tile + 7);
            // Float weights take both activation formats only if they are packed.
            let x = if format.is_quantised() { x } else { format.activation() };
            group.rows(Linear { format, x, k, tile, n, bias, residual, strategy, pace }, rows);
        }
    }
    for k in ODD {
        for format in [Format::F32, Format::Bf16] {
            let (x, strategy) = (format.activation(), MatmulStrategy::Gemv);
            group.rows(Linear { format, x, k, tile: 3, n: 3, bias: false, residual: false, strategy, pace }, 2);
        }
    }
    for format in formats(false).into_iter().filter(|format| format.is_quantised()) {
        let (gate, up, x, k, out) = (format, format, format.activation(), format.block_len() as u32, Format::F32);
        let (tile, n, strategy) = (8, 24, MatmulStrategy::Gemm);
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
                act: Activation::Silu,
                limit: None,
                shift: None,
                bend: None,
                gate_bias: false,
                up_bias: false,
                strategy,
                pace,
            },
            13,
        );
    }
    let (gate, up, x, out) = (Format::Q5K, Format::Q6K, Format::A8Super, Format::A8Super);
    let (k, tile, n, strategy) = (256, 256, 512, MatmulStrategy::Gemv);
    group.rows(
        Swiglu {
            gate,
            up,
            x,
            k,
            tile,
            n,
            out,
            rows: 5,
            act: Activation::Silu,
            limit: None,
            shift: None,
            bend: None,
            gate_bias: false,
            up_bias: false,
            strategy,
            pace,
        },
        5,
    );
    group.done();
}

#[test]
fn factors_of_experts() {
    let mut group = Group::new("factors_of_experts");
    for n in ODD {
        group.one(ScaleBy { n });
    }
    group.done();
}

/// Checks that a slot of weight 0 or -0 ignores its row: the result is the same as without that
/// slot.
#[test]
fn slots_with_zero_weight_add_zero() {
    let floats =
        |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect() };
    for (n, residual) in ODD.into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let row = n as usize * 4;
        let change = |kernel: &ixc_ir::kernel::Kernel, buffers: &mut [Vec<u8>]| {
            for (buffer, bytes) in kernel.buffers.iter().zip(buffers) {
                match &*buffer.name {
                    "slot" => bytes.copy_from_slice(&[0u32, 1, 2].map(u32::to_le_bytes).concat()),
                    "p" => bytes.copy_from_slice(&[0.5f32, 0.0, -0.0].map(f32::to_le_bytes).concat()),
                    "x" => {
                        for (at, element) in bytes[row..3 * row].as_chunks_mut().0.iter_mut().enumerate() {
                            let wrong = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
                            *element = wrong[at % wrong.len()].to_le_bytes();
                        }
                    }
                    _ => {}
                }
            }
        };
        run_changed(Combine { n, slots: 3, residual }, 9, change, |kernel, before, after| {
            let of = |name: &str, buffers: &[Vec<u8>]| {
                let at = kernel.buffers.iter().position(|buffer| buffer.name == name);
                at.map(|at| floats(&buffers[at]))
            };
            let (x, base, y) = (of("x", before).unwrap(), of("residual", before), of("y", after).unwrap());
            for (i, y) in y.iter().enumerate() {
                let expected = x[i].mul_add(0.5, base.as_ref().map_or(0.0, |base| base[i]));
                assert_eq!(*y, expected, "{}: y[{i}]", kernel.name);
            }
        });
    }
}
