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

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{self, HeadNorm, Style};
use crate::error::ArchError;
use crate::hyper::Defaults;

const STYLE: Style = Style {
    head_norm: HeadNorm::HEADS,
    gate: GateAttrs { limit: 7.0, shift: 1.0, ..GateAttrs::plain(Activation::QuickGelu) },
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "minimax-m3",
    doc: "MiniMax-M3",
    defaults: Defaults { score: RouteScore::Sigmoid, ..Defaults::USUAL },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    // The indexer is left out if it would always select all blocks.
    if b.hyper.block_index.is_none() {
        for layer in 0..b.hyper.layers.len() {
            for part in ["q_proj", "k_proj", "q_norm", "k_norm"] {
                b.leave_out(&format!("blk.{layer}.indexer.{part}.weight"));
            }
        }
    }
    decoder::decoder(b, &STYLE)
}
