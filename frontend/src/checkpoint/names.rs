//! Names of Hugging Face's tensors, and which of GGUF's they are.
//!
//! A rule names a tensor by a pattern, in which `{L}` is a layer and `{E}` an expert, and says what is made of it. A name matches with `.weight` or
//! `.bias` behind the pattern, which the other name then has, too, or as it is. The first rule that matches counts: those of a model, then [`SHARED`].

use super::array::Array;
use ixc_ir::derived::Change;

/// Numbers of a configuration that tensors are taken apart by.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub layers: u64,
    pub experts: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    /// Of the residual stream, and of an expert.
    pub width: u64,
    pub expert_width: u64,
    /// Latent attention: lengths of a head's key without its rotated part, and of its value.
    pub still: u64,
    pub value: u64,
    /// Linear attention: key heads, value heads, lengths of both.
    pub key_heads: u64,
    pub value_heads: u64,
    pub key_len: u64,
    pub value_len: u64,
    /// State spaces: groups of heads.
    pub groups: u64,
}

/// What a stored tensor becomes: arrays whose rows are one behind the other, under the name with `{P}` replaced.
pub(super) struct Made {
    pub part: &'static str,
    pub arrays: Vec<Array>,
    pub change: Change,
}

/// How a tensor is made; `None` where its shape is not such.
pub(super) type How = fn(&Sizes, Array) -> Option<Vec<Made>>;

/// A row.
pub(super) struct Rule {
    pub from: &'static str,
    pub to: &'static str,
    pub how: How,
}

pub(super) const fn rule(from: &'static str, to: &'static str, how: How) -> Rule {
    Rule { from, to, how }
}

fn one(array: Array) -> Option<Vec<Made>> {
    Some(vec![Made { part: "", arrays: vec![array], change: Change::Keep }])
}

