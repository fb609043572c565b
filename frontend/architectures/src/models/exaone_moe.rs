//! `exaone-moe`: K-EXAONE. Three of every four layers have an attention window, and only these have
//! RoPE. Experts are selected by sigmoids with a bias; shared experts are added. The first layers
//! are dense.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, RopeLayers, Style, decoder};
use crate::hyper::{Defaults, Windows};

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, rope_layers: RopeLayers::Windowed, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "exaone-moe",
    doc: "K-EXAONE",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        windows: Some(Windows { length: Some(128), ..Windows::every(4) }),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
