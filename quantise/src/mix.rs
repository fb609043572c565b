//! Mixes, which determine the format of each tensor of a quantised model. They have the names and
//! rules of llama-quantize.
//!
//! ```text
//! Q4_K_M   blk.*.attn_v, blk.*.ffn_down   q6_k in the first and last eighth of the layers,
//!                                         and in every third layer between
//!          output                         q6_k
//!          all other matrices             q4_k
//! ```
//!
//! A row of the table lists a mix's exceptions as rules for roles of matrices. The first rule whose
//! condition holds is used. To add a mix, add a row.

use std::collections::HashMap;

use ixc_ir::format::Format;

/// Role of a matrix in the model, determined from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixRole {
    /// Embedding of the tokens (`token_embd`).
    Embedding,
    /// Output matrix. It is the embedding if the model uses that as its output matrix.
    Head,
    /// Weights of queries (`attn_q`).
    Query,
    /// Weights of keys (`attn_k`).
    Key,
    /// Weights of values, or their source (`attn_kv_b`), or queries, keys and values in one matrix.
    Value,
    /// Output projection of attention.
    Output,
    /// Gate of a feed-forward network or of experts.
    Gate,
    /// Up projection of a feed-forward network.
    Up,
    /// Down projection of a feed-forward network.
    Down,
    /// Any tensor without one of these roles.
    Other,
}

/// Parts of tensor names that identify a role. The search follows their order.
const NAMES: [(&str, MatrixRole); 9] = [
    ("attn_qkv.weight", MatrixRole::Value),
    ("attn_kv_b.weight", MatrixRole::Value),
    ("attn_v.weight", MatrixRole::Value),
    ("attn_k.weight", MatrixRole::Key),
    ("attn_q.weight", MatrixRole::Query),
    ("attn_output.weight", MatrixRole::Output),
    ("ffn_up", MatrixRole::Up),
    ("ffn_gate", MatrixRole::Gate),
    ("ffn_down", MatrixRole::Down),
];

/// Name of the output matrix.
const HEAD: &str = "output.weight";
/// Names of the embedding tables.
const EMBEDDINGS: [&str; 2] = ["token_embd.weight", "per_layer_token_embd.weight"];

/// Parts of the names of matrices that stay unchanged. These are routers, convolutions, tables, and
/// matrices that are too small to matter.
const UNCHANGED: [&str; 13] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "position_embd",
    "token_types.weight",
    "attn_rel_b.weight",
];

impl MatrixRole {
    /// Returns the role of a tensor. `is_tied` is set if the embedding is also the output matrix.
    pub fn of_tensor(name: &str, is_tied: bool) -> MatrixRole {
        if name == HEAD || (is_tied && EMBEDDINGS.contains(&name)) {
            return MatrixRole::Head;
        }
        if EMBEDDINGS.contains(&name) {
            return MatrixRole::Embedding;
        }
        NAMES.iter().find(|(role, _)| name.contains(role)).map_or(MatrixRole::Other, |(_, role)| *role)
    }
}

/// Returns whether mixes change a tensor with this name and these dimensions. Trailing dimensions
/// of 1 do not count.
pub fn is_quantised(name: &str, dims: &[u64]) -> bool {
    let has_rows = dims.iter().skip(1).any(|dim| *dim > 1);
    has_rows && name.ends_with("weight") && !UNCHANGED.iter().any(|role| name.contains(role))
}

/// Counter that numbers the tensors of each role in llama-quantize's order. Tensors without a layer
/// come first, followed by those of each layer, sorted by name. Rules treat this number as the
/// layer. If only some layers have a tensor of the role, the number is less than the layer's index.
#[derive(Debug)]
pub struct Counter<'m> {
    numbers: HashMap<&'m str, usize>,
    values: usize,
}

