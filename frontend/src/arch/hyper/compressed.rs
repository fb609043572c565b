//! Keys of attention over a window and compressed entries (DeepSeek-V4).

use ixc_ir::graph::attrs::RopeScaling;

use super::keys::Keys;
use super::{MAX_CONTEXT, MAX_COUNT, MAX_WIDTH, Rope};
use crate::gguf::GgufError;

/// Attention over the last positions and compressed entries of those before, one for every so many.
#[derive(Clone, Debug, PartialEq)]
pub struct Compressed {
    /// Of each layer, how many positions an entry is of; 0 where it has none.
    pub ratios: Vec<u64>,
    /// Rotary embedding of layers with entries.
    pub rope: Rope,
    /// Length of the row that queries are made of.
    pub query_rank: u64,
    /// Equal groups of heads, each of which is taken to a row of its own before the output matrix.
    pub output_groups: u64,
    /// Length of that row.
    pub output_rank: u64,
    /// Layers at the front whose experts are those of a table, by token.
    pub listed_layers: u64,
    /// Positions up to which a token sees all entries; behind, it chooses some of them.
    pub whole_context: Option<u64>,
}

/// Positions of an entry where a layer's entries overlap, and a token chooses among them.
pub const CHOSEN_RATIO: u64 = 4;

impl Compressed {
    /// For files that have entries, whose other layers have this rotary embedding.
    pub(super) fn read(keys: &Keys<'_>, layers: usize, rope: &Rope) -> Result<Option<Compressed>, GgufError> {
        const RATIOS: &str = "attention.compress_ratios";
        if keys.metadata.get(&keys.name(RATIOS)).is_none() || !keys.defaults.compressed {
            return Ok(None);
        }
        let ratios = keys.first_per_layer(RATIOS, layers, 0, MAX_CONTEXT)?;
        let whole_context = match ratios.contains(&CHOSEN_RATIO) {
            true => Some(CHOSEN_RATIO * keys.required("attention.indexer.top_k", 1, MAX_CONTEXT)?),
            false => None,
        };
        let base =
            keys.float("attention.compress_rope_freq_base", rope.base as f32, |x| x > 0.0, "a positive number")?;
        // What YaRN would multiply rotated elements by is left out.
        let attn_factor = match rope.scaling {
            RopeScaling::Yarn | RopeScaling::YarnUntruncated => rope.attn_factor / (1.0 + 0.1 * rope.factor.ln()),
            RopeScaling::None | RopeScaling::Linear => rope.attn_factor,
        };
        Ok(Some(Compressed {
            ratios,
            rope: Rope { base, attn_factor, ..rope.clone() },
            query_rank: keys.required("attention.q_lora_rank", 1, MAX_WIDTH)?,
            output_groups: keys.required("attention.output_group_count", 1, MAX_COUNT)?,
            output_rank: keys.required("attention.output_lora_rank", 1, MAX_WIDTH)?,
            listed_layers: keys.optional("hash_layer_count", 0, layers as u64)?.unwrap_or(0),
            whole_context,
        }))
    }
}
