//! `olmo2`: OLMo 2 and 3. Norms follow blocks, and none precedes them. All heads of a row are
//! normalised together. In OLMo 3, three of every four layers have an attention window; RoPE in
//! these layers is not scaled.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, PostNorms, Style, decoder};
use crate::hyper::{Defaults, Windows};

pub(super) const STYLE: Style =
    Style { head_norm: HeadNorm::ROWS, pre_norms: false, post_norms: Some(PostNorms::USUAL), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "olmo2",
    doc: "OLMo 2, OLMo 3",
    defaults: Defaults {
        windows: Some(Windows { optional: true, scaled: false, ..Windows::every(4) }),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
