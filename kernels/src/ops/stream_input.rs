//! Input of a block (attention or network): the streams of a hyper-connection, each multiplied by
//! its weight for the row, and added in order.

use ixc_ir::kernel::{Affine, Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::reference::{Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;
use crate::ops::stream_weights::MAX_STREAMS;

spec! {
    /// `y = sum over streams j of w[j] * x[j]`, for a range of the elements.
    pub struct StreamInput "stream_input" {
        /// Number of residual streams of the hyper-connection.
        pub streams: u32,
        /// Number of elements of a row of one residual stream.
        pub d: u32,
        /// Number of elements that a call computes.
        pub n: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("stream_input", 1, "stream_input streams=4 d=4096 n=512"),
];

impl Definition for StreamInput {
    fn name(&self) -> String {
        let StreamInput { streams, d, n } = *self;
        format!("stream_input_s{streams}d{d}n{n}")
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Floats)
            .read("w", BufferContents::Floats)
            .write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let StreamInput { streams, d, n } = *self;
        check(&name, "elements", n.into(), n > 0 && n <= d, "1 to those of a stream")?;
        let most = format!("1 to {MAX_STREAMS}");
        check(&name, "streams", streams.into(), (1..=MAX_STREAMS).contains(&streams), most)?;
        let (count, stream, own) = (i64::from(streams), i64::from(d) * 4, i64::from(n) * 4);
        let mut b = KernelBuilder::new(name);
        let x = b.read("x", (count - 1) * stream + own);
        let w = b.read("w", count * 4);
        let y = b.write("y", own);
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let ty = Type::f32(lanes);
            let at: Affine = at * 4;
            let first = b.load(ty, x, at.clone());
            let factor = b.load_splat(ty, w, 0);
            let mut sum = b.mul(first, factor);
            for j in 1..count {
                let stream = b.load(ty, x, at.clone() + j * stream);
                let factor = b.load_splat(ty, w, j * 4);
                sum = b.fma(stream, factor, sum);
            }
            b.store(y, at, sum);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let (streams, d) = (self.streams as usize, self.d as usize);
        let (x, w) = (input.floats("x")?, input.floats("w")?);
        for (i, y) in output.floats("y")?.iter().enumerate() {
            let products = || (0..streams).map(|j| w[j] * x[j * d + i]);
            let bound = products().map(f64::abs).sum::<f64>() * streams as f64 * UNIT;
            close(format_args!("y[{i}]"), *y, products().sum(), bound)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
