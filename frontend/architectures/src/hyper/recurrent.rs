//! Keys of layers that mix tokens by a recurrent state instead of attention: the layers, and the
//! sizes of their states.
//!
//! ```text
//! qwen3next.ssm.state_size     = 128     // elements of a key
//! qwen3next.ssm.inner_size     = 4096    // of the values of all heads
//! qwen3next.ssm.time_step_rank = 32      // heads
//! qwen3next.ssm.group_count    = 16      // groups of heads that share a key
//! qwen3next.ssm.conv_kernel    = 4       // taps of the convolution before the state
//! qwen3next.full_attention_interval = 4  // layers 3, 7, 11, … attend
//! // Mamba-1: elements of the row for steps; each element of the values is a head
//! mamba.ssm.time_step_rank     = 160
//! // falcon_mamba: whether that row, keys and queries are normalised
//! mamba.ssm.dt_b_c_rms         = true
//! // elements of a key and of a value, with the heads of attention; replaces the keys above
//! // except conv_kernel
//! kimi-linear.kda.head_dim     = 128
//! glm5-next.kda.gate_lower_bound = -5.0  // lower bound of logarithms of decays
//! olmo-hybrid.ssm.beta_scale   = 2.0     // factor on rates of the delta rule
//! ```

use ixc_model_files::gguf::{Gguf, GgufError};

use super::keys::Keys;
use super::{MAX_COUNT, MAX_WIDTH, States};

/// Maximum number of taps of a convolution, which is the op's limit.
pub(crate) const MAX_TAPS: u64 = 8;

/// Key of the factor on rates of the delta rule.
pub(super) const RATE: &str = "ssm.beta_scale";

/// Default period of layers with attention in files of MiniMax-01.
const LIGHTNING_INTERVAL: u64 = 8;

/// Sizes of the recurrent states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ssm {
    /// Taps of the convolution before the state; 0 for none.
    pub taps: u64,
    /// Heads, each with a state.
    pub heads: u64,
    /// Groups of heads that share a key; divides `heads`.
    pub groups: u64,
    /// Elements of a key.
    pub key_length: u64,
    /// Elements of a head's value.
    pub value_length: u64,
    /// Lower bound of the logarithm of a decay; 0 for none.
    pub decay_bound: f64,
    /// Length of the row from which steps are made. Each head then is one element, with a decay for
    /// each element of a key (Mamba-1).
    pub rank: Option<u64>,
    /// Whether that row, keys and queries are normalised even without weights in the file.
    pub normed: bool,
    /// Upper bound of rates of the delta rule.
    pub rate: f64,
}

impl Ssm {
    /// Reads the sizes of a file's recurrent states, if it has such layers.
    pub(super) fn read(keys: &Keys<'_>) -> Result<Option<Ssm>, GgufError> {
        if let Some(length) = keys.optional("kda.head_dim", 1, MAX_WIDTH)? {
            let taps = keys.required("ssm.conv_kernel", 2, MAX_TAPS)?;
            let heads = keys.required("attention.head_count", 1, MAX_COUNT)?;
            keys.is_true("kda.safe_gate")?;
            let decay_bound = keys.float("kda.gate_lower_bound", 0.0, |x| x <= 0.0, "0 or a number below")?;
            let (groups, key_length, value_length) = (heads, length, length);
            return Ok(Some(Ssm {
                taps,
                heads,
                groups,
                key_length,
                value_length,
                decay_bound,
                rank: None,
                normed: false,
                rate: 1.0,
            }));
        }
        if keys.defaults.states == States::Lightning {
            let heads = keys.required("attention.head_count", 1, MAX_COUNT)?;
            let length = keys.required("attention.key_length", 1, MAX_WIDTH)?;
            let (taps, groups, key_length, value_length, decay_bound) = (0, heads, length, length, 0.0);
            let (rank, normed, rate) = (None, false, 1.0);
            return Ok(Some(Ssm { taps, heads, groups, key_length, value_length, decay_bound, rank, normed, rate }));
        }
        let Some(key_length) = keys.optional("ssm.state_size", 1, MAX_WIDTH)? else { return Ok(None) };
        let taps = keys.required("ssm.conv_kernel", 2, MAX_TAPS)?;
        if keys.defaults.states == States::Selective {
            let rank = keys.required("ssm.time_step_rank", 1, MAX_WIDTH)?;
            let heads = keys.required("ssm.inner_size", 1, MAX_WIDTH)?;
            let normed = keys.metadata.read_or(&keys.name("ssm.dt_b_c_rms"), false)?;
            let (groups, value_length, decay_bound, rank, rate) = (1, 1, 0.0, Some(rank), 1.0);
            return Ok(Some(Ssm { taps, heads, groups, key_length, value_length, decay_bound, rank, normed, rate }));
        }
        let heads = keys.required("ssm.time_step_rank", 1, MAX_COUNT)?;
        // Files of PLaMo 2 have 0 for one group of all heads.
        let groups = keys.required("ssm.group_count", 0, MAX_COUNT)?.max(1);
        let inner = keys.required("ssm.inner_size", 1, MAX_WIDTH)?;
        if !heads.is_multiple_of(groups) {
            let limit = format!("a divisor of ssm.time_step_rank, {heads}");
            return Err(keys.metadata.bad_value(&keys.name("ssm.group_count"), groups, limit));
        }
        if !inner.is_multiple_of(heads) {
            let limit = format!("a multiple of ssm.time_step_rank, {heads}");
            return Err(keys.metadata.bad_value(&keys.name("ssm.inner_size"), inner, limit));
        }
        let (value_length, decay_bound, rank, normed) = (inner / heads, 0.0, None, false);
        let rate = keys.float(RATE, 1.0, |x| x > 0.0 && x <= 2.0, "above 0 and at most 2")?;
        Ok(Some(Ssm { taps, heads, groups, key_length, value_length, decay_bound, rank, normed, rate }))
    }
}

/// Returns for each of `layers` whether it has a recurrent state. The sources are
/// `attention.recurrent_layers`, then `full_attention_interval`, then the presence of such a
/// layer's convolution.
pub(super) fn layers(gguf: &Gguf, keys: &Keys<'_>, layers: usize) -> Result<Vec<bool>, GgufError> {
    let name = keys.name("attention.recurrent_layers");
    if let Some(found) = keys.metadata.read_optional::<&[bool]>(&name)? {
        // Files also list layers that only draft, at the end.
        return match found.get(..layers) {
            Some(found) => Ok(found.to_vec()),
            None => {
                let limit = format!("an array of {layers}, one for each layer (block_count)");
                Err(keys.metadata.bad_value(&name, format!("an array of {}", found.len()), limit))
            }
        };
    }
    let usual = if keys.defaults.states == States::Lightning { Some(LIGHTNING_INTERVAL) } else { None };
    if let Some(interval) = keys.optional("full_attention_interval", 1, MAX_COUNT)?.or(usual) {
        return Ok((1..=layers as u64).map(|layer| !layer.is_multiple_of(interval)).collect());
    }
    Ok((0..layers).map(|layer| gguf.tensor(&format!("blk.{layer}.ssm_conv1d.weight")).is_some()).collect())
}
