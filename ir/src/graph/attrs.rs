//! Attributes that several ops share, as structs: what [`super::builder`] takes and the interpreter and passes read back.
//!
//! ```text
//! %q = rope %h, %pos, _, _ {base = 10000.0, dims = 64, style = neox, scaling = none, factor = 1.0, original_context = 0,
//!                        beta_fast = 32.0, beta_slow = 1.0, attn_factor = 1.0} : f32[T, 8, 64]
//! ```
//!
//! Invariant: `from_op(op).attrs() == ` the op's attributes of these names, in the op table's order.

use super::Op;
use super::op::Attr;
use crate::ngram::Hash;

/// Which elements of a head RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Elements `2i` and `2i + 1`.
    Norm,
    /// Elements `i` and `i + dims / 2`.
    Neox,
}

/// How RoPE stretches positions beyond the context that the model was trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Angles are divided by `factor`.
    Linear,
    /// Low frequencies are divided by `factor`, high ones stay, a ramp between, from a whole pair to another (YaRN).
    Yarn,
    /// The same with a ramp whose ends may lie between pairs (`truncate: false` in configurations).
    YarnUntruncated,
}

/// How a router turns logits into weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteScore {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// The logits themselves, and softmax over the chosen experts.
    Chosen,
    /// The square root of `ln(1 + exp(logit))`.
    RootSoftplus,
    /// Of each expert that is chosen a softmax over those that are left and whose logits are near the highest left, as inference of models
    /// trained with SparseMixer has it (Phi-3.5-MoE): near are those at most [`SPARSE_MIXER_NEAR`] of the larger magnitude below.
    SparseMixer,
}

impl RouteScore {
    /// Whether an expert weighs by those that are left when it is chosen as the highest of them: then logits alone choose, of all experts.
    pub fn weighs_by_those_left(self) -> bool {
        match self {
            RouteScore::Softmax | RouteScore::Sigmoid | RouteScore::Chosen | RouteScore::RootSoftplus => false,
            RouteScore::SparseMixer => true,
        }
    }
}

/// How far below the highest of the experts that are left a logit may be, as a part of the larger of both magnitudes: twice `router_jitter_noise`.
pub const SPARSE_MIXER_NEAR: f64 = 0.02;

/// What the gate of a gated linear unit goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`: SwiGLU.
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`: GEGLU, with the usual approximation of the normal distribution.
    Gelu,
    /// `x / (1 + exp(-1.702 x))`.
    QuickGelu,
    /// `min(silu(x), limit)`: the limit is on what the gate becomes, and the gate itself has none (Step-3.5).
    LimitedSilu,
    /// `bend * tanh(x / bend) / (1 + exp(-x))`: bent, and not cut off; so is up, by the limit (SiTU, Kimi K3).
    BentSilu,
    /// `max(x, 0)`: ReGLU.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`: GEGLU with the normal distribution itself.
    GeluErf,
}

impl Activation {
    /// Whether a limit of the gate is one of the function's result and not of its argument.
    pub fn limits_result(self) -> bool {
        match self {
            Activation::Silu
            | Activation::Gelu
            | Activation::QuickGelu
            | Activation::BentSilu
            | Activation::Relu
            | Activation::ReluSquared
            | Activation::GeluErf => false,
            Activation::LimitedSilu => true,
        }
    }

    /// Whether gate and up are bent, and not cut off.
    pub fn bends(self) -> bool {
        match self {
            Activation::Silu
            | Activation::Gelu
            | Activation::QuickGelu
            | Activation::LimitedSilu
            | Activation::Relu
            | Activation::ReluSquared
            | Activation::GeluErf => false,
            Activation::BentSilu => true,
        }
    }
}

/// Which key head a value head takes, where there are fewer of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeads {
    /// Value heads side by side share one.
    Grouped,
    /// Value heads share one where they are as many apart as there are key heads.
    Interleaved,
}

/// Why experts are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// A router named them: they will be waited for.
    Routed,
    /// They will probably be named.
    Predicted,
}

