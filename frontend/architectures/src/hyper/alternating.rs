//! Keys of alternating updates (AltUp, arXiv 2301.13310) and of sparse gates, both of Gemma 3n.
//!
//! ```text
//! gemma3n.altup.num_inputs          = 4                     // streams
//! // the stream that a layer reads and writes; the others are predicted and corrected
//! gemma3n.altup.active_idx          = 0
//! // deviations above the mean that a layer's gate needs to count; -inf: all count
//! gemma3n.activation_sparsity_scale = [1.6448, …, -inf]
//! ```

use ixc_model_files::gguf::{Array, GgufError, Value};

use super::keys::Keys;
use super::{Layer, MAX_STREAMS};

/// Residual streams of AltUp: a layer reads and writes one of them, and the others follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternating {
    /// Number of streams.
    pub count: u64,
    /// Stream that layers compute with.
    pub active: u64,
}

impl Alternating {
    pub(super) fn read(keys: &Keys<'_>) -> Result<Option<Alternating>, GgufError> {
        let Some(count) = keys.optional("altup.num_inputs", 2, MAX_STREAMS)? else { return Ok(None) };
        let active = keys.required("altup.active_idx", 0, count - 1)?;
        Ok(Some(Alternating { count, active }))
    }
}

/// Sets the deviations above the mean that a layer's gates need to count, if files have them.
pub(super) fn sparsity(keys: &Keys<'_>, layers: &mut [Layer]) -> Result<(), GgufError> {
    const KEY: &str = "activation_sparsity_scale";
    let name = keys.name(KEY);
    let scales = match keys.metadata.get(&name) {
        None => return Ok(()),
        Some(Value::Array(Array::F32(scales))) if scales.len() >= layers.len() => scales,
        Some(value) => {
            let limit = format!("an array of {} floats or more, one for each layer (block_count)", layers.len());
            return Err(keys.metadata.bad_value(&name, value.type_name(), limit));
        }
    };
    for (layer, &scale) in layers.iter_mut().zip(scales.iter()) {
        layer.sparsity = match scale {
            f32::NEG_INFINITY => None,
            scale if scale.is_finite() => Some(scale.into()),
            scale => return Err(keys.metadata.bad_value(&name, scale, "finite numbers, or -inf where all gates stay")),
        };
    }
    Ok(())
}
