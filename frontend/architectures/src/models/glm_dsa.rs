//! `glm-dsa`: GLM-5: as `deepseek32`, but an index turns neighbours, and layers may take the choice of one before them.

use ixc_ir::graph::attrs::{RopeStyle, RouteScore};

use crate::architecture::Architecture;
use crate::decoder::Style;
use crate::hyper::{Defaults, GuessFrom};
use crate::mla::{IndexStyle, indexed};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "glm-dsa",
    doc: "GLM-5, 5.1 and 5.2",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        normalise: false,
        reads: &["rope.scaling.yarn_log_multiplier"],
        guess_from: Some(GuessFrom::Norm),
        ..Defaults::USUAL
    },
    build: |b| indexed(b, &Style::LLAMA, IndexStyle::usual(RopeStyle::Norm)),
};
