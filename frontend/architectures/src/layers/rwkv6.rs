//! Layers of RWKV-6 (Peng et al., "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic
//! Recurrence", 2024; llama.cpp `rwkv6-base.cpp`).
//!
//! ```text
//! xw, xk, xv, xr, xg = h + shift * (lerp + w2 tanh(w1 (h + shift * lerp_x)))   // five matrices w2
//! decay = exp(-exp(decay + decay_w2 tanh(decay_w1 xw)))
//! y = wkv(receptance xr, key xk, value xv, decay)            // from the state before its update
//!     + (sum of r * k * first) v
//! output (layer norm of each head of y * silu(gate xg))
//! instead of Qwen2's attention:
//! y = wkv(receptance xr / sqrt(d), (1 - decay) * key xk, value xv, decay)   // updated state
//! output (y * sigmoid(gate xg))
//! ```

use ixc_ir::graph::{Unary, ValueId};

use crate::builder::{Bias, Builder, Matrices, StateSizes, WkvRows};
use crate::error::ArchError;
use crate::hyper::Precise;
use crate::layers::rwkv;
use crate::layers::rwkv7::HEAD_EPS;
use crate::layers::token_shift::{FINCH, FINCH_LERPS, FUSED, LowRankFunction, low_rank, mix_previous, shift};

/// Matrices of RWKV-6 that llama-quantize does not quantise.
pub(crate) const PRECISE: Precise = Precise {
    kept: &[
        "time_mix_first.weight",
        "time_mix_w1.weight",
        "time_mix_w2.weight",
        "time_mix_decay_w1.weight",
        "time_mix_decay_w2.weight",
        "time_mix_lerp_fused.weight",
    ],
    in_bytes: &[],
};

/// Builds a layer's time mix on normalised rows, including its output matrix. Layers of RWKV models
/// have the bonus `time_mix_first`. Layers without it replace attention in a transformer.
pub(crate) fn time_mix(b: &mut Builder<'_>, layer: usize, h: ValueId) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let sizes = rwkv::sizes(&b.keys())?;
    let StateSizes { heads, key_length: length, .. } = sizes;
    let name = |part: &str| format!("blk.{layer}.time_mix_{part}");
    let before = shift(b, &format!("shift.{layer}"), h)?;
    let MixedRows { w: xw, k: xk, v: xv, r: xr, g: xg } = mix(b, layer, h, before)?;

    let decay = low_rank(b, xw, &name("decay_w"), LowRankFunction::Tanh)?;
    let decay = b.bias(decay, &name("decay.weight"), width)?;
    let decay = b.unary(Unary::Exp, decay)?;
    let decay = b.scale(decay, -1.0)?;
    let decay = b.unary(Unary::Exp, decay)?;
    let decay = b.split_heads(decay, heads)?;
    let first = name("first.weight");
    let is_own = b.has(&first);
    let key_heads = if is_own { heads } else { b.hyper.layers[layer].kv_heads };
    let r = b.linear(xr, &name("receptance"), width, width, Bias::Optional)?;
    let k = b.linear(xk, &name("key"), width, key_heads * length, Bias::Optional)?;
    let v = b.linear(xv, &name("value"), width, key_heads * length, Bias::Optional)?;
    let gate = b.linear(xg, &name("gate"), width, width, Bias::Optional)?;
    let gate = b.unary(if is_own { Unary::Silu } else { Unary::Sigmoid }, gate)?;
    let state = format!("wkv.{layer}");
    let (k_heads, v_heads) = (b.split_heads(k, key_heads)?, b.split_heads(v, key_heads)?);
    let y = if is_own {
        let r_heads = b.split_heads(r, heads)?;
        let rows =
            WkvRows { sizes, r: r_heads, k: k_heads, v: v_heads, decay, delta: None, before: true, filled: false };
        let y = b.wkv(&state, &rows)?;
        let bonus = b.mul(r, k)?;
        let bonus = b.split_heads(bonus, heads)?;
        let bonus = b.multiply_head_elements(bonus, &first, heads, length)?;
        let bonus = b.heads_sum(bonus)?;
        let bonus = b.scale_heads(v, bonus)?;
        let y = b.merge_heads(y)?;
        let y = b.add(y, bonus)?;
        let y = b.split_heads(y, heads)?;
        b.layer_norm_of_each(y, &name("ln"), heads, length, HEAD_EPS)?
    } else {
        let r = b.scale(r, 1.0 / (length as f64).sqrt())?;
        let r_heads = b.split_heads(r, heads)?;
        let rows =
            WkvRows { sizes, r: r_heads, k: k_heads, v: v_heads, decay, delta: None, before: false, filled: true };
        b.wkv(&state, &rows)?
    };
    let y = b.merge_heads(y)?;
    let y = b.mul(y, gate)?;
    b.linear(y, &name("output"), width, width, Bias::Optional)
}

/// Rows mixed with their previous rows, for each of the five inputs of the time mix.
struct MixedRows {
    w: ValueId,
    k: ValueId,
    v: ValueId,
    r: ValueId,
    g: ValueId,
}

/// Mixes rows with their previous rows for five inputs. The share of the previous row is computed
/// from the rows, for each element.
fn mix(b: &mut Builder<'_>, layer: usize, h: ValueId, before: ValueId) -> Result<MixedRows, ArchError> {
    let width = b.hyper.embedding_length;
    let count = FINCH.len() as u64;
    let name = |part: &str| format!("blk.{layer}.time_mix_{part}");
    let x = mix_previous(b, h, before, &name("lerp_x.weight"))?;
    let rank = b.rows(&name("w1.weight")).unwrap_or(0) / count;
    let x = b.linear(x, &name("w1"), width, count * rank, Bias::Optional)?;
    let x = b.softcap(x, 1.0)?;
    let x = b.split_heads(x, count)?;
    let x = b.heads_linear(x, &name("w2"), Matrices { count, rows: width, columns: rank })?;
    let x = b.merge_heads(x)?;
    // Files have one fused tensor of shares, which is used as a vector; older files have five
    // tensors.
    let fused = b.has(&format!("blk.{layer}.{FUSED}"));
    b.accept_unused(&format!("blk.{layer}.{FUSED}"), &[count, width])?;
    let x = if fused { b.bias(x, &format!("blk.{layer}.{FINCH_LERPS}"), count * width)? } else { x };
    let mut rows = [x; 5];
    for ((row, letter), i) in rows.iter_mut().zip(FINCH).zip(0..) {
        let mut share = b.slice(x, i * width, width)?;
        if !fused {
            share = b.bias(share, &name(&format!("lerp_{letter}.weight")), width)?;
        }
        let share = b.mul(share, before)?;
        *row = b.add(h, share)?;
    }
    // Rows are in the order of `FINCH`.
    let [w, k, v, r, g] = rows;
    Ok(MixedRows { w, k, v, r, g })
}
