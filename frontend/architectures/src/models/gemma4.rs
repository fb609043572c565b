//! `gemma4`: Gemma 4. Layers with an attention window have heads of other sizes than layers
//! without. RoPE of layers without a window rotates a quarter of a head (`rope_freqs` disables the
//! other pairs). Values are normalised without a weight, and attention scores are not scaled. The
//! last layers may use the keys and values of earlier layers.
//!
//! Experts are parallel to the dense network. Both have their own norm, and the router has a norm,
//! too. In the small models (E2B, E4B), each layer also takes a short row that depends on the
//! token, after the feed-forward network ([`crate::layers::per_layer_embeddings`]).

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{HeadNorm, LayerMatrix, PostNorms, Style, add, attention, linear, network, routed_experts};
use crate::error::ArchError;
use crate::hyper::{Defaults, Experts, Windows};
use crate::layers::per_layer_embeddings::{self, LENGTH, LayerInputs};

const STYLE: Style = Style {
    head_norm: HeadNorm::WITH_VALUES,
    // In layers without a value matrix, the keys are also the values.
    linear: |b, of| match of.matrix {
        LayerMatrix::Values { keys } if !b.has(&format!("{}.weight", of.name)) => Ok(keys),
        _ => linear(b, of),
    },
    post_norms: Some(PostNorms::USUAL),
    gate: GateAttrs::plain(Activation::Gelu),
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma4",
    doc: "Gemma 4",
    defaults: Defaults {
        reads: &["final_logit_softcapping", "attention.shared_kv_layers", LENGTH],
        windows: Some(Windows { base: Some(10_000.0), scaled: false, ..Windows::every(0) }),
        attention_scale: |_| 1.0,
        adjust: |_, hyper| {
            hyper.keep_local_frequencies();
            Ok(())
        },
        ..Defaults::USUAL
    },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let x = b.embed()?;
    let mut x = b.scale(x, (b.hyper.embedding_length as f64).sqrt())?;
    let inputs = match LayerInputs::read(&b.keys(), b.model_layers)? {
        Some(of) => Some((of, per_layer_embeddings::inputs(b, x, of)?)),
        None => None,
    };
    for layer in 0..b.hyper.layers.len() {
        x = attention(b, layer, x, &STYLE)?;
        x = feed_forward(b, layer, x)?;
        if let Some((of, inputs)) = inputs {
            let y = per_layer_embeddings::layer_output(b, layer, x, inputs, of)?;
            x = b.add(y, x)?;
        }
        if let Some(factor) = b.optional_scalar(&format!("blk.{layer}.layer_output_scale.weight"))? {
            x = b.scale(x, factor)?;
        }
    }
    b.logits(x)
}

/// Builds the dense network. In layers with experts, builds them in parallel.
fn feed_forward(b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, ArchError> {
    let (width, inner) = (b.hyper.embedding_length, b.hyper.layers[layer].feed_forward);
    let name = |part: &str| format!("blk.{layer}.{part}.weight");
    let h = b.rms_norm(x, &name("ffn_norm"), width)?;
    let mut y = network(b, layer, h, "", inner, &STYLE)?;
    let experts = b.hyper.layers[layer].experts.clone();
    if let Some(of) = experts.filter(|_| b.has(&name("ffn_gate_inp"))) {
        y = b.rms_norm(y, &name("post_ffw_norm_1"), width)?;
        let routed = experts_of(b, layer, x, &of)?;
        let routed = b.rms_norm(routed, &name("post_ffw_norm_2"), width)?;
        y = b.add(y, routed)?;
    }
    add(b, layer, x, y, STYLE.post_norms.map(|norms| norms.network))
}

/// Builds the experts on the stream `x`, after their norm. The router takes the stream after a norm
/// of its own.
fn experts_of(b: &mut Builder<'_>, layer: usize, x: ValueId, of: &Experts) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.rms_norm(x, &name("ffn_gate_inp.scale"), width)?;
    let h = b.scale(h, 1.0 / (width as f64).sqrt())?;
    let router = b.weight(&name("ffn_gate_inp.weight"), &[of.count, width])?;
    let logits = b.matmul(h, router)?;
    let route = b.route(layer, logits, of)?;
    let h = b.rms_norm(x, &name("pre_ffw_norm_2.weight"), width)?;
    routed_experts(b, layer, h, route, of, &STYLE)
}
