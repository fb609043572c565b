//! `phimoe`: Phi-3.5 with experts. It has layer norms and biases, and the router SparseMixer. The
//! weight of each of the two experts is its part in a softmax over the remaining experts with
//! similar scores. The authors' code does the same. In llama.cpp the weights are a softmax over all
//! experts, normalised over the selected ones, which differs from training.

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
