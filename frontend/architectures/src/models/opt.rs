//! `opt`: OPT. Like `gpt2`, but with ReLU. In folders, the table of positions begins with two rows
//! that belong to no position; our conversion removes them. OPT-350M is not supported: its norms
//! follow blocks, and its embeddings are narrower than the stream. No converter writes such files;
//! the keys are those of GPT-2.

use ixc_ir::graph::Unary;

use super::gpt2;
use crate::architecture::Architecture;
use crate::decoder::{Style, decoder, embed_with_positions};

const STYLE: Style = Style { embed: embed_with_positions, ungated: Some(Unary::Relu), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "opt", doc: "OPT", build: |b| decoder(b, &STYLE), ..gpt2::ARCHITECTURE };
