//! `nemotron_h_moe`: Nemotron 3: layers of `nemotron_h`, with experts, which are chosen by sigmoids with a bias, beside a shared one. In larger models
//! experts take a narrower row than the shared one and the router do.

use ixc_ir::graph::attrs::RouteScore;

use super::nemotron_h::decoder;
use crate::architecture::Architecture;
use crate::hyper::{Defaults, Parts, Rotates};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nemotron_h_moe",
    doc: "Nemotron 3",
    defaults: Defaults { score: RouteScore::Sigmoid, parts: Parts::One, rotates: Rotates::Never, ..Defaults::USUAL },
    build: decoder,
};
