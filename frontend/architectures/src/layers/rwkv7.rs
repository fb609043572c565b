//! Layers of RWKV-7 (Peng et al., "RWKV-7 Goose with Expressive Dynamic State Evolution", 2025;
//! llama.cpp `rwkv7-base.cpp`).
//!
//! ```text
//! xr, xw, xk, xv, xa, xg = h + shift * lerp           // each with its own vector lerp
//! decay = exp(-0.606531 sigmoid(w0 + w2 tanh(w1 xw)))
//! rate  = sigmoid(a0 + a2 a1 xa)
//! v     = value xv; after the first layer: v + (v of the first layer - v) sigmoid(v0 + v2 v1 xv)
//! find  = unit(key xk * k_k);   k = key xk * (1 + (rate - 1) * k_a)
//! y = wkv(receptance xr, k, v, decay, find, find * rate)         // ir/src/graph/recurrent/wkv.rs
//! y = layer norm of each head of y + (sum of r * k * r_k) v
//! output (y * (g2 sigmoid(g1 xg)))
//! ```

use ixc_ir::graph::{Unary, ValueId};

use crate::builder::{Bias, Builder, StateSizes, WkvDelta, WkvRows};
use crate::error::ArchError;
use crate::hyper::Precise;
use crate::layers::rwkv;
use crate::layers::token_shift::{FUSED, LowRankFunction, lerp, low_rank, mix_previous, shift};

/// Minimum logarithm of a decay: -exp(-1/2), with the digits in the authors' code.
const MIN_LOG_DECAY: f64 = -0.606_531;
/// Epsilon added to variances of heads: 1e-5 times 64, the number of elements of a head in all
/// models.
pub(crate) const HEAD_EPS: f64 = 64e-5;
/// Epsilon added to the squared length of a key. Its exact value does not matter: that length is
/// either 0 or far larger.
const LENGTH_EPS: f64 = 1e-24;

/// Matrices of RWKV-7 that llama-quantize does not quantise.
pub(crate) const PRECISE: Precise = Precise {
    kept: &[
        "time_mix_w1.weight",
        "time_mix_w2.weight",
        "time_mix_v1.weight",
        "time_mix_v2.weight",
        "time_mix_a1.weight",
        "time_mix_a2.weight",
        "time_mix_g1.weight",
        "time_mix_g2.weight",
        "time_mix_lerp_fused.weight",
    ],
    in_bytes: &[],
};

