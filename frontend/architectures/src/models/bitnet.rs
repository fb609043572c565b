//! `bitnet`: BitNet b1.58: `llama` with a norm before the matrix behind attention, and one before the matrix behind gates.
//!
//! Of the models that have this name in files, the one that Microsoft trained, of 2 billion parameters and Llama 3's vocabulary, squares its rectified gates; files
//! have no key for that.

use super::bitnet_b1_58;
use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { inner_norms: true, ..Style::NEOX };
/// Llama 3's.
const VOCABULARY: u64 = 128_256;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bitnet",
    doc: "BitNet b1.58",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, if b.hyper.vocabulary == VOCABULARY { &bitnet_b1_58::STYLE } else { &STYLE }),
};
