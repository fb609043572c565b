//! Clamp to a limit: `y = min(max(x, -limit), limit)`. OLMo, DBRX and MPT clamp queries, keys and
//! values.

use ixc_ir::kernel::{Kernel, KernelBuilder, Op, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, spec};
use crate::generator::vectors::for_vectors;

spec! {
    /// `y = min(max(x, -limit), limit)`, for one row.
    pub struct Clamp "clamp" {
        /// Number of elements of a row.
        pub n: u32,
        /// Maximum magnitude of a result, 0 or above.
        pub limit: Bits,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("clamp", 1, "clamp n=8192 limit=8.0"),
];

impl Definition for Clamp {
    fn name(&self) -> String {
        let Clamp { n, limit } = *self;
        format!("clamp_n{n}_c{:x}", limit.0)
    }

    fn signature(&self) -> Signature {
        Signature::new().read("x", BufferContents::Floats).write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let (Clamp { n, limit }, size) = (*self, i64::from(self.n) * 4);
        check(&name, "limit (its bits)", limit.0.into(), limit.value() >= 0.0, "those of 0 or a number above it")?;
        let mut b = KernelBuilder::new(name);
        let (x, y) = (b.read("x", size), b.write("y", size));
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            let [least, most] = [-limit.value(), limit.value()].map(|x| b.splat_f32(lanes, x));
            let v = b.same(Op::Max, &[v, least]);
            let v = b.same(Op::Min, &[v, most]);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (x, y, limit) = (run.input().floats("x")?, run.output().floats("y")?, f64::from(self.limit.value()));
        for (i, (x, y)) in x.iter().zip(&y).enumerate() {
            close(format_args!("y[{i}]"), *y, x.clamp(-limit, limit), 0.0)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
