//! Selective state space with one decay for each head (Mamba-2), for some heads, over all rows of a
//! step.
//!
//! ```text
//! step = softplus(dt + bias);   M <- exp(a * step) * M + b (step * x)';   y = M' c + d * x
//! ```
//!
//! Vector lanes are elements of `x`, so no sum is across lanes. A head processes all rows before
//! the next head begins. Its state `[s, p]`, 32 KiB in most models, stays in L1. For each row, a
//! vector of the state takes three operations, a load and a store.
//!
//! With the field `channels`, a head has one element, and each element of the head's row of the
//! state has its own decay (Mamba-1). Vector lanes are then elements of that row, of `b` and of
//! `c`. Most of the time is then needed for one exponential for each vector.

use ixc_ir::kernel::{Affine, BufferKind, Kernel, KernelBuilder, Type, ValueId, VarId};
use ixc_ir::plan::DimInput;

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_ROWS, Vectors, check};
use crate::generator::math;
use crate::generator::reference::{EXP_BOUND, Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::{SUM, fold_row, for_bundles};
use crate::generator::work::{Arithmetic, Call, Work};

spec! {
    /// State space of `n` adjacent heads in each of `of` groups of heads.
    pub struct SsmScan "ssm_scan" {
        /// Number of heads of a row.
        pub heads: u32,
        /// Number of groups that a row's heads form. The heads of a group share `b` and `c`.
        pub groups: u32,
        /// Number of groups that a call computes.
        pub of: u32,
        /// Number of heads of each group that a call computes.
        pub n: u32,
        /// Number of elements of `x` for each head.
        pub p: u32,
        /// Number of elements of `b`, and of `c`.
        pub s: u32,
        /// Whether each element of a head's state has its own decay. If so, a head has one element.
        pub channels: bool,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("ssm_scan", 1, "ssm_scan heads=128 groups=1 of=1 n=2 p=64 s=128"),
    row("ssm_scan_channels", 1, "ssm_scan heads=8192 groups=1 of=1 n=1024 p=1 s=16 channels"),
    row("ssm_scan_rows", 32, "ssm_scan heads=64 groups=8 of=8 n=1 p=64 s=128"),
];

/// Number of vectors of a head's `x` that a loop computes together, so that this many sums are
/// computed at once.
const BUNDLE: u32 = 4;

impl SsmScan {
    /// Returns the number of bytes of the decay rates of one head.
    fn rates(&self) -> i64 {
        if self.channels { i64::from(self.s) * 4 } else { 4 }
    }

    /// Returns the number of heads from the first head of a call to its last one, including both
    /// heads.
    fn span(&self) -> u32 {
        (self.of.max(1) - 1) * (self.heads / self.groups.max(1)) + self.n
    }
}

impl Definition for SsmScan {
    fn name(&self) -> String {
        let SsmScan { heads, groups, of, n, p, s, channels } = *self;
        format!("ssm_scan_h{heads}g{groups}_{of}x{n}_p{p}s{s}{}", if channels { "_channels" } else { "" })
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .update("state", BufferContents::Floats)
            .read("x", BufferContents::Floats)
            .read("b", BufferContents::Floats)
            .read("c", BufferContents::Floats)
            .read("dt", BufferContents::Floats)
            .read("a", BufferContents::Negative)
            .read("bias", BufferContents::Floats)
            .read("d", BufferContents::Floats)
            .write("y", BufferContents::Floats)
            .dim("rows", DimInput::Rows)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let SsmScan { heads, groups, of, n, p, s, channels } = *self;
        for (what, size) in [("elements of x", p), ("elements of b", s)] {
            check(&name, what, size.into(), size > 0, "at least 1")?;
        }
        let even = groups > 0 && heads > 0 && heads.is_multiple_of(groups);
        check(&name, "groups", groups.into(), even, format!("a divisor of the {heads} heads"))?;
        check(&name, "groups of a call", of.into(), of > 0 && of <= groups, "1 to those of a row")?;
        check(&name, "elements of x", p.into(), p == 1 || !channels, "1, where elements of a state have decays")?;
        let of_group = heads / groups;
        check(&name, "heads of a call", n.into(), n > 0 && n <= of_group, "1 to those of a group")?;
        let mut b = KernelBuilder::new(name);
        let rows = b.dim("rows", 1, MAX_ROWS);
        let span = i64::from(self.span());
        let (head, matrix) = (i64::from(p) * 4, i64::from(s) * i64::from(p) * 4);
        // Number of bytes of a whole row; a call uses only a part of each row.
        let (x_row, shared_row, dt_row) =
            (i64::from(heads) * head, i64::from(groups) * i64::from(s) * 4, i64::from(heads) * 4);
        let part = |row: i64, own: i64| rows * row + (own - row);
        let state = b.buffer("state", BufferKind::ReadWrite, span * matrix);
        let x = b.read("x", part(x_row, span * head));
        let [input, output] = ["b", "c"].map(|name| b.read(name, part(shared_row, i64::from(of) * i64::from(s) * 4)));
        let dt = b.read("dt", part(dt_row, span * 4));
        let rates = self.rates();
        let a = b.read("a", span * rates);
        let [bias, d] = ["bias", "d"].map(|name| b.read(name, span * 4));
        let y = b.write("y", part(x_row, span * head));
        let lanes = vectors.lanes;
        b.for_each("g", i64::from(of), |b, g| {
            b.for_each("h", i64::from(n), |b, h| {
                let of_head = |bytes: i64| -> Affine { g * (i64::from(of_group) * bytes) + h * bytes };
                let [bias, d] = [bias, d].map(|x| b.load(Type::f32(1), x, of_head(4)));
                if channels {
                    b.for_each("t", rows, |b, t| {
                        let step = b.load(Type::f32(1), dt, t * dt_row + of_head(4));
                        let step = b.add(step, bias);
                        let step = math::softplus(b, step);
                        let element = b.load(Type::f32(1), x, t * x_row + of_head(head));
                        let news = b.mul(element, step);
                        let sum = fold_row(b, lanes, s, SUM, |b, at, lanes, sum| {
                            let ty = Type::f32(lanes);
                            let [step, news] = [step, news].map(|x| wide(b, lanes, x));
                            let rate = b.load(ty, a, of_head(rates) + at.clone() * 4);
                            let decay = b.mul(rate, step);
                            let decay = math::exp(b, decay);
                            let shared: Affine = t * shared_row + g * (i64::from(s) * 4) + at.clone() * 4;
                            let [input, output] = [input, output].map(|x| b.load(ty, x, shared.clone()));
                            let place = of_head(matrix) + at * 4;
                            let m = b.load(ty, state, place.clone());
                            let m = b.mul(m, decay);
                            let m = b.fma(input, news, m);
                            b.store(state, place, m);
                            b.fma(m, output, sum)
                        });
                        let sum = b.fma(element, d, sum);
                        b.store(y, t * x_row + of_head(head), sum);
                    });
                    return;
                }
                let a = b.load(Type::f32(1), a, of_head(4));
                b.for_each("t", rows, |b, t| {
                    let step = b.load(Type::f32(1), dt, t * dt_row + of_head(4));
                    let step = b.add(step, bias);
                    let step = math::softplus(b, step);
                    let decay = b.mul(step, a);
                    let decay = math::exp(b, decay);
                    for_bundles(b, lanes, p, BUNDLE, |b, at, lanes, count| {
                        let ty = Type::f32(lanes);
                        let at: Vec<Affine> =
                            (0..count).map(|n| (at.clone() + i64::from(n) * i64::from(lanes)) * 4).collect();
                        let [step, decay, d] = [step, decay, d].map(|x| wide(b, lanes, x));
                        let xs: Vec<ValueId> =
                            at.iter().map(|at| b.load(ty, x, t * x_row + of_head(head) + at.clone())).collect();
                        let steps: Vec<ValueId> = xs.iter().map(|&x| b.mul(x, step)).collect();
                        let skipped: Vec<ValueId> = xs.iter().map(|&x| b.mul(x, d)).collect();
                        let shared = |i: VarId| -> Affine { t * shared_row + g * (i64::from(s) * 4) + i * 4 };
                        let sums = b.for_carry("i", i64::from(s), &skipped, |b, i, sums| {
                            let (input, output) =
                                (b.load_splat(ty, input, shared(i)), b.load_splat(ty, output, shared(i)));
                            let mut next = Vec::with_capacity(sums.len());
                            for ((at, &step), &sum) in at.iter().zip(&steps).zip(sums) {
                                let place = of_head(matrix) + i * head + at.clone();
                                let m = b.load(ty, state, place.clone());
                                let m = b.mul(m, decay);
                                let m = b.fma(input, step, m);
                                b.store(state, place, m);
                                next.push(b.fma(m, output, sum));
                            }
                            next
                        });
                        for (at, sum) in at.iter().zip(sums) {
                            b.store(y, t * x_row + of_head(head) + at.clone(), sum);
                        }
                    });
                });
            });
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let SsmScan { heads, groups, of, n, p, s, channels } = self;
        let [heads, groups, of, n, p, s] = [heads, groups, of, n, p, s].map(|&n| n as usize);
        let rates = if *channels { s } else { 1 };
        let (input, output) = (run.input(), run.output());
        let read = |name| input.floats(name);
        let (x, b, c, dt) = (read("x")?, read("b")?, read("c")?, read("dt")?);
        let (a, bias, d) = (read("a")?, read("bias")?, read("d")?);
        let (mut state, after, y) = (read("state")?, output.floats("state")?, output.floats("y")?);
        // Sums of the magnitudes of terms. Errors are relative to these sums.
        let mut size: Vec<f64> = state.iter().map(|m| m.abs()).collect();
        // Each row adds errors of a sum of s products, an exponential, a logarithm of an
        // exponential, and about twelve operations.
        let each = (s + 16) as f64 * UNIT + 2.0 * EXP_BOUND;
        let rows = run.dim("rows") as usize;
        // Largest decay rate of a head.
        let rate = |h: usize| a[h * rates..][..rates].iter().map(|a| a.abs()).fold(0.0, f64::max);
        for g in 0..of {
            for h in (0..n).map(|h| g * (heads / groups) + h) {
                for t in 0..rows {
                    // An error in the state carries over to the next rows.
                    let bound = (t + 1) as f64 * each;
                    let step = dt[t * heads + h] + bias[h];
                    let step = step.max(0.0) + (-step.abs()).exp().ln_1p();
                    let decay = |i: usize| (a[h * rates + i % rates] * step).exp();
                    // An error of `step` is multiplied by the rate, and is then an error of the
                    // exponent of a decay.
                    let bound = bound * (1.0 + rate(h) * step.abs());
                    for j in 0..p {
                        let x = x[(t * heads + h) * p + j];
                        let (mut sum, mut sum_size) = (d[h] * x, (d[h] * x).abs());
                        for i in 0..s {
                            let (at, shared) = ((h * s + i) * p + j, (t * groups + g) * s + i);
                            state[at] = decay(i) * state[at] + b[shared] * step * x;
                            size[at] = decay(i) * size[at] + (b[shared] * step * x).abs();
                            sum += state[at] * c[shared];
                            sum_size += size[at] * c[shared].abs();
                        }
                        let found = y[(t * heads + h) * p + j];
                        close(format_args!("y[{t}, {h}, {j}]"), found, sum, sum_size * bound)?;
                    }
                }
                for i in h * s * p..(h + 1) * s * p {
                    let bound = (rows + 1) as f64 * each * (1.0 + rate(h) * 32.0);
                    close(format_args!("state[{i}]"), after[i], state[i], size[i] * bound)?;
                }
            }
        }
        Ok(())
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let rows = call.dims.first().map_or(1, |rows| rows.unsigned_abs());
        let state = [self.of, self.n, self.p, self.s].into_iter().map(u64::from).product::<u64>();
        Work { bytes: rows * state * 4, multiply_adds: rows * state * 3, arithmetic: Arithmetic::F32 }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// Copies a scalar to `lanes` lanes.
fn wide(b: &mut KernelBuilder, lanes: u16, x: ValueId) -> ValueId {
    if lanes == 1 { x } else { b.broadcast(lanes, x) }
}
