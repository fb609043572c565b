//! Routing of a token to its experts: scores, the best `top_k` of them in order, and their weights.

use ixc_ir::kernel::{BufferKind, Kernel, KernelBuilder, Op, Type};
use serde::{Deserialize, Serialize};

use crate::catalogue::{Row, row};
use crate::definition::Definition;
use crate::generate::{GenerateError, Vectors, check};
use crate::math;
use crate::reference::{Mismatch, Run, close, equal};
use crate::signature::{Holds, Signature};
use crate::text::{Bits, Words, spec, words};
use crate::vectors::{LOWEST, for_vectors};

/// Sums of weights are not taken for smaller than this before they divide (llama.cpp; the smallest normal half).
const SMALLEST_SUM: f32 = 6.103_515_6e-5;
/// Below every score: what an expert gets that was taken already, or is none.
const TAKEN: f32 = -1.0;

/// How a router scores experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Logistic function of each.
    Sigmoid,
}

words! { Score { Softmax "softmax", Sigmoid "sigmoid" } }

spec! {
    /// The experts of a row of logits.
    pub struct Route "route" {
        /// Number of experts.
        pub experts: u32,
        /// Experts per token.
        pub top_k: u32,
        /// Scores.
        pub score: Score,
        /// Whether weights are divided by their sum.
        pub normalise: bool,
        /// Factor on the weights.
        pub scale: Bits,
    }
}

/// Representative ones.
#[rustfmt::skip] // One line each.
const ROWS: &[Row] = &[
    row("route", 1, "route experts=128 top_k=8 score=softmax normalise scale=1.0"),
    row("route_sigmoid", 1, "route experts=128 top_k=8 score=sigmoid normalise scale=2.5"),
];

