//! Attention of the query heads that share a key head, over the KV cache, in blocks of 32 positions (the online softmax of
//! FlashAttention): for each block the scores, then the running maximum and sum, then the weighted values.
//!
//! Keys lie as `[position / 8][d][position % 8]`: a lane is a position, so a block's scores need no horizontal sum, and scores are
//! made in vectors of eight; all else is in vectors of the target. Loads of keys
//! and values are shared by up to [`CHAINS`] query heads, whose accumulators hide the latency of a fused multiply-add (4 cycles at
//! two a cycle: eight chains). Scores, weights and accumulators are f32; the cache is f16.

use ixc_ir::kernel::{Affine, BufferKind, Kernel, KernelBuilder, Op, Type, ValueId};
use ixc_ir::plan::{ATTENTION_BLOCK, KEY_LANES, KernelSpec};

use super::{GenerateError, MAX_POSITIONS, check, for_rest, for_vectors, math, spec_fields};

/// Lanes of a score: positions that lie side by side.
const SCORES: u16 = KEY_LANES as u16;
const EIGHT: i64 = KEY_LANES as i64;
const BLOCK: i64 = ATTENTION_BLOCK as i64;
/// Accumulators of an inner loop.
const CHAINS: u32 = 8;
/// Score of positions after the row's own; below every real score.
const MASKED: f32 = -1.0e30;
/// Positions of the value loop that are unrolled.
const UNROLL: i64 = 4;

