//! Layers with the selective state space of Mamba-1, which has a decay for each element of a state
//! (Gu and Dao, "Mamba", 2023; llama.cpp `mamba-base.cpp`).
//!
//! ```text
//! x, z     = ssm_in h
//! x        = silu(conv(x) + bias)               // a causal convolution; each channel is a head
//! dt, b, c = ssm_x x                            // each normalised in some models
//! y        = ssm_scan(x, b, c, ssm_dt dt)       // ir/src/graph/recurrent/ssm_scan.rs
//! ssm_out (y * silu(z))
//! ```

use ixc_ir::graph::ValueId;

use crate::builder::{Bias, Builder};
use crate::error::ArchError;
use crate::hyper::Ssm;

/// Epsilon of norms without weights: the default of Falcon Mamba's class, which all its files use.
const NORM_EPS: f64 = 1e-6;

/// Builds norm, state space, output matrix, residual.
pub(crate) fn mixer(b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let Ssm { taps, heads: inner, key_length: state, .. } = b.ssm()?;
    let rank = b.step_rank()?;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.norm(x, &name("attn_norm.weight"))?;
    let both = b.linear(h, &name("ssm_in"), width, 2 * inner, Bias::Optional)?;
    let (mixed, z) = (b.slice(both, 0, inner)?, b.slice(both, inner, inner)?);
    let mixed = b.short_conv(&format!("conv.{layer}"), mixed, &name("ssm_conv1d.weight"), [inner, taps])?;
    let mixed = b.optional_bias(mixed, &name("ssm_conv1d.bias"), inner)?;
    let mixed = b.silu(mixed)?;
    let all = b.linear(mixed, &name("ssm_x"), inner, rank + 2 * state, Bias::Optional)?;
    let mut part = |norm: &str, from: u64, length: u64| {
        let part = b.slice(all, from, length)?;
        let norm = name(norm);
        match b.has(&norm) {
            true => b.rms_norm(part, &norm, length),
            false if b.hyper.ssm.is_some_and(|ssm| ssm.normed) => b.plain_norm_of(part, NORM_EPS),
            false => Ok(part),
        }
    };
    let step = part("ssm_dt_norm.weight", 0, rank)?;
    let key = part("ssm_b_norm.weight", rank, state)?;
    let query = part("ssm_c_norm.weight", rank + state, state)?;
    // Its bias is a weight of the scan.
    let matrix = b.weight(&name("ssm_dt.weight"), &[inner, rank])?;
    let step = b.matmul(step, matrix)?;
    let values = [b.split_heads(mixed, inner)?, b.split_heads(key, 1)?, b.split_heads(query, 1)?, step];
    let rates = b.vectors(&name("ssm_a"), &[inner, state])?;
    let weights = [rates, b.vector(&name("ssm_dt.bias"), inner)?, b.vector(&name("ssm_d"), inner)?];
    let y = b.ssm_scan(&format!("ssm.{layer}"), values, weights)?;
    let y = b.merge_heads(y)?;
    let z = b.silu(z)?;
    let y = b.mul(z, y)?;
    let y = b.linear(y, &name("ssm_out"), inner, width, Bias::Optional)?;
    b.add(y, x)
}
