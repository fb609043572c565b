//! `minimax-m2`: MiniMax-M2. All heads of a row are normalised together, RoPE rotates half of each
//! head, and experts are selected by sigmoids with a bias.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::ROWS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "minimax-m2",
    doc: "MiniMax-M2",
    defaults: Defaults { score: RouteScore::Sigmoid, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
