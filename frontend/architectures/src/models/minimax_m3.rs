//! `minimax-m3`: MiniMax-M3: normalised heads, gates as gpt-oss has them, a dense network in the first layers, shared experts in the others, whose attention is over
//! blocks of positions that an index chooses (transformers `minimax_m3_vl`, llama.cpp `minimax-m3.cpp`).
//!
//! ```text
//! k = rope(norm(indexer.k_proj h)),  q[g] = rope(norm(indexer.q_proj h))     // one key; a query for each key head g
//! attention over index.top_k(q, _, k) {block, local}                         // by head: local blocks, and those with the highest q[g] . k of a position
//! ```
//!
//! Where the context is no longer than what is chosen, all is, and nobody asks the index.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::{Activation, GateAttrs, RouteScore};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{self, HeadNorm, Style};
use crate::error::ArchError;
use crate::hyper::Defaults;

const STYLE: Style = Style {
    head_norm: HeadNorm::Heads,
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
    // Where all blocks are chosen, nobody asks the index.
    if b.hyper.block_index.is_none() {
        for layer in 0..b.hyper.layers.len() {
            for part in ["q_proj", "k_proj", "q_norm", "k_norm"] {
                b.leave_out(&format!("blk.{layer}.indexer.{part}.weight"));
            }
        }
    }
    decoder::decoder(b, &STYLE)
}
