//! Keys of attention over a window and compressed entries (DeepSeek-V4).

use ixc_ir::graph::attrs::RopeScaling;
use ixc_model_files::gguf::GgufError;

use crate::hyper::{Keys, MAX_CONTEXT, MAX_COUNT, MAX_WIDTH, Rope};

/// Attention over the last positions, and over compressed entries of earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EntryKeys {
    /// Positions of an entry for each layer; 0 in a layer without entries.
    pub ratios: Vec<u64>,
    /// Rotary embedding of layers with entries.
    pub rope: Rope,
    /// Length of the row from which queries are made.
    pub query_rank: u64,
    /// Groups of heads of equal size. Each group is projected to a row before the output matrix.
    pub output_groups: u64,
    /// Length of this row.
    pub output_rank: u64,
    /// Leading layers whose experts are listed in a table by token.
    pub listed_layers: u64,
    /// Indexer that selects entries if they overlap; `None` if the context has room for no more
    /// entries than it would select.
    pub index: Option<EntryIndex>,
}

/// Indexer of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryIndex {
    /// Query heads.
    pub heads: u64,
    /// Elements of a query and of a key.
    pub key_length: u64,
    /// Entries that a token attends to, if there are more.
    pub top_k: u64,
}

/// Positions of an entry in layers whose entries overlap; an indexer selects among them.
pub(super) const OVERLAP_RATIO: u64 = 4;

impl EntryKeys {
    /// Reads the keys of a file with entries. `context` is its context, `rope` the RoPE of its
    /// other layers.
    pub(super) fn read(keys: &Keys<'_>, layers: usize, rope: &Rope, context: u64) -> Result<EntryKeys, GgufError> {
        const RATIOS: &str = "attention.compress_ratios";
        let ratios = keys.first_per_layer(RATIOS, layers, 0, MAX_CONTEXT)?;
        let index =
            if ratios.contains(&OVERLAP_RATIO) { EntryIndex::read(keys, context / OVERLAP_RATIO)? } else { None };
        let base =
            keys.float("attention.compress_rope_freq_base", rope.base as f32, |x| x > 0.0, "a positive number")?;
        // YaRN's magnitude on rotated elements is left out.
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
    /// Reads the keys of an indexer; `entries` is the maximum number of entries in the context.
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
