//! `bailingmoe3`: Ling 3. Most layers have linear attention with a bounded decay for each element
//! of a key ([`crate::layers::kda`]). Some have latent attention with a gate for each head
//! ([`crate::layers::mla`]). Experts are selected by sigmoids with a bias, from some of the groups
//! of experts; shared experts are added (llama.cpp `bailingmoe3.cpp`).

use ixc_ir::graph::Unary;
use ixc_ir::graph::attrs::{Activation, GateAttrs, RouteScore};

use crate::architecture::Architecture;
use crate::decoder::{OutputGate, Style};
use crate::hyper::{Defaults, LayerParts};
use crate::layers::kda;

const STYLE: Style = Style {
    output_gate: OutputGate::Own(Unary::Sigmoid),
    gate: GateAttrs::plain(Activation::LimitedSilu),
    ..Style::LLAMA
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bailingmoe3",
    doc: "Ling 3",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        reads: &["swiglu_clamp_exp", "swiglu_clamp_shexp", "rope.scaling.yarn_log_multiplier"],
        layer_parts: LayerParts::Keyless,
        ..Defaults::USUAL
    },
    build: |b| kda::decoder(b, &STYLE),
};
