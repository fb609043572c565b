//! `step35`: Step-3.5 and 3.7 Flash. Layers without a window have fewer heads and rotate half of
//! each. A gate for each head multiplies the output of attention. Experts are selected by sigmoids
//! with a bias, next to a shared expert, and in some layers activations of gates have a limit.
//! Tensors show which layers have experts.

use ixc_ir::graph::Unary;
use ixc_ir::graph::attrs::{Activation, GateAttrs, RouteScore};

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, OutputGate, Style, decoder};
use crate::hyper::{Defaults, GuessFrom, Windows};

const STYLE: Style = Style {
    head_norm: HeadNorm::Optional,
    output_gate: OutputGate::Own(Unary::Sigmoid),
    gate: GateAttrs::plain(Activation::LimitedSilu),
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "step35",
    doc: "Step-3.5, 3.7 Flash",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        reads: &["swiglu_clamp_exp", "swiglu_clamp_shexp"],
        windows: Some(Windows { base: Some(10_000.0), scaled: false, divided: false, ..Windows::every(0) }),
        half_rotated: true,
        dense_by_tensor: true,
        guess_from: Some(GuessFrom::Stream),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
