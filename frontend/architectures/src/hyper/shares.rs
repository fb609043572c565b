//! Keys of layers that use the keys and values of an earlier layer.
//!
//! ```text
//! // number of last layers that use the KV cache of an earlier layer of the same kind
//! gemma4.attention.shared_kv_layers         = 2
//! // for each layer, the layer whose KV cache it uses; its own index if it has its own cache
//! mistral-large4.attention.kv_source_layers = [0, 1, 2, 3, 0, 1]
//! ```

use ixc_model_files::gguf::GgufError;

use super::keys::Keys;
use super::{Layer, MAX_COUNT};

/// Key of the layer whose keys and values each layer uses.
const SOURCES: &str = "attention.kv_source_layers";

/// Sets, for each layer without keys and values, the layer whose keys and values it uses.
pub(super) fn share(keys: &Keys<'_>, layers: &mut [Layer]) -> Result<(), GgufError> {
    match keys.metadata.get(&keys.name(SOURCES)) {
        Some(_) => by_layer(keys, layers),
        None => share_last(keys, layers),
    }
}

fn by_layer(keys: &Keys<'_>, layers: &mut [Layer]) -> Result<(), GgufError> {
    let sources = keys.first_per_layer(SOURCES, layers.len(), 0, MAX_COUNT)?;
    for (at, &source) in sources.iter().enumerate() {
        let of = source as usize;
        if of == at {
            continue;
        }
        let is_own = of < at && sources[of] == source;
        let kind = |layer: &Layer| (layer.has_rope, layer.window, layer.kv_heads, layer.key_length, layer.value_length);
        if !is_own || kind(&layers[of]) != kind(&layers[at]) {
            let limit = format!(
                "{at} for layer {at}, or an earlier layer with its own keys of the same length, window and rotation"
            );
            return Err(keys.metadata.bad_value(&keys.name(SOURCES), source, limit));
        }
        layers[at].shares = Some(of);
    }
    Ok(())
}

/// Sets the source of the last layers. It is the last layer before all of them that also has a
/// window, or also has none.
fn share_last(keys: &Keys<'_>, layers: &mut [Layer]) -> Result<(), GgufError> {
    const KEY: &str = "attention.shared_kv_layers";
    let count = layers.len();
    let shared = keys.optional(KEY, 0, count as u64)?.unwrap_or(0);
    let own = count - shared as usize;
    for at in own..count {
        let (before, layer) = (&layers[..own], &layers[at]);
        let same = |other: &Layer| {
            (other.window.is_some(), other.kv_heads, other.key_length, other.value_length)
                == (layer.window.is_some(), layer.kv_heads, layer.key_length, layer.value_length)
        };
        let shares = before.iter().rposition(|other| other.window.is_some() == layer.window.is_some());
        layers[at].shares = shares.filter(|&shares| same(&before[shares]));
        if layers[at].shares.is_none() {
            let limit = format!(
                "small enough that layer {at} can share the keys of an earlier layer with the same heads, lengths and kind of window"
            );
            return Err(keys.metadata.bad_value(&keys.name(KEY), shared, limit));
        }
    }
    Ok(())
}
