//! `phimoe`: Phi-3.5 with experts: layer norms, biases, and a router of its own, SparseMixer: the weight of each of the two experts is its part in a
//! softmax over those that are left and near it. llama.cpp takes a softmax over all and divides by the sum of the chosen, which the model was not
//! trained with; this is what its authors' code does.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style::NEOX;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "phimoe",
    doc: "Phi-3.5 with experts",
    defaults: Defaults { score: RouteScore::SparseMixer, normalise: false, norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
