//! Addition of a bias vector to a row.

use ixc_ir::kernel::{Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;

spec! {
    /// `y = x + bias`.
    pub struct AddBias "add_bias" {
        /// Number of elements of a row.
        pub n: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("add_bias", 1, "add_bias n=2048"),
];

impl Definition for AddBias {
    fn name(&self) -> String {
        format!("add_bias_n{}", self.n)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Floats)
            .read("bias", BufferContents::Floats)
            .write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let AddBias { n } = *self;
        let mut b = KernelBuilder::new(name);
        let size = i64::from(n) * 4;
        let (x, bias, y) = (b.read("x", size), b.read("bias", size), b.write("y", size));
        for_vectors(&mut b, lanes, n, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            let o = b.load(Type::f32(lanes), bias, at.clone() * 4);
            let v = b.add(v, o);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let (x, bias) = (input.floats("x")?, input.floats("bias")?);
        for (i, y) in output.floats("y")?.iter().enumerate() {
            close(format_args!("y[{i}]"), *y, f64::from((x[i] + bias[i]) as f32), 0.0)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
