//! Rules that map names of Hugging Face tensors to GGUF names.
//!
//! A rule has two name patterns, and a function that makes GGUF tensors from the stored tensor. The
//! first pattern matches a name exactly, or with `.weight` or `.bias` appended; the GGUF name gets
//! the same ending. The rules of the model's family come first, then [`SHARED`]. The first rule
//! that matches is used.
//!
//! Placeholders in a pattern stand for a number or a letter:
//!
//! | placeholder | stands for |
//! | --- | --- |
//! | `{L}` | a layer |
//! | `{U}` | a layer of the upper stack, in models with two stacks |
//! | `{H}` | half of a stored layer; each half is a layer in GGUF files |
//! | `{E}` | an expert |
//! | `{X}` | an expert; files may contain more experts than the configuration counts |
//! | `{G}` | the small expert of a group of experts |
//! | `{Q}`, `{K}` | a query head, a key head |
//! | `{S}` | a part of a table that is stored in several parts |
//! | `{A}` | a residual stream |
//! | `{C}` | the letter q, k or v, for queries, keys or values |
//! | `{R}` | one machine's part of a matrix |
//!
//! Stored tensors whose names differ only in a placeholder form one GGUF tensor, except for `{L}`,
//! `{U}` and `{H}`.

use super::conversions::{Conversion, gate_up, key, plain, query, row, skip};
use super::sizes::Sizes;

/// Rule for stored tensors whose names match a pattern.
pub(super) struct Rule {
    pub from: &'static str,
    pub to: &'static str,
    pub conversion: Conversion,
}

pub(super) const fn rule(from: &'static str, to: &'static str, conversion: Conversion) -> Rule {
    Rule { from, to, conversion }
}

/// Rules that most decoders share.
pub(super) static SHARED: &[Rule] = &[
    rule("model.embed_tokens", "token_embd", plain),
    rule("model.norm", "output_norm", plain),
    rule("lm_head", "output", plain),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", plain),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", plain),
    rule("model.layers.{L}.self_attn.v_proj", "blk.{L}.attn_v", plain),
    rule("model.layers.{L}.self_attn.o_proj", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.self_attn.q_norm", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.self_attn.k_norm", "blk.{L}.attn_k_norm", plain),
    rule("model.layers.{L}.self_attn.rotary_emb.inv_freq", "", skip),
    rule("model.layers.{L}.mlp.gate_proj", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.mlp.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.mlp.down_proj", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.mlp.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mlp.gate.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.mlp.experts.{E}.gate_proj", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.mlp.experts.{E}.up_proj", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.mlp.experts.{E}.down_proj", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.mlp.experts.gate_up_proj", "blk.{L}.ffn_{P}_exps.weight", gate_up),
    rule("model.layers.{L}.mlp.experts.down_proj", "blk.{L}.ffn_down_exps.weight", plain),
    rule("model.layers.{L}.mlp.shared_experts.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.mlp.shared_experts.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.mlp.shared_experts.down_proj", "blk.{L}.ffn_down_shexp", plain),
    rule("model.layers.{L}.mlp.shared_expert.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.mlp.shared_expert.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.mlp.shared_expert.down_proj", "blk.{L}.ffn_down_shexp", plain),
    rule("model.layers.{L}.mlp.shared_expert_gate", "blk.{L}.ffn_gate_inp_shexp", row),
    rule("model.layers.{L}.block_sparse_moe.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.block_sparse_moe.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.block_sparse_moe.gate.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.w1", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.w2", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.w3", "blk.{L}.ffn_up_exps", plain),
];

/// Rules for models whose RoPE pairs are adjacent in GGUF files.
pub(super) static ADJACENT_ROPE: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", query),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", key),
];

/// Rule for models that call the norm before the feed-forward network `post_attention_norm`.
pub(super) static POST_ATTENTION: &[Rule] =
    &[rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plain)];

