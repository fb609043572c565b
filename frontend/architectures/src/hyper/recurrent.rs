//! Keys of layers that mix tokens by a recurrent state instead of attention. They state which
//! layers these are, and the sizes of their states.
//!
//! ```text
//! qwen3next.ssm.state_size     = 128     // elements of a key
//! qwen3next.ssm.inner_size     = 4096    // elements of the values of all heads
//! qwen3next.ssm.time_step_rank = 32      // heads
//! qwen3next.ssm.group_count    = 16      // groups of heads that share a key
//! qwen3next.ssm.conv_kernel    = 4       // taps of the convolution before the state
//! qwen3next.full_attention_interval = 4  // layers 3, 7, 11, … have attention
//! ```

use ixc_model_files::gguf::{Gguf, GgufError};

use super::keys::Keys;
use super::{MAX_COUNT, MAX_WIDTH};

/// Maximum number of taps of a convolution. The convolution op has the same limit.
pub(crate) const MAX_TAPS: u64 = 8;

/// Key of the number of elements of a key. All files with recurrent states have it.
pub(super) const STATE_SIZE: &str = "ssm.state_size";

/// Sizes of recurrent states, in layers that files describe with `ssm.*` keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ssm {
    /// Number of taps of the convolution before the state.
    pub taps: u64,
    /// Number of heads, each with its own state matrix.
    pub heads: u64,
    /// Number of groups of heads that share a key; a divisor of `heads`.
    pub groups: u64,
    /// Elements of a key.
    pub key_length: u64,
    /// Elements of a head's value.
    pub value_length: u64,
}

impl Ssm {
    /// Reads the sizes of a file's recurrent states.
    pub(crate) fn read(keys: &Keys<'_>) -> Result<Ssm, GgufError> {
        let key_length = keys.required_size(STATE_SIZE, 1, MAX_WIDTH)?;
        let taps = keys.required_size("ssm.conv_kernel", 2, MAX_TAPS)?;
        let heads = keys.required_size("ssm.time_step_rank", 1, MAX_COUNT)?;
        // Files of PLaMo 2 have a 0, which means one group of all heads.
        let groups = keys.required_size("ssm.group_count", 0, MAX_COUNT)?.max(1);
        let inner = keys.required_size("ssm.inner_size", 1, MAX_WIDTH)?;
        if !heads.is_multiple_of(groups) {
            let limit = format!("a divisor of ssm.time_step_rank, {heads}");
            return Err(keys.metadata.bad_value(&keys.name("ssm.group_count"), groups, limit));
        }
        if !inner.is_multiple_of(heads) {
            let limit = format!("a multiple of ssm.time_step_rank, {heads}");
            return Err(keys.metadata.bad_value(&keys.name("ssm.inner_size"), inner, limit));
        }
        Ok(Ssm { taps, heads, groups, key_length, value_length: inner / heads })
    }
}

/// Returns whether each of `layers` layers has a recurrent state, by the keys of the file. Without
/// such keys, the last layer of each `usual` layers has attention. Returns `None` if there are
/// neither keys nor `usual`.
pub(crate) fn stated_layers(
    keys: &Keys<'_>,
    layers: usize,
    usual: Option<u64>,
) -> Result<Option<Vec<bool>>, GgufError> {
    let name = keys.name("attention.recurrent_layers");
    if let Some(found) = keys.metadata.read_optional::<&[bool]>(&name)? {
        // The list may also have entries for draft layers, at the end.
        return match found.get(..layers) {
            Some(found) => Ok(Some(found.to_vec())),
            None => {
                let limit = format!("an array of {layers}, one for each layer (block_count)");
                Err(keys.metadata.bad_value(&name, format!("an array of {}", found.len()), limit))
            }
        };
    }
    let interval = keys.optional("full_attention_interval", 1, MAX_COUNT)?.or(usual);
    Ok(interval.map(|interval| (1..=layers as u64).map(|layer| !layer.is_multiple_of(interval)).collect()))
}

/// Returns whether each of `layers` layers has a recurrent state. The sources are, in this order:
/// `attention.recurrent_layers`, `full_attention_interval`, and the presence of the tensor of a
/// layer's convolution.
pub(super) fn layers(gguf: &Gguf, keys: &Keys<'_>, layers: usize) -> Result<Vec<bool>, GgufError> {
    let has_conv = |layer: usize| gguf.tensor(&format!("blk.{layer}.ssm_conv1d.weight")).is_some();
    Ok(stated_layers(keys, layers, None)?.unwrap_or_else(|| (0..layers).map(has_conv).collect()))
}
