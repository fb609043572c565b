//! `granitemoe`: Granite with experts, scaled like `granite`. A shared expert is added if the file
//! has one.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, RopeUse};

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "granitemoe",
    doc: "Granite 3, MoE",
    defaults: Defaults {
        reads: &["embedding_scale", "residual_scale", "logit_scale"],
        rope_use: RopeUse::IfFinetuned,
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
