//! Computations of the ops on plain slices. Inputs and outputs are f32, and computations within an
//! op are f64. The type rules have checked the lengths.

use crate::erf::erf;
use crate::format::Format;
use crate::graph::attrs::{
    Activation, GateAttrs, RopeAttrs, RopeScaling, RopeStyle, RouteAttrs, RouteScore, SPARSE_MIXER_NEAR, ScoreAttrs,
};

/// Returns the elementwise sum.
pub(super) fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// Adds a bias to every row.
pub(super) fn add_bias(x: &[f32], bias: &[f32]) -> Vec<f32> {
    x.iter().zip(bias.iter().cycle()).map(|(x, b)| x + b).collect()
}

/// Returns the elementwise product.
pub(super) fn mul(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

/// Multiplies each head of `d` elements by its own number in `s`, and adds `residual`.
pub(super) fn scale_heads(x: &[f32], s: &[f32], d: usize, residual: Option<&[f32]>) -> Vec<f32> {
    let scaled = x.iter().enumerate().map(|(i, &x)| f64::from(x) * f64::from(s[i / d]));
    match residual {
        Some(residual) => scaled.zip(residual).map(|(y, &r)| (y + f64::from(r)) as f32).collect(),
        None => scaled.map(|y| y as f32).collect(),
    }
}

/// Lower bound of the sum that router weights are divided by: the smallest normal f16, as in
/// llama.cpp.
pub const ROUTE_SUM_MIN: f64 = 6.103_515_625e-5;

/// Computes `x * w / sqrt(mean(x^2) + eps)` of every row of `n` elements. If `w` has several rows,
/// the rows of `x` use them in turn.
pub fn rms_norm(x: &[f32], w: &[f32], n: usize, eps: f64) -> Vec<f32> {
    let mut y = Vec::with_capacity(x.len());
    for (row, w) in x.chunks_exact(n).zip(w.chunks_exact(n).cycle()) {
        let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let scale = 1.0 / (squares / w.len() as f64 + eps).sqrt();
        y.extend(row.iter().zip(w).map(|(&x, &w)| (f64::from(x) * scale * f64::from(w)) as f32));
    }
    y
}

/// Computes `x - mean(x)` of every row of `n` elements.
pub fn centre(x: &[f32], n: usize) -> Vec<f32> {
    let row = |row: &[f32]| {
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
        row.iter().map(|&x| (f64::from(x) - mean) as f32).collect::<Vec<_>>()
    };
    x.chunks_exact(n.max(1)).flat_map(row).collect()
}

/// Returns the angle of each pair of elements for one position, and the factor on the rotated
/// elements.
///
/// Pair `i` of `dims / 2` turns by `base^(-2i / dims) / factors[i]` for each position. With the
/// scaling `linear`, that angle is divided by `factor`. The scaling `yarn` is as follows
/// (llama.cpp's `rope_yarn` with `ext_factor` 1):
///
/// ```text
/// // The pair that turns b times over the context:
/// turns(b) = dims * ln(original_context / (2 pi b)) / (2 ln base)
/// low  = max(0, floor(turns(beta_fast))),  high = min(dims - 1, ceil(turns(beta_slow)))
/// keep = 1 - clamp((i - low) / max(0.001, high - low), 0, 1)
/// angle = plain / factor * (1 - keep) + plain * keep
/// magnitude = attn_factor * (1 + 0.1 ln factor)                        // 1 for factor <= 1
/// ```
///
/// With `yarn_untruncated` (transformers' `truncate: false`), `low` and `high` are not rounded to
/// whole pairs.
///
/// llama.cpp splits this magnitude into a factor of its context and a factor of its kernel. The
/// factor returned here is their product.
pub fn rope_angles(rope: &RopeAttrs, factors: Option<&[f32]>) -> (Vec<f64>, f64) {
    let dims = rope.dims as f64;
    let turns = |beta: f64| {
        dims * (rope.original_context as f64 / (beta * 2.0 * std::f64::consts::PI)).ln() / (2.0 * rope.base.ln())
    };
    let (low, high) = match rope.scaling {
        RopeScaling::Yarn => (turns(rope.beta_fast).floor().max(0.0), turns(rope.beta_slow).ceil().min(dims - 1.0)),
        RopeScaling::YarnUntruncated => (turns(rope.beta_fast).max(0.0), turns(rope.beta_slow).min(dims - 1.0)),
        RopeScaling::None | RopeScaling::Linear => (0.0, 0.0),
    };
    let angle = |i: usize| {
        let plain = rope.base.powf(-2.0 * i as f64 / dims) / factors.map_or(1.0, |factors| f64::from(factors[i]));
        match rope.scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear => plain / rope.factor,
            RopeScaling::Yarn | RopeScaling::YarnUntruncated => {
                let keep = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                plain / rope.factor * (1.0 - keep) + plain * keep
            }
        }
    };
    let magnitude = match rope.scaling {
        RopeScaling::None | RopeScaling::Linear => rope.attn_factor,
        RopeScaling::Yarn | RopeScaling::YarnUntruncated => rope.attn_factor * (1.0 + 0.1 * rope.factor.max(1.0).ln()),
    };
    ((0..rope.dims as usize / 2).map(angle).collect(), magnitude)
}

