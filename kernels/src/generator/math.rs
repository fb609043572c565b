//! Mathematical functions in kernel IR. Exponentials are computed as `2^n * e^r` with |r| <=
//! ln(2)/2, and a polynomial approximates `e^r`.
//!
//! The polynomial is that of Cephes' `expf`, with degree 5 after the linear part. Its relative
//! error is below 2e-7 for these r.

use ixc_ir::kernel::{KernelBuilder, Op, Type, ValueId};

/// Minimum argument of [`exp`]: `e^-87.3` is near the smallest normal float.
const EXP_LOW: f32 = -87.3;
/// Maximum argument of [`exp`]: with `n <= 127`, the result stays below the largest float.
const EXP_HIGH: f32 = 88.0;
/// ln(2), split so that `n * LN2_HIGH` is exact for every n that occurs (Cephes).
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
const POLYNOMIAL: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// Returns `e^x` in each lane. x is clamped to a range in which the result is a normal float.
pub fn exp(b: &mut KernelBuilder, x: ValueId) -> ValueId {
    let lanes = b.ty(x).lanes;
    let (low, high) = (b.splat_f32(lanes, EXP_LOW), b.splat_f32(lanes, EXP_HIGH));
    let x = b.same(Op::Min, &[x, high]);
    let x = b.same(Op::Max, &[x, low]);
    let log2e = b.splat_f32(lanes, std::f32::consts::LOG2_E);
    let scaled = b.mul(x, log2e);
    let n = b.op(Op::ToI32, Type::i32(lanes), &[scaled]);
    let nf = b.op(Op::ToF32, Type::f32(lanes), &[n]);
    let (high, low) = (b.splat_f32(lanes, -LN2_HIGH), b.splat_f32(lanes, -LN2_LOW));
    let r = b.fma(nf, high, x);
    let r = b.fma(nf, low, r);
    let mut p = b.splat_f32(lanes, POLYNOMIAL[0]);
    for c in &POLYNOMIAL[1..] {
        let c = b.splat_f32(lanes, *c);
        p = b.fma(p, r, c);
    }
    let r2 = b.mul(r, r);
    let one = b.splat_f32(lanes, 1.0);
    let linear = b.add(r, one);
    let y = b.fma(p, r2, linear);
    let bias = b.splat_int(Type::i32(lanes), 127);
    let exponent = b.iadd(n, bias);
    let exponent = b.shift(Op::Shl, exponent, 23);
    let power = b.bitcast(Type::f32(lanes), exponent);
    b.mul(y, power)
}

/// Polynomial P: 2^x for |x| <= 1/2 is 1 + x P(x) within 1.7e-7 (Cephes' `exp2f`).
const EXP2: [f32; 6] = [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_7e-1, 6.931_472e-1];
/// A shorter polynomial P with an error within 2.9e-6 (minimax). It is precise enough for results
/// that are rounded to bf16, whose error is 2^-8.
const EXP2_SHORT: [f32; 4] = [9.582_853e-3, 5.590_642_6e-2, 2.402_41e-1, 6.931_242e-1];
/// Minimum argument of 2^x: `2^-126` is the smallest normal float.
const EXP2_LOW: f32 = -126.0;

/// Returns `e^x` in each lane, for x <= 0. Results are at least `2^-126`. The code is a third
/// shorter than that of [`exp`].
///
/// The result is `2^y` with y = x log2 e. The rounding of y causes a relative error of |x| / 2^24.
/// The integer nearest to y is added to the exponent bits of the polynomial's value, which is in
/// 0.7..1.42. With the smallest integer, the value is at least 1, so the result is a normal float.
pub fn exp_of_negative(b: &mut KernelBuilder, x: ValueId) -> ValueId {
    let lanes = b.ty(x).lanes;
    let (low, log2e) = (b.splat_f32(lanes, EXP2_LOW), b.splat_f32(lanes, std::f32::consts::LOG2_E));
    let x = b.mul(x, log2e);
    power_of_two(b, x, low, &EXP2)
}

/// Returns `2^x` in each lane, for x <= 0. The result for 0 is exactly 1, and results are at least
/// `2^-126`. The relative error is below 4e-6, while that of rounding to bf16 is 500 times as
/// large.
pub fn exp2_of_negative(b: &mut KernelBuilder, x: ValueId) -> ValueId {
    let low = b.splat_f32(b.ty(x).lanes, EXP2_LOW);
    power_of_two(b, x, low, &EXP2_SHORT)
}

fn power_of_two(b: &mut KernelBuilder, x: ValueId, low: ValueId, polynomial: &[f32]) -> ValueId {
    let lanes = b.ty(x).lanes;
    let x = b.same(Op::Max, &[x, low]);
    let n = b.op(Op::ToI32, Type::i32(lanes), &[x]);
    let nf = b.op(Op::ToF32, Type::f32(lanes), &[n]);
    let r = b.sub(x, nf);
    let mut p = b.splat_f32(lanes, polynomial[0]);
    for c in polynomial[1..].iter().chain(&[1.0]) {
        let c = b.splat_f32(lanes, *c);
        p = b.fma(p, r, c);
    }
    let bits = b.bitcast(Type::i32(lanes), p);
    let power = b.shift(Op::Shl, n, 23);
    let bits = b.iadd(bits, power);
    b.bitcast(Type::f32(lanes), bits)
}

