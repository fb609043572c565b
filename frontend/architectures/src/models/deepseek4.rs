//! `deepseek4`: DeepSeek-V4. It has several residual streams
//! ([`crate::layers::hyper_connections`]). A layer attends over a window of positions and over
//! compressed entries of all earlier positions. It has one key head, whose keys are also the
//! values. In the first layers, a table lists the experts of each token id (llama.cpp
//! `deepseek4.cpp`).
//!
//! ```text
//! q  = rotate(norm of each head(attn_q_b norm(attn_q_a h)));  kv = rotate(norm(attn_kv h))
//! e  = rotate(norm(compress(attn_compressor_kv h, attn_compressor_gate h)))    // for each run
//! y  = rotate back(attention(q; kv of the window, all e or the selected e; sinks))
//! attn_output_b (attn_output_a of each group of heads y)
//! ```
//!
//! An entry covers a run of consecutive positions; the number of positions differs between layers.
//! Entries of four positions overlap, and an indexer selects the entries that a token attends to.
//! The indexer's keys are compressed like entries. If the context has no more entries than the
//! indexer selects, the graph has no indexer.
//!
//! ```text
//! // a: the input of attn_q_b
//! k = rotate(norm(compress(indexer_compressor_kv h, indexer_compressor_gate h)))
//! q = rotate(indexer.attn_q_b a)
//! attention over index.top_k(q, indexer.proj h, k) {entries = true} // ir/src/graph/op.rs
//! ```
//!
//! Two steps of the authors' indexer do not change the selection and are left out. These are a
//! factor on the scores, and a Hadamard transform of queries and keys before rounding. The indexer
//! selects among entries whose positions are all at or before the token, as in the published code
//! and in llama.cpp.

mod entries;

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder, Compression, Matrices, PositionIndex, RopePositions};
use crate::decoder::{Style, network, routed_experts};
use crate::error::ArchError;
use crate::hyper::{Defaults, Windows};
use crate::layers::hyper_connections;
use entries::{EntryIndex, EntryKeys, OVERLAP_RATIO};

/// Prefix of the names of the tensors that compress the indexer's keys.
const INDEX: &str = "indexer_compressor";

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek4",
    doc: "DeepSeek-V4",
    defaults: Defaults {
        score: RouteScore::RootSoftplus,
        normalise: false,
        reads: &["swiglu_clamp_exp", "swiglu_clamp_shexp"],
        windows: Some(Windows::STATED),
        // Limits of routed experts also apply to shared experts.
        adjust: |keys, hyper| {
            hyper.limit_shared_experts(keys);
            hyper.keep_local_frequencies();
            Ok(())
        },
        ..Defaults::USUAL
    },
    build,
};

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let entries = EntryKeys::read(&b.keys(), b.model_layers, &b.hyper.rope, b.hyper.context_length)?;
    let streams = hyper_connections::streams(&b.keys())?;
    let x = b.embed()?;
    let mut x = hyper_connections::begin(b, x, streams.count)?;
    for layer in 0..b.hyper.layers.len() {
        x = hyper_connections::wrap_block(b, layer, "hc_attn", x, streams, |b, x| attention(b, layer, x, &entries))?;
        x = hyper_connections::wrap_block(b, layer, "hc_ffn", x, streams, |b, x| experts(b, layer, x, &entries))?;
    }
    hyper_connections::logits(b, x, streams)
}

/// Builds attention with its norm and its two output matrices. Adding to the streams is left to the
/// caller.
fn attention(b: &mut Builder<'_>, layer: usize, x: ValueId, of: &EntryKeys) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let (heads, d) = (b.hyper.layers[layer].heads, b.hyper.layers[layer].key_length);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.norm(x, &name("attn_norm.weight"))?;
    let row = b.linear(h, &name("attn_q_a"), width, of.query_rank, Bias::Optional)?;
    let row = b.rms_norm(row, &name("attn_q_a_norm.weight"), of.query_rank)?;
    let q = b.linear(row, &name("attn_q_b"), of.query_rank, heads * d, Bias::Optional)?;
    let q = b.split_heads(q, heads)?;
    let q = b.plain_norm(q)?;
    let q = rotate_last(b, layer, q, d, of, RopePositions::TOKENS)?;
    let kv = b.linear(h, &name("attn_kv"), width, d, Bias::Optional)?;
    let kv = b.rms_norm(kv, &name("attn_kv_a_norm.weight"), d)?;
    let kv = b.split_heads(kv, 1)?;
    let kv = rotate_last(b, layer, kv, d, of, RopePositions::TOKENS)?;
    b.append(layer, kv, kv)?;
    let y = match of.ratios[layer] {
        0 => b.attend(layer, q, true)?,
        ratio => {
            let entry = entry(b, layer, h, of, "attn_compressor", d)?;
            b.append_entries(layer, entry, ratio)?;
            let entries = if ratio == OVERLAP_RATIO { select_entries(b, layer, h, row, of)? } else { None };
            b.attend_entries(layer, q, entries)?
        }
    };
    let y = rotate_last(b, layer, y, d, of, RopePositions { back: true, ..RopePositions::TOKENS })?;
    let y = b.merge_heads(y)?;
    let (groups, rank) = (of.output_groups, of.output_rank);
    let y = b.split_heads(y, groups)?;
    let y =
        b.rows_linear(y, &name("attn_output_a"), Matrices { count: groups, rows: rank, columns: heads * d / groups })?;
    let y = b.merge_heads(y)?;
    b.linear(y, &name("attn_output_b"), groups * rank, width, Bias::Optional)
}

