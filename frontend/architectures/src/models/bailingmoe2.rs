//! `bailingmoe2`: Ling 2. Queries, keys and values have one matrix. Experts are selected by
//! sigmoids with a bias, from some of the groups of experts; shared experts are added. The first
//! layers are dense.

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
