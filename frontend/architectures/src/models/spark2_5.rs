//! `spark2_5`: Spark X2.5. Like `llama`, but a sigmoid for each head gates the output of attention.
//! Some layers have an attention window; their own RoPE rotates a part of each head. Gates go
//! through GELU with the error function, as in the model's configuration (`gelu`).

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
