//! Decoders: layers with attention and a feed-forward network, each applied to the normalised
//! stream and added to it.
//!
//! The differences between architectures are a [`Style`]; the file of an architecture states only
//! these. An architecture with other parts of layers can use the common parts alone: [`attention`],
//! [`feed_forward`] and [`routed_experts`].

mod networks;

use ixc_ir::graph::attrs::{Activation, GateAttrs, RopeStyle, ScoreAttrs};
use ixc_ir::graph::{Unary, ValueId};

use super::builder::{Bias, Builder, Route};
use super::error::ArchError;
use super::hyper::{Experts, Layer};
use networks::feed_forward_of;
pub(super) use networks::{
    feed_forward, gated_shared_expert, network, networks, routed_experts, select, selected_experts, shared_expert,
};

/// Queries or keys that a norm takes.
#[derive(Clone, Debug)]
pub(super) struct HeadRows {
    /// The layer.
    pub layer: usize,
    /// Whether the rows are queries; otherwise they are keys.
    pub queries: bool,
    /// Name of the norm's weight.
    pub norm: String,
    /// Elements of a row of all heads.
    pub width: u64,
    /// Number of heads.
    pub heads: u64,
    /// Elements of a head.
    pub length: u64,
    /// Whether RoPE rotates the rows.
    pub has_rope: bool,
}

/// A norm of queries or keys.
type NormHeads = fn(&mut Builder<'_>, ValueId, &HeadRows) -> Result<ValueId, ArchError>;

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadNorm {
    /// On the whole row of all heads.
    pub rows: NormHeads,
    /// On each head, before RoPE.
    pub before: NormHeads,
    /// On each head, after RoPE.
    pub after: NormHeads,
}

impl HeadNorm {
    /// No norm.
    pub const ABSENT: HeadNorm = HeadNorm { rows: |_, x, _| Ok(x), before: |_, x, _| Ok(x), after: |_, x, _| Ok(x) };
    /// RMS norm of each head, before RoPE.
    pub const HEADS: HeadNorm = HeadNorm { before: |b, x, of| b.rms_norm(x, &of.norm, of.length), ..HeadNorm::ABSENT };
    /// RMS norm of each head, before RoPE, if the file has the weights.
    pub const OPTIONAL: HeadNorm = HeadNorm {
        before: |b, x, of| if b.has(&of.norm) { b.rms_norm(x, &of.norm, of.length) } else { Ok(x) },
        ..HeadNorm::ABSENT
    };
    /// Norm of each head with its own weight, before RoPE, with the type of norm of the stream, if
    /// the file has the weights.
    pub const EACH: HeadNorm = HeadNorm {
        before: |b, x, of| match b.has(&of.norm) {
            true => b.norm_of_each(x, &of.norm, of.heads, of.length),
            false => Ok(x),
        },
        ..HeadNorm::ABSENT
    };
    /// RMS norm of each head, after RoPE.
    pub const AFTER_ROPE: HeadNorm =
        HeadNorm { after: |b, x, of| b.rms_norm(x, &of.norm, of.length), ..HeadNorm::ABSENT };
    /// RMS norm of each head, after RoPE, without a weight, in layers with RoPE.
    pub const PLAIN_AFTER_ROPE: HeadNorm =
        HeadNorm { after: |b, x, of| if of.has_rope { b.plain_norm(x) } else { Ok(x) }, ..HeadNorm::ABSENT };
    /// RMS norm of the whole row, before RoPE.
    pub const ROWS: HeadNorm = HeadNorm { rows: |b, x, of| b.rms_norm(x, &of.norm, of.width), ..HeadNorm::ABSENT };
}

/// Layers in which RoPE rotates queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RopeLayers {
    /// All layers.
    All,
    /// Layers with a window, or all layers in files without one.
    Windowed,
    /// No layers, even if files state a length to rotate.
    None,
}

/// Gate on the result of attention, before the output matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputGate {
    /// No gate.
    None,
    /// Sigmoid of one number for each element of a head's value; `attn_q` has these after the
    /// queries of each head.
    WithQueries,
    /// This function of a product with `attn_gate`, which has a number for each element, or for
    /// each head.
    Own(Unary),
}

