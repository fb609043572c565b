//! Subtraction of a row's mean. Layer norms do this before they divide by the root mean square.

use ixc_ir::kernel::{Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::{SUM, fold_row, for_vectors};

spec! {
    /// `y = x - mean(x)`, for one row.
    pub struct Centre "centre" {
        /// Number of elements of a row.
        pub n: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("centre", 1, "centre n=2048"),
];

impl Definition for Centre {
    fn name(&self) -> String {
        format!("centre_n{}", self.n)
    }

    fn signature(&self) -> Signature {
        Signature::new().read("x", BufferContents::Floats).write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let (n, size) = (self.n, i64::from(self.n) * 4);
        let mut b = KernelBuilder::new(name);
        let (x, y) = (b.read("x", size), b.write("y", size));
        let sum = fold_row(&mut b, vectors.lanes, n, SUM, |b, at, lanes, sum| {
            let v = b.load(Type::f32(lanes), x, at * 4);
            b.add(sum, v)
        });
        let per_element = b.splat_f32(1, 1.0 / n.max(1) as f32);
        let mean = b.mul(sum, per_element);
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            let mean = if lanes == 1 { mean } else { b.broadcast(lanes, mean) };
            let v = b.sub(v, mean);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (x, y) = (run.input().floats("x")?, run.output().floats("y")?);
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        // The bound covers one rounding for each addition, and one each for the inverse, the
        // product and the difference.
        let size = x.iter().map(|x| x.abs()).sum::<f64>();
        for (i, (x, y)) in x.iter().zip(&y).enumerate() {
            close(format_args!("y[{i}]"), *y, x - mean, (size * (n + 2.0) / n + (x - mean).abs()) * UNIT)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
