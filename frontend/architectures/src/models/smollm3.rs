//! `smollm3`: SmolLM3. Every fourth layer has no RoPE.

use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Hyper, Keys, ROPE_PATTERN};

/// Period of layers without RoPE, for files without the key. The last layer of each period has no
/// RoPE.
const PERIOD: usize = 4;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "smollm3",
    doc: "SmolLM3",
    defaults: Defaults { adjust: disable_rope, ..Defaults::USUAL },
    build: |b| decoder(b, &Style::LLAMA),
};

/// Disables RoPE in the last layer of each period, unless the file lists the layers with RoPE.
fn disable_rope(keys: &Keys<'_>, hyper: &mut Hyper) -> Result<(), GgufError> {
    if !keys.has(ROPE_PATTERN) {
        hyper.layers.iter_mut().skip(PERIOD - 1).step_by(PERIOD).for_each(|layer| layer.has_rope = false);
    }
    Ok(())
}
