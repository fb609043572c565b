//! `exaone4`: EXAONE 4. Norms follow blocks, and none precedes them. In the larger model, three of
//! every four layers have an attention window, and only these have RoPE.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, PostNorms, RopeLayers, Style, decoder};
use crate::hyper::{Defaults, Windows};

const STYLE: Style = Style {
    head_norm: HeadNorm::HEADS,
    rope_layers: RopeLayers::Windowed,
    pre_norms: false,
    post_norms: Some(PostNorms::USUAL),
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "exaone4",
    doc: "EXAONE 4",
    defaults: Defaults { windows: Some(Windows { optional: true, ..Windows::every(4) }), ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
