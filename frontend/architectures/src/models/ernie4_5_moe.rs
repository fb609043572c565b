//! `ernie4_5-moe`: ERNIE 4.5 with experts. They are selected by a softmax over all experts plus a
//! bias; a shared expert is added. The first layers are dense.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "ernie4_5-moe",
    doc: "ERNIE 4.5, MoE",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