/// Row of the table of placeholders. The stored tensors that differ in the placeholder are parts of
/// one GGUF tensor.
struct PartPlaceholder {
    /// Placeholder in patterns.
    placeholder: &'static str,
    /// Word for a part in error messages.
    word: &'static str,
    /// Number of parts, if the configuration states it.
    count: fn(&Sizes) -> Option<u64>,
    /// Whether each part is a separate matrix of the GGUF tensor. Otherwise the rows of all parts
    /// form one matrix.
    is_stacked: bool,
    /// Whether a file may have more parts than counted, which are not read.
    allows_more: bool,
}

/// Letters for queries, keys and values in names, in the order of their rows in the GGUF tensor.
const LETTERS: [char; 3] = ['q', 'k', 'v'];

const PART_PLACEHOLDERS: [PartPlaceholder; 9] = [
    PartPlaceholder {
        placeholder: "{G}",
        word: "group's expert",
        count: |sizes| sizes.experts.checked_div(sizes.experts_per_group),
        is_stacked: true,
        allows_more: false,
    },
    PartPlaceholder {
        placeholder: "{E}",
        word: "expert",
        count: |sizes| Some(sizes.experts),
        is_stacked: true,
        allows_more: false,
    },
    PartPlaceholder {
        placeholder: "{X}",
        word: "expert",
        count: |sizes| Some(sizes.experts),
        is_stacked: true,
        allows_more: true,
    },
    PartPlaceholder {
        placeholder: "{Q}",
        word: "head",
        count: |sizes| Some(sizes.heads),
        is_stacked: true,
        allows_more: false,
    },
    PartPlaceholder {
        placeholder: "{K}",
        word: "key head",
        count: |sizes| Some(sizes.kv_heads),
        is_stacked: true,
        allows_more: false,
    },
    PartPlaceholder {
        placeholder: "{S}",
        word: "part",
        count: |sizes| Some(sizes.table_parts),
        is_stacked: false,
        allows_more: false,
    },
    // The first stream begins as the embedding, so it has no tensor.
    PartPlaceholder {
        placeholder: "{A}",
        word: "stream",
        count: |sizes| Some(sizes.streams.saturating_sub(1)),
        is_stacked: true,
        allows_more: false,
    },
    PartPlaceholder {
        placeholder: "{C}",
        word: "convolution",
        count: |_| Some(LETTERS.len() as u64),
        is_stacked: false,
        allows_more: false,
    },
    PartPlaceholder { placeholder: "{R}", word: "part", count: |_| None, is_stacked: false, allows_more: false },
];

/// Position of a stored tensor among the parts of a GGUF tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartIndex {
    /// Index of this part.
    pub number: u64,
    /// Word for a part in error messages.
    pub word: &'static str,
    /// Number of parts, if the configuration states it.
    pub count: Option<u64>,
    /// Whether the part is a separate matrix of the GGUF tensor.
    pub is_stacked: bool,
    /// Whether a file may have more parts than counted, which are not read.
    pub allows_more: bool,
}

/// Result of matching a name with a rule: the GGUF name, in which `{P}` is still to be replaced,
/// and the numbers of the other placeholders.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub to: String,
    pub layer: Option<u64>,
    pub part_index: Option<PartIndex>,
}

