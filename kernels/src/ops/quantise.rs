//! Quantisation of a row of activations. [`crate::generator::quantise`] has the formula, and the
//! code for all formats.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::quantise::{check_format, store_row, written_bytes};
use crate::generator::reference::{Mismatch, Run, equal};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;

spec! {
    /// Conversion of a row to the format `out`.
    pub struct Quantise "quantise" {
        /// Number of elements of a row.
        pub n: u32,
        /// Format of the result.
        pub out: Format,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("quantise_a8_super", 1, "quantise n=5632 out=a8_super"),
    row("quantise_a8_small", 1, "quantise n=5632 out=a8_small"),
    row("quantise_bf16x1", 1, "quantise n=5632 out=bf16x1"),
    row("quantise_a8_row", 1, "quantise n=5632 out=a8_row"),
];

impl Definition for Quantise {
    fn name(&self) -> String {
        format!("quantise_{}_n{}", self.out, self.n)
    }

    fn signature(&self) -> Signature {
        Signature::new().read("x", BufferContents::Floats).write("y", BufferContents::Activations(self.out, "out"))
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let Quantise { n, out } = *self;
        let bytes = written_bytes(&name, out, n)?;
        check_format(&name, out, lanes)?;
        let mut b = KernelBuilder::new(name);
        let (x, y) = (b.read("x", i64::from(n) * 4), b.write("y", bytes));
        store_row(&mut b, lanes, out, n, y, Affine::constant(0), &mut |b, at, lanes| {
            b.load(Type::f32(lanes), x, at * 4)
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let x: Vec<f32> = run.input().floats("x")?.iter().map(|x| *x as f32).collect();
        equal("y", run.output().get("y")?, &ixc_ir::graph::quantise::quantise(self.out, &x))
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
