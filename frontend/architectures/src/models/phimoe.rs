//! `phimoe`: Phi-3.5 with experts. It has layer norms and biases, and the router SparseMixer. The
//! router selects two experts, one after the other. Each weight is the expert's share of a softmax
//! over the experts that are not yet selected and have similar logits. The authors' code does the
//! same. In llama.cpp, the weights are a softmax over all experts, divided by the sum of the
//! selected weights, which differs from training.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style::NEOX;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "phimoe",
    doc: "Phi-3.5, MoE",
    defaults: Defaults { score: RouteScore::SparseMixer, normalise: false, norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