impl Definition for Route {
    fn name(&self) -> String {
        let Route { experts, top_k, score, normalise, scale } = *self;
        let normalise = if normalise { "_norm" } else { "" };
        format!("route_{}_e{experts}k{top_k}{normalise}_s{:x}", score.word(), scale.0)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("logits", Holds::Floats)
            .write("ids", Holds::Ids)
            .write("p", Holds::Floats)
            .scratch("scores")
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let Route { experts, top_k, score, normalise, scale } = *self;
        check(&name, "top_k", u64::from(top_k), top_k >= 1 && top_k <= experts, format!("in 1..={experts}"))?;
        let width = i64::from(lanes);
        let vectors = i64::from(experts.div_ceil(u32::from(lanes)));
        let mut b = KernelBuilder::new(name);
        let logits = b.read("logits", i64::from(experts) * 4);
        let ids = b.write("ids", i64::from(top_k) * 4);
        let p = b.buffer("p", BufferKind::ReadWrite, i64::from(top_k) * 4);
        let scores = b.buffer("scores", BufferKind::Scratch, vectors * width * 4);

        // Whole vectors from here on: the lanes after the last expert hold what never wins.
        let lowest = b.splat_f32(lanes, LOWEST);
        b.store(scores, (vectors - 1) * width * 4, lowest);
        for_vectors(&mut b, lanes, experts, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), logits, at.clone() * 4);
            b.store(scores, at * 4, v);
        });
        let iota = b.op(Op::Iota, Type::i32(lanes), &[]);
        let number = b.splat_int(Type::i32(lanes), i64::from(experts));
        let (taken, zero) = (b.splat_f32(lanes, TAKEN), b.splat_f32(lanes, 0.0));
        let ids_of = |b: &mut KernelBuilder, i| {
            let first = b.index(i * width);
            let first = b.broadcast(lanes, first);
            b.iadd(iota, first)
        };
        match score {
            Score::Softmax => {
                let max = b.for_carry("i", vectors, &[lowest], |b, i, max| {
                    let v = b.load(Type::f32(lanes), scores, i * (width * 4));
                    vec![b.same(Op::Max, &[max[0], v])]
                });
                let max = b.op(Op::ReduceMax, Type::f32(1), &max);
                let max = b.broadcast(lanes, max);
                let sum = b.for_carry("i", vectors, &[zero], |b, i, sum| {
                    let v = b.load(Type::f32(lanes), scores, i * (width * 4));
                    let v = b.sub(v, max);
                    let e = math::exp(b, v);
                    let expert = ids_of(b, i);
                    let is_expert = b.same(Op::CmpGt, &[number, expert]);
                    let kept = b.op(Op::Select, Type::f32(lanes), &[is_expert, e, taken]);
                    b.store(scores, i * (width * 4), kept);
                    let e = b.op(Op::Select, Type::f32(lanes), &[is_expert, e, zero]);
                    vec![b.add(sum[0], e)]
                });
                let sum = b.op(Op::ReduceAdd, Type::f32(1), &sum);
                let one = b.splat_f32(1, 1.0);
                let inverse = b.same(Op::Div, &[one, sum]);
                let inverse = b.broadcast(lanes, inverse);
                b.for_each("i", vectors, |b, i| {
                    let v = b.load(Type::f32(lanes), scores, i * (width * 4));
                    let v = b.mul(v, inverse);
                    b.store(scores, i * (width * 4), v);
                });
            }
            Score::Sigmoid => b.for_each("i", vectors, |b, i| {
                let v = b.load(Type::f32(lanes), scores, i * (width * 4));
                let s = math::sigmoid(b, v);
                let expert = ids_of(b, i);
                let is_expert = b.same(Op::CmpGt, &[number, expert]);
                let s = b.op(Op::Select, Type::f32(lanes), &[is_expert, s, taken]);
                b.store(scores, i * (width * 4), s);
            }),
        }

        let far = b.splat_int(Type::i32(lanes), i64::from(i32::MAX));
        let none = b.splat_f32(lanes, -2.0);
        let total = b.splat_f32(1, 0.0);
        let total = b.for_carry("slot", i64::from(top_k), &[total], |b, slot, total| {
            let best = b.for_carry("i", vectors, &[none], |b, i, best| {
                let v = b.load(Type::f32(lanes), scores, i * (width * 4));
                vec![b.same(Op::Max, &[best[0], v])]
            });
            let best = b.op(Op::ReduceMax, Type::f32(1), &best);
            let best_lanes = b.broadcast(lanes, best);
            // The lowest id whose score is not less than the best.
            let id = b.for_carry("i", vectors, &[far], |b, i, id| {
                let v = b.load(Type::f32(lanes), scores, i * (width * 4));
                let less = b.op(Op::CmpLtF, Type::i32(lanes), &[v, best_lanes]);
                let expert = ids_of(b, i);
                let candidate = b.op(Op::Select, Type::i32(lanes), &[less, far, expert]);
                vec![b.same(Op::IMin, &[id[0], candidate])]
            });
            let id = b.op(Op::ReduceMin, Type::i32(1), &id);
            b.store(ids, slot * 4, id);
            b.store(p, slot * 4, best);
            let id = b.broadcast(lanes, id);
            b.for_each("i", vectors, |b, i| {
                let v = b.load(Type::f32(lanes), scores, i * (width * 4));
                let expert = ids_of(b, i);
                let is_it = b.same(Op::CmpEq, &[expert, id]);
                let v = b.op(Op::Select, Type::f32(lanes), &[is_it, taken, v]);
                b.store(scores, i * (width * 4), v);
            });
            vec![b.add(total[0], best)]
        });
        let scale = b.splat_f32(1, scale.value());
        let factor = if normalise {
            let smallest = b.splat_f32(1, SMALLEST_SUM);
            let sum = b.same(Op::Max, &[total[0], smallest]);
            b.same(Op::Div, &[scale, sum])
        } else {
            scale
        };
        b.for_each("slot", i64::from(top_k), |b, slot| {
            let v = b.load(Type::f32(1), p, slot * 4);
            let v = b.mul(v, factor);
            b.store(p, slot * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let Route { top_k, score, normalise, scale, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let x = input.floats("logits")?;
        let max = x.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
        let scored: Vec<f64> = x
            .iter()
            .map(|x| match score {
                Score::Softmax => (x - max).exp() / sum,
                Score::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            })
            .collect();
        let mut order: Vec<usize> = (0..x.len()).collect();
        order.sort_by(|a, b| scored[*b].total_cmp(&scored[*a]));
        let best = &order[..top_k as usize];
        let ids: Vec<u8> = best.iter().flat_map(|i| (*i as i32).to_le_bytes()).collect();
        equal("ids", output.get("ids")?, &ids)?;
        let total: f64 = best.iter().map(|i| scored[*i]).sum();
        let factor = f64::from(scale.value()) / if normalise { total } else { 1.0 };
        for (slot, p) in output.floats("p")?.iter().enumerate() {
            let expected = scored[best[slot]] * factor;
            close(format_args!("p[{slot}]"), *p, expected, expected * 1e-5)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
