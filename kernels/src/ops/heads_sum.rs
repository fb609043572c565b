//! Sum of a head's elements.

use ixc_ir::kernel::{Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::{SUM, fold_row};

spec! {
    /// Sum of the elements of one head, stored to `y`.
    pub struct HeadsSum "heads_sum" {
        /// Number of elements of a head.
        pub n: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("heads_sum", 1, "heads_sum n=2560"),
];

impl Definition for HeadsSum {
    fn name(&self) -> String {
        format!("heads_sum_n{}", self.n)
    }

    fn signature(&self) -> Signature {
        Signature::new().read("x", BufferContents::Floats).write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let mut b = KernelBuilder::new(name);
        let (x, y) = (b.read("x", i64::from(self.n) * 4), b.write("y", 4));
        let sum = fold_row(&mut b, vectors.lanes, self.n, SUM, |b, at, lanes, sum| {
            let v = b.load(Type::f32(lanes), x, at * 4);
            b.add(sum, v)
        });
        b.store(y, 0, sum);
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (x, y) = (run.input().floats("x")?, run.output().floats("y")?);
        let size = x.iter().map(|x| x.abs()).sum::<f64>();
        close(format_args!("y"), y[0], x.iter().sum(), size * (x.len() as f64 + 1.0) * UNIT)
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
