//! `mellum`: Mellum 2. Experts like `qwen3moe`. Three layers of four may have a window; their RoPE
//! then is not scaled.

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
