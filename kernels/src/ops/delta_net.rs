//! Linear attention with the gated delta rule, for the value heads of one key head, over all rows
//! of a step.
//!
//! In each row, `q` and `k` are scaled to length 1, and `q` is then multiplied by `1 / sqrt(d)`.
//! The following is computed for each value head:
//!
//! ```text
//! decay = exp(a * softplus(alpha + dt)),  rate = sigmoid(beta)
//! M <- decay * M;   u = rate * (v - M' k);   M <- M + k u';   y = M' q
//! ```
//!
//! With the field `rate`, the rate is `rate * sigmoid(beta)`.
//!
//! With the field `bound`, the decay is `exp(bound * sigmoid(|a| * (alpha + dt)))`.
//!
//! With the field `channels`, each element of a key has its own decay. `alpha` and `dt` then have
//! one number for each element of a key, and `decay * M` scales each row of `M`.
//!
//! Vector lanes are elements of the value, so no sum is across lanes. A head's state `[d, dv]` is
//! read once for `M' k`, and then read and written once for all other terms.

use ixc_ir::kernel::{Affine, BufferId, BufferKind, Kernel, KernelBuilder, Op, Type, ValueId, VarId};
use ixc_ir::plan::DimInput;

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_ROWS, Vectors, check};
use crate::generator::reference::{EXP_BOUND, Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, spec};
use crate::generator::vectors::{for_bundles, for_vectors};
use crate::generator::work::{Arithmetic, Call, Work};
use crate::generator::{math, rms};

