//! Decoders: layers with attention and a feed-forward network. Each takes the normalised residual
//! stream, and its output is added to the stream.
//!
//! A [`Style`] describes the differences between architectures, and the file of an architecture
//! states only those. An architecture whose layers differ more can use just the common blocks:
//! [`attention`], [`feed_forward`] and [`routed_experts`].

mod networks;

use ixc_ir::graph::attrs::{Activation, GateAttrs, RopeStyle, ScoreAttrs};
use ixc_ir::graph::{State, Unary, ValueId};

use super::builder::{Bias, Builder};
use super::error::ArchError;
use networks::feed_forward_of;
pub(super) use networks::{
    feed_forward, gated_shared_expert, network, networks, routed_experts, router_logits, select, selected_experts,
    shared_expert,
};

/// Description of queries or keys that a norm takes.
#[derive(Clone, Debug)]
pub(super) struct HeadRows {
    /// Number of the layer.
    pub layer: usize,
    /// Whether the rows are queries; otherwise they are keys.
    pub queries: bool,
    /// Name of the norm's weight.
    pub norm: String,
    /// Number of elements in a row of all heads.
    pub width: u64,
    /// Number of heads.
    pub heads: u64,
    /// Number of elements in a head.
    pub length: u64,
    /// Whether RoPE rotates these heads.
    pub has_rope: bool,
}

/// Function that builds a norm of queries or keys.
type NormHeads = fn(&mut Builder<'_>, ValueId, &HeadRows) -> Result<ValueId, ArchError>;

/// Norms of queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadNorm {
    /// Norm of the whole row of all heads.
    pub rows: NormHeads,
    /// Norm of each head, before RoPE.
    pub before: NormHeads,
    /// Norm of each head, after RoPE.
    pub after: NormHeads,
    /// Norm of each head's values.
    pub values: fn(&mut Builder<'_>, ValueId) -> Result<ValueId, ArchError>,
}

impl HeadNorm {
    /// No norm.
    pub const ABSENT: HeadNorm =
        HeadNorm { rows: |_, x, _| Ok(x), before: |_, x, _| Ok(x), after: |_, x, _| Ok(x), values: |_, x| Ok(x) };
    /// RMS norm of each head, before RoPE.
    pub const HEADS: HeadNorm = HeadNorm { before: |b, x, of| b.rms_norm(x, &of.norm, of.length), ..HeadNorm::ABSENT };
    /// RMS norm of each head of queries and keys, before RoPE, and of values, which has no weight.
    pub const WITH_VALUES: HeadNorm = HeadNorm { values: |b, v| b.plain_norm(v), ..HeadNorm::HEADS };
    /// RMS norm of each head, before RoPE, if the file has the weights.
    pub const OPTIONAL: HeadNorm = HeadNorm {
        before: |b, x, of| if b.has(&of.norm) { b.rms_norm(x, &of.norm, of.length) } else { Ok(x) },
        ..HeadNorm::ABSENT
    };
    /// Norm of each head, each with its own weight, before RoPE, if the file has the weights. It
    /// has the type of the stream's norms.
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
    /// RMS norm of each head without a weight, after RoPE. Layers without RoPE have no such norm.
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
    /// No layers, even if the file states a number of elements to rotate.
    None,
}

/// Gate on the result of attention, before the output matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputGate {
    /// No gate.
    None,
    /// Sigmoid of gate logits, one for each element of a head's value. `attn_q` contains their
    /// rows, after the query rows of each head.
    WithQueries,
    /// This function of the product of the layer's input and `attn_gate`. The product has a number
    /// for each element of the values, or for each head.
    Own(Unary),
}

/// Description of a layer's queries, for [`Style::temper`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Queries {
    /// Number of the layer.
    pub layer: usize,
    /// Number of query heads.
    pub heads: u64,
    /// Whether RoPE rotated the queries.
    pub has_rope: bool,
}

/// Matrix of a layer whose product an architecture may change with [`Style::linear`].
#[derive(Clone, Copy, Debug)]
pub(super) enum LayerMatrix {
    /// `attn_qkv`: queries, keys and values.
    QueriesKeysValues,
    /// Queries: `attn_q`.
    Queries,
    /// Keys: `attn_k`.
    Keys,
    /// Values: `attn_v`.
    Values {
        /// Rows of keys, before norm and RoPE. Some architectures derive values from them.
        keys: ValueId,
    },
    /// Output projection: `attn_output`.
    Output,
    /// `ffn_down` of a dense network or a shared expert.
    Down,
}

