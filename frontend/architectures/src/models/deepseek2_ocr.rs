//! `deepseek2-ocr`: the text part of DeepSeek-OCR, DeepSeek-OCR 2 and Unlimited-OCR. Its layers
//! have the attention of `llama` and the experts of DeepSeek-V2. RoPE rotates the whole head, with
//! pairs half a head apart.
//!
//! Files have the rotated length of a latent key (`rope.dimension_count`: 0), and those of
//! Unlimited-OCR a window. This decoder has neither and ignores both keys. In Unlimited-OCR's own
//! code, generated tokens attend to the whole prompt and to a window of generated tokens. Graphs
//! and llama.cpp do not distinguish the two, and attend to all tokens.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Rope, RopeUse};

const STYLE: Style = Style::NEOX;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek2-ocr",
    doc: "DeepSeek-OCR 1 and 2, Unlimited-OCR (text only)",
    defaults: Defaults {
        normalise: false,
        // RoPE is read below.
        rope_use: RopeUse::Never,
        adjust: |keys, hyper| {
            hyper.set_rope(keys, |keys, sizes| Rope::plain(keys, sizes, sizes.key_length))?;
            hyper.layers.iter_mut().for_each(|layer| layer.window = None);
            hyper.local_rope = None;
            Ok(())
        },
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
