//! `cwm`: CWM. Layers like Llama's. The first of every four layers has no window, the others have
//! one. No GGUF file of another program is known: keys are those of architectures with windows.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Windows};

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "cwm",
    doc: "CWM; Ministral with full and sliding-window layers",
    defaults: Defaults {
        windows: Some(Windows { first_is_full: true, optional: true, ..Windows::every(4) }),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
