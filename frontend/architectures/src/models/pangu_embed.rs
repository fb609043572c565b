//! `pangu-embedded`: openPangu Embedded. RoPE pairs are half a head apart, and the output matrix of
//! attention has a bias.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::NEOX;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "pangu-embedded",
    doc: "openPangu Embedded",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
