//! Every kernel is a row: a spec and the rows that an item has. For each row the generated IR is verified, and interpreter,
//! portable and native code must give the same bits. Kernels with a formula in f64 are compared with that as well, within a
//! bound that stands at the comparison.
//!
//! On failure the row's name is in the message; `cargo test -p ixc-codegen --test kernels -- NAME` runs its group again.

mod support;

use ixc_ir::format::Format;
use ixc_ir::plan::spec::{Bits, Elementwise, Score, Shape};
use ixc_ir::plan::{KernelSpec, RopeStyle};
use support::{Case, run};

/// Sizes that have found most errors in kernels: around one, two and four vectors.
const ODD: [u32; 6] = [1, 15, 16, 17, 31, 33];
const WEIGHTS: [Format; 8] =
    [Format::F32, Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0, Format::Q4K, Format::Q5K, Format::Q6K];

#[test]
fn linear_gemv() {
    for format in WEIGHTS {
        let k = 3 * format.block_len().max(8) as u32;
        for tile in ODD {
            for rows in [1, 2, 5] {
                let (bias, residual) = (tile % 2 == 1, rows % 2 == 1);
                let n = tile + 7;
                run(Case::rows(
                    KernelSpec::Linear {
                        format,
                        x: format.activation(),
                        k,
                        tile,
                        n,
                        bias,
                        residual,
                        shape: Shape::Gemv,
                    },
                    rows,
                ));
            }
        }
    }
    for k in ODD {
        for format in [Format::F32, Format::F16, Format::Bf16] {
            let spec = KernelSpec::Linear {
                format,
                x: format.activation(),
                k,
                tile: 3,
                n: 3,
                bias: false,
                residual: false,
                shape: Shape::Gemv,
            };
            run(Case::rows(spec, 2));
        }
    }
}

#[test]
fn linear_gemm() {
    for format in WEIGHTS {
        for blocks in [1, 2, 11] {
            let k = blocks * format.block_len().max(8) as u32;
            for rows in [1, 6, 15, 16, 17, 31, 33] {
                let (tile, n) = (16, 24);
                let (bias, residual) = (rows % 2 == 1, blocks == 2);
                run(Case::rows(
                    KernelSpec::Linear {
                        format,
                        x: format.activation(),
                        k,
                        tile,
                        n,
                        bias,
                        residual,
                        shape: Shape::Gemm,
                    },
                    rows,
                ));
            }
        }
    }
}

#[test]
fn swiglu() {
    for (gate, up, out) in [
        (Format::Q4K, Format::Q4K, Format::A8Super),
        (Format::Q5K, Format::Q6K, Format::A8Super),
        (Format::Q8_0, Format::Q4_0, Format::A8Small),
        (Format::F16, Format::Bf16, Format::F32),
        (Format::Q4K, Format::Q4K, Format::F32),
    ] {
        for shape in [Shape::Gemv, Shape::Gemm] {
            for rows in [1, 5, 7, 13] {
                let k = 2 * gate.block_len().max(8) as u32;
                let tile = out.block_len().max(32) as u32;
                run(Case::rows(
                    KernelSpec::Swiglu { gate, up, x: gate.activation(), k, tile, n: 2 * tile, out, rows: 13, shape },
                    rows,
                ));
            }
        }
    }
}

#[test]
fn rows_of_one() {
    for n in ODD {
        for function in [Elementwise::Add, Elementwise::Mul, Elementwise::Silu] {
            run(Case::one(KernelSpec::Map { function, n }));
        }
        run(Case::one(KernelSpec::AddBias { n }));
        run(Case::one(KernelSpec::Softmax { n }));
        run(Case::one(KernelSpec::RmsNorm { n, eps: Bits::of(1e-6), out: Format::F32 }));
        run(Case::one(KernelSpec::Quantise { n, out: Format::F32 }));
        run(Case::rows(KernelSpec::Gather { bytes: n }, 9));
        for residual in [false, true] {
            run(Case::rows(KernelSpec::Combine { n, slots: 3, residual }, 9));
        }
    }
    for (out, n) in [(Format::A8Super, 256), (Format::A8Super, 768), (Format::A8Small, 32), (Format::A8Small, 96)] {
        run(Case::one(KernelSpec::Quantise { n, out }));
        run(Case::one(KernelSpec::RmsNorm { n, eps: Bits::of(1e-5), out }));
    }
    for format in WEIGHTS {
        let n = 2 * format.block_len().max(17) as u32;
        run(Case::one(KernelSpec::Embed { format, rows: 5, n }));
    }
}

#[test]
fn rope() {
    for style in [RopeStyle::Neox, RopeStyle::Norm] {
        for (d, dims) in [(64, 64), (64, 32), (80, 80), (34, 30), (128, 128)] {
            for norm in [None, Some(Bits::of(1e-6))] {
                run(Case::rows(KernelSpec::RopeHeads { heads: 3, d, dims, style, norm }, 4));
                run(Case::rows(KernelSpec::RopeAppend { d, dv: d - 2, dims, style, norm }, 4));
            }
        }
    }
}

#[test]
fn attention() {
    for (group, d, dv) in [
        (1, 64, 64),
        (2, 33, 16),
        (3, 16, 24),
        (4, 128, 128),
        (8, 64, 64),
        (9, 40, 8),
        (16, 32, 32),
        (2, 100, 100),
        (9, 7, 7),
        (1, 2, 1),
        (5, 10, 33),
    ] {
        for blocks in [1, 3] {
            run(Case::rows(KernelSpec::Attention { group, d, dv, scale: Bits::of(0.125) }, blocks));
        }
    }
}

#[test]
fn route() {
    for experts in [1, 2, 8, 15, 16, 17, 31, 33, 128] {
        for top_k in [1, 2, 8] {
            for score in [Score::Softmax, Score::Sigmoid] {
                if top_k <= experts {
                    let normalise = top_k != 2;
                    let scale = Bits::of(if top_k == 1 { 2.5 } else { 1.0 });
                    run(Case::one(KernelSpec::Route { experts, top_k, score, normalise, scale }));
                }
            }
        }
    }
}
