//! `mellum`: Mellum 2: experts as `qwen3moe` has them; layers may have a window, three of four, and RoPE without a scaling there.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::{Defaults, Windows};

const STYLE: Style = Style { head_norm: HeadNorm::Heads, ..Style::NEOX };

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
