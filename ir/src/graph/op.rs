//! The graph op table, which declares every op once. The enum, parser, printer, operand and
//! attribute checks, typed views ([`super::view`]) and the op reference are derived from it. The
//! type rules (`types.rs`) and the interpreter (`interpret.rs`, the definition of every op) match
//! on [`OpKind`] without a `_` arm. The folders `types/` and `interpret/` each have a file for each
//! family of ops.
//!
//! To add an op, add its row here, its type rule in a file of `types/`, and its definition in the
//! file of `interpret/` with the same name. Then add its lowering in the `schedule` pass, or a
//! rewrite that removes the op before this pass.
//!
//! An elementwise function of one operand needs only a row here, among the [`Unary`] ops, and a
//! kernel (`passes/src/schedule/lower/rows.rs`). All [`Unary`] ops share the type rule,
//! interpreter, random graphs and costs. An op that changes a state token by token has its row
//! among the [`Recurrent`] ops, and its own file in [`super::recurrent`].

use serde::{Deserialize, Serialize};

use crate::erf::erf;

use super::attr::Attr;
use super::attrs::{Activation, KeyHeads, Prefetch, RopeScaling, RopeStyle, RouteScore};

/// Kind of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandKind {
    /// A value.
    Value,
    /// A weight.
    Weight,
    /// A state.
    State,
    /// A value, or [`Absent`](super::Operand::Absent).
    OptValue,
    /// A weight, or [`Absent`](super::Operand::Absent).
    OptWeight,
}

/// Kind of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrKind {
    /// An integer.
    Int,
    /// An integer that IR text omits if it is 0.
    OptInt,
    /// A 32-bit float.
    Float,
    /// A 32-bit float that IR text omits if it is 0.
    OptFloat,
    /// `true` or `false`.
    Bool,
    /// One of the listed words.
    Word(&'static [&'static str]),
    /// A block format's name.
    Format,
}

/// An operand in the op table.
#[derive(Clone, Copy, Debug)]
pub struct OperandRow {
    /// Name, for documentation and [`super::Op::operand`].
    pub name: &'static str,
    /// Kind of operand that the op accepts.
    pub kind: OperandKind,
}

/// An attribute in the op table.
#[derive(Clone, Copy, Debug)]
pub struct AttrRow {
    /// Name in IR text.
    pub name: &'static str,
    /// Kind of value that the attribute has.
    pub kind: AttrKind,
}

impl AttrRow {
    /// Returns the value of the attribute if IR text omits it, or `None` if text must have it.
    pub fn absent(&self) -> Option<Attr> {
        match self.kind {
            AttrKind::OptInt => Some(Attr::Int(0)),
            AttrKind::OptFloat => Some(Attr::Float(0.0)),
            AttrKind::Int | AttrKind::Float | AttrKind::Bool | AttrKind::Word(_) | AttrKind::Format => None,
        }
    }
}

/// Effect of an op, which limits what passes may do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// No effect: the results depend only on the operands. Passes may rewrite, merge and drop the
    /// op.
    Pure,
    /// Access to the object of a token, which the op takes and returns. Passes must not move or
    /// drop the op.
    State,
}

/// One row of the op table.
#[derive(Clone, Copy, Debug)]
pub struct OpRow {
    /// The op that this row declares.
    pub kind: OpKind,
    /// Mnemonic in IR text.
    pub mnemonic: &'static str,
    /// Operands of the op, in order.
    pub operands: &'static [OperandRow],
    /// Attributes of the op, in order.
    pub attrs: &'static [AttrRow],
    /// Number of results.
    pub results: usize,
    /// Effect of the op.
    pub effect: Effect,
    /// Documentation of the op in one line.
    pub doc: &'static str,
}

