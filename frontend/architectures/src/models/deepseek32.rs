//! `deepseek32`: DeepSeek-V3.2. Like `deepseek2`, but an indexer selects the positions that rows
//! attend to ([`crate::layers::mla`]). RoPE pairs of the indexer's queries and keys are half a head
//! apart.

use ixc_ir::graph::attrs::{RopeStyle, RouteScore};

use crate::architecture::Architecture;
use crate::decoder::Style;
use crate::hyper::{Defaults, DraftInput};
use crate::layers::mla::{IndexStyle, decoder_with_indexer};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek32",
    doc: "DeepSeek-V3.2",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        normalise: false,
        reads: &["rope.scaling.yarn_log_multiplier"],
        draft_input: Some(DraftInput::Norm),
        ..Defaults::USUAL
    },
    build: |b| decoder_with_indexer(b, &Style::LLAMA, IndexStyle::usual(RopeStyle::Neox)),
};
