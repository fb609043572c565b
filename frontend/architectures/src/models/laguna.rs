//! `laguna`: Laguna. A gate multiplies the output of attention, by head or by element. Layers may
//! have a window: the first of every four has none, and the others have other heads and another
//! RoPE. Experts are selected by sigmoids with a bias, next to a shared expert. The first layers
//! are dense.

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
