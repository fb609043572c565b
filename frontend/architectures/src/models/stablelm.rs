//! `stablelm`: StableLM. It has layer norms. The model of 12 billion parameters normalises each
//! query and key head, and its attention and network are parallel.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { head_norm: HeadNorm::EACH, parallel: true, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "stablelm",
    doc: "StableLM 3B, StableLM 2",
    defaults: Defaults { norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
