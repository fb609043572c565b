//! `mellum`: Mellum 2. Experts are like those of `qwen3moe`. Three of every four layers may have an
//! attention window; RoPE in these layers is not scaled.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::{Defaults, Windows};

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mellum",
    doc: "Mellum 2",
    defaults: Defaults {
        dense_by_tensor: true,
        windows: Some(Windows { optional: true, scaled: false, ..Windows::every(4) }),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
