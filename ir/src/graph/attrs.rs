//! Groups of attributes that several ops share, as structs. The methods of [`super::builder`] take
//! these structs. The interpreter and passes read them from ops.
//!
//! ```text
//! %q = rope %h, %pos, _, _ {base = 10000.0, dims = 64, style = neox, scaling = none, factor = 1.0,
//!                           original_context = 0, beta_fast = 32.0, beta_slow = 1.0,
//!                           attn_factor = 1.0} : f32[T, 8, 64]
//! ```
//!
//! Invariant: `from_op(op).attrs()` equals the op's attributes with these names, in the op table's
//! order.

use serde::{Deserialize, Serialize};

use super::Op;
use super::attr::Attr;
use crate::ngram::Hash;
pub use crate::rope_style::RopeStyle;

/// Scaling of RoPE to positions beyond the context that the model was trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeScaling {
    /// Frequencies are not scaled.
    None,
    /// Angles are divided by `factor`.
    Linear,
    /// Low frequencies are divided by `factor` and high ones stay. Between them is a linear ramp
    /// from one pair of elements to another (YaRN).
    Yarn,
    /// YaRN with a ramp whose ends may lie between two pairs (`truncate: false` in configurations).
    YarnUntruncated,
}

/// Function that turns a router's logits into expert weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteScore {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// The logits themselves, then softmax over the chosen experts.
    Chosen,
    /// The square root of `ln(1 + exp(logit))`.
    RootSoftplus,
    /// A softmax for each chosen expert, over the experts that are not yet chosen and have logits
    /// near the highest of them. Inference of models trained with SparseMixer (Phi-3.5-MoE) does
    /// this. "Near" means a distance of at most [`SPARSE_MIXER_NEAR`] times the larger of the two
    /// magnitudes.
    SparseMixer,
}

impl RouteScore {
    /// Whether an expert's weight depends on which experts are not yet chosen at its turn. Such
    /// routers choose by logits alone, among all experts.
    pub fn weighs_by_those_left(self) -> bool {
        match self {
            RouteScore::Softmax | RouteScore::Sigmoid | RouteScore::Chosen | RouteScore::RootSoftplus => false,
            RouteScore::SparseMixer => true,
        }
    }
}

/// Maximum distance of a logit from the highest remaining one, relative to the larger of the two
/// magnitudes. The value is twice `router_jitter_noise`.
pub const SPARSE_MIXER_NEAR: f64 = 0.02;

/// Activation function of the gate in a gated linear unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Activation {
    /// `x / (1 + exp(-x))`: SwiGLU.
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`: GEGLU, with the usual approximation
    /// of the normal distribution.
    Gelu,
    /// `x / (1 + exp(-1.702 x))`.
    QuickGelu,
    /// `min(silu(x), limit)`. The limit applies to the function's result; its argument is not
    /// limited (Step-3.5).
    LimitedSilu,
    /// `bend * tanh(x / bend) / (1 + exp(-x))`: the gate is bounded smoothly instead of clamped.
    /// The attribute `limit` bounds the up projection in the same way (SiTU, Kimi K3).
    BentSilu,
    /// `max(x, 0)`: ReGLU.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`: GEGLU with the normal distribution itself.
    GeluErf,
}

impl Activation {
    /// Whether the gate's limit applies to the function's result instead of its argument.
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

    /// Whether gate and up projections are bounded smoothly (by `tanh`) instead of clamped.
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

/// Mapping from value heads to key heads, for layers with fewer key heads than value heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeads {
    /// Adjacent value heads share a key head.
    Grouped,
    /// Value heads `h` and `h + number of key heads` share a key head.
    Interleaved,
}

/// Reason to load experts before their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// A router chose these experts, and a later op will wait for them.
    Routed,
    /// A prediction of a router's choice names these experts.
    Predicted,
}

