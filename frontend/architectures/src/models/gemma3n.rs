//! `gemma3n`: Gemma 3n. It has several residual streams. Layers read and write only the active
//! stream (alternating updates, AltUp, arXiv 2301.13310). A layer first predicts all streams, with
//! coefficients computed from the active stream. It then computes its result from the predicted
//! active stream, and corrects all streams by that result.
//!
//! In parallel to attention, there is a product of two low-rank matrices (Laurel). In the first
//! layers, gates are 0 unless they are far above their mean. The last layers use the keys and
//! values of earlier layers. Each layer also takes a short row that depends on the token
//! ([`crate::layers::per_layer_embeddings`]).
//!
//! ```text
//! c(x)    = tanh(altup_router rms_norm(x; altup_router_norm) / d)     // a number for each stream
//! p_k     = h_k + sum over j of (altup_predict_coef c(h_a))[k, j] * h_j
//! h       = attn_norm(p_a)
//! y    = p_a + post_attention_norm(attention h) + h + laurel_post_norm(laurel_r laurel_l h)
//! y    = y / root 2
//! y       = y + post_ffw_norm(network(ffn_norm(y)))
//! h_k     = p_k + (1 + (altup_correct_coef c(y))_k) * (y - p_a)
//! h_k     = h_k + layer_output(h_a * altup_correct_scale)                           // k > 0
//! ```
//!
//! The first stream begins as the embedding. The other streams begin as products of the embedding
//! with `altup_proj`, scaled to the embedding's length. After the last layer, their products with
//! `altup_unembd_proj` are scaled to the first stream's length. The mean of these products and the
//! first stream gives the logits.

use ixc_ir::graph::attrs::{Activation, GateAttrs};
use ixc_ir::graph::{Unary, ValueId};
use ixc_model_files::gguf::{Array, GgufError, Value};

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder, Matrices};
use crate::decoder::{HeadNorm, Style, attention_of};
use crate::error::ArchError;
use crate::hyper::{Defaults, Keys, MAX_STREAMS, Scales, Windows};
use crate::layers::hyper_connections::{mean, repeat_row};
use crate::layers::per_layer_embeddings::{self, LENGTH, LayerInputs};

const GELU: GateAttrs = GateAttrs::plain(Activation::Gelu);

const STYLE: Style = Style { head_norm: HeadNorm::WITH_VALUES, gate: GELU, ..Style::NEOX };

/// Epsilon added to a mean square before division by its root, so that rows of zeros stay zeros.
const TINY_EPS: f64 = 1e-12;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma3n",
    doc: "Gemma 3n (text only)",
    defaults: Defaults {
        reads: &["final_logit_softcapping", "attention.shared_kv_layers", LENGTH],
        windows: Some(Windows { base: Some(10_000.0), scaled: false, ..Windows::every(5) }),
        scales: |_| Scales { softcap: 30.0, ..Scales::NONE },
        attention_scale: |_| 1.0,
        ..Defaults::USUAL
    },
    build: decoder,
};

/// Number of AltUp's residual streams, and the index of the active stream, which layers read and
/// write.
///
/// ```text
/// gemma3n.altup.num_inputs = 4
/// gemma3n.altup.active_idx = 0
/// ```
#[derive(Clone, Copy)]
struct AltUp {
    /// Number of streams.
    count: u64,
    /// Index of the active stream.
    active: u64,
}

impl AltUp {
    fn read(keys: &Keys<'_>) -> Result<AltUp, GgufError> {
        let count = keys.required_size("altup.num_inputs", 2, MAX_STREAMS)?;
        Ok(AltUp { count, active: keys.required_size("altup.active_idx", 0, count - 1)? })
    }
}