/// Returns `1 / (1 + e^-x)` in each lane.
pub fn sigmoid(b: &mut KernelBuilder, x: ValueId) -> ValueId {
    let lanes = b.ty(x).lanes;
    let (zero, one) = (b.splat_f32(lanes, 0.0), b.splat_f32(lanes, 1.0));
    let negative = b.sub(zero, x);
    let e = exp(b, negative);
    let denominator = b.add(one, e);
    b.same(Op::Div, &[one, denominator])
}

/// Returns `x / (1 + e^-x)` in each lane.
pub fn silu(b: &mut KernelBuilder, x: ValueId) -> ValueId {
    let lanes = b.ty(x).lanes;
    let (zero, one) = (b.splat_f32(lanes, 0.0), b.splat_f32(lanes, 1.0));
    let negative = b.sub(zero, x);
    let e = exp(b, negative);
    let denominator = b.add(one, e);
    b.same(Op::Div, &[x, denominator])
}

/// Returns `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))` in each lane. It is computed as
/// x times the logistic function of twice the argument of `tanh`.
pub fn gelu(b: &mut KernelBuilder, x: ValueId) -> ValueId {
    /// The constant `2 sqrt(2 / pi)`.
    const LINEAR: f32 = 1.595_769;
    let lanes = b.ty(x).lanes;
    let (linear, cubic) = (b.splat_f32(lanes, LINEAR), b.splat_f32(lanes, LINEAR * 0.044_715));
    let square = b.mul(x, x);
    let slope = b.fma(square, cubic, linear);
    let twice = b.mul(slope, x);
    let share = sigmoid(b, twice);
    b.mul(x, share)
}

/// Polynomial in `t = 1 / (1 + z / 2)` that approximates `ln(erfc(z) / t) + z^2` for z >= 0 within
/// 1.2e-7 (Press et al., "Numerical Recipes", `erfcc`). The highest power comes first.
const ERFC: [f32; 10] = [
    0.170_872_77,
    -0.822_152_23,
    1.488_515_9,
    -1.135_204,
    0.278_868_07,
    -0.186_288_06,
    0.096_784_18,
    0.374_091_96,
    1.000_023_7,
    -1.265_512_2,
];

/// Returns `x / 2 * (1 + erf(x / sqrt(2)))` in each lane. It is computed as
/// `max(x, 0) - |x| / 2 * erfc(|x| / sqrt(2))`, which has no cancellation on either side of 0.
pub fn gelu_erf(b: &mut KernelBuilder, x: ValueId) -> ValueId {
    let lanes = b.ty(x).lanes;
    let [zero, half, one] = [0.0, 0.5, 1.0].map(|x| b.splat_f32(lanes, x));
    let root = b.splat_f32(lanes, std::f32::consts::FRAC_1_SQRT_2);
    let magnitude = abs(b, x);
    let z = b.mul(magnitude, root);
    let denominator = b.fma(z, half, one);
    let t = b.same(Op::Div, &[one, denominator]);
    let mut exponent = b.splat_f32(lanes, ERFC[0]);
    for c in &ERFC[1..] {
        let c = b.splat_f32(lanes, *c);
        exponent = b.fma(exponent, t, c);
    }
    let negative = b.sub(zero, z);
    let exponent = b.fma(negative, z, exponent);
    let power = exp(b, exponent);
    let tail = b.mul(t, power);
    let share = b.mul(magnitude, half);
    let tail = b.mul(share, tail);
    let positive = b.same(Op::Max, &[x, zero]);
    b.sub(positive, tail)
}

/// Magnitude below which [`TANH`] is used, as in Cephes' `tanhf`. Near 0, the formula
/// `1 - 2 / (e^2t + 1)` would lose precision by cancellation.
const TANH_NEAR: f32 = 0.625;
/// Coefficients of P: `tanh t = t + t^3 P(t^2)` for |t| below [`TANH_NEAR`], with a relative error
/// of at most 1.3e-7 (Cephes' `tanhf`).
const TANH: [f32; 5] = [-5.704_988_7e-3, 2.063_908_8e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328e-1];
/// Bound of the relative error of `cap * tanh(x / cap)`. Far from 0, the exponential's error of
/// 2e-7 and two roundings are multiplied by `2 / (e^2t + 1)`, which is at most 0.45. The result is
/// at least 0.55, which gives 2.7e-7. Near 0, the polynomial has an error of 1.3e-7 and two
/// roundings. The factors on x and on the result, with their roundings, add 3e-7.
pub const SOFTCAP_BOUND: f64 = 1e-6;

/// Whether a number can be a cap: the number and its inverse must be normal floats.
pub fn is_cap(cap: f32) -> bool {
    cap > 0.0 && cap.is_normal() && (1.0 / cap).is_normal()
}

