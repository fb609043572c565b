//! `llama`: Llama and Mistral (dense), Mixtral (experts).
//!
//! RoPE pairs are adjacent, because the converter permutes the rows of Q and K. The router of
//! Mixtral is a softmax over all experts, and the weights of the selected experts are divided by
//! their sum.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    doc: "Llama, Mistral; Mixtral",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
