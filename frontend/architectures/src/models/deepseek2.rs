//! `deepseek2`: DeepSeek-V2, V3 and R1, Kimi K2 and others with latent attention
//! ([`crate::layers::mla`]). Experts are selected from some of the groups of experts; shared
//! experts are added. The first layers are dense. In Mistral Large 3, a factor on queries grows
//! with the position.
//!
//! The score of a group of experts depends on the type of experts' scores, as in DeepSeek's own
//! code. With sigmoids (V3), it is the sum of the group's two best scores. With a softmax (V2), it
//! is the best score. llama.cpp sums two scores in both cases.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::{RouteScore, TemperatureAttrs};
use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::builder::{Builder, GroupScore};
use crate::decoder::{Style, feed_forward, router_logits, selected_experts};
use crate::error::ArchError;
use crate::hyper::{Defaults, DraftInput, Experts, Hyper, Keys, SCORE};
use crate::layers::mla::attention;
use crate::layers::temperature::temper;
use crate::layers::{key_absorption, temperature};

/// Number of layers of GLM-4.7-Flash, without and with its draft layer.
const FLASH_LAYERS: [u64; 2] = [47, 48];
/// Number of rows of GLM-4.7-Flash's embedding table.
const FLASH_VOCABULARY: u64 = 154_880;

pub(super) const STYLE: Style =
    Style { temper: |b, q, _| temper(b, q, TemperatureAttrs { scale: 0.0, length: 0, offset: 0 }), ..Style::LLAMA };

pub(super) const DEFAULTS: Defaults = Defaults {
    normalise: false,
    reads: &["rope.scaling.yarn_log_multiplier", temperature::SCALE],
    complete: |gguf, name| {
        let made = key_absorption::tensors(&gguf, name)?;
        gguf.with(made)
    },
    draft_input: Some(DraftInput::Norm),
    adjust: set_score,
    ..Defaults::USUAL
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek2",
    doc: "DeepSeek-V2, V3, R1; Kimi K2, GLM-4.7-Flash, Mistral Large 3",
    defaults: DEFAULTS,
    build,
};

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mla = b.mla()?;
    let mut x = b.embed()?;
    for layer in b.layers() {
        x = attention(b, layer, x, &mla, &STYLE, None)?;
        x = match b.hyper.layers[layer].experts.clone() {
            Some(of) => experts(b, layer, x, &of)?,
            None => feed_forward(b, layer, x, &STYLE)?,
        };
    }
    b.logits(x)
}

/// Builds the expert block: norm, experts, and addition to the stream. The score of a group is that
/// of its best expert.
fn experts(b: &mut Builder<'_>, layer: usize, x: ValueId, of: &Experts) -> Result<ValueId, ArchError> {
    let h = b.norm(x, &format!("blk.{layer}.ffn_norm.weight"))?;
    let logits = router_logits(b, layer, h, of)?;
    let factors = b.expert_factors(layer, of)?;
    let route = b.route_of(layer, logits, of, factors, GroupScore::Best)?;
    let (routed, shared) = selected_experts(b, layer, Some(x), h, route, of, &STYLE)?;
    b.add(routed, shared.unwrap_or(x))
}

/// Sets sigmoids as the experts' scores for GLM-4.7-Flash. Its files lack the key for this, so its
/// sizes must identify it.
fn set_score(keys: &Keys<'_>, hyper: &mut Hyper) -> Result<(), GgufError> {
    let layers = keys.required_size("block_count", 1, u64::MAX)?;
    let is_flash = FLASH_LAYERS.contains(&layers) && hyper.vocabulary == FLASH_VOCABULARY;
    if is_flash && keys.optional(SCORE, 0, u64::MAX)?.unwrap_or(0) == 0 {
        let experts = hyper.layers.iter_mut().filter_map(|layer| layer.experts.as_mut());
        experts.for_each(|of| of.score = RouteScore::Sigmoid);
    }
    Ok(())
}
