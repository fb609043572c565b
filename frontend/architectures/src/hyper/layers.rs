//! Keys of decoder layers: heads, networks and experts of each layer, and the number of draft
//! layers.

use ixc_model_files::gguf::{Gguf, GgufError};

use super::experts::{ExpertKeys, experts};
use super::keys::Keys;
use super::{Defaults, Experts, HeadSizes, Layer, LayerParts, Limits, MAX_COUNT, MAX_WIDTH};

/// Key that states which layers have RoPE.
pub(crate) const ROPE_PATTERN: &str = "attention.rope_pattern";

/// Keys of heads for all layers, before defaults replace missing lengths.
struct HeadKeys {
    heads: Vec<u64>,
    kv_heads: Vec<u64>,
    /// Lengths of heads in layers without a window.
    full: HeadLengths,
    /// Lengths of heads in layers with a window.
    local: HeadLengths,
    /// Factor on attention scores; 0 if the file does not state it.
    scale: f64,
}

/// Lengths of heads that the file states; `None` for others.
#[derive(Clone, Copy)]
struct HeadLengths {
    /// Length of a key.
    key: Option<u64>,
    /// Length of a value.
    value: Option<u64>,
}

/// Number and lengths of the heads of one layer.
struct LayerHeads {
    heads: u64,
    kv_heads: u64,
    key_length: u64,
    value_length: u64,
    attention_scale: f64,
}

/// Reads the numbers of query heads and of key and value heads for each of `count` layers.
fn head_counts(keys: &Keys<'_>, count: usize) -> Result<(Vec<u64>, Vec<u64>), GgufError> {
    const KEY: &str = "attention.head_count";
    // Layers without attention may have 0 heads.
    let least = match keys.defaults.layer_parts {
        LayerParts::Recurrent => return Ok((vec![0; count], vec![0; count])),
        LayerParts::All => 1,
        LayerParts::Keyless | LayerParts::One | LayerParts::Fewer => 0,
    };
    let heads = keys.per_layer(KEY, count, least, MAX_COUNT)?.ok_or_else(|| keys.missing(KEY))?;
    let kv_heads = keys.per_layer("attention.head_count_kv", count, least, MAX_COUNT)?;
    Ok((heads.clone(), kv_heads.unwrap_or(heads)))
}

impl HeadKeys {
    fn read(keys: &Keys<'_>, count: usize) -> Result<HeadKeys, GgufError> {
        let (heads, kv_heads) = head_counts(keys, count)?;
        let length = |key: &str| keys.optional(key, 1, MAX_WIDTH);
        let full = HeadLengths { key: length("attention.key_length")?, value: length("attention.value_length")? };
        let local = match keys.defaults.windows {
            Some(_) => HeadLengths {
                key: length("attention.key_length_swa")?.or(full.key),
                value: length("attention.value_length_swa")?.or(full.value),
            },
            None => full,
        };
        // Grok's files state the factor with the key `attention.output_scale`.
        let [scale, other] = ["attention.scale", "attention.output_scale"]
            .map(|key| keys.float(key, 0.0, |x| x >= 0.0, "0 or a positive number"));
        let (scale, other) = (scale?, other?);
        let scale = if scale == 0.0 { other } else { scale };
        Ok(HeadKeys { heads, kv_heads, full, local, scale })
    }

    /// Returns the heads of layer `i`, which has a window if `windowed` is set.
    fn layer(&self, keys: &Keys<'_>, i: usize, windowed: bool, embedding_length: u64) -> Result<LayerHeads, GgufError> {
        let (heads, kv_heads) = (self.heads[i], self.kv_heads[i]);
        let HeadLengths { key: key_length, value: value_length } = if windowed { self.local } else { self.full };
        if kv_heads > 0 && (heads == 0 || !heads.is_multiple_of(kv_heads)) {
            let limit = format!("a divisor of attention.head_count, {heads}");
            return Err(keys.metadata.bad_value(&keys.name("attention.head_count_kv"), kv_heads, limit));
        }
        let default_length = key_length.is_none() || value_length.is_none();
        if default_length && heads > 0 && !embedding_length.is_multiple_of(heads) {
            let limit = format!("a divisor of embedding_length, {embedding_length}, where key_length is not given");
            return Err(keys.metadata.bad_value(&keys.name("attention.head_count"), heads, limit));
        }
        let of_width = embedding_length.checked_div(heads).unwrap_or(0);
        let key_length = key_length.unwrap_or(of_width);
        let layers = self.heads.len();
        let attention_scale = match self.scale {
            0.0 => {
                (keys.defaults.attention_scale)(HeadSizes { layers, embedding: embedding_length, heads, key_length })
            }
            scale => scale,
        };
        Ok(LayerHeads { heads, kv_heads, key_length, value_length: value_length.unwrap_or(of_width), attention_scale })
    }
}

