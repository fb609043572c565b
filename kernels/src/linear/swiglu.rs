//! Gate and up projection and SwiGLU of them, quantised: `silu(x gate') * (x up')`.

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::kernel::{Affine, BufferKind, Kernel, KernelBuilder, Type};

use super::{
    Destination, MatmulStrategy, Product, Rows, arithmetic, checked, multiply, multiply_adds, scratch_bytes, stores,
};
use crate::catalogue::{Row, row};
use crate::definition::Definition;
use crate::generate::{GenerateError, Vectors, check};
use crate::reference::{Mismatch, Run, UNIT, close, dot, silu, step};
use crate::signature::{Holds, Signature};
use crate::text::{Words, spec};
use crate::vectors::for_vectors;
use crate::work::{Call, Work};
use crate::{math, quantise};

spec! {
    /// `silu(x gate') * (x up')` for `tile` rows of both weights and the item's rows, quantised. `gate` and `up` take the same activations
    /// and are both packed or both not; tile is a multiple of out's block.
    pub struct Swiglu "swiglu" {
        /// Format of the gate's weight.
        pub gate: Format,
        /// Format of the up projection's weight.
        pub up: Format,
        /// The activations' format.
        pub x: Format = gate.activation(),
        /// Elements of a dot product.
        pub k: u32,
        /// Rows of each weight in an item.
        pub tile: u32,
        /// Rows of each whole weight.
        pub n: u32,
        /// Format of the result.
        pub out: Format,
        /// Most rows of an item (bounds the scratch memory).
        pub rows: u32,
        /// How it is computed.
        pub strategy as "shape": MatmulStrategy,
    }
}

/// Representative ones.
#[rustfmt::skip] // One line each.
const ROWS: &[Row] = &[
    row("gemv_swiglu_q4_k_r16", 1, "swiglu gate=q4_k_r16 up=q4_k_r16 k=2048 tile=256 n=5632 out=a8_super rows=5 shape=gemv"),
    row("gemm_swiglu_q4_k_r16", 48, "swiglu gate=q4_k_r16 up=q4_k_r16 k=2048 tile=256 n=5632 out=a8_super rows=48 shape=gemm"),
    row("tiles_swiglu_q4_k_r16", 32, "swiglu gate=q4_k_r16 up=q4_k_r16 x=a8_super_tile k=768 tile=256 n=768 out=a8_super_tile rows=32 shape=tiles"),
    row("gemv_swiglu_f32", 1, "swiglu gate=f32 up=f32 k=2048 tile=32 n=5632 out=f32 rows=5 shape=gemv"),
    row("gemv_swiglu_f16", 1, "swiglu gate=f16 up=f16 k=2048 tile=32 n=5632 out=f32 rows=5 shape=gemv"),
    row("gemv_swiglu_bf16", 1, "swiglu gate=bf16 up=bf16 k=2048 tile=32 n=5632 out=f32 rows=5 shape=gemv"),
    row("gemv_swiglu_q8_0", 1, "swiglu gate=q8_0 up=q8_0 k=2048 tile=32 n=5632 out=a8_small rows=5 shape=gemv"),
    row("gemv_swiglu_q4_0", 1, "swiglu gate=q4_0 up=q4_0 k=2048 tile=32 n=5632 out=a8_small rows=5 shape=gemv"),
    row("gemv_swiglu_q4_k", 1, "swiglu gate=q4_k up=q4_k k=2048 tile=256 n=5632 out=a8_super rows=5 shape=gemv"),
    row("gemv_swiglu_q5_k", 1, "swiglu gate=q5_k up=q5_k k=2048 tile=256 n=5632 out=a8_super rows=5 shape=gemv"),
    row("gemv_swiglu_q6_k", 1, "swiglu gate=q6_k up=q6_k k=2048 tile=256 n=5632 out=a8_super rows=5 shape=gemv"),
    row("gemm_swiglu_f32", 48, "swiglu gate=f32 up=f32 k=2048 tile=32 n=5632 out=f32 rows=48 shape=gemm"),
    row("gemm_swiglu_f16", 48, "swiglu gate=f16 up=f16 k=2048 tile=32 n=5632 out=f32 rows=48 shape=gemm"),
    row("gemm_swiglu_bf16", 48, "swiglu gate=bf16 up=bf16 k=2048 tile=32 n=5632 out=f32 rows=48 shape=gemm"),
    row("gemm_swiglu_q8_0", 48, "swiglu gate=q8_0 up=q8_0 k=2048 tile=32 n=5632 out=a8_small rows=48 shape=gemm"),
    row("gemm_swiglu_q4_0", 48, "swiglu gate=q4_0 up=q4_0 k=2048 tile=32 n=5632 out=a8_small rows=48 shape=gemm"),
    row("gemm_swiglu_q4_k", 48, "swiglu gate=q4_k up=q4_k k=2048 tile=256 n=5632 out=a8_super rows=48 shape=gemm"),
    row("gemm_swiglu_q5_k", 48, "swiglu gate=q5_k up=q5_k k=2048 tile=256 n=5632 out=a8_super rows=48 shape=gemm"),
    row("gemm_swiglu_q6_k", 48, "swiglu gate=q6_k up=q6_k k=2048 tile=256 n=5632 out=a8_super rows=48 shape=gemm"),
    row("gemv_swiglu_q4_k_expert", 1, "swiglu gate=q4_k up=q4_k k=2048 tile=256 n=768 out=a8_super rows=5 shape=gemv"),
    row("gemm_swiglu_q4_k_expert", 24, "swiglu gate=q4_k up=q4_k k=2048 tile=256 n=768 out=a8_super rows=48 shape=gemm"),
];

