//! `grovemoe`: Grove MoE. Like `qwen3moe`, but the experts form groups. Each group has an
//! additional small expert (`*_chexps`). For each selected expert, the small expert of its group is
//! used with the same weight, times `expert_group_scale`.
//!
//! Small experts have the same input as the ordinary experts, as in the code of the model's authors
//! (`inclusionAI/GroveMoE`). That code selects experts by sigmoids of logits, whose order is the
//! same as that of the softmax here.

use ixc_ir::graph::ValueId;
use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder, GroupScore, Matrices};
use crate::decoder::{HeadNorm, Style, attention, routed_experts};
use crate::error::ArchError;
use crate::hyper::{Defaults, Keys, MAX_COUNT, MAX_WIDTH};

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "grovemoe", doc: "GroveMoE", defaults: Defaults::USUAL, build: decoder };

/// Small experts in addition to the ordinary experts (Grove MoE, arXiv 2508.07785). Whenever an
/// expert is selected, the small expert of its group is used with the same weight.
struct Adjugate {
    /// Number of experts in a group: a power of two.
    size: u64,
    /// Width of a small expert. `None` means the length of a head.
    feed_forward: Option<u64>,
    /// Factor on the output of the small experts.
    scale: f64,
}

impl Adjugate {
    /// Reads the keys of a file with small experts.
    fn read(keys: &Keys<'_>) -> Result<Adjugate, GgufError> {
        const SIZE: &str = "experts_per_group";
        let count = keys.optional("expert_count", 0, MAX_COUNT)?.unwrap_or(0);
        let size = keys.required_size(SIZE, 1, count.max(1))?;
        if !size.is_power_of_two() || !count.is_multiple_of(size) {
            let limit = format!("a power of two that divides expert_count, {count}");
            return Err(keys.metadata.bad_value(&keys.name(SIZE), size, limit));
        }
        let feed_forward = keys.optional("expert_chunk_feed_forward_length", 0, MAX_WIDTH)?.filter(|&width| width > 0);
        const SCALE: &str = "expert_group_scale";
        if !keys.has(SCALE) {
            return Err(keys.metadata.missing(&keys.name(SCALE), "f32"));
        }
        let scale = keys.float(SCALE, 0.0, |_| true, "a number")?;
        Ok(Adjugate { size, feed_forward, scale })
    }
}

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let adjugate = Adjugate::read(&b.keys())?;
    let mut x = b.embed()?;
    for layer in b.layers() {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (of, width) = (b.experts(layer)?, b.hyper.embedding_length);
        x = attention(b, layer, x, &STYLE)?;
        let h = b.norm(x, &name("ffn_norm.weight"))?;
        let logits = b.linear(h, &name("ffn_gate_inp"), width, of.count, Bias::Optional)?;
        // The small experts use the same weights, so no factors of ordinary experts may be
        // multiplied into them.
        let route = b.route_of(layer, logits, &of, None, GroupScore::TwoBest)?;
        let y = routed_experts(b, layer, h, route, &of, &STYLE)?;
        let groups = b.expert_groups(route.ids, adjugate.size)?;
        let (count, inner) =
            (of.count / adjugate.size, adjugate.feed_forward.unwrap_or(b.hyper.layers[layer].key_length));
        let inward = Matrices { count, rows: inner, columns: width };
        let gate = b.expert_linear(h, groups, &name("ffn_gate_chexps"), inward)?;
        let up = b.expert_linear(h, groups, &name("ffn_up_chexps"), inward)?;
        let small = b.gated(gate, up, &STYLE.gate)?;
        let outward = Matrices { count, rows: width, columns: inner };
        let small = b.expert_linear(small, groups, &name("ffn_down_chexps"), outward)?;
        let small = b.combine(small, route.weights)?;
        let small = b.scale(small, adjugate.scale)?;
        x = b.add(y, x)?;
        x = b.add(small, x)?;
    }
    b.logits(x)
}