macro_rules! words {
    ($ty:ident { $($variant:ident $word:literal),* }) => {
        impl $ty {
            /// Words of all variants in IR text.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// Returns the word of this variant in IR text.
            pub fn word(self) -> &'static str {
                match self { $($ty::$variant => $word),* }
            }

            /// Returns the variant with this word, or `None`.
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

/// Attributes of `rope`, which `rope.heads` and `rope.append` also have. [`super::interpret`]
/// defines their meaning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeAttrs {
    /// Base of the angles: pair `i` at position `p` turns by `p * base^(-2i / dims)`.
    pub base: f64,
    /// Number of leading elements of a head that are rotated, an even number. The other elements
    /// stay.
    pub dims: u64,
    /// Choice of the two elements that form a pair.
    pub style: RopeStyle,
    /// Method of scaling to longer contexts.
    pub scaling: RopeScaling,
    /// Ratio of the extended context to the original one, at least 1 if the scaling uses it.
    pub factor: f64,
    /// Context length in training. Only YaRN uses it.
    pub original_context: u64,
    /// Number of rotations over the original context above which a frequency stays. Only YaRN uses
    /// it; usually 32.
    pub beta_fast: f64,
    /// Number of rotations over the original context below which a frequency is divided by
    /// `factor`. Only YaRN uses it; usually 1.
    pub beta_slow: f64,
    /// Factor on the rotated elements. YaRN also multiplies them by `1 + 0.1 ln(factor)`.
    pub attn_factor: f64,
}

impl RopeAttrs {
    /// Returns plain RoPE, without scaling.
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

    /// Returns the attributes in the order of the op table.
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

    /// Reads the attributes of an op that has them. Panics on any other op, and on an op that the
    /// verifier would reject.
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

/// Attributes of `attention`: changes to the scores, the products of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreAttrs {
    /// Factor on the products.
    pub scale: f64,
    /// Soft cap of the scores (`cap * tanh(score / cap)`); 0 for no cap.
    pub cap: f64,
    /// Maximum bias (ALiBi), which determines the slopes of the heads; 0 for no slopes. A slope
    /// lowers the scores of distant positions.
    pub max_bias: f64,
    /// Factor on all slopes; 0 for no factor.
    pub slope: f64,
    /// Number of positions that a query sees before, and also after, its own position. 0 means that
    /// a query sees all positions up to its own.
    pub reach: u64,
}

impl ScoreAttrs {
    /// Returns attributes that only multiply products by a factor.
    pub fn plain(scale: f64) -> ScoreAttrs {
        ScoreAttrs { scale, cap: 0.0, max_bias: 0.0, slope: 0.0, reach: 0 }
    }

    /// Returns the attributes in the order of the op table.
    pub fn attrs(&self) -> Vec<Attr> {
        let scores = [self.scale, self.cap, self.max_bias, self.slope].map(Attr::rounded);
        scores.into_iter().chain([Attr::Int(self.reach.cast_signed())]).collect()
    }

    /// Reads the attributes of an `attention`. Panics on any other op, and on an op that the
    /// verifier would reject.
    pub fn from_op(op: &Op) -> ScoreAttrs {
        let [scale, cap, max_bias, slope] = ["scale", "cap", "max_bias", "slope"].map(|name| op.attr(name).float());
        ScoreAttrs { scale, cap, max_bias, slope, reach: op.attr("reach").int().unsigned_abs() }
    }

    /// Returns the slope of a head: the decrease of its scores for each position of distance. 0
    /// means no decrease. The source is "Train Short, Test Long" (arXiv 2108.12409). If the number
    /// of heads is not a power of two, let `n` be the largest power of two below it. Heads from `n`
    /// on have every other slope of `2 n` heads. The result includes the factor `slope`.
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

/// Attributes of `temperature`: each row is multiplied by
/// `1 + scale * ln(1 + floor((position + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TemperatureAttrs {
    /// Factor on the logarithm.
    pub scale: f64,
    /// Number of consecutive positions that share a factor.
    pub length: u64,
    /// Number that is added to positions: the first positions with a common factor are fewer by
    /// this number.
    pub offset: u64,
}

impl TemperatureAttrs {
    /// Returns the attributes in the order of the op table.
    pub fn attrs(&self) -> Vec<Attr> {
        vec![Attr::rounded(self.scale), int(self.length), int(self.offset)]
    }

    /// Reads the attributes of a `temperature`. Panics on any other op, and on an op that the
    /// verifier would reject.
    pub fn from_op(op: &Op) -> TemperatureAttrs {
        TemperatureAttrs {
            scale: op.attr("scale").float(),
            length: op.attr("length").int().unsigned_abs(),
            offset: op.attr("offset").int().unsigned_abs(),
        }
    }

    /// Returns the factor for rows at a position.
    pub fn factor(&self, position: u64) -> f64 {
        1.0 + self.scale * (((position + self.offset) / self.length) as f64).ln_1p()
    }
}

/// Attributes of `route`, the choice of experts by a router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteAttrs {
    /// Number of experts for each token.
    pub top_k: u64,
    /// Function from logits to weights.
    pub score: RouteScore,
    /// Number of equal groups that adjacent experts form.
    pub groups: u64,
    /// Number of groups whose experts can be chosen. These are the groups with the largest sum of
    /// their two highest scores, bias included.
    pub groups_kept: u64,
    /// Number of a group's highest scores whose sum is compared when groups are chosen: 1, or 0 for
    /// two.
    pub group_best: u64,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights, applied after all other steps.
    pub scale: f64,
}

