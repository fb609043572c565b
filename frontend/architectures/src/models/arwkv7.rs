//! `arwkv7`: ARWKV-7. It is Qwen2 with the recurrent states of RWKV-7 instead of attention
//! ([`crate::layers::rwkv7`]). It keeps RMS norms and gated networks.

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, feed_forward};
use crate::error::ArchError;
use crate::hyper::Defaults;
use crate::layers::rwkv;
use crate::layers::rwkv7::{PRECISE, time_mix};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "arwkv7",
    doc: "ARWKV-7",
    defaults: Defaults { precise: PRECISE, ..rwkv::DEFAULTS },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    rwkv::check_shifts(&b.keys(), 1)?;
    let mut x = b.embed()?;
    let mut first = None;
    for layer in b.layers() {
        let h = b.norm(x, &format!("blk.{layer}.attn_norm.weight"))?;
        let y = time_mix(b, layer, h, &mut first)?;
        x = b.add(y, x)?;
        x = feed_forward(b, layer, x, &Style::LLAMA)?;
    }
    b.logits(x)
}
