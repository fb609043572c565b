//! Multiplication of a row by a number from a buffer, such as an expert's factor.

use ixc_ir::kernel::{Affine, Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;

spec! {
    /// `y = x * s`, with the same number `s` for the whole row.
    pub struct ScaleBy "scale_by" {
        /// Number of elements of a row.
        pub n: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("scale_by", 1, "scale_by n=2048"),
];

impl Definition for ScaleBy {
    fn name(&self) -> String {
        format!("scale_by_n{}", self.n)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Floats)
            .read("s", BufferContents::Floats)
            .write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let ScaleBy { n } = *self;
        let mut b = KernelBuilder::new(name);
        let size = i64::from(n) * 4;
        let (x, s, y) = (b.read("x", size), b.read("s", 4), b.write("y", size));
        for_vectors(&mut b, lanes, n, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            let s = b.load_splat(Type::f32(lanes), s, Affine::constant(0));
            let v = b.mul(v, s);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let (x, s) = (input.floats("x")?, input.floats("s")?);
        for (i, y) in output.floats("y")?.iter().enumerate() {
            close(format_args!("y[{i}]"), *y, f64::from((x[i] * s[0]) as f32), 0.0)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