fn parts<const N: usize>(parts: [(&'static str, Option<Array>); N]) -> Option<Vec<Made>> {
    parts.into_iter().map(|(part, array)| Some(Made { part, arrays: vec![array?], change: Change::Keep })).collect()
}

/// As it is.
pub(super) fn plain(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(x)
}

/// Not a part of the model as it is run.
pub(super) fn skip(_: &Sizes, _: Array) -> Option<Vec<Made>> {
    Some(Vec::new())
}

/// The weight of a norm that multiplies by one more.
pub(super) fn plus_one(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    Some(vec![Made { part: "", arrays: vec![x], change: Change::PlusOne }])
}

/// Rows of heads whose pairs lie half a head apart, so that they lie side by side.
fn neighbours(x: Array, heads: u64) -> Option<Array> {
    let half = x.len(0).checked_div(heads)? / 2;
    x.split(0, &[heads, 2, half])?.swap(1, 2)?.join(0)?.join(0)
}

pub(super) fn query(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(neighbours(x, s.heads)?)
}

pub(super) fn key(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(neighbours(x, s.kv_heads)?)
}

/// A matrix of gates, then up, or one for each expert: dimension `-2` in halves.
pub(super) fn gate_up(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    let dim = x.rank().checked_sub(2)?;
    let half = x.len(dim) / 2;
    if half * 2 != x.len(dim) {
        return None;
    }
    parts([("gate", x.clone().slice(dim, 0, half)), ("up", x.slice(dim, half, half))])
}

/// The same of experts, whose matrices are transposed in files that were published, and not in those that transformers 5 writes.
pub(super) fn gate_up_either(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    gate_up(s, if x.len(1) == s.width { transposed_array(x)? } else { x })
}

/// Theirs of the other product.
pub(super) fn down_either(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(if x.len(1) == s.expert_width { transposed_array(x)? } else { x })
}

fn transposed_array(x: Array) -> Option<Array> {
    let last = x.rank().checked_sub(1)?;
    x.swap(last.checked_sub(1)?, last)
}

/// Matrices transposed.
pub(super) fn transposed(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(transposed_array(x)?)
}

/// Gates and up in turns, of matrices: row by row.
pub(super) fn gate_up_rows(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    let dim = x.rank().checked_sub(2)?;
    parts([("gate", x.clone().every_second(dim, 0)), ("up", x.every_second(dim, 1))])
}

/// Of matrices that are transposed.
pub(super) fn gate_up_columns(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    gate_up_rows(s, transposed_array(x)?)
}

/// Of vectors.
pub(super) fn gate_up_elements(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    let dim = x.rank().checked_sub(1)?;
    parts([("gate", x.clone().every_second(dim, 0)), ("up", x.every_second(dim, 1))])
}

/// Keys and values of latent attention: for each head, keys transposed and values.
pub(super) fn latent(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let heads = x.split(0, &[s.heads, s.still.checked_add(s.value)?])?;
    parts([
        ("k_b", heads.clone().slice(1, 0, s.still).and_then(|k| k.swap(1, 2))),
        ("v_b", heads.slice(1, s.still, s.value)),
    ])
}

/// Queries, keys and values of one matrix.
pub(super) fn query_key_value(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let (q, k) = (s.heads.checked_mul(s.head_dim)?, s.kv_heads.checked_mul(s.head_dim)?);
    let behind = q.checked_add(k)?;
    let part = |from, len| x.clone().slice(0, from, len);
    parts([("q", part(0, q)), ("k", part(q, k)), ("v", part(behind, k))])
}

/// A kernel of one channel each: `[channels, 1, taps]`.
pub(super) fn taps(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(if x.rank() == 3 { x.squeeze(1)? } else { x })
}

/// A vector that is stored as a matrix of one row.
pub(super) fn row(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(if x.rank() == 2 { x.squeeze(0)? } else { x })
}

/// The decay of states whose logarithm is stored.
pub(super) fn decay(_: &Sizes, x: Array) -> Option<Vec<Made>> {
    Some(vec![Made { part: "", arrays: vec![x], change: Change::MinusExp }])
}

/// The weight of a norm of each group of heads: a row for each, where there are several.
fn by_group(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(if s.groups > 1 { x.clone().split(0, &[s.groups, x.len(0).checked_div(s.groups)?])? } else { x })
}

/// Gates and up of what is the shared expert, or all of the network where there are no experts.
fn shared_gate_up(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let mut made = gate_up(s, x)?;
    if s.experts > 0 {
        made.iter_mut().zip(["gate_shexp", "up_shexp"]).for_each(|(made, part)| made.part = part);
    }
    Some(made)
}

/// Its other product.
fn shared_down(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    parts([(if s.experts > 0 { "down_shexp" } else { "down" }, Some(x))])
}

/// Value heads, those of a key head together, in the order in which key heads repeat: a dimension of `value_heads * len`.
fn in_turns(s: &Sizes, x: Array, dim: usize, len: u64) -> Option<Array> {
    let each = s.value_heads.checked_div(s.key_heads)?;
    x.split(dim, &[s.key_heads, each, len])?.swap(dim, dim + 1)?.join(dim)?.join(dim)
}

/// Queries and keys as they are, then values whose heads are put in turns.
fn values_in_turns(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let keys = s.key_heads.checked_mul(s.key_len)?.checked_mul(2)?;
    let values = s.value_heads.checked_mul(s.value_len)?;
    let still = x.clone().slice(0, 0, keys)?;
    let turned = in_turns(s, x.slice(0, keys, values)?, 0, s.value_len)?;
    Some(vec![Made { part: "", arrays: vec![still, turned], change: Change::Keep }])
}

fn turned_values(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(in_turns(s, x, 0, s.value_len)?)
}

fn turned_heads(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(in_turns(s, x, 0, 1)?)
}

fn turned_decay(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    decay(s, in_turns(s, x, 0, 1)?)
}

fn turned_taps(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    values_in_turns(s, if x.rank() == 3 { x.squeeze(1)? } else { x })
}

fn turned_columns(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    one(in_turns(s, x, 1, s.value_len)?)
}

/// Qwen3-Next's fused projection: for each key head its query, key, values and gates.
fn by_key_head(s: &Sizes, x: Array) -> Option<Vec<Made>> {
    let values = s.value_heads.checked_div(s.key_heads)?.checked_mul(s.value_len)?;
    let keys = s.key_len.checked_mul(2)?;
    let gates = keys.checked_add(values)?;
    let heads = x.split(0, &[s.key_heads, gates.checked_add(values)?])?;
    let part = |from: u64, len: u64| heads.clone().slice(1, from, len)?.join(0);
    let (q, k) = (part(0, s.key_len)?, part(s.key_len, s.key_len)?);
    let (v, z) = (part(keys, values)?, part(gates, values)?);
    Some(vec![
        Made { part: "qkv", arrays: vec![q, k, v], change: Change::Keep },
        Made { part: "gate", arrays: vec![z], change: Change::Keep },
    ])
}

/// What most decoders have.
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
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.w1", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.w2", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.block_sparse_moe.experts.{E}.w3", "blk.{L}.ffn_up_exps", plain),
];

/// Models whose RoPE turns neighbours in GGUF files.
pub(super) static TURNED: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", query),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", key),
];