/// See [`KernelSpec::Attention`].
pub fn attention(name: String, spec: &KernelSpec, lanes: u16) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, Attention { group, d, dv, scale });
    let width = i64::from(lanes);
    check(&name, "value head", u64::from(dv), dv > 0, "at least 1")?;
    check(&name, "query heads", u64::from(group), group > 0, "at least 1")?;
    let value_len = dv;
    let (g, d, dv) = (i64::from(group), i64::from(d), i64::from(dv));
    let mut b = KernelBuilder::new(name);
    let blocks = b.dim("blocks", 1, MAX_POSITIONS / BLOCK);
    let q = b.read("q", g * d * 4);
    let position = b.read("position", 4);
    let keys = b.read("keys", blocks * (BLOCK * d * 2));
    let values = b.read("values", blocks * (BLOCK * dv * 2));
    let y = b.write("y", g * dv * 4);
    // Weights of a block, accumulators, and for each head: maximum, sum, and the factor that a new maximum puts on the past.
    let (p_at, sum_at, stat_at) = (0, g * BLOCK * 4, g * BLOCK * 4 + g * dv * 4);
    let scratch = b.buffer("scratch", BufferKind::Scratch, stat_at + g * 12);

    let (zero, lowest) = (b.splat_f32(1, 0.0), b.splat_f32(1, MASKED));
    let zeros = b.splat_f32(lanes, 0.0);
    b.for_each("h", g, |b, h| {
        for_vectors(b, lanes, value_len, |b, at, part| {
            let zeros = if part == lanes { zeros } else { b.splat_f32(part, 0.0) };
            b.store(scratch, h * (dv * 4) + at * 4 + sum_at, zeros);
        });
        b.store(scratch, h * 12 + stat_at, lowest);
        b.store(scratch, h * 12 + (stat_at + 4), zero);
    });

    b.for_each("block", blocks, |b, block| {
        // Scores: chunks of heads times eights of positions.
        let heads = group.min(CHAINS);
        let eights = (CHAINS / heads).clamp(1, 4).next_power_of_two().min(4);
        let eights = if eights * heads > CHAINS { eights / 2 } else { eights }.max(1);
        let mut first = 0;
        while first < group {
            let count = heads.min(group - first);
            b.for_each("e8", BLOCK / EIGHT / i64::from(eights), |b, part| {
                let start = b.splat_f32(SCORES, 0.0);
                let init = vec![start; (count * eights) as usize];
                let acc = b.for_carry("e", d, &init, |b, e, acc| {
                    let mut next = Vec::new();
                    let k: Vec<ValueId> = (0..i64::from(eights))
                        .map(|eight| {
                            let at =
                                block * (BLOCK * d * 2) + part * (i64::from(eights) * EIGHT * d * 2) + e * (EIGHT * 2);
                            let k = b.load(Type::f16(SCORES), keys, at + eight * EIGHT * d * 2);
                            b.op(Op::F16ToF32, Type::f32(SCORES), &[k])
                        })
                        .collect();
                    for h in 0..count {
                        let q = b.load_splat(Type::f32(SCORES), q, e * 4 + i64::from(first + h) * d * 4);
                        for (eight, k) in k.iter().enumerate() {
                            next.push(b.fma(*k, q, acc[h as usize * eights as usize + eight]));
                        }
                    }
                    next
                });
                let scale = b.splat_f32(SCORES, scale.value());
                let own = b.load_splat(Type::i32(SCORES), position, 0);
                let iota = b.op(Op::Iota, Type::i32(SCORES), &[]);
                let masked = b.splat_f32(SCORES, MASKED);
                for eight in 0..i64::from(eights) {
                    let at = part * (i64::from(eights) * EIGHT) + eight * EIGHT;
                    let p = b.index(block * BLOCK + at.clone());
                    let p = b.broadcast(SCORES, p);
                    let p = b.iadd(p, iota);
                    let after = b.same(Op::CmpGt, &[p, own]);
                    for h in 0..i64::from(count) {
                        let s = b.mul(acc[(h * i64::from(eights) + eight) as usize], scale);
                        let s = b.op(Op::Select, Type::f32(SCORES), &[after, masked, s]);
                        b.store(scratch, at.clone() * 4 + (i64::from(first) + h) * BLOCK * 4 + p_at, s);
                    }
                }
            });
            first += count;
        }
        // Weights.
        b.for_each("h", g, |b, h| {
            let s: Vec<ValueId> = (0..BLOCK / width)
                .map(|i| b.load(Type::f32(lanes), scratch, h * (BLOCK * 4) + (i * width * 4 + p_at)))
                .collect();
            let max = s[1..].iter().fold(s[0], |m, s| b.same(Op::Max, &[m, *s]));
            let max = b.op(Op::ReduceMax, Type::f32(1), &[max]);
            let old = b.load(Type::f32(1), scratch, h * 12 + stat_at);
            let max = b.same(Op::Max, &[max, old]);
            let fall = b.sub(old, max);
            let factor = math::exp(b, fall);
            let max_lanes = b.broadcast(lanes, max);
            let (none, masked) = (b.splat_f32(lanes, 0.0), b.splat_f32(lanes, MASKED));
            let mut sum = None;
            for (i, s) in s.iter().enumerate() {
                let x = b.sub(*s, max_lanes);
                let e = math::exp(b, x);
                let seen = b.op(Op::CmpLtF, Type::i32(lanes), &[masked, *s]);
                let e = b.op(Op::Select, Type::f32(lanes), &[seen, e, none]);
                b.store(scratch, h * (BLOCK * 4) + (i as i64 * width * 4 + p_at), e);
                sum = Some(match sum {
                    Some(sum) => b.add(sum, e),
                    None => e,
                });
            }
            let sum = sum.unwrap_or(none);
            let sum = b.op(Op::ReduceAdd, Type::f32(1), &[sum]);
            let past = b.load(Type::f32(1), scratch, h * 12 + (stat_at + 4));
            let sum = b.fma(past, factor, sum);
            b.store(scratch, h * 12 + stat_at, max);
            b.store(scratch, h * 12 + (stat_at + 4), sum);
            b.store(scratch, h * 12 + (stat_at + 8), factor);
        });
        // Values: chunks of heads times vectors of a value.
        let vectors = (CHAINS / heads).clamp(1, 4);
        let vectors = (1..=i64::from(vectors)).rev().find(|v| (dv / width) % v == 0).unwrap_or(1);
        let mut first = 0;
        while first < group {
            let count = heads.min(group - first);
            // `vectors` vectors of `lanes` elements of the values, from the element `at`.
            let weigh = |b: &mut KernelBuilder, at: Affine, vectors: i64, lanes: u16| {
                let splat = |b: &mut KernelBuilder, at: Affine| match lanes {
                    1 => b.load(Type::f32(1), scratch, at),
                    _ => b.load_splat(Type::f32(lanes), scratch, at),
                };
                let width = i64::from(lanes);
                let mut init = Vec::new();
                for h in i64::from(first)..i64::from(first + count) {
                    let factor = splat(b, Affine::constant(stat_at + 8 + h * 12));
                    for v in 0..vectors {
                        let sum = b.load(Type::f32(lanes), scratch, at.clone() * 4 + (h * dv + v * width) * 4 + sum_at);
                        init.push(b.mul(sum, factor));
                    }
                }
                let sums = b.for_carry("j", BLOCK / UNROLL, &init, |b, j, acc| {
                    let mut acc = acc.to_vec();
                    for u in 0..UNROLL {
                        let row = block * (BLOCK * dv * 2) + j * (UNROLL * dv * 2) + at.clone() * 2 + u * dv * 2;
                        let values: Vec<ValueId> = (0..vectors)
                            .map(|v| {
                                let v = b.load(Type::f16(lanes), values, row.clone() + v * width * 2);
                                b.op(Op::F16ToF32, Type::f32(lanes), &[v])
                            })
                            .collect();
                        for h in 0..count as usize {
                            let weight_at = j * (UNROLL * 4) + u * 4 + (i64::from(first) + h as i64) * BLOCK * 4 + p_at;
                            let weight = splat(b, weight_at);
                            for (v, value) in values.iter().enumerate() {
                                let i = h * vectors as usize + v;
                                acc[i] = b.fma(*value, weight, acc[i]);
                            }
                        }
                    }
                    acc
                });
                for (i, sum) in sums.iter().enumerate() {
                    let (h, v) = (i64::from(first) + i as i64 / vectors, i as i64 % vectors);
                    b.store(scratch, at.clone() * 4 + (h * dv + v * width) * 4 + sum_at, *sum);
                }
            };
            if dv >= width {
                b.for_each("v", dv / width / vectors, |b, part| weigh(b, part * (vectors * width), vectors, lanes));
            }
            for_rest(b, lanes, value_len, &mut |b, at, lanes| weigh(b, at, 1, lanes));
            first += count;
        }
    });
    b.for_each("h", g, |b, h| {
        let one = b.splat_f32(1, 1.0);
        let sum = b.load(Type::f32(1), scratch, h * 12 + (stat_at + 4));
        let inverse = b.same(Op::Div, &[one, sum]);
        for_vectors(b, lanes, value_len, |b, at, lanes| {
            let inverse = if lanes == 1 { inverse } else { b.broadcast(lanes, inverse) };
            let v = b.load(Type::f32(lanes), scratch, h * (dv * 4) + at.clone() * 4 + sum_at);
            let v = b.mul(v, inverse);
            b.store(y, h * (dv * 4) + at * 4, v);
        });
    });
    Ok(b.finish())
}
