//! Keys of attention over a window and over compressed entries (DeepSeek-V4).

use ixc_ir::graph::attrs::RopeScaling;
use ixc_model_files::gguf::GgufError;

use crate::hyper::{Keys, MAX_CONTEXT, MAX_COUNT, MAX_WIDTH, Rope};

/// Sizes of attention over a window of positions and over compressed entries of earlier positions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EntryKeys {
    /// Number of positions in a compressed entry, for each layer; 0 in a layer without compressed
    /// entries.
    pub ratios: Vec<u64>,
    /// RoPE of layers with compressed entries.
    pub rope: Rope,
    /// Length of the row from which queries are made.
    pub query_rank: u64,
    /// Number of groups of heads, all of equal size. A matrix projects each group to a short row
    /// before the output matrix.
    pub output_groups: u64,
    /// Length of a group's short row.
    pub output_rank: u64,
    /// Number of first layers in which a table lists the experts of each token id.
    pub listed_layers: u64,
    /// Indexer that selects among overlapping entries. `None` if the context has no more entries
    /// than it would select.
    pub index: Option<EntryIndex>,
}

/// Sizes of the indexer that selects entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryIndex {
    /// Number of query heads of the indexer.
    pub heads: u64,
    /// Elements of a query and of a key.
    pub key_length: u64,
    /// Number of entries that the indexer selects, if there are more.
    pub top_k: u64,
}

/// Number of positions in an entry that overlaps with its neighbours. Layers with such entries have
/// the indexer.
pub(super) const OVERLAP_RATIO: u64 = 4;

impl EntryKeys {
    /// Reads the GGUF keys that describe compressed entries of attention. `rope` is the RoPE of
    /// layers without compressed entries, and `context` is the model's context length.
    pub(super) fn read(keys: &Keys<'_>, layers: usize, rope: &Rope, context: u64) -> Result<EntryKeys, GgufError> {
        const RATIOS: &str = "attention.compress_ratios";
        let ratios = keys.first_per_layer(RATIOS, layers, 0, MAX_CONTEXT)?;
        let index =
            if ratios.contains(&OVERLAP_RATIO) { EntryIndex::read(keys, context / OVERLAP_RATIO)? } else { None };
        let base =
            keys.float("attention.compress_rope_freq_base", rope.base as f32, |x| x > 0.0, "a positive number")?;
        // The op multiplies rotated elements by YaRN's magnitude, which this model does not have.
        // The factor cancels it.
        let stated = keys.rope_factor()?;
        let attn_factor = match rope.scaling {
            RopeScaling::Yarn | RopeScaling::YarnUntruncated => stated / (1.0 + 0.1 * rope.factor.ln()),
            RopeScaling::None | RopeScaling::Linear => stated,
        };
        Ok(EntryKeys {
            ratios,
            rope: Rope { base, attn_factor, ..rope.clone() },
            query_rank: keys.required_size("attention.q_lora_rank", 1, MAX_WIDTH)?,
            output_groups: keys.required_size("attention.output_group_count", 1, MAX_COUNT)?,
            output_rank: keys.required_size("attention.output_lora_rank", 1, MAX_WIDTH)?,
            listed_layers: keys.optional("hash_layer_count", 0, layers as u64)?.unwrap_or(0),
            index,
        })
    }
}

impl EntryIndex {
    /// Reads the keys of the indexer. `entries` is the maximum number of entries in the context.
    fn read(keys: &Keys<'_>, entries: u64) -> Result<Option<EntryIndex>, GgufError> {
        let top_k = keys.required_size("attention.indexer.top_k", 1, MAX_CONTEXT)?;
        if entries <= top_k {
            return Ok(None);
        }
        Ok(Some(EntryIndex {
            heads: keys.required_size("attention.indexer.head_count", 1, MAX_COUNT)?,
            key_length: keys.required_size("attention.indexer.key_length", 2, MAX_WIDTH)?,
            top_k,
        }))
    }
}