/// Models whose norm before the feed-forward network is called so.
pub(super) static POST_ATTENTION: &[Rule] =
    &[rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plain)];

/// Granite with experts: gates and up of all experts, or of the shared one, in one tensor; its RoPE turns neighbours.
pub(super) static GRANITE_MOE: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", query),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", key),
    rule("model.layers.{L}.block_sparse_moe.router.layer", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.block_sparse_moe.input_linear.weight", "blk.{L}.ffn_{P}_exps.weight", gate_up),
    rule("model.layers.{L}.block_sparse_moe.output_linear", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.shared_mlp.input_linear.weight", "blk.{L}.ffn_{P}_shexp.weight", gate_up),
    rule("model.layers.{L}.shared_mlp.output_linear", "blk.{L}.ffn_down_shexp", plain),
];

/// Gemma 3: norms multiply by one more, and stand on both sides of a block.
pub(super) static GEMMA_3: &[Rule] = &[
    rule("model.norm", "output_norm", plus_one),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plus_one),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plus_one),
    rule("model.layers.{L}.pre_feedforward_layernorm", "blk.{L}.ffn_norm", plus_one),
    rule("model.layers.{L}.post_feedforward_layernorm", "blk.{L}.post_ffw_norm", plus_one),
    rule("model.layers.{L}.self_attn.q_norm", "blk.{L}.attn_q_norm", plus_one),
    rule("model.layers.{L}.self_attn.k_norm", "blk.{L}.attn_k_norm", plus_one),
];

