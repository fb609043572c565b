//! `qwen3moe`: Qwen3 with experts.
//!
//! Attention as in `qwen3`; the router is a softmax over all experts whose chosen weights are divided by their sum.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::RopeStyle;

use super::builder::{Bias, Builder};
use super::decoder::{AttentionStyle, attention, experts_or_dense};
use super::error::ArchError;

const ATTENTION: AttentionStyle = AttentionStyle { pairs: RopeStyle::Neox, bias: Bias::Optional, head_norm: true };

pub(super) fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        x = attention(b, layer, x, ATTENTION)?;
        x = experts_or_dense(b, layer, x)?;
    }
    b.logits(x)
}
