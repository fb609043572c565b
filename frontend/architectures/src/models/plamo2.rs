//! `plamo2`: PLaMo 2. A norm precedes and follows each block. A few layers have attention, with
//! norms of query and key heads. The other layers have a selective state space, with one decay for
//! each head. In its input projection, gates and values alternate by head. Keys, queries and step
//! sizes are made from the values and normalised.
//!
//! ```text
//! z, x    = the two halves of each head of ssm_in h
//! x       = silu(conv(x))
//! b, c, s = ssm_x x, split into three parts, each normalised
//! y       = ssm_scan(x, b, c, ssm_dt s)          // all heads share one key
//! ssm_out (silu(z) * y)
//! ```
//!
//! The model's own code limits attention to a window of 2,048 positions, and our conversion of
//! folders keeps this. GGUF files state no window, and llama.cpp has none.

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder};
use crate::decoder::{HeadNorm, PostNorms, Style, add, attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, LayerParts, Ssm};
use crate::layers::mamba2::{ScanRows, gated_scan};

const STYLE: Style = Style {
    head_norm: HeadNorm::EACH,
    post_norms: Some(PostNorms { attention: NORM, network: "post_ffw_norm" }),
    fused_gate: true,
    ..Style::NEOX
};
/// Name of the norm after attention or a state space.
const NORM: &str = "post_attention_norm";

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "plamo2",
    doc: "PLaMo 2",
    defaults: Defaults { layer_parts: LayerParts::Keyless, ..Defaults::USUAL },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in b.layers() {
        x = match b.hyper.layers[layer].recurrent {
            true => {
                let h = b.norm(x, &format!("blk.{layer}.attn_norm.weight"))?;
                let y = state_space(b, layer, h)?;
                add(b, layer, x, y, Some(NORM))?
            }
            false => attention(b, layer, x, &STYLE)?,
        };
        x = feed_forward(b, layer, x, &STYLE)?;
    }
    b.logits(x)
}

/// Builds the state space on normalised rows, including its output matrix.
fn state_space(b: &mut Builder<'_>, layer: usize, h: ValueId) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let Ssm { taps, heads, key_length: state, value_length, .. } = b.ssm()?;
    let inner = heads * value_length;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let all = b.linear(h, &name("ssm_in"), width, 2 * inner, Bias::Optional)?;
    let all = b.split_heads(all, heads)?;
    let (z, x) = (b.slice(all, 0, value_length)?, b.slice(all, value_length, value_length)?);
    let (z, x) = (b.merge_heads(z)?, b.merge_heads(x)?);
    let x = b.short_conv(&format!("conv.{layer}"), x, &name("ssm_conv1d.weight"), inner, taps)?;
    let x = b.optional_bias(x, &name("ssm_conv1d.bias"), inner)?;
    let x = b.silu(x)?;
    // Files have no key for the length of the row that step sizes are made from. It follows from
    // the matrix.
    let rows = b.rows(&name("ssm_x.weight")).unwrap_or(0);
    let rank = rows.saturating_sub(2 * state).max(1);
    let all = b.linear(x, &name("ssm_x"), inner, 2 * state + rank, Bias::Optional)?;
    let mut part = |norm: &str, from: u64, length: u64| {
        let part = b.slice(all, from, length)?;
        b.rms_norm(part, &name(norm), length)
    };
    let key = part("ssm_b_norm.weight", 0, state)?;
    let query = part("ssm_c_norm.weight", state, state)?;
    let step = part("ssm_dt_norm.weight", 2 * state, rank)?;
    // The bias of `ssm_dt` is not added here: it is a weight of the scan op.
    let matrix = b.weight(&name("ssm_dt.weight"), &[heads, rank])?;
    let step = b.matmul(step, matrix)?;
    let rows =
        ScanRows { x: b.split_heads(x, heads)?, key: b.split_heads(key, 1)?, query: b.split_heads(query, 1)?, step };
    let y = gated_scan(b, layer, &rows, z)?;
    b.linear(y, &name("ssm_out"), inner, width, Bias::Optional)
}
