//! `nemotron_h_moe`: Nemotron 3. Layers are like those of `nemotron_h`, but with experts, which are
//! selected by sigmoids with a bias. A shared expert is added. In larger models, routed experts
//! take narrower rows than the shared expert and the router.

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
