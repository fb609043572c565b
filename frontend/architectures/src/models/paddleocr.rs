//! `paddleocr`: the text part of PaddleOCR-VL: ERNIE 4.5, whose pairs of RoPE lie half a head apart. RoPE's sections say which of an image's positions turns a pair; a text's are equal.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::NEOX;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "paddleocr",
    doc: "PaddleOCR-VL, for text",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