/// Builds the compressed entry of `d` elements that ends at each token's position. `matrices` is
/// the prefix of the compressor's tensors.
fn entry(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    of: &EntryKeys,
    matrices: &str,
    d: u64,
) -> Result<ValueId, ArchError> {
    let (width, ratio) = (b.hyper.embedding_length, of.ratios[layer]);
    let name = |part: &str| format!("blk.{layer}.{matrices}_{part}");
    let overlap = ratio == OVERLAP_RATIO;
    let series = if overlap { 2 } else { 1 };
    let kv = b.linear(h, &name("kv"), width, series * d, Bias::Optional)?;
    let gate = b.linear(h, &name("gate"), width, series * d, Bias::Optional)?;
    let state = if matrices == INDEX { format!("index.compressor.{layer}") } else { format!("compressor.{layer}") };
    let ape = &name("ape.weight");
    let entry = b.compress(&state, &Compression { kv, gate, ape, every: ratio, width: series * d, overlap })?;
    let entry = b.rms_norm(entry, &name("norm.weight"), d)?;
    let entry = b.split_heads(entry, 1)?;
    rotate_last(b, layer, entry, d, of, RopePositions { every: ratio, back: false })
}

/// Builds the selection of entries that a token attends to. `h` are normalised rows, and `row` are
/// the rows that queries are made from. Returns `None` if a token attends to all entries.
fn select_entries(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    row: ValueId,
    of: &EntryKeys,
) -> Result<Option<ValueId>, ArchError> {
    let name = |part: &str| format!("blk.{layer}.indexer.{part}");
    let Some(EntryIndex { heads, key_length, top_k }) = of.index else {
        for part in ["proj", "attn_q_b"] {
            b.leave_out(&format!("{}.weight", name(part)));
        }
        for part in ["kv", "gate", "ape", "norm"] {
            b.leave_out(&format!("blk.{layer}.{INDEX}_{part}.weight"));
        }
        return Ok(None);
    };
    let width = b.hyper.embedding_length;
    let q = b.linear(row, &name("attn_q_b"), of.query_rank, heads * key_length, Bias::Optional)?;
    let q = b.split_heads(q, heads)?;
    let q = rotate_last(b, layer, q, key_length, of, RopePositions::TOKENS)?;
    let w = b.linear(h, &name("proj"), width, heads, Bias::Optional)?;
    let k = entry(b, layer, h, of, INDEX, key_length)?;
    let index = PositionIndex { q, w, k, key_length, top_k, run: OVERLAP_RATIO, entries: true };
    b.index_top_k(&format!("index.{layer}"), &index).map(Some)
}

/// Applies RoPE to the last elements of heads of `d` elements. `positions` may round positions down
/// or reverse the rotation.
fn rotate_last(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    d: u64,
    of: &EntryKeys,
    positions: RopePositions,
) -> Result<ValueId, ArchError> {
    let rope = match of.ratios[layer] {
        0 => b.hyper.rope.without_scaling(),
        _ => of.rope.clone(),
    };
    let Some(still) = d.checked_sub(rope.dims) else {
        return Err(b.key_error("rope.dimension_count", rope.dims, &format!("at most {d}, the length of a key")));
    };
    if still == 0 {
        return b.rope_by(x, &rope, Style::LLAMA.pairs, positions);
    }
    let (still, last) = (b.slice(x, 0, still)?, b.slice(x, still, rope.dims)?);
    let last = b.rope_by(last, &rope, Style::LLAMA.pairs, positions)?;
    b.concat(still, last)
}

/// Builds routed and shared experts with their norm. Adding to the streams is left to the caller.
fn experts(b: &mut Builder<'_>, layer: usize, x: ValueId, of: &EntryKeys) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.norm(x, &name("ffn_norm.weight"))?;
    let experts = b.experts(layer)?;
    let logits = b.linear(h, &name("ffn_gate_inp"), width, experts.count, Bias::Optional)?;
    let route = match (layer as u64) < of.listed_layers {
        true => {
            // In layers with a table of experts, the selection bias has no effect.
            b.leave_out(&name("exp_probs_b.bias"));
            b.route_listed(logits, &name("ffn_gate_tid2eid.weight"), &experts)?
        }
        false => b.route(layer, logits, &experts)?,
    };
    // This second selection bias is for image tokens, so text does not use it.
    b.leave_out(&name("exp_probs_b_vl.bias"));
    let y = routed_experts(b, layer, h, route, &experts, &Style::LLAMA)?;
    if experts.shared == 0 {
        return Ok(y);
    }
    let shared = network(b, layer, h, "_shexp", experts.shared, &Style::LLAMA)?;
    b.add(y, shared)
}
