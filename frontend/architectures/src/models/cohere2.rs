//! `cohere2`: Command R7B and Command A. Attention and the network are parallel, after one layer
//! norm. Three of every four layers have an attention window, and only these have RoPE.

use crate::architecture::Architecture;
use crate::decoder::{RopeLayers, Style, decoder};
use crate::hyper::{Defaults, Norms, Windows};

const STYLE: Style = Style { parallel: true, rope_layers: RopeLayers::Windowed, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "cohere2",
    doc: "Command R7B, Command A",
    defaults: Defaults {
        reads: &["logit_scale"],
        logits_multiplied: true,
        norms: Norms::Layer,
        windows: Some(Windows::every(4)),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
