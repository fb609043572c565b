//! `deepseek2-ocr`: the text part of DeepSeek-OCR, DeepSeek-OCR 2 and Unlimited-OCR. Layers have
//! the attention of `llama` and the experts of DeepSeek-V2. RoPE rotates the whole head, with pairs
//! half a head apart.
//!
//! This decoder ignores two keys of its files. One is the rotated length of a latent key
//! (`rope.dimension_count`, which is 0). The other is an attention window in files of
//! Unlimited-OCR. In that model's own code, generated tokens attend to the whole prompt and to a
//! window of generated tokens. Our graphs and llama.cpp do not distinguish prompt and generated
//! tokens, so tokens attend to all earlier ones.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Rope, RopeUse};

const STYLE: Style = Style::NEOX;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek2-ocr",
    doc: "DeepSeek-OCR 1 and 2, Unlimited-OCR (text only)",
    defaults: Defaults {
        normalise: false,
        // The hook `adjust` below reads RoPE instead.
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
