//! `deepseek2`: DeepSeek-V2, V3 and R1, Kimi K2 and others with latent attention
//! ([`crate::layers::mla`]). Experts are selected from some of their groups, next to shared
//! experts. The first layers are dense. Mistral Large 3 multiplies queries of far positions.
//!
//! The score of a group depends on the scores of experts, as in DeepSeek's own code. With sigmoids
//! (V3) it is the sum of its two best experts, with a softmax (V2) its best one. llama.cpp sums two
//! in both cases.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::RouteScore;
use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::builder::{Builder, GroupScore, Route};
use crate::decoder::Style;
use crate::error::ArchError;
use crate::hyper::{Defaults, DraftInput, Experts, Hyper, Keys, SCORE, Temperature};
use crate::layers::key_absorption;
use crate::layers::mla::decoder;

/// Layers of GLM-4.7-Flash, with and without its draft layer.
const FLASH_LAYERS: [u64; 2] = [47, 48];
/// Rows of its embedding table.
const FLASH_VOCABULARY: u64 = 154_880;

pub(super) const STYLE: Style = Style::LLAMA;

pub(super) const DEFAULTS: Defaults = Defaults {
    normalise: false,
    reads: &["rope.scaling.yarn_log_multiplier", "attention.temperature_scale"],
    temperature: Temperature::OfLength,
    derived_tensors: key_absorption::tensors,
    draft_input: Some(DraftInput::Norm),
    adjust: set_score,
    ..Defaults::USUAL
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek2",
    doc: "DeepSeek-V2, V3, R1; Kimi K2, GLM-4.7-Flash, Mistral Large 3",
    defaults: DEFAULTS,
    build: |b| decoder(b, &Style { route, ..STYLE }),
};

/// Builds the selection of experts. The score of a group is that of its best expert.
fn route(b: &mut Builder<'_>, layer: usize, logits: ValueId, of: &Experts) -> Result<Route, ArchError> {
    let factors = b.expert_factors(layer, of)?;
    b.route_of(layer, logits, of, factors, GroupScore::Best)
}

/// Sets the score of GLM-4.7-Flash, whose files lack the key. Only its sizes identify it.
fn set_score(keys: &Keys<'_>, hyper: &mut Hyper) -> Result<(), GgufError> {
    let layers = keys.required("block_count", 1, u64::MAX)?;
    let is_flash = FLASH_LAYERS.contains(&layers) && hyper.vocabulary == FLASH_VOCABULARY;
    if is_flash && keys.optional(SCORE, 0, u64::MAX)?.unwrap_or(0) == 0 {
        let experts = hyper.layers.iter_mut().filter_map(|layer| layer.experts.as_mut());
        experts.for_each(|of| of.score = RouteScore::Sigmoid);
    }
    Ok(())
}