/// Rotates rows of `heads` heads of `size` elements by their positions.
pub fn rope(
    x: &[f32],
    heads: usize,
    size: usize,
    positions: &[i32],
    rope: &RopeAttrs,
    factors: Option<&[f32]>,
) -> Vec<f32> {
    let (angles, magnitude) = rope_angles(rope, factors);
    let mut y = x.to_vec();
    for (row, &position) in y.chunks_exact_mut(heads * size).zip(positions) {
        for (i, angle) in angles.iter().enumerate() {
            let (sin, cos) = (f64::from(position) * angle).sin_cos();
            let (sin, cos) = (sin * magnitude, cos * magnitude);
            let (a, b) = match rope.style {
                RopeStyle::Norm => (2 * i, 2 * i + 1),
                RopeStyle::Neox => (i, i + angles.len()),
            };
            for head in row.chunks_exact_mut(size) {
                let (x0, x1) = (f64::from(head[a]), f64::from(head[b]));
                head[a] = (x0 * cos - x1 * sin) as f32;
                head[b] = (x0 * sin + x1 * cos) as f32;
            }
        }
    }
    y
}

/// Computes a gated linear unit. The result of the activation function is rounded to f32, as if it
/// were an op of its own.
pub fn gated(gate: &[f32], up: &[f32], attrs: &GateAttrs) -> Vec<f32> {
    let limit = if attrs.limit == 0.0 { f32::INFINITY } else { attrs.limit as f32 };
    let act = |x: f64| match attrs.act {
        Activation::Silu | Activation::LimitedSilu => x / (1.0 + (-x).exp()),
        Activation::Gelu => x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
        Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0) * x.max(0.0),
        Activation::GeluErf => x / 2.0 * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Activation::BentSilu => attrs.bend * (x / attrs.bend).tanh() / (1.0 + (-x).exp()),
    };
    let bent = |x: f32| match limit == f32::INFINITY {
        true => x.into(),
        false => attrs.limit * (f64::from(x) / attrs.limit).tanh(),
    };
    let (before, behind) = if attrs.act.limits_result() { (f32::INFINITY, limit) } else { (limit, f32::INFINITY) };
    let gated = |(&gate, &up): (&f32, &f32)| {
        let (before, up) = match attrs.act.bends() {
            true => (f32::INFINITY, bent(up)),
            false => (before, up.clamp(-limit, limit).into()),
        };
        let gate = (act(gate.min(before).into()) as f32).min(behind);
        let up = up + attrs.shift;
        (f64::from(gate) * up) as f32
    };
    gate.iter().zip(up).map(gated).collect()
}

