//! Keys of RWKV's layers, and the defaults, sizes and checks that all RWKV models share.
//!
//! ```text
//! // elements of a key and of a value; the number of heads is the width divided by this
//! rwkv7.wkv.head_size        = 64
//! // number of a layer's blocks that mix a row with the previous row: 2, or 1 for only the first
//! rwkv7.token_shift_count    = 2
//! rwkv7.attention.head_count = 0    // no meaning
//! // key and value heads, in models whose query heads share them
//! rwkv6qwen2.attention.head_count_kv = 2
//! ```

use ixc_model_files::gguf::GgufError;

use crate::builder::StateSizes;
use crate::hyper::{Defaults, Hyper, Keys, Layer, LayerParts, MAX_COUNT, MAX_WIDTH, RopeUse};
use crate::layers::token_shift;

/// Defaults that all RWKV architectures share.
pub(crate) const DEFAULTS: Defaults = Defaults {
    rope_use: RopeUse::Never,
    layer_parts: LayerParts::Recurrent,
    adjust: set_heads,
    complete: |gguf, name| {
        let made = token_shift::tensors(&gguf, name)?;
        gguf.with(made)
    },
    ..Defaults::USUAL
};

/// Reads the sizes of a layer's recurrent state.
pub(crate) fn sizes(keys: &Keys<'_>) -> Result<StateSizes, GgufError> {
    const LENGTH: &str = "wkv.head_size";
    let length = keys.required_size(LENGTH, 1, MAX_WIDTH)?;
    let width = keys.required_size("embedding_length", 1, MAX_WIDTH)?;
    if !width.is_multiple_of(length) || width / length > MAX_COUNT {
        let limit = format!("a divisor of embedding_length, {width}, with at most {MAX_COUNT} heads");
        return Err(keys.metadata.bad_value(&keys.name(LENGTH), length, limit));
    }
    Ok(StateSizes { heads: width / length, key_length: length, value_length: length })
}

/// Sets the head counts and lengths of each layer. They follow from `wkv.head_size`, and from
/// `attention.head_count_kv` if the file states it.
fn set_heads(keys: &Keys<'_>, hyper: &mut Hyper) -> Result<(), GgufError> {
    const KEY: &str = "attention.head_count_kv";
    let StateSizes { heads, key_length, value_length } = sizes(keys)?;
    let kv_heads =
        keys.per_layer(KEY, hyper.layers.len(), 1, MAX_COUNT)?.unwrap_or_else(|| vec![heads; hyper.layers.len()]);
    for (layer, kv_heads) in hyper.layers.iter_mut().zip(kv_heads) {
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.metadata.bad_value(
                &keys.name(KEY),
                kv_heads,
                format!("a divisor of the number of heads, {heads}"),
            ));
        }
        *layer = Layer { heads, kv_heads, key_length, value_length, ..layer.clone() };
    }
    Ok(())
}

/// Checks the number of blocks in a layer that mix each row with the previous row.
pub(crate) fn check_shifts(keys: &Keys<'_>, shifts: u64) -> Result<(), GgufError> {
    const SHIFTS: &str = "token_shift_count";
    // Without the key, both blocks mix rows.
    let found = keys.optional(SHIFTS, 0, u64::MAX)?.unwrap_or(2);
    if found == shifts {
        return Ok(());
    }
    Err(keys.metadata.bad_value(
        &keys.name(SHIFTS),
        found,
        format!("{shifts}, the number of token shifts in this architecture"),
    ))
}
