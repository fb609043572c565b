//! Sum of the squares of one piece of a row. It is the first half of a norm of a row that is
//! divided into pieces. [`crate::RmsNormPiece`] is the second half.

use ixc_ir::kernel::{Affine, Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::rms;
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;

spec! {
    /// Sum of the squares of a piece of a row.
    pub struct SumSquares "sum_squares" {
        /// Number of elements of the piece.
        pub n: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("sum_squares", 1, "sum_squares n=512"),
];

impl Definition for SumSquares {
    fn name(&self) -> String {
        format!("sum_squares_n{}", self.n)
    }

    fn signature(&self) -> Signature {
        Signature::new().read("x", BufferContents::Floats).write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let SumSquares { n } = *self;
        let mut b = KernelBuilder::new(name);
        let (x, y) = (b.read("x", i64::from(n) * 4), b.write("y", 4));
        let sum = rms::squares(&mut b, lanes, n, |b, at, lanes| b.load(Type::f32(lanes), x, at * 4));
        b.store(y, Affine::constant(0), sum);
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let expected: f64 = run.input().floats("x")?.iter().map(|x| x * x).sum();
        let y = run.output().floats("y")?;
        y.iter().try_for_each(|y| close(format_args!("y"), *y, expected, expected * 1e-5))
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
