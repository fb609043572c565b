//! `rwkv6qwen2`: QRWKV6: Qwen2.5 with the states of RWKV-6 ([`super::finch`]) in place of attention, whose keys and values groups of heads share; RMS norms, and gated
//! networks.

use ixc_ir::graph::ValueId;

use super::Architecture;
use super::builder::Builder;
use super::decoder::{Style, feed_forward};
use super::error::ArchError;
use super::finch::{PRECISE, time_mix};
use super::hyper::{Defaults, Rotates, States};
use super::shift::tensors;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "rwkv6qwen2",
    doc: "QRWKV6",
    defaults: Defaults {
        rotates: Rotates::Never,
        states: States::Wkv { shifts: 1 },
        made: tensors,
        precise: PRECISE,
        ..Defaults::USUAL
    },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in b.layers() {
        let h = b.norm(x, &format!("blk.{layer}.attn_norm.weight"))?;
        let y = time_mix(b, layer, h)?;
        x = b.add(y, x)?;
        x = feed_forward(b, layer, x, &Style::LLAMA)?;
    }
    b.logits(x)
}
