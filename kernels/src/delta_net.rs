//! Linear attention by the gated delta rule, of the value heads that share a key head, over all rows of a step.
//!
//! For each row: `q` and `k` become as long as 1 (`q` then `1 / sqrt(d)`), and for each value head
//!
//! ```text
//! decay = exp(a * softplus(alpha + dt)),  rate = sigmoid(beta)
//! M <- decay * M;   u = rate * (v - M' k);   M <- M + k u';   y = M' q
//! ```
//!
//! A vector's lanes are elements of the value, so that nothing is summed across lanes: a head's state `[d, dv]` is read for `M' k`, then read and
//! written once for the rest.

use ixc_ir::kernel::{Affine, BufferKind, Kernel, KernelBuilder, Op, Type, ValueId};
use ixc_ir::plan::DimRule;

use crate::catalogue::{Row, row};
use crate::definition::Definition;
use crate::generate::{GenerateError, MAX_ROWS, Vectors, check};
use crate::reference::{EXP_BOUND, Mismatch, Run, UNIT, close};
use crate::signature::{Holds, Signature};
use crate::text::{Bits, spec};
use crate::vectors::for_vectors;
use crate::work::{Arithmetic, Call, Work};
use crate::{math, rms};

spec! {
    /// The gated delta rule, for the value heads of a key head.
    pub struct DeltaNet "delta_net" {
        /// Key heads of a row.
        pub heads: u32,
        /// Value heads that share a key head.
        pub group: u32,
        /// Elements of a key.
        pub d: u32,
        /// Elements of a value.
        pub dv: u32,
        /// Added to the squares of a key's or query's length.
        pub eps: Bits,
        /// Whether the value heads of a key head are `heads` apart, and not side by side.
        pub interleaved: bool,
    }
}

/// Representative ones.
#[rustfmt::skip] // One line each.
const ROWS: &[Row] = &[
    row("delta_net", 1, "delta_net heads=16 group=2 d=128 dv=128 eps=1e-6"),
    row("delta_net_rows", 32, "delta_net heads=16 group=2 d=128 dv=128 eps=1e-6 interleaved"),
];

impl DeltaNet {
    /// Heads from a value head to the next of the same key head.
    fn spread(&self) -> i64 {
        if self.interleaved { self.heads.into() } else { 1 }
    }
}

