//! Update of the streams of a hyper-connection: a matrix of the row mixes them, and the output of a
//! block (attention or network) is added.
//!
//! For n streams of a row, `z[k] = w[n + k] * y + sum over j of w[(2 + j) * n + k] * x[j]`, in the
//! order of j. Without a matrix (`apart`), `z[k] = w[n + k] * y + x[k]`. Vector lanes are elements:
//! each element of all streams is loaded once, and every sum is in a register.

use ixc_ir::kernel::{Affine, Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::reference::{Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;
use crate::ops::stream_weights::{MAX_STREAMS, row_len};

spec! {
    /// Streams of a row after a block, for a range of their elements.
    pub struct StreamMix "stream_mix" {
        /// Number of residual streams of the hyper-connection.
        pub streams: u32,
        /// Number of elements of a row of one residual stream.
        pub d: u32,
        /// Number of elements that a call computes.
        pub n: u32,
        /// Whether there is no matrix, so that streams are not mixed.
        pub apart: bool,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("stream_mix", 1, "stream_mix streams=4 d=4096 n=512"),
    row("stream_mix_apart", 1, "stream_mix streams=4 d=2816 n=512 apart"),
];

impl Definition for StreamMix {
    fn name(&self) -> String {
        let StreamMix { streams, d, n, apart } = *self;
        format!("stream_mix_s{streams}d{d}n{n}{}", if apart { "_apart" } else { "" })
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Floats)
            .read("y", BufferContents::Floats)
            .read("w", BufferContents::Floats)
            .write("z", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let StreamMix { streams, d, n, apart } = *self;
        check(&name, "elements", n.into(), n > 0 && n <= d, "1 to those of a stream")?;
        let most = format!("1 to {MAX_STREAMS}");
        check(&name, "streams", streams.into(), (1..=MAX_STREAMS).contains(&streams), most)?;
        let (count, stream, own) = (i64::from(streams), i64::from(d) * 4, i64::from(n) * 4);
        let mut b = KernelBuilder::new(name);
        let x = b.read("x", (count - 1) * stream + own);
        let y = b.read("y", own);
        let w = b.read("w", if apart { 2 * count } else { row_len(count) } * 4);
        let z = b.write("z", (count - 1) * stream + own);
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let ty = Type::f32(lanes);
            let at: Affine = at * 4;
            let before: Vec<_> = (0..count).map(|j| b.load(ty, x, at.clone() + j * stream)).collect();
            let new = b.load(ty, y, at.clone());
            for k in 0..count {
                let factor = b.load_splat(ty, w, (count + k) * 4);
                let sum = match apart {
                    true => b.fma(new, factor, before[k as usize]),
                    false => {
                        let own = b.mul(new, factor);
                        before.iter().zip(0..).fold(own, |sum, (&x, j)| {
                            let factor = b.load_splat(ty, w, ((2 + j) * count + k) * 4);
                            b.fma(x, factor, sum)
                        })
                    }
                };
                b.store(z, at.clone() + k * stream, sum);
            }
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let (streams, d) = (self.streams as usize, self.d as usize);
        let (x, y, w, z) = (input.floats("x")?, input.floats("y")?, input.floats("w")?, output.floats("z")?);
        for (i, y) in y.iter().enumerate() {
            for k in 0..streams {
                let factor = |j: usize| match self.apart {
                    true => f64::from(u8::from(j == k)),
                    false => w[(2 + j) * streams + k],
                };
                let products = || (0..streams).map(|j| factor(j) * x[j * d + i]);
                let own = w[streams + k] * y;
                let size = products().map(f64::abs).sum::<f64>() + own.abs();
                let bound = size * (streams + 1) as f64 * UNIT;
                close(format_args!("z[{k}, {i}]"), z[k * d + i], own + products().sum::<f64>(), bound)?;
            }
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
