//! Soft cap: a smooth bound of values, `y = cap * tanh(x / cap)`. Gemma uses it for scores and
//! logits.

use ixc_ir::kernel::{Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::math;
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, spec};
use crate::generator::vectors::for_vectors;

spec! {
    /// `y = cap * tanh(x / cap)`, for one row.
    pub struct Softcap "softcap" {
        /// Number of elements of a row.
        pub n: u32,
        /// Bound of the magnitude of results, above 0.
        pub cap: Bits,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("softcap", 1, "softcap n=32000 cap=30.0"),
];

impl Definition for Softcap {
    fn name(&self) -> String {
        let Softcap { n, cap } = *self;
        format!("softcap_n{n}_c{:x}", cap.0)
    }

    fn signature(&self) -> Signature {
        Signature::new().read("x", BufferContents::Floats).write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let (Softcap { n, cap }, size) = (*self, i64::from(self.n) * 4);
        let ok = math::is_cap(cap.value());
        check(&name, "cap (its bits)", cap.0.into(), ok, "the bits of a number above 0 with a finite inverse")?;
        let mut b = KernelBuilder::new(name);
        let (x, y) = (b.read("x", size), b.write("y", size));
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            let v = math::softcap(b, v, cap.value());
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (x, y, cap) = (run.input().floats("x")?, run.output().floats("y")?, f64::from(self.cap.value()));
        for (i, (x, y)) in x.iter().zip(&y).enumerate() {
            let expected = cap * (x / cap).tanh();
            close(format_args!("y[{i}]"), *y, expected, expected.abs() * math::SOFTCAP_BOUND)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
