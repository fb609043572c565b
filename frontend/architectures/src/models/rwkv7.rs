//! `rwkv7`: RWKV-7 "Goose". Instead of attention, each head has a recurrent state that every token
//! changes by a delta rule ([`crate::layers::rwkv7`]). Networks mix each row with the previous row;
//! their activation is the square of ReLU.

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::error::ArchError;
use crate::hyper::{Defaults, Norms};
use crate::layers::rwkv;
use crate::layers::rwkv7::{PRECISE, time_mix};
use crate::layers::token_shift::{mix_previous, relu_squared_network, shift};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "rwkv7",
    doc: "RWKV-7 (Goose)",
    defaults: Defaults { norms: Norms::Layer, precise: PRECISE, ..rwkv::DEFAULTS },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    rwkv::check_shifts(&b.keys(), 2)?;
    let mut x = b.embed()?;
    x = b.norm(x, "token_embd_norm.weight")?;
    let mut first = None;
    for layer in b.layers() {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let h = b.norm(x, &name("attn_norm"))?;
        let y = time_mix(b, layer, h, &mut first)?;
        x = b.add(y, x)?;
        let h = b.norm(x, &name("attn_norm_2"))?;
        let before = shift(b, &format!("channel_shift.{layer}"), h)?;
        let h = mix_previous(b, h, before, &name("channel_mix_lerp_k"))?;
        let y = relu_squared_network(b, layer, h)?;
        x = b.add(y, x)?;
    }
    b.logits(x)
}
