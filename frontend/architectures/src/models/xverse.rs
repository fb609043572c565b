//! `xverse`: XVERSE. Same graph as `llama`.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "xverse", doc: "XVERSE", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
