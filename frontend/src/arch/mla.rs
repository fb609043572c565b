//! Latent attention (MLA, DeepSeek-V2): what is kept of a position is one short row, of which keys and values of all heads are made.
//!
//! ```text
//! c, p = attn_kv_a_mqa x                   // r elements, normalised, and one rotated part for all heads
//! q    = attn_k_b q_nope | rope(q_pe)      // absorbed: queries are taken to where keys come from, head by head
//! y    = attn_v_b attention(q, c | p, c)   // values too: the first r elements of keys
//! ```

use ixc_ir::graph::ValueId;

use super::builder::{Bias, Builder};
use super::decoder::{Roped, Style, feed_forward};
use super::error::ArchError;
use super::hyper::Mla;

/// From the step's ids to logits.
pub(super) fn decoder(b: &mut Builder<'_>, style: &Style) -> Result<ValueId, ArchError> {
    let mla = b.mla()?;
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        x = attention(b, layer, x, &mla, style)?;
        x = feed_forward(b, layer, x, style)?;
    }
    b.logits(x)
}

/// Norm, attention, output matrix, residual.
pub(super) fn attention(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    mla: &Mla,
    style: &Style,
) -> Result<ValueId, ArchError> {
    let Mla { query_rank, rank, key_length, value_length } = *mla;
    let (width, heads, turned) = (b.hyper.embedding_length, b.hyper.layers[layer].heads, b.hyper.rope.dims);
    let still = key_length - turned;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.norm(x, &name("attn_norm.weight"))?;
    let q = match query_rank {
        Some(query_rank) => {
            let q = b.linear(h, &name("attn_q_a"), width, query_rank, Bias::Optional)?;
            let q = b.rms_norm(q, &name("attn_q_a_norm.weight"), query_rank)?;
            b.linear(q, &name("attn_q_b"), query_rank, heads * key_length, Bias::Optional)?
        }
        None => b.linear(h, &name("attn_q"), width, heads * key_length, Bias::Optional)?,
    };
    let q = b.split_heads(q, heads)?;
    let (q_still, q_turned) = (b.slice(q, 0, still)?, b.slice(q, still, turned)?);
    let roped = style.roped != Roped::None;
    let q_turned = if roped { b.rope(layer, q_turned, style.pairs)? } else { q_turned };
    let q_still = b.heads_linear(q_still, &name("attn_k_b"), [heads, rank, still])?;
    let q = b.concat(q_still, q_turned)?;
    let kept = b.linear(h, &name("attn_kv_a_mqa"), width, rank + turned, Bias::Optional)?;
    let (c, k) = (b.slice(kept, 0, rank)?, b.slice(kept, rank, turned)?);
    let c = b.rms_norm(c, &name("attn_kv_a_norm.weight"), rank)?;
    let (c, k) = (b.split_heads(c, 1)?, b.split_heads(k, 1)?);
    let k = if roped { b.rope(layer, k, style.pairs)? } else { k };
    let k = b.concat(c, k)?;
    b.append(layer, k, c)?;
    let y = b.attend(layer, q, style.sinks)?;
    let y = b.heads_linear(y, &name("attn_v_b"), [heads, value_length, rank])?;
    let y = b.merge_heads(y)?;
    let y = b.linear(y, &name("attn_output"), heads * value_length, width, Bias::Optional)?;
    b.add(y, x)
}
