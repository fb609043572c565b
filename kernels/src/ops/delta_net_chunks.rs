//! Gated delta rule ([`crate::DeltaNet`]) for many rows. Rows form chunks, whose products with the
//! state are matrix products.
//!
//! Let a chunk begin with the state `M`. `c[i]` is the sum of the logarithms of the decays of the
//! chunk's rows, up to and including row `i`.
//!
//! ```text
//! u[i] = rate[i] * (v[i] - e^c[i] M' k[i]) - sum over j < i of rate[i] e^(c[i] - c[j]) (k[i] . k[j]) u[j]
//! y[i] = e^c[i] M' q[i]                    + sum over j <= i of e^(c[i] - c[j]) (q[i] . k[j]) u[j]
//! M <- e^c[last] M + sum over j of k[j] (e^(c[last] - c[j]) u[j])'
//! ```
//!
//! This is the recurrence, solved for its changes `u`: the "UT transform" of Yang et al.,
//! "Parallelizing Linear Transformers with the Delta Rule", 2024. It is applied to the right side
//! of the equations, so keys are not transformed. The state is read twice and written once for each
//! chunk, instead of each row. Vectors compute sums of several rows at once, while the recurrence
//! would wait for each sum.
//!
//! **Length of a chunk.** Products with the state take `3 d dv` multiply-adds for each row, for any
//! length. Products within a chunk add `length * (dv + d)`. For each row, `3 d dv / length`
//! elements of the state are read or written. With f32 vectors, chunks of 16 rows already reduce
//! these accesses to an eighth of the arithmetic, and the products within a chunk are 6 % of it.
//! With 64 rows they would be a quarter. Rows after the last whole chunk use the recurrence.
//!
//! **Decays of channels.** If each element of a key has its own decay, `e^c` and its quotients are
//! vectors, and products of keys are sums of products of three factors. `e^(c[i] - c[j])` cannot be
//! split into two factors, because `e^-c[j]` overflows. The earlier keys are kept as columns of a
//! matrix `[d][16]`, each multiplied by the decay since its row. Each row multiplies all columns by
//! its decays, and adds its own key. The row's key and query are multiplied by this matrix. After
//! the last row, the product of the matrix and the changes is added to the state.
//!
//! Sums are added in the order of their index for every number of lanes, as in the recurrence.

mod places;

use ixc_ir::kernel::{Affine, Kernel, KernelBuilder, Type, ValueId, VarId};
use ixc_ir::plan::DimInput;

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_ROWS, Vectors};
use crate::generator::math;
use crate::generator::reference::{EXP_BOUND, Mismatch, Run, UNIT};
use crate::generator::signature::Signature;
use crate::generator::text::{Bits, spec};
use crate::generator::vectors::{for_bundles, for_vectors};
use crate::generator::work::{Arithmetic, Call, Work};
use crate::ops::delta_net::{DeltaNet, Layout};
use places::{Channels, Places};

/// Number of rows of a chunk.
const CHUNK: u32 = 16;
/// Number of bytes of one f32 for each row of a chunk.
const NUMBERS: i64 = CHUNK as i64 * 4;
/// Number of vectors of a value that a loop sums at once, for all rows of a chunk.
const BUNDLE: u32 = 2;
/// Number of sums over the elements of a key that are computed in parallel. Each addition takes
/// four cycles, and each element is added to two sums.
const PARALLEL_SUMS: u32 = 4;

