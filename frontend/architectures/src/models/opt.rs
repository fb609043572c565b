//! `opt`: OPT: `gpt2`, but inner values of the network are rectified. The table of positions has no rows before that of the first position: folders have two, which are left out.
//! Models whose norms stand behind what they normalise, of another width than their embeddings (OPT-350M), are not read. No converter writes such files; keys are as GPT-2's.

use ixc_ir::graph::Unary;

use super::gpt2;
use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};

const STYLE: Style = Style { learned_positions: true, ungated: Some(Unary::Relu), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "opt", doc: "OPT", build: |b| decoder(b, &STYLE), ..gpt2::ARCHITECTURE };
