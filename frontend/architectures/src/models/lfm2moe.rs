//! `lfm2moe`: LFM2 with experts, which are selected by sigmoids with a bias. The first layers are
//! dense. Mixing of tokens is like that of `lfm2`.

use ixc_ir::graph::attrs::RouteScore;

use super::lfm2::{STYLE, decoder};
use crate::architecture::Architecture;
use crate::hyper::{Defaults, LayerParts};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "lfm2moe",
    doc: "LFM2 and LFM2.5, MoE",
    defaults: Defaults { score: RouteScore::Sigmoid, layer_parts: LayerParts::Keyless, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
