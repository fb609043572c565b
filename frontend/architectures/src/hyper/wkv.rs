//! Keys of models with RWKV's recurrent state in all layers.
//!
//! ```text
//! // elements of a key and of a value; the width divided by it is the number of heads
//! rwkv7.wkv.head_size          = 64
//! // parts of a layer that mix a row with the previous one: both, or only the first
//! rwkv7.token_shift_count      = 2
//! // layers after which the stream is halved; 0 or absent: never
//! rwkv6.rescale_every_n_layers = 6
//! rwkv7.attention.head_count   = 0    // no meaning
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
    /// Layers after which the stream is halved, if it is.
    pub halved_every: Option<u64>,
}

impl Wkv {
    /// Reads the sizes, for architectures with such layers.
    pub(super) fn read(keys: &Keys<'_>, width: u64) -> Result<Option<Wkv>, GgufError> {
        const LENGTH: &str = "wkv.head_size";
        const SHIFTS: &str = "token_shift_count";
        let States::Wkv { shifts } = keys.defaults.states else { return Ok(None) };
        let length = keys.required(LENGTH, 1, MAX_WIDTH)?;
        if !width.is_multiple_of(length) || width / length > MAX_COUNT {
            let limit = format!("a divisor of embedding_length, {width}, with at most {MAX_COUNT} heads");
            return Err(keys.metadata.bad_value(&keys.name(LENGTH), length, limit));
        }
        // The default is both parts.
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
