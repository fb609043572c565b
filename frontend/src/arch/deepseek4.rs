//! `deepseek4`: DeepSeek-V4. The residual is several streams ([`super::streams`]); a layer attends over a window and over compressed entries of all
//! positions before, of which one head's keys are the values, too; experts of the first layers are listed by token (llama.cpp `deepseek4.cpp`).
//!
//! ```text
//! q  = turned(norm of each head(attn_q_b norm(attn_q_a h)));  kv = turned(norm(attn_kv h))
//! e  = turned(norm(compress(attn_compressor_kv h, attn_compressor_gate h)))       // one for every so many positions
//! y  = turned back(attention(q; kv of the window, whole e; sinks))
//! attn_output_b (attn_output_a of each group of heads y)
//! ```
//!
//! Where entries are of four positions they overlap, and a token chooses some of them, by tensors called `indexer`: as long as it chooses all, that is
//! as it is here. So the context is cut to as many positions.
//!
//! Beyond that a token attends to its window and to entries that an index over compressors of its own chooses, in one softmax: `attention.entries` has all entries of a state
//! and takes no list, and `index.top_k` lists positions for `attention`.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::RouteScore;

use super::Architecture;
use super::builder::{Bias, Builder};
use super::decoder::{Style, network, routed};
use super::error::ArchError;
use super::hyper::{CHOSEN_RATIO, Compressed, Defaults, Windows};
use super::streams;

/// Every layer has a window.
const WINDOWS: Windows = Windows { divided: false, ..Windows::every(u64::MAX) };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek4",
    doc: "DeepSeek-V4 (up to as many positions as its layers attend to without choosing, 2048)",
    defaults: Defaults {
        score: RouteScore::RootSoftplus,
        normalise: false,
        reads: &["swiglu_clamp_exp", "swiglu_clamp_shexp"],
        windows: Some(WINDOWS),
        compressed: true,
        one_limit: true,
        ..Defaults::USUAL
    },
    build,
};

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let compressed = b.compressed()?;
    let x = b.embed()?;
    let mut x = streams::begin(b, x)?;
    for layer in 0..b.hyper.layers.len() {
        x = streams::around(b, layer, "hc_attn", x, |b, x| attention(b, layer, x, &compressed))?;
        x = streams::around(b, layer, "hc_ffn", x, |b, x| experts(b, layer, x, &compressed))?;
    }
    streams::logits(b, x)
}

/// Norm, attention, output matrices.
fn attention(b: &mut Builder<'_>, layer: usize, x: ValueId, of: &Compressed) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let (heads, d) = (b.hyper.layers[layer].heads, b.hyper.layers[layer].key_length);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.norm(x, &name("attn_norm.weight"))?;
    let q = b.linear(h, &name("attn_q_a"), width, of.query_rank, Bias::Optional)?;
    let q = b.rms_norm(q, &name("attn_q_a_norm.weight"), of.query_rank)?;
    let q = b.linear(q, &name("attn_q_b"), of.query_rank, heads * d, Bias::Optional)?;
    let q = b.split_heads(q, heads)?;
    let q = b.plain_norm(q)?;
    let q = turned(b, layer, q, of, (1, false))?;
    let kv = b.linear(h, &name("attn_kv"), width, d, Bias::Optional)?;
    let kv = b.rms_norm(kv, &name("attn_kv_a_norm.weight"), d)?;
    let kv = b.split_heads(kv, 1)?;
    let kv = turned(b, layer, kv, of, (1, false))?;
    b.append(layer, kv, kv)?;
    let y = match of.ratios[layer] {
        0 => b.attend(layer, q, true)?,
        ratio => {
            let entry = entry(b, layer, h, of, ratio)?;
            b.append_entries(layer, entry, ratio)?;
            b.attend_entries(layer, q)?
        }
    };
    let y = turned(b, layer, y, of, (1, true))?;
    let y = b.merge_heads(y)?;
    let (groups, rank) = (of.output_groups, of.output_rank);
    let y = b.split_heads(y, groups)?;
    let y = b.rows_linear(y, &name("attn_output_a"), [groups, rank, heads * d / groups])?;
    let y = b.merge_heads(y)?;
    b.linear(y, &name("attn_output_b"), groups * rank, width, Bias::Optional)
}

/// The entry that a token's positions make, as far as they came.
fn entry(b: &mut Builder<'_>, layer: usize, h: ValueId, of: &Compressed, ratio: u64) -> Result<ValueId, ArchError> {
    let (width, d) = (b.hyper.embedding_length, b.hyper.layers[layer].key_length);
    let name = |part: &str| format!("blk.{layer}.attn_compressor_{part}");
    let overlap = ratio == CHOSEN_RATIO;
    let series = if overlap { 2 } else { 1 };
    let kv = b.linear(h, &name("kv"), width, series * d, Bias::Optional)?;
    let gate = b.linear(h, &name("gate"), width, series * d, Bias::Optional)?;
    let entry = b.compress(layer, [kv, gate], &name("ape.weight"), [ratio, series * d], overlap)?;
    let entry = b.rms_norm(entry, &name("norm.weight"), d)?;
    let entry = b.split_heads(entry, 1)?;
    if overlap {
        // What chooses: nothing, while it chooses all.
        for part in ["indexer.proj", "indexer.attn_q_b"] {
            b.leave_out(&format!("blk.{layer}.{part}.weight"));
        }
        for part in ["kv", "gate", "ape", "norm"] {
            b.leave_out(&format!("blk.{layer}.indexer_compressor_{part}.weight"));
        }
    }
    turned(b, layer, entry, of, (ratio, false))
}

/// Heads whose last elements are rotated, by positions rounded down to a multiple, and maybe back.
fn turned(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    of: &Compressed,
    by: (u64, bool),
) -> Result<ValueId, ArchError> {
    let d = b.hyper.layers[layer].key_length;
    let rope = match of.ratios[layer] {
        0 => b.hyper.rope.unscaled(),
        _ => of.rope.clone(),
    };
    let Some(still) = d.checked_sub(rope.dims) else {
        return Err(b.refused("rope.dimension_count", rope.dims, &format!("at most {d}, the length of a key")));
    };
    if still == 0 {
        return b.rope_by(x, &rope, Style::LLAMA.pairs, by);
    }
    let (still, last) = (b.slice(x, 0, still)?, b.slice(x, still, rope.dims)?);
    let last = b.rope_by(last, &rope, Style::LLAMA.pairs, by)?;
    b.concat(still, last)
}

/// Norm, routed and shared experts.
fn experts(b: &mut Builder<'_>, layer: usize, x: ValueId, of: &Compressed) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.norm(x, &name("ffn_norm.weight"))?;
    let experts = b.experts(layer)?;
    let logits = b.linear(h, &name("ffn_gate_inp"), width, experts.count, Bias::Optional)?;
    let chosen = match (layer as u64) < of.listed_layers {
        true => {
            // Nothing is chosen by it.
            b.leave_out(&name("exp_probs_b.bias"));
            b.route_listed(logits, &name("ffn_gate_tid2eid.weight"), &experts)?
        }
        false => b.route(layer, logits, &experts)?,
    };
    // Another bias of the same, for images.
    b.leave_out(&name("exp_probs_b_vl.bias"));
    let y = routed(b, layer, h, chosen, &experts, &Style::LLAMA)?;
    if experts.shared == 0 {
        return Ok(y);
    }
    let shared = network(b, layer, h, "_shexp", experts.shared, &Style::LLAMA)?;
    b.add(y, shared)
}
