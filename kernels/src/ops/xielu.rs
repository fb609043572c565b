//! Activation function xIELU (Huang and Schlag, "Deriving Activation Functions Using Integration",
//! arXiv 2411.13010). Apertus uses it between the up and down projections. It is a parabola above
//! 0, and an integrated ELU below.
//!
//! ```text
//! y = alpha_p * x^2 + beta * x                                  x > 0
//! y = alpha_n * (exp(min(x, eps)) - 1 - x) + beta * x           elsewhere
//! ```

use ixc_ir::kernel::{Kernel, KernelBuilder, Op, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::math;
use crate::generator::reference::{EXP_BOUND, Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, spec};
use crate::generator::vectors::for_vectors;

spec! {
    /// xIELU of each element of a row.
    pub struct Xielu "xielu" {
        /// Number of elements of a row.
        pub n: u32,
        /// Factor of the function below 0.
        pub alpha_n: Bits,
        /// Factor of the square above 0.
        pub alpha_p: Bits,
        /// Slope at 0.
        pub beta: Bits,
        /// Upper bound of the exponent.
        pub eps: Bits,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("xielu", 1, "xielu n=21504 alpha_n=0.8 alpha_p=0.8 beta=0.5 eps=-1e-6"),
];

impl Definition for Xielu {
    fn name(&self) -> String {
        let Xielu { n, alpha_n, alpha_p, beta, eps } = *self;
        format!("xielu_n{n}_{:x}_{:x}_{:x}_{:x}", alpha_n.0, alpha_p.0, beta.0, eps.0)
    }

    fn signature(&self) -> Signature {
        Signature::new().read("x", BufferContents::Floats).write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let (Xielu { n, alpha_n, alpha_p, beta, eps }, size) = (*self, i64::from(self.n) * 4);
        let mut b = KernelBuilder::new(name);
        let (x, y) = (b.read("x", size), b.write("y", size));
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let (floats, bits) = (Type::f32(lanes), Type::i32(lanes));
            let v = b.load(floats, x, at.clone() * 4);
            let [alpha_n, alpha_p, beta, eps] = [alpha_n, alpha_p, beta, eps].map(|x| b.splat_f32(lanes, x.value()));
            let [zero, one] = [0.0, 1.0].map(|x| b.splat_f32(lanes, x));
            let slope = b.fma(alpha_p, v, beta);
            let above = b.mul(slope, v);
            let exponent = b.same(Op::Min, &[v, eps]);
            let power = math::exp(b, exponent);
            let power = b.sub(power, one);
            let curve = b.sub(power, v);
            let line = b.mul(beta, v);
            let below = b.fma(alpha_n, curve, line);
            let is_above = b.op(Op::CmpLtF, bits, &[zero, v]);
            let v = b.op(Op::Select, floats, &[is_above, above, below]);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (x, y) = (run.input().floats("x")?, run.output().floats("y")?);
        let [alpha_n, alpha_p, beta, eps] =
            [self.alpha_n, self.alpha_p, self.beta, self.eps].map(|x| f64::from(x.value()));
        for (i, (&x, y)) in x.iter().zip(&y).enumerate() {
            let (expected, terms) = if x > 0.0 {
                (x * (alpha_p * x + beta), x * ((alpha_p * x).abs() + beta.abs()))
            } else {
                let power = x.min(eps).exp();
                let curve = alpha_n.abs() * (power + 1.0 + x.abs());
                (alpha_n * (power - 1.0 - x) + beta * x, curve + (beta * x).abs())
            };
            // The bound covers the error of an exponential, and of four additions whose terms may
            // cancel.
            close(format_args!("y[{i}]"), *y, expected, terms * (EXP_BOUND + 4.0 * UNIT))?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
