//! `qwen3`: Qwen3, dense.
//!
//! Every query and key head is normalised before RoPE, which turns halves.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::RopeStyle;

use super::builder::{Bias, Builder};
use super::decoder::{AttentionStyle, attention, dense};
use super::error::ArchError;

const ATTENTION: AttentionStyle = AttentionStyle { pairs: RopeStyle::Neox, bias: Bias::Optional, head_norm: true };

pub(super) fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        x = attention(b, layer, x, ATTENTION)?;
        x = dense(b, layer, x)?;
    }
    b.logits(x)
}
