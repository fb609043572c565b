//! `laguna`: Laguna: a gate weights what attention gives, by heads or by elements; layers may have a window, three of four behind one without, with
//! other heads and another RoPE; experts are chosen by sigmoids with a bias, beside a shared one, and the first layers are dense.

use ixc_ir::graph::Unary;
use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, OutputGate, Style, decoder};
use crate::hyper::{Defaults, Windows};

const STYLE: Style = Style { head_norm: HeadNorm::Heads, output_gate: OutputGate::Own(Unary::Softplus), ..Style::NEOX };

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