/// Bytes between rows of sums in scratch memory: a line where tiles are stored there, so that a tile's 16 rows, of which each has whole
/// kilobytes, do not meet in a few sets of the first-level cache.
fn pad(strategy: MatmulStrategy) -> i64 {
    match strategy {
        MatmulStrategy::Tiles => 64,
        MatmulStrategy::Gemv | MatmulStrategy::Gemm => 0,
    }
}

impl Definition for Swiglu {
    fn name(&self) -> String {
        let Swiglu { gate, up, x, k, tile, n, out, rows, strategy } = *self;
        format!("{}_swiglu_{gate}_{up}_{x}_{out}_m{rows}t{tile}n{n}k{k}", strategy.word())
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", Holds::Activations(self.x, "x"))
            .read("gate", Holds::Weight(self.gate, "gate"))
            .read("up", Holds::Weight(self.up, "up"))
            .write("y", Holds::Activations(self.out, "out"))
            .scratch("scratch")
            .dims(self.strategy.dims())
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let Swiglu { gate, up, x, k, tile, n, out, rows, strategy } = *self;
        let (x_row, gate_row) = checked(&name, gate, x, k, tile, strategy, vectors)?;
        let (_, up_row) = checked(&name, up, x, k, tile, strategy, vectors)?;
        quantise::stored(&name, out, lanes)?;
        check(&name, "rows of a strip of up", up.rows() as u64, up.rows() == gate.rows(), "that of gate")?;
        let x_format = x;
        let (y_row, y_tile) = (quantise::row_bytes(&name, out, n)?, quantise::row_bytes(&name, out, tile)?);
        check(&name, "rows of the weight", u64::from(n), n >= tile, format!("at least {tile}"))?;
        let most = i64::from(rows);
        let mut b = KernelBuilder::new(name);
        let rows = Rows::dims(&mut b, strategy, most);
        let x = b.read("x", rows.count() * x_row);
        let weights = [b.read("gate", i64::from(tile) * gate_row), b.read("up", i64::from(tile) * up_row)];
        let y = b.write("y", rows.count() * y_row + (y_tile - y_row));
        // Both products of all rows, then what a product needs.
        let row_bytes = i64::from(tile.next_multiple_of(STRIP as u32)) * 4 + pad(strategy);
        let product_bytes = (most + rows.most_rest()) * row_bytes;
        let bytes = [gate, up]
            .map(|format| scratch_bytes(format, x_format, k, tile, strategy, vectors))
            .into_iter()
            .max()
            .flatten();
        let scratch = b.buffer("scratch", BufferKind::Scratch, 2 * product_bytes + bytes.unwrap_or(0));
        let spare = bytes.map(|_| (scratch, 2 * product_bytes));
        for (i, (w, format)) in weights.into_iter().zip([gate, up]).enumerate() {
            let offset = i as i64 * product_bytes;
            let fresh = stores(format, k, tile, strategy);
            let to = Destination { buffer: scratch, offset: offset.into(), row_bytes, fresh };
            let zeros = |b: &mut KernelBuilder, row: Affine, count: u32| {
                b.for_each("r", i64::from(count), |b, r| {
                    for_vectors(b, lanes, tile.next_multiple_of(STRIP as u32), |b, at, lanes| {
                        let zero = b.splat_f32(lanes, 0.0);
                        b.store(scratch, (row.clone() + r) * row_bytes + at * 4 + offset, zero);
                    });
                });
            };
            if !fresh {
                rows.for_each(&mut b, zeros);
            }
            let product = Product { format, k, tile, x, x_format, w: (w, 0), strategy, vectors, scratch: spare };
            multiply(&mut b, &product, &rows, &to);
        }
        // Activation in place of the gate's product; then the quantiser reads it.
        rows.for_each(&mut b, |b, row, count| {
            b.for_each("r", i64::from(count), |b, r| {
                let from = (row.clone() + r) * row_bytes;
                for_vectors(b, lanes, tile, |b, at, lanes| {
                    let g = b.load(Type::f32(lanes), scratch, from.clone() + at.clone() * 4);
                    let u = b.load(Type::f32(lanes), scratch, from.clone() + at.clone() * 4 + product_bytes);
                    let g = math::silu(b, g);
                    let v = b.mul(g, u);
                    b.store(scratch, from.clone() + at * 4, v);
                });
                quantise::store_row(b, lanes, out, tile, y, (row.clone() + r) * y_row, &mut |b, at, lanes| {
                    b.load(Type::f32(lanes), scratch, from.clone() + at * 4)
                });
            });
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let Swiglu { gate, up, x, k, tile, n, out, strategy, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let rows = strategy.rows(run.dims) as usize;
        let (k, tile, n) = (k as usize, tile as usize, n as usize);
        let x = input.rows("x", x)?;
        let (g, u) = (input.weight("gate", gate, k)?, input.weight("up", up, k)?);
        let bytes = output.get("y")?;
        let (row, part) = (n / out.block_len() * out.block_bytes(), tile / out.block_len() * out.block_bytes());
        for r in 0..rows {
            let mut y = vec![0f32; tile];
            out.dequantise(&bytes[r * row..][..part], &mut y);
            let x = &x[r * k..][..k];
            let products = |w: &[f64]| -> Vec<(f64, f64)> { (0..tile).map(|c| dot(x, &w[c * k..][..k])).collect() };
            let (g, u) = (products(&g), products(&u));
            let expected: Vec<f64> = g.iter().zip(&u).map(|((g, _), (u, _))| silu(*g) * u).collect();
            // What each product is off by, as for `Linear`; silu is at most 1.1 times as steep as its argument.
            let off = |(_, magnitude): (f64, f64)| (magnitude + 1.0) * k as f64 * UNIT * 4.0;
            for (c, y) in y.iter().enumerate() {
                let block = &expected[c / out.block_len() * out.block_len()..][..out.block_len()];
                let amax = block.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
                // The quantiser's rounding, which follows the block's largest element, and the products'.
                let products = 1.1 * off(g[c]) * u[c].0.abs() + off(u[c]) * silu(g[c].0).abs();
                let bound = step(out, amax) * 1.01 + products + (amax + 1.0) * 1e-5;
                close(format_args!("y[{r}, {c}]"), f64::from(*y), expected[c], bound)?;
            }
        }
        Ok(())
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        self.strategy.dim_values(rows)
    }

    fn most_rows(&self) -> u32 {
        self.rows
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let multiply_adds = 2 * multiply_adds(self.strategy, (self.k, self.tile), call.dims);
        let bytes = call.bytes("gate") + call.bytes("up");
        Work { bytes, multiply_adds, arithmetic: arithmetic(self.x, self.strategy) }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
