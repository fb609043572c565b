//! `plamo`: PLaMo 1. Like `llama`, but attention and the network are parallel after one norm, and
//! RoPE pairs are half a head apart.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { parallel: true, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "plamo", doc: "PLaMo 1", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
