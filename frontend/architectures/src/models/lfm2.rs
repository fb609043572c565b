//! `lfm2`: LFM2, dense. Most layers mix tokens by a gated convolution with a few taps; the other
//! layers have attention with normalised queries and keys (llama.cpp `lfm2.cpp`).
//!
//! ```text
//! b, c, x = shortconv.in_proj h                       // three rows, each of the stream's width
//! // no activation; in checkpoints with `conv_bias`, both matrices and the convolution have biases
//! shortconv.out_proj (c * short_conv(b * x))
//! ```

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder};
use crate::decoder::{HeadNorm, Style, add, attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, LayerParts, MAX_TAPS};

pub(super) const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "lfm2",
    doc: "LFM2, LFM2.5",
    defaults: Defaults { layer_parts: LayerParts::Keyless, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};

/// Builds the decoder, from token ids to logits.
pub(super) fn decoder(b: &mut Builder<'_>, style: &Style) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        x = match b.hyper.layers[layer].recurrent {
            true => convolution(b, layer, x, style)?,
            false => attention(b, layer, x, style)?,
        };
        x = feed_forward(b, layer, x, style)?;
    }
    // Files have the last norm under this name.
    b.logits_after(x, "token_embd_norm.weight")
}

/// Builds the convolution block: norm, gated convolution, output matrix, and addition to the
/// stream.
fn convolution(b: &mut Builder<'_>, layer: usize, x: ValueId, style: &Style) -> Result<ValueId, ArchError> {
    let (width, taps) = (b.hyper.embedding_length, b.keys().required_size("shortconv.l_cache", 2, MAX_TAPS)?);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.norm(x, &name("attn_norm.weight"))?;
    let parts = b.linear(h, &name("shortconv.in_proj"), width, 3 * width, Bias::Optional)?;
    let [before, after, y] =
        [b.slice(parts, 0, width)?, b.slice(parts, width, width)?, b.slice(parts, 2 * width, width)?];
    let y = b.mul(before, y)?;
    let y = b.short_conv(&format!("conv.{layer}"), y, &name("shortconv.conv.weight"), width, taps)?;
    let y = b.optional_bias(y, &name("shortconv.conv.bias"), width)?;
    let y = b.mul(after, y)?;
    let y = b.linear(y, &name("shortconv.out_proj"), width, width, Bias::Optional)?;
    add(b, layer, x, y, style.post_norms.map(|norms| norms.attention))
}
