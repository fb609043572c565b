//! Keys of models whose layers all have the recurrent state of RWKV.
//!
//! ```text
//! rwkv7.wkv.head_size          = 64   // elements of a key and of a value: heads are as many as a row has such parts
//! rwkv7.token_shift_count      = 2    // parts of a layer that mix rows with those before: both, or the first alone
//! rwkv6.rescale_every_n_layers = 6    // layers behind which the stream is halved; 0, or no such key, where it is not
//! rwkv7.attention.head_count   = 0    // says nothing
//! ```

use ixc_model_files::gguf::GgufError;

use super::keys::Keys;
use super::{MAX_COUNT, MAX_WIDTH, States};

/// Sizes of RWKV's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wkv {
    /// Elements of a head's key, and of its value.
    pub length: u64,
    /// Heads of a layer.
    pub heads: u64,
    /// Layers behind which the stream is halved, where it is.
    pub halved_every: Option<u64>,
}

impl Wkv {
    /// Of an architecture that has such layers.
    pub(super) fn read(keys: &Keys<'_>, width: u64) -> Result<Option<Wkv>, GgufError> {
        const LENGTH: &str = "wkv.head_size";
        const SHIFTS: &str = "token_shift_count";
        let States::Wkv { shifts } = keys.defaults.states else { return Ok(None) };
        let length = keys.required(LENGTH, 1, MAX_WIDTH)?;
        if !width.is_multiple_of(length) || width / length > MAX_COUNT {
            let limit = format!("a divisor of embedding_length, {width}, with at most {MAX_COUNT} heads");
            return Err(keys.metadata.bad_value(&keys.name(LENGTH), length, limit));
        }
        // Files that do not say mean both.
        let found = keys.optional(SHIFTS, 0, u64::MAX)?.unwrap_or(2);
        if found != shifts {
            return Err(keys.metadata.bad_value(
                &keys.name(SHIFTS),
                found,
                format!("{shifts}, as this architecture has"),
            ));
        }
        let halved_every = keys.optional("rescale_every_n_layers", 0, MAX_COUNT)?.filter(|&every| every > 0);
        Ok(Some(Wkv { length, heads: width / length, halved_every }))
    }
}
