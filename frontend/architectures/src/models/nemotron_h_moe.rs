//! `nemotron_h_moe`: Nemotron 3. Layers of `nemotron_h`, with experts, selected by sigmoids with a
//! bias, next to a shared expert. In larger models experts have a narrower input than the shared
//! expert and the router.

use ixc_ir::graph::attrs::RouteScore;

use super::nemotron_h::decoder;
use crate::architecture::Architecture;
use crate::hyper::{Defaults, LayerParts, RopeUse};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nemotron_h_moe",
    doc: "Nemotron 3",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        layer_parts: LayerParts::One,
        rope_use: RopeUse::Never,
        ..Defaults::USUAL
    },
    build: decoder,
};