macro_rules! words {
    ($ty:ident { $($variant:ident $word:literal),* }) => {
        impl $ty {
            /// The words in IR text.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// The word in IR text.
            pub fn word(self) -> &'static str {
                match self { $($ty::$variant => $word),* }
            }

            /// The variant with this word.
            pub fn from_word(word: &str) -> Option<$ty> {
                match word { $($word => Some($ty::$variant),)* _ => None }
            }
        }
    };
}

words!(RopeStyle { Norm "norm", Neox "neox" });
words!(RopeScaling { None "none", Linear "linear", Yarn "yarn", YarnUntruncated "yarn_untruncated" });
words!(RouteScore { Softmax "softmax", Sigmoid "sigmoid", Chosen "chosen", RootSoftplus "root_softplus", SparseMixer "sparse_mixer" });
words!(Activation { Silu "silu", Gelu "gelu", QuickGelu "quick_gelu", LimitedSilu "limited_silu", BentSilu "bent_silu", Relu "relu", ReluSquared "relu_squared", GeluErf "gelu_erf" });
words!(KeyHeads { Grouped "grouped", Interleaved "interleaved" });
words!(Prefetch { Routed "routed", Predicted "predicted" });

/// The attributes of `rope`, also part of `rope.heads` and `rope.append`. [`super::interpret`] says what each does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeAttrs {
    /// Angle of pair `i` at position `p` is `p * base^(-2i / dims)`.
    pub base: f64,
    /// Leading elements of a head that are rotated; even. The rest stay.
    pub dims: u64,
    /// Which elements are a pair.
    pub style: RopeStyle,
    /// Context extension.
    pub scaling: RopeScaling,
    /// Context extension factor, at least 1 where it is used.
    pub factor: f64,
    /// The context length of training (yarn).
    pub original_context: u64,
    /// Rotations over the original context above which a frequency stays (yarn; 32).
    pub beta_fast: f64,
    /// Rotations below which a frequency is divided by `factor` (yarn; 1).
    pub beta_slow: f64,
    /// Multiplies the rotated elements; yarn multiplies them by `1 + 0.1 ln(factor)` on top.
    pub attn_factor: f64,
}

impl RopeAttrs {
    /// Plain RoPE.
    pub fn plain(base: f64, dims: u64, style: RopeStyle) -> RopeAttrs {
        RopeAttrs {
            base,
            dims,
            style,
            scaling: RopeScaling::None,
            factor: 1.0,
            original_context: 0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attn_factor: 1.0,
        }
    }

    /// As the op table orders them.
    pub fn attrs(&self) -> Vec<Attr> {
        vec![
            Attr::rounded(self.base),
            int(self.dims),
            Attr::Word(self.style.word().to_string()),
            Attr::Word(self.scaling.word().to_string()),
            Attr::rounded(self.factor),
            int(self.original_context),
            Attr::rounded(self.beta_fast),
            Attr::rounded(self.beta_slow),
            Attr::rounded(self.attn_factor),
        ]
    }

    /// Of an op that has them; any other op, or one that does not verify, is a bug here.
    pub fn from_op(op: &Op) -> RopeAttrs {
        let style = op.attr("style").word();
        let scaling = op.attr("scaling").word();
        RopeAttrs {
            base: op.attr("base").float(),
            dims: op.attr("dims").int().unsigned_abs(),
            style: RopeStyle::from_word(style).unwrap_or_else(|| unreachable!("style {style}")),
            scaling: RopeScaling::from_word(scaling).unwrap_or_else(|| unreachable!("scaling {scaling}")),
            factor: op.attr("factor").float(),
            original_context: op.attr("original_context").int().unsigned_abs(),
            beta_fast: op.attr("beta_fast").float(),
            beta_slow: op.attr("beta_slow").float(),
            attn_factor: op.attr("attn_factor").float(),
        }
    }
}

/// The attributes of `attention`: what scores are, besides products of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreAttrs {
    /// Factor on products.
    pub scale: f64,
    /// What scores are bent to stay within; 0 where they are not.
    pub cap: f64,
    /// What slopes of heads follow from, by which scores fall with distance (ALiBi); 0 where they do not.
    pub max_bias: f64,
    /// Factor on those slopes; 0 where there is none.
    pub slope: f64,
    /// How many positions a row sees before its own and behind it, where it sees both; 0 where it sees those up to what `pos` says.
    pub reach: u64,
}

