//! `deepseek2`: DeepSeek-V2, V3 and R1, Kimi K2 and others with latent attention ([`super::mla`]). Experts are chosen of some of their groups,
//! beside shared ones; the first layers are dense.
//!
//! Groups count by the sum of their two best experts, as in V3 and in llama.cpp; DeepSeek's own code for V2 takes the best one.

use ixc_ir::graph::attrs::RouteScore;

use super::Architecture;
use super::decoder::Style;
use super::hyper::{Defaults, ScoreOf};
use super::mla::decoder;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek2",
    doc: "DeepSeek-V2, V3, R1; Kimi K2, GLM-4.7-Flash",
    defaults: Defaults {
        normalise: false,
        reads: &["rope.scaling.yarn_log_multiplier"],
        // GLM-4.7-Flash.
        score_of: Some(ScoreOf { layers: &[47, 48], vocabulary: 154_880, score: RouteScore::Sigmoid }),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &Style::LLAMA),
};
