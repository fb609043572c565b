//! Routing of a token to its experts, and the softmax that the sampler uses.

use crate::spec::KernelSpec;
use crate::spec::Score;
use ixc_ir::kernel::{BufferKind, Kernel, KernelBuilder, Op, Type};

use crate::generate::{Fold, GenerateError, SUM, check, fold_row, for_vectors, spec_fields};
use crate::math;

/// Sums of weights are not taken for smaller than this before they divide (llama.cpp; the smallest normal half).
const SMALLEST_SUM: f32 = 6.103_515_6e-5;
/// Below every score: what an expert gets that was taken already, or is none.
const TAKEN: f32 = -1.0;
/// Below every logit that a model gives.
const LOWEST: f32 = -3.0e38;

/// Scores, the best `top_k` of them in order, and their weights.
pub fn route(name: String, spec: &KernelSpec, lanes: u16) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, Route { experts, top_k, score, normalise, scale });
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

/// `e^((x - max) / temperature)`, divided by the sum.
pub fn softmax(name: String, spec: &KernelSpec, lanes: u16) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, Softmax { n });
    let mut b = KernelBuilder::new(name);
    let size = i64::from(n) * 4;
    let x = b.read("logits", size);
    let inverse_temperature = b.read("inverse_temperature", 4);
    let y = b.buffer("y", BufferKind::ReadWrite, size);
    let max = Fold { start: LOWEST, reduce: Op::ReduceMax, combine: Op::Max };
    let max = fold_row(&mut b, lanes, n, max, |b, at, lanes, acc| {
        let v = b.load(Type::f32(lanes), x, at * 4);
        b.same(Op::Max, &[acc, v])
    });
    let sum = fold_row(&mut b, lanes, n, SUM, |b, at, lanes, acc| {
        let v = b.load(Type::f32(lanes), x, at.clone() * 4);
        let max = if lanes == 1 { max } else { b.broadcast(lanes, max) };
        let v = b.sub(v, max);
        let factor = b.load_splat(Type::f32(lanes), inverse_temperature, 0);
        let v = b.mul(v, factor);
        let e = math::exp(b, v);
        b.store(y, at * 4, e);
        b.add(acc, e)
    });
    let one = b.splat_f32(1, 1.0);
    let inverse = b.same(Op::Div, &[one, sum]);
    for_vectors(&mut b, lanes, n, |b, at, lanes| {
        let v = b.load(Type::f32(lanes), y, at.clone() * 4);
        let inverse = if lanes == 1 { inverse } else { b.broadcast(lanes, inverse) };
        let v = b.mul(v, inverse);
        b.store(y, at * 4, v);
    });
    Ok(b.finish())
}
