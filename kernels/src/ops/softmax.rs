//! Softmax of a row of logits, for the sampler.

use ixc_ir::kernel::{BufferKind, Kernel, KernelBuilder, Op, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::math;
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::{Fold, LOWEST, SUM, fold_row, for_vectors};

spec! {
    /// Probabilities of tokens from logits: `e^((x - max) / temperature)`, divided by the sum.
    pub struct Softmax "softmax" {
        /// Number of elements of a row.
        pub n: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("softmax", 1, "softmax n=32000"),
];

impl Definition for Softmax {
    fn name(&self) -> String {
        format!("softmax_n{}", self.n)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("logits", BufferContents::Floats)
            .read("inverse_temperature", BufferContents::Floats)
            .write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let Softmax { n } = *self;
        let mut b = KernelBuilder::new(name);
        let size = i64::from(n) * 4;
        let x = b.read("logits", size);
        let inverse_temperature = b.read("inverse_temperature", 4);
        let y = b.buffer("y", BufferKind::ReadWrite, size);
        let max = Fold { start: LOWEST, reduce: Op::ReduceMax, combine: Op::Max };
        let max = fold_row(&mut b, lanes, n, max, |b, at, lanes, acc| {
            let v = b.load(Type::f32(lanes), x, at * 4);
            b.same(Op::Max, &[acc, v])
        });
        let sum = fold_row(&mut b, lanes, n, SUM, |b, at, lanes, acc| {
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            let max = if lanes == 1 { max } else { b.broadcast(lanes, max) };
            let v = b.sub(v, max);
            let factor = b.load_splat(Type::f32(lanes), inverse_temperature, 0);
            let v = b.mul(v, factor);
            let e = math::exp(b, v);
            b.store(y, at * 4, e);
            b.add(acc, e)
        });
        let one = b.splat_f32(1, 1.0);
        let inverse = b.same(Op::Div, &[one, sum]);
        for_vectors(&mut b, lanes, n, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), y, at.clone() * 4);
            let inverse = if lanes == 1 { inverse } else { b.broadcast(lanes, inverse) };
            let v = b.mul(v, inverse);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let x = input.floats("logits")?;
        let factor = input.floats("inverse_temperature")?.first().copied().unwrap_or(1.0);
        let max = x.iter().copied().fold(f64::MIN, f64::max);
        let e: Vec<f64> = x.iter().map(|x| ((x - max) * factor).exp()).collect();
        let sum: f64 = e.iter().sum();
        for (i, y) in output.floats("y")?.iter().enumerate() {
            close(format_args!("y[{i}]"), *y, e[i] / sum, e[i] / sum * 1e-5 + 1e-9)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
