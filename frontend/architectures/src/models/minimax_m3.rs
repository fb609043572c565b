//! `minimax-m3`: MiniMax-M3. Normalised heads, gates like gpt-oss, and a dense network in the first
//! layers. Other layers have shared experts, and attention over blocks of positions that an indexer
//! selects (transformers `minimax_m3_vl`, llama.cpp `minimax-m3.cpp`).
//!
//! ```text
//! // one key; a query for each key head g
//! k = rope(norm(indexer.k_proj h)),  q[g] = rope(norm(indexer.q_proj h))
//! // by head: local blocks, and those with the highest q[g] . k of a position
//! attention over index.top_k(q, _, k) {block, local}
//! ```
//!
//! If the selection covers the whole context, the indexer has no effect and is left out.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::{Activation, GateAttrs, RouteScore};
use ixc_ir::plan::CHOSEN_BLOCK;
use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::builder::{Bias, BlockSelection, Builder};
use crate::decoder::{HeadNorm, Style, attention, attention_to, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, Keys, Layer, MAX_CONTEXT, MAX_COUNT, MAX_WIDTH};

const STYLE: Style = Style {
    head_norm: HeadNorm::HEADS,
    gate: GateAttrs { limit: 7.0, shift: 1.0, ..GateAttrs::plain(Activation::QuickGelu) },
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "minimax-m3",
    doc: "MiniMax-M3",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        // The indexer selects blocks up to the block that contains the row.
        adjust: |keys, _| keys.require_causal(),
        ..Defaults::USUAL
    },
    build: decoder,
};

/// Key of the positions of a block.
const BLOCK: &str = "attention.indexer.block_size";
const TOP_K: &str = "attention.indexer.top_k";

/// Indexer whose heads select blocks of positions, each for the key head with its number.
///
/// ```text
/// // each head selects top_k blocks of this size for itself
/// minimax-m3.attention.indexer.block_size   = 128
/// // of these, the last blocks up to a row's own
/// minimax-m3.attention.indexer.local_blocks = 1
/// ```
struct BlockIndex {
    /// Number of query heads, which equals the number of key heads.
    heads: u64,
    /// Elements of a query and of a key.
    key_length: u64,
    /// Positions of the selected blocks.
    top_k: u64,
    /// Positions of a block.
    block: u64,
    /// Number of selected blocks that are always the last ones, up to and including the row's
    /// block.
    local: u64,
    /// Whether each layer has the indexer; other layers attend to all positions.
    own: Vec<bool>,
}

impl BlockIndex {
    /// Reads the keys of such an indexer. Returns `None` if the selected blocks cover the whole
    /// context, because the indexer then has no effect. Layers with experts have it (llama.cpp,
    /// `minimax-m3.cpp`).
    fn read(keys: &Keys<'_>, of: &[Layer], context: u64) -> Result<Option<BlockIndex>, GgufError> {
        let Some(block) = keys.optional(BLOCK, 1, MAX_CONTEXT)? else { return Ok(None) };
        let count = keys.required_size(TOP_K, 1, MAX_CONTEXT)?;
        let top_k = block.saturating_mul(count);
        if top_k >= context {
            return Ok(None);
        }
        if !CHOSEN_BLOCK.contains(&block) || !block.is_power_of_two() {
            let limit = format!("a power of two from {} to {}", CHOSEN_BLOCK.start(), CHOSEN_BLOCK.end());
            return Err(keys.metadata.bad_value(&keys.name(BLOCK), block, limit));
        }
        const HEADS: &str = "attention.indexer.head_count";
        let heads = keys.required_size(HEADS, 1, MAX_COUNT)?;
        let own: Vec<bool> = of.iter().map(|layer| layer.experts.is_some()).collect();
        if let Some((layer, other)) = of.iter().enumerate().find(|(i, layer)| own[*i] && layer.kv_heads != heads) {
            let limit = format!("{}, the number of key heads of layer {layer}", other.kv_heads);
            return Err(keys.metadata.bad_value(&keys.name(HEADS), heads, limit));
        }
        Ok(Some(BlockIndex {
            heads,
            key_length: keys.required_size("attention.indexer.key_length", 2, MAX_WIDTH)?,
            top_k,
            block,
            local: keys.required_size("attention.indexer.local_blocks", 1, count)?,
            own,
        }))
    }
}

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let index = BlockIndex::read(&b.keys(), &b.hyper.layers, b.hyper.context_length)?;
    // The indexer is left out if it would always select all blocks.
    if index.is_none() {
        for layer in 0..b.hyper.layers.len() {
            for part in ["q_proj", "k_proj", "q_norm", "k_norm"] {
                b.leave_out(&format!("blk.{layer}.indexer.{part}.weight"));
            }
        }
    }
    let mut x = b.embed()?;
    for layer in b.layers() {
        x = match index.as_ref().filter(|index| index.own[layer]) {
            Some(index) => {
                let h = b.norm(x, &format!("blk.{layer}.attn_norm.weight"))?;
                let blocks = select_blocks(b, layer, h, index)?;
                let y = attention_to(b, layer, h, &STYLE, Some(blocks))?;
                b.add(y, x)?
            }
            None => attention(b, layer, x, &STYLE)?,
        };
        x = feed_forward(b, layer, x, &STYLE)?;
    }
    b.logits(x)
}

/// Builds the blocks of positions that each key head of a layer attends to, selected from
/// normalised rows.
fn select_blocks(b: &mut Builder<'_>, layer: usize, h: ValueId, index: &BlockIndex) -> Result<ValueId, ArchError> {
    let BlockIndex { heads, key_length, top_k, block, local, .. } = *index;
    let mut rows = |part: &str, heads: u64| -> Result<ValueId, ArchError> {
        let name = |of: &str| format!("blk.{layer}.indexer.{part}_{of}");
        let x = b.linear(h, &name("proj"), b.hyper.embedding_length, heads * key_length, Bias::Optional)?;
        let x = b.split_heads(x, heads)?;
        let x = b.rms_norm(x, &name("norm.weight"), key_length)?;
        b.rope(layer, x, STYLE.pairs)
    };
    let (q, k) = (rows("q", heads)?, rows("k", 1)?);
    b.index_blocks(&format!("index.{layer}"), &BlockSelection { q, k, key_length, top_k, block, local })
}
