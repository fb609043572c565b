//! Compression of every `every` positions into one row, for all rows of a step. Each element is a
//! mean, with its own softmax weights, over the positions up to the current one. See the graph op
//! `compress`.
//!
//! Vector lanes are elements. As in an online softmax, the maximum, the sum of weights and the
//! weighted sum stay in registers from row to row. They are stored in the state at the end. A row's
//! position modulo `every` selects a row of `ape`, and determines whether the compressed row is
//! complete.

use ixc_ir::kernel::{Affine, BufferKind, Kernel, KernelBuilder, Op, Type, ValueId};
use ixc_ir::plan::DimInput;

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_ROWS, Vectors, check};
use crate::generator::math;
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;

spec! {
    /// Compression of every `every` positions into one row, for a range of elements.
    pub struct Compress "compress" {
        /// Number of elements of a row.
        pub d: u32,
        /// Number of elements that a call computes: a slice of each row.
        pub n: u32,
        /// Number of positions that one compressed row covers.
        pub every: u32,
        /// Whether a compressed row also includes the `every` positions before its own.
        pub overlap: bool,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("compress", 1, "compress d=512 n=128 every=128"),
    row("compress_overlap", 32, "compress d=512 n=128 every=4 overlap"),
];

/// Number of state elements for each element of a compressed row: maximum, sum of weights, weighted
/// sum.
const NUMBERS: i64 = 3;

impl Compress {
    fn series(&self) -> i64 {
        if self.overlap { 2 } else { 1 }
    }
}

impl Definition for Compress {
    fn name(&self) -> String {
        let Compress { d, n, every, overlap } = *self;
        format!("compress{every}_d{d}n{n}{}", if overlap { "_overlap" } else { "" })
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .update("state", BufferContents::Floats)
            .index("phase")
            .read("kv", BufferContents::Floats)
            .read("gate", BufferContents::Floats)
            .read("ape", BufferContents::Floats)
            .write("y", BufferContents::Floats)
            .dim("rows", DimInput::Rows)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Compress { d, n, every, .. } = *self;
        check(&name, "elements", n.into(), n > 0 && n <= d, "1 to those of a row")?;
        check(&name, "positions of a row", every.into(), every > 0 && i32::try_from(every).is_ok(), "at least 1")?;
        let series = self.series();
        let (row, own) = (i64::from(d) * 4, i64::from(n) * 4);
        let wide = series * row;
        let mut b = KernelBuilder::new(name);
        let rows = b.dim("rows", 1, MAX_ROWS);
        // A call computes a slice of each row, but the distance between rows is that of whole rows.
        let state = b.buffer("state", BufferKind::ReadWrite, (NUMBERS * series - 1) * row + own);
        let phase = b.buffer("phase", BufferKind::Index { below: i64::from(every).into() }, rows * 4);
        let kv = b.read("kv", rows * wide + (own - row));
        let gate = b.read("gate", rows * wide + (own - row));
        let ape = b.read("ape", i64::from(every) * wide + (own - row));
        let y = b.write("y", rows * row + (own - row));
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let ty = Type::f32(lanes);
            let at: Affine = at * 4;
            let before: Vec<_> = (0..NUMBERS * series).map(|i| b.load(ty, state, at.clone() + i * row)).collect();
            let after = b.for_carry("t", rows, &before, |b, t, before| {
                let place = b.load_index("place", phase, t * 4);
                let mut made = Vec::with_capacity(before.len());
                // The compressed row of the token's own positions takes the second half.
                for (numbers, half) in before.chunks_exact(NUMBERS as usize).zip((0..series).rev()) {
                    let at = at.clone() + half * row;
                    let score = b.load(ty, gate, t * wide + at.clone());
                    let own = b.load(ty, ape, place * wide + at.clone());
                    let score = b.add(score, own);
                    let x = b.load(ty, kv, t * wide + at);
                    made.extend(with(b, numbers, score, x));
                }
                let mean = b.same(Op::Div, &[made[2], made[1]]);
                b.store(y, t * row + at.clone(), mean);
                // After the last of `every` positions, the state of the next compressed row becomes
                // the current one.
                let (place, last) = (b.index(place), b.splat_int(Type::i32(1), i64::from(every) - 1));
                let last = b.same(Op::CmpEq, &[place, last]);
                let last = if lanes == 1 { last } else { b.broadcast(lanes, last) };
                let nothing = b.splat_f32(lanes, 0.0);
                let next: Vec<_> = made[NUMBERS as usize..]
                    .iter()
                    .copied()
                    .chain(std::iter::repeat_n(nothing, NUMBERS as usize))
                    .collect();
                let kept = made.iter().zip(next).map(|(&made, next)| b.op(Op::Select, ty, &[last, next, made]));
                kept.collect()
            });
            for (value, i) in after.into_iter().zip(0..) {
                b.store(state, at.clone() + i * row, value);
            }
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let (d, n, every, series) = (self.d as usize, self.n as usize, self.every as usize, self.series() as usize);
        let [kv, gate, ape] = [input.floats("kv")?, input.floats("gate")?, input.floats("ape")?];
        let (y, found) = (output.floats("y")?, output.floats("state")?);
        let mut state = input.floats("state")?;
        let phases = input.ints("phase")?;
        for i in 0..n {
            for (t, &phase) in phases.iter().enumerate() {
                for of in 0..series {
                    let at = (series - 1 - of) * d + i;
                    let score = gate[t * series * d + at] + ape[phase as usize * series * d + at];
                    let number = |number: usize| (of * NUMBERS as usize + number) * d + i;
                    let [max, sum, weighted] = [0, 1, 2].map(|i| state[number(i)]);
                    let top = if sum > 0.0 { max.max(score) } else { score };
                    let fall = if sum > 0.0 { (max - top).exp() } else { 0.0 };
                    let weight = (score - top).exp();
                    state[number(0)] = top;
                    state[number(1)] = sum * fall + weight;
                    state[number(2)] = weighted * fall + weight * kv[t * series * d + at];
                }
                let expected = state[2 * d + i] / state[d + i];
                // The result is at most as large as the largest element. Weights are positive, and
                // after the first position their sum is at least 1.
                let bound = 2e-5 * (phases.len() as f64) * (1.0 + expected.abs() + state[2 * d + i].abs());
                close(format_args!("y[{t}, {i}]"), y[t * d + i], expected, bound)?;
                if phase as usize + 1 == every {
                    for number in 0..NUMBERS as usize * series {
                        let next = (number + NUMBERS as usize) * d + i;
                        state[number * d + i] = if number / NUMBERS as usize + 1 < series { state[next] } else { 0.0 };
                    }
                }
            }
            for number in 0..NUMBERS as usize * series {
                let expected = state[number * d + i];
                let bound = 2e-5 * (phases.len() as f64) * (1.0 + expected.abs());
                close(format_args!("state[{number}, {i}]"), found[number * d + i], expected, bound)?;
            }
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// Adds an element with its score to the maximum, the sum of weights and the weighted sum. If the
/// sum of weights is 0, no element was added yet.
fn with(b: &mut KernelBuilder, numbers: &[ValueId], score: ValueId, x: ValueId) -> [ValueId; 3] {
    let [max, sum, weighted] = [numbers[0], numbers[1], numbers[2]];
    let ty = b.ty(score);
    let zero = b.splat_f32(ty.lanes, 0.0);
    let some = b.op(Op::CmpLtF, Type::i32(ty.lanes), &[zero, sum]);
    let both = b.same(Op::Max, &[max, score]);
    let top = b.op(Op::Select, ty, &[some, both, score]);
    // Before the first element, the maximum has no meaning.
    let fall = b.sub(max, top);
    let fall = b.same(Op::Min, &[fall, zero]);
    let fall = math::exp_of_negative(b, fall);
    let fall = b.op(Op::Select, ty, &[some, fall, zero]);
    let rise = b.sub(score, top);
    let weight = math::exp_of_negative(b, rise);
    let sum = b.fma(sum, fall, weight);
    let past = b.mul(weighted, fall);
    [top, sum, b.fma(weight, x, past)]
}
