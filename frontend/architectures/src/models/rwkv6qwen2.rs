//! `rwkv6qwen2`: QRWKV6. It is Qwen2.5 with the recurrent states of RWKV-6 instead of attention
//! ([`crate::layers::rwkv6`]). Groups of heads share keys and values. It keeps RMS norms and gated
//! networks.

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, feed_forward};
use crate::error::ArchError;
use crate::hyper::Defaults;
use crate::layers::rwkv;
use crate::layers::rwkv6::{PRECISE, time_mix};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "rwkv6qwen2",
    doc: "QRWKV6",
    defaults: Defaults { precise: PRECISE, ..rwkv::DEFAULTS },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    rwkv::check_shifts(&b.keys(), 1)?;
    let mut x = b.embed()?;
    for layer in b.layers() {
        let h = b.norm(x, &format!("blk.{layer}.attn_norm.weight"))?;
        let y = time_mix(b, layer, h)?;
        x = b.add(y, x)?;
        x = feed_forward(b, layer, x, &Style::LLAMA)?;
    }
    b.logits(x)
}