impl ScoreAttrs {
    /// Products times a factor.
    pub fn plain(scale: f64) -> ScoreAttrs {
        ScoreAttrs { scale, cap: 0.0, max_bias: 0.0, slope: 0.0, reach: 0 }
    }

    /// As the op table orders them.
    pub fn attrs(&self) -> Vec<Attr> {
        let scores = [self.scale, self.cap, self.max_bias, self.slope].map(Attr::rounded);
        scores.into_iter().chain([Attr::Int(self.reach.cast_signed())]).collect()
    }

    /// Of an `attention`; any other op, or one that does not verify, is a bug here.
    pub fn from_op(op: &Op) -> ScoreAttrs {
        let [scale, cap, max_bias, slope] = ["scale", "cap", "max_bias", "slope"].map(|name| op.attr(name).float());
        ScoreAttrs { scale, cap, max_bias, slope, reach: op.attr("reach").int().unsigned_abs() }
    }

    /// By how much scores of a head, of so many, fall with each position before a row's own: "Train Short, Test Long" (arXiv 2108.12409), whose rule for
    /// numbers of heads that are no powers of two takes the slopes of twice as many in between, times the factor. 0 where they do not fall.
    ///
    /// ```
    /// use ixc_ir::graph::attrs::ScoreAttrs;
    ///
    /// let scores = ScoreAttrs { max_bias: 8.0, ..ScoreAttrs::plain(0.125) };
    /// assert_eq!([0, 3].map(|head| scores.slope(head, 4)), [0.25, 1.0 / 256.0]);
    /// assert_eq!([3, 4, 5].map(|head| scores.slope(head, 6)), [1.0 / 256.0, 0.5, 0.125]);
    /// assert_eq!(ScoreAttrs { slope: 0.125, ..scores }.slope(0, 4), 0.03125);
    /// assert_eq!(ScoreAttrs::plain(0.125).slope(0, 4), 0.0);
    /// ```
    pub fn slope(&self, head: u64, heads: u64) -> f64 {
        if self.max_bias == 0.0 {
            return 0.0;
        }
        let power = 1 << heads.max(1).ilog2();
        let step = match head.checked_sub(power) {
            None => (head + 1) as f64,
            Some(between) => between as f64 + 0.5,
        };
        let factor = if self.slope == 0.0 { 1.0 } else { self.slope };
        factor * (-self.max_bias * step / power as f64).exp2()
    }
}

/// The attributes of `temperature`: rows are multiplied by `1 + scale * ln(1 + floor((position + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TemperatureAttrs {
    /// On the logarithm.
    pub scale: f64,
    /// Positions of a step.
    pub length: u64,
    /// Positions that the first step lacks.
    pub offset: u64,
}

impl TemperatureAttrs {
    /// As the op table orders them.
    pub fn attrs(&self) -> Vec<Attr> {
        vec![Attr::rounded(self.scale), int(self.length), int(self.offset)]
    }

    /// Of a `temperature`; any other op, or one that does not verify, is a bug here.
    pub fn from_op(op: &Op) -> TemperatureAttrs {
        TemperatureAttrs {
            scale: op.attr("scale").float(),
            length: op.attr("length").int().unsigned_abs(),
            offset: op.attr("offset").int().unsigned_abs(),
        }
    }

    /// The factor at a position.
    pub fn factor(&self, position: u64) -> f64 {
        1.0 + self.scale * (((position + self.offset) / self.length) as f64).ln_1p()
    }
}

/// The attributes of `route`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteAttrs {
    /// Experts that a row goes to.
    pub top_k: u64,
    /// Logits to weights.
    pub score: RouteScore,
    /// Equal groups of experts side by side.
    pub groups: u64,
    /// Groups whose experts can be chosen: those with the largest sum of their two highest scores, bias included.
    pub groups_kept: u64,
    /// How many of a group's highest scores are summed for that, where not two: 1, or 0 for two.
    pub group_best: u64,
    /// Whether the chosen weights are divided by their sum.
    pub normalise: bool,
    /// Multiplies the weights, last.
    pub scale: f64,
}

