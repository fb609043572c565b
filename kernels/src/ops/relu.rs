//! ReLU with a threshold: `y = max(x - from, 0)`. With `from` = 0, it is the usual ReLU. With a
//! higher threshold, few results are above 0: in Gemma 3n, the threshold is several standard
//! deviations above the mean of the gate.

use ixc_ir::kernel::{Kernel, KernelBuilder, Op, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, spec};
use crate::generator::vectors::for_vectors;

spec! {
    /// `y = max(x - from, 0)`, for one row.
    pub struct Relu "relu" {
        /// Number of elements of a row.
        pub n: u32,
        /// Threshold that is subtracted.
        pub from: Bits,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("relu", 1, "relu n=8192 from=1.6448"),
];

impl Definition for Relu {
    fn name(&self) -> String {
        let Relu { n, from } = *self;
        format!("relu_n{n}_f{:x}", from.0)
    }

    fn signature(&self) -> Signature {
        Signature::new().read("x", BufferContents::Floats).write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let (Relu { n, from }, size) = (*self, i64::from(self.n) * 4);
        let mut b = KernelBuilder::new(name);
        let (x, y) = (b.read("x", size), b.write("y", size));
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            let [from, zero] = [from.value(), 0.0].map(|x| b.splat_f32(lanes, x));
            let v = b.sub(v, from);
            let v = b.same(Op::Max, &[v, zero]);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (x, y) = (run.input().floats("x")?, run.output().floats("y")?);
        for (i, (x, y)) in x.iter().zip(&y).enumerate() {
            // The expected result has one rounding, in f32.
            close(format_args!("y[{i}]"), *y, f64::from((*x as f32 - self.from.value()).max(0.0)), 0.0)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
