//! Multiplication of a part of a row by one number. Gates of heads and of shared experts use it.

use ixc_ir::kernel::{Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, UNIT, close, floats};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;

spec! {
    /// `y = s * x [+ residual]`, with the same number `s` for all elements.
    pub struct ScaleHeads "scale_heads" {
        /// Number of elements of the part.
        pub n: u32,
        /// Whether a residual is added.
        pub residual: bool,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("scale_heads", 1, "scale_heads n=128"),
    row("scale_heads_add", 1, "scale_heads n=2048 residual"),
];

impl Definition for ScaleHeads {
    fn name(&self) -> String {
        let ScaleHeads { n, residual } = *self;
        format!("scale_heads_n{n}{}", if residual { "_add" } else { "" })
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Floats)
            .read("s", BufferContents::Floats)
            .read_if(self.residual, "residual", BufferContents::Floats)
            .write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let (ScaleHeads { n, residual }, size) = (*self, i64::from(self.n) * 4);
        let mut b = KernelBuilder::new(name);
        let (x, s) = (b.read("x", size), b.read("s", 4));
        let base = residual.then(|| b.read("residual", size));
        let y = b.write("y", size);
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let factor = b.load_splat(Type::f32(lanes), s, 0);
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            let v = match base {
                Some(base) => {
                    let base = b.load(Type::f32(lanes), base, at.clone() * 4);
                    b.fma(v, factor, base)
                }
                None => b.mul(v, factor),
            };
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let (x, s) = (input.floats("x")?, input.floats("s")?);
        let residual = input.find("residual").map(floats);
        for (i, y) in output.floats("y")?.iter().enumerate() {
            let expected = x[i] * s[0] + residual.as_ref().map_or(0.0, |r| r[i]);
            // The bound covers one rounding, of a product or of a fused multiply-add.
            close(format_args!("y[{i}]"), *y, expected, expected.abs() * UNIT)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