macro_rules! op_table {
    (
        $($variant:ident $mnemonic:literal ($($operand:ident: $okind:ident),*) {$($attr:ident: $akind:ident),*} -> $results:literal $effect:ident, $doc:literal;)*
        @unary {
            $($unary:ident $unary_mnemonic:literal {$($unary_attr:ident: $unary_akind:ident),*} |$x:ident| $function:expr, $unary_doc:literal;)*
        }
        @recurrent {
            $($recurrent:ident $recurrent_mnemonic:literal ($($recurrent_operand:ident: $recurrent_okind:ident),*) {$($recurrent_attr:ident: $recurrent_akind:ident),*} $recurrent_doc:literal;)*
        }
        $($later:ident $later_mnemonic:literal ($($later_operand:ident: $later_okind:ident),*) {$($later_attr:ident: $later_akind:ident),*} -> $later_results:literal $later_effect:ident, $later_doc:literal;)*
    ) => {
        /// A graph op.
        // Texts in the table contain shapes such as `[T]`, which are not links.
        #[allow(rustdoc::broken_intra_doc_links)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum OpKind {
            $(#[doc = $doc] $variant,)*
            /// An elementwise function of one operand `x`.
            Unary(Unary),
            /// An op that changes a `recurrent` state token by token.
            Recurrent(Recurrent),
            $(#[doc = $later_doc] $later,)*
        }

        /// A function that is applied to every element of an f32 tensor `x` of any shape.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Unary { $(#[doc = $unary_doc] $unary),* }

        /// An op whose first operand is the token of a `recurrent` state. It returns rows and the
        /// next token. See [`super::recurrent`].
        // Texts in the table contain shapes such as `[T]`, which are not links.
        #[allow(rustdoc::broken_intra_doc_links)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Recurrent { $(#[doc = $recurrent_doc] $recurrent),* }

        /// The op table, in the order of [`OpKind`].
        pub static OPS: &[OpRow] = &[
            $(OpRow {
                kind: OpKind::$variant, mnemonic: $mnemonic,
                operands: &[$(OperandRow { name: stringify!($operand), kind: OperandKind::$okind }),*],
                attrs: &[$(AttrRow { name: stringify!($attr), kind: $akind }),*],
                results: $results, effect: Effect::$effect, doc: $doc,
            },)*
            $(OpRow {
                kind: OpKind::Unary(Unary::$unary), mnemonic: $unary_mnemonic,
                operands: &[OperandRow { name: "x", kind: OperandKind::Value }],
                attrs: &[$(AttrRow { name: stringify!($unary_attr), kind: $unary_akind }),*],
                results: 1, effect: Effect::Pure, doc: $unary_doc,
            },)*
            $(OpRow {
                kind: OpKind::Recurrent(Recurrent::$recurrent), mnemonic: $recurrent_mnemonic,
                operands: &[
                    OperandRow { name: "state", kind: OperandKind::Value },
                    $(OperandRow { name: stringify!($recurrent_operand), kind: OperandKind::$recurrent_okind }),*
                ],
                attrs: &[$(AttrRow { name: stringify!($recurrent_attr), kind: $recurrent_akind }),*],
                results: 2, effect: Effect::State, doc: $recurrent_doc,
            },)*
            $(OpRow {
                kind: OpKind::$later, mnemonic: $later_mnemonic,
                operands: &[$(OperandRow { name: stringify!($later_operand), kind: OperandKind::$later_okind }),*],
                attrs: &[$(AttrRow { name: stringify!($later_attr), kind: $later_akind }),*],
                results: $later_results, effect: Effect::$later_effect, doc: $later_doc,
            },)*
        ];

        impl OpKind {
            /// Returns the index of the op's row in [`OPS`].
            fn place(self) -> usize {
                enum Place { $($variant,)* $($unary,)* $($recurrent,)* $($later,)* }
                match self {
                    $(OpKind::$variant => Place::$variant as usize,)*
                    $(OpKind::Unary(Unary::$unary) => Place::$unary as usize,)*
                    $(OpKind::Recurrent(Recurrent::$recurrent) => Place::$recurrent as usize,)*
                    $(OpKind::$later => Place::$later as usize,)*
                }
            }
        }

        impl Unary {
            /// Applies the function to an element in f64, and rounds the result to f32. `attrs` are
            /// the attributes of the op.
            pub fn apply(self, x: f32, attrs: &[Attr]) -> f32 {
                match self {
                    $(Unary::$unary => {
                        let [$($unary_attr),*] = attrs else { unreachable!("the op table says how many attributes there are") };
                        let $x = f64::from(x);
                        ($function) as f32
                    })*
                }
            }
        }
    };
}

const INT: AttrKind = AttrKind::Int;
const OPT_INT: AttrKind = AttrKind::OptInt;
const FLOAT: AttrKind = AttrKind::Float;
const OPT_FLOAT: AttrKind = AttrKind::OptFloat;
const BOOL: AttrKind = AttrKind::Bool;
const FORMAT: AttrKind = AttrKind::Format;
const STYLE: AttrKind = AttrKind::Word(RopeStyle::WORDS);
const SCALING: AttrKind = AttrKind::Word(RopeScaling::WORDS);
const SCORE: AttrKind = AttrKind::Word(RouteScore::WORDS);
const ACT: AttrKind = AttrKind::Word(Activation::WORDS);
const KEYS: AttrKind = AttrKind::Word(KeyHeads::WORDS);
const WHEN: AttrKind = AttrKind::Word(Prefetch::WORDS);

/// Rows of the op table, as the argument of the macro `$build`. This file and `view.rs` use the
/// macro.
macro_rules! graph_ops {
    ($build:ident) => {
        $build! {
            // Ops that frontends write. `T` is any number of rows; k, n and d are fixed numbers.
            Embed "embed" (ids: Value, table: Weight) {} -> 1 Pure, "Looks up the rows of `table` [n, d] with the numbers ids i32[T]: f32[T, d].";
            Dequantise "dequantise" (w: Weight) {} -> 1 Pure, "Converts a weight to f32 of the same shape.";
            Matmul "matmul" (x: Value, w: Value) {} -> 1 Pure, "Multiplies x f32[..., k] by the transpose of w f32[n, k]: f32[..., n].";
            Add "add" (a: Value, b: Value) {} -> 1 Pure, "Elementwise sum of two f32 tensors of the same shape.";
            AddBias "add_bias" (x: Value, bias: Weight) {} -> 1 Pure, "Adds the vector `bias` [n] to every row of f32[..., n].";
            Mul "mul" (a: Value, b: Value) {} -> 1 Pure, "Elementwise product of two f32 tensors of the same shape.";
            Gated "gated" (gate: Value, up: Value) {act: ACT, limit: FLOAT, shift: FLOAT, bend: OPT_FLOAT} -> 1 Pure, "Gated linear unit, elementwise: act(min(gate, limit)) * (clamp(up, -limit, limit) + shift). A limit of 0 means no limit. limited_silu limits the result of the activation instead of its input: min(act(gate), limit). bent_silu does not limit its input; its activation is bend * tanh(gate / bend) / (1 + exp(-gate)), and limit * tanh(up / limit) replaces the clamp.";
            ScaleHeads "scale_heads" (x: Value, s: Value, residual: OptValue) {} -> 1 Pure, "Multiplies head i of each row of x f32[T, h * d] by element i of the row of s f32[T, h], then adds residual f32[T, h * d] if given.";
            @unary {
                Silu "silu" {} |x| x / (1.0 + (-x).exp()), "x / (1 + exp(-x)), elementwise.";
                Sigmoid "sigmoid" {} |x| 1.0 / (1.0 + (-x).exp()), "1 / (1 + exp(-x)), elementwise.";
                Scale "scale" {factor: FLOAT} |x| factor.float() * x, "factor * x, elementwise.";
                Softcap "softcap" {cap: FLOAT} |x| cap.float() * (x / cap.float()).tanh(), "cap * tanh(x / cap), elementwise: a smooth limit of x to -cap..cap.";
                ReluSquared "relu_squared" {} |x| x.max(0.0) * x.max(0.0), "max(x, 0)^2, elementwise.";
                Softplus "softplus" {} |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), "ln(1 + exp(x)), elementwise.";
                SignedRoot "signed_root" {} |x| if x == 0.0 { 0.0 } else { x.abs().max(1e-6).sqrt().copysign(x) }, "sqrt(max(|x|, 1e-6)) with the sign of x, elementwise; 0 for x = 0.";
                Gelu "gelu" {} |x| x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()), "x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), elementwise.";
                Relu "relu" {from: FLOAT} |x| (x - from.float()).max(0.0), "max(x - from, 0), elementwise.";
                Xielu "xielu" {alpha_n: FLOAT, alpha_p: FLOAT, beta: FLOAT, eps: FLOAT} |x| if x > 0.0 { x * (alpha_p.float() * x + beta.float()) } else { alpha_n.float() * (x.min(eps.float()).exp_m1() - x) + beta.float() * x }, "xIELU (arXiv 2411.13010), elementwise: alpha_p * x^2 + beta * x for x above 0, else alpha_n * (exp(min(x, eps)) - 1 - x) + beta * x.";
                Clamp "clamp" {limit: FLOAT} |x| x.max(-limit.float()).min(limit.float()), "min(max(x, -limit), limit), elementwise.";
                GeluErf "gelu_erf" {} |x| x / 2.0 * (1.0 + erf(x / std::f64::consts::SQRT_2)), "x / 2 * (1 + erf(x / sqrt(2))), elementwise: the exact GELU, which `gelu` approximates.";
                Exp "exp" {} |x| x.exp(), "exp(x), elementwise. Kernels clamp x to -87.3..88.";
            }
            // The first operand of each recurrent op is the token of its state, which the table
            // omits. Its results are rows and the next token.
            @recurrent {
                DeltaNet "delta_net" (q: Value, k: Value, v: Value, alpha: Value, beta: Value, a: Weight, dt: Weight) {keys: KEYS, eps: FLOAT, bound: FLOAT, rate: OPT_FLOAT} "Linear attention by the gated delta rule: q and k f32[T, g, dk], v f32[T, h, dv], result f32[T, h, dv]. The state is f32[h, dk, dv]. The decay is exp(a * softplus(alpha + dt)), or exp(bound * sigmoid(|a| * (alpha + dt))) if bound is not 0, with a [h]. It is one number for each head (alpha f32[T, h], dt [h]) or for each element of a key (alpha f32[T, h, dk], dt [h * dk]). The rate of an update is sigmoid(beta), with beta f32[T, h], times `rate` if that is not 0. Value head i uses key head i / (h / g) (grouped) or i mod g (interleaved).";
                ShortConv "short_conv" (x: Value, w: Weight) {dilation: INT} "Causal convolution of each channel of x f32[T, c] with its k taps w [c, k]: f32[T, c]. The last tap is for the token's own row; each tap before it is for a row `dilation` tokens earlier. The state f32[(k - 1) * dilation, c] holds the previous rows.";
                Compress "compress" (kv: Value, gate: Value, pos: Value, ape: Weight) {every: INT, overlap: BOOL} "Compresses each run of `every` positions to one row: the weighted mean of their rows of kv f32[T, d]. Each element has its own weights. They are a softmax over the run's positions of gate f32[T, d] plus the position's row of ape [every, d]. A token gets the mean over its run so far, which is complete at the run's last position: f32[T, d]. With `overlap` kv and gate are f32[T, 2 * d] and ape is [every, 2 * d]. The mean is then over the first halves of the previous run and the second halves of the token's own run. The state holds maxima, sums of weights and weighted sums: f32[3, d], or f32[6, d] with `overlap`.";
                SsmScan "ssm_scan" (x: Value, b: Value, c: Value, dt: Value, a: Weight, bias: Weight, d: Weight) {} "Selective state space: x f32[T, h, p], b and c f32[T, g, s], dt f32[T, h], bias and d [h], result f32[T, h, p]. The state is f32[h, s, p]. With a [h] each head has one decay (Mamba-2). With a [h, s], where p is 1, each element of the state has its own (Mamba-1). The heads form g equal groups of consecutive heads; each group has its own b and c.";
                Wkv "wkv" (q: Value, k: Value, v: Value, decay: Value, find: OptValue, remove: OptValue) {before: BOOL, filled: BOOL} "Linear attention of RWKV, with a decay for each token and element of a key: f32[T, h, dv]. Operands: q, decay, find and remove f32[T, h, d], k f32[T, g, d], v f32[T, g, dv]. Each head of k and v serves h / g consecutive heads of q. The state f32[h, d, dv] is a matrix M for each head. A token updates it to M' = decay * M - remove (find . M) + k v. Without `find` there is no second term. With `filled` k is first multiplied by 1 - decay. The result is q . M', or q . M with `before`.";
            }
            RmsNorm "rms_norm" (x: Value, w: OptWeight) {eps: FLOAT} -> 1 Pure, "x * w / sqrt(mean(x^2) + eps) along the last dimension. w is [d], or [h, d] for x f32[T, h, d]; without w it counts as 1.";
            SplitHeads "split_heads" (x: Value) {heads: INT} -> 1 Pure, "Reshapes f32[T, heads * d] to f32[T, heads, d].";
            MergeHeads "merge_heads" (x: Value) {} -> 1 Pure, "Reshapes f32[T, h, d] to f32[T, h * d].";
            Slice "slice" (x: Value) {from: INT, count: INT} -> 1 Pure, "Takes `count` elements of each row of f32[..., d], starting at element `from`: f32[..., count].";
            Concat "concat" (a: Value, b: Value) {} -> 1 Pure, "Concatenates each row of a f32[..., m] and the row of b f32[..., n]: f32[..., m + n].";
            Rope "rope" (x: Value, pos: Value, factors: OptWeight, long: OptWeight) {base: FLOAT, dims: INT, style: STYLE, scaling: SCALING, factor: FLOAT, original_context: INT, beta_fast: FLOAT, beta_slow: FLOAT, attn_factor: FLOAT} -> 1 Pure, "Rotary position embedding: rotates the first `dims` elements of each head of x f32[T, h, d] by angles proportional to the row's position. Elements are rotated in pairs, which are adjacent (norm) or dims / 2 apart (neox). The frequencies are divided by `factors` [dims / 2], or by `long` if the context is longer than original_context.";
            Temperature "temperature" (x: Value, pos: Value) {scale: FLOAT, length: INT, offset: INT} -> 1 Pure, "Multiplies each row of x f32[T, ...] by 1 + scale * ln(1 + floor((pos + offset) / length)). This sharpens attention of queries at high positions.";
            HeadsTemperature "heads.temperature" (x: Value, pos: Value, scales: Weight, biases: Weight) {} -> 1 Pure, "Multiplies head i of x f32[T, h, d] by biases[i] + scales[i] * ln(1 + pos), with biases and scales [h]. This sharpens attention of queries at high positions, by head.";
            Centre "centre" (x: Value) {} -> 1 Pure, "x - mean(x) along the last dimension. A layer norm is `centre`, then `rms_norm`.";
            HeadsSum "heads.sum" (x: Value) {} -> 1 Pure, "Sums the elements of each head of x f32[T, h, d]: f32[T, h].";
            Ngram "ngram" (tokens: Value, ids: Value) {eos: INT, m0: INT, m1: INT, m2: INT, m3: INT, modulus: INT, offset: INT} -> 2 State, "Row numbers i32[T] of an n-gram embedding table for ids i32[T]: a hash of each token's id and the three ids before it. The row is (id * m0 ^ (id before) * m1 ^ ...) mod `modulus`, plus `offset`; ^ is exclusive or. An earlier id `eos`, all ids before it, and those before the first token count as `eos`. Only `embed` may use the result. The `recurrent` state f32[1, 3] holds the previous three ids plus 1, or 0 for an absent one.";
            StateBegin "state.begin" (state: State) {} -> 1 State, "First token of a state in a step: the state is as the previous step left it. A function has at most one for each state.";
            KvAppend "kv.append" (kv: Value, k: Value, v: Value, pos: Value) {} -> 1 State, "Writes keys f32[T, h, d] and values f32[T, h, dv] to a `paged` state at positions i32[T].";
            IndexTopK "index.top_k" (q: Value, w: OptValue, kv: Value, pos: Value) {top_k: INT, entries: BOOL, block: OPT_INT, local: OPT_INT} -> 2 State, "Selects for each row the top_k positions up to its own with the highest scores, in rising order, then -1 if there are fewer: i32[T, top_k]. The score of position j is the sum over heads of w * max(q . k[j], 0). Queries q are f32[T, h, d], weights w f32[T, h], and the keys k are those of a `paged` state with one key head. Of equal scores the first position wins. If n positions share a key, the op selects top_k / n complete runs of n positions, and adds the positions after the last complete run: i32[T, top_k + n - 1]. With `entries` it selects top_k complete entries of the state, each shared by several positions: i32[T, top_k]. Only `attention.entries` may use such entries; only `attention` may use positions. Without w each head selects top_k / block blocks of `block` positions. These are the `local` last blocks, its own included, and those of the others with the highest q . k[j] of any position (the first of equal ones). The result is the positions of these blocks up to the row's own, in rising order, then -1: i32[T, h, top_k].";
            Attention "attention" (q: Value, kv: Value, pos: Value, sinks: OptWeight, chosen: OptValue) {scale: FLOAT, cap: FLOAT, max_bias: OPT_FLOAT, slope: OPT_FLOAT, reach: OPT_INT} -> 2 State, "Causal attention of queries q f32[T, h, d] at positions i32[T] over a `paged` state: f32[T, h, dv]. Each key head serves the same number of consecutive query heads. Scores are scale * q . k, limited as by `softcap` if cap is not 0. If max_bias is not 0 (ALiBi), slope times distance is subtracted from each score. Let n be the largest power of two up to h. The slope of head i is 2^(-max_bias * (i + 1) / n) if i is below n, else 2^(-max_bias * (2 * (i - n) + 1) / (2 * n)). It is multiplied by `slope` if that is not 0. sinks [h] adds one score without a value to the softmax of each head. With chosen i32[T, n] a row sees only the positions listed for it; with chosen i32[T, hk, n] each of the hk key heads has its own list. If reach is not 0, attention is not causal: a row sees up to `reach` positions before and after its own. The step must then contain the whole text.";
            HeadsMatmul "heads.matmul" (x: Value, w: Value) {} -> 1 Pure, "Multiplies each head of x f32[T, h, k] by the transpose of its own matrix of w f32[h, n, k]: f32[T, h, n].";
            Route "route" (logits: Value, bias: OptWeight, scales: OptWeight) {top_k: INT, score: SCORE, groups: INT, groups_kept: INT, normalise: BOOL, scale: FLOAT, group_best: OPT_INT} -> 2 Pure, "Selects the top_k experts of each row of logits f32[T, e] by score plus bias [e]: ids i32[T, k] and weights f32[T, k]. They are in falling order; of equal ones the lowest id comes first. Only the experts of the groups_kept best of `groups` equal groups take part. The rank of a group is the sum of its two highest scores, or its highest score if group_best is 1. The weights are the scores without bias, divided by their sum if `normalise`, times `scale`, and times the expert's element of scales [e] if given. The scores are a softmax over all experts (softmax), the sigmoid of each logit (sigmoid), or the square root of its softplus (root_softplus). For `chosen` and `sparse_mixer` the scores are the logits, but the weights are a softmax: over the selected experts (chosen), or over the experts not yet selected with nearly the same logit (sparse_mixer).";
            ExpertMatmul "expert.matmul" (x: Value, ids: Value, w: Value) {} -> 1 Pure, "For row t and slot j: multiplies x[t] of f32[T, k], or x[t, j] of f32[T, s, k], by the transpose of matrix ids[t, j] of w f32[e, n, k]: f32[T, s, n].";
            ExpertAddBias "expert.add_bias" (y: Value, ids: Value, bias: Weight) {} -> 1 Pure, "For row t and slot j: adds row ids[t, j] of bias [e, n] to y[t, j] of f32[T, s, n]: f32[T, s, n].";
            ExpertScale "expert.scale" (y: Value, ids: Value, s: Weight) {} -> 1 Pure, "For row t and slot j: multiplies y[t, j] of f32[T, k, n] by element ids[t, j] of s [e]: f32[T, k, n].";
            ExpertCombine "expert.combine" (y: Value, p: Value) {} -> 1 Pure, "Sums p[t, j] * y[t, j] over the slots j: f32[T, n]. A slot of weight 0 adds nothing, even if its row holds infinity or NaN.";
            Positions "positions" (pos: Value) {every: INT, back: BOOL} -> 1 Pure, "Positions to rotate by, from positions i32[T]: each is rounded down to a multiple of `every`, and negated if `back`: i32[T].";
            Ends "ends" (pos: Value) {} -> 1 Pure, "For each of the positions i32[T] of a step's rows: the position of the last row of the same sequence in this step: i32[T]. `attention` at these positions is not causal: each row sees its whole text, which must be in one step. All rows of a function belong to one sequence.";
            AttentionEntries "attention.entries" (q: Value, kv: Value, entries: Value, pos: Value, sinks: OptWeight, chosen: OptValue) {scale: FLOAT} -> 3 State, "`attention` of queries q f32[T, h, d] at positions i32[T] over two `paged` states of the same shape in one softmax: f32[T, h, dv]. In the second, `entries`, several positions share an entry; a row sees the entries that are complete at its position. With chosen i32[T, n] it sees only those of them that are listed.";
            RouteListed "route.listed" (logits: Value, ids: Value, table: Weight) {score: SCORE, normalise: BOOL, scale: FLOAT} -> 2 Pure, "Reads the experts of each row from `table` by ids i32[T], and computes weights from logits f32[T, e] as `route` does: ids i32[T, k] and weights f32[T, k]. The bytes of the f32 table [n, k] are i32 numbers; a number out of range counts as the nearest expert.";
            RouteGiven "route.given" (ids: Value, p: Value) {experts: INT} -> 2 Pure, "A routing that arrives with the rows, as `route` gives it: ids i32[T, k] below `experts` and weights f32[T, k]. An id of -1 means that no expert here is used: it becomes the row's first other id, or 0, with a weight of 0.";
            RouteIdentities "route.identities" (ids: Value, p: Value) {experts: INT} -> 3 Pure, "Splits a routing, ids i32[T, k] and weights f32[T, k], into experts with matrices (ids below `experts`) and identity experts, which return their input. Results: ids i32[T, k] and weights f32[T, k] of the former, and the sum of the weights of the latter, f32[T, 1]. A slot of an identity expert gets the row's first id below `experts`, or 0, and a weight of 0, so that nothing is computed for it.";
            ExpertGroups "expert.groups" (ids: Value) {size: INT} -> 1 Pure, "Maps expert ids i32[T, k] to their groups: each id divided by `size`, a power of two, rounded down: i32[T, k]. These ids select matrices that a group of experts shares.";
            StreamWeights "stream.weights" (x: Value, scale: Weight, base: Weight) {streams: INT, iterations: INT, eps: FLOAT, magnitude: FLOAT} -> 1 Pure, "Mixing weights of n residual streams (manifold-constrained hyper-connections), from x f32[T, (2 + n) * n]. Each of the three parts of a row is multiplied by its element of scale [3]; then base is added. The first n results are weights of a block's input: sigmoid plus eps. The next n are weights of its output: `magnitude` times sigmoid. The others are a matrix [n, n]: the softmax of each row plus eps, whose columns, then `iterations` - 1 times its rows and columns, are divided by their sums plus eps. From x f32[T, n], with scale [1], there are only input weights. From x f32[T, 2 * n], with scale [2], there is no matrix, and eps is also added to output weights (independent hyper-connections).";
            StreamInput "stream.input" (x: Value, w: Value) {} -> 1 Pure, "Input of a block: the weighted sum of streams x f32[T, n, d], by the first n elements of each row of w f32[T, m] from `stream.weights`: f32[T, d].";
            StreamMix "stream.mix" (x: Value, y: Value, w: Value) {} -> 1 Pure, "Streams after a block with output y f32[T, d], from the streams x f32[T, n, d] before it: f32[T, n, d]. With w f32[T, (2 + n) * n] from `stream.weights`, stream k is w[n + k] * y plus the sum over j of w[(2 + j) * n + k] * x[j]. With w f32[T, 2 * n] it is w[n + k] * y + x[k].";
            StreamAttend "stream.attend" (x: Value, y: Value, w: Weight) {eps: FLOAT} -> 1 Pure, "Attention residuals: the weighted sum of streams x f32[T, n, d] and y f32[T, d]: f32[T, d]. The weights are a softmax over the dot products of w [d] with the `rms_norm` of each stream and of y.";
            TakeRows "take_rows" (x: Value, rows: Value) {} -> 1 Pure, "Takes the rows of x f32[T, d] with the numbers i32[L]: f32[L, d].";
            // Ops that the `fuse` pass creates. They read weights in their quantised format, and
            // activations are quantised once for several products.
            Quantise "quantise" (x: Value) {format: FORMAT} -> 1 Pure, "Converts f32[..., d] to an activation format; the format f32 changes nothing.";
            RmsNormQuantise "rms_norm.quantise" (x: Value, w: OptWeight) {eps: FLOAT, format: FORMAT} -> 1 Pure, "`rms_norm`, then `quantise`.";
            Linear "linear" (x: Value, w: Weight, bias: OptWeight, residual: OptValue) {} -> 1 Pure, "Multiplies x[T, k], in the activation format of w, by the transpose of w [n, k]; adds bias [n] and residual f32[T, n] if given: f32[T, n].";
            LinearHeads "linear.heads" (x: Value, w: Weight) {} -> 1 Pure, "Multiplies each head of x[T, h, k], in the activation format of w, by the transpose of its own matrix of w [h, n, k]: f32[T, h, n].";
            LinearQkv "linear.qkv" (xq: Value, xk: Value, xv: Value, wq: Weight, wk: Weight, wv: Weight, bq: OptWeight, bk: OptWeight, bv: OptWeight) {} -> 3 Pure, "Three `linear` ops on the same rows. xq, xk and xv are these rows in the activation formats of wq, wk and wv.";
            LinearSwiglu "linear.swiglu" (x: Value, gate: Weight, up: Weight, gate_bias: OptWeight, up_bias: OptWeight) {act: ACT, limit: FLOAT, shift: FLOAT, bend: OPT_FLOAT, format: FORMAT} -> 1 Pure, "`gated` of x * gate' + gate_bias and x * up' + up_bias, with biases [n], quantised to `format`: format[T, n].";
            RopeHeads "rope.heads" (x: Value, pos: Value, norm: OptWeight, factors: OptWeight, long: OptWeight) {heads: INT, eps: FLOAT, base: FLOAT, dims: INT, style: STYLE, scaling: SCALING, factor: FLOAT, original_context: INT, beta_fast: FLOAT, beta_slow: FLOAT, attn_factor: FLOAT} -> 1 Pure, "`split_heads` of f32[T, heads * d], then `rms_norm` if norm is given, then `rope`: f32[T, heads, d].";
            RopeAppend "rope.append" (kv: Value, k: Value, v: Value, pos: Value, norm: OptWeight, factors: OptWeight, long: OptWeight) {heads: INT, eps: FLOAT, base: FLOAT, dims: INT, style: STYLE, scaling: SCALING, factor: FLOAT, original_context: INT, beta_fast: FLOAT, beta_slow: FLOAT, attn_factor: FLOAT} -> 1 State, "`rope.heads` of k f32[T, heads * d], then `kv.append` of the result and v f32[T, heads * dv].";
            ExpertSwiglu "expert.swiglu" (x: Value, ids: Value, gate: Weight, up: Weight, gate_bias: OptWeight, up_bias: OptWeight) {act: ACT, limit: FLOAT, shift: FLOAT, bend: OPT_FLOAT, format: FORMAT} -> 1 Pure, "`linear.swiglu` with the matrices and biases [e, n] of the experts ids [T, s]: format[T, s, n].";
            ExpertDown "expert.down" (x: Value, ids: Value, p: Value, w: Weight, bias: OptWeight, residual: OptValue) {} -> 1 Pure, "Multiplies x[T, s, k] by the transposed matrices of the experts ids [T, s] in w [e, n, k] and adds their bias [e, n] if given. Then sums the slots with weights p [T, s] and adds residual f32[T, n] if given: f32[T, n].";
            // Ops that the `observe` pass creates.
            ColumnSquares "column.squares" (sums: Value, x: Value, ids: OptValue) {} -> 1 State, "Adds the squares of each column of x[T, k] (f32 or an activation format) to a `recurrent` state f32[1, k + 1], whose last column counts rows. With ids i32[T, s] of e experts the state is f32[e, k + 1]. Row t of x[T, k], or row [t, j] of x[T, s, k], then counts for the experts ids[t, j].";
            // Ops that the `defer` pass creates.
            ExpertSplit "expert.split" (ids: Value, p: Value) {now: INT} -> 4 Pure, "Splits a routing, ids i32[T, s] and weights f32[T, s], after the first `now` slots. The results are i32[T, now], f32[T, now], i32[T, s - now] and f32[T, s - now]. If the routing is from `route`, the latter slots have the lowest weights.";
            // Ops that the `residency` pass creates if the experts do not all fit in memory. They
            // load experts and compute nothing.
            ExpertSlots "expert.slots" () {} -> 1 State, "First token of the memory for loaded experts in a step. A function has at most one.";
            ExpertPrefetch "expert.prefetch" (slots: Value, ids: Value, gate: OptWeight, up: Weight, down: Weight) {layer: INT, when: WHEN} -> 1 State, "Starts to load the experts ids [T, s] of a layer: their matrices up [e, n, k], down [e, d, n] and, if given, gate. They are needed (routed), or probably needed soon (predicted).";
            ExpertWait "expert.wait" (slots: Value, ids: Value) {layer: INT} -> 2 State, "Waits until the experts of the layer's routed prefetch are in memory, and returns ids [T, s] unchanged. Ops that read these experts use the returned ids.";
            ExpertEvict "expert.evict" (slots: Value, after: Value) {layer: INT} -> 1 State, "Allows eviction of a layer's experts once `after`, an f32 value computed with them, is complete.";
            // Ops that the `shard` pass creates when it divides a model among ranks.
            RanksBegin "ranks.begin" () {rank: INT, ranks: INT} -> 1 State, "First token of a group of `ranks` ranks in a step; this graph is of rank `rank`, from 0. A function has at most one. The type token[rank, ranks] has both numbers. Tokens give the order of the group's collectives, which must match on all ranks.";
            AllReduce "all_reduce" (group: Value, x: Value) {} -> 2 State, "Sums x f32[...] over all ranks, on every rank: f32[...]. Element by element, the sum begins with the element of rank 0 and adds those of ranks 1, 2, ... in this order. Each sum is rounded to f32, so all transports give the same bits.";
            AllGather "all_gather" (group: Value, x: Value) {} -> 2 State, "Concatenates each row of x f32[..., d] of all ranks, in their order, on every rank: f32[..., ranks * d].";
            Send "send" (group: Value, x: Value) {to: INT} -> 1 State, "Sends x f32[T, d] to the rank `to`, which receives it with `recv`.";
            Recv "recv" (group: Value, rows: Value) {from: INT, width: INT} -> 2 State, "Receives f32[T, width] from the rank `from`, which sends it with `send`. Only the dimension of `rows` i32[T] matters, not its numbers.";
            RouteOwned "route.owned" (ids: Value, p: Value) {first: INT, experts: INT} -> 2 Pure, "Keeps of a routing, ids i32[T, k] and weights f32[T, k], the experts first..first + experts of this rank. Results: ids relative to `first`, i32[T, k], and weights f32[T, k]. A slot of another expert gets the row's first own id, or 0, and a weight of 0, so that nothing is computed for it.";
        }
    };
}

pub(super) use graph_ops;

graph_ops!(op_table);

impl OpKind {
    /// Returns the row of the op table that declares this op.
    pub fn row(self) -> &'static OpRow {
        &OPS[self.place()]
    }

    /// Returns the op with this mnemonic, or `None`.
    pub fn from_mnemonic(mnemonic: &str) -> Option<OpKind> {
        OPS.iter().find(|row| row.mnemonic == mnemonic).map(|row| row.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_matches_the_enum_and_mnemonics_are_unique() {
        for (i, row) in OPS.iter().enumerate() {
            assert_eq!(row.kind.place(), i, "{}", row.mnemonic);
            assert_eq!(OpKind::from_mnemonic(row.mnemonic), Some(row.kind));
        }
    }
}
