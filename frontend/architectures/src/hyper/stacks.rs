//! Keys of layers in two stacks.

use ixc_model_files::gguf::GgufError;

use super::keys::Keys;
use super::{MAX_COUNT, MAX_ROUNDED};

/// Two stacks of layers: the lower one is computed several times, then the upper one once, and all
/// of this is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stacks {
    /// Layers of each stack.
    pub layers: u64,
    /// Number of times that both stacks are computed.
    pub cycles: u64,
    /// Number of times that the lower stack is computed in each of these.
    pub lower_cycles: u64,
}

impl Stacks {
    /// Reads the stacks of a file; `most` bounds the layers by the number of tensors.
    pub(crate) fn read(keys: &Keys<'_>, most: u64) -> Result<Stacks, GgufError> {
        const COUNT: &str = "block_count";
        let layers = keys.required("hrm.layers_per_stack", 1, (most / 2).max(1))?;
        let cycles = keys.required("hrm.h_cycles", 1, MAX_ROUNDED)?;
        let lower_cycles = keys.required("hrm.l_cycles", 1, MAX_ROUNDED)?;
        // Each computation of a layer has its own keys and values, and is counted.
        let all = layers.saturating_mul(cycles).saturating_mul(lower_cycles + 1);
        let count = keys.required(COUNT, 1, MAX_COUNT)?;
        if count != all {
            let limit = format!("{all}: hrm.layers_per_stack * hrm.h_cycles * (hrm.l_cycles + 1)");
            return Err(keys.metadata.bad_value(&keys.name(COUNT), count, limit));
        }
        Ok(Stacks { layers, cycles, lower_cycles })
    }
}
