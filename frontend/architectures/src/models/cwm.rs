//! `cwm`: CWM. Layers are like those of Llama, but three of every four have an attention window;
//! the first of the four has none. No other program is known to write GGUF files of this model. The
//! keys are named as in other architectures with windows.

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