/// Keys of the networks of all layers.
struct NetworkKeys {
    /// Widths of dense networks.
    feed_forward: Option<Vec<u64>>,
    experts: Option<ExpertKeys>,
    /// Number of first layers without experts. It may exceed the number of layers, if the model was
    /// truncated.
    leading_dense: usize,
    /// Period of layers with experts: the last layer of each period has them.
    step: usize,
}

impl NetworkKeys {
    fn read(keys: &Keys<'_>, count: usize) -> Result<NetworkKeys, GgufError> {
        let experts = experts(keys, count)?;
        let least = u64::from(experts.is_none() && !keys.defaults.layer_parts.lack_both());
        let feed_forward = keys.per_layer("feed_forward_length", count, least, MAX_WIDTH)?;
        if feed_forward.is_none() && experts.is_none() {
            return Err(keys.missing("feed_forward_length"));
        }
        let leading_dense = keys.optional("leading_dense_block_count", 0, MAX_COUNT)?.unwrap_or(0) as usize;
        let step = keys.optional("interleave_moe_layer_step", 1, MAX_COUNT)?.unwrap_or(1) as usize;
        Ok(NetworkKeys { feed_forward, experts, leading_dense, step })
    }

    /// Returns the width of the dense network of layer `i`.
    fn feed_forward(&self, i: usize) -> u64 {
        self.feed_forward.as_ref().map_or(0, |lengths| lengths[i])
    }

    /// Returns the experts of layer `i`; `None` if the layer is dense.
    fn experts(&self, keys: &Keys<'_>, i: usize) -> Result<Option<Experts>, GgufError> {
        let feed_forward = self.feed_forward(i);
        match &self.experts {
            Some(_) if keys.defaults.layer_parts == LayerParts::One && feed_forward == 0 => Ok(None),
            Some(experts) if i >= self.leading_dense && (i + 1).is_multiple_of(self.step) => {
                experts.layer(keys, i, feed_forward).map(Some)
            }
            Some(_) | None => Ok(None),
        }
    }
}

/// Reads the hyperparameters of all layers. `windowed` states whether each layer has a window,
/// which may change the sizes of its heads.
pub(super) fn layers(keys: &Keys<'_>, windowed: &[bool], embedding_length: u64) -> Result<Vec<Layer>, GgufError> {
    let count = windowed.len();
    let heads = HeadKeys::read(keys, count)?;
    let networks = NetworkKeys::read(keys, count)?;
    let limits = Limits::read(keys, count)?;
    let has_rope: Vec<bool> = match keys.metadata.get(&keys.name(ROPE_PATTERN)) {
        None => vec![true; count],
        Some(_) => keys.first_per_layer(ROPE_PATTERN, count, 0, 1)?.into_iter().map(|has_rope| has_rope == 1).collect(),
    };
    let layer = |i: usize| {
        let LayerHeads { heads, kv_heads, key_length, value_length, attention_scale } =
            heads.layer(keys, i, windowed[i], embedding_length)?;
        let feed_forward = networks.feed_forward(i);
        Ok(Layer {
            recurrent: match keys.defaults.layer_parts {
                LayerParts::All | LayerParts::Fewer => false,
                LayerParts::Recurrent => true,
                LayerParts::Keyless => kv_heads == 0,
                LayerParts::One => kv_heads == 0 && feed_forward == 0,
            },
            heads,
            kv_heads,
            key_length,
            value_length,
            attention_scale,
            window: None,
            shares: None,
            feed_forward,
            experts: networks.experts(keys, i)?,
            limits: limits[i],
            has_rope: has_rope[i],
        })
    };
    (0..count).map(layer).collect()
}

/// Returns the length of a query of one head, for models whose layers all have the same heads.
///
/// # Errors
/// When the file lacks the keys, or a value is invalid.
pub(crate) fn head_length(gguf: &Gguf, architecture: &str) -> Result<u64, GgufError> {
    let keys = Keys { metadata: gguf.metadata(), architecture, defaults: Defaults::USUAL };
    let stated = keys.optional("attention.key_length", 1, MAX_WIDTH)?;
    let width = keys.required_size("embedding_length", 1, MAX_WIDTH)?;
    let heads = keys.required_size("attention.head_count", 1, MAX_COUNT)?;
    Ok(stated.unwrap_or((width / heads).max(1)))
}

/// Returns the number of draft layers, which are the last layers. Some files count draft layers
/// that they lack (early files of DeepSeek-V4). A layer counts as a draft layer if it is missing or
/// has `eh_proj`, the matrix of draft layers.
pub(super) fn draft_layers(gguf: &Gguf, keys: &Keys<'_>, layers: u64) -> Result<u64, GgufError> {
    let stated = keys.optional("nextn_predict_layers", 0, layers - 1)?.unwrap_or(0);
    let first = format!("blk.{}.", layers - stated);
    let is_there = gguf.tensors().any(|tensor| tensor.name().starts_with(&first));
    let drafts = gguf.tensor(&format!("{first}nextn.eh_proj.weight")).is_some();
    Ok(if is_there && !drafts { 0 } else { stated })
}
