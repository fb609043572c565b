//! `bailingmoe2`: Ling 2. One matrix for queries, keys and values. Experts are selected by sigmoids
//! with a bias, from some of their groups, next to shared experts. The first layers are dense.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bailingmoe2",
    doc: "Ling 2",
    defaults: Defaults { score: RouteScore::Sigmoid, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