/// Returns `cap * tanh(x / cap)` in each lane.
pub fn softcap(b: &mut KernelBuilder, x: ValueId, cap: f32) -> ValueId {
    let lanes = b.ty(x).lanes;
    let (inverse, cap) = (b.splat_f32(lanes, 1.0 / cap), b.splat_f32(lanes, cap));
    let x = b.mul(x, inverse);
    let x = tanh(b, x);
    b.mul(x, cap)
}

/// Returns `tanh x` in each lane.
fn tanh(b: &mut KernelBuilder, x: ValueId) -> ValueId {
    let ty = b.ty(x);
    let (lanes, bits) = (ty.lanes, Type::i32(ty.lanes));
    let (one, two) = (b.splat_f32(lanes, 1.0), b.splat_f32(lanes, 2.0));
    let magnitude = abs(b, x);
    // Far from 0, the result is computed from the magnitude of x, and gets the sign of x.
    let twice = b.add(magnitude, magnitude);
    let e = exp(b, twice);
    let denominator = b.add(e, one);
    let part = b.same(Op::Div, &[two, denominator]);
    let far = b.sub(one, part);
    let sign = b.splat_int(bits, i64::from(i32::MIN));
    let own = b.bitcast(bits, x);
    let sign = b.same(Op::And, &[own, sign]);
    let far = b.bitcast(bits, far);
    let far = b.same(Op::Or, &[far, sign]);
    let far = b.bitcast(ty, far);
    // Near 0, the result is computed by the polynomial.
    let square = b.mul(x, x);
    let mut p = b.splat_f32(lanes, TANH[0]);
    for c in &TANH[1..] {
        let c = b.splat_f32(lanes, *c);
        p = b.fma(p, square, c);
    }
    let cube = b.mul(square, x);
    let near = b.fma(p, cube, x);
    let end = b.splat_f32(lanes, TANH_NEAR);
    let is_near = b.op(Op::CmpLtF, bits, &[magnitude, end]);
    b.op(Op::Select, ty, &[is_near, near, far])
}

/// Returns `ln(1 + e^x)` in each lane. It is `max(x, 0) + ln(1 + u)` with `u = e^-|x|`, which is in
/// 0..=1.
///
/// `ln(1 + u)` is `2 artanh s` with `s = u / (2 + u)`, at most 1/3. The series of odd powers up to
/// the 15th has an error of `2 s^17 / 17`, below 1e-9. It loses no precision for small u.
pub fn softplus(b: &mut KernelBuilder, x: ValueId) -> ValueId {
    let lanes = b.ty(x).lanes;
    let [zero, one, two] = [0.0, 1.0, 2.0].map(|x| b.splat_f32(lanes, x));
    let positive = b.same(Op::Max, &[x, zero]);
    let magnitude = abs(b, x);
    let negative = b.sub(zero, magnitude);
    let u = exp(b, negative);
    let denominator = b.add(u, two);
    let s = b.same(Op::Div, &[u, denominator]);
    let square = b.mul(s, s);
    let mut series = b.splat_f32(lanes, 1.0 / 15.0);
    for power in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        let term = b.splat_f32(lanes, 1.0 / power);
        series = b.fma(series, square, term);
    }
    let series = b.fma(series, square, one);
    let twice = b.add(s, s);
    b.fma(series, twice, positive)
}

/// Returns the absolute value of the float in each lane.
pub fn abs(b: &mut KernelBuilder, x: ValueId) -> ValueId {
    let ty = b.ty(x);
    let bits = b.bitcast(Type::i32(ty.lanes), x);
    let mask = b.splat_int(Type::i32(ty.lanes), 0x7fff_ffff);
    let bits = b.same(Op::And, &[bits, mask]);
    b.bitcast(ty, bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_ir::kernel::interpret;

    /// Tests all magnitudes down to the minimum argument, and values around every change of the
    /// integer part.
    #[test]
    fn exp2_meets_its_stated_error() {
        const VALUES: i64 = 1 << 16;
        let mut b = KernelBuilder::new("powers".to_string());
        let (x, y) = (b.read("x", VALUES * 4), b.write("y", VALUES * 4));
        b.for_each("i", VALUES / 16, |b, i| {
            let v = b.load(Type::f32(16), x, i * 64);
            let power = exp2_of_negative(b, v);
            b.store(y, i * 64, power);
        });
        let values: Vec<f32> = (0..VALUES).map(|i| -(i as f32) / VALUES as f32 * 140.0).collect();
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut buffers = vec![bytes, vec![0; VALUES as usize * 4]];
        interpret::run(&b.finish(), &[], &mut buffers).unwrap();
        let mut worst = 0.0f64;
        for (x, y) in values.iter().zip(buffers[1].as_chunks().0) {
            let (y, right) = (f64::from(f32::from_le_bytes(*y)), f64::from(x.max(EXP2_LOW)).exp2());
            worst = worst.max((y / right - 1.0).abs());
        }
        assert!(worst <= 4e-6, "{worst:e}");
        assert_eq!(f32::from_le_bytes(buffers[1][..4].try_into().unwrap()), 1.0);
    }
}
