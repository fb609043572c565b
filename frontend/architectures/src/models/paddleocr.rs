//! `paddleocr`: the text part of PaddleOCR-VL. Like ERNIE 4.5, with RoPE pairs half a head apart.
//! The sections of RoPE, which assign pairs to dimensions of a position in an image, have no
//! effect: in text, all dimensions are equal.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::NEOX;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "paddleocr",
    doc: "PaddleOCR-VL (text only)",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
