//! `spark2_5`: Spark X2.5: as `llama`; a sigmoid of each head weights what attention gives, some layers have a window, with RoPE of their own in a part of each head, and gates
//! go through GELU by the error function, as the model's configuration says (`gelu`).

use ixc_ir::graph::Unary;
use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::decoder::{OutputGate, Style, decoder};
use crate::hyper::{Defaults, Windows};

const STYLE: Style =
    Style { output_gate: OutputGate::Own(Unary::Sigmoid), gate: GateAttrs::plain(Activation::GeluErf), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "spark2_5",
    doc: "Spark X2.5",
    defaults: Defaults { windows: Some(Windows::every(0)), ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