/// Gemma 4: norms multiply by what is stored; experts stand beside the dense network, gates and up in one tensor.
pub(super) static GEMMA_4: &[Rule] = &[
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.pre_feedforward_layernorm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.pre_feedforward_layernorm_2", "blk.{L}.pre_ffw_norm_2", plain),
    rule("model.layers.{L}.post_feedforward_layernorm", "blk.{L}.post_ffw_norm", plain),
    rule("model.layers.{L}.post_feedforward_layernorm_1", "blk.{L}.post_ffw_norm_1", plain),
    rule("model.layers.{L}.post_feedforward_layernorm_2", "blk.{L}.post_ffw_norm_2", plain),
    rule("model.layers.{L}.layer_scalar", "blk.{L}.layer_output_scale.weight", plain),
    rule("model.layers.{L}.router.proj", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.router.scale", "blk.{L}.ffn_gate_inp.scale", plain),
    rule("model.layers.{L}.router.per_expert_scale", "blk.{L}.ffn_down_exps.scale", plain),
    rule("model.layers.{L}.experts.gate_up_proj", "blk.{L}.ffn_gate_up_exps.weight", plain),
    rule("model.layers.{L}.experts.down_proj", "blk.{L}.ffn_down_exps.weight", plain),
    rule("model.embed_tokens_per_layer", "per_layer_token_embd", plain),
    rule("model.per_layer_model_projection", "per_layer_model_proj", plain),
    rule("model.per_layer_projection_norm", "per_layer_proj_norm", plain),
    rule("model.layers.{L}.per_layer_input_gate", "blk.{L}.inp_gate", plain),
    rule("model.layers.{L}.per_layer_projection", "blk.{L}.proj", plain),
    rule("model.layers.{L}.post_per_layer_input_norm", "blk.{L}.post_norm", plain),
];

/// LFM2, dense and with experts.
pub(super) static LFM_2: &[Rule] = &[
    rule("model.embedding_norm", "token_embd_norm", plain),
    rule("model.layers.{L}.operator_norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.ffn_norm", "blk.{L}.ffn_norm", plain),
    rule("model.layers.{L}.conv.conv", "blk.{L}.shortconv.conv", taps),
    rule("model.layers.{L}.conv.in_proj", "blk.{L}.shortconv.in_proj", plain),
    rule("model.layers.{L}.conv.out_proj", "blk.{L}.shortconv.out_proj", plain),
    rule("model.layers.{L}.self_attn.out_proj", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.self_attn.q_layernorm", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.self_attn.k_layernorm", "blk.{L}.attn_k_norm", plain),
    rule("model.layers.{L}.feed_forward.w1", "blk.{L}.ffn_gate", plain),
    rule("model.layers.{L}.feed_forward.w2", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.feed_forward.w3", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.feed_forward.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.feed_forward.expert_bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.w1", "blk.{L}.ffn_gate_exps", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.w2", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.feed_forward.experts.{E}.w3", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.feed_forward.experts.gate_up_proj", "blk.{L}.ffn_{P}_exps.weight", gate_up),
    rule("model.layers.{L}.feed_forward.experts.down_proj", "blk.{L}.ffn_down_exps.weight", plain),
];

/// Granite with layers of Mamba-2: what all of its layers have behind them is the shared expert, or the network where there are no experts.
pub(super) static GRANITE_HYBRID: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_proj", "blk.{L}.attn_q", query),
    rule("model.layers.{L}.self_attn.k_proj", "blk.{L}.attn_k", key),
    rule("model.layers.{L}.mamba.in_proj", "blk.{L}.ssm_in", plain),
    rule("model.layers.{L}.mamba.conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.{L}.mamba.A_log", "blk.{L}.ssm_a", decay),
    rule("model.layers.{L}.mamba.D", "blk.{L}.ssm_d", plain),
    rule("model.layers.{L}.mamba.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.mamba.norm", "blk.{L}.ssm_norm", by_group),
    rule("model.layers.{L}.mamba.out_proj", "blk.{L}.ssm_out", plain),
    rule("model.layers.{L}.block_sparse_moe.router.layer", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.block_sparse_moe.router", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.block_sparse_moe.input_linear.weight", "blk.{L}.ffn_{P}_exps.weight", gate_up),
    rule("model.layers.{L}.block_sparse_moe.output_linear", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.shared_mlp.input_linear.weight", "blk.{L}.ffn_{P}.weight", shared_gate_up),
    rule("model.layers.{L}.shared_mlp.output_linear.weight", "blk.{L}.ffn_{P}.weight", shared_down),
];

/// Nemotron-H: each layer is one part behind one norm. Nothing turns queries and keys, which are in the order of those that turn neighbours all the same.
pub(super) static NEMOTRON_H: &[Rule] = &[
    rule("model.embeddings", "token_embd", plain),
    rule("model.norm_f", "output_norm", plain),
    rule("model.layers.{L}.norm", "blk.{L}.attn_norm", plain),
    rule("model.layers.{L}.mixer.q_proj", "blk.{L}.attn_q", query),
    rule("model.layers.{L}.mixer.k_proj", "blk.{L}.attn_k", key),
    rule("model.layers.{L}.mixer.v_proj", "blk.{L}.attn_v", plain),
    rule("model.layers.{L}.mixer.o_proj", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.mixer.in_proj", "blk.{L}.ssm_in", plain),
    rule("model.layers.{L}.mixer.conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.{L}.mixer.A_log", "blk.{L}.ssm_a", decay),
    rule("model.layers.{L}.mixer.D", "blk.{L}.ssm_d", plain),
    rule("model.layers.{L}.mixer.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.mixer.norm", "blk.{L}.ssm_norm", by_group),
    rule("model.layers.{L}.mixer.out_proj", "blk.{L}.ssm_out", plain),
    rule("model.layers.{L}.mixer.up_proj", "blk.{L}.ffn_up", plain),
    rule("model.layers.{L}.mixer.down_proj", "blk.{L}.ffn_down", plain),
    rule("model.layers.{L}.mixer.gate", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mixer.gate.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.mixer.gate.e_score_correction.bias", "blk.{L}.exp_probs_b.bias", plain),
    rule("model.layers.{L}.mixer.experts.{E}.up_proj", "blk.{L}.ffn_up_exps", plain),
    rule("model.layers.{L}.mixer.experts.{E}.down_proj", "blk.{L}.ffn_down_exps", plain),
    rule("model.layers.{L}.mixer.experts.up_proj", "blk.{L}.ffn_up_exps.weight", plain),
    rule("model.layers.{L}.mixer.experts.down_proj", "blk.{L}.ffn_down_exps.weight", plain),
    rule("model.layers.{L}.mixer.shared_experts.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.mixer.shared_experts.down_proj", "blk.{L}.ffn_down_shexp", plain),
    rule("model.layers.{L}.mixer.fc1_latent_proj", "blk.{L}.ffn_latent_down", plain),
    rule("model.layers.{L}.mixer.fc2_latent_proj", "blk.{L}.ffn_latent_up", plain),
];

/// gpt-oss: matrices of experts transposed, or blocks of MXFP4 that are not.
pub(super) static GPT_OSS: &[Rule] = &[
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plain),
    rule("model.layers.{L}.self_attn.sinks", "blk.{L}.attn_sinks.weight", plain),
    rule("model.layers.{L}.mlp.router", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mlp.experts.gate_up_proj_bias", "blk.{L}.ffn_{P}_exps.bias", gate_up_elements),
    rule("model.layers.{L}.mlp.experts.down_proj_bias", "blk.{L}.ffn_down_exps.bias", plain),
    rule("model.layers.{L}.mlp.experts.gate_up_proj", "blk.{L}.ffn_{P}_exps.weight", |s, x| match x.element() {
        Ok(ixc_ir::derived::Element::Mxfp4) => gate_up_rows(s, x),
        _ => gate_up_columns(s, x),
    }),
    rule("model.layers.{L}.mlp.experts.down_proj", "blk.{L}.ffn_down_exps.weight", |s, x| match x.element() {
        Ok(ixc_ir::derived::Element::Mxfp4) => plain(s, x),
        _ => transposed(s, x),
    }),
];

/// Latent attention.
pub(super) static LATENT: &[Rule] = &[
    rule("model.layers.{L}.self_attn.q_a_proj", "blk.{L}.attn_q_a", plain),
    rule("model.layers.{L}.self_attn.q_a_layernorm", "blk.{L}.attn_q_a_norm", plain),
    rule("model.layers.{L}.self_attn.q_b_proj", "blk.{L}.attn_q_b", plain),
    rule("model.layers.{L}.self_attn.kv_a_proj_with_mqa", "blk.{L}.attn_kv_a_mqa", plain),
    rule("model.layers.{L}.self_attn.kv_a_layernorm", "blk.{L}.attn_kv_a_norm", plain),
    rule("model.layers.{L}.self_attn.kv_b_proj.weight", "blk.{L}.attn_{P}.weight", latent),
];

/// Qwen3-Next: fused projections by key head; norms multiply by one more, but for that of linear attention.
pub(super) static QWEN_3_NEXT: &[Rule] = &[
    rule("model.norm", "output_norm", plus_one),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plus_one),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plus_one),
    rule("model.layers.{L}.self_attn.q_norm", "blk.{L}.attn_q_norm", plus_one),
    rule("model.layers.{L}.self_attn.k_norm", "blk.{L}.attn_k_norm", plus_one),
    rule("model.layers.{L}.linear_attn.in_proj_qkvz.weight", "blk.{L}.attn_{P}.weight", by_key_head),
    rule("model.layers.{L}.linear_attn.in_proj_ba", "blk.{L}.ssm_ba", plain),
    rule("model.layers.{L}.linear_attn.conv1d", "blk.{L}.ssm_conv1d", taps),
    rule("model.layers.{L}.linear_attn.A_log", "blk.{L}.ssm_a", decay),
    rule("model.layers.{L}.linear_attn.dt_bias", "blk.{L}.ssm_dt.bias", plain),
    rule("model.layers.{L}.linear_attn.norm", "blk.{L}.ssm_norm", plain),
    rule("model.layers.{L}.linear_attn.out_proj", "blk.{L}.ssm_out", plain),
];

/// Qwen3.5: value heads in turns.
pub(super) static QWEN_3_5: &[Rule] = &[
    rule("model.norm", "output_norm", plus_one),
    rule("model.layers.{L}.input_layernorm", "blk.{L}.attn_norm", plus_one),
    rule("model.layers.{L}.post_attention_layernorm", "blk.{L}.post_attention_norm", plus_one),
    rule("model.layers.{L}.self_attn.q_norm", "blk.{L}.attn_q_norm", plus_one),
    rule("model.layers.{L}.self_attn.k_norm", "blk.{L}.attn_k_norm", plus_one),
    rule("model.layers.{L}.linear_attn.in_proj_qkv", "blk.{L}.attn_qkv", values_in_turns),
    rule("model.layers.{L}.linear_attn.in_proj_z", "blk.{L}.attn_gate", turned_values),
    rule("model.layers.{L}.linear_attn.in_proj_b", "blk.{L}.ssm_beta", turned_heads),
    rule("model.layers.{L}.linear_attn.in_proj_a", "blk.{L}.ssm_alpha", turned_heads),
    rule("model.layers.{L}.linear_attn.conv1d", "blk.{L}.ssm_conv1d", turned_taps),
    rule("model.layers.{L}.linear_attn.A_log", "blk.{L}.ssm_a", turned_decay),
    rule("model.layers.{L}.linear_attn.dt_bias", "blk.{L}.ssm_dt.bias", turned_heads),
    rule("model.layers.{L}.linear_attn.norm", "blk.{L}.ssm_norm", plain),
    rule("model.layers.{L}.linear_attn.out_proj", "blk.{L}.ssm_out", turned_columns),
];

/// Phi-3: one matrix of queries, keys and values, one of gates and up.
pub(super) static PHI_3: &[Rule] = &[
    rule("model.layers.{L}.self_attn.qkv_proj", "blk.{L}.attn_qkv", plain),
    rule("model.layers.{L}.mlp.gate_up_proj", "blk.{L}.ffn_up", plain),
];

/// Qwen3-VL with experts: their matrices are transposed, mostly.
pub(super) static QWEN_3_VL_MOE: &[Rule] = &[
    rule("model.layers.{L}.mlp.experts.gate_up_proj", "blk.{L}.ffn_{P}_exps.weight", gate_up_either),
    rule("model.layers.{L}.mlp.experts.down_proj", "blk.{L}.ffn_down_exps.weight", down_either),
];

/// ERNIE 4.5.
pub(super) static ERNIE: &[Rule] = &[
    rule("model.layers.{L}.self_attn.qkv_proj.weight", "blk.{L}.attn_{P}.weight", query_key_value),
    rule("model.layers.{L}.mlp.moe_statics.e_score_correction_bias", "blk.{L}.exp_probs_b.bias", row),
];

/// Ling 2.
pub(super) static LING_2: &[Rule] = &[
    rule("model.word_embeddings", "token_embd", plain),
    rule("model.layers.{L}.attention.query_key_value", "blk.{L}.attn_qkv", plain),
    rule("model.layers.{L}.attention.dense", "blk.{L}.attn_output", plain),
    rule("model.layers.{L}.attention.query_layernorm", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.attention.key_layernorm", "blk.{L}.attn_k_norm", plain),
    rule("model.layers.{L}.mlp.gate.expert_bias", "blk.{L}.exp_probs_b.bias", plain),
];

/// Hunyuan with experts.
pub(super) static HUNYUAN_MOE: &[Rule] = &[
    rule("model.layers.{L}.self_attn.query_layernorm", "blk.{L}.attn_q_norm", plain),
    rule("model.layers.{L}.self_attn.key_layernorm", "blk.{L}.attn_k_norm", plain),
    rule("model.layers.{L}.mlp.gate.wg", "blk.{L}.ffn_gate_inp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.gate_proj", "blk.{L}.ffn_gate_shexp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.up_proj", "blk.{L}.ffn_up_shexp", plain),
    rule("model.layers.{L}.mlp.shared_mlp.down_proj", "blk.{L}.ffn_down_shexp", plain),
];

/// A name that matched: the other name, with the part still open, and numbers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub to: String,
    pub layer: Option<u64>,
    pub expert: Option<u64>,
}

/// Whether a name matches a rule.
pub(super) fn matches(rule: &Rule, name: &str) -> Option<Match> {
    let (mut layer, mut expert) = (None, None);
    let mut rest = name;
    let mut pattern = rule.from;
    while let Some(open) = pattern.find('{') {
        rest = rest.strip_prefix(&pattern[..open])?;
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = rest[..digits].parse().ok()?;
        match &pattern[open..open + 3] {
            "{L}" => layer = Some(number),
            _ => expert = Some(number),
        }
        (rest, pattern) = (&rest[digits..], &pattern[open + 3..]);
    }
    let suffix = rest.strip_prefix(pattern).filter(|suffix| ["", ".weight", ".bias"].contains(suffix))?;
    let mut to = rule.to.to_owned();
    if let Some(layer) = layer {
        to = to.replace("{L}", &layer.to_string());
    }
    Some(Match { to: to + suffix, layer, expert })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_by_their_numbers_and_ends() {
        let row = rule("model.layers.{L}.mlp.experts.{E}.up_proj", "blk.{L}.ffn_up_exps", plain);
        let found = matches(&row, "model.layers.12.mlp.experts.7.up_proj.weight").unwrap();
        assert_eq!((found.to.as_str(), found.layer, found.expert), ("blk.12.ffn_up_exps.weight", Some(12), Some(7)));
        for other in [
            "model.layers.mlp.experts.7.up_proj.weight",
            "model.layers.1.mlp.experts.7.up_proj.weights",
            "model.layers.1.mlp.experts.x.up_proj",
        ] {
            assert_eq!(matches(&row, other), None, "{other}");
        }
        let plain = rule("lm_head", "output", plain);
        assert_eq!(matches(&plain, "lm_head.weight").unwrap().to, "output.weight");
        assert_eq!(matches(&plain, "lm_head.weight_scale"), None);
    }
}
