//! Layers with the selective state space of Mamba-2 (llama.cpp `mamba-base.cpp`).
//!
//! ```text
//! z, xbc, dt = ssm_in h
//! x, b, c = silu(conv(xbc) + bias)         // a causal convolution of each channel
//! y = ssm_scan(x, b, c, dt)                // ir/src/graph/recurrent/ssm_scan.rs
//! ssm_out rms_norm(y * silu(z); ssm_norm)  // a separate norm for each group of heads
//! ```

use ixc_ir::graph::ValueId;

use crate::builder::{Bias, Builder, SsmScan, StateSizes};
use crate::error::ArchError;
use crate::hyper::Ssm;

/// Builds the Mamba block: norm, state space, output matrix, and addition to the stream.
pub(crate) fn mixer(b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, ArchError> {
    let h = b.norm(x, &format!("blk.{layer}.attn_norm.weight"))?;
    let y = state_space(b, layer, h)?;
    b.add(y, x)
}

/// Builds the state space on normalised rows, including its output matrix.
pub(crate) fn state_space(b: &mut Builder<'_>, layer: usize, h: ValueId) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let Ssm { taps, heads, groups, key_length: state, value_length, .. } = b.ssm()?;
    let (inner, shared) = (heads * value_length, groups * state);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let channels = inner + 2 * shared;
    let all = b.linear(h, &name("ssm_in"), width, inner + channels + heads, Bias::Optional)?;
    let (z, xbc, dt) =
        (b.slice(all, 0, inner)?, b.slice(all, inner, channels)?, b.slice(all, inner + channels, heads)?);
    let mixed = b.short_conv(&format!("conv.{layer}"), xbc, &name("ssm_conv1d.weight"), channels, taps)?;
    let mixed = b.optional_bias(mixed, &name("ssm_conv1d.bias"), channels)?;
    let mixed = b.silu(mixed)?;
    let mut part = |from: u64, heads: u64, length: u64| {
        let part = b.slice(mixed, from, heads * length)?;
        b.split_heads(part, heads)
    };
    let rows = ScanRows {
        x: part(0, heads, value_length)?,
        key: part(inner, groups, state)?,
        query: part(inner + shared, groups, state)?,
        step: dt,
    };
    let y = gated_scan(b, layer, &rows, z)?;
    let y = b.grouped_norm(y, &name("ssm_norm.weight"), groups, inner / groups)?;
    b.linear(y, &name("ssm_out"), inner, width, Bias::Optional)
}

/// Inputs of a layer's scan.
pub(crate) struct ScanRows {
    /// Values of the heads.
    pub x: ValueId,
    /// Keys, one for each group of heads.
    pub key: ValueId,
    /// Queries, one for each group of heads.
    pub query: ValueId,
    /// Step sizes of the heads.
    pub step: ValueId,
}

/// Builds a layer's scan, times SiLU of the gate `z`. The result has the width of `z`.
pub(crate) fn gated_scan(b: &mut Builder<'_>, layer: usize, rows: &ScanRows, z: ValueId) -> Result<ValueId, ArchError> {
    let name = |end: &str| format!("blk.{layer}.{end}");
    let Ssm { heads, key_length, value_length, .. } = b.ssm()?;
    let ScanRows { x, key, query, step } = *rows;
    let scan = SsmScan {
        sizes: StateSizes { heads, key_length, value_length },
        x,
        key,
        query,
        step,
        a: b.vector(&name("ssm_a"), heads)?,
        step_bias: b.vector(&name("ssm_dt.bias"), heads)?,
        d: b.vector(&name("ssm_d"), heads)?,
    };
    let y = b.ssm_scan(&format!("ssm.{layer}"), &scan)?;
    let y = b.merge_heads(y)?;
    let z = b.silu(z)?;
    b.mul(z, y)
}
