//! `minimax-m3`: MiniMax-M3: normalised heads, gates as gpt-oss has them, a dense network in the first layers, shared experts in the others. Its attention is over
//! blocks of positions that an index chooses, the ones around a row always: all of them up to a context of as many blocks as are chosen, to which the model's
//! is cut (`hyper`).
//!
//! Beyond that each head of keys attends to blocks of its own: its index scores a block by the largest `q . k` of its positions. `index.top_k` scores positions, or runs that
//! have one key, by a sum over heads, and gives one list for all heads of an `attention`.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::{Activation, GateAttrs, RouteScore};

use super::Architecture;
use super::builder::Builder;
use super::decoder::{self, HeadNorm, Style};
use super::error::ArchError;
use super::hyper::Defaults;

const STYLE: Style = Style {
    head_norm: HeadNorm::Heads,
    gate: GateAttrs { limit: 7.0, shift: 1.0, ..GateAttrs::plain(Activation::QuickGelu) },
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "minimax-m3",
    doc: "MiniMax-M3 (contexts up to its chosen blocks)",
    defaults: Defaults { score: RouteScore::Sigmoid, ..Defaults::USUAL },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    // Where all blocks are chosen, nobody asks the index.
    for layer in 0..b.hyper.layers.len() {
        for part in ["q_proj", "k_proj", "q_norm", "k_norm"] {
            b.leave_out(&format!("blk.{layer}.indexer.{part}.weight"));
        }
    }
    decoder::decoder(b, &STYLE)
}
