//! Multiplication of a row by a constant: `y = factor * x`. Some models scale embeddings and logits
//! in this way.

use ixc_ir::kernel::{Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, spec};
use crate::generator::vectors::for_vectors;

spec! {
    /// `y = factor * x`, for one row.
    pub struct Scale "scale" {
        /// Number of elements of a row.
        pub n: u32,
        /// Factor on each element.
        pub factor: Bits,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("scale", 1, "scale n=2048 factor=12.0"),
];

impl Definition for Scale {
    fn name(&self) -> String {
        let Scale { n, factor } = *self;
        format!("scale_n{n}_f{:x}", factor.0)
    }

    fn signature(&self) -> Signature {
        Signature::new().read("x", BufferContents::Floats).write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let (Scale { n, factor }, size) = (*self, i64::from(self.n) * 4);
        let mut b = KernelBuilder::new(name);
        let (x, y) = (b.read("x", size), b.write("y", size));
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            let factor = b.splat_f32(lanes, factor.value());
            let v = b.mul(v, factor);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (x, y) = (run.input().floats("x")?, run.output().floats("y")?);
        for (i, (x, y)) in x.iter().zip(&y).enumerate() {
            // The expected result has one rounding, in f32.
            close(format_args!("y[{i}]"), *y, f64::from(*x as f32 * self.factor.value()), 0.0)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