/// Returns the chosen experts and their weights for each row of `experts` logits, the highest score
/// first.
///
/// All scores grow with the logit, so without a bias the f32 logits themselves determine the
/// choice. If logits are equal, the lowest id comes first; NaN comes last. Groups are chosen by the
/// sum of their two highest scores, bias included (DeepSeek-V3), or by their highest score
/// (DeepSeek-V2).
pub fn route(
    logits: &[f32],
    experts: usize,
    bias: Option<&[f32]>,
    scales: Option<&[f32]>,
    route: &RouteAttrs,
) -> (Vec<i32>, Vec<f32>) {
    let k = route.top_k as usize;
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for row in logits.chunks_exact(experts) {
        let (row, scores) = scores(row, route.score);
        let key: Vec<f64> = match bias {
            Some(bias) => scores.iter().zip(bias).map(|(score, &bias)| score + f64::from(bias)).collect(),
            None if route.groups > 1 => scores.clone(),
            None => row.clone(),
        };
        let best = |order: &mut Vec<usize>, key: &[f64], count: usize| {
            order.sort_by(|&a, &b| key[b].partial_cmp(&key[a]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(&b)));
            order.truncate(count);
        };
        let size = experts / route.groups as usize;
        let group_score = |group: &[f64]| {
            let mut two = (0..size).collect();
            best(&mut two, group, if route.group_best == 1 { 1 } else { 2 });
            two.iter().map(|&i| group[i]).sum::<f64>()
        };
        let mut groups: Vec<usize> = (0..route.groups as usize).collect();
        let group_scores: Vec<f64> = key.chunks_exact(size).map(group_score).collect();
        best(&mut groups, &group_scores, route.groups_kept as usize);
        let mut order: Vec<usize> = groups.iter().flat_map(|group| group * size..(group + 1) * size).collect();
        best(&mut order, &key, k);
        let chosen = chosen_weights(&row, &scores, &order, route);
        ids.extend(order.iter().map(|&id| id as i32));
        let own = |id: usize| scales.map_or(1.0, |scales| f64::from(scales[id]));
        weights.extend(order.iter().zip(&chosen).map(|(&id, score)| (score * route.scale * own(id)) as f32));
    }
    (ids, weights)
}

/// Returns, for each row of `experts` logits, the experts in the row's list and their weights. Ids
/// outside the range of experts become the nearest valid id.
pub fn route_listed(logits: &[f32], experts: usize, listed: &[&[i32]], route: &RouteAttrs) -> (Vec<i32>, Vec<f32>) {
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for (row, listed) in logits.chunks_exact(experts).zip(listed) {
        let (row, scores) = scores(row, route.score);
        let order: Vec<usize> = listed.iter().map(|&id| usize::try_from(id).unwrap_or(0).min(experts - 1)).collect();
        ids.extend(order.iter().map(|&id| id as i32));
        weights.extend(chosen_weights(&row, &scores, &order, route).iter().map(|score| (score * route.scale) as f32));
    }
    (ids, weights)
}

/// Returns a row of logits, with NaN replaced by the lowest number, and the scores of these logits.
fn scores(row: &[f32], score: RouteScore) -> (Vec<f64>, Vec<f64>) {
    let row: Vec<f64> = row.iter().map(|&x| if x.is_nan() { f64::NEG_INFINITY } else { x.into() }).collect();
    let all: Vec<usize> = (0..row.len()).collect();
    let scores = match score {
        RouteScore::Softmax => softmax(&row, &all),
        RouteScore::Sigmoid => row.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        RouteScore::Chosen => row.clone(),
        RouteScore::RootSoftplus => row.iter().map(|x| (x.max(0.0) + (-x.abs()).exp().ln_1p()).sqrt()).collect(),
        RouteScore::SparseMixer => row.clone(),
    };
    (row, scores)
}

/// Returns the weights of the experts `order`, before they are multiplied by `scale` and by factors
/// of experts.
fn chosen_weights(row: &[f64], scores: &[f64], order: &[usize], route: &RouteAttrs) -> Vec<f64> {
    let mut chosen: Vec<f64> = match route.score {
        RouteScore::Chosen => softmax(row, order),
        RouteScore::SparseMixer => {
            let left = |slot: usize| (0..row.len()).filter(|id| !order[..slot].contains(id)).collect();
            (0..order.len()).map(|slot| share_of_near(row, left(slot), order[slot])).collect()
        }
        RouteScore::Softmax | RouteScore::Sigmoid | RouteScore::RootSoftplus => {
            order.iter().map(|&id| scores[id]).collect()
        }
    };
    if route.normalise {
        let sum = chosen.iter().sum::<f64>().max(ROUTE_SUM_MIN);
        chosen.iter_mut().for_each(|score| *score /= sum);
    }
    chosen
}

/// Returns the probability of `best` in a softmax over those elements `of` of `row` that are near
/// `row[best]`. `row[best]` must be the highest of these elements.
fn share_of_near(row: &[f64], mut of: Vec<usize>, best: usize) -> f64 {
    let max = row[best];
    of.retain(|&i| max - row[i] <= SPARSE_MIXER_NEAR * row[i].abs().max(max));
    1.0 / of.iter().map(|&i| (row[i] - max).exp()).sum::<f64>()
}

/// Returns the softmax over the elements of `row` whose indices are `of`.
fn softmax(row: &[f64], of: &[usize]) -> Vec<f64> {
    let top = of.iter().map(|&i| row[i]).fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = of.iter().map(|&i| (row[i] - top).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|exp| exp / sum).collect()
}

