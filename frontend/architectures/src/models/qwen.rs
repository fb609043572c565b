//! `qwen`: Qwen 1, and the text part of Qwen-VL. Like `llama`, with RoPE pairs half a head apart,
//! and one matrix with a bias for queries, keys and values. `feed_forward_length` of files is the
//! sum of gate and up.
//!
//! For texts longer than in training (8,192 positions; 2,048 in the first files), the model's own
//! code changes RoPE's base and multiplies queries by a logarithm of their position. Neither this
//! graph nor llama.cpp does so.

use crate::architecture::Architecture;
use crate::builder::Bias;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { bias: Bias::Required, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen",
    doc: "Qwen 1; Qwen-VL (text only)",
    defaults: Defaults { gates_counted: true, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
