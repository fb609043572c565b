//! Keys of latent attention.

use ixc_ir::graph::attrs::RopeScaling;

use super::keys::Keys;
use super::{Layer, MAX_WIDTH, Mla, Rope};
use crate::gguf::GgufError;

impl Mla {
    pub(super) fn read(keys: &Keys<'_>) -> Result<Option<Mla>, GgufError> {
        let Some(rank) = keys.optional("attention.kv_lora_rank", 1, MAX_WIDTH)? else { return Ok(None) };
        Ok(Some(Mla {
            query_rank: keys.optional("attention.q_lora_rank", 1, MAX_WIDTH)?,
            rank,
            // Older files keep keys and values of all heads, and have neither of these.
            key_length: keys.required("attention.key_length_mla", 1, MAX_WIDTH)?,
            value_length: keys.required("attention.value_length_mla", 1, MAX_WIDTH)?,
        }))
    }

    /// That the lengths in the cache are those of the row that is kept, one for all heads. Of values it is the row's, whatever `attention.value_length`
    /// says: in files of Kimi Linear that is of nothing.
    pub(super) fn check(&self, keys: &Keys<'_>, layers: &mut [Layer], rope: &Rope) -> Result<(), GgufError> {
        keys.in_range("rope.dimension_count", rope.dims, 1, self.key_length - 1)?;
        for layer in layers.iter_mut().filter(|layer| !layer.recurrent) {
            keys.in_range("attention.head_count_kv", layer.kv_heads, 1, 1)?;
            let key = self.rank + rope.dims;
            keys.in_range("attention.key_length", layer.key_length, key, key)?;
            layer.value_length = self.rank;
        }
        Ok(())
    }

    /// The factor on scores. What YaRN would multiply rotated elements by is in it, squared and with a weight of its own, and they stay as they
    /// are (DeepSeek-V3; llama.cpp stores a tenth of `mscale_all_dim`).
    pub(super) fn attention_scale(&self, keys: &Keys<'_>, rope: &mut Rope) -> Result<f64, GgufError> {
        let scale = 1.0 / (self.key_length as f64).sqrt();
        let weight = keys.float("rope.scaling.yarn_log_multiplier", 0.0, |x| x >= 0.0, "0 or a positive number")?;
        if rope.scaling != RopeScaling::Yarn {
            return Ok(scale);
        }
        rope.attn_factor /= 1.0 + 0.1 * rope.factor.ln();
        Ok(scale * (1.0 + weight * rope.factor.ln()).powi(2))
    }
}
