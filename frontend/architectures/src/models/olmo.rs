//! `olmo`: OLMo 1: layer norms without weights; queries, keys and values are cut off to stay within a limit where files have one (`attention.clamp_kqv`).

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "olmo",
    doc: "OLMo 1",
    defaults: Defaults { reads: &["attention.clamp_kqv"], norms: Norms::Bare, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
