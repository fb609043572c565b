//! `xverse`: XVERSE. Its graph is the same as that of `llama`.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "xverse", doc: "XVERSE", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
