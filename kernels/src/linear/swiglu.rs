//! Product of a row with the gate and up matrices, followed by a gated linear unit
//! ([`crate::ops::gated`]) and quantisation. The simplest gated linear unit is
//! `silu(x gate') * (x up')`.

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::graph::attrs::Activation;
use ixc_ir::kernel::{Address, Affine, BufferKind, Kernel, KernelBuilder, Type};
use ixc_ir::plan::DimInput;

use super::pace::Pace;
use super::{
    Destination, MatmulStrategy, Product, Rows, arithmetic, check_strategy, multiply, multiply_adds, relative,
    scratch_bytes, stores,
};
use crate::catalogue::{Row, row};
use crate::generator::buffer_offset::BufferOffset;
use crate::generator::definition::Definition;
use crate::generator::gate::Gate;
use crate::generator::generate::{GenerateError, Vectors, check, check_word};
use crate::generator::quantise;
use crate::generator::quantise::Values;
use crate::generator::reference::{Mismatch, Run, close, dot, equal, floats, step};
use crate::generator::signature::{BufferContents, Dim, Signature};
use crate::generator::text::{Bits, Words, spec};
use crate::generator::vectors::for_vectors;
use crate::generator::work::{Call, Work};

spec! {
    /// `act(x gate' + gate_bias) * (x up' + up_bias)` for `tile` rows of both weights and the rows
    /// of an item, quantised. `gate` and `up` use the same activations; they are both packed or
    /// both unpacked. `tile` is a multiple of the block length of `out`, or a number of sub-blocks
    /// that divides this length. In the second case, `y` is the whole block, and a dim is the
    /// number of the band of the block that the item writes.
    pub struct Swiglu "swiglu" {
        /// Format of the gate's weight.
        pub gate: Format,
        /// Format of the up projection's weight.
        pub up: Format,
        /// Format of the activations.
        pub x: Format = gate.activation(),
        /// Number of elements of a dot product.
        pub k: u32,
        /// Number of rows of each weight in an item.
        pub tile: u32,
        /// Number of rows of each whole weight.
        pub n: u32,
        /// Format of the result.
        pub out: Format,
        /// Maximum number of rows of activations of an item, which bounds the scratch memory.
        pub rows: u32,
        /// Activation function of the gate.
        pub act: Activation = Activation::Silu,
        /// Maximum of the gate, and of the magnitude of up.
        pub limit: Option<Bits>,
        /// Number that is added to up.
        pub shift: Option<Bits>,
        /// Bound of a smoothly bounded gate.
        pub bend: Option<Bits>,
        /// Whether the product with `gate` has a bias.
        pub gate_bias: bool,
        /// Whether the product with `up` has a bias.
        pub up_bias: bool,
        /// Kernel of the products.
        pub strategy as "shape": MatmulStrategy,
        /// Prefetch distance and unrolling of the innermost loops, if tuned. The pace does not
        /// change the bits of the result.
        pub pace: Pace = Pace::default(),
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("gemv_swiglu_q4_k_r16", 1, "swiglu gate=q4_k_r16 up=q4_k_r16 k=2048 tile=256 n=5632 out=a8_super rows=5 shape=gemv"),
    row("gemv_swiglu_q4_k_r16_band", 1, "swiglu gate=q4_k_r16 up=q4_k_r16 k=2048 tile=32 n=5632 out=a8_super rows=5 shape=gemv"),
    row("gemv_swiglu_q4_k_r16_tile_band", 1, "swiglu gate=q4_k_r16 up=q4_k_r16 x=a8_super_tile k=768 tile=32 n=768 out=a8_super_tile rows=5 shape=gemv"),
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
    row("gemv_geglu_q8_0", 1, "swiglu gate=q8_0 up=q8_0 k=2048 tile=32 n=5632 out=a8_small rows=5 act=gelu shape=gemv"),
    row("gemm_swiglu_q8_0_biased", 48, "swiglu gate=q8_0 up=q8_0 k=2048 tile=32 n=2880 out=a8_small rows=48 act=quick_gelu limit=7.0 shift=1.0 gate_bias up_bias shape=gemm"),
    row("gemv_swiglu_q4_k_expert", 1, "swiglu gate=q4_k up=q4_k k=2048 tile=256 n=768 out=a8_super rows=5 shape=gemv"),
    row("gemv_swiglu_q4_k_expert_band", 1, "swiglu gate=q4_k up=q4_k k=2048 tile=32 n=768 out=a8_super rows=5 shape=gemv"),
    row("gemm_swiglu_q4_k_expert", 24, "swiglu gate=q4_k up=q4_k k=2048 tile=256 n=768 out=a8_super rows=48 shape=gemm"),
];

/// Returns the number of bytes between rows of sums in scratch memory: a cache line if tiles are
/// stored there, otherwise 0. Rows of sums are a multiple of 1 KiB. Without this line, the 16 rows
/// of a tile would share a few sets of the L1 cache.
fn pad(strategy: MatmulStrategy) -> i64 {
    match strategy {
        MatmulStrategy::Tiles => 64,
        MatmulStrategy::Gemv | MatmulStrategy::Gemm | MatmulStrategy::Gemm6 => 0,
    }
}

impl Swiglu {
    /// Returns the number of items that share a block of the result, or `None` if items write whole
    /// blocks.
    fn bands(&self) -> Option<i64> {
        let (tile, block) = (self.tile.max(1), self.out.block_len() as u32);
        (block > tile).then(|| i64::from(block / tile))
    }

    fn function(&self) -> Gate {
        let Swiglu { act, limit, shift, bend, .. } = *self;
        Gate { act, limit, shift, bend }
    }

    /// Returns the number of elements of a result row in `y`.
    fn row_elements(&self) -> u32 {
        self.tile.max(self.out.block_len() as u32)
    }
}

impl Definition for Swiglu {
    fn name(&self) -> String {
        let Swiglu { gate, up, x, k, tile, n, out, rows, gate_bias, up_bias, strategy, .. } = *self;
        let biases = format!("{}{}", if gate_bias { "_gb" } else { "" }, if up_bias { "_ub" } else { "" });
        let function = self.function().suffix();
        format!(
            "{}_swiglu_{gate}_{up}_{x}_{out}_m{rows}t{tile}n{n}k{k}{biases}{function}{}",
            strategy.word(),
            self.pace.suffix()
        )
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Activations(self.x, "x"))
            .read("gate", BufferContents::Weight(self.gate, "gate"))
            .read("up", BufferContents::Weight(self.up, "up"))
            .read_if(self.gate_bias, "gate_bias", BufferContents::Floats)
            .read_if(self.up_bias, "up_bias", BufferContents::Floats)
            .write("y", BufferContents::Activations(self.out, "out"))
            .scratch("scratch")
            .dims(self.strategy.dims())
            .dims(self.bands().map(|_| Dim { name: "band", value: Some(DimInput::Band.into()) }))
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let Swiglu { gate, up, x, k, tile, n, out, rows, gate_bias, up_bias, strategy, .. } = *self;
        let function = self.function();
        self.pace.check(&name)?;
        function.check(&name)?;
        let (x_row, gate_row) = check_strategy(&name, gate, x, k, tile, strategy, vectors)?;
        let (_, up_row) = check_strategy(&name, up, x, k, tile, strategy, vectors)?;
        quantise::check_format(&name, out, lanes)?;
        let expected = "f32, or a format whose blocks have their own scales";
        check_word(&name, "format of the result", out, !out.has_row_scale(), expected)?;
        check(&name, "rows of a strip of up", up.rows() as u64, up.rows() == gate.rows(), "that of gate")?;
        let x_format = x;
        let stored = self.row_elements();
        let (y_row, y_tile) = (quantise::row_bytes(&name, out, n)?, quantise::written_bytes(&name, out, stored)?);
        check(&name, "rows of the weight", u64::from(n), n >= stored, format!("at least {stored}"))?;
        if self.bands().is_some() {
            let sub = out.sub_block_len() as u32;
            let ok = tile.is_multiple_of(sub) && stored.is_multiple_of(tile);
            let expected = format!("a multiple of {stored}, or a multiple of {sub} that divides it");
            check(&name, "tile", u64::from(tile), ok, expected)?;
        }
        let most = i64::from(rows);
        let limit = super::max_rows(strategy, tile);
        check(&name, "rows", most.unsigned_abs(), most <= limit, format!("at most {limit}"))?;
        let mut b = KernelBuilder::new(name);
        let rows = Rows::dims(&mut b, strategy, most);
        let band = self.bands().map(|bands| b.dim("band", 0, bands - 1));
        let x = b.read("x", rows.count() * x_row);
        let weights = [b.read("gate", i64::from(tile) * gate_row), b.read("up", i64::from(tile) * up_row)];
        let mut bias = |name, there: bool| there.then(|| b.read(name, i64::from(tile) * 4));
        let biases = [bias("gate_bias", gate_bias), bias("up_bias", up_bias)];
        // The buffer ends with the item's elements of the last row.
        let y = b.write("y", rows.count() * y_row + (y_tile - y_row));
        // Scratch memory first has the two products of all rows, and then the scratch memory of a
        // single product.
        let row_bytes = i64::from(tile.next_multiple_of(STRIP as u32)) * 4 + pad(strategy);
        let product_bytes = (most + rows.max_rest()) * row_bytes;
        let bytes = [gate, up]
            .map(|format| scratch_bytes(format, x_format, k, tile, strategy, most, vectors))
            .into_iter()
            .max()
            .flatten();
        let scratch = b.buffer("scratch", BufferKind::Scratch, 2 * product_bytes + bytes.unwrap_or(0));
        let spare = bytes.map(|_| BufferOffset { buffer: scratch, at: 2 * product_bytes });
        for (i, (w, format)) in weights.into_iter().zip([gate, up]).enumerate() {
            let offset = i as i64 * product_bytes;
            let bias = biases[i];
            let fresh = bias.is_none() && stores(format, strategy);
            let to = Destination { buffer: scratch, offset: offset.into(), row_bytes, fresh };
            // Writes the initial values of the products: biases, and zeros in lanes without a
            // weight row.
            let before = |b: &mut KernelBuilder, row: Affine, count: u32| {
                b.for_each("r", i64::from(count), |b, r| {
                    let row = (row.clone() + r) * row_bytes + offset;
                    let padded = tile.next_multiple_of(STRIP as u32);
                    let Some(bias) = bias else {
                        for_vectors(b, lanes, padded, |b, at, lanes| {
                            let zero = b.splat_f32(lanes, 0.0);
                            b.store(scratch, row.clone() + at * 4, zero);
                        });
                        return;
                    };
                    for_vectors(b, lanes, tile, |b, at, lanes| {
                        let v = b.load(Type::f32(lanes), bias, at.clone() * 4);
                        b.store(scratch, row.clone() + at * 4, v);
                    });
                    for at in i64::from(tile)..padded.into() {
                        let zero = b.splat_f32(1, 0.0);
                        b.store(scratch, row.clone() + at * 4, zero);
                    }
                });
            };
            if !fresh {
                rows.for_each(&mut b, before);
            }
            let w = BufferOffset { buffer: w, at: 0 };
            let product = Product { format, k, tile, x, x_format, w, strategy, vectors, scratch: spare };
            multiply(&mut b, &product, &rows, &to);
        }
        // The result of the gated linear unit replaces the gate's product, and is then read for
        // quantisation.
        rows.for_each(&mut b, |b, row, count| {
            b.for_each("r", i64::from(count), |b, r| {
                let from = (row.clone() + r) * row_bytes;
                for_vectors(b, lanes, tile, |b, at, lanes| {
                    let g = b.load(Type::f32(lanes), scratch, from.clone() + at.clone() * 4);
                    let u = b.load(Type::f32(lanes), scratch, from.clone() + at.clone() * 4 + product_bytes);
                    let v = function.apply(b, g, u);
                    b.store(scratch, from.clone() + at * 4, v);
                });
                let to = (row.clone() + r) * y_row;
                let values: Values<'_> = &mut |b, at, lanes| b.load(Type::f32(lanes), scratch, from.clone() + at * 4);
                match band {
                    Some(band) => {
                        let to = Address { buffer: y, offset: to };
                        quantise::store_band(b, lanes, out, tile, band.into(), to, values);
                    }
                    None => quantise::store_row(b, lanes, out, tile, y, to, values),
                }
            });
        });
        Ok(self.pace.apply(b.finish()))
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let Swiglu { gate, up, x, k, tile, n, out, strategy, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let rows = strategy.rows(run.dims) as usize;
        let (k, tile, n) = (k as usize, tile as usize, n as usize);
        let x = input.rows("x", x, k)?;
        let (g, u) = (input.weight("gate", gate, k)?, input.weight("up", up, k)?);
        let [gate_bias, up_bias] = ["gate_bias", "up_bias"].map(|name| input.find(name).map(floats));
        let function = self.function();
        let (bytes, before) = (output.get("y")?, input.get("y")?);
        let stored = self.row_elements() as usize;
        let row = out.row_bytes(n as u64).unwrap_or(0) as usize;
        let part = stored / out.block_len() * out.block_bytes();
        let band = run.dim("band") as usize;
        for r in 0..rows {
            let mut y = vec![0f32; stored];
            out.dequantise(&bytes[r * row..][..part], &mut y);
            let y = &y[band * tile..][..tile];
            // An item writes only its own part of each field, and not those of other bands of the
            // block.
            for field in out.row().fields.iter().filter(|_| self.bands().is_some()) {
                let share = field.bytes * tile / stored;
                for at in (0..field.bytes).filter(|at| at / share != band).map(|at| r * row + field.offset + at) {
                    equal("y", &bytes[at..=at], &before[at..=at])?;
                }
            }
            let x = &x[r * k..][..k];
            let products = |w: &[f64], bias: &Option<Vec<f64>>| -> Vec<(f64, f64)> {
                let bias = |c: usize| bias.as_ref().map_or(0.0, |bias| bias[c]);
                let product = |c| (dot(x, &w[c * k..][..k]), bias(c));
                (0..tile).map(product).map(|((v, magnitude), bias)| (v + bias, magnitude + bias.abs())).collect()
            };
            let (g, u) = (products(&g, &gate_bias), products(&u, &up_bias));
            let gated: Vec<_> = g.iter().zip(&u).map(|((g, _), (u, _))| function.exact(*g, *u)).collect();
            let expected: Vec<f64> = gated.iter().map(|gated| gated.value).collect();
            // Returns the error bound of one product, as for `Linear`.
            let off = |(_, magnitude): (f64, f64)| (magnitude + 1.0) * relative(gate, k, strategy);
            for (c, y) in y.iter().enumerate() {
                let len = out.sub_block_len();
                let block = &expected[c / len * len..][..len];
                let amax = block.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
                // The error is that of quantisation, which depends on the block's largest element,
                // plus the errors of the products.
                let products = off(g[c]) * gated[c].slope_of_gate + off(u[c]) * gated[c].slope_of_up;
                let bound = step(out, amax) * 1.01 + products + (amax + 1.0) * 1e-5;
                close(format_args!("y[{r}, {c}]"), f64::from(*y), expected[c], bound)?;
            }
        }
        Ok(())
    }

    /// Returns the values of the dims for a number of rows. The band depends on the number of rows,
    /// so that tests cover all bands.
    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        let band = self.bands().map(|bands| i64::from(rows) % bands);
        self.strategy.dim_values(rows).into_iter().chain(band).collect()
    }

    fn max_rows(&self) -> u32 {
        self.rows
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let multiply_adds = 2 * multiply_adds(self.strategy, self.k, self.tile, call.dims);
        let bytes = call.bytes("gate") + call.bytes("up");
        Work { bytes, multiply_adds, arithmetic: arithmetic(self.x, self.strategy) }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
