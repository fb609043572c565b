//! `minimax-m3`: MiniMax-M3. Each head is normalised, gates are like those of gpt-oss, and the
//! first layers have a dense network. The other layers have routed and shared experts, and
//! attention over blocks of positions that an indexer selects (transformers `minimax_m3_vl`,
//! llama.cpp `minimax-m3.cpp`).
//!
//! ```text
//! // one key head; a query head for each key head g of attention
//! k = rope(norm(indexer.k_proj h)),  q[g] = rope(norm(indexer.q_proj h))
//! // for each g: the last blocks, and the blocks with the highest q[g] . k of a position
//! attention over index.top_k(q, _, k) {block, local}
//! ```
//!
//! If the indexer would select the whole context, it has no effect and is left out.

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
        // The indexer selects no block after the row's own block, so attention must be causal.
        adjust: |keys, _| keys.require_causal(),
        ..Defaults::USUAL
    },
    build: decoder,
};

/// Key of the number of positions in a block.
const BLOCK: &str = "attention.indexer.block_size";
const TOP_K: &str = "attention.indexer.top_k";

/// Indexer whose heads each select blocks of positions. Head g selects for key head g of attention.
///
/// ```text
/// // number of positions in a block; each head selects `top_k` (a key) blocks of this size
/// minimax-m3.attention.indexer.block_size   = 128
/// // number of these that are always the last blocks, up to and including the row's own
/// minimax-m3.attention.indexer.local_blocks = 1
/// ```
struct BlockIndex {
    /// Number of query heads, which equals the number of key heads.
    heads: u64,
    /// Elements of a query and of a key.
    key_length: u64,
    /// Total number of positions in the blocks that a head selects.
    top_k: u64,
    /// Number of positions in a block.
    block: u64,
    /// Number of the selected blocks that are always the last ones, up to and including the row's
    /// own block.
    local: u64,
    /// Whether each layer has the indexer. Layers without it attend to all positions.
    own: Vec<bool>,
}

impl BlockIndex {
    /// Reads the indexer's keys. Returns `None` if it would always select the whole context. Layers
    /// with experts have the indexer (llama.cpp, `minimax-m3.cpp`).
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
    // The graph has no indexer, because it would always select all blocks.
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

/// Builds the blocks of positions that each key head of a layer attends to. `h` are the layer's
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