/// Product of rows with a matrix of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product<'a> {
    /// Number of the layer.
    pub layer: usize,
    /// Matrix to multiply with.
    pub matrix: LayerMatrix,
    /// Name of the matrix, without `.weight`.
    pub name: &'a str,
    /// Rows of activations to multiply by the matrix.
    pub x: ValueId,
    /// Length of a row of `x`.
    pub from: u64,
    /// Length of a row of the product.
    pub to: u64,
}

impl Product<'_> {
    /// Returns whether the product has rows of queries, keys or values.
    pub fn is_projection(&self) -> bool {
        match self.matrix {
            LayerMatrix::QueriesKeysValues | LayerMatrix::Queries | LayerMatrix::Keys | LayerMatrix::Values { .. } => {
                true
            }
            LayerMatrix::Output | LayerMatrix::Down => false,
        }
    }
}

/// Builds the usual product, plus a bias if the file has one.
pub(super) fn linear(b: &mut Builder<'_>, of: &Product<'_>) -> Result<ValueId, ArchError> {
    b.linear(of.x, of.name, of.from, of.to, Bias::Optional)
}

/// Builds the usual product, plus a bias if the file has one. The file must have one for queries,
/// keys and values.
pub(super) fn biased_projections(b: &mut Builder<'_>, of: &Product<'_>) -> Result<ValueId, ArchError> {
    b.linear(of.x, of.name, of.from, of.to, if of.is_projection() { Bias::Required } else { Bias::Optional })
}

/// Properties of a layer's attention scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scores {
    /// Attributes of the attention op.
    pub attrs: ScoreAttrs,
    /// Whether the layer has attention sinks. A sink is a logit for each head that takes part in
    /// the softmax, but has no value.
    pub sinks: bool,
}

impl Scores {
    /// Returns the usual scores of a layer.
    pub fn usual(b: &Builder<'_>, layer: usize) -> Scores {
        Scores { attrs: b.scores(layer), sinks: false }
    }
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
    /// Names in the files of most architectures.
    pub const USUAL: PostNorms = PostNorms { attention: "post_attention_norm", network: "post_ffw_norm" };
}

/// Elements in a row of all heads, for queries, keys and values.
#[derive(Clone, Copy)]
struct RowWidths {
    q: u64,
    k: u64,
    v: u64,
}

/// Rows of a layer's keys and values.
struct KeyValueRows {
    k: ValueId,
    v: ValueId,
}

