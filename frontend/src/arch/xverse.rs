//! `xverse`: XVERSE: `llama`.

use super::Architecture;
use super::decoder::{Style, decoder};
use super::hyper::Defaults;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "xverse", doc: "XVERSE", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