impl<'m> Counter<'m> {
    /// Creates the counter. Each tensor name comes with whether a mix changes the tensor.
    pub fn new(tensors: impl Iterator<Item = (&'m str, bool)>) -> Counter<'m> {
        let mut tensors: Vec<_> = tensors.map(|(name, is_changed)| (layer(name), name, is_changed)).collect();
        tensors.sort_unstable();
        let (mut counts, mut numbers, mut values) = ([0; COUNTED_ROLES.len()], HashMap::new(), 0);
        for (_, name, is_changed) in tensors {
            let role = MatrixRole::of_tensor(name, false);
            values += usize::from(role == MatrixRole::Value);
            if let Some(at) = COUNTED_ROLES.iter().position(|counted| *counted == role).filter(|_| is_changed) {
                numbers.insert(name, counts[at]);
                counts[at] += 1;
            }
        }
        Counter { numbers, values }
    }

    /// Returns the number of a tensor among those of its role, or the index of its layer, followed
    /// by the number of layers. For values, the second number counts the tensors of the role.
    pub fn number(&self, mix: &Mix, name: &str, experts: u64, layers: usize) -> (usize, usize) {
        let own_layer = layer(name).unwrap_or(0);
        let number = self.numbers.get(name).copied().unwrap_or(own_layer);
        match MatrixRole::of_tensor(name, false) {
            MatrixRole::Value => (number, self.values),
            // Layers with experts may have several tensors of these roles, so the index of the
            // layer is used for them. Mixes without rules about experts use the number.
            MatrixRole::Down | MatrixRole::Gate | MatrixRole::Up if experts <= 1 || !mix.more_for_keys => {
                (number, layers)
            }
            _ => (own_layer, layers),
        }
    }
}

/// Roles whose tensors are numbered, because rules of mixes depend on their number.
const COUNTED_ROLES: [MatrixRole; 4] = [MatrixRole::Value, MatrixRole::Down, MatrixRole::Gate, MatrixRole::Up];

/// Returns the index of the layer in a tensor's name.
fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Condition under which a rule of a mix is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleCondition {
    /// The rule holds for all tensors.
    Always,
    /// The matrix is in the first or the last eighth of the layers, or in every third layer
    /// between.
    MoreBits,
    /// The layers are divided into this many equal parts, and the matrix is in the first part.
    First(usize),
    /// `First` holds, and no importance matrix is given.
    FirstWithout(usize),
    /// `First` holds, and an importance matrix is given.
    FirstWith(usize),
    /// The matrix is in one of the first layers, as many as this number.
    Layers(usize),
    /// Four or more query heads share a key head.
    Grouped,
    /// The matrix belongs to one of several experts.
    Experts,
    /// The model has eight experts, so its attention is small compared with them.
    FewExperts,
    /// `First` holds. In models with eight experts, the rule also holds if `MoreBits` does.
    FirstOrFewExperts(usize),
    /// Four or more query heads share a key head, or there are four or more experts.
    GroupedOrExperts,
    /// No importance matrix is given.
    Without,
    /// The matrix is in all but the first and the last eighth of the layers.
    Inner,
}

/// Properties of a tensor on which the conditions of rules depend.
#[derive(Clone, Copy, Debug)]
pub struct TensorPosition {
    /// Number of the tensor among the tensors of its role. It is usually the layer's index.
    pub layer: usize,
    /// Number of tensors of the role for values, and number of layers for other roles.
    pub layers: usize,
    /// Number of the model's layers.
    pub depth: usize,
    /// Number of query heads that share a key head.
    pub query_heads_per_key: u64,
    /// Number of experts in a layer.
    pub experts: u64,
    /// Whether an importance matrix is given.
    pub importance: bool,
    /// Whether the tensor has a matrix for each expert.
    pub is_per_expert: bool,
    /// Number of elements in a row.
    pub columns: u64,
}

impl RuleCondition {
    fn holds(self, position: &TensorPosition) -> bool {
        let &TensorPosition { layer, layers, .. } = position;
        match self {
            RuleCondition::Always => true,
            RuleCondition::MoreBits => !RuleCondition::Inner.holds(position) || (layer - layers / 8) % 3 == 2,
            RuleCondition::Inner => layer >= layers / 8 && layer < 7 * layers / 8,
            RuleCondition::First(parts) => layer < layers / parts,
            RuleCondition::FirstWithout(parts) => layer < layers / parts && !position.importance,
            RuleCondition::FirstWith(parts) => layer < layers / parts && position.importance,
            RuleCondition::Layers(count) => layer < count,
            RuleCondition::Grouped => position.query_heads_per_key >= 4,
            RuleCondition::Experts => position.is_per_expert,
            RuleCondition::FewExperts => position.experts == FEW_EXPERTS,
            RuleCondition::FirstOrFewExperts(parts) => {
                RuleCondition::First(parts).holds(position)
                    || RuleCondition::FewExperts.holds(position) && RuleCondition::MoreBits.holds(position)
            }
            RuleCondition::GroupedOrExperts => {
                RuleCondition::Grouped.holds(position) || position.experts >= SOME_EXPERTS
            }
            RuleCondition::Without => !position.importance,
        }
    }
}

/// Rule of a mix, which gives a role another format under a condition.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    role: MatrixRole,
    condition: RuleCondition,
    format: Format,
}

/// Mix of formats: a default format, and rules for exceptions.
#[derive(Debug)]
pub struct Mix {
    /// Name of the mix, such as `Q4_K_M`.
    pub name: &'static str,
    /// Value of `general.file_type` in files with this mix.
    pub file_type: u32,
    /// Format of all tensors to which no rule applies.
    pub format: Format,
    /// Format of the output matrix.
    head: Format,
    /// Rules for exceptions from the default format.
    rules: &'static [Rule],
    /// Whether keys and values of large models, and of models with eight experts, get extra bits.
    /// Most mixes give them these bits.
    more_for_keys: bool,
}

const fn mix(name: &'static str, file_type: u32, format: Format, head: Format, rules: &'static [Rule]) -> Mix {
    Mix { name, file_type, format, head, rules, more_for_keys: true }
}

/// Returns a mix with few bits, in which only the rules determine the formats of keys and values.
const fn low(name: &'static str, file_type: u32, format: Format, rules: &'static [Rule]) -> Mix {
    Mix { name, file_type, format, head: Q5K, rules, more_for_keys: false }
}

/// Returns a mix with one format for all tensors except the output matrix.
const fn single_format(name: &'static str, file_type: u32, format: Format, head: Format) -> Mix {
    mix(name, file_type, format, head, &[])
}

const fn rule(role: MatrixRole, condition: RuleCondition, format: Format) -> Rule {
    Rule { role, condition, format }
}

use Format::{
    Bf16, F16, F32, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Mxfp4, Q1_0, Q2_0, Q2K, Q3K, Q4_0,
    Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Tq1_0, Tq2_0,
};
use MatrixRole::{Down, Embedding, Gate, Key, Output, Query, Up, Value};
use RuleCondition::{
    Always, Experts, FewExperts, First, FirstOrFewExperts, FirstWith, FirstWithout, Grouped, GroupedOrExperts, Inner,
    Layers, MoreBits, Without,
};

/// Rules of the mixes with about two bits or fewer. `few` is the format of values and of the first
/// down projections. `output` is the format of attention's output.
macro_rules! low_rules {
    ($embedding:expr, $few:expr $(, $output:expr)?) => {
        &[
            rule(Embedding, Always, $embedding),
            rule(Value, GroupedOrExperts, Q4K),
            rule(Value, Always, $few),
            rule(Key, FewExperts, Q4K),
            rule(Down, First(8), $few),
            rule(Output, FewExperts, Q5K),
            $(rule(Output, Always, $output),)?
        ]
    };
}

/// Table of all mixes.
pub static MIXES: &[Mix] = &[
    single_format("F32", 0, F32, F32),
    single_format("F16", 1, F16, F16),
    single_format("BF16", 32, Bf16, Bf16),
    single_format("Q8_0", 7, Q8_0, Q8_0),
    single_format("Q6_K", 18, Q6K, Q6K),
    mix("Q5_K_M", 17, Q5K, Q6K, &[rule(Value, MoreBits, Q6K), rule(Down, MoreBits, Q6K)]),
    single_format("Q5_K_S", 16, Q5K, Q6K),
    single_format("Q5_1", 9, Q5_1, Q6K),
    mix("Q5_0", 8, Q5_0, Q6K, &[rule(Down, FirstWith(8), Q5_1)]),
    mix(
        "Q4_K_M",
        15,
        Q4K,
        Q6K,
        &[rule(Value, MoreBits, Q6K), rule(Down, MoreBits, Q6K), rule(Output, FewExperts, Q5K)],
    ),
    mix(
        "Q4_K_S",
        14,
        Q4K,
        Q6K,
        &[rule(Value, Layers(4), Q5K), rule(Down, First(8), Q5K), rule(Output, FewExperts, Q5K)],
    ),
    mix(
        "IQ4_NL",
        25,
        Iq4Nl,
        Q6K,
        &[rule(Value, Grouped, Q5K), rule(Down, FirstWithout(8), Q5K), rule(Output, FewExperts, Q5K)],
    ),
    mix(
        "IQ4_XS",
        30,
        Iq4Xs,
        Q6K,
        &[rule(Value, Grouped, Q5K), rule(Down, FirstWithout(8), Q5K), rule(Output, FewExperts, Q5K)],
    ),
    single_format("Q4_1", 3, Q4_1, Q6K),
    mix("Q4_0", 2, Q4_0, Q6K, &[rule(Down, FirstWith(8), Q4_1)]),
    mix(
        "MXFP4_MOE",
        38,
        Q8_0,
        Q8_0,
        // Latent attention has a matrix for each head. These matrices count as those of experts.
        &[
            rule(Gate, Experts, Mxfp4),
            rule(Up, Experts, Mxfp4),
            rule(Down, Experts, Mxfp4),
            rule(MatrixRole::Other, Experts, Mxfp4),
        ],
    ),
    mix(
        "Q3_K_L",
        13,
        Q3K,
        Q6K,
        &[rule(Value, Always, Q5K), rule(Down, Always, Q5K), rule(Output, FewExperts, Q3K), rule(Output, Always, Q5K)],
    ),
    mix(
        "Q3_K_M",
        12,
        Q3K,
        Q6K,
        &[
            rule(Value, Layers(2), Q5K),
            rule(Value, Always, Q4K),
            rule(Down, First(16), Q5K),
            rule(Down, Always, Q4K),
            rule(Output, FewExperts, Q5K),
            rule(Output, Always, Q4K),
        ],
    ),
    mix("Q3_K_S", 11, Q3K, Q6K, &[rule(Output, FewExperts, Q5K)]),
    mix(
        "Q2_K",
        10,
        Q2K,
        Q6K,
        &[
            rule(Value, Grouped, Q4K),
            rule(Value, Always, Q3K),
            rule(Down, Always, Q3K),
            rule(Output, FewExperts, Q5K),
            rule(Output, Always, Q3K),
        ],
    ),
    mix("Q2_K_S", 21, Q2K, Q6K, &[rule(Value, Grouped, Q4K), rule(Down, First(8), Q4K)]),
    mix(
        "IQ3_M",
        27,
        Iq3S,
        Q6K,
        &[
            rule(Value, Always, Q4K),
            rule(Down, FirstOrFewExperts(8), Q4K),
            rule(Output, FewExperts, Q5K),
            rule(Output, Always, Q4K),
        ],
    ),
    mix("IQ3_S", 26, Iq3S, Q6K, &[rule(Value, Grouped, Q4K), rule(Output, FewExperts, Q5K)]),
    mix(
        "IQ3_XS",
        22,
        Iq3S,
        Q6K,
        &[
            rule(Value, Grouped, Q4K),
            rule(Key, Always, Iq3Xxs),
            rule(Query, Always, Iq3Xxs),
            rule(Gate, Inner, Iq3Xxs),
            rule(Up, Inner, Iq3Xxs),
            rule(Output, FewExperts, Q5K),
        ],
    ),
    mix(
        "IQ3_XXS",
        23,
        Iq3Xxs,
        Q5K,
        &[
            rule(Embedding, Always, Iq3S),
            rule(Value, Grouped, Q4K),
            rule(Value, Without, Iq3S),
            rule(Key, Always, Iq2S),
            rule(Query, Always, Iq2S),
            rule(Down, FirstWithout(8), Q4K),
            rule(Down, Without, Q3K),
            rule(Output, FewExperts, Q5K),
            rule(Output, Always, Iq3S),
        ],
    ),
    low("IQ2_M", 29, Iq2S, low_rules!(Iq3S, Iq3S, Iq3S)),
    low("IQ2_S", 28, Iq2Xs, low_rules!(Iq3S, Iq3S, Iq3S)),
    low("IQ2_XS", 20, Iq2Xs, low_rules!(Q2K, Q2K)),
    low("IQ2_XXS", 19, Iq2Xxs, low_rules!(Q2K, Q2K)),
    low("IQ1_M", 31, Iq1M, low_rules!(Q2K, Q2K, Iq2Xxs)),
    low("IQ1_S", 24, Iq1S, low_rules!(Q2K, Q2K, Iq2Xxs)),
    mix("Q2_0", 41, Q2_0, Q6K, &[rule(Embedding, Always, Q4K)]),
    single_format("Q1_0", 40, Q1_0, Q6K),
    mix("TQ2_0", 37, Tq2_0, Q6K, &[rule(Embedding, Always, Q4K)]),
    mix("TQ1_0", 36, Tq1_0, Q6K, &[rule(Embedding, Always, Q4K)]),
];

/// Number of experts that makes attention a small part of the model. Its keys and values then get
/// more bits.
const FEW_EXPERTS: u64 = 8;
/// Min number of experts that makes values a small part of the model.
const SOME_EXPERTS: u64 = 4;
/// Number of layers of models that share keys between many heads (Llama 2 and 3 with 70 B
/// parameters). Their values are small, so they get more bits.
const LARGE_LAYERS: usize = 80;

impl Mix {
    /// Returns the mix with this name, in upper or lower case.
    pub fn find(name: &str) -> Option<&'static Mix> {
        MIXES.iter().find(|mix| mix.name.eq_ignore_ascii_case(name))
    }