/// Returns chosen positions up to `position` in ascending order, then -1. `keys` are stored as
/// `[key][element]`, and each key belongs to `every` positions. Its score is the sum over heads of
/// `w * max(q . k, 0)`. The positions of the `top_k / every` complete keys with the highest scores
/// are chosen; of equal scores, the first key wins. All positions after the last complete key are
/// chosen too.
pub fn index_top_k(q: &[f32], w: &[f32], keys: &[f32], position: usize, top_k: usize, every: usize) -> Vec<i32> {
    let whole = (position + 1) / every;
    let of_runs =
        best_keys(q, w, keys, whole, top_k / every).into_iter().flat_map(|run| run * every..(run + 1) * every);
    let mut chosen: Vec<i32> = of_runs.chain(whole * every..position + 1).map(|p| p as i32).collect();
    chosen.resize(top_k + every - 1, -1);
    chosen
}

/// Returns the indices of the `top_k` complete keys with the highest scores. Scores are those of
/// [`index_top_k`].
pub fn index_entries(q: &[f32], w: &[f32], keys: &[f32], position: usize, top_k: usize, every: usize) -> Vec<i32> {
    let best = best_keys(q, w, keys, (position + 1) / every, top_k);
    let mut chosen: Vec<i32> = best.into_iter().map(|key| key as i32).collect();
    chosen.resize(top_k, -1);
    chosen
}

/// Returns positions up to `position` in chosen blocks of `block` positions, in ascending order,
/// then -1. The last `local` blocks are always chosen. The best earlier blocks are added until
/// there are `top_k` positions. The score of a block is the highest `q . k` of its keys; of equal
/// scores, the first block wins.
pub fn index_blocks(q: &[f32], keys: &[f32], position: usize, top_k: usize, block: usize, local: usize) -> Vec<i32> {
    let d = q.len().max(1);
    let q: Vec<f64> = q.iter().map(|&x| f64::from(x)).collect();
    let first_local = (position / block + 1).saturating_sub(local);
    let product = |key: &[f32]| dot(&q, key) as f32 + 0.0;
    let score = |keys: &[f32]| keys.chunks_exact(d).map(product).fold(f32::NEG_INFINITY, f32::max);
    let scores: Vec<f32> = keys.chunks_exact(d * block).take(first_local).map(score).collect();
    let mut best: Vec<usize> = (0..scores.len()).collect();
    best.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    best.truncate(top_k / block - local);
    best.sort_unstable();
    let of_blocks = best.into_iter().flat_map(|number| number * block..(number + 1) * block);
    let mut chosen: Vec<i32> = of_blocks.chain(first_local * block..position + 1).map(|p| p as i32).collect();
    chosen.resize(top_k, -1);
    chosen
}

/// Returns, in ascending order, the indices of the `top_k` keys with the highest scores among the
/// first `count` keys.
fn best_keys(q: &[f32], w: &[f32], keys: &[f32], count: usize, top_k: usize) -> Vec<usize> {
    let d = q.len() / w.len().max(1);
    let q: Vec<f64> = q.iter().map(|&x| f64::from(x)).collect();
    let score = |p: usize| -> f32 {
        let key = &keys[p * d..][..d];
        let heads = q.chunks_exact(d.max(1)).zip(w);
        heads.map(|(q, &w)| f64::from(w) * dot(q, key).max(0.0)).sum::<f64>() as f32
    };
    // Adding 0 turns -0 into +0, so that the order of scores treats them as equal.
    let scores: Vec<f32> = (0..count).map(|key| score(key) + 0.0).collect();
    let mut best: Vec<usize> = (0..count).collect();
    best.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    best.truncate(top_k);
    best.sort_unstable();
    best
}

