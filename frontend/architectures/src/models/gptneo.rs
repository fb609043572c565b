//! `gptneo`: GPT-Neo. Like `gpt2`, with unscaled attention scores (`attention.scale` is 1), and
//! layers with a window (`attention.sliding_window_pattern`). No converter writes such files; keys
//! are like those of other architectures.

use super::gpt2;
use crate::architecture::Architecture;
use crate::hyper::{Defaults, Windows};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gptneo",
    doc: "GPT-Neo",
    defaults: Defaults {
        attention_scale: |_| 1.0,
        windows: Some(Windows { optional: true, ..Windows::every(2) }),
        ..gpt2::ARCHITECTURE.defaults
    },
    ..gpt2::ARCHITECTURE
};
