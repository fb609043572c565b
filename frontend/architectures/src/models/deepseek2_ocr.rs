//! `deepseek2-ocr`: the text part of DeepSeek-OCR, DeepSeek-OCR 2 and Unlimited-OCR: DeepSeek-V2's experts behind attention as in `llama`, all of whose heads turn, by pairs half a head
//! apart. Files say how much of a latent key would turn (`rope.dimension_count`: 0), and those of Unlimited-OCR state a window: of both there is nothing in this decoder, and nothing of them
//! is read. (In Unlimited-OCR's own code what is written sees the whole prompt, and of what was written before it so much; neither graphs nor llama.cpp tell the one from the other, and both see all.)

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::NEOX;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek2-ocr",
    doc: "DeepSeek-OCR 1 and 2, Unlimited-OCR, for text",
    defaults: Defaults { normalise: false, unscaled: true, turns_whole: true, unwindowed: true, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
