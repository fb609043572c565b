//! Routing of a token to experts: scores, the `top_k` best experts in order, and their weights.

use ixc_ir::graph::attrs::SPARSE_MIXER_NEAR;
use ixc_ir::kernel::{Affine, BufferId, BufferKind, Kernel, KernelBuilder, Op, Type, ValueId, VarId};
use serde::{Deserialize, Serialize};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::math;
use crate::generator::reference::{Mismatch, Run, close, equal, floats};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, Words, spec, words};
use crate::generator::vectors::{LOWEST, SUM, fold_row, for_vectors};

/// Lower bound of a sum that weights are divided by: the smallest normal f16, as in llama.cpp.
const SMALLEST_SUM: f32 = 6.103_515_6e-5;
/// Score of experts that are already chosen, and of lanes without an expert. It is below all other
/// scores.
const CHOSEN_SCORE: f32 = LOWEST;
/// Lower bound of scores. It applies to experts whose logit or bias is NaN or extremely low. It is
/// above [`CHOSEN_SCORE`], so that every chosen id is that of an expert.
const FLOOR: f32 = -1.0e38;

/// Function from a router's logits to the scores of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Logistic function of each logit.
    Sigmoid,
    /// The logit itself. Weights are a softmax over the chosen experts.
    Chosen,
    /// The square root of `ln(1 + e^x)`.
    RootSoftplus,
    /// The logit itself. The weight of a chosen expert is its probability in a softmax over those
    /// remaining experts whose logits are near its own (SparseMixer).
    SparseMixer,
}

words! { Score { Softmax "softmax", Sigmoid "sigmoid", Chosen "chosen", RootSoftplus "root_softplus", SparseMixer "sparse_mixer" } }

