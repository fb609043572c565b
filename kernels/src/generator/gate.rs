//! Gated linear units: an activation function of the gate projection, times the up projection. The
//! code is in kernel IR and in f64.
//!
//! `y = act(min(gate, limit)) * (clamp(up, -limit, limit) + shift)`. Without a limit, it is
//! infinite. `limited_silu` limits the function's result instead: `min(act(gate), limit)`.
//! `bent_silu` bounds gate and up smoothly, each with its own limit:
//! `bend * tanh(gate / bend) / (1 + exp(-gate))`, and `limit * tanh(up / limit)`.

use ixc_ir::erf::erf;
use ixc_ir::graph::attrs::Activation;
use ixc_ir::kernel::{KernelBuilder, Op, ValueId};

use crate::generator::generate::{GenerateError, check};
use crate::generator::math;
use crate::generator::text::Bits;

/// Factor of [`Activation::QuickGelu`].
const QUICK: f32 = 1.702;

/// Emits the activation function of a gate in kernel IR.
fn apply(act: Activation, b: &mut KernelBuilder, x: ValueId, bend: f32) -> ValueId {
    match act {
        Activation::Silu | Activation::LimitedSilu => math::silu(b, x),
        Activation::Gelu => math::gelu(b, x),
        Activation::QuickGelu => {
            let factor = b.splat_f32(b.ty(x).lanes, QUICK);
            let steeper = b.mul(x, factor);
            let share = math::sigmoid(b, steeper);
            b.mul(x, share)
        }
        Activation::BentSilu => {
            let share = math::sigmoid(b, x);
            let bent = math::softcap(b, x, bend);
            b.mul(bent, share)
        }
        Activation::Relu => {
            let zero = b.splat_f32(b.ty(x).lanes, 0.0);
            b.same(Op::Max, &[x, zero])
        }
        Activation::ReluSquared => {
            let zero = b.splat_f32(b.ty(x).lanes, 0.0);
            let x = b.same(Op::Max, &[x, zero]);
            b.mul(x, x)
        }
        Activation::GeluErf => math::gelu_erf(b, x),
    }
}

/// Computes the activation function of a gate in f64.
fn exact(act: Activation, x: f64, bend: f64) -> f64 {
    match act {
        Activation::Silu | Activation::LimitedSilu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let t = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / 2.0 * (1.0 + t.tanh())
        }
        Activation::QuickGelu => x / (1.0 + (f64::from(-QUICK) * x).exp()),
        Activation::BentSilu => bend * (x / bend).tanh() / (1.0 + (-x).exp()),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::GeluErf => x / 2.0 * (1.0 + erf(x / std::f64::consts::SQRT_2)),
    }
}

/// Returns an upper bound of the slope of the activation function near `x`.
fn slope(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Silu
        | Activation::Gelu
        | Activation::QuickGelu
        | Activation::LimitedSilu
        | Activation::BentSilu
        | Activation::Relu
        | Activation::GeluErf => 1.13,
        // The margin covers the rounding of the argument.
        Activation::ReluSquared => 2.1 * x.max(0.0) + 0.1,
    }
}

/// Gated linear unit: a function of a gate and an up projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    pub(crate) act: Activation,
    pub(crate) limit: Option<Bits>,
    pub(crate) shift: Option<Bits>,
    pub(crate) bend: Option<Bits>,
}

/// Result of a gated linear unit in f64, with bounds of its derivatives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExactGated {
    /// Result of the function.
    pub(crate) value: f64,
    /// Upper bound of the derivative with respect to the gate.
    pub(crate) slope_of_gate: f64,
    /// Upper bound of the derivative with respect to up.
    pub(crate) slope_of_up: f64,
}

impl Gate {
    /// Returns the attribute `bend`: the bound of a smoothly bounded gate.
    fn bend(&self) -> f32 {
        self.bend.map_or(f32::INFINITY, Bits::value)
    }

    /// Emits the gated linear unit in kernel IR.
    pub(crate) fn apply(&self, b: &mut KernelBuilder, gate: ValueId, up: ValueId) -> ValueId {
        let lanes = b.ty(gate).lanes;
        let (mut gate, mut up) = (gate, up);
        let mut most = None;
        if let Some(limit) = self.limit.filter(|_| self.act.bends()) {
            up = math::softcap(b, up, limit.value());
        } else if let Some(limit) = self.limit {
            let (limit, least) = (b.splat_f32(lanes, limit.value()), b.splat_f32(lanes, -limit.value()));
            if !self.act.limits_result() {
                gate = b.same(Op::Min, &[gate, limit]);
            }
            up = b.same(Op::Min, &[up, limit]);
            up = b.same(Op::Max, &[up, least]);
            most = Some(limit).filter(|_| self.act.limits_result());
        }
        let mut gate = apply(self.act, b, gate, self.bend());
        if let Some(most) = most {
            gate = b.same(Op::Min, &[gate, most]);
        }
        if let Some(shift) = self.shift {
            let shift = b.splat_f32(lanes, shift.value());
            up = b.add(up, shift);
        }
        b.mul(gate, up)
    }

    /// Computes the gated linear unit in f64.
    pub(crate) fn exact(&self, gate: f64, up: f64) -> ExactGated {
        let limit = self.limit.map_or(f64::INFINITY, |limit| limit.value().into());
        let (bends, bend) = (self.act.bends(), f64::from(self.bend()));
        let slope = slope(self.act, gate);
        let gate = match self.act.limits_result() {
            true => exact(self.act, gate, bend).min(limit),
            false => exact(self.act, if bends { gate } else { gate.min(limit) }, bend),
        };
        let up = match bends && limit.is_finite() {
            true => limit * (up / limit).tanh(),
            false => up.clamp(-limit, limit),
        };
        let up = up + self.shift.map_or(0.0, |shift| shift.value().into());
        ExactGated { value: gate * up, slope_of_gate: slope * up.abs(), slope_of_up: gate.abs() }
    }

    /// Returns the suffix of kernel names. It is empty for SwiGLU without limits.
    pub(crate) fn suffix(&self) -> String {
        let act = if self.act == Activation::Silu { String::new() } else { format!("_{}", self.act.word()) };
        let bits =
            |letter: &str, bits: Option<Bits>| bits.map_or(String::new(), |Bits(bits)| format!("_{letter}{bits:x}"));
        format!("{act}{}{}{}", bits("c", self.limit), bits("p", self.shift), bits("b", self.bend))
    }

    /// Checks the limits. Returns an error if one is invalid.
    pub(crate) fn check(&self, name: &str) -> Result<(), GenerateError> {
        let bends = self.act.bends();
        let limits =
            [self.bend, self.limit.filter(|_| bends)].map(|cap| cap.is_none_or(|cap| math::is_cap(cap.value())));
        let ok = self.bend.is_some() == bends && limits == [true; 2];
        let bits = self.bend.map_or(0, |bend| bend.0);
        check(
            name,
            "bend (its bits)",
            bits.into(),
            ok,
            "only for bent_silu, and there, as the limit, the bits of a number above 0 with a finite inverse",
        )?;
        let Some(limit) = self.limit else { return Ok(()) };
        let ok = limit.value() > 0.0 && limit.value().is_finite();
        check(name, "limit (its bits)", limit.0.into(), ok, "those of a number above 0")
    }
}
