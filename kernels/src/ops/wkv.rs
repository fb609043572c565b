//! Linear attention with a decay for each token and each element of a key (RWKV), for the heads
//! that share a key, over all rows of a step.
//!
//! ```text
//! found = M' find;   M <- diag(decay) M - remove found + k v';   y = M' q
//! ```
//!
//! With `before`, a row's result uses the state before the row. With `filled`, keys are multiplied
//! by `1 - decay`. Without `finds`, no value is looked up or subtracted.
//!
//! Vector lanes are elements of the value, so no sum is across lanes. A head processes all rows
//! before the next head begins. Its state `[d, dv]`, 16 KiB for heads of 64 elements, stays in L1.
//! It is read once for the looked-up value, and then read and written once for all other terms.

use ixc_ir::kernel::{Affine, BufferKind, Kernel, KernelBuilder, Type, ValueId, VarId};
use ixc_ir::plan::DimInput;

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_ROWS, Vectors, check};
use crate::generator::reference::{Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_bundles;
use crate::generator::work::{Arithmetic, Call, Work};

spec! {
    /// Linear attention with decays for each token, for the heads that share a key.
    pub struct Wkv "wkv" {
        /// Number of heads of the keys and values of a row.
        pub heads: u32,
        /// Number of heads that share a key.
        pub group: u32,
        /// Number of elements of a key.
        pub d: u32,
        /// Number of elements of a value.
        pub dv: u32,
        /// Whether a row's result uses the state before the row.
        pub before: bool,
        /// Whether a value is looked up in the state and subtracted.
        pub finds: bool,
        /// Whether keys are multiplied by `1 - decay`.
        pub filled: bool,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("wkv7", 1, "wkv heads=32 group=1 d=64 dv=64 finds"),
    row("wkv6", 1, "wkv heads=32 group=1 d=64 dv=64 before"),
    row("wkv6_filled", 1, "wkv heads=8 group=5 d=128 dv=128 filled"),
];

/// Number of vectors of a value that a loop computes together. With the values that they share,
/// they fill sixteen registers.
const BUNDLE: u32 = 2;

impl Definition for Wkv {
    fn name(&self) -> String {
        let Wkv { heads, group, d, dv, before, finds, filled } = *self;
        let words = [(before, "_before"), (finds, "_finds"), (filled, "_filled")];
        let words: String = words.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect();
        format!("wkv_h{heads}g{group}d{d}v{dv}{words}")
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .update("state", BufferContents::Floats)
            .read("q", BufferContents::Floats)
            .read("k", BufferContents::Floats)
            .read("v", BufferContents::Floats)
            .read("decay", BufferContents::Floats)
            .read_if(self.finds, "find", BufferContents::Floats)
            .read_if(self.finds, "remove", BufferContents::Floats)
            .write("y", BufferContents::Floats)
            .dim("rows", DimInput::Rows)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Wkv { heads, group, d, dv, before, finds, filled } = *self;
        let sizes =
            [("heads", heads), ("heads of a key", group), ("elements of a key", d), ("elements of a value", dv)];
        sizes.into_iter().try_for_each(|(what, n)| check(&name, what, n.into(), n > 0, "at least 1"))?;
        let mut b = KernelBuilder::new(name);
        let rows = b.dim("rows", 1, MAX_ROWS);
        let (heads, group, key, value) = (i64::from(heads), i64::from(group), i64::from(d) * 4, i64::from(dv) * 4);
        let matrix = i64::from(d) * value;
        // Size of a buffer that begins at the call's part of the first row. A call uses `each` of
        // the `all` bytes of a row.
        let part = |all: i64, each: i64| rows * all + (each - all);
        let (all_keys, all_values) = (heads * group * key, heads * group * value);
        let state = b.buffer("state", BufferKind::ReadWrite, group * matrix);
        let q = b.read("q", part(all_keys, group * key));
        let k = b.read("k", part(heads * key, key));
        let v = b.read("v", part(heads * value, value));
        let decay = b.read("decay", part(all_keys, group * key));
        let deltas = match finds {
            true => Some(["find", "remove"].map(|name| b.read(name, part(all_keys, group * key)))),
            false => None,
        };
        let y = b.write("y", part(all_values, group * value));
        b.for_each("h", group, |b, h| {
            b.for_each("t", rows, |b, t| {
                for_bundles(b, vectors.lanes, dv, BUNDLE, |b, at, lanes, count| {
                    let ty = Type::f32(lanes);
                    let at: Vec<Affine> =
                        (0..count).map(|n| (at.clone() + i64::from(n) * i64::from(lanes)) * 4).collect();
                    let column = |n: usize, i: VarId| h * matrix + i * value + at[n].clone();
                    let of_head = |i: VarId| t * all_keys + h * key + i * 4;
                    let none = vec![b.splat_f32(lanes, 0.0); at.len()];
                    let found = deltas.map(|[find, _]| {
                        b.for_carry("i", i64::from(d), &none, |b, i, found| {
                            let find = b.load_splat(ty, find, of_head(i));
                            let mut column = |(n, &found): (usize, &ValueId)| {
                                let m = b.load(ty, state, column(n, i));
                                b.fma(m, find, found)
                            };
                            found.iter().enumerate().map(&mut column).collect()
                        })
                    });
                    let values: Vec<ValueId> =
                        at.iter().map(|at| b.load(ty, v, t * (heads * value) + at.clone())).collect();
                    let sums = b.for_carry("i", i64::from(d), &none, |b, i, sums| {
                        let [q, decay] = [q, decay].map(|x| b.load_splat(ty, x, of_head(i)));
                        let mut k = b.load_splat(ty, k, t * (heads * key) + i * 4);
                        if filled {
                            let one = b.splat_f32(lanes, 1.0);
                            let left = b.sub(one, decay);
                            k = b.mul(k, left);
                        }
                        let remove = deltas.map(|[_, remove]| b.load_splat(ty, remove, of_head(i)));
                        let mut next = Vec::with_capacity(sums.len());
                        for (n, (&sum, &v)) in sums.iter().zip(&values).enumerate() {
                            let old = b.load(ty, state, column(n, i));
                            let mut m = b.mul(old, decay);
                            if let (Some(remove), Some(found)) = (remove, &found) {
                                let taken = b.mul(remove, found[n]);
                                m = b.sub(m, taken);
                            }
                            let m = b.fma(k, v, m);
                            b.store(state, column(n, i), m);
                            next.push(b.fma(if before { old } else { m }, q, sum));
                        }
                        next
                    });
                    for (at, sum) in at.iter().zip(sums) {
                        b.store(y, t * all_values + h * value + at.clone(), sum);
                    }
                });
            });
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let Wkv { heads, group, d, dv, before, finds, filled } = *self;
        let [heads, group, d, dv] = [heads, group, d, dv].map(|n| n as usize);
        let (input, output, rows) = (run.input(), run.output(), run.dim("rows") as usize);
        let read = |name| input.floats(name);
        let (q, k, v, decay) = (read("q")?, read("k")?, read("v")?, read("decay")?);
        let deltas = if finds { Some((read("find")?, read("remove")?)) } else { None };
        let (mut state, after, y) = (read("state")?, output.floats("state")?, output.floats("y")?);
        // Sums of the magnitudes of terms. Errors are relative to these sums.
        let mut size: Vec<f64> = state.iter().map(|m| m.abs()).collect();
        // Each row has two sums of d products, and about twelve operations. An error in the state
        // carries over to the next rows.
        let each = (2 * d + 12) as f64 * UNIT;
        let all = heads * group;
        for h in 0..group {
            for t in 0..rows {
                let of_head = |x: &[f64], i: usize| x[(t * all + h) * d + i];
                for j in 0..dv {
                    let at = |i: usize| (h * d + i) * dv + j;
                    let (mut found, mut found_size) = (0.0, 0.0);
                    if let Some((find, _)) = &deltas {
                        for i in 0..d {
                            found += state[at(i)] * of_head(find, i);
                            found_size += size[at(i)] * of_head(find, i).abs();
                        }
                    }
                    let v = v[t * heads * dv + j];
                    let (mut sum, mut sum_size) = (0.0, 0.0);
                    for i in 0..d {
                        let (decay, q, i_at) = (of_head(&decay, i), of_head(&q, i), at(i));
                        let left = if filled { 1.0 - decay } else { 1.0 };
                        let remove = deltas.as_ref().map_or(0.0, |(_, remove)| of_head(remove, i));
                        let k = k[t * heads * d + i] * left;
                        let (old, old_size) = (state[i_at], size[i_at]);
                        state[i_at] = decay * old - remove * found + k * v;
                        size[i_at] = decay.abs() * old_size + remove.abs() * found_size + (k * v).abs();
                        let (m, m_size) = if before { (old, old_size) } else { (state[i_at], size[i_at]) };
                        sum += m * q;
                        sum_size += m_size * q.abs();
                    }
                    let found = y[(t * all + h) * dv + j];
                    close(format_args!("y[{t}, {h}, {j}]"), found, sum, sum_size * (t + 1) as f64 * each)?;
                }
            }
        }
        (0..group * d * dv)
            .try_for_each(|i| close(format_args!("state[{i}]"), after[i], state[i], size[i] * (rows + 1) as f64 * each))
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let rows = call.dims.first().map_or(1, |rows| rows.unsigned_abs());
        let state = [self.group, self.d, self.dv].into_iter().map(u64::from).product::<u64>();
        let products = if self.finds { 5 } else { 3 };
        Work { bytes: rows * state * 4, multiply_adds: rows * state * products, arithmetic: Arithmetic::F32 }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