spec! {
    /// Routing of one row of logits to experts.
    pub struct Route "route" {
        /// Number of experts.
        pub experts: u32,
        /// Number of experts per token.
        pub top_k: u32,
        /// Function from logits to scores.
        pub score: Score,
        /// Number of equal groups of adjacent experts.
        pub groups: u32 = 1,
        /// Number of groups from which experts are chosen. These groups have the largest sums of
        /// their two highest scores. With `highest`, they have the highest scores.
        pub kept: u32 = 1,
        /// Whether groups are compared only by their highest score.
        pub highest: bool,
        /// Whether a bias is added to the scores for the choice of experts.
        pub bias: bool,
        /// Whether each expert has a factor on its weight.
        pub scales: bool,
        /// Whether weights are divided by their sum.
        pub normalise: bool,
        /// Factor on all weights.
        pub scale: Bits,
        /// Number of rows of a table that lists the experts of each token id. 0 if the best experts
        /// are chosen.
        pub listed: u32 = 0,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("route", 1, "route experts=128 top_k=8 score=softmax normalise scale=1.0"),
    row("route_sigmoid", 1, "route experts=128 top_k=8 score=sigmoid normalise scale=2.5"),
    row("route_groups", 1, "route experts=256 top_k=8 score=sigmoid groups=8 kept=4 bias normalise scale=2.5"),
    row("route_highest", 1, "route experts=160 top_k=6 score=softmax groups=8 kept=3 highest scale=16.0"),
    row("route_scales", 1, "route experts=128 top_k=8 score=softmax scales normalise scale=1.0"),
    row("route_chosen", 1, "route experts=32 top_k=4 score=chosen scale=1.0"),
    row("route_root_softplus", 1, "route experts=256 top_k=6 score=root_softplus bias normalise scale=1.5"),
    row("route_listed", 1, "route experts=256 top_k=6 score=root_softplus normalise scale=1.5 listed=512"),
    row("route_sparse_mixer", 1, "route experts=16 top_k=2 score=sparse_mixer scale=1.0"),
];

impl Route {
    /// Returns the number of scores in scratch memory, rounded up to whole vectors.
    fn padded_scores(&self, lanes: u16) -> i64 {
        i64::from(self.experts.div_ceil(lanes.into())) * i64::from(lanes)
    }

    /// Whether experts are chosen by scores that differ from those of the weights.
    fn chooses_apart(&self) -> bool {
        self.bias || self.groups > 1
    }

    fn check_sizes(&self, name: &str) -> Result<(), GenerateError> {
        let Route { experts, top_k, groups, kept, bias, scales, listed, .. } = *self;
        let in_group = experts.checked_div(groups).unwrap_or(0);
        let ok = groups > 0 && experts.is_multiple_of(groups) && (groups == 1 || in_group > 1);
        check(name, "groups", groups.into(), ok, format!("a number that divides {experts} experts into equal groups"))?;
        check(name, "kept groups", kept.into(), kept >= 1 && kept <= groups, format!("in 1..={groups}"))?;
        let most = u64::from(kept) * u64::from(in_group);
        check(name, "top_k", top_k.into(), top_k >= 1 && u64::from(top_k) <= most, format!("in 1..={most}"))?;
        let alone = listed == 0 || !(bias || scales || groups > 1);
        check(name, "rows of a table", listed.into(), alone, "0, where experts have biases, factors or groups")
    }

    /// Multiplies the weights by the factor `scale`. If weights are normalised, also divides them
    /// by their sum.
    fn scale_weights(&self, b: &mut KernelBuilder, p: BufferId, total: ValueId) {
        let scale = b.splat_f32(1, self.scale.value());
        let total = if self.score == Score::Chosen { softmax_of_chosen(b, p, self.top_k) } else { total };
        let factor = if self.normalise || self.score == Score::Chosen {
            let smallest = b.splat_f32(1, SMALLEST_SUM);
            let sum = b.same(Op::Max, &[total, smallest]);
            b.same(Op::Div, &[scale, sum])
        } else {
            scale
        };
        b.for_each("slot", i64::from(self.top_k), |b, slot| {
            let v = b.load(Type::f32(1), p, slot * 4);
            let v = b.mul(v, factor);
            b.store(p, slot * 4, v);
        });
    }
}

impl Definition for Route {
    fn name(&self) -> String {
        let Route { experts, top_k, score, groups, kept, highest, bias, scales, normalise, scale, listed } = *self;
        let listed = if listed > 0 { format!("_t{listed}") } else { String::new() };
        let groups = if groups > 1 { format!("g{groups}_{kept}") } else { String::new() };
        let flags = [(highest, "_highest"), (bias, "_bias"), (scales, "_scales"), (normalise, "_norm")];
        let flags: String = flags.iter().filter_map(|(on, name)| on.then_some(*name)).collect();
        format!("route_{}_e{experts}k{top_k}{groups}{flags}_s{:x}{listed}", score.word(), scale.0)
    }

    fn signature(&self) -> Signature {
        let signature = Signature::new()
            .read("logits", BufferContents::Floats)
            .read_if(self.bias, "bias", BufferContents::Floats)
            .read_if(self.scales, "scales", BufferContents::Floats);
        let signature =
            if self.listed > 0 { signature.index("id").read("table", BufferContents::Ids) } else { signature };
        signature.write("ids", BufferContents::Ids).write("p", BufferContents::Floats).scratch("scores")
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        self.check_sizes(&name)?;
        let Vectors { lanes, .. } = vectors;
        let Route { experts, top_k, groups, kept, highest, bias, scales, listed, .. } = *self;
        let width = i64::from(lanes);
        let vectors = self.padded_scores(lanes) / width;
        let mut b = KernelBuilder::new(name);
        let logits = b.read("logits", i64::from(experts) * 4);
        let biases = bias.then(|| b.read("bias", i64::from(experts) * 4));
        let own_scales = scales.then(|| b.read("scales", i64::from(experts) * 4));
        let table = (listed > 0).then(|| {
            let id = b.buffer("id", BufferKind::Index { below: i64::from(listed).into() }, 4);
            (id, b.read("table", i64::from(listed) * i64::from(top_k) * 4))
        });
        let kind = if scales { BufferKind::ReadWrite } else { BufferKind::Write };
        let ids = b.buffer("ids", kind, i64::from(top_k) * 4);
        let p = b.buffer("p", BufferKind::ReadWrite, i64::from(top_k) * 4);
        // Scratch memory has the scores for the choice, the scores of the weights if they differ,
        // and the scores of groups.
        let own = if self.chooses_apart() { vectors * width * 4 } else { 0 };
        let of_groups = vectors * width * 4 + own;
        let group_bytes = if groups > 1 { i64::from(groups) * 4 } else { 0 };
        let buffer = b.buffer("scores", BufferKind::Scratch, of_groups + group_bytes);

        let scores = Scores::copy(&mut b, logits, buffer, Shape { experts, lanes, vectors, own });
        scores.apply(&mut b, self.score);
        if self.chooses_apart() {
            scores.separate(&mut b, biases);
        }
        if groups > 1 {
            let [count, kept, size] = [groups, kept, experts / groups].map(i64::from);
            Groups { count, kept, size, highest, sums: of_groups }.keep(&mut b, buffer);
        }

        let row = table.map(|(id, table)| (table, b.load_index("row", id, 0) * (i64::from(top_k) * 4)));
        let far = b.splat_int(Type::i32(lanes), i64::from(i32::MAX));
        let nothing = b.splat_f32(1, 0.0);
        let total = b.for_carry("slot", i64::from(top_k), &[nothing], |b, slot, total| {
            let weight = match &row {
                Some((table, row)) => scores.store_listed_id(b, *table, row.clone() + slot * 4, ids, slot),
                None => scores.take_best(b, self.score, far, ids, slot),
            };
            b.store(p, slot * 4, weight);
            vec![b.add(total[0], weight)]
        })[0];
        self.scale_weights(&mut b, p, total);
        if let Some(scales) = own_scales {
            scale_chosen(&mut b, lanes, experts, top_k, &ScaledWeights { ids, p, scales });
        }
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let Route { top_k, score, groups, kept, highest, normalise, scale, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let x = input.floats("logits")?;
        let max = x.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
        let scored: Vec<f64> = x
            .iter()
            .map(|x| match score {
                Score::Softmax => (x - max).exp() / sum,
                Score::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                Score::Chosen | Score::SparseMixer => *x,
                Score::RootSoftplus => x.exp().ln_1p().sqrt(),
            })
            .collect();
        let bias = input.find("bias").map(floats).unwrap_or(vec![0.0; x.len()]);
        let scales = input.find("scales").map(floats).unwrap_or(vec![1.0; x.len()]);
        let key: Vec<f64> = scored.iter().zip(&bias).map(|(score, bias)| score + bias).collect();
        let by_key = |order: &mut [usize], key: &[f64]| order.sort_by(|a, b| key[*b].total_cmp(&key[*a]));
        let size = x.len() / groups as usize;
        let group_key: Vec<f64> = key
            .chunks_exact(size)
            .map(|group| {
                let mut order: Vec<usize> = (0..size).collect();
                by_key(&mut order, group);
                order.iter().take(if highest { 1 } else { 2 }).map(|i| group[*i]).sum()
            })
            .collect();
        let mut order: Vec<usize> = (0..groups as usize).collect();
        by_key(&mut order, &group_key);
        let mut order: Vec<usize> = order[..kept as usize].iter().flat_map(|g| g * size..(g + 1) * size).collect();
        order.sort_unstable();
        by_key(&mut order, &key);
        order.truncate(top_k as usize);
        if self.listed > 0 {
            let (row, table) = (input.id("id")?, input.ints("table")?);
            let own = table[row * top_k as usize..][..top_k as usize].iter();
            order = own.map(|&id| (id.max(0) as usize).min(x.len() - 1)).collect();
        }
        let best = &order[..];
        let ids: Vec<u8> = best.iter().flat_map(|i| (*i as i32).to_le_bytes()).collect();
        equal("ids", output.get("ids")?, &ids)?;
        let chosen = |i: &usize| match score {
            Score::Chosen => (x[*i] - max).exp(),
            Score::SparseMixer => {
                let taken = order.iter().take_while(|other| *other != i).collect::<Vec<_>>();
                let near = |other: &f64| x[*i] - other <= SPARSE_MIXER_NEAR * other.abs().max(x[*i]);
                let left = (0..x.len()).filter(|other| !taken.contains(&other)).map(|other| x[other]);
                1.0 / left.filter(near).map(|other| (other - x[*i]).exp()).sum::<f64>()
            }
            Score::Softmax | Score::Sigmoid | Score::RootSoftplus => scored[*i],
        };
        let total: f64 = best.iter().map(chosen).sum();
        let factor = f64::from(scale.value()) / if normalise || score == Score::Chosen { total } else { 1.0 };
        for (slot, p) in output.floats("p")?.iter().enumerate() {
            let expected = chosen(&best[slot]) * factor * scales[best[slot]];
            close(format_args!("p[{slot}]"), *p, expected, expected.abs() * 1e-5)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// Sizes of the scores in scratch memory.
#[derive(Clone, Copy)]
struct Shape {
    experts: u32,
    lanes: u16,
    /// Number of whole vectors of scores.
    vectors: i64,
    /// Distance in bytes from the scores for the choice to those of the weights. 0 if they are the
    /// same.
    own: i64,
}

/// Scores in scratch memory, in whole vectors. Lanes after the last expert have a score that is
/// never chosen.
struct Scores {
    buffer: BufferId,
    shape: Shape,
    lowest: ValueId,
    iota: ValueId,
    /// Number of experts, in every lane.
    number: ValueId,
    taken: ValueId,
    zero: ValueId,
}

impl Scores {
    /// Copies the logits to `buffer`, and pads them to whole vectors.
    fn copy(b: &mut KernelBuilder, logits: BufferId, buffer: BufferId, shape: Shape) -> Scores {
        let Shape { experts, lanes, vectors, .. } = shape;
        let lowest = b.splat_f32(lanes, LOWEST);
        b.store(buffer, (vectors - 1) * i64::from(lanes) * 4, lowest);
        for_vectors(b, lanes, experts, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), logits, at.clone() * 4);
            b.store(buffer, at * 4, v);
        });
        let iota = b.op(Op::Iota, Type::i32(lanes), &[]);
        let number = b.splat_int(Type::i32(lanes), i64::from(experts));
        let (taken, zero) = (b.splat_f32(lanes, CHOSEN_SCORE), b.splat_f32(lanes, 0.0));
        Scores { buffer, shape, lowest, iota, number, taken, zero }
    }

    /// Returns the offset of vector `i` of the scores.
    fn place(&self, i: VarId) -> Affine {
        i * (i64::from(self.shape.lanes) * 4)
    }

    /// Loads vector `i` of the scores.
    fn load(&self, b: &mut KernelBuilder, i: VarId) -> ValueId {
        b.load(Type::f32(self.shape.lanes), self.buffer, self.place(i))
    }

    /// Computes the ids of the experts in vector `i`.
    fn ids(&self, b: &mut KernelBuilder, i: VarId) -> ValueId {
        let first = b.index(i * i64::from(self.shape.lanes));
        let first = b.broadcast(self.shape.lanes, first);
        b.iadd(self.iota, first)
    }

    /// Applies a function to each vector of scores.
    fn each(&self, b: &mut KernelBuilder, score: impl Fn(&mut KernelBuilder, ValueId) -> ValueId) {
        b.for_each("i", self.shape.vectors, |b, i| {
            let v = self.load(b, i);
            let s = score(b, v);
            let expert = self.ids(b, i);
            let is_expert = b.same(Op::CmpGt, &[self.number, expert]);
            let s = b.op(Op::Select, Type::f32(self.shape.lanes), &[is_expert, s, self.taken]);
            b.store(self.buffer, self.place(i), s);
        });
    }

    /// Replaces the logits by scores.
    fn apply(&self, b: &mut KernelBuilder, score: Score) {
        match score {
            Score::Softmax => self.softmax(b),
            Score::Sigmoid => self.each(b, math::sigmoid),
            Score::Chosen | Score::SparseMixer => self.each(b, |b, v| {
                let floor = b.splat_f32(self.shape.lanes, FLOOR);
                b.same(Op::Max, &[v, floor])
            }),
            Score::RootSoftplus => self.each(b, |b, v| {
                let s = math::softplus(b, v);
                b.same(Op::Sqrt, &[s])
            }),
        }
    }

    fn softmax(&self, b: &mut KernelBuilder) {
        let Shape { lanes, vectors, .. } = self.shape;
        let max = b.for_carry("i", vectors, &[self.lowest], |b, i, max| {
            let v = self.load(b, i);
            vec![b.same(Op::Max, &[max[0], v])]
        });
        let max = b.op(Op::ReduceMax, Type::f32(1), &max);
        let max = b.broadcast(lanes, max);
        let sum = b.for_carry("i", vectors, &[self.zero], |b, i, sum| {
            let v = self.load(b, i);
            let v = b.sub(v, max);
            let e = math::exp(b, v);
            let expert = self.ids(b, i);
            let is_expert = b.same(Op::CmpGt, &[self.number, expert]);
            let kept = b.op(Op::Select, Type::f32(lanes), &[is_expert, e, self.taken]);
            b.store(self.buffer, self.place(i), kept);
            let e = b.op(Op::Select, Type::f32(lanes), &[is_expert, e, self.zero]);
            vec![b.add(sum[0], e)]
        });
        let sum = b.op(Op::ReduceAdd, Type::f32(1), &sum);
        let one = b.splat_f32(1, 1.0);
        let inverse = b.same(Op::Div, &[one, sum]);
        let inverse = b.broadcast(lanes, inverse);
        self.each(b, |b, v| b.mul(v, inverse));
    }

    /// Copies the scores for the weights. Then adds the bias to the scores for the choice.
    fn separate(&self, b: &mut KernelBuilder, biases: Option<BufferId>) {
        for_vectors(b, self.shape.lanes, self.shape.experts, |b, at, lanes| {
            let s = b.load(Type::f32(lanes), self.buffer, at.clone() * 4);
            b.store(self.buffer, at.clone() * 4 + self.shape.own, s);
            let s = match biases {
                Some(biases) => {
                    let bias = b.load(Type::f32(lanes), biases, at.clone() * 4);
                    b.add(s, bias)
                }
                None => s,
            };
            let floor = b.splat_f32(lanes, FLOOR);
            let s = b.same(Op::Max, &[s, floor]);
            b.store(self.buffer, at * 4, s);
        });
    }

    /// Stores the id that the table lists for a slot. Returns the score of that expert.
    fn store_listed_id(
        &self,
        b: &mut KernelBuilder,
        table: BufferId,
        at: Affine,
        ids: BufferId,
        slot: VarId,
    ) -> ValueId {
        let Shape { experts, lanes, vectors, .. } = self.shape;
        let id = b.load(Type::i32(1), table, at);
        let (first, last) = (b.splat_int(Type::i32(1), 0), b.splat_int(Type::i32(1), i64::from(experts) - 1));
        let id = b.same(Op::IMax, &[id, first]);
        let id = b.same(Op::IMin, &[id, last]);
        b.store(ids, slot * 4, id);
        let id = b.broadcast(lanes, id);
        let weight = b.for_carry("i", vectors, &[self.zero], |b, i, weight| {
            let v = self.load(b, i);
            let expert = self.ids(b, i);
            let is_it = b.same(Op::CmpEq, &[expert, id]);
            vec![b.op(Op::Select, Type::f32(lanes), &[is_it, v, weight[0]])]
        });
        b.op(Op::ReduceAdd, Type::f32(1), &weight)
    }

    /// Stores the id of the best expert for a slot, and marks the expert as chosen. Returns the
    /// expert's weight.
    fn take_best(&self, b: &mut KernelBuilder, score: Score, far: ValueId, ids: BufferId, slot: VarId) -> ValueId {
        let Shape { lanes, vectors, own, .. } = self.shape;
        let best = b.for_carry("i", vectors, &[self.lowest], |b, i, best| {
            let v = self.load(b, i);
            vec![b.same(Op::Max, &[best[0], v])]
        });
        let best = b.op(Op::ReduceMax, Type::f32(1), &best);
        let best_lanes = b.broadcast(lanes, best);
        // Finds the lowest id whose score is not less than the best score.
        let id = b.for_carry("i", vectors, &[far], |b, i, id| {
            let v = self.load(b, i);
            let less = b.op(Op::CmpLtF, Type::i32(lanes), &[v, best_lanes]);
            let expert = self.ids(b, i);
            let candidate = b.op(Op::Select, Type::i32(lanes), &[less, far, expert]);
            vec![b.same(Op::IMin, &[id[0], candidate])]
        });
        let id = b.op(Op::ReduceMin, Type::i32(1), &id);
        let share = (score == Score::SparseMixer).then(|| self.share_of_near(b, best_lanes));
        b.store(ids, slot * 4, id);
        let id = b.broadcast(lanes, id);
        let weight = b.for_carry("i", vectors, &[self.zero], |b, i, weight| {
            let v = self.load(b, i);
            let expert = self.ids(b, i);
            let is_it = b.same(Op::CmpEq, &[expert, id]);
            let left = b.op(Op::Select, Type::f32(lanes), &[is_it, self.taken, v]);
            b.store(self.buffer, self.place(i), left);
            if own == 0 {
                return weight.to_vec();
            }
            let s = b.load(Type::f32(lanes), self.buffer, self.place(i) + own);
            vec![b.op(Op::Select, Type::f32(lanes), &[is_it, s, weight[0]])]
        });
        match share {
            Some(share) => share,
            None if own == 0 => best,
            None => b.op(Op::ReduceAdd, Type::f32(1), &weight),
        }
    }

    /// Returns the probability of the highest score in a softmax over the remaining scores near it.
    /// Scores of chosen experts are far below all others, so they are not near it.
    fn share_of_near(&self, b: &mut KernelBuilder, best: ValueId) -> ValueId {
        let Shape { lanes, vectors, .. } = self.shape;
        let (zero, near) = (b.splat_f32(lanes, 0.0), b.splat_f32(lanes, SPARSE_MIXER_NEAR as f32));
        let sum = b.for_carry("i", vectors, &[zero], |b, i, sum| {
            let v = self.load(b, i);
            let magnitude = math::abs(b, v);
            let magnitude = b.same(Op::Max, &[magnitude, best]);
            let (most, below) = (b.mul(magnitude, near), b.sub(best, v));
            let far = b.op(Op::CmpLtF, Type::i32(lanes), &[most, below]);
            let negative = b.sub(v, best);
            let e = math::exp(b, negative);
            let e = b.op(Op::Select, Type::f32(lanes), &[far, zero, e]);
            vec![b.add(sum[0], e)]
        });
        let sum = b.op(Op::ReduceAdd, Type::f32(1), &sum);
        let one = b.splat_f32(1, 1.0);
        b.same(Op::Div, &[one, sum])
    }
}

/// Equal groups of adjacent experts. Experts are chosen from the best groups only.
struct Groups {
    count: i64,
    /// Number of groups from which experts are chosen.
    kept: i64,
    /// Number of experts of a group.
    size: i64,
    /// Whether the score of a group is its highest score.
    highest: bool,
    /// Offset of the scores of the groups in scratch memory.
    sums: i64,
}

impl Groups {
    /// Removes the experts of all groups except the best groups from the choice. The score of a
    /// group is the sum of its two highest scores, or its highest score. If groups have equal
    /// scores, the first is better.
    ///
    /// There are too few groups to fill vectors. The loop therefore handles one expert at a time,
    /// in a few hundred short iterations.
    fn keep(&self, b: &mut KernelBuilder, scores: BufferId) {
        let Groups { count, kept, size, highest, sums } = *self;
        let lowest = b.splat_f32(1, LOWEST);
        b.for_each("group", count, |b, group| {
            let two = b.for_carry("i", size, &[lowest, lowest], |b, i, two| {
                let v = b.load(Type::f32(1), scores, group * (size * 4) + i * 4);
                let less = b.same(Op::Min, &[two[0], v]);
                vec![b.same(Op::Max, &[two[0], v]), b.same(Op::Max, &[two[1], less])]
            });
            let sum = if highest { two[0] } else { b.add(two[0], two[1]) };
            b.store(scores, group * 4 + sums, sum);
        });
        let (zero, one) = (b.splat_int(Type::i32(1), 0), b.splat_int(Type::i32(1), 1));
        let kept = b.splat_int(Type::i32(1), kept);
        let taken = b.splat_f32(1, CHOSEN_SCORE);
        b.for_each("group", count, |b, group| {
            let own = b.load(Type::f32(1), scores, group * 4 + sums);
            let number = b.index(group);
            // Counts the groups that are better than this one.
            let better = b.for_carry("other", count, &[zero], |b, other, better| {
                let sum = b.load(Type::f32(1), scores, other * 4 + sums);
                let other = b.index(other);
                let more = b.op(Op::CmpLtF, Type::i32(1), &[own, sum]);
                let less = b.op(Op::CmpLtF, Type::i32(1), &[sum, own]);
                let before = b.same(Op::CmpGt, &[number, other]);
                let equal = b.op(Op::Select, Type::i32(1), &[less, zero, before]);
                let is_better = b.same(Op::Or, &[more, equal]);
                let count = b.same(Op::And, &[is_better, one]);
                vec![b.iadd(better[0], count)]
            });
            let is_kept = b.same(Op::CmpGt, &[kept, better[0]]);
            b.for_each("i", size, |b, i| {
                let at = group * (size * 4) + i * 4;
                let v = b.load(Type::f32(1), scores, at.clone());
                let v = b.op(Op::Select, Type::f32(1), &[is_kept, v, taken]);
                b.store(scores, at, v);
            });
        });
    }
}

/// Buffers of the chosen experts' weights, and of the factors of all experts.
struct ScaledWeights {
    ids: BufferId,
    p: BufferId,
    scales: BufferId,
}

/// Multiplies the weight of each chosen expert by the expert's factor. The factor is found as a sum
/// over all experts, in which every term except that of the chosen id is 0.
fn scale_chosen(b: &mut KernelBuilder, lanes: u16, experts: u32, top_k: u32, weights: &ScaledWeights) {
    let ScaledWeights { ids, p, scales } = *weights;
    let zero = b.splat_f32(1, 0.0);
    b.for_each("slot", i64::from(top_k), |b, slot| {
        let id = b.load(Type::i32(1), ids, slot * 4);
        let own = fold_row(b, lanes, experts, SUM, |b, at, lanes, sum| {
            let mut expert = b.index(at.clone());
            let (mut id, mut none) = (id, zero);
            if lanes > 1 {
                (id, none) = (b.broadcast(lanes, id), b.broadcast(lanes, zero));
                let (iota, first) = (b.op(Op::Iota, Type::i32(lanes), &[]), b.broadcast(lanes, expert));
                expert = b.iadd(iota, first);
            }
            let v = b.load(Type::f32(lanes), scales, at * 4);
            let is_it = b.same(Op::CmpEq, &[expert, id]);
            let v = b.op(Op::Select, Type::f32(lanes), &[is_it, v, none]);
            b.add(sum, v)
        });
        let v = b.load(Type::f32(1), p, slot * 4);
        let v = b.mul(v, own);
        b.store(p, slot * 4, v);
    });
}

/// Replaces the logits of the chosen experts by exponentials, and returns their sum. The first
/// logit must be the highest.
fn softmax_of_chosen(b: &mut KernelBuilder, p: BufferId, top_k: u32) -> ValueId {
    let (max, none) = (b.load(Type::f32(1), p, 0), b.splat_f32(1, 0.0));
    b.for_carry("slot", i64::from(top_k), &[none], |b, slot, sum| {
        let v = b.load(Type::f32(1), p, slot * 4);
        let v = b.sub(v, max);
        let e = math::exp(b, v);
        b.store(p, slot * 4, e);
        vec![b.add(sum[0], e)]
    })[0]
}