    /// Returns the format that the mix gives a tensor.
    pub fn format_of(&self, role: MatrixRole, position: &TensorPosition) -> Format {
        if role == MatrixRole::Head {
            // If rows do not consist of whole blocks of the mix's format, the output matrix gets
            // Q8_0.
            let fits = self.format.row_bytes(position.columns).is_some();
            return if fits || !self.format.is_quantised() { self.head } else { Q8_0 };
        }
        if !self.format.is_quantised() {
            return self.format;
        }
        if self.more_for_keys && position.experts == FEW_EXPERTS && matches!(role, Key | Value) {
            return Q8_0;
        }
        let rule = self.rules.iter().find(|rule| rule.role == role && rule.condition.holds(position));
        let format = rule.map_or(self.format, |rule| rule.format);
        let large = role == Value && position.depth == LARGE_LAYERS && position.query_heads_per_key > 1;
        if large && self.more_for_keys && [Q3K, Q4K].contains(&format) { Q5K } else { format }
    }
}

/// Formats for rows that do not consist of whole blocks. Each pair has a format, and one with
/// shorter blocks and at least as many bits.
const SHORTER: [(Format, Format); 16] = [
    (Iq4Xs, Iq4Nl),
    (Iq3S, Iq4Nl),
    (Iq3Xxs, Iq4Nl),
    (Iq2S, Iq4Nl),
    (Iq2Xs, Iq4Nl),
    (Iq2Xxs, Iq4Nl),
    (Iq1M, Iq4Nl),
    (Iq1S, Iq4Nl),
    (Q2_0, Q4_0),
    (Q2K, Q4_0),
    (Q3K, Q4_0),
    (Tq1_0, Q4_0),
    (Tq2_0, Q4_0),
    (Q4K, Q5_0),
    (Q5K, Q5_1),
    (Q6K, Q8_0),
];