/// Matches a stored name with a rule. If each half of a stored layer is a layer in GGUF files,
/// `{L}` is replaced by the GGUF layer of the half. `{2L}` is replaced by that of the first half.
pub(super) fn matches(rule: &Rule, sizes: &Sizes, name: &str) -> Option<Match> {
    let (mut layer, mut half, mut part_index) = (None, None, None);
    let mut rest = name;
    let mut pattern = rule.from;
    while let Some(open) = pattern.find('{') {
        rest = rest.strip_prefix(&pattern[..open])?;
        let placeholder = &pattern[open..open + 3];
        let (number, digits): (u64, usize) = match placeholder {
            "{C}" => (LETTERS.iter().position(|letter| rest.starts_with(*letter))? as u64, 1),
            _ => {
                let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                (rest[..digits].parse().ok()?, digits)
            }
        };
        match PART_PLACEHOLDERS.iter().find(|several| several.placeholder == placeholder) {
            Some(&PartPlaceholder { word, count, is_stacked, allows_more, .. }) => {
                part_index = Some(PartIndex { number, word, count: count(sizes), is_stacked, allows_more })
            }
            None if placeholder == "{H}" => half = Some(Some(number).filter(|half| *half < 2)?),
            None if placeholder == "{U}" => layer = Some(number.checked_add(sizes.stack)?),
            None => layer = Some(number),
        }
        (rest, pattern) = (&rest[digits..], &pattern[open + 3..]);
    }
    let suffix = rest.strip_prefix(pattern).filter(|suffix| ["", ".weight", ".bias"].contains(suffix))?;
    let mut to = rule.to.to_owned();
    if let Some(number) = &mut layer {
        let of_two = rule.to.contains("{2L}").then_some(0).or(half);
        *number = of_two.map_or(*number, |half| number.saturating_mul(2).saturating_add(half));
        to = to.replace("{2L}", &number.to_string()).replace("{L}", &number.to_string());
    }
    Some(Match { to: to + suffix, layer, part_index })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_name_rules_match_numbers_and_suffixes() {
        let row = rule("model.layers.{L}.mlp.experts.{E}.up_proj", "blk.{L}.ffn_up_exps", plain);
        let sizes = Sizes { experts: 9, heads: 4, ..Sizes::default() };
        let found = matches(&row, &sizes, "model.layers.12.mlp.experts.7.up_proj.weight").unwrap();
        let expert = PartIndex { number: 7, word: "expert", count: Some(9), is_stacked: true, allows_more: false };
        assert_eq!(
            (found.to.as_str(), found.layer, found.part_index),
            ("blk.12.ffn_up_exps.weight", Some(12), Some(expert))
        );
        let norms = rule("layers.{L}.norms.{Q}", "blk.{L}.attn_q_norm", plain);
        let head = matches(&norms, &sizes, "layers.0.norms.3.weight").unwrap().part_index;
        assert_eq!(
            head,
            Some(PartIndex { number: 3, word: "head", count: Some(4), is_stacked: true, allows_more: false })
        );
        for other in [
            "model.layers.mlp.experts.7.up_proj.weight",
            "model.layers.1.mlp.experts.7.up_proj.weights",
            "model.layers.1.mlp.experts.x.up_proj",
        ] {
            assert_eq!(matches(&row, &sizes, other), None, "{other}");
        }
        // Each half of this stored layer is a layer in GGUF files.
        let halves = rule("model.layers.{L}.norm.{H}", "blk.{L}.attn_norm", plain);
        let of = |name: &str| matches(&halves, &sizes, name).map(|found| (found.to, found.layer));
        assert_eq!(of("model.layers.3.norm.1.weight"), Some(("blk.7.attn_norm.weight".into(), Some(7))));
        assert_eq!(of("model.layers.0.norm.0.weight"), Some(("blk.0.attn_norm.weight".into(), Some(0))));
        assert_eq!(of("model.layers.0.norm.2.weight"), None);
        let of_first = rule("model.layers.{L}.experts.{X}.up", "blk.{2L}.ffn_up_exps", plain);
        let found = matches(&of_first, &sizes, "model.layers.3.experts.12.up.weight").unwrap();
        let allows_more = PartIndex { number: 12, word: "expert", count: Some(9), is_stacked: true, allows_more: true };
        assert_eq!(
            (found.to.as_str(), found.layer, found.part_index),
            ("blk.6.ffn_up_exps.weight", Some(6), Some(allows_more))
        );
        let letters = rule("model.layers.{L}.{C}_conv1d", "blk.{L}.ssm_conv1d", plain);
        let number = |name: &str| matches(&letters, &sizes, name)?.part_index.map(|of| (of.number, of.count));
        assert_eq!(number("model.layers.0.v_conv1d.weight"), Some((2, Some(3))));
        assert_eq!(number("model.layers.0.o_conv1d.weight"), None);
        let plain = rule("lm_head", "output", plain);
        assert_eq!(matches(&plain, &sizes, "lm_head.weight").unwrap().to, "output.weight");
        assert_eq!(matches(&plain, &sizes, "lm_head.weight_scale"), None);
    }
}
