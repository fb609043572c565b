//! `granite_swa`: Granite with attention windows, dense or with experts, scaled like `granite`.
//! Three of every four layers have a window, all layers have attention sinks, and files list the
//! layers with RoPE. The gate and up matrices of the shared expert are stored as one matrix.

use crate::architecture::Architecture;
use crate::decoder::{Scores, Style, decoder, network};
use crate::hyper::{Defaults, Windows};

const STYLE: Style = Style {
    scores: |_, _, scores| Ok(Scores { sinks: true, ..scores }),
    // The shared expert has one matrix with the rows of the gate, then those of up.
    shared: |b, layer, h, inner, style| network(b, layer, h, "_shexp", inner, &Style { fused_gate: true, ..*style }),
    ..Style::LLAMA
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "granite_swa",
    doc: "Granite with sliding windows, dense and MoE",
    defaults: Defaults {
        reads: &["embedding_scale", "residual_scale", "logit_scale"],
        windows: Some(Windows { first_is_full: true, ..Windows::every(4) }),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
