//! `opt`: OPT. Like `gpt2`, with ReLU. The table of positions has no rows before the first
//! position: folders have two, which are removed. A model with norms after blocks and with another
//! width than its embeddings (OPT-350M) is not supported. No converter writes such files; keys are
//! GPT-2's.

use ixc_ir::graph::Unary;

use super::gpt2;
use crate::architecture::Architecture;
use crate::decoder::{Style, decoder, embed_with_positions};

const STYLE: Style = Style { embed: embed_with_positions, ungated: Some(Unary::Relu), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "opt", doc: "OPT", build: |b| decoder(b, &STYLE), ..gpt2::ARCHITECTURE };
