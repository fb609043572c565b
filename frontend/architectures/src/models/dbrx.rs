//! `dbrx`: DBRX. Experts after layer norms without biases. Queries, keys and values are clamped to
//! a limit (`attention.clamp_kqv`).

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { ffn_norm: "attn_output_norm", ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "dbrx",
    doc: "DBRX",
    defaults: Defaults { reads: &["attention.clamp_kqv"], norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
