//! Combination of the results of attention over parts of the positions:
//! `sum of e^(m_i - m) acc_i / sum of e^(m_i - m) s_i`, in the order of the parts. Part i has the
//! maximum score `m_i`, the sum of weights `s_i` and the accumulator `acc_i`. The largest `m_i` is
//! m.
use ixc_ir::kernel::{BufferKind, Kernel, KernelBuilder, Op, Type};
use ixc_ir::plan::DimInput;

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::math;
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;

spec! {
    /// Combination of the results of attention over parts of the positions. A dim is the number of
    /// parts.
    pub struct AttentionCombine "attention_combine" {
        /// Number of query heads that share a key head.
        pub group: u32,
        /// Number of elements of a value head.
        pub dv: u32,
        /// Maximum number of parts.
        pub parts: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("attention_combine", 16, "attention_combine group=4 dv=64 parts=16"),
];

impl Definition for AttentionCombine {
    fn name(&self) -> String {
        let AttentionCombine { group, dv, parts } = *self;
        format!("attention_combine_g{group}v{dv}p{parts}")
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("parts", BufferContents::Positive)
            .write("y", BufferContents::Floats)
            .scratch("scratch")
            .dim("parts", DimInput::Parts)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let AttentionCombine { group, dv, parts } = *self;
        check(&name, "parts", u64::from(parts), parts > 0, "at least 1")?;
        check(&name, "elements of a value head", u64::from(dv), dv > 0, "at least 1")?;
        check(&name, "query heads", u64::from(group), group > 0, "at least 1")?;
        let (g, d) = (i64::from(group), i64::from(dv));
        let mut b = KernelBuilder::new(name);
        let count = b.dim("parts", 1, i64::from(parts));
        let head = (d + 2) * 4;
        let part_bytes = g * head;
        let bytes = i64::from(parts) * 4;
        let parts = b.read("parts", count * part_bytes);
        let y = b.write("y", g * d * 4);
        let factors = b.buffer("scratch", BufferKind::Scratch, bytes);
        let (maxima, sums) = (d * 4, (d + 1) * 4);
        b.for_each("h", g, |b, h| {
            let first = b.load(Type::f32(1), parts, h * head + maxima);
            let max = b.for_carry("part", count, &[first], |b, i, max| {
                let other = b.load(Type::f32(1), parts, i * part_bytes + h * head + maxima);
                vec![b.same(Op::Max, &[max[0], other])]
            });
            let none = b.splat_f32(1, 0.0);
            let sum = b.for_carry("part", count, &[none], |b, i, sum| {
                let own = b.load(Type::f32(1), parts, i * part_bytes + h * head + maxima);
                let fall = b.sub(own, max[0]);
                let factor = math::exp_of_negative(b, fall);
                b.store(factors, i * 4, factor);
                let own = b.load(Type::f32(1), parts, i * part_bytes + h * head + sums);
                vec![b.fma(own, factor, sum[0])]
            });
            let one = b.splat_f32(1, 1.0);
            let inverse = b.same(Op::Div, &[one, sum[0]]);
            for_vectors(b, lanes, dv, |b, at, lanes| {
                let none = b.splat_f32(lanes, 0.0);
                let acc = b.for_carry("part", count, &[none], |b, i, acc| {
                    let own = b.load(Type::f32(lanes), parts, i * part_bytes + h * head + at.clone() * 4);
                    let factor = b.load_splat(Type::f32(lanes), factors, i * 4);
                    vec![b.fma(own, factor, acc[0])]
                });
                let inverse = if lanes == 1 { inverse } else { b.broadcast(lanes, inverse) };
                let mean = b.mul(acc[0], inverse);
                b.store(y, h * (d * 4) + at * 4, mean);
            });
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let (group, dv) = (self.group as usize, self.dv as usize);
        let (parts, y) = (input.floats("parts")?, output.floats("y")?);
        let parts: Vec<&[f64]> = parts.chunks_exact(group * (dv + 2)).collect();
        for h in 0..group {
            let head = h * (dv + 2);
            let max = parts.iter().map(|part| part[head + dv]).fold(f64::MIN, f64::max);
            let factors: Vec<f64> = parts.iter().map(|part| (part[head + dv] - max).exp()).collect();
            let total = |at: usize| parts.iter().zip(&factors).map(|(part, f)| part[at] * f).sum::<f64>();
            // Sums of weights have less random values than the other inputs.
            let sum = total(head + dv + 1);
            for e in 0..dv {
                let expected = total(head + e) / sum;
                close(format_args!("y[{h}, {e}]"), y[h * dv + e], expected, 1e-5 * expected.abs().max(1.0))?;
            }
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
