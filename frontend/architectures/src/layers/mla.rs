//! Latent attention (MLA, DeepSeek-V2). For each position, one short row is cached, from which keys
//! and values of all heads are made.
//!
//! ```text
//! c, p = attn_kv_a_mqa x                   // r normalised elements, and one rotated part
//! q    = attn_k_b q_nope | rope(q_pe)      // absorbed: queries become latent rows, by head
//! y    = attn_v_b attention(q, c | p, c)   // the values are c, the first r elements of the keys
//! ```
//!
//! An indexer (DeepSeek sparse attention, V3.2) selects the positions that a row attends to. Its
//! queries are made from `a`, the same row as attention's queries. It has its own keys:
//!
//! ```text
//! k = rope(layer_norm(indexer.attn_k x)),  q = rope(indexer.attn_q_b a)
//! attention over index.top_k(q, indexer.proj x, k)    // ir/src/graph/op.rs
//! ```
//!
//! If queries are not made from a short row (Mistral Large 4), the indexer's queries come from the
//! layer's input, after a separate layer norm. Each indexer head then has a temperature.
//!
//! If several positions share an indexer key (GLM-5.3-Flash), the key is the mean of theirs,
//! weighted element by element by a gate (`compress`). RoPE then rotates neither the keys nor the
//! queries of the indexer.
//!
//! In Hy4, RoPE rotates the last elements of the indexer's queries and keys, as in attention,
//! instead of the first.
//!
//! Two steps of the authors' indexer are left out, as they do not change the selection: a factor on
//! the scores, and a Hadamard transform before rounding to 8 bits.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::RopeStyle;

use crate::builder::{Bias, Builder, Compression, Matrices, PositionIndex};
use crate::decoder::{OutputGate, Queries, RopeLayers, Scores, Style, feed_forward, gated_output};
use crate::error::ArchError;
use crate::hyper::{INDEXER_HEADS, Indexer, Mla};

/// Epsilon of the norm of the indexer's keys, whatever epsilon the file states (DeepSeek's
/// `model.py`).
const INDEX_EPS: f64 = 1e-6;

/// Differences between models in the indexer's queries and keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexStyle {
    /// Pairing of elements that RoPE rotates.
    pub pairs: RopeStyle,
    /// Whether RoPE rotates the last elements of a head instead of the first.
    pub rotates_last: bool,
    /// Whether the norm of keys has the epsilon of the stream's norms instead of [`INDEX_EPS`].
    pub eps_of_stream: bool,
    /// Whether queries are made from the layer's input after a separate layer norm, and each head
    /// has a temperature.
    pub of_stream: bool,
}

impl IndexStyle {
    /// Returns the properties of DeepSeek's indexer, with this pairing of RoPE.
    pub const fn usual(pairs: RopeStyle) -> IndexStyle {
        IndexStyle { pairs, rotates_last: false, eps_of_stream: false, of_stream: false }
    }
}

/// Selection of the positions that layers attend to, by an indexer.
pub(crate) struct IndexSelection {
    style: IndexStyle,
    sizes: Indexer,
    /// Positions that the last layer with its own indexer selected.
    last: Option<ValueId>,
}

/// Builds a decoder with latent attention, from token ids to logits.
pub(crate) fn decoder(b: &mut Builder<'_>, style: &Style) -> Result<ValueId, ArchError> {
    layers(b, style, None)
}

/// Builds a decoder with latent attention and an indexer.
pub(crate) fn decoder_with_indexer(
    b: &mut Builder<'_>,
    style: &Style,
    index: IndexStyle,
) -> Result<ValueId, ArchError> {
    let selection = IndexSelection::new(b, index)?;
    layers(b, style, Some(selection))
}

fn layers(b: &mut Builder<'_>, style: &Style, mut selection: Option<IndexSelection>) -> Result<ValueId, ArchError> {
    let mla = b.mla()?;
    let mut x = b.embed()?;
    for layer in b.layers() {
        x = attention(b, layer, x, &mla, style, selection.as_mut())?;
        x = feed_forward(b, layer, x, style)?;
    }
    b.logits(x)
}

impl IndexSelection {
    /// Returns the selection by the file's indexer, or an error if the file has none.
    pub(crate) fn new(b: &Builder<'_>, style: IndexStyle) -> Result<IndexSelection, ArchError> {
        Ok(IndexSelection { style, sizes: b.indexer()?, last: None })
    }

