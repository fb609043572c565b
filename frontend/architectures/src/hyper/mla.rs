//! Keys of latent attention (MLA).

use ixc_ir::graph::attrs::RopeScaling;
use ixc_model_files::gguf::{Gguf, GgufError};

use super::keys::Keys;
use super::rope::stated_magnitude;
use super::{Defaults, Hyper, Layer, MAX_COUNT, MAX_WIDTH, Rope, RopeUse};

/// Sizes of latent attention (MLA). Queries, keys and values are made from short rows, and only the
/// row for keys and values is cached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mla {
    /// Length of the row from which queries are made; `None` if they are made from the stream.
    pub query_rank: Option<u64>,
    /// Length of the row from which keys and values are made.
    pub rank: u64,
    /// Length of a query of one head, including its rotated part.
    pub key_length: u64,
    /// Length of a value of one head.
    pub value_length: u64,
    /// Epsilon of the norms of latent rows, if it differs from the other norms' epsilon.
    pub norm_eps: Option<f64>,
}

/// Returns the number of elements of a head's keys or values, from the first key that the file has:
/// `…_length_mla`, then `…_length`. Without both, it is the width of the stream divided by the
/// number of heads.
fn length(keys: &Keys<'_>, of: &str) -> Result<u64, GgufError> {
    if let Some(length) = keys.optional(&format!("attention.{of}_length_mla"), 1, MAX_WIDTH)? {
        return Ok(length);
    }
    if let Some(length) = keys.optional(&format!("attention.{of}_length"), 1, MAX_WIDTH)? {
        return Ok(length);
    }
    let heads = keys.required_size("attention.head_count", 1, MAX_COUNT)?;
    let width = keys.required_size("embedding_length", 1, MAX_WIDTH)?;
    if width.is_multiple_of(heads) { Ok(width / heads) } else { Err(keys.missing(&format!("attention.{of}_length"))) }
}

/// Number of elements of a head's keys and values in latent attention.
pub(crate) struct LatentLengths {
    /// Number of elements of a key that RoPE does not rotate.
    pub plain: u64,
    /// Number of elements of a value.
    pub value: u64,
}

/// Returns the lengths of a head's keys and values.
///
/// # Errors
/// When keys are missing or invalid.
pub fn latent_lengths(gguf: &Gguf, architecture: &str) -> Result<LatentLengths, GgufError> {
    let keys = Keys { metadata: gguf.metadata(), architecture, defaults: Defaults::USUAL };
    let (key, value) = (length(&keys, "key")?, length(&keys, "value")?);
    let rotated = keys.required_size("rope.dimension_count", 1, key - 1)?;
    Ok(LatentLengths { plain: key - rotated, value })
}

/// Key of the epsilon in norms of latent rows, if it differs from the epsilon of other norms.
/// Conversion of folders adds it: transformers' classes use 1e-6 there, whatever `rms_norm_eps` is.
const NORM_EPS: &str = "attention.latent_norm_epsilon";

impl Mla {
    pub(super) fn read(keys: &Keys<'_>) -> Result<Option<Mla>, GgufError> {
        let Some(rank) = keys.optional("attention.kv_lora_rank", 1, MAX_WIDTH)? else { return Ok(None) };
        Ok(Some(Mla {
            query_rank: keys.optional("attention.q_lora_rank", 1, MAX_WIDTH)?,
            rank,
            key_length: length(keys, "key")?,
            value_length: length(keys, "value")?,
            norm_eps: match keys.metadata.get(&keys.name(NORM_EPS)) {
                Some(_) => Some(keys.float(NORM_EPS, 0.0, |x| (0.0..=1.0).contains(&x), "from 0 to 1")?),
                None => None,
            },
        }))
    }

    /// Sets the cache of each layer to one latent row for all heads. It applies to older files,
    /// whose keys describe keys and values of all heads instead.
    fn absorb(&self, keys: &Keys<'_>, layers: &mut [Layer], rope: &Rope) {
        if keys.metadata.get(&keys.name("attention.key_length_mla")).is_none() {
            for layer in layers {
                layer.kv_heads = 1;
                (layer.key_length, layer.value_length) = (self.rank + rope.dims, self.rank);
            }
        }
    }

