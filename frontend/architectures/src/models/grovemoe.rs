//! `grovemoe`: Grove MoE. Like `qwen3moe`, with groups of experts. Each group has a small expert
//! (`*_chexps`), which is used with the weight of every selected expert of its group, times
//! `expert_group_scale`.
//!
//! Small experts have the same input as the others, and the weights of the selected experts, as in
//! the code of the model's authors (`inclusionAI/GroveMoE`). That code selects by sigmoids of
//! logits, which have the same order as the softmax of the weights.

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder};
use crate::decoder::{HeadNorm, Style, attention, routed};
use crate::error::ArchError;
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "grovemoe", doc: "GroveMoE", defaults: Defaults::USUAL, build: decoder };

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let groups_of = b.adjugate()?;
    let mut x = b.embed()?;
    for layer in b.layers() {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (of, width) = (b.experts(layer)?, b.hyper.embedding_length);
        x = attention(b, layer, x, &STYLE)?;
        let h = b.norm(x, &name("ffn_norm.weight"))?;
        let logits = b.linear(h, &name("ffn_gate_inp"), width, of.count, Bias::Optional)?;
        // Factors of experts do not apply to those of groups.
        let (ids, weights) = b.route_of(layer, logits, &of, None)?;
        let y = routed(b, layer, h, (ids, weights), &of, &STYLE)?;
        let groups = b.expert_groups(ids, groups_of.size)?;
        let (count, inner) =
            (of.count / groups_of.size, groups_of.feed_forward.unwrap_or(b.hyper.layers[layer].key_length));
        let gate = b.expert_linear(h, groups, &name("ffn_gate_chexps"), [count, inner, width])?;
        let up = b.expert_linear(h, groups, &name("ffn_up_chexps"), [count, inner, width])?;
        let small = b.gated(gate, up, &STYLE.gate)?;
        let small = b.expert_linear(small, groups, &name("ffn_down_chexps"), [count, width, inner])?;
        let small = b.combine(small, weights)?;
        let small = b.scale(small, groups_of.scale)?;
        x = b.add(y, x)?;
        x = b.add(small, x)?;
    }
    b.logits(x)
}
