//! `maple`: Maple. Most layers have an attention window, and only these have RoPE. All layers have
//! experts, whose weights are a softmax divided by the sum of the selected weights. Gates and up
//! products of experts have a limit.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, RopeLayers, Style, decoder};
use crate::hyper::{Defaults, Windows};

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, rope_layers: RopeLayers::Windowed, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "maple",
    doc: "Maple",
    defaults: Defaults { reads: &["swiglu_clamp_exp"], windows: Some(Windows::every(0)), ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
