//! `afmoe`: Trinity. Three of every four layers have an attention window, and only these have RoPE.
//! A gate multiplies the output of attention, and a norm precedes and follows each block. Experts
//! are selected by sigmoids with a bias; a shared expert is added. The first layers are dense.

use ixc_ir::graph::Unary;
use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, OutputGate, PostNorms, RopeLayers, Style, decoder, embed_by_root};
use crate::hyper::{Defaults, Windows};

const STYLE: Style = Style {
    head_norm: HeadNorm::HEADS,
    rope_layers: RopeLayers::Windowed,
    output_gate: OutputGate::Own(Unary::Sigmoid),
    post_norms: Some(PostNorms::USUAL),
    embed: embed_by_root,
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "afmoe",
    doc: "Trinity",
    defaults: Defaults { score: RouteScore::Sigmoid, windows: Some(Windows::every(4)), ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
