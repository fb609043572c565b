//! Soft cap: what grows beyond `cap` is bent towards it, as Gemma does with scores and logits. `y = cap * tanh(x / cap)`.

use ixc_ir::kernel::{Kernel, KernelBuilder, Op, Type, ValueId};

use crate::catalogue::{Row, row};
use crate::definition::Definition;
use crate::generate::{GenerateError, Vectors, check};
use crate::math;
use crate::reference::{Mismatch, Run, close};
use crate::signature::{Holds, Signature};
use crate::text::{Bits, spec};
use crate::vectors::for_vectors;

spec! {
    /// `y = cap * tanh(x / cap)`.
    pub struct Softcap "softcap" {
        /// Elements of a row.
        pub n: u32,
        /// What no result exceeds, above 0.
        pub cap: Bits,
    }
}

/// Representative ones.
#[rustfmt::skip] // One line each.
const ROWS: &[Row] = &[
    row("softcap", 1, "softcap n=32000 cap=30.0"),
];

/// Where the polynomial ends (Cephes' `tanhf`): below it `1 - 2 / (e^2t + 1)` cancels.
const NEAR: f32 = 0.625;
/// `tanh t = t + t^3 P(t^2)` for |t| below [`NEAR`], within 1.3e-7 of it (Cephes' `tanhf`).
const POLYNOMIAL: [f32; 5] = [-5.704_988_7e-3, 2.063_908_8e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328e-1];
/// Of a result, relative. Far from 0 the exponential's 2e-7 and two roundings count by `2 / (e^2t + 1)`, at most 0.45, of a result of at least
/// 0.55: 2.7e-7. Near 0 the polynomial has 1.3e-7 and two roundings. The factor on x, the one on the result and their roundings add
/// 3e-7.
const BOUND: f64 = 1e-6;

impl Definition for Softcap {
    fn name(&self) -> String {
        let Softcap { n, cap } = *self;
        format!("softcap_n{n}_c{:x}", cap.0)
    }

    fn signature(&self) -> Signature {
        Signature::new().read("x", Holds::Floats).write("y", Holds::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let (Softcap { n, cap }, size) = (*self, i64::from(self.n) * 4);
        // One that is no normal number has no inverse.
        let inverse = 1.0 / cap.value();
        let ok = cap.value() > 0.0 && cap.value().is_normal() && inverse.is_normal();
        check(&name, "cap (its bits)", cap.0.into(), ok, "those of a number above 0 whose inverse is one")?;
        let mut b = KernelBuilder::new(name);
        let (x, y) = (b.read("x", size), b.write("y", size));
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            let (inverse, cap) = (b.splat_f32(lanes, inverse), b.splat_f32(lanes, cap.value()));
            let v = b.mul(v, inverse);
            let v = tanh(b, v);
            let v = b.mul(v, cap);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (x, y, cap) = (run.input().floats("x")?, run.output().floats("y")?, f64::from(self.cap.value()));
        for (i, (x, y)) in x.iter().zip(&y).enumerate() {
            let expected = cap * (x / cap).tanh();
            close(format_args!("y[{i}]"), *y, expected, expected.abs() * BOUND)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// `tanh x`, lane by lane.
fn tanh(b: &mut KernelBuilder, x: ValueId) -> ValueId {
    let ty = b.ty(x);
    let (lanes, bits) = (ty.lanes, Type::i32(ty.lanes));
    let (one, two) = (b.splat_f32(lanes, 1.0), b.splat_f32(lanes, 2.0));
    let magnitude = math::abs(b, x);
    // Far from 0: of the magnitude, with the sign put back.
    let twice = b.add(magnitude, magnitude);
    let e = math::exp(b, twice);
    let denominator = b.add(e, one);
    let part = b.same(Op::Div, &[two, denominator]);
    let far = b.sub(one, part);
    let sign = b.splat_int(bits, i64::from(i32::MIN));
    let own = b.bitcast(bits, x);
    let sign = b.same(Op::And, &[own, sign]);
    let far = b.bitcast(bits, far);
    let far = b.same(Op::Or, &[far, sign]);
    let far = b.bitcast(ty, far);
    // Near 0.
    let square = b.mul(x, x);
    let mut p = b.splat_f32(lanes, POLYNOMIAL[0]);
    for c in &POLYNOMIAL[1..] {
        let c = b.splat_f32(lanes, *c);
        p = b.fma(p, square, c);
    }
    let cube = b.mul(square, x);
    let near = b.fma(p, cube, x);
    let end = b.splat_f32(lanes, NEAR);
    let is_near = b.op(Op::CmpLtF, bits, &[magnitude, end]);
    b.op(Op::Select, ty, &[is_near, near, far])
}
