//! `bitnet`: BitNet b1.58. Like `llama`, with a norm before the output matrix of attention, and one
//! before the down matrix.
//!
//! Microsoft's model of this name, with 2 billion parameters and Llama 3's vocabulary, squares its
//! rectified gates. Files have no key for this.

use super::bitnet_b1_58;
use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { linear: bitnet_b1_58::normed_linear, ..Style::NEOX };
/// Vocabulary size of Llama 3.
const VOCABULARY: u64 = 128_256;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bitnet",
    doc: "BitNet b1.58",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, if b.hyper.vocabulary == VOCABULARY { &bitnet_b1_58::STYLE } else { &STYLE }),
};