impl RouteAttrs {
    /// The best of all experts, by a softmax over all.
    pub fn softmax(top_k: u64, normalise: bool) -> RouteAttrs {
        RouteAttrs {
            top_k,
            score: RouteScore::Softmax,
            groups: 1,
            groups_kept: 1,
            group_best: 0,
            normalise,
            scale: 1.0,
        }
    }

    /// As the op table orders them.
    pub fn attrs(&self) -> Vec<Attr> {
        vec![
            int(self.top_k),
            Attr::Word(self.score.word().to_string()),
            int(self.groups),
            int(self.groups_kept),
            Attr::Bool(self.normalise),
            Attr::rounded(self.scale),
            int(self.group_best),
        ]
    }

    /// Of a `route`; any other op, or one that does not verify, is a bug here.
    pub fn from_op(op: &Op) -> RouteAttrs {
        let score = op.attr("score").word();
        RouteAttrs {
            top_k: op.attr("top_k").int().unsigned_abs(),
            score: RouteScore::from_word(score).unwrap_or_else(|| unreachable!("score {score}")),
            groups: op.attr("groups").int().unsigned_abs(),
            groups_kept: op.attr("groups_kept").int().unsigned_abs(),
            group_best: op.attr("group_best").int().unsigned_abs(),
            normalise: op.attr("normalise").bool(),
            scale: op.attr("scale").float(),
        }
    }
}

/// The attributes of a gated linear unit: `act(min(gate, limit)) * (clamp(up, -limit, limit) + shift)`, or with `min(act(gate), limit)`, as the activation says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateAttrs {
    /// What the gate goes through.
    pub act: Activation,
    /// What gate and up do not exceed; 0 for no limit.
    pub limit: f64,
    /// Added to up.
    pub shift: f64,
    /// What a gate that is bent does not reach; 0 where none is.
    pub bend: f64,
}

impl GateAttrs {
    /// Without a limit, and with nothing added.
    pub const fn plain(act: Activation) -> GateAttrs {
        GateAttrs { act, limit: 0.0, shift: 0.0, bend: 0.0 }
    }

    /// As the op table orders them.
    pub fn attrs(&self) -> Vec<Attr> {
        let numbers = [self.limit, self.shift, self.bend].map(Attr::rounded);
        [Attr::Word(self.act.word().to_string())].into_iter().chain(numbers).collect()
    }

    /// Of an op that has them; any other op, or one that does not verify, is a bug here.
    pub fn from_op(op: &Op) -> GateAttrs {
        let act = op.attr("act").word();
        GateAttrs {
            act: Activation::from_word(act).unwrap_or_else(|| unreachable!("act {act}")),
            limit: op.attr("limit").float(),
            shift: op.attr("shift").float(),
            bend: op.attr("bend").float(),
        }
    }
}

/// The attributes of `ngram`.
pub fn ngram_attrs(hash: &Hash) -> Vec<Attr> {
    let [m0, m1, m2, m3] = hash.multipliers.map(int);
    vec![int(hash.end.into()), m0, m1, m2, m3, int(hash.modulus.into()), int(hash.offset.into())]
}

/// How an `ngram` names rows; any other op, or one that does not verify, is a bug here.
pub fn ngram_hash(op: &Op) -> Hash {
    let number = |name: &str| op.attr(name).int().unsigned_abs();
    Hash {
        end: number("eos") as u32,
        multipliers: ["m0", "m1", "m2", "m3"].map(number),
        modulus: number("modulus") as u32,
        offset: number("offset") as u32,
    }
}

/// An integer attribute. Beyond `i64` it becomes `i64::MAX`, which no type rule accepts: the value stays an error.
pub(super) fn int(value: u64) -> Attr {
    Attr::Int(i64::try_from(value).unwrap_or(i64::MAX))
}
