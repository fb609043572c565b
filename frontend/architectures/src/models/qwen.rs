//! `qwen`: Qwen 1, and the text of Qwen-VL: as `llama`, with RoPE that turns halves of a head, and one matrix with a bias for queries, keys and values. Files count gates and
//! up together in `feed_forward_length`.
//!
//! The model's own code changes RoPE's base, and multiplies queries by a logarithm of their position, in texts longer than those of its training (8,192 positions; 2,048 in the first
//! files). Neither is done here, nor in llama.cpp: such texts are as with RoPE alone.

use crate::architecture::Architecture;
use crate::builder::Bias;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { bias: Bias::Required, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen",
    doc: "Qwen 1; Qwen-VL (text)",
    defaults: Defaults { gates_counted: true, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