impl RouteAttrs {
    /// Returns attributes for the `top_k` of all experts, with weights from a softmax over all
    /// experts.
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

    /// Returns the attributes in the order of the op table.
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

    /// Reads the attributes of a `route`. Panics on any other op, and on an op that the verifier
    /// would reject.
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

/// Attributes of a gated linear unit: `act(min(gate, limit)) * (clamp(up, -limit, limit) + shift)`.
/// Some activations compute `min(act(gate), limit)` instead ([`Activation::limits_result`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateAttrs {
    /// Activation function of the gate.
    pub act: Activation,
    /// Maximum of the gate projection, and of the magnitude of the up projection; 0 for no limit.
    pub limit: f64,
    /// Number that is added to the up projection.
    pub shift: f64,
    /// Bound of a smoothly bounded gate; 0 for activations that do not bend.
    pub bend: f64,
}

impl GateAttrs {
    /// Returns attributes without a limit or a shift.
    pub const fn plain(act: Activation) -> GateAttrs {
        GateAttrs { act, limit: 0.0, shift: 0.0, bend: 0.0 }
    }

    /// Returns the attributes in the order of the op table.
    pub fn attrs(&self) -> Vec<Attr> {
        let numbers = [self.limit, self.shift, self.bend].map(Attr::rounded);
        [Attr::Word(self.act.word().to_string())].into_iter().chain(numbers).collect()
    }

    /// Reads the attributes of an op that has them. Panics on any other op, and on an op that the
    /// verifier would reject.
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

/// Returns the attributes of `ngram`.
pub fn ngram_attrs(hash: &Hash) -> Vec<Attr> {
    let [m0, m1, m2, m3] = hash.multipliers.map(int);
    vec![int(hash.end.into()), m0, m1, m2, m3, int(hash.modulus.into()), int(hash.offset.into())]
}

/// Reads the hash of an `ngram`. Panics on any other op, and on an op that the verifier would
/// reject.
pub fn ngram_hash(op: &Op) -> Hash {
    let number = |name: &str| op.attr(name).int().unsigned_abs();
    Hash {
        end: number("eos") as u32,
        multipliers: ["m0", "m1", "m2", "m3"].map(number),
        modulus: number("modulus") as u32,
        offset: number("offset") as u32,
    }
}

/// Returns an integer attribute. A value beyond `i64` becomes `i64::MAX`. No type rule accepts this
/// number, so the value stays an error.
pub(super) fn int(value: u64) -> Attr {
    Attr::Int(i64::try_from(value).unwrap_or(i64::MAX))
}
