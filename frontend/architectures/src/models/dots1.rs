//! `dots1`: dots.llm1. Experts are selected by sigmoids with a bias; shared experts are added. The
//! first layers are dense.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "dots1",
    doc: "dots.llm1",
    defaults: Defaults { score: RouteScore::Sigmoid, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
