//! `gptneo`: GPT-Neo. Like `gpt2`, but attention scores are not scaled (`attention.scale` is 1),
//! and some layers have a window (`attention.sliding_window_pattern`). No converter writes such
//! files; the keys are named as in other architectures.

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