/// Reads for each layer how many standard deviations above the mean a gate must be; gates below
/// become 0. `None` for layers in which all gates are kept.
///
/// ```text
/// gemma3n.activation_sparsity_scale = [1.6448, …, -inf]     // -inf: all gates are kept
/// ```
fn sparsity(keys: &Keys<'_>, layers: usize) -> Result<Vec<Option<f64>>, GgufError> {
    let name = keys.name("activation_sparsity_scale");
    let scales = match keys.metadata.get(&name) {
        None => return Ok(vec![None; layers]),
        Some(Value::Array(Array::F32(scales))) if scales.len() >= layers => scales,
        Some(value) => {
            let limit = format!("an array of {layers} floats or more, one for each layer (block_count)");
            return Err(keys.metadata.bad_value(&name, value.type_name(), limit));
        }
    };
    let deviations = |&scale: &f32| match scale {
        f32::NEG_INFINITY => Ok(None),
        scale if scale.is_finite() => Ok(Some(scale.into())),
        scale => Err(keys.metadata.bad_value(&name, scale, "finite numbers, or -inf where all gates stay")),
    };
    scales.iter().take(layers).map(deviations).collect()
}

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let (of, sparsity) = (AltUp::read(&b.keys())?, sparsity(&b.keys(), b.model_layers)?);
    let (inputs_of, width) = (LayerInputs::required_sizes(b)?, b.hyper.embedding_length);
    let x = b.embed()?;
    let x = b.scale(x, (width as f64).sqrt())?;
    let inputs = per_layer_embeddings::inputs(b, x, inputs_of)?;
    let others = repeat_row(b, x, of.count - 1)?;
    let others = match_length(b, others, x, "altup_proj", of.count - 1)?;
    let mut streams = b.concat(x, others)?;
    for layer in b.layers() {
        let predicted = predict(b, layer, streams, of)?;
        let active = b.slice(predicted, of.active * width, width)?;
        let y = block(b, layer, active, sparsity[layer])?;
        let corrected = correct(b, layer, predicted, active, y, of)?;
        let active = b.slice(corrected, of.active * width, width)?;
        let active = b.multiply_elements(active, &format!("blk.{layer}.altup_correct_scale.weight"), width)?;
        let own = per_layer_embeddings::layer_output(b, layer, active, inputs, inputs_of)?;
        let own = repeat_row(b, own, of.count - 1)?;
        let [first, others] = [b.slice(corrected, 0, width)?, b.slice(corrected, width, (of.count - 1) * width)?];
        let others = b.add(others, own)?;
        streams = b.concat(first, others)?;
    }
    let streams = b.requested_rows(streams)?;
    let first = b.slice(streams, 0, width)?;
    let others = b.slice(streams, width, (of.count - 1) * width)?;
    let others = match_length(b, others, first, "altup_unembd_proj", of.count - 1)?;
    let all = b.concat(first, others)?;
    let x = mean(b, all, of.count)?;
    b.head(x, "output_norm.weight")
}

/// Multiplies each of `count` concatenated rows by its own matrix of the tensor `name`. Scales each
/// product to the length of the row of `x`.
fn match_length(b: &mut Builder<'_>, rows: ValueId, x: ValueId, name: &str, count: u64) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let rows = b.split_heads(rows, count)?;
    let rows = b.heads_linear(rows, name, Matrices { count, rows: width, columns: width })?;
    let rows = b.plain_norm_of(rows, TINY_EPS)?;
    let rows = b.merge_heads(rows)?;
    let length = root_mean_square(b, x, width)?;
    b.scale_heads(rows, length)
}

/// Builds the root of the mean square of each row of `width` elements.
fn root_mean_square(b: &mut Builder<'_>, x: ValueId, width: u64) -> Result<ValueId, ArchError> {
    let squares = b.mul(x, x)?;
    let squares = b.split_heads(squares, 1)?;
    let sum = b.heads_sum(squares)?;
    let mean = b.scale(sum, 1.0 / width as f64)?;
    b.unary(Unary::SignedRoot, mean)
}

/// Builds `to` coefficients from each row, with the matrix `name`.
fn coefficients(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    name: &str,
    count: u64,
    to: u64,
) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let of_layer = |part: &str| format!("blk.{layer}.{part}");
    let x = b.rms_norm(x, &of_layer("altup_router_norm.weight"), width)?;
    let x = b.linear(x, &of_layer("altup_router"), width, count, Bias::Optional)?;
    let x = b.scale(x, 1.0 / width as f64)?;
    let x = b.softcap(x, 1.0)?;
    b.linear(x, &of_layer(name), count, to, Bias::Optional)
}

