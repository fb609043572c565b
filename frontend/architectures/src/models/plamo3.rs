//! `plamo3`: PLaMo 3. A norm precedes and follows each block, and query and key heads are
//! normalised. Seven of every eight layers have an attention window; RoPE in these layers is not
//! scaled.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, PostNorms, Style, decoder};
use crate::hyper::{Defaults, Windows};

const STYLE: Style =
    Style { head_norm: HeadNorm::HEADS, post_norms: Some(PostNorms::USUAL), fused_gate: true, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "plamo3",
    doc: "PLaMo 3",
    defaults: Defaults {
        windows: Some(Windows { optional: true, scaled: false, ..Windows::every(8) }),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
