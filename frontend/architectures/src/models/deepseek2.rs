//! `deepseek2`: DeepSeek-V2, V3 and R1, Kimi K2 and others with latent attention ([`crate::mla`]).
//! Experts are selected from some of their groups, next to shared experts. The first layers are
//! dense. Mistral Large 3 multiplies queries of far positions.
//!
//! The score of a group depends on the scores of experts, as in DeepSeek's own code. With sigmoids
//! (V3) it is the sum of its two best experts, with a softmax (V2) its best one. llama.cpp sums two
//! in both cases.

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
    // Layer counts of GLM-4.7-Flash.
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
