//! Elementwise functions of one or two rows.

use ixc_ir::erf::erf;
use ixc_ir::kernel::{Kernel, KernelBuilder, Op, Type};
use serde::{Deserialize, Serialize};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::math;
use crate::generator::reference::{EXP_BOUND, Mismatch, Run, close, floats, silu};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Words, spec, words};
use crate::generator::vectors::for_vectors;

/// A function that is applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Elementwise {
    /// `a + b`.
    Add,
    /// `a * b`.
    Mul,
    /// `a / (1 + exp(-a))`.
    Silu,
    /// `1 / (1 + exp(-a))`.
    Sigmoid,
    /// `max(a, 0)^2`.
    ReluSquared,
    /// `ln(1 + exp(a))`.
    Softplus,
    /// `a / 2 * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 a^3)))`.
    Gelu,
    /// `sqrt(max(|a|, 1e-6))` with the sign of `a`; 0 for 0.
    SignedRoot,
    /// `a / 2 * (1 + erf(a / sqrt(2)))`.
    GeluErf,
    /// `exp(a)`, for a from -87.3 to 88.
    Exp,
}

/// Minimum magnitude for [`Elementwise::SignedRoot`]. Smaller magnitudes are raised to it.
const MIN_ROOT_INPUT: f32 = 1e-6;

words! {
    Elementwise {
        Add "add", Mul "mul", Silu "silu", Sigmoid "sigmoid", ReluSquared "relu_squared", Softplus "softplus", Gelu "gelu",
        SignedRoot "signed_root", GeluErf "gelu_erf", Exp "exp"
    }
}

impl Elementwise {
    /// Whether the function has a second operand, `b`.
    pub fn has_second(self) -> bool {
        match self {
            Elementwise::Add | Elementwise::Mul => true,
            Elementwise::Silu
            | Elementwise::Sigmoid
            | Elementwise::ReluSquared
            | Elementwise::Softplus
            | Elementwise::Gelu
            | Elementwise::GeluErf
            | Elementwise::Exp
            | Elementwise::SignedRoot => false,
        }
    }
}

spec! {
    /// Elementwise function of one or two rows.
    pub struct Map "map" {
        /// Elementwise function.
        pub function: Elementwise,
        /// Number of elements of a row.
        pub n: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("add", 1, "map function=add n=2048"),
    row("mul", 1, "map function=mul n=5632"),
    row("silu", 1, "map function=silu n=5632"),
    row("sigmoid", 1, "map function=sigmoid n=4096"),
    row("relu_squared", 1, "map function=relu_squared n=1856"),
    row("softplus", 1, "map function=softplus n=4096"),
    row("gelu", 1, "map function=gelu n=10240"),
    row("gelu_erf", 1, "map function=gelu_erf n=18176"),
    row("signed_root", 1, "map function=signed_root n=4"),
    row("exp", 1, "map function=exp n=2048"),
];

impl Definition for Map {
    fn name(&self) -> String {
        format!("{}_n{}", self.function.word(), self.n)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("a", BufferContents::Floats)
            .read_if(self.function.has_second(), "b", BufferContents::Floats)
            .write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let Map { function, n } = *self;
        let mut b = KernelBuilder::new(name);
        let size = i64::from(n) * 4;
        let x = b.read("a", size);
        // If the function has no second operand, the kernel has no buffer `b`.
        let second = if function.has_second() { b.read("b", size) } else { x };
        let y = b.write("y", size);
        for_vectors(&mut b, lanes, n, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            let mut second = || b.load(Type::f32(lanes), second, at.clone() * 4);
            let v = match function {
                Elementwise::Add => {
                    let o = second();
                    b.add(v, o)
                }
                Elementwise::Mul => {
                    let o = second();
                    b.mul(v, o)
                }
                Elementwise::Silu => math::silu(b, v),
                Elementwise::Sigmoid => math::sigmoid(b, v),
                Elementwise::Softplus => math::softplus(b, v),
                Elementwise::Gelu => math::gelu(b, v),
                Elementwise::GeluErf => math::gelu_erf(b, v),
                Elementwise::Exp => math::exp(b, v),
                Elementwise::SignedRoot => {
                    let (ints, floats) = (Type::i32(lanes), Type::f32(lanes));
                    let (zero, least) = (b.splat_f32(lanes, 0.0), b.splat_f32(lanes, MIN_ROOT_INPUT));
                    let size = math::abs(b, v);
                    let rooted = b.same(Op::Max, &[size, least]);
                    let root = b.same(Op::Sqrt, &[rooted]);
                    let [bits, size, root] = [v, size, root].map(|x| b.bitcast(ints, x));
                    let sign_bit = b.splat_int(ints, i32::MIN.into());
                    let sign = b.same(Op::And, &[bits, sign_bit]);
                    let root = b.same(Op::Or, &[root, sign]);
                    let root = b.bitcast(floats, root);
                    // If the argument is zero, with either sign, the result is zero.
                    let none = b.splat_int(ints, 0);
                    let is_zero = b.same(Op::CmpEq, &[size, none]);
                    b.op(Op::Select, floats, &[is_zero, zero, root])
                }
                Elementwise::ReluSquared => {
                    let zero = b.splat_f32(lanes, 0.0);
                    let v = b.same(Op::Max, &[v, zero]);
                    b.mul(v, v)
                }
            };
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let (a, second) = (input.floats("a")?, input.find("b").map(floats).unwrap_or_default());
        for (i, y) in output.floats("y")?.iter().enumerate() {
            let b = second.get(i).copied().unwrap_or_default();
            let expected = match self.function {
                Elementwise::Add => a[i] + b,
                Elementwise::Mul => a[i] * b,
                Elementwise::Silu => silu(a[i]),
                Elementwise::Sigmoid => 1.0 / (1.0 + (-a[i]).exp()),
                Elementwise::ReluSquared => a[i].max(0.0).powi(2),
                Elementwise::Softplus => a[i].max(0.0) + (-a[i].abs()).exp().ln_1p(),
                Elementwise::SignedRoot if a[i] == 0.0 => 0.0,
                Elementwise::SignedRoot => a[i].abs().max(MIN_ROOT_INPUT.into()).sqrt().copysign(a[i]),
                Elementwise::Exp => a[i].clamp(-87.3, 88.0).exp(),
                Elementwise::GeluErf => a[i] / 2.0 * (1.0 + erf(a[i] / std::f64::consts::SQRT_2)),
                Elementwise::Gelu => {
                    let t = (2.0 / std::f64::consts::PI).sqrt() * (a[i] + 0.044715 * a[i].powi(3));
                    a[i] / 2.0 * (1.0 + t.tanh())
                }
            };
            close(format_args!("y[{i}]"), *y, expected, (expected.abs() + 1e-3) * EXP_BOUND)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