/// Predicts all streams, with coefficients computed from the active stream.
fn predict(b: &mut Builder<'_>, layer: usize, streams: ValueId, of: AltUp) -> Result<ValueId, ArchError> {
    let AltUp { count, active } = of;
    let width = b.hyper.embedding_length;
    let active = b.slice(streams, active * width, width)?;
    let weights = coefficients(b, layer, active, "altup_predict_coef", count, count * count)?;
    let parts = b.split_heads(streams, count)?;
    let mut sums = None;
    for stream in 0..count {
        let own = b.slice(weights, stream * count, count)?;
        let sum = b.stream_input(parts, own)?;
        sums = Some(match sums {
            Some(sums) => b.concat(sums, sum)?,
            None => sum,
        });
    }
    match sums {
        Some(sums) => b.add(sums, streams),
        None => Ok(streams),
    }
}

/// Corrects the predicted streams by the difference between the layer's result and the predicted
/// active stream.
fn correct(
    b: &mut Builder<'_>,
    layer: usize,
    predicted: ValueId,
    active: ValueId,
    y: ValueId,
    of: AltUp,
) -> Result<ValueId, ArchError> {
    let count = of.count;
    let weights = coefficients(b, layer, y, "altup_correct_coef", count, count)?;
    let negative = b.scale(active, -1.0)?;
    let differences = b.add(y, negative)?;
    let differences = repeat_row(b, differences, count)?;
    let weighted = b.scale_heads(differences, weights)?;
    let sum = b.add(differences, predicted)?;
    b.add(weighted, sum)
}

/// Builds a layer on the active stream `x`: attention in parallel to the low-rank matrices, then
/// the network. With a `sparsity`, gates are kept only above the mean plus that many standard
/// deviations.
fn block(b: &mut Builder<'_>, layer: usize, x: ValueId, sparsity: Option<f64>) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.norm(x, &name("attn_norm.weight"))?;
    let rank = b.rows(&name("laurel_l.weight")).unwrap_or(1);
    let thin = b.linear(h, &name("laurel_l"), width, rank, Bias::Optional)?;
    let thin = b.linear(thin, &name("laurel_r"), rank, width, Bias::Optional)?;
    let thin = b.rms_norm(thin, &name("laurel_post_norm.weight"), width)?;
    let thin = b.add(thin, h)?;
    let y = attention_of(b, layer, h, &STYLE)?;
    let y = b.rms_norm(y, &name("post_attention_norm.weight"), width)?;
    let y = b.add(y, x)?;
    let y = b.add(y, thin)?;
    let x = b.scale(y, 0.5_f64.sqrt())?;
    let h = b.norm(x, &name("ffn_norm.weight"))?;
    let inner = b.hyper.layers[layer].feed_forward;
    let mut gate = b.linear(h, &name("ffn_gate"), width, inner, Bias::Optional)?;
    if let Some(deviations) = sparsity {
        gate = excess(b, gate, deviations, inner)?;
    }
    let up = b.linear(h, &name("ffn_up"), width, inner, Bias::Optional)?;
    let y = b.gated(gate, up, &GELU)?;
    let y = b.linear(y, &name("ffn_down"), inner, width, Bias::Optional)?;
    let y = b.rms_norm(y, &name("post_ffw_norm.weight"), width)?;
    b.add(y, x)
}

/// Subtracts from each element the row's mean plus `deviations` standard deviations. Negative
/// results become 0.
fn excess(b: &mut Builder<'_>, x: ValueId, deviations: f64, width: u64) -> Result<ValueId, ArchError> {
    let x = b.centre(x)?;
    let deviation = root_mean_square(b, x, width)?;
    let x = b.plain_norm_of(x, TINY_EPS)?;
    let x = b.relu(x, deviations)?;
    b.scale_heads(x, deviation)
}
