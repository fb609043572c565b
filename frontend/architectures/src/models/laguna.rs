//! `laguna`: Laguna. A gate for each head or element multiplies the output of attention. If files
//! have an attention window, the first of every four layers has none. The other three layers then
//! have other head counts and another RoPE. Experts are selected by sigmoids with a bias; a shared
//! expert is added. The first layers are dense.

use ixc_ir::graph::Unary;
use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, OutputGate, Style, decoder};
use crate::hyper::{Defaults, Windows};

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, output_gate: OutputGate::Own(Unary::Softplus), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "laguna",
    doc: "Laguna",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        windows: Some(Windows { first_is_full: true, optional: true, scaled: false, ..Windows::every(4) }),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