spec! {
    /// Gated delta rule, for the value heads of one key head.
    pub struct DeltaNet "delta_net" {
        /// Number of key heads of a row.
        pub heads: u32,
        /// Number of value heads that share a key head.
        pub group: u32,
        /// Number of elements of a key.
        pub d: u32,
        /// Number of elements of a value.
        pub dv: u32,
        /// Epsilon that is added to the squared length of a key or query.
        pub eps: Bits,
        /// Whether the value heads of a key head are `heads` apart instead of adjacent.
        pub interleaved: bool,
        /// Whether each element of a key has its own decay.
        pub channels: bool,
        /// Lower bound of the logarithm of decays, or `None`.
        pub bound: Option<Bits>,
        /// Upper bound of rates, or `None` if it is 1.
        pub rate: Option<Bits>,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("delta_net", 1, "delta_net heads=16 group=2 d=128 dv=128 eps=1e-6"),
    row("delta_net_rows", 32, "delta_net heads=16 group=2 d=128 dv=128 eps=1e-6 interleaved"),
    row("delta_net_channels", 1, "delta_net heads=32 group=1 d=128 dv=128 eps=1e-6 channels"),
    row("delta_net_bounded", 1, "delta_net heads=32 group=1 d=128 dv=128 eps=1e-6 channels bound=-5.0"),
    row("delta_net_rates", 1, "delta_net heads=30 group=1 d=96 dv=192 eps=1e-6 rate=2.0"),
];

impl DeltaNet {
    /// Returns the distance between neighbouring value heads of the same key head, in heads.
    fn spread(&self) -> i64 {
        if self.interleaved { self.heads.into() } else { 1 }
    }

    /// Returns the number of decays that a value head has in each row.
    fn decays(&self) -> u32 {
        if self.channels { self.d } else { 1 }
    }

    /// Checks the sizes. Returns an error if one is invalid.
    pub(crate) fn check(&self, name: &str) -> Result<(), GenerateError> {
        let DeltaNet { heads, group, d, dv, .. } = *self;
        let sizes = [("heads", heads), ("value heads", group), ("elements of a key", d), ("elements of a value", dv)];
        sizes.into_iter().try_for_each(|(what, n)| check(name, what, n.into(), n > 0, "at least 1"))?;
        let rate = self.rate.map_or(1.0, |rate| rate.value());
        check(
            name,
            "rate (its bits)",
            rate.to_bits().into(),
            rate > 0.0 && rate.is_finite(),
            "those of a number above 0",
        )?;
        let Some(bound) = self.bound else { return Ok(()) };
        let ok = bound.value() < 0.0 && bound.value().is_finite();
        check(name, "bound (its bits)", bound.0.into(), ok, "those of a number below 0")
    }

    /// Returns a signature with the kernel's buffers.
    pub(crate) fn buffers() -> Signature {
        Signature::new()
            .update("state", BufferContents::Floats)
            .read("q", BufferContents::Floats)
            .read("k", BufferContents::Floats)
            .read("v", BufferContents::Floats)
            .read("alpha", BufferContents::Floats)
            .read("beta", BufferContents::Floats)
            .read("a", BufferContents::Negative)
            .read("dt", BufferContents::Floats)
            .write("y", BufferContents::Floats)
            .scratch("scratch")
    }

    /// Compares a run over `rows` rows with the recurrence in f64. `each` is a bound of the error
    /// that each row adds, relative to the sums of the terms' magnitudes.
    pub(crate) fn compare(&self, run: &Run<'_>, rows: usize, each: f64) -> Result<(), Mismatch> {
        let DeltaNet { heads, group, d, dv, eps, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let read = |name| input.floats(name);
        let (q, k, v) = (read("q")?, read("k")?, read("v")?);
        let (alpha, beta, a, dt) = (read("alpha")?, read("beta")?, read("a")?, read("dt")?);
        let (mut state, after, y) = (read("state")?, output.floats("state")?, output.floats("y")?);
        // Sums of the magnitudes of terms. Errors are relative to these sums.
        let mut size: Vec<f64> = state.iter().map(|m| m.abs()).collect();
        let (heads, group, d, dv, spread) =
            (heads as usize, group as usize, d as usize, dv as usize, self.spread() as usize);
        let all = heads * group;
        let decays = self.decays() as usize;
        // An error in the state carries over to the next rows.
        let bound = |row: usize| (row + 1) as f64 * each;
        for t in 0..rows {
            let unit = |x: &[f64]| -> Vec<f64> {
                let x = &x[t * heads * d..][..d];
                let length = (x.iter().map(|x| x * x).sum::<f64>() + f64::from(eps.value())).sqrt();
                x.iter().map(|x| x / length).collect()
            };
            let (q, k) = (unit(&q), unit(&k));
            for h in (0..group).map(|h| h * spread) {
                let decay = |i: usize| {
                    let i = i % decays;
                    let x = alpha[(t * all + h) * decays + i] + dt[h * decays + i];
                    let log = match self.bound {
                        None => a[h] * (x.max(0.0) + (-x.abs()).exp().ln_1p()),
                        Some(bound) => f64::from(bound.value()) / (1.0 + (-a[h].abs() * x).exp()),
                    };
                    log.exp()
                };
                let decay: Vec<f64> = (0..d).map(decay).collect();
                let rate = f64::from(self.rate.map_or(1.0, |rate| rate.value())) / (1.0 + (-beta[t * all + h]).exp());
                for j in 0..dv {
                    let at = |i: usize| (h * d + i) * dv + j;
                    let value = v[(t * all + h) * dv + j];
                    let (mut found, mut found_size) = (0.0, 0.0);
                    for i in 0..d {
                        found += decay[i] * state[at(i)] * k[i];
                        found_size += decay[i] * size[at(i)] * k[i].abs();
                    }
                    let (change, change_size) = (rate * (value - found), rate * (value.abs() + found_size));
                    let (mut sum, mut sum_size) = (0.0, 0.0);
                    for i in 0..d {
                        state[at(i)] = decay[i] * state[at(i)] + k[i] * change;
                        size[at(i)] = decay[i] * size[at(i)] + k[i].abs() * change_size;
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
}

/// Buffers of a call, and the distances between their rows. This kernel and that for chunks of rows
/// use it.
pub(crate) struct Layout {
    spec: DeltaNet,
    pub(crate) lanes: u16,
    pub(crate) state: BufferId,
    pub(crate) q: BufferId,
    pub(crate) k: BufferId,
    v: BufferId,
    pub(crate) alpha: BufferId,
    pub(crate) beta: BufferId,
    pub(crate) a: BufferId,
    pub(crate) dt: BufferId,
    y: BufferId,
    pub(crate) scratch: BufferId,
    /// Number of bytes of a key.
    pub(crate) key: i64,
    /// Number of bytes of a value.
    pub(crate) value: i64,
    /// Number of value heads of a row.
    all: i64,
}

impl Layout {
    /// Declares the buffers for `rows` rows, and `scratch` bytes of scratch memory. Rows have all
    /// heads; each buffer begins at the data of one key head.
    pub(crate) fn declare(b: &mut KernelBuilder, spec: &DeltaNet, lanes: u16, rows: Affine, scratch: i64) -> Layout {
        let DeltaNet { heads, group, d, dv, .. } = *spec;
        let (key, value, all) = (i64::from(d) * 4, i64::from(dv) * 4, i64::from(heads) * i64::from(group));
        // Number of heads from the first value head of the group to the last one.
        let span = (i64::from(group) - 1) * spec.spread() + 1;
        let part = |row: i64, own: i64| rows.clone() * row + (own - row);
        let keys = part(i64::from(heads) * key, key);
        let state = b.buffer("state", BufferKind::ReadWrite, span * key * i64::from(dv));
        let [q, k] = ["q", "k"].map(|name| b.read(name, keys.clone()));
        let v = b.read("v", part(all * value, span * value));
        let decays = i64::from(spec.decays()) * 4;
        let [alpha, beta] = [("alpha", decays), ("beta", 4)].map(|(name, n)| b.read(name, part(all * n, span * n)));
        let [a, dt] = [("a", 4), ("dt", decays)].map(|(name, n)| b.read(name, span * n));
        let y = b.write("y", part(all * value, span * value));
        let scratch = b.buffer("scratch", BufferKind::Scratch, scratch);
        Layout { spec: *spec, lanes, state, q, k, v, alpha, beta, a, dt, y, scratch, key, value, all }
    }

    /// Returns the offset of the state matrix of a value head of the group.
    pub(crate) fn matrix(&self, h: VarId) -> Affine {
        h * (self.spec.spread() * self.key * i64::from(self.spec.dv))
    }

    /// Returns the update rate for a number of `beta`.
    pub(crate) fn rate(&self, b: &mut KernelBuilder, beta: ValueId) -> ValueId {
        let share = math::sigmoid(b, beta);
        let Some(most) = self.spec.rate else { return share };
        let lanes = b.ty(share).lanes;
        let most = b.splat_f32(lanes, most.value());
        b.mul(share, most)
    }

    /// Returns the offset of a value head's number in `a`, and in row `t` of `beta`. If a head has
    /// one decay, these are also its offsets in `dt` and `alpha`.
    pub(crate) fn numbers(&self, t: Affine, h: VarId) -> (Affine, Affine) {
        let of_head = h * (self.spec.spread() * 4);
        (of_head.clone(), t * (self.all * 4) + of_head)
    }

    /// Computes the decays of a value head's state in row `t`, one for each element of a key.
    /// Stores them at `to` in scratch memory.
    pub(crate) fn decays(&self, b: &mut KernelBuilder, t: Affine, h: VarId, to: &Affine) {
        let (of_head, of_row) = self.numbers(t, h);
        let d = i64::from(self.spec.d);
        for_vectors(b, self.lanes, self.spec.d, |b, at, lanes| {
            let (ty, at): (Type, Affine) = (Type::f32(lanes), at * 4);
            let alpha = b.load(ty, self.alpha, of_row.clone() * d + at.clone());
            let dt = b.load(ty, self.dt, of_head.clone() * d + at.clone());
            let a = b.load_splat(ty, self.a, of_head.clone());
            let x = self.log_decay(b, alpha, dt, a);
            let decay = math::exp(b, x);
            b.store(self.scratch, to.clone() + at, decay);
        });
    }

    /// Returns the logarithm of the decay: `a * softplus(alpha + dt)`, or `bound * sigmoid(|a| *
    /// (alpha + dt))`.
    pub(crate) fn log_decay(&self, b: &mut KernelBuilder, alpha: ValueId, dt: ValueId, a: ValueId) -> ValueId {
        let x = b.add(alpha, dt);
        let Some(bound) = self.spec.bound else {
            let x = math::softplus(b, x);
            return b.mul(x, a);
        };
        let steepness = math::abs(b, a);
        let x = b.mul(x, steepness);
        let share = math::sigmoid(b, x);
        let bound = b.splat_f32(b.ty(share).lanes, bound.value());
        b.mul(share, bound)
    }

    /// Returns the offset of a value head's value, and also of its result, in row `t`.
    fn place(&self, t: Affine, h: VarId) -> Affine {
        t * (self.all * self.value) + h * (self.spec.spread() * self.value)
    }

    /// Loads `lanes` elements of a value.
    pub(crate) fn load_v(&self, b: &mut KernelBuilder, lanes: u16, t: Affine, h: VarId, at: Affine) -> ValueId {
        b.load(Type::f32(lanes), self.v, self.place(t, h) + at)
    }

    /// Stores `lanes` elements of a result.
    pub(crate) fn store_y(&self, b: &mut KernelBuilder, t: Affine, h: VarId, at: Affine, y: ValueId) {
        b.store(self.y, self.place(t, h) + at, y);
    }

    /// Divides the query or key `x` of row `t` by its length and multiplies it by `factor`. Stores
    /// the result at `to` in scratch memory.
    pub(crate) fn unit(&self, b: &mut KernelBuilder, x: BufferId, factor: f32, t: &Affine, to: &Affine) {
        let DeltaNet { heads, d, eps, .. } = self.spec;
        let row = t.clone() * (i64::from(heads) * self.key);
        let sum = rms::squares(b, self.lanes, d, |b, at, lanes| b.load(Type::f32(lanes), x, row.clone() + at * 4));
        let (eps, factor) = (b.splat_f32(1, eps.value()), b.splat_f32(1, factor));
        let sum = b.add(sum, eps);
        let length = b.same(Op::Sqrt, &[sum]);
        let inverse = b.same(Op::Div, &[factor, length]);
        for_vectors(b, self.lanes, d, |b, at, lanes| {
            let x = b.load(Type::f32(lanes), x, row.clone() + at.clone() * 4);
            let inverse = wide(b, lanes, inverse);
            let x = b.mul(x, inverse);
            b.store(self.scratch, to.clone() + at * 4, x);
        });
    }

    /// Returns the factor on queries, in addition to the inverse of their lengths.
    pub(crate) fn query_factor(&self) -> f32 {
        (1.0 / f64::from(self.spec.d).sqrt()) as f32
    }

    /// Returns the number of bytes of scratch memory that one row of the recurrence needs.
    pub(crate) fn row_scratch(spec: &DeltaNet) -> i64 {
        // The scratch memory has a query and a key. With channels, it also has the decays, and the
        // key times the decays.
        let keys = if spec.channels { 4 } else { 2 };
        keys * i64::from(spec.d) * 4
    }

    /// Computes one row with the recurrence. Uses [`Layout::row_scratch`] bytes of scratch memory
    /// from its beginning.
    pub(crate) fn row(&self, b: &mut KernelBuilder, t: Affine) {
        let DeltaNet { group, d, dv, .. } = self.spec;
        let (query, key) = (Affine::constant(0), Affine::constant(self.key));
        self.unit(b, self.q, self.query_factor(), &t, &query);
        self.unit(b, self.k, 1.0, &t, &key);
        b.for_each("h", i64::from(group), |b, h| {
            let (of_head, of_row) = self.numbers(t.clone(), h);
            let scalar = |b: &mut KernelBuilder, buffer, at: &Affine| b.load(Type::f32(1), buffer, at.clone());
            let (decays, decayed) = (Affine::constant(2 * self.key), Affine::constant(3 * self.key));
            let decay = if self.spec.channels {
                self.decays(b, t.clone(), h, &decays);
                for_vectors(b, self.lanes, d, |b, at, lanes| {
                    let [decay, k] =
                        [&decays, &key].map(|of| b.load(Type::f32(lanes), self.scratch, of.clone() + at.clone() * 4));
                    let k = b.mul(decay, k);
                    b.store(self.scratch, decayed.clone() + at * 4, k);
                });
                None
            } else {
                let [alpha, dt, a] =
                    [(self.alpha, &of_row), (self.dt, &of_head), (self.a, &of_head)].map(|(x, at)| scalar(b, x, at));
                let x = self.log_decay(b, alpha, dt, a);
                Some(math::exp(b, x))
            };
            // `M' k` uses the decayed state. With channels, each element of the key is multiplied
            // by its decay. Otherwise the sum is multiplied by the decay.
            let finder = if self.spec.channels { &decayed } else { &key };
            let rate = scalar(b, self.beta, &of_row);
            let rate = self.rate(b, rate);
            for_bundles(b, self.lanes, dv, BUNDLE, |b, at, lanes, count| {
                let ty = Type::f32(lanes);
                let decay = decay.map(|decay| wide(b, lanes, decay));
                let (rate, none) = (wide(b, lanes, rate), b.splat_f32(lanes, 0.0));
                let at: Vec<Affine> = (0..count).map(|n| (at.clone() + i64::from(n) * i64::from(lanes)) * 4).collect();
                let column = |n: usize, i: VarId| self.matrix(h) + at[n].clone() + i * self.value;
                let found = b.for_carry("i", i64::from(d), &vec![none; at.len()], |b, i, found| {
                    let k = b.load_splat(ty, self.scratch, finder.clone() + i * 4);
                    let mut column = |(n, &found): (usize, &ValueId)| {
                        let m = b.load(ty, self.state, column(n, i));
                        b.fma(m, k, found)
                    };
                    found.iter().enumerate().map(&mut column).collect()
                });
                let change = |(at, found): (&Affine, ValueId)| {
                    let wanted = self.load_v(b, lanes, t.clone(), h, at.clone());
                    let found = decay.map_or(found, |decay| b.mul(found, decay));
                    let change = b.sub(wanted, found);
                    b.mul(change, rate)
                };
                let changes: Vec<ValueId> = at.iter().zip(found).map(change).collect();
                let sums = b.for_carry("i", i64::from(d), &vec![none; at.len()], |b, i, sums| {
                    let k = b.load_splat(ty, self.scratch, key.clone() + i * 4);
                    let q = b.load_splat(ty, self.scratch, query.clone() + i * 4);
                    let decay = decay.unwrap_or_else(|| b.load_splat(ty, self.scratch, decays.clone() + i * 4));
                    let mut column = |(n, &sum): (usize, &ValueId)| {
                        let m = b.load(ty, self.state, column(n, i));
                        let m = b.mul(m, decay);
                        let m = b.fma(k, changes[n], m);
                        b.store(self.state, column(n, i), m);
                        b.fma(m, q, sum)
                    };
                    sums.iter().enumerate().map(&mut column).collect()
                });
                for (at, sum) in at.iter().zip(sums) {
                    self.store_y(b, t.clone(), h, at.clone(), sum);
                }
            });
        });
    }
}

/// Number of vectors of a value that a loop computes together, so that this many sums are computed
/// at once.
const BUNDLE: u32 = 4;

/// Copies a scalar to `lanes` lanes.
fn wide(b: &mut KernelBuilder, lanes: u16, x: ValueId) -> ValueId {
    if lanes == 1 { x } else { b.broadcast(lanes, x) }
}

impl Definition for DeltaNet {
    fn name(&self) -> String {
        let DeltaNet { heads, group, d, dv, eps, interleaved, channels, bound, rate } = *self;
        let [interleaved, channels] =
            [(interleaved, "i"), (channels, "c")].map(|(is, word)| if is { word } else { "" });
        let bound = bound.map_or(String::new(), |bound| format!("_b{:x}", bound.0));
        let rate = rate.map_or(String::new(), |rate| format!("_r{:x}", rate.0));
        format!("delta_net_h{heads}g{group}d{d}v{dv}{interleaved}{channels}_e{:x}{bound}{rate}", eps.0)
    }

    fn signature(&self) -> Signature {
        DeltaNet::buffers().dim("rows", DimInput::Rows)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        self.check(&name)?;
        let mut b = KernelBuilder::new(name);
        let rows = b.dim("rows", 1, MAX_ROWS);
        let layout = Layout::declare(&mut b, self, vectors.lanes, rows.into(), Layout::row_scratch(self));
        b.for_each("t", rows, |b, t| layout.row(b, t.into()));
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        // In each row, errors come from sums of d products, lengths with sums of d squares, two
        // exponentials, a logarithm and about twelve operations.
        let each = f64::from(3 * self.d + 32) * UNIT + 2.0 * EXP_BOUND;
        self.compare(run, run.dim("rows") as usize, each)
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