/// Returns the format for rows of `len` elements. It is `format`, one with shorter blocks, or f16
/// if rows consist of whole blocks of neither.
pub fn for_rows(format: Format, len: u64) -> Format {
    let fits = |format: Format| format.row_bytes(len).is_some();
    if fits(format) {
        return format;
    }
    let shorter = SHORTER.iter().find(|(long, _)| *long == format).map(|(_, short)| *short);
    shorter.filter(|short| fits(*short)).unwrap_or(F16)
}

/// Formats with few bits, for which llama-quantize requires an importance matrix. Embeddings and
/// the output matrix need none.
const BY_IMPORTANCE: [Format; 6] = [Iq3Xxs, Iq2S, Iq2Xs, Iq2Xxs, Iq1M, Iq1S];

/// Returns whether quantisation of a tensor with this name to this format needs an importance
/// matrix.
pub fn needs_importance(name: &str, format: Format) -> bool {
    BY_IMPORTANCE.contains(&format) && name != HEAD && !EMBEDDINGS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests a role that only every second layer has, experts with a shared expert, and tensors of
    /// one dimension.
    #[test]
    fn tensors_are_counted_within_their_kind() {
        let names = ["blk.1.attn_v.weight", "blk.3.attn_qkv.weight", "blk.10.attn_v.weight", "output.weight"];
        let is_per_expert = ["blk.3.ffn_down_shexp.weight", "blk.3.ffn_down_exps.weight", "blk.2.ffn_down.weight"];
        let tensors = names.iter().chain(&is_per_expert).map(|name| (*name, true));
        let counter = Counter::new(tensors.chain([("blk.2.attn_v.weight", false)]));
        let (usual, low) = (Mix::find("Q4_K_M").unwrap(), Mix::find("IQ2_M").unwrap());
        let numbers = names.map(|name| counter.number(usual, name, 0, 12));
        assert_eq!(numbers, [(0, 4), (1, 4), (2, 4), (0, 12)]);
        let down = |mix, experts| is_per_expert.map(|name| counter.number(mix, name, experts, 12).0);
        assert_eq!((down(usual, 0), down(usual, 8), down(low, 8)), ([2, 1, 0], [3, 3, 2], [2, 1, 0]));
        assert!(is_quantised("a.weight", &[4, 1, 2]) && is_quantised("a.weight", &[1, 2]));
        assert!(
            !is_quantised("a.weight", &[4, 1]) && !is_quantised("a.weight", &[4]) && !is_quantised("a.weight", &[])
        );
    }

    /// Tests the rules of llama-quantize's low-bit mixes on models that differ from the demo model.
    #[test]
    fn tensor_formats_depend_on_layer_position() {
        let dense = TensorPosition {
            layer: 9,
            layers: 32,
            depth: 32,
            query_heads_per_key: 1,
            experts: 0,
            importance: true,
            is_per_expert: false,
            columns: 4096,
        };
        let grouped = TensorPosition { query_heads_per_key: 8, ..dense };
        let first = TensorPosition { layer: 3, ..dense };
        let blind = TensorPosition { importance: false, ..dense };
        let eight = TensorPosition { experts: 8, is_per_expert: true, ..dense };
        let large = TensorPosition { layers: 80, depth: 80, layer: 20, ..grouped };
        for (name, role, position, format) in [
            ("IQ2_XXS", Value, dense, Q2K),
            ("IQ2_M", Value, dense, Iq3S),
            ("IQ2_S", Value, grouped, Q4K),
            ("IQ1_S", Value, eight, Q4K),
            ("IQ1_S", Value, large, Q4K),
            ("IQ2_XS", Key, eight, Q4K),
            ("IQ2_XS", Key, dense, Iq2Xs),
            ("IQ1_M", Down, first, Q2K),
            ("IQ2_M", Down, first, Iq3S),
            ("IQ2_M", Down, dense, Iq2S),
            ("IQ1_M", Output, eight, Q5K),
            ("IQ3_XXS", Value, dense, Iq3Xxs),
            ("IQ3_XXS", Value, blind, Iq3S),
            ("IQ3_XXS", Value, large, Q5K),
            ("IQ3_XXS", Value, eight, Q8_0),
            ("IQ3_XXS", Down, dense, Iq3Xxs),
            ("IQ3_XXS", Down, blind, Q3K),
            ("IQ3_XXS", Down, TensorPosition { layer: 3, ..blind }, Q4K),
            ("IQ3_XXS", Key, dense, Iq2S),
            ("IQ3_XXS", Output, eight, Q5K),
            ("IQ3_XS", Gate, first, Iq3S),
            ("IQ3_XS", Gate, dense, Iq3Xxs),
            ("IQ3_XS", Up, TensorPosition { layer: 28, ..dense }, Iq3S),
            ("IQ3_XS", Key, dense, Iq3Xxs),
            ("IQ3_XS", Key, eight, Q8_0),
            ("IQ3_M", Down, first, Q4K),
            ("IQ3_M", Down, dense, Iq3S),
            ("IQ3_M", Down, eight, Q4K),
            ("IQ3_M", Down, TensorPosition { layer: 8, ..eight }, Iq3S),
            ("MXFP4_MOE", MatrixRole::Other, eight, Mxfp4),
            ("MXFP4_MOE", MatrixRole::Other, dense, Q8_0),
            ("IQ1_S", MatrixRole::Head, dense, Q5K),
            ("IQ1_S", MatrixRole::Head, TensorPosition { columns: 96, ..dense }, Q8_0),
            ("Q4_K_M", MatrixRole::Head, TensorPosition { columns: 96, ..dense }, Q8_0),
        ] {
            let mix = Mix::find(name).unwrap();
            assert_eq!(mix.format_of(role, &position), format, "{name}: {role:?} {position:?}");
        }
    }
}
