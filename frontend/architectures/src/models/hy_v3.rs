//! `hy_v3`: Hy3. Experts are selected by sigmoids with a bias; a shared expert is added. The first
//! layers are dense.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::{Defaults, DraftInput};

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "hy_v3",
    doc: "Hy3",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        dense_by_tensor: true,
        draft_input: Some(DraftInput::Norm),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