/// Differences between decoders. A table in `docs/extending.md` lists, for each difference, its
/// field here or the function that handles it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// Pairing of elements that RoPE rotates.
    pub pairs: RopeStyle,
    /// Layers with RoPE.
    pub rope_layers: RopeLayers,
    /// Function that multiplies queries by a function of their positions.
    pub temper: fn(&mut Builder<'_>, ValueId, Queries) -> Result<ValueId, ArchError>,
    /// Function that builds the product with a matrix of attention, or with `ffn_down` of a dense
    /// network or a shared expert. It has no effect on routed experts: [`routed_experts`] builds
    /// their products.
    pub linear: fn(&mut Builder<'_>, &Product<'_>) -> Result<ValueId, ArchError>,
    /// Function that changes the usual attention scores of a layer.
    pub scores: fn(&Builder<'_>, usize, Scores) -> Result<Scores, ArchError>,
    /// Function that changes the usual state of a layer's keys and values.
    pub state: fn(State) -> State,
    /// Norms of queries, keys and values.
    pub head_norm: HeadNorm,
    /// Gate on the result of attention.
    pub output_gate: OutputGate,
    /// Whether a norm precedes attention and the feed-forward network.
    pub pre_norms: bool,
    /// Whether the feed-forward network has the same input as attention, in layers without a norm
    /// of their own for the network.
    pub parallel: bool,
    /// Name of the norm before the feed-forward network.
    pub ffn_norm: &'static str,
    /// Names of the norms on the outputs of attention and of the feed-forward network, before the
    /// outputs are added to the stream.
    pub post_norms: Option<PostNorms>,
    /// Whether `ffn_up` of the dense network has the rows of both the gate and the up matrix.
    pub fused_gate: bool,
    /// Function that builds the shared expert on rows of a layer. The number is the expert's width.
    pub shared: fn(&mut Builder<'_>, usize, ValueId, u64, &Style) -> Result<ValueId, ArchError>,
    /// Activation of gates.
    pub gate: GateAttrs,
    /// Activation between the up and down matrices, in networks without a gate.
    pub ungated: Option<Unary>,
    /// Function that embeds tokens.
    pub embed: fn(&mut Builder<'_>) -> Result<ValueId, ArchError>,
}

impl Style {
    /// Style of Llama.
    pub const LLAMA: Style = Style {
        pairs: RopeStyle::Norm,
        rope_layers: RopeLayers::All,
        temper: |_, q, _| Ok(q),
        linear,
        scores: |_, _, scores| Ok(scores),
        state: |state| state,
        head_norm: HeadNorm::ABSENT,
        output_gate: OutputGate::None,
        pre_norms: true,
        parallel: false,
        ffn_norm: "ffn_norm",
        post_norms: None,
        fused_gate: false,
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

/// Embeds tokens, and multiplies the result by the square root of its row length.
pub(super) fn embed_by_root(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let x = b.embed()?;
    b.scale(x, (b.hyper.embedding_length as f64).sqrt())
}

/// Embeds tokens, and adds for each token the row of its position in `position_embd`.
pub(super) fn embed_with_positions(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let x = b.embed()?;
    add_positions(b, x)
}

/// Adds to each row of `x` the row of its position in `position_embd`.
pub(super) fn add_positions(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ArchError> {
    let rows = b.position_rows("position_embd.weight")?;
    b.add(rows, x)
}

/// Builds attention and the feed-forward network in parallel. They have one norm before them, or a
/// norm each.
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

/// Builds the attention block: norm, attention, output matrix, and addition to the stream.
pub(super) fn attention(b: &mut Builder<'_>, layer: usize, x: ValueId, style: &Style) -> Result<ValueId, ArchError> {
    let h = if style.pre_norms { b.norm(x, &format!("blk.{layer}.attn_norm.weight"))? } else { x };
    let y = attention_of(b, layer, h, style)?;
    add(b, layer, x, y, style.post_norms.map(|norms| norms.attention))
}

/// Key of the limit that queries, keys and values are clamped to. Architectures that support the
/// key list it in `reads`.
pub(super) const CLAMP_KQV: &str = "attention.clamp_kqv";

/// Builds the product, and clamps queries, keys and values to the limit that the file states.
pub(super) fn clamped_projections(b: &mut Builder<'_>, of: &Product<'_>) -> Result<ValueId, ArchError> {
    let y = linear(b, of)?;
    if !of.is_projection() {
        return Ok(y);
    }
    let limit = b.keys().cap(CLAMP_KQV, 0.0)?;
    b.clamp(y, limit)
}

/// Returns scores with the soft limit that the file states, or `usual` without the key.
pub(super) fn limited_scores(b: &Builder<'_>, scores: Scores, usual: f64) -> Result<Scores, ArchError> {
    Ok(Scores { attrs: ScoreAttrs { cap: b.keys().cap(SCORE_CAP, usual)?, ..scores.attrs }, ..scores })
}

/// Key of the soft limit of attention scores. Architectures that support the key list it in
/// `reads`.
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

/// Builds attention on normalised rows, including its output matrix, over the positions
/// `selection`, or over all positions.
pub(super) fn attention_to(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    style: &Style,
    selection: Option<ValueId>,
) -> Result<ValueId, ArchError> {
    let y = build_attention(b, layer, h, style, selection)?;
    attention_output(b, layer, h, y, style)
}

/// Result of attention, before its gate and output matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionOutput {
    /// Weighted sums of values, `[T, heads, d]`.
    pub heads: ValueId,
    /// Logits of the gate, if the query matrix has rows for them.
    gate: Option<ValueId>,
}

/// Builds attention on normalised rows over the positions `selection`, or over all positions. The
/// result lacks the gate and the output matrix.
pub(super) fn build_attention(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    style: &Style,
    selection: Option<ValueId>,
) -> Result<AttentionOutput, ArchError> {
    let of_layer = b.hyper.layers[layer].clone();
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
        let v = (style.head_norm.values)(b, v)?;
        let k = rotate(b, k, &keys)?;
        b.append_to(layer, (style.state)(b.key_value_state(layer)), k, v)?;
    }
    let scores = (style.scores)(b, layer, Scores::usual(b, layer))?;
    let heads = b.attend_to(layer, q, &scores.attrs, scores.sinks, selection)?;
    Ok(AttentionOutput { heads, gate })
}

/// Builds the gate and the output matrix of attention. `h` are the normalised rows that attention
/// took.
pub(super) fn attention_output(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    of: AttentionOutput,
    style: &Style,
) -> Result<ValueId, ArchError> {
    let AttentionOutput { heads: mut y, gate } = of;
    let (heads, value_length) = (b.hyper.layers[layer].heads, b.hyper.layers[layer].value_length);
    if let Some(gate) = gate {
        let gate = b.sigmoid(gate)?;
        y = b.mul(y, gate)?;
    }
    let mut y = b.merge_heads(y)?;
    if let OutputGate::Own(function) = style.output_gate {
        y = gated_output(b, layer, h, y, value_length, function)?;
    }
    let name = format!("blk.{layer}.attn_output");
    let (from, to) = (heads * value_length, b.hyper.embedding_length);
    (style.linear)(b, &Product { layer, matrix: LayerMatrix::Output, name: &name, x: y, from, to })
}

/// Multiplies `y`, the result of attention, by a function of the product of `h` and `attn_gate`.
/// The gate has a number for each element, or for each head. A head has `value_length` elements.
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

/// Adds `y` to the stream `x`, after the norm `norm` if it is given.
pub(super) fn add(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    mut y: ValueId,
    norm: Option<&str>,
) -> Result<ValueId, ArchError> {
    if let Some(norm) = norm {
        y = b.rms_norm(y, &format!("blk.{layer}.{norm}.weight"), b.hyper.embedding_length)?;
    }
    b.add(y, x)
}

/// Returns descriptions of a layer's queries and keys, for their norms.
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

/// Builds queries, keys and values. The file has three matrices for them, or one. Returns no keys
/// and values if the layer shares those of another layer.
fn projections(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    widths: RowWidths,
    keys: &HeadRows,
    style: &Style,
) -> Result<(ValueId, Option<KeyValueRows>), ArchError> {
    let (name, width) = (|part: &str| format!("blk.{layer}.{part}"), b.hyper.embedding_length);
    let RowWidths { q, k, v } = widths;
    let product = |b: &mut Builder<'_>, part: &str, matrix: LayerMatrix, to: u64| {
        (style.linear)(b, &Product { layer, matrix, name: &name(part), x: h, from: width, to })
    };
    let shares = b.hyper.layers[layer].shares.is_some();
    let (q, mut kv) = if b.has(&name("attn_qkv.weight")) {
        let all = product(b, "attn_qkv", LayerMatrix::QueriesKeysValues, q + k + v)?;
        let q_rows = b.slice(all, 0, q)?;
        if shares {
            return Ok((q_rows, None));
        }
        (q_rows, Some(KeyValueRows { k: b.slice(all, q, k)?, v: b.slice(all, q + k, v)? }))
    } else {
        let q = product(b, "attn_q", LayerMatrix::Queries, q)?;
        if shares {
            // The layer shares keys and values. Checkpoints and files still have its matrices for
            // them.
            let head = b.hyper.layers[layer].key_length;
            for (part, shape) in [("attn_k", &[k, width][..]), ("attn_v", &[v, width]), ("attn_k_norm", &[head])] {
                b.accept_unused(&name(&format!("{part}.weight")), shape)?;
            }
            return Ok((q, None));
        }
        let k = product(b, "attn_k", LayerMatrix::Keys, k)?;
        let v = product(b, "attn_v", LayerMatrix::Values { keys: k }, v)?;
        (q, Some(KeyValueRows { k, v }))
    };
    if let Some(KeyValueRows { k, .. }) = &mut kv {
        *k = (style.head_norm.rows)(b, *k, keys)?;
    }
    Ok((q, kv))
}