spec! {
    /// Gated delta rule over many rows, for the value heads of one key head. The fields are those
    /// of `delta_net`.
    pub struct DeltaNetChunks "delta_net_chunks" {
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
    row("delta_net_chunks", 128, "delta_net_chunks heads=16 group=2 d=128 dv=128 eps=1e-6 interleaved"),
    row("delta_net_chunks_channels", 128, "delta_net_chunks heads=32 group=1 d=128 dv=128 eps=1e-6 channels"),
    row("delta_net_chunks_bounded", 128, "delta_net_chunks heads=32 group=1 d=128 dv=128 eps=1e-6 channels bound=-5.0"),
    row("delta_net_chunks_rates", 128, "delta_net_chunks heads=30 group=1 d=96 dv=192 eps=1e-6 rate=2.0"),
];

impl DeltaNetChunks {
    /// Minimum number of rows of the kernel: one chunk.
    pub const MIN_ROWS: u32 = CHUNK;

    /// Returns the spec of the recurrence with the same sizes.
    fn recurrence(&self) -> DeltaNet {
        let DeltaNetChunks { heads, group, d, dv, eps, interleaved, channels, bound, rate } = *self;
        DeltaNet { heads, group, d, dv, eps, interleaved, channels, bound, rate }
    }
}

impl Definition for DeltaNetChunks {
    fn name(&self) -> String {
        self.recurrence().name().replacen("delta_net", "delta_net_chunks", 1)
    }

    fn signature(&self) -> Signature {
        DeltaNet::buffers().dim("chunks", DimInput::Rows / CHUNK).dim("rest", DimInput::Rows % CHUNK)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let recurrence = self.recurrence();
        recurrence.check(&name)?;
        let mut b = KernelBuilder::new(name);
        let chunks = b.dim("chunks", 0, MAX_ROWS / i64::from(CHUNK));
        let rest = b.dim("rest", 0, i64::from(CHUNK) - 1);
        let places = Places::new(&recurrence);
        let rows = chunks * i64::from(CHUNK) + rest;
        let layout = Layout::declare(&mut b, &recurrence, vectors.lanes, rows, places.end);
        let chunk = Chunk { spec: *self, layout, places, block: if vectors.lanes < 16 { 4 } else { 8 } };
        if let Some(channels) = &chunk.places.channels {
            chunk.units(&mut b, channels);
        }
        b.for_each("chunk", chunks, |b, c| chunk.generate(b, &(c * i64::from(CHUNK))));
        b.for_each("t", rest, |b, t| chunk.layout.row(b, chunks * i64::from(CHUNK) + t));
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let rows = run.dim("chunks") as usize * CHUNK as usize + run.dim("rest") as usize;
        // The bound is that of the recurrence, plus errors of sums over a chunk's rows and of
        // products of keys. Differences of summed logarithms of decays have the absolute errors of
        // the sums, which are below 16 * 8 in tests.
        let each = f64::from(5 * self.d + 4 * CHUNK + 32) * UNIT + 4.0 * EXP_BOUND + 256.0 * UNIT;
        self.recurrence().compare(run, rows, each)
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let [chunks, rest] = *call.dims else { return Work::of_bytes(call.all_bytes()) };
        let state = u64::from(self.group) * u64::from(self.d) * u64::from(self.dv);
        let (chunks, rest) = (chunks.max(0).unsigned_abs(), rest.max(0).unsigned_abs());
        let rows = chunks * u64::from(CHUNK) + rest;
        Work { bytes: (chunks + rest) * state * 4, multiply_adds: rows * state * 3, arithmetic: Arithmetic::F32 }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// Generator of the code for a chunk.
struct Chunk {
    spec: DeltaNetChunks,
    layout: Layout,
    places: Places,
    /// Number of rows whose sums are in registers together, with [`BUNDLE`] vectors for each row.
    block: u32,
}

/// Some vectors of a value: the byte offset of the first, the number of lanes, and the number of
/// vectors.
#[derive(Clone)]
struct Columns {
    at: Affine,
    lanes: u16,
    count: u32,
}

impl Columns {
    fn ty(&self) -> Type {
        Type::f32(self.lanes)
    }

    /// Returns the byte offset of each vector.
    fn each(&self) -> impl Iterator<Item = Affine> + use<> {
        let (at, bytes) = (self.at.clone(), i64::from(self.lanes) * 4);
        (0..i64::from(self.count)).map(move |n| at.clone() + n * bytes)
    }
}

impl Chunk {
    /// Emits the code for the chunk that begins with row `first`.
    fn generate(&self, b: &mut KernelBuilder, first: &Affine) {
        self.keys(b, first);
        b.for_each("h", i64::from(self.spec.group), |b, h| {
            match &self.places.channels {
                Some(channels) => self.channels(b, first, h, channels),
                None => self.numbers(b, first, h),
            }
            for_bundles(b, self.layout.lanes, self.spec.dv, BUNDLE, |b, at, lanes, count| {
                let columns = Columns { at: at * 4, lanes, count };
                self.multiply_state(b, first, h, &columns);
                self.triangles(b, first, h, &columns);
                self.state(b, h, &columns);
            });
        });
    }

    /// Loads a number from scratch memory, and copies it to every lane.
    fn splat(&self, b: &mut KernelBuilder, ty: Type, at: impl Into<Affine>) -> ValueId {
        b.load_splat(ty, self.layout.scratch, at)
    }

    /// Computes and stores the scaled queries and keys of the key head. Without channels, also
    /// computes their products.
    fn keys(&self, b: &mut KernelBuilder, first: &Affine) {
        let (Layout { key, lanes, scratch, .. }, places) = (&self.layout, &self.places);
        let (key, lanes, scratch) = (*key, *lanes, *scratch);
        b.for_each("r", i64::from(CHUNK), |b, r| {
            let t = first.clone() + r;
            let own: Affine = r * key;
            self.layout.unit(b, self.layout.q, self.layout.query_factor(), &t, &(own.clone() + places.q));
            self.layout.unit(b, self.layout.k, 1.0, &t, &(own.clone() + places.k));
            // Four elements are copied in each iteration, so that loop control is a small part of
            // the work.
            for_vectors(b, 4, self.spec.d, |b, at, count| {
                for e in (0..i64::from(count)).map(|n| at.clone() + n) {
                    let x = b.load(Type::f32(1), scratch, own.clone() + e.clone() * 4 + places.k);
                    b.store(scratch, e * NUMBERS + r * 4 + places.across, x);
                }
            });
        });
        if self.spec.channels {
            // With channels, these products also depend on the decays of a value head.
            return;
        }
        for (rows, products) in [(places.k, places.kk), (places.q, places.qk)] {
            for_vectors(b, lanes, CHUNK, |b, at, lanes| {
                let (ty, at): (Type, Affine) = (Type::f32(lanes), at * 4);
                b.for_each("b", i64::from(CHUNK / self.block), |b, block| {
                    let none = b.splat_f32(lanes, 0.0);
                    let sums = vec![none; self.block as usize];
                    let sums = b.for_carry("e", i64::from(self.spec.d), &sums, |b, e, sums| {
                        let across = b.load(ty, scratch, e * NUMBERS + at.clone() + places.across);
                        self.of_block(block, key, sums, |row, &sum| {
                            let x = self.splat(b, ty, row + e * 4 + rows);
                            b.fma(x, across, sum)
                        })
                    });
                    self.of_block(block, NUMBERS, &sums, |row, &sum| {
                        b.store(scratch, row + at.clone() + products, sum);
                    });
                });
            });
        }
    }

    /// Applies `of` to each row of a block. `of` gets the row's offset in an array whose rows have
    /// `row_bytes` bytes.
    fn of_block<T, U>(&self, block: VarId, row_bytes: i64, items: &[T], mut of: impl FnMut(Affine, &T) -> U) -> Vec<U> {
        let row = |r: usize| block * (i64::from(self.block) * row_bytes) + r as i64 * row_bytes;
        items.iter().enumerate().map(|(r, item)| of(row(r), item)).collect()
    }

    /// Computes and stores the decays and rates of a value head, and the two triangular matrices of
    /// products.
    fn numbers(&self, b: &mut KernelBuilder, first: &Affine, h: VarId) {
        let (layout, places) = (&self.layout, &self.places);
        let (lanes, scratch) = (layout.lanes, layout.scratch);
        let (of_head, _) = layout.numbers(first.clone(), h);
        b.for_each("r", i64::from(CHUNK), |b, r| {
            let (_, of_row) = layout.numbers(first.clone() + r, h);
            for (x, to) in [(layout.alpha, places.log), (layout.beta, places.rate)] {
                let x = b.load(Type::f32(1), x, of_row.clone());
                b.store(scratch, r * 4 + to, x);
            }
        });
        for_vectors(b, lanes, CHUNK, |b, at, lanes| {
            let (ty, at): (Type, Affine) = (Type::f32(lanes), at * 4);
            let [a, dt] = [layout.a, layout.dt].map(|x| b.load_splat(ty, x, of_head.clone()));
            let alpha = b.load(ty, scratch, at.clone() + places.log);
            let log = layout.log_decay(b, alpha, dt, a);
            b.store(scratch, at.clone() + places.log, log);
            let beta = b.load(ty, scratch, at.clone() + places.rate);
            let rate = layout.rate(b, beta);
            b.store(scratch, at + places.rate, rate);
        });
        let none = b.splat_f32(1, 0.0);
        b.for_carry("r", i64::from(CHUNK), &[none], |b, r, sum| {
            let log = b.load(Type::f32(1), scratch, r * 4 + places.log);
            let sum = b.add(sum[0], log);
            b.store(scratch, r * 4 + places.log, sum);
            vec![sum]
        });
        let last = places.log + NUMBERS - 4;
        for_vectors(b, lanes, CHUNK, |b, at, lanes| {
            let (ty, at): (Type, Affine) = (Type::f32(lanes), at * 4);
            let sum = b.load(ty, scratch, at.clone() + places.log);
            let left = math::exp(b, sum);
            b.store(scratch, at.clone() + places.left, left);
            let all = self.splat(b, ty, last);
            let after = b.sub(all, sum);
            let after = math::exp(b, after);
            b.store(scratch, at.clone() + places.after, after);
            b.for_each("i", i64::from(CHUNK), |b, i| {
                let [own, rate] = [places.log, places.rate].map(|x| self.splat(b, ty, i * 4 + x));
                let since = b.sub(own, sum);
                let left = math::exp(b, since);
                let [kk, qk] = [places.kk, places.qk].map(|x| b.load(ty, scratch, i * NUMBERS + at.clone() + x));
                let none = b.splat_f32(lanes, 0.0);
                let taken = b.mul(kk, left);
                let taken = b.mul(taken, rate);
                let taken = b.sub(none, taken);
                b.store(scratch, i * NUMBERS + at.clone() + places.change, taken);
                let given = b.mul(qk, left);
                b.store(scratch, i * NUMBERS + at.clone() + places.give, given);
            });
        });
    }

    /// Stores an identity matrix in scratch memory.
    fn units(&self, b: &mut KernelBuilder, channels: &Channels) {
        for_vectors(b, self.layout.lanes, CHUNK * CHUNK, |b, at, lanes| {
            let none = b.splat_f32(lanes, 0.0);
            b.store(self.layout.scratch, at * 4 + channels.unit, none);
        });
        let one = b.splat_f32(1, 1.0);
        b.for_each("r", i64::from(CHUNK), |b, r| b.store(self.layout.scratch, r * (NUMBERS + 4) + channels.unit, one));
    }

    /// Computes and stores for a value head: the decays of its channels, its rates, the queries and
    /// keys times their decays, and the two triangular matrices of products.
    fn channels(&self, b: &mut KernelBuilder, first: &Affine, h: VarId, channels: &Channels) {
        let (layout, places) = (&self.layout, &self.places);
        let (lanes, scratch, key, d) = (layout.lanes, layout.scratch, layout.key, self.spec.d);
        b.for_each("r", i64::from(CHUNK), |b, r| {
            layout.decays(b, first.clone() + r, h, &(r * key + channels.decay));
            let (_, of_row) = layout.numbers(first.clone() + r, h);
            let beta = b.load(Type::f32(1), layout.beta, of_row);
            let rate = layout.rate(b, beta);
            b.store(scratch, r * 4 + places.rate, rate);
        });
        for_vectors(b, lanes, d, |b, at, lanes| {
            let (ty, at): (Type, Affine) = (Type::f32(lanes), at * 4);
            let one = b.splat_f32(lanes, 1.0);
            b.for_carry("r", i64::from(CHUNK), &[one], |b, r, left| {
                let own = r * key + at.clone();
                let decay = b.load(ty, scratch, own.clone() + channels.decay);
                let left = b.mul(left[0], decay);
                b.store(scratch, own.clone() + channels.left, left);
                for (x, to) in [(places.q, channels.q), (places.k, channels.k)] {
                    let x = b.load(ty, scratch, own.clone() + x);
                    let x = b.mul(x, left);
                    b.store(scratch, own.clone() + to, x);
                }
                vec![left]
            });
        });
        for_vectors(b, lanes, d * CHUNK, |b, at, lanes| {
            let none = b.splat_f32(lanes, 0.0);
            b.store(scratch, at * 4 + channels.kept, none);
        });
        // Elements that are `apart` apart share a sum, so that an addition does not wait for the
        // one before.
        let apart = if d.is_multiple_of(PARALLEL_SUMS) { PARALLEL_SUMS } else { 1 };
        for_vectors(b, lanes, CHUNK, |b, at, lanes| {
            let (ty, at): (Type, Affine) = (Type::f32(lanes), at * 4);
            b.for_each("r", i64::from(CHUNK), |b, r| {
                let none = b.splat_f32(lanes, 0.0);
                let unit = b.load(ty, scratch, r * NUMBERS + at.clone() + channels.unit);
                let sums = b.for_carry("e", i64::from(d / apart), &vec![none; 2 * apart as usize], |b, e, sums| {
                    let mut next = Vec::new();
                    for (n, sums) in sums.chunks(2).enumerate() {
                        let e: Affine = e * i64::from(apart) + n as i64;
                        let own = r * key + e.clone() * 4;
                        let [decay, k, q] =
                            [channels.decay, places.k, places.q].map(|x| self.splat(b, ty, own.clone() + x));
                        let of_channel = e * NUMBERS + at.clone();
                        let kept = b.load(ty, scratch, of_channel.clone() + channels.kept);
                        let kept = b.mul(kept, decay);
                        let across = b.load(ty, scratch, of_channel.clone() + places.across);
                        let kept = b.fma(across, unit, kept);
                        b.store(scratch, of_channel + channels.kept, kept);
                        next.extend([(k, sums[0]), (q, sums[1])].map(|(x, sum)| b.fma(kept, x, sum)));
                    }
                    next
                });
                let mut sums = sums.chunks(2).map(|sums| [sums[0], sums[1]]);
                let Some(all) = sums.next() else { return };
                let [kk, qk] = sums.fold(all, |all, own| [b.add(all[0], own[0]), b.add(all[1], own[1])]);
                let rate = self.splat(b, ty, r * 4 + places.rate);
                let taken = b.mul(kk, rate);
                let taken = b.sub(none, taken);
                b.store(scratch, r * NUMBERS + at.clone() + places.change, taken);
                b.store(scratch, r * NUMBERS + at.clone() + places.give, qk);
            });
        });
    }

    /// Multiplies rows by the state. The products with keys are the right sides of the equations
    /// for the changes. The products with queries are the first terms of the results.
    fn multiply_state(&self, b: &mut KernelBuilder, first: &Affine, h: VarId, columns: &Columns) {
        let (layout, places) = (&self.layout, &self.places);
        let (ty, scratch) = (columns.ty(), layout.scratch);
        b.for_each("b", i64::from(CHUNK / self.block), |b, block| {
            let (k, q) = places.channels.as_ref().map_or((places.k, places.q), |channels| (channels.k, channels.q));
            for (rows, to) in [(k, places.u), (q, places.o)] {
                let none = b.splat_f32(columns.lanes, 0.0);
                let sums = vec![none; (self.block * columns.count) as usize];
                let sums = b.for_carry("e", i64::from(self.spec.d), &sums, |b, e, sums| {
                    let load = |at: Affine| b.load(ty, layout.state, layout.matrix(h) + at + e * layout.value);
                    let m: Vec<ValueId> = columns.each().map(load).collect();
                    let sums: Vec<&[ValueId]> = sums.chunks(m.len()).collect();
                    let rows = self.of_block(block, layout.key, &sums, |row, sums| {
                        let x = self.splat(b, ty, row + e * 4 + rows);
                        sums.iter().zip(&m).map(|(&sum, &m)| b.fma(m, x, sum)).collect::<Vec<_>>()
                    });
                    rows.concat()
                });
                let sums: Vec<(usize, &[ValueId])> = sums.chunks(columns.count as usize).enumerate().collect();
                self.of_block(block, NUMBERS / i64::from(CHUNK), &sums, |number, (r, sums)| {
                    // With channels, the queries and keys already contain the decay.
                    let left =
                        if self.spec.channels { None } else { Some(self.splat(b, ty, number.clone() + places.left)) };
                    let rate = self.splat(b, ty, number + places.rate);
                    let row: Affine = block * i64::from(self.block) + *r as i64;
                    for (at, &sum) in columns.each().zip(*sums) {
                        let mut x = left.map_or(sum, |left| b.mul(sum, left));
                        if to == places.u {
                            let v = layout.load_v(b, columns.lanes, first.clone() + row.clone(), h, at.clone());
                            x = b.sub(v, x);
                            x = b.mul(x, rate);
                        }
                        b.store(scratch, row.clone() * layout.value + at + to, x);
                    }
                });
            }
        });
    }

    /// Solves the equations for the changes, one row after another, and adds the changes' terms to
    /// the results. Finally multiplies each change by its decay up to the chunk's end.
    fn triangles(&self, b: &mut KernelBuilder, first: &Affine, h: VarId, columns: &Columns) {
        let (layout, places) = (&self.layout, &self.places);
        let (ty, scratch) = (columns.ty(), layout.scratch);
        let rows = i64::from(CHUNK);
        let load = |b: &mut KernelBuilder, of: i64, row: i64| -> Vec<ValueId> {
            columns.each().map(|at| b.load(ty, scratch, at + row * layout.value + of)).collect()
        };
        // Returns `sums` plus the sum of the changes before row `end`, each times an element of a
        // triangular matrix's row.
        let with_changes = |b: &mut KernelBuilder, sums: Vec<ValueId>, triangle: i64, end: i64| -> Vec<ValueId> {
            (0..end).fold(sums, |sums, j| {
                let x = self.splat(b, ty, triangle + j * 4);
                let u = load(b, places.u, j);
                sums.iter().zip(u).map(|(&sum, u)| b.fma(x, u, sum)).collect()
            })
        };
        for i in 0..rows {
            if i > 0 {
                let right = load(b, places.u, i);
                let u = with_changes(b, right, places.change + i * NUMBERS, i);
                for (at, u) in columns.each().zip(u) {
                    b.store(scratch, at + i * layout.value + places.u, u);
                }
            }
            let found = load(b, places.o, i);
            let y = with_changes(b, found, places.give + i * NUMBERS, i + 1);
            for (at, y) in columns.each().zip(y) {
                layout.store_y(b, first.clone() + i, h, at, y);
            }
        }
        if self.spec.channels {
            // With channels, the keys already contain these decays.
            return;
        }
        for i in 0..rows {
            let after = self.splat(b, ty, places.after + i * 4);
            for (at, u) in columns.each().zip(load(b, places.u, i)) {
                let u = b.mul(u, after);
                b.store(scratch, at + i * layout.value + places.u, u);
            }
        }
    }

    /// Computes and stores the state after the chunk.
    fn state(&self, b: &mut KernelBuilder, h: VarId, columns: &Columns) {
        let d = self.spec.d;
        let whole = d / self.block;
        if whole > 0 {
            b.for_each("b", i64::from(whole), |b, block| {
                self.state_rows(b, h, columns, &(block * i64::from(self.block)), self.block);
            });
        }
        if !d.is_multiple_of(self.block) {
            self.state_rows(b, h, columns, &Affine::constant((whole * self.block).into()), d % self.block);
        }
    }

    /// Computes and stores the rows of the state for `count` elements of a key, from element `from`
    /// on.
    fn state_rows(&self, b: &mut KernelBuilder, h: VarId, columns: &Columns, from: &Affine, count: u32) {
        let (layout, places) = (&self.layout, &self.places);
        let (ty, scratch) = (columns.ty(), layout.scratch);
        let last = i64::from(CHUNK - 1);
        let mut all = None;
        let place = |r: i64, at: Affine| layout.matrix(h) + (from.clone() + r) * layout.value + at;
        let mut old = Vec::new();
        for r in 0..i64::from(count) {
            let left = match &places.channels {
                Some(channels) => self.splat(b, ty, (from.clone() + r) * 4 + last * layout.key + channels.left),
                None => *all.get_or_insert_with(|| self.splat(b, ty, places.left + last * 4)),
            };
            for at in columns.each() {
                let m = b.load(ty, layout.state, place(r, at));
                old.push(b.mul(m, left));
            }
        }
        let new = b.for_carry("j", i64::from(CHUNK), &old, |b, j, sums| {
            let change = |at: Affine| b.load(ty, scratch, at + j * layout.value + places.u);
            let u: Vec<ValueId> = columns.each().map(change).collect();
            let row = |(r, sums): (usize, &[ValueId])| -> Vec<ValueId> {
                let row = from.clone() + r as i64;
                let k = match &places.channels {
                    Some(channels) => row * NUMBERS + j * 4 + channels.kept,
                    None => row * 4 + j * layout.key + places.k,
                };
                let k = self.splat(b, ty, k);
                sums.iter().zip(&u).map(|(&sum, &u)| b.fma(u, k, sum)).collect()
            };
            sums.chunks(u.len()).enumerate().flat_map(row).collect()
        });
        for (r, sums) in new.chunks(columns.count as usize).enumerate() {
            for (at, &m) in columns.each().zip(sums) {
                b.store(layout.state, place(r as i64, at), m);
            }
        }
    }
}
