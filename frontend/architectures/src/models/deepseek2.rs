//! `deepseek2`: DeepSeek-V2, V3 and R1, Kimi K2 and others with latent attention ([`crate::mla`]).
//! Experts are chosen from some of their groups, next to shared ones. The first layers are dense.
//! Mistral Large 3 multiplies queries of far positions.
//!
//! Groups count by the sum of their two best experts where scores are sigmoids (V3), and by the best one where they are a softmax (V2), as in DeepSeek's own code; llama.cpp sums
//! two in both.

use ixc_ir::graph::attrs::RouteScore;

use crate::absorbed;
use crate::architecture::Architecture;
use crate::decoder::Style;
use crate::hyper::{Defaults, GuessFrom, ScoreOf, Temperature};
use crate::mla::decoder;

pub(super) const STYLE: Style = Style::LLAMA;

pub(super) const DEFAULTS: Defaults = Defaults {
    normalise: false,
    reads: &["rope.scaling.yarn_log_multiplier", "attention.temperature_scale"],
    temperature: Temperature::OfLength,
    made: absorbed::tensors,
    // GLM-4.7-Flash.
    score_of: Some(ScoreOf { layers: &[47, 48], vocabulary: 154_880, score: RouteScore::Sigmoid }),
    guess_from: Some(GuessFrom::Norm),
    ..Defaults::USUAL
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek2",
    doc: "DeepSeek-V2, V3, R1; Kimi K2, GLM-4.7-Flash, Mistral Large 3",
    defaults: Defaults { best_of_group: true, ..DEFAULTS },
    build: |b| decoder(b, &STYLE),
};
