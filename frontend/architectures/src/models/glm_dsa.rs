//! `glm-dsa`: GLM-5. Like `deepseek32`, but the RoPE pairs of the indexer are adjacent, and a layer
//! may use the positions that an earlier layer selected.

use ixc_ir::graph::attrs::{RopeStyle, RouteScore};

use crate::architecture::Architecture;
use crate::decoder::Style;
use crate::hyper::{Defaults, DraftInput};
use crate::layers::mla::{IndexStyle, decoder_with_indexer};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "glm-dsa",
    doc: "GLM-5, 5.1 and 5.2",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        normalise: false,
        reads: &["rope.scaling.yarn_log_multiplier"],
        draft_input: Some(DraftInput::Norm),
        ..Defaults::USUAL
    },
    build: |b| decoder_with_indexer(b, &Style::LLAMA, IndexStyle::usual(RopeStyle::Norm)),
};
