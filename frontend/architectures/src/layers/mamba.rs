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
//!
//! ```text
//! mamba.ssm.time_step_rank = 160     // elements of dt
//! mamba.ssm.dt_b_c_rms     = true    // falcon_mamba: dt, b and c are normalised without weights
//! ```

use ixc_ir::graph::ValueId;
use ixc_model_files::gguf::GgufError;

use crate::builder::{Bias, Builder, SsmScan, StateSizes};
use crate::error::ArchError;
use crate::hyper::{Keys, MAX_TAPS, MAX_WIDTH};

/// Epsilon of norms without weights. It is the default of transformers' Falcon Mamba class, which
/// all its files use.
const NORM_EPS: f64 = 1e-6;

/// Sizes of Mamba layers.
struct Mamba {
    /// Number of taps of the convolution.
    taps: u64,
    /// Number of elements of the values; each element is a head.
    inner: u64,
    /// Number of elements of a key.
    state: u64,
    /// Length of the row from which step sizes are made (`dt`).
    rank: u64,
    /// Whether `dt`, keys and queries have norms even if the file has no weights for them.
    norms: bool,
}

impl Mamba {
    /// Reads the keys of a file with Mamba layers.
    fn read(keys: &Keys<'_>) -> Result<Mamba, GgufError> {
        Ok(Mamba {
            state: keys.required_size("ssm.state_size", 1, MAX_WIDTH)?,
            taps: keys.required_size("ssm.conv_kernel", 2, MAX_TAPS)?,
            rank: keys.required_size("ssm.time_step_rank", 1, MAX_WIDTH)?,
            inner: keys.required_size("ssm.inner_size", 1, MAX_WIDTH)?,
            norms: keys.metadata.read_or(&keys.name("ssm.dt_b_c_rms"), false)?,
        })
    }
}

/// Builds the Mamba block: norm, state space, output matrix, and addition to the stream.
pub(crate) fn mixer(b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let Mamba { taps, inner, state, rank, norms } = Mamba::read(&b.keys())?;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.norm(x, &name("attn_norm.weight"))?;
    let both = b.linear(h, &name("ssm_in"), width, 2 * inner, Bias::Optional)?;
    let (mixed, z) = (b.slice(both, 0, inner)?, b.slice(both, inner, inner)?);
    let mixed = b.short_conv(&format!("conv.{layer}"), mixed, &name("ssm_conv1d.weight"), inner, taps)?;
    let mixed = b.optional_bias(mixed, &name("ssm_conv1d.bias"), inner)?;
    let mixed = b.silu(mixed)?;
    let all = b.linear(mixed, &name("ssm_x"), inner, rank + 2 * state, Bias::Optional)?;
    let mut part = |norm: &str, from: u64, length: u64| {
        let part = b.slice(all, from, length)?;
        let norm = name(norm);
        match b.has(&norm) {
            true => b.rms_norm(part, &norm, length),
            false if norms => b.plain_norm_of(part, NORM_EPS),
            false => Ok(part),
        }
    };
    let step = part("ssm_dt_norm.weight", 0, rank)?;
    let key = part("ssm_b_norm.weight", rank, state)?;
    let query = part("ssm_c_norm.weight", rank + state, state)?;
    // The bias of `ssm_dt` is not added here: it is a weight of the scan.
    let matrix = b.weight(&name("ssm_dt.weight"), &[inner, rank])?;
    let step = b.matmul(step, matrix)?;
    let scan = SsmScan {
        sizes: StateSizes { heads: inner, key_length: state, value_length: 1 },
        x: b.split_heads(mixed, inner)?,
        key: b.split_heads(key, 1)?,
        query: b.split_heads(query, 1)?,
        step,
        a: b.vectors(&name("ssm_a"), &[inner, state])?,
        step_bias: b.vector(&name("ssm_dt.bias"), inner)?,
        d: b.vector(&name("ssm_d"), inner)?,
    };
    let y = b.ssm_scan(&format!("ssm.{layer}"), &scan)?;
    let y = b.merge_heads(y)?;
    let z = b.silu(z)?;
    let y = b.mul(z, y)?;
    let y = b.linear(y, &name("ssm_out"), inner, width, Bias::Optional)?;
    b.add(y, x)
}
