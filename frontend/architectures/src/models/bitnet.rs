//! `bitnet`: BitNet b1.58. Like `llama`, but with an additional norm before `attn_output` and
//! another before `ffn_down`.
//!
//! Microsoft's model of this name has 2 billion parameters and Llama 3's vocabulary. Its gates go
//! through the square of ReLU. Files have no key for this, so the vocabulary size identifies the
//! model.

use super::bitnet_b1_58;
use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { linear: bitnet_b1_58::normed_linear, ..Style::NEOX };
/// Vocabulary size of Llama 3, which identifies Microsoft's model.
const VOCABULARY: u64 = 128_256;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bitnet",
    doc: "BitNet b1.58",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, if b.hyper.vocabulary == VOCABULARY { &bitnet_b1_58::STYLE } else { &STYLE }),
};