    /// Returns the selection by the file's indexer, or `None` if the file has none.
    pub(crate) fn optional(b: &Builder<'_>, style: IndexStyle) -> Result<Option<IndexSelection>, ArchError> {
        if b.keys().has(INDEXER_HEADS) { IndexSelection::new(b, style).map(Some) } else { Ok(None) }
    }

    /// Applies RoPE to queries or keys of the indexer.
    fn rotate(&self, b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, ArchError> {
        let (length, rope_dims) = (self.sizes.key_length, b.hyper.rope.dims);
        if !b.hyper.has_rope || !b.hyper.layers[layer].has_rope {
            return Ok(x);
        }
        if !self.style.rotates_last {
            return b.rope(layer, x, self.style.pairs);
        }
        let Some(plain_dims) = length.checked_sub(rope_dims).filter(|plain_dims| *plain_dims > 0) else {
            let limit = format!("more than {rope_dims}, the rotated elements");
            return Err(b.key_error("attention.indexer.key_length", length, &limit));
        };
        let (first, last) = (b.slice(x, 0, plain_dims)?, b.slice(x, plain_dims, rope_dims)?);
        let last = b.rope(layer, last, self.style.pairs)?;
        b.concat(first, last)
    }

    /// Builds the positions that a layer attends to. `h` are its normalised rows, and `row` the
    /// rows that queries are made from.
    fn select(&mut self, b: &mut Builder<'_>, layer: usize, h: ValueId, row: ValueId) -> Result<ValueId, ArchError> {
        let name = |part: &str| format!("blk.{layer}.indexer.{part}");
        let Indexer { heads, key_length, top_k, run, ref own } = self.sizes;
        if let (Some(last), false) = (self.last, own[layer]) {
            // This layer uses an earlier selection, but its file may still have an indexer's
            // tensors. In models with `of_stream`, no file has them.
            if !self.style.of_stream {
                let parts = ["attn_q_b.weight", "attn_k.weight", "k_norm.weight", "k_norm.bias", "proj.weight"];
                parts.into_iter().for_each(|part| b.leave_out(&name(part)));
                for part in ["gate", "ape"] {
                    b.leave_out(&format!("blk.{layer}.indexer_compressor_{part}.weight"));
                }
            }
            return Ok(last);
        }
        let width = b.hyper.embedding_length;
        let (row, rank) = match self.style.of_stream {
            false => (row, b.query_rank()?),
            true => {
                let row = b.centre(h)?;
                let row = b.rms_norm_of(row, &name("q_norm.weight"), width, INDEX_EPS)?;
                (b.optional_bias(row, &name("q_norm.bias"), width)?, width)
            }
        };
        let q = b.linear(row, &name("attn_q_b"), rank, heads * key_length, Bias::Optional)?;
        let mut q = b.split_heads(q, heads)?;
        if self.style.of_stream {
            q = b.heads_temperature(q, &name("temperature"), heads)?;
        }
        let q = self.rotate(b, layer, q)?;
        let k = b.linear(h, &name("attn_k"), width, key_length, Bias::Optional)?;
        let k = b.centre(k)?;
        let eps = if self.style.eps_of_stream { b.hyper.norm_eps } else { INDEX_EPS };
        let k = b.rms_norm_of(k, &name("k_norm.weight"), key_length, eps)?;
        let mut k = b.optional_bias(k, &name("k_norm.bias"), key_length)?;
        if run > 1 {
            let part = |part: &str| format!("blk.{layer}.indexer_compressor_{part}");
            let gate = b.linear(h, &part("gate"), width, key_length, Bias::Optional)?;
            let ape = &part("ape.weight");
            let runs = Compression { kv: k, gate, ape, every: run, width: key_length, overlap: false };
            k = b.compress(&format!("compressor.{layer}"), &runs)?;
        }
        let k = b.split_heads(k, 1)?;
        let k = self.rotate(b, layer, k)?;
        let w = b.linear(h, &name("proj"), width, heads, Bias::Optional)?;
        let index = PositionIndex { q, w, k, key_length, top_k, run, entries: false };
        let positions = b.index_top_k(&format!("index.{layer}"), &index)?;
        self.last = Some(positions);
        Ok(positions)
    }
}

/// Builds the attention block: norm, latent attention, output matrix, and addition to the stream.
pub(crate) fn attention(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    mla: &Mla,
    style: &Style,
    selection: Option<&mut IndexSelection>,
) -> Result<ValueId, ArchError> {
    let h = b.norm(x, &format!("blk.{layer}.attn_norm.weight"))?;
    let y = attention_of(b, layer, h, mla, style, selection)?;
    b.add(y, x)
}

/// Builds latent attention on normalised rows, including its output matrix.
pub(crate) fn attention_of(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    mla: &Mla,
    style: &Style,
    selection: Option<&mut IndexSelection>,
) -> Result<ValueId, ArchError> {
    let Mla { query_rank, rank, key_length, value_length, norm_eps } = *mla;
    let eps = norm_eps.unwrap_or(b.hyper.norm_eps);
    let (width, heads) = (b.hyper.embedding_length, b.hyper.layers[layer].heads);
    // In a layer without RoPE, the whole key is made from the latent row.
    let rope_dims = if b.hyper.layers[layer].has_rope { b.hyper.rope.dims } else { 0 };
    let plain_dims = key_length - rope_dims;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let (row, q) = match query_rank {
        Some(query_rank) => {
            let row = b.linear(h, &name("attn_q_a"), width, query_rank, Bias::Optional)?;
            let row = b.rms_norm_of(row, &name("attn_q_a_norm.weight"), query_rank, eps)?;
            (row, b.linear(row, &name("attn_q_b"), query_rank, heads * key_length, Bias::Optional)?)
        }
        None => (h, b.linear(h, &name("attn_q"), width, heads * key_length, Bias::Optional)?),
    };
    let positions = selection.map(|selection| selection.select(b, layer, h, row)).transpose()?;
    let q = b.split_heads(q, heads)?;
    let has_rope = style.rope_layers != RopeLayers::None;
    // Splits a row or head into its first elements and the rotated elements after them, if any are
    // rotated.
    let split = |b: &mut Builder<'_>, x: ValueId, first: u64| -> Result<(ValueId, Option<ValueId>), ArchError> {
        if rope_dims == 0 { Ok((x, None)) } else { Ok((b.slice(x, 0, first)?, Some(b.slice(x, first, rope_dims)?))) }
    };
    let rotate = |b: &mut Builder<'_>, x: ValueId| if has_rope { b.rope(layer, x, style.pairs) } else { Ok(x) };
    let (q_plain, q_rope) = split(b, q, plain_dims)?;
    let q_rope = q_rope.map(|x| rotate(b, x)).transpose()?;
    let q_plain =
        b.heads_linear(q_plain, &name("attn_k_b"), Matrices { count: heads, rows: rank, columns: plain_dims })?;
    let q = q_rope.map_or(Ok(q_plain), |x| b.concat(q_plain, x))?;
    let q = (style.temper)(b, q, Queries { layer, heads, has_rope: rope_dims > 0 })?;
    if b.hyper.layers[layer].shares.is_none() {
        let latent = b.linear(h, &name("attn_kv_a_mqa"), width, rank + rope_dims, Bias::Optional)?;
        let (c, k) = split(b, latent, rank)?;
        let c = b.rms_norm_of(c, &name("attn_kv_a_norm.weight"), rank, eps)?;
        let c = b.split_heads(c, 1)?;
        let norm = name("attn_k_norm.weight");
        let k = match k {
            // In some models, the rotated part of the key is normalised before RoPE (dots.3 note).
            Some(k) if b.has(&norm) => Some(b.rms_norm(k, &norm, rope_dims)?),
            k => k,
        };
        let k = k.map(|x| b.split_heads(x, 1).and_then(|x| rotate(b, x))).transpose()?;
        let k = k.map_or(Ok(c), |x| b.concat(c, x))?;
        b.append(layer, k, c)?;
    }
    let scores = (style.scores)(b, layer, Scores::usual(b, layer))?;
    let y = b.attend_to(layer, q, &scores.attrs, scores.sinks, positions)?;
    let (own, of_both) = (name("attn_v_b.weight"), name("attn_kv_b.weight"));
    let values = Matrices { count: heads, rows: value_length, columns: rank };
    let y = match !b.has(&own) && b.has(&of_both) {
        // Older files have `attn_kv_b` in place of `attn_v_b` and `attn_k_b` (see
        // `key_absorption`).
        true => b.heads_part(y, &own, &of_both, values, plain_dims)?,
        false => {
            // Some files of ik_llama.cpp have `attn_kv_b` in addition to `attn_v_b` and `attn_k_b`.
            b.leave_out(&of_both);
            b.heads_linear(y, &name("attn_v_b"), values)?
        }
    };
    let mut y = b.merge_heads(y)?;
    if let OutputGate::Own(function) = style.output_gate {
        y = gated_output(b, layer, h, y, value_length, function)?;
    }
    b.linear(y, &name("attn_output"), heads * value_length, width, Bias::Optional)
}