/// Computes causal attention of the query heads of one row at `position`.
///
/// A score is `scale * q . k`, soft-capped by `cap` if it is not 0, minus the head's slope times
/// the distance of the positions. The softmax runs over positions 0 to `position`, or over the
/// positions for which `sees` is true for the key head. A head's sink is one more score in the
/// softmax, without a value.
pub fn attention(
    q: &[f32],
    cached: CachedRows<'_>,
    shape: &AttentionShape,
    position: usize,
    scores: &ScoreAttrs,
    sinks: Option<&[f32]>,
    sees: impl Fn(usize, usize) -> bool,
) -> Vec<f32> {
    let CachedRows { keys, values } = cached;
    let AttentionShape { heads, kv_heads, key, value } = *shape;
    let ScoreAttrs { scale, cap, .. } = *scores;
    let mut out = Vec::with_capacity(heads * value);
    for (h, q) in q.chunks_exact(key).enumerate() {
        let kv = h / (heads / kv_heads);
        let q: Vec<f64> = q.iter().map(|&x| f64::from(x)).collect();
        let capped = |score: f64| if cap == 0.0 { score } else { cap * (score / cap).tanh() };
        let slope = scores.slope(h as u64, heads as u64);
        let score = |p: usize| match sees(kv, p) {
            true => {
                let score = capped(scale * dot(&q, &keys[(p * kv_heads + kv) * key..][..key]));
                if slope == 0.0 { score } else { score - slope * (position - p) as f64 }
            }
            false => f64::NEG_INFINITY,
        };
        let scores: Vec<f64> = (0..=position).map(score).collect();
        let sink = sinks.map_or(f64::NEG_INFINITY, |sinks| sinks[h].into());
        let top = scores.iter().copied().fold(sink, f64::max);
        let mut sum = (sink - top).exp();
        let mut acc = vec![0f64; value];
        for (p, score) in scores.iter().enumerate() {
            let weight = (score - top).exp();
            sum += weight;
            for (acc, &v) in acc.iter_mut().zip(&values[(p * kv_heads + kv) * value..][..value]) {
                *acc += weight * f64::from(v);
            }
        }
        out.extend(acc.iter().map(|acc| (acc / sum) as f32));
    }
    out
}

/// Keys and values of the positions that a row may see, each as `[position][kv head][element]`.
#[derive(Clone, Copy, Debug)]
pub struct CachedRows<'a> {
    /// Keys of the positions.
    pub keys: &'a [f32],
    /// Values of the positions.
    pub values: &'a [f32],
}

/// Head counts and sizes of an attention op.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key heads.
    pub kv_heads: usize,
    /// Number of elements of a head's query, and of its key.
    pub key: usize,
    /// Number of elements of a head's value.
    pub value: usize,
}

/// Computes `a . b` in f64. Four partial sums are independent of each other: a single chain of
/// additions would take four times as long.
pub fn dot(a: &[f64], b: &[f32]) -> f64 {
    let mut sums = [0f64; 4];
    let (a4, b4) = (a.chunks_exact(4), b.chunks_exact(4));
    let rest: f64 = a4.remainder().iter().zip(b4.remainder()).map(|(a, &b)| a * f64::from(b)).sum();
    for (a, b) in a4.zip(b4) {
        sums[0] += a[0] * f64::from(b[0]);
        sums[1] += a[1] * f64::from(b[1]);
        sums[2] += a[2] * f64::from(b[2]);
        sums[3] += a[3] * f64::from(b[3]);
    }
    sums[0] + sums[1] + sums[2] + sums[3] + rest
}

/// A matrix whose rows are dequantised on demand.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Storage format.
    pub format: Format,
    /// Rows of the matrix in the storage format, without a partial row.
    pub bytes: &'a [u8],
    /// Number of elements in a row.
    pub width: usize,
}

impl<'a> Matrix<'a> {
    /// Returns the number of bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.width as u64).map_or(0, |bytes| bytes as usize)
    }

    /// Returns a matrix of `count` rows, from row `first` on.
    pub fn rows(&self, first: usize, count: usize) -> Matrix<'a> {
        Matrix { bytes: &self.bytes[first * self.row_bytes()..][..count * self.row_bytes()], ..*self }
    }

    /// Dequantises the whole matrix.
    pub fn dequantise(&self) -> Vec<f32> {
        self.format.dequantise_rows(self.bytes, self.width)
    }

    /// Multiplies the rows of `x`, of `width` elements each, by the transpose of the matrix.
    pub fn project(&self, x: &[f32]) -> Vec<f32> {
        let n = self.bytes.len() / self.row_bytes();
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let rows = x.len() / self.width;
        let mut out = vec![0f32; rows * n];
        let mut weight = vec![0f32; self.width];
        for (j, bytes) in self.bytes.chunks_exact(self.row_bytes()).enumerate() {
            self.format.dequantise(bytes, &mut weight);
            for (i, x) in x.chunks_exact(self.width).enumerate() {
                out[i * n + j] = dot(x, &weight) as f32;
            }
        }
        out
    }
}