    /// Checks that the cached lengths of `layers` are those of one latent row for all heads. Sets
    /// the value length to the row's rank, as `attention.value_length` has no meaning in files of
    /// Kimi Linear. Layers without RoPE cache no rotated part.
    fn check<'l>(
        &self,
        keys: &Keys<'_>,
        layers: impl Iterator<Item = &'l mut Layer>,
        rope: &Rope,
    ) -> Result<(), GgufError> {
        // If the architecture has no RoPE, 0 rotated elements are valid.
        let least = u64::from(keys.defaults.rope_use != RopeUse::Never);
        keys.in_range("rope.dimension_count", rope.dims, least, self.key_length - 1)?;
        for layer in layers.filter(|layer| !layer.recurrent) {
            keys.in_range("attention.head_count_kv", layer.kv_heads, 1, 1)?;
            let key = self.rank + rope.dims;
            keys.in_range("attention.key_length", layer.key_length, key, key)?;
            layer.value_length = self.rank;
            if !layer.has_rope {
                layer.key_length = self.rank;
            }
        }
        Ok(())
    }

    /// Sets the factors on attention scores of all layers, and checks the sizes of layers without a
    /// window. Architectures call [`Hyper::set_local_mla`] for layers with a window.
    pub(super) fn set_layers(
        &self,
        keys: &Keys<'_>,
        layers: &mut [Layer],
        windowed: &[bool],
        rope: &mut Rope,
    ) -> Result<(), GgufError> {
        self.absorb(keys, layers, rope);
        let scale = self.attention_scale(keys, rope)?;
        layers.iter_mut().for_each(|layer| layer.attention_scale = scale);
        let full = layers.iter_mut().zip(windowed).filter(|(_, windowed)| !**windowed);
        self.check(keys, full.map(|(layer, _)| layer), rope)
    }

    /// Returns the factor on attention scores, and adapts the factor on rotated elements in `rope`.
    /// If the file states a weight of YaRN's magnitude, the scores' factor includes the squared
    /// magnitude, and rotated elements have none (DeepSeek-V3). The stated weight is a tenth of
    /// `mscale_all_dim`, as llama.cpp stores it. Without a weight, only rotated elements have the
    /// magnitude, as in transformers; llama.cpp multiplies both.
    fn attention_scale(&self, keys: &Keys<'_>, rope: &mut Rope) -> Result<f64, GgufError> {
        let scale = 1.0 / (self.key_length as f64).sqrt();
        let weight = keys.float("rope.scaling.yarn_log_multiplier", 0.0, |x| x >= 0.0, "0 or a positive number")?;
        if rope.scaling != RopeScaling::Yarn {
            return Ok(scale);
        }
        let usual = 1.0 + 0.1 * rope.factor.ln();
        match stated_magnitude(keys)? {
            Some(stated) => rope.attn_factor *= stated / usual,
            None if weight > 0.0 => rope.attn_factor /= usual,
            None => {}
        }
        Ok(scale * (1.0 + weight * rope.factor.ln()).powi(2))
    }
}

impl Hyper {
    /// Checks the sizes of layers with a window, whose latent attention has the sizes `local`. Sets
    /// their factors on attention scores. Architectures with such layers call this in `adjust`.
    pub(crate) fn set_local_mla(&mut self, keys: &Keys<'_>, full: &Mla, local: &Mla) -> Result<(), GgufError> {
        let factor = (full.key_length as f64 / local.key_length as f64).sqrt();
        let windowed = self.layers.iter_mut().filter(|layer| layer.window.is_some());
        local.check(keys, windowed, &self.rope)?;
        let windowed = self.layers.iter_mut().filter(|layer| layer.window.is_some());
        windowed.for_each(|layer| layer.attention_scale *= factor);
        Ok(())
    }

    /// Sets the epsilon of the norms of latent rows, unless the file states it.
    pub(crate) fn default_latent_eps(&mut self, eps: f64) {
        if let Some(mla) = &mut self.mla {
            mla.norm_eps.get_or_insert(eps);
        }
    }
}
