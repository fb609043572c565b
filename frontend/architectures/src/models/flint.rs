//! `flint`: Flint. Most layers have an attention window, and only these have RoPE. All layers have
//! attention sinks. Experts are selected by sigmoids; a shared expert is added. The first layers
//! are dense. No other program is known to write GGUF files of this model. The keys are named as in
//! other architectures with windows.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, RopeLayers, Scores, Style, decoder};
use crate::hyper::{Defaults, Windows};

const STYLE: Style = Style {
    head_norm: HeadNorm::HEADS,
    rope_layers: RopeLayers::Windowed,
    scores: |_, _, scores| Ok(Scores { sinks: true, ..scores }),
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "flint",
    doc: "Flint",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        windows: Some(Windows::every(0)),
        dense_by_tensor: true,
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
