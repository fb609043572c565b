//! `bailingmoe2`: Ling 2: queries, keys and values by one matrix; experts are chosen by sigmoids with a bias, of some of their groups, beside
//! shared ones; the first layers are dense.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::Heads, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bailingmoe2",
    doc: "Ling 2",
    defaults: Defaults { score: RouteScore::Sigmoid, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
