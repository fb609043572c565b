//! `grok`: Grok 1 and 2. A norm precedes and follows each block, gates go through GELU, and
//! attention scores and router logits have soft limits. In Grok 2, a dense network is parallel to
//! the experts, and both outputs are multiplied by the square root of 1/2.
//!
//! The weights of experts are a softmax over all experts, not divided by the sum of the selected
//! weights. RoPE is not scaled: the configuration of Grok 2 says "original", which converters write
//! as YaRN. From position `attention.temperature_length` on, attention scores would grow with the
//! position. This is not supported, so the context ends at that position. The sources are
//! `xai-org/grok-1` and SGLang's `grok.py`, which Grok 2's authors wrote.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::{Activation, GateAttrs};
use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder};
use crate::decoder::{PostNorms, SCORE_CAP, Style, add, attention, limited_scores, network, routed_experts};
use crate::error::ArchError;
use crate::hyper::{Defaults, Hyper, Keys, MAX_CONTEXT, Rope, Scales, Widths};

const STYLE: Style = Style {
    post_norms: Some(PostNorms { attention: "attn_output_norm", network: "post_ffw_norm" }),
    gate: GateAttrs::plain(Activation::Gelu),
    scores: |b, _, scores| limited_scores(b, scores, CAP),
    ..Style::NEOX
};
/// Soft limit of attention scores and of router logits in Grok 1. Its first files have no keys for
/// them.
const CAP: f64 = 30.0;
/// Key of the soft limit of router logits.
const ROUTER_CAP: &str = "router_logit_softcapping";
/// Name of the norm after the experts in files of Grok 1.
const OTHER_NORM: &str = "layer_output_norm";

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "grok",
    doc: "Grok 1, Grok 2",
    defaults: Defaults {
        normalise: false,
        reads: &["embedding_scale", "logit_scale", SCORE_CAP, ROUTER_CAP, "final_logit_softcapping"],
        scales,
        logits_multiplied: true,
        adjust: |keys, hyper| {
            hyper.set_rope(keys, |keys, sizes| Rope::plain(keys, sizes, Rope::rotated_dims(keys, sizes)?))?;
            limit_context(keys, hyper)
        },
        attention_scale: |_| 0.088_388_347_648_318_45,
        ..Defaults::USUAL
    },
    build: decoder,
};

/// Returns the scales of Grok 1, whose first files have no keys for them.
fn scales(_: &Widths) -> Scales {
    Scales { embedding: 78.383_671_769_061_69, logit: 3f64.sqrt(), ..Scales::NONE }
}

/// Limits the context to the positions whose attention scores have no additional factor.
fn limit_context(keys: &Keys<'_>, hyper: &mut Hyper) -> Result<(), GgufError> {
    const LENGTH: &str = "attention.temperature_length";
    let most = keys.optional(LENGTH, 0, MAX_CONTEXT)?.filter(|&most| most > 0).unwrap_or(hyper.context_length);
    if most < hyper.context_length {
        let stated = hyper.context_length;
        tracing::warn!(most, stated, "positions after {LENGTH} are not supported; the context ends there");
        hyper.context_length = most;
    }
    Ok(())
}

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let (width, cap) = (b.hyper.embedding_length, b.keys().cap(ROUTER_CAP, CAP)?);
    let mut x = b.embed()?;
    for layer in b.layers() {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let experts = b.experts(layer)?;
        x = attention(b, layer, x, &STYLE)?;
        let h = b.norm(x, &name("ffn_norm"))?;
        let mut logits = b.linear(h, &format!("blk.{layer}.ffn_gate_inp"), width, experts.count, Bias::Optional)?;
        if cap != 0.0 {
            logits = b.softcap(logits, cap)?;
        }
        let route = b.route(layer, logits, &experts)?;
        let mut y = routed_experts(b, layer, h, route, &experts, &STYLE)?;
        if b.has(&name("ffn_up")) {
            let dense = network(b, layer, h, "", b.hyper.layers[layer].feed_forward, &STYLE)?;
            y = b.add(dense, y)?;
            y = b.scale(y, std::f64::consts::FRAC_1_SQRT_2)?;
        }
        let usual = STYLE.post_norms.map(|norms| norms.network);
        let norm = if b.has(&name(OTHER_NORM)) { Some(OTHER_NORM) } else { usual };
        x = add(b, layer, x, y, norm)?;
    }
    b.logits(x)
}
