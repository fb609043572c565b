//! `qwen`: Qwen 1, and the text part of Qwen-VL. Like `llama`, but RoPE pairs are half a head
//! apart, and queries, keys and values have one matrix with a bias. `feed_forward_length` in files
//! is the sum of the widths of gate and up.
//!
//! The model was trained on texts of up to 8,192 positions (2,048 in the first files). For longer
//! texts, its own code changes RoPE's base and multiplies queries by a logarithm of their position.
//! Neither this graph nor llama.cpp does so.

use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::decoder::{Style, biased_projections, decoder};
use crate::hyper::{Defaults, Hyper, Keys};

const STYLE: Style = Style { linear: biased_projections, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen",
    doc: "Qwen 1; Qwen-VL (text only)",
    defaults: Defaults { adjust: halve_networks, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};

/// Sets the width of networks to half of the key's value, which is the sum for gate and up.
fn halve_networks(keys: &Keys<'_>, hyper: &mut Hyper) -> Result<(), GgufError> {
    for layer in &mut hyper.layers {
        if !layer.feed_forward.is_multiple_of(2) {
            let limit = "even, because it counts the rows of gate and up together";
            return Err(keys.metadata.bad_value(&keys.name("feed_forward_length"), layer.feed_forward, limit));
        }
        layer.feed_forward /= 2;
    }
    Ok(())
}