/// Queries of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queries {
    /// The layer.
    pub layer: usize,
    /// Number of their heads.
    pub heads: u64,
    /// Whether RoPE rotated the queries.
    pub has_rope: bool,
}

/// Inputs of a layer's values.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueInputs {
    /// The layer.
    pub layer: usize,
    /// Normalised rows.
    pub h: ValueId,
    /// Rows of keys, before norm and RoPE.
    pub keys: ValueId,
    /// Elements of the values of all heads.
    pub width: u64,
}

/// Names of the norms on the outputs of a layer's blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostNorms {
    /// The norm on the output of attention.
    pub attention: &'static str,
    /// The norm on the output of the feed-forward network.
    pub network: &'static str,
}

impl PostNorms {
    /// The usual names.
    pub const USUAL: PostNorms = PostNorms { attention: "post_attention_norm", network: "post_ffw_norm" };
}

/// Widths of rows of all heads.
#[derive(Clone, Copy)]
struct RowWidths {
    q: u64,
    k: u64,
    v: u64,
}

/// Rows of keys and values.
struct KeyValueRows {
    k: ValueId,
    v: ValueId,
}

/// Differences between decoders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// Pairing of RoPE.
    pub pairs: RopeStyle,
    /// Layers with RoPE.
    pub rope_layers: RopeLayers,
    /// Multiplies queries by a function of their positions.
    pub temper: fn(&mut Builder<'_>, ValueId, Queries) -> Result<ValueId, ArchError>,
    /// Bias of Q, K and V.
    pub bias: Bias,
    /// Limits rows of queries, keys and values.
    pub limit_rows: fn(&mut Builder<'_>, ValueId) -> Result<ValueId, ArchError>,
    /// Changes the attributes of attention.
    pub scores: fn(&Builder<'_>, ScoreAttrs) -> Result<ScoreAttrs, ArchError>,
    /// Returns whether a layer has attention sinks: a logit for each head that takes a part of the
    /// weights and has no value.
    pub sinks: fn(&Layer) -> bool,
    /// Norms of queries and keys.
    pub head_norm: HeadNorm,
    /// Changes each head's values.
    pub values: fn(&mut Builder<'_>, ValueId) -> Result<ValueId, ArchError>,
    /// Builds rows of values, before they are split into heads.
    pub value_rows: fn(&mut Builder<'_>, &ValueInputs, &Style) -> Result<ValueId, ArchError>,
    /// Changes the result of attention, before its gate.
    pub attention_result: fn(&mut Builder<'_>, ValueId) -> Result<ValueId, ArchError>,
    /// Gate on the result of attention.
    pub output_gate: OutputGate,
    /// Changes rows before the output matrix of attention and before that of the network. Takes the
    /// name of a norm and the length of a row.
    pub before_output: fn(&mut Builder<'_>, ValueId, &str, u64) -> Result<ValueId, ArchError>,
    /// Whether a norm precedes attention and the feed-forward network.
    pub pre_norms: bool,
    /// Whether the feed-forward network has the same input as attention, in parallel, if it has no
    /// norm of its own.
    pub parallel: bool,
    /// The norm before the feed-forward network.
    pub ffn_norm: &'static str,
    /// Norms of the outputs of attention and of the feed-forward network, before they are added.
    pub post_norms: Option<PostNorms>,
    /// Applies these norms to rows.
    pub post_norm: fn(&mut Builder<'_>, ValueId, &str) -> Result<ValueId, ArchError>,
    /// Whether the dense network is one matrix of gates, then up, in `ffn_up`.
    pub fused_gate: bool,
    /// Builds the selection of experts from router logits of a layer.
    pub route: fn(&mut Builder<'_>, usize, ValueId, &Experts) -> Result<Route, ArchError>,
    /// Builds the shared expert of this width on rows of a layer.
    pub shared: fn(&mut Builder<'_>, usize, ValueId, u64, &Style) -> Result<ValueId, ArchError>,
    /// Activation of gates.
    pub gate: GateAttrs,
    /// Activation between up and down in networks without a gate.
    pub ungated: Option<Unary>,
    /// Embeds tokens.
    pub embed: fn(&mut Builder<'_>) -> Result<ValueId, ArchError>,
}

impl Style {
    /// Style of Llama.
    pub const LLAMA: Style = Style {
        pairs: RopeStyle::Norm,
        rope_layers: RopeLayers::All,
        temper: |b, q, _| b.temperature(q),
        bias: Bias::Optional,
        limit_rows: |_, x| Ok(x),
        scores: |_, scores| Ok(scores),
        sinks: |_| false,
        head_norm: HeadNorm::ABSENT,
        values: |_, v| Ok(v),
        value_rows,
        attention_result: |_, y| Ok(y),
        output_gate: OutputGate::None,
        before_output: |_, x, _, _| Ok(x),
        pre_norms: true,
        parallel: false,
        ffn_norm: "ffn_norm",
        post_norms: None,
        post_norm: |b, y, norm| b.rms_norm(y, norm, b.hyper.embedding_length),
        fused_gate: false,
        route: |b, layer, logits, of| b.route(layer, logits, of),
        shared: shared_expert,
        gate: GateAttrs::plain(Activation::Silu),
        ungated: None,
        embed: |b| b.embed(),
    };
    /// Style of Llama, with RoPE pairs half a head apart.
    pub const NEOX: Style = Style { pairs: RopeStyle::Neox, ..Style::LLAMA };
}

/// Builds a decoder, from token ids to logits.
pub(super) fn decoder(b: &mut Builder<'_>, style: &Style) -> Result<ValueId, ArchError> {
    let mut x = (style.embed)(b)?;
    for layer in b.layers() {
        if style.parallel && !b.has(&format!("blk.{layer}.{}.weight", style.ffn_norm)) {
            x = parallel_blocks(b, layer, x, "attn_norm", "attn_norm", style)?;
            continue;
        }
        x = attention(b, layer, x, style)?;
        x = feed_forward(b, layer, x, style)?;
    }
    b.logits(x)
}

/// Embeds tokens, and multiplies their rows by the root of the rows' length.
pub(super) fn embed_by_root(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let x = b.embed()?;
    b.scale(x, (b.hyper.embedding_length as f64).sqrt())
}

/// Embeds tokens, and adds a row of a table for each position.
pub(super) fn embed_with_positions(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let x = b.embed()?;
    add_positions(b, x)
}

/// Adds a row of a table for each position.
pub(super) fn add_positions(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ArchError> {
    let rows = b.position_rows("position_embd.weight")?;
    b.add(rows, x)
}

/// Builds attention and the feed-forward network in parallel, after one norm or after a norm each.
pub(super) fn parallel_blocks(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    attention_norm: &str,
    network_norm: &str,
    style: &Style,
) -> Result<ValueId, ArchError> {
    let name = |norm: &str| format!("blk.{layer}.{norm}.weight");
    let h = b.norm(x, &name(attention_norm))?;
    let y = attention_of(b, layer, h, style)?;
    let h = if attention_norm == network_norm { h } else { b.norm(x, &name(network_norm))? };
    let x = b.add(y, x)?;
    feed_forward_of(b, layer, x, h, style)
}

/// Builds norm, attention, output matrix, residual.
pub(super) fn attention(b: &mut Builder<'_>, layer: usize, x: ValueId, style: &Style) -> Result<ValueId, ArchError> {
    let h = if style.pre_norms { b.norm(x, &format!("blk.{layer}.attn_norm.weight"))? } else { x };
    let y = attention_of(b, layer, h, style)?;
    add(b, layer, x, y, style.post_norms.map(|norms| norms.attention), style)
}

/// Key of the limit of queries, keys and values. An architecture lists it in `reads`.
pub(super) const CLAMP_KQV: &str = "attention.clamp_kqv";

/// Clamps rows of queries, keys or values to the file's limit.
pub(super) fn clamp_kqv(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ArchError> {
    let limit = b.keys().cap(CLAMP_KQV, 0.0)?;
    b.clamp(x, limit)
}

/// Returns attributes of attention with the file's soft limit of scores, or the usual one.
pub(super) fn limited_scores(b: &Builder<'_>, scores: ScoreAttrs, usual: f64) -> Result<ScoreAttrs, ArchError> {
    Ok(ScoreAttrs { cap: b.keys().cap(SCORE_CAP, usual)?, ..scores })
}

/// Key of the soft limit of attention scores. An architecture lists it in `reads`.
pub(super) const SCORE_CAP: &str = "attn_logit_softcapping";

/// Returns whether RoPE rotates the queries and keys of a layer.
fn layer_has_rope(b: &Builder<'_>, layer: usize, style: &Style) -> bool {
    let windowed = || b.hyper.local_rope.is_none() || b.hyper.layers[layer].window.is_some();
    b.hyper.has_rope
        && b.hyper.layers[layer].has_rope
        && match style.rope_layers {
            RopeLayers::All => true,
            RopeLayers::Windowed => windowed(),
            RopeLayers::None => false,
        }
}

/// Builds attention on normalised rows, including its output matrix.
pub(super) fn attention_of(b: &mut Builder<'_>, layer: usize, h: ValueId, style: &Style) -> Result<ValueId, ArchError> {
    attention_to(b, layer, h, style, None)
}

/// Builds attention over the positions `selection`, or over all.
pub(super) fn attention_to(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    style: &Style,
    selection: Option<ValueId>,
) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let of_layer = b.hyper.layers[layer].clone();
    let name = |part: &str| format!("blk.{layer}.{part}");
    let with_queries = style.output_gate == OutputGate::WithQueries;
    let of_head = if with_queries { of_layer.key_length + of_layer.value_length } else { of_layer.key_length };
    let widths = RowWidths {
        q: of_layer.heads * of_head,
        k: of_layer.kv_heads * of_layer.key_length,
        v: of_layer.kv_heads * of_layer.value_length,
    };
    let has_rope = layer_has_rope(b, layer, style);
    let (queries, keys) = head_rows(b, layer, widths, has_rope);
    let (q, kv) = projections(b, layer, h, widths, &keys, style)?;
    let q = (style.head_norm.rows)(b, q, &queries)?;
    let mut q = b.split_heads(q, of_layer.heads)?;
    let gate = if with_queries { Some(b.slice(q, of_layer.key_length, of_layer.value_length)?) } else { None };
    if gate.is_some() {
        q = b.slice(q, 0, of_layer.key_length)?;
    }
    let rotate = |b: &mut Builder<'_>, x: ValueId, of: &HeadRows| -> Result<ValueId, ArchError> {
        let x = (style.head_norm.before)(b, x, of)?;
        let x = if of.has_rope { b.rope(layer, x, style.pairs)? } else { x };
        (style.head_norm.after)(b, x, of)
    };
    let q = rotate(b, q, &queries)?;
    let q = (style.temper)(b, q, Queries { layer, heads: of_layer.heads, has_rope })?;
    if let Some(KeyValueRows { k, v }) = kv {
        let (k, v) = (b.split_heads(k, of_layer.kv_heads)?, b.split_heads(v, of_layer.kv_heads)?);
        let v = (style.values)(b, v)?;
        let k = rotate(b, k, &keys)?;
        b.append(layer, k, v)?;
    }
    let scores = (style.scores)(b, b.scores(layer))?;
    let y = b.attend_to(layer, q, &scores, (style.sinks)(&b.hyper.layers[layer]), selection)?;
    let mut y = (style.attention_result)(b, y)?;
    if let Some(gate) = gate {
        let gate = b.sigmoid(gate)?;
        y = b.mul(y, gate)?;
    }
    let mut y = b.merge_heads(y)?;
    if let OutputGate::Own(function) = style.output_gate {
        y = gated_output(b, layer, h, y, of_layer.value_length, function)?;
    }
    let y = (style.before_output)(b, y, &name("attn_sub_norm.weight"), of_layer.heads * of_layer.value_length)?;
    b.linear(y, &name("attn_output"), of_layer.heads * of_layer.value_length, width, Bias::Optional)
}

/// Multiplies the result `y` of attention by a function of `attn_gate` times rows: element by
/// element, or head by head. A value has `value_length` elements.
pub(super) fn gated_output(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    y: ValueId,
    value_length: u64,
    function: Unary,
) -> Result<ValueId, ArchError> {
    let (width, heads) = (b.hyper.embedding_length, b.hyper.layers[layer].heads);
    let name = format!("blk.{layer}.attn_gate");
    let by_head = value_length > 1 && b.rows(&format!("{name}.weight")) == Some(heads);
    let gate = b.linear(h, &name, width, if by_head { heads } else { heads * value_length }, Bias::Optional)?;
    let gate = b.unary(function, gate)?;
    if by_head { b.scale_heads(y, gate) } else { b.mul(y, gate) }
}

/// Adds `y` to the stream, after a norm if there is one.
pub(super) fn add(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    mut y: ValueId,
    norm: Option<&str>,
    style: &Style,
) -> Result<ValueId, ArchError> {
    if let Some(norm) = norm {
        y = (style.post_norm)(b, y, &format!("blk.{layer}.{norm}.weight"))?;
    }
    b.add(y, x)
}

/// Returns the queries and keys of a layer, with rows of these widths.
fn head_rows(b: &Builder<'_>, layer: usize, widths: RowWidths, has_rope: bool) -> (HeadRows, HeadRows) {
    let of = &b.hyper.layers[layer];
    let rows = |part: &str, width: u64, heads: u64| HeadRows {
        layer,
        queries: part == "q",
        norm: format!("blk.{layer}.attn_{part}_norm.weight"),
        width,
        heads,
        length: of.key_length,
        has_rope,
    };
    (rows("q", widths.q, of.heads), rows("k", widths.k, of.kv_heads))
}

/// Builds queries, and keys and values unless the layer shares those of another: from three
/// matrices, or from one, as the file has them.
fn projections(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    widths: RowWidths,
    keys: &HeadRows,
    style: &Style,
) -> Result<(ValueId, Option<KeyValueRows>), ArchError> {
    let (name, width) = (|part: &str| format!("blk.{layer}.{part}"), b.hyper.embedding_length);
    let (RowWidths { q, k, v }, bias) = (widths, style.bias);
    let shares = b.hyper.layers[layer].shares.is_some();
    let (q, mut kv) = if b.has(&name("attn_qkv.weight")) {
        let all = b.linear(h, &name("attn_qkv"), width, q + k + v, bias)?;
        let all = (style.limit_rows)(b, all)?;
        let q_rows = b.slice(all, 0, q)?;
        if shares {
            return Ok((q_rows, None));
        }
        (q_rows, Some(KeyValueRows { k: b.slice(all, q, k)?, v: b.slice(all, q + k, v)? }))
    } else {
        let q = b.linear(h, &name("attn_q"), width, q, bias)?;
        let q = (style.limit_rows)(b, q)?;
        if shares {
            // Checkpoints have the matrices of all layers, even unused ones, and converters keep
            // them.
            let head = b.hyper.layers[layer].key_length;
            for (part, shape) in [("attn_k", &[k, width][..]), ("attn_v", &[v, width]), ("attn_k_norm", &[head])] {
                b.accept_unused(&name(&format!("{part}.weight")), shape)?;
            }
            return Ok((q, None));
        }
        let k = b.linear(h, &name("attn_k"), width, k, bias)?;
        let k = (style.limit_rows)(b, k)?;
        let v = (style.value_rows)(b, &ValueInputs { layer, h, keys: k, width: v }, style)?;
        (q, Some(KeyValueRows { k, v }))
    };
    if let Some(KeyValueRows { k, .. }) = &mut kv {
        *k = (style.head_norm.rows)(b, *k, keys)?;
    }
    Ok((q, kv))
}

/// Builds rows of values from their own matrix.
pub(super) fn value_rows(b: &mut Builder<'_>, of: &ValueInputs, style: &Style) -> Result<ValueId, ArchError> {
    let name = format!("blk.{}.attn_v", of.layer);
    let v = b.linear(of.h, &name, b.hyper.embedding_length, of.width, style.bias)?;
    (style.limit_rows)(b, v)
}
