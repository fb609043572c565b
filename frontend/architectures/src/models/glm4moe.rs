//! `glm4moe`: GLM-4.5 and later with experts. They are selected by sigmoids with a bias; a shared
//! expert is added. The first layers are dense. The larger models normalise queries and keys.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::{Defaults, DraftInput};

const STYLE: Style = Style { head_norm: HeadNorm::OPTIONAL, ffn_norm: "post_attention_norm", ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "glm4moe",
    doc: "GLM-4.5, 4.6, 4.7",
    defaults: Defaults { score: RouteScore::Sigmoid, draft_input: Some(DraftInput::Norm), ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
