//! Keys of RWKV's layers, and what all its models have in common.
//!
//! ```text
//! // elements of a key and of a value; the width divided by it is the number of heads
//! rwkv7.wkv.head_size        = 64
//! // parts of a layer that mix a row with the previous one: both, or only the first
//! rwkv7.token_shift_count    = 2
//! rwkv7.attention.head_count = 0    // no meaning
//! ```

use ixc_model_files::gguf::GgufError;

use crate::builder::StateSizes;
use crate::hyper::{Defaults, Hyper, Keys, MAX_COUNT, MAX_WIDTH, RopeUse};
use crate::layers::token_shift;

/// Defaults of all models.
pub(crate) const DEFAULTS: Defaults = Defaults {
    rope_use: RopeUse::Never,
    heads: |keys, layers| Ok(vec![sizes(keys)?.heads; layers]),
    adjust: set_recurrent,
    derived_tensors: token_shift::tensors,
    ..Defaults::USUAL
};

/// Reads the sizes of a layer's state.
pub(crate) fn sizes(keys: &Keys<'_>) -> Result<StateSizes, GgufError> {
    const LENGTH: &str = "wkv.head_size";
    let length = keys.required(LENGTH, 1, MAX_WIDTH)?;
    let width = keys.required("embedding_length", 1, MAX_WIDTH)?;
    if !width.is_multiple_of(length) || width / length > MAX_COUNT {
        let limit = format!("a divisor of embedding_length, {width}, with at most {MAX_COUNT} heads");
        return Err(keys.metadata.bad_value(&keys.name(LENGTH), length, limit));
    }
    Ok(StateSizes { heads: width / length, key_length: length, value_length: length })
}

/// Checks the number of parts of a layer that mix a row with the previous one.
pub(crate) fn check_shifts(keys: &Keys<'_>, shifts: u64) -> Result<(), GgufError> {
    const SHIFTS: &str = "token_shift_count";
    // The default is both parts.
    let found = keys.optional(SHIFTS, 0, u64::MAX)?.unwrap_or(2);
    if found == shifts {
        return Ok(());
    }
    Err(keys.metadata.bad_value(&keys.name(SHIFTS), found, format!("{shifts}, as this architecture has")))
}

/// Gives each layer a recurrent state.
fn set_recurrent(_: &Keys<'_>, hyper: &mut Hyper) -> Result<(), GgufError> {
    hyper.layers.iter_mut().for_each(|layer| layer.recurrent = true);
    Ok(())
}