/// Builds a layer's time mix on normalised rows, including its output matrix. The first layer
/// stores its values in `first`, for later layers.
pub(crate) fn time_mix(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    first: &mut Option<ValueId>,
) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let sizes = rwkv::sizes(&b.keys())?;
    let StateSizes { heads, key_length: length, .. } = sizes;
    let name = |part: &str| format!("blk.{layer}.time_mix_{part}");
    let gated = b.has(&name("g1.weight"));
    // The fused tensor is used as separate vectors ([`super::token_shift::tensors`]). If they are
    // missing, the fused tensor is missing or invalid, and looking it up gives the error.
    let (fused, shares) = (format!("blk.{layer}.{FUSED}"), if gated { 6 } else { 5 });
    b.accept_unused(&fused, &[shares, width])?;
    if !b.has(&format!("blk.{layer}.{}", lerp("r"))) {
        b.weight(&fused, &[shares, width])?;
    }
    let before = shift(b, &format!("shift.{layer}"), h)?;
    let of = |b: &mut Builder<'_>, letter: &str| mix_previous(b, h, before, &format!("blk.{layer}.{}", lerp(letter)));

    let xr = of(b, "r")?;
    let r = b.linear(xr, &name("receptance"), width, width, Bias::Optional)?;
    let xw = of(b, "w")?;
    let decay = low_rank(b, xw, &name("w"), LowRankFunction::Tanh)?;
    let decay = b.bias(decay, &name("w0.weight"), width)?;
    let decay = b.unary(Unary::Sigmoid, decay)?;
    let decay = b.scale(decay, MIN_LOG_DECAY)?;
    let decay = b.unary(Unary::Exp, decay)?;
    let xk = of(b, "k")?;
    let k = b.linear(xk, &name("key"), width, width, Bias::Optional)?;
    let xv = of(b, "v")?;
    let v = b.linear(xv, &name("value"), width, width, Bias::Optional)?;
    let v = match *first {
        None => {
            *first = Some(v);
            unused_values(b, &name, width)?;
            v
        }
        Some(first) => {
            let share = sigmoid_low_rank(b, xv, &name("v"), width)?;
            let away = b.scale(v, -1.0)?;
            let away = b.add(first, away)?;
            let moved = b.mul(away, share)?;
            b.add(v, moved)?
        }
    };
    let xa = of(b, "a")?;
    let rate = sigmoid_low_rank(b, xa, &name("a"), width)?;

    let find = b.multiply_elements(k, &name("k_k.weight"), width)?;
    let find = b.split_heads(find, heads)?;
    let find = b.plain_norm_of(find, LENGTH_EPS / length as f64)?;
    let find = b.scale(find, 1.0 / (length as f64).sqrt())?;
    let flat = b.merge_heads(find)?;
    let remove = b.mul(flat, rate)?;
    let own = b.multiply_elements(k, &name("k_a.weight"), width)?;
    let rated = b.mul(own, rate)?;
    let own = b.scale(own, -1.0)?;
    let changed = b.add(rated, own)?;
    let k = b.add(k, changed)?;

    let mut split = |x: ValueId| b.split_heads(x, heads);
    let rows = WkvRows {
        sizes,
        r: split(r)?,
        k: split(k)?,
        v: split(v)?,
        decay: split(decay)?,
        delta: Some(WkvDelta { find, remove: split(remove)? }),
        before: false,
        filled: false,
    };
    let y = b.wkv(&format!("wkv.{layer}"), &rows)?;
    let y = match b.has(&name("ln.weight")) {
        true => b.layer_norm_of_each(y, &name("ln"), heads, length, HEAD_EPS)?,
        false => y,
    };
    let y = b.merge_heads(y)?;
    let bonus = b.mul(r, k)?;
    let bonus = b.multiply_elements(bonus, &name("r_k.weight"), width)?;
    let bonus = b.split_heads(bonus, heads)?;
    let bonus = b.heads_sum(bonus)?;
    let bonus = b.scale_heads(v, bonus)?;
    let mut y = b.add(y, bonus)?;
    if gated {
        let xg = of(b, "g")?;
        let gate = low_rank(b, xg, &name("g"), LowRankFunction::Sigmoid)?;
        y = b.mul(y, gate)?;
    }
    b.linear(y, &name("output"), width, width, Bias::Optional)
}

/// Builds `sigmoid(NAME0 + NAME2 NAME1 x)`.
fn sigmoid_low_rank(b: &mut Builder<'_>, x: ValueId, name: &str, width: u64) -> Result<ValueId, ArchError> {
    let x = low_rank(b, x, name, LowRankFunction::Identity)?;
    let x = b.bias(x, &format!("{name}0.weight"), width)?;
    b.unary(Unary::Sigmoid, x)
}

/// Accepts `v0`, `v1` and `v2` of the first layer. Files contain them, although the first layer has
/// no earlier values to mix in.
fn unused_values(b: &mut Builder<'_>, name: &dyn Fn(&str) -> String, width: u64) -> Result<(), ArchError> {
    let rank = b.rows(&name("v1.weight")).unwrap_or(0);
    for (part, shape) in [("v0", &[width][..]), ("v1", &[rank, width]), ("v2", &[width, rank])] {
        b.accept_unused(&name(&format!("{part}.weight")), shape)?;
    }
    Ok(())
}
