//! `command-r`: Command R and Aya 23. Attention and the network are parallel, after one layer norm.
//! The larger models normalise each query and key head.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { parallel: true, head_norm: HeadNorm::EACH, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "command-r",
    doc: "Command R, Aya 23",
    defaults: Defaults { reads: &["logit_scale"], logits_multiplied: true, norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
