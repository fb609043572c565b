//! Gated linear units: an activation function of the gate, times the up projection, element by
//! element. [`crate::generator::gate`] has the functions.

use ixc_ir::graph::attrs::Activation;
use ixc_ir::kernel::{Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::gate::Gate;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{EXP_BOUND, Mismatch, Run, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, spec};
use crate::generator::vectors::for_vectors;

spec! {
    /// `y = act(min(gate, limit)) * (clamp(up, -limit, limit) + shift)`. Some activations use
    /// `min(act(gate), limit)` instead.
    pub struct Gated "gated" {
        /// Activation function of the gate.
        pub act: Activation,
        /// Number of elements of a row.
        pub n: u32,
        /// Maximum of the gate, and of the magnitude of up.
        pub limit: Option<Bits>,
        /// Number that is added to up.
        pub shift: Option<Bits>,
        /// Bound of a smoothly bounded gate.
        pub bend: Option<Bits>,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("gated_silu", 1, "gated act=silu n=5632"),
    row("gated_gelu", 1, "gated act=gelu n=5632"),
    row("gated_quick_gelu", 1, "gated act=quick_gelu n=2880 limit=7.0 shift=1.0"),
    row("gated_limited_silu", 1, "gated act=limited_silu n=1280 limit=7.0"),
    row("gated_bent_silu", 1, "gated act=bent_silu n=3072 limit=25.0 bend=4.0"),
];

impl Gated {
    fn gate(&self) -> Gate {
        let Gated { act, limit, shift, bend, .. } = *self;
        Gate { act, limit, shift, bend }
    }
}

impl Definition for Gated {
    fn name(&self) -> String {
        format!("gated_{}_n{}{}", self.act.word(), self.n, Gate { act: Activation::Silu, ..self.gate() }.suffix())
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("gate", BufferContents::Floats)
            .read("up", BufferContents::Floats)
            .write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let (gate, size) = (self.gate(), i64::from(self.n) * 4);
        gate.check(&name)?;
        let mut b = KernelBuilder::new(name);
        let (g, u, y) = (b.read("gate", size), b.read("up", size), b.write("y", size));
        for_vectors(&mut b, vectors.lanes, self.n, |b, at, lanes| {
            let g = b.load(Type::f32(lanes), g, at.clone() * 4);
            let u = b.load(Type::f32(lanes), u, at.clone() * 4);
            let v = gate.apply(b, g, u);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (g, u) = (run.input().floats("gate")?, run.input().floats("up")?);
        for (i, y) in run.output().floats("y")?.iter().enumerate() {
            let expected = self.gate().exact(g[i], u[i]).value;
            close(format_args!("y[{i}]"), *y, expected, (expected.abs() + 1e-3) * EXP_BOUND)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