impl Definition for DeltaNet {
    fn name(&self) -> String {
        let DeltaNet { heads, group, d, dv, eps, interleaved } = *self;
        format!("delta_net_h{heads}g{group}d{d}v{dv}{}_e{:x}", if interleaved { "i" } else { "" }, eps.0)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .update("state", Holds::Floats)
            .read("q", Holds::Floats)
            .read("k", Holds::Floats)
            .read("v", Holds::Floats)
            .read("alpha", Holds::Floats)
            .read("beta", Holds::Floats)
            .read("a", Holds::Floats)
            .read("dt", Holds::Floats)
            .write("y", Holds::Floats)
            .scratch("unit")
            .dim("rows", DimRule::Rows)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let DeltaNet { heads, group, d, dv, eps, .. } = *self;
        for (what, n) in
            [("heads", heads), ("value heads", group), ("elements of a key", d), ("elements of a value", dv)]
        {
            check(&name, what, n.into(), n > 0, "at least 1")?;
        }
        let (key, value, all) = (i64::from(d) * 4, i64::from(dv) * 4, i64::from(heads) * i64::from(group));
        let spread = self.spread();
        // Heads from the first of the group to behind the last.
        let span = (i64::from(group) - 1) * spread + 1;
        let mut b = KernelBuilder::new(name);
        let rows = b.dim("rows", 1, MAX_ROWS);
        // The own part of rows that are as long as all heads.
        let part = |row: i64, own: i64| rows * row + (own - row);
        let keys = part(i64::from(heads) * key, key);
        let state = b.buffer("state", BufferKind::ReadWrite, span * key * i64::from(dv));
        let [q, k] = ["q", "k"].map(|name| b.read(name, keys.clone()));
        let v = b.read("v", part(all * value, span * value));
        let [alpha, beta] = ["alpha", "beta"].map(|name| b.read(name, part(all * 4, span * 4)));
        let [a, dt] = ["a", "dt"].map(|name| b.read(name, span * 4));
        let y = b.write("y", part(all * value, span * value));
        let unit = b.buffer("unit", BufferKind::Scratch, 2 * key);
        let lanes = vectors.lanes;
        b.for_each("t", rows, |b, t| {
            let root = 1.0 / f64::from(d).sqrt();
            for (x, at, factor) in [(q, 0, root as f32), (k, key, 1.0)] {
                let row = t * (i64::from(heads) * key);
                let sum = rms::squares(b, lanes, d, |b, at, lanes| b.load(Type::f32(lanes), x, row.clone() + at * 4));
                let (eps, factor) = (b.splat_f32(1, eps.value()), b.splat_f32(1, factor));
                let sum = b.add(sum, eps);
                let length = b.same(Op::Sqrt, &[sum]);
                let inverse = b.same(Op::Div, &[factor, length]);
                for_vectors(b, lanes, d, |b, to, lanes| {
                    let x = b.load(Type::f32(lanes), x, row.clone() + to.clone() * 4);
                    let inverse = if lanes == 1 { inverse } else { b.broadcast(lanes, inverse) };
                    let x = b.mul(x, inverse);
                    b.store(unit, to * 4 + at, x);
                });
            }
            b.for_each("h", i64::from(group), |b, h| {
                let scalar = |b: &mut KernelBuilder, buffer, at: Affine| b.load(Type::f32(1), buffer, at);
                let (of_row, of_head): (Affine, Affine) = (t * (all * 4) + h * (spread * 4), h * (spread * 4));
                let (x, shift) = (scalar(b, alpha, of_row.clone()), scalar(b, dt, of_head.clone()));
                let x = b.add(x, shift);
                let x = softplus(b, x);
                let a = scalar(b, a, of_head);
                let x = b.mul(x, a);
                let decay = math::exp(b, x);
                let rate = scalar(b, beta, of_row);
                let rate = math::sigmoid(b, rate);
                let matrix = h * (spread * key * i64::from(dv));
                for_vectors(b, lanes, dv, |b, at, lanes| {
                    let ty = Type::f32(lanes);
                    let wide = |b: &mut KernelBuilder, x| if lanes == 1 { x } else { b.broadcast(lanes, x) };
                    let (decay, rate, none) = (wide(b, decay), wide(b, rate), b.splat_f32(lanes, 0.0));
                    let column = matrix.clone() + at.clone() * 4;
                    let found = b.for_carry("i", i64::from(d), &[none], |b, i, found| {
                        let m = b.load(ty, state, column.clone() + i * value);
                        let k = b.load_splat(ty, unit, i * 4 + key);
                        vec![b.fma(m, k, found[0])]
                    });
                    let place = t * (all * value) + h * (spread * value) + at.clone() * 4;
                    let wanted = b.load(ty, v, place.clone());
                    let found = b.mul(found[0], decay);
                    let change = b.sub(wanted, found);
                    let change = b.mul(change, rate);
                    let sum = b.for_carry("i", i64::from(d), &[none], |b, i, sum| {
                        let m = b.load(ty, state, column.clone() + i * value);
                        let m = b.mul(m, decay);
                        let k = b.load_splat(ty, unit, i * 4 + key);
                        let m = b.fma(k, change, m);
                        b.store(state, column.clone() + i * value, m);
                        let q = b.load_splat(ty, unit, i * 4);
                        vec![b.fma(m, q, sum[0])]
                    });
                    b.store(y, place, sum[0]);
                });
            });
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let DeltaNet { heads, group, d, dv, eps, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let read = |name| input.floats(name);
        let (q, k, v) = (read("q")?, read("k")?, read("v")?);
        let (alpha, beta, a, dt) = (read("alpha")?, read("beta")?, read("a")?, read("dt")?);
        let (mut state, after, y) = (read("state")?, output.floats("state")?, output.floats("y")?);
        // The same with all terms of one sign: what errors are relative to.
        let mut size: Vec<f64> = state.iter().map(|m| m.abs()).collect();
        let (heads, group, d, dv, spread) =
            (heads as usize, group as usize, d as usize, dv as usize, self.spread() as usize);
        let all = heads * group;
        let rows = run.dim("rows") as usize;
        // Of each row: sums of d products, lengths by sums of d squares, two exponentials, a logarithm and a dozen operations. What a row
        // leaves in the state goes into the next ones.
        let bound = |row: usize| (row + 1) as f64 * ((3 * d + 32) as f64 * UNIT + 2.0 * EXP_BOUND);
        for t in 0..rows {
            let unit = |x: &[f64]| -> Vec<f64> {
                let x = &x[t * heads * d..][..d];
                let length = (x.iter().map(|x| x * x).sum::<f64>() + f64::from(eps.value())).sqrt();
                x.iter().map(|x| x / length).collect()
            };
            let (q, k) = (unit(&q), unit(&k));
            for h in (0..group).map(|h| h * spread) {
                let x = alpha[t * all + h] + dt[h];
                let decay = (a[h] * (x.max(0.0) + (-x.abs()).exp().ln_1p())).exp();
                let rate = 1.0 / (1.0 + (-beta[t * all + h]).exp());
                for j in 0..dv {
                    let at = |i: usize| (h * d + i) * dv + j;
                    let value = v[(t * all + h) * dv + j];
                    let (mut found, mut found_size) = (0.0, 0.0);
                    for i in 0..d {
                        found += decay * state[at(i)] * k[i];
                        found_size += decay * size[at(i)] * k[i].abs();
                    }
                    let (change, change_size) = (rate * (value - found), rate * (value.abs() + found_size));
                    let (mut sum, mut sum_size) = (0.0, 0.0);
                    for i in 0..d {
                        state[at(i)] = decay * state[at(i)] + k[i] * change;
                        size[at(i)] = decay * size[at(i)] + k[i].abs() * change_size;
                        sum += state[at(i)] * q[i];
                        sum_size += size[at(i)] * q[i].abs();
                    }
                    let root = (d as f64).sqrt();
                    let found = y[(t * all + h) * dv + j];
                    close(format_args!("y[{t}, {h}, {j}]"), found, sum / root, sum_size / root * bound(t))?;
                }
            }
        }
        for h in (0..group).map(|h| h * spread) {
            for i in h * d * dv..(h + 1) * d * dv {
                close(format_args!("state[{i}]"), after[i], state[i], size[i] * bound(rows))?;
            }
        }
        Ok(())
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let rows = call.dims.first().map_or(1, |rows| rows.unsigned_abs());
        let state = u64::from(self.group) * u64::from(self.d) * u64::from(self.dv);
        Work { bytes: rows * state * 4, multiply_adds: rows * state * 3, arithmetic: Arithmetic::F32 }
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        vec![rows.into()]
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// `ln(1 + e^x)` in one lane, as `max(x, 0) + ln(1 + u)` for `u = e^-|x|`, which is in 0..=1.
///
/// `ln(1 + u) = 2 artanh s` for `s = u / (2 + u)`, at most 1/3: the series of odd powers to the 15th leaves `2 s^17 / 17`, below 1e-9, and
/// loses nothing where u is small.
fn softplus(b: &mut KernelBuilder, x: ValueId) -> ValueId {
    let (zero, one, two) = (b.splat_f32(1, 0.0), b.splat_f32(1, 1.0), b.splat_f32(1, 2.0));
    let positive = b.same(Op::Max, &[x, zero]);
    let magnitude = math::abs(b, x);
    let negative = b.sub(zero, magnitude);
    let u = math::exp(b, negative);
    let denominator = b.add(u, two);
    let s = b.same(Op::Div, &[u, denominator]);
    let square = b.mul(s, s);
    let mut series = b.splat_f32(1, 1.0 / 15.0);
    for power in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        let term = b.splat_f32(1, 1.0 / power);
        series = b.fma(series, square, term);
    }
    let series = b.fma(series, square, one);
    let twice = b.add(s, s);
    b.fma(series, twice, positive)
}
