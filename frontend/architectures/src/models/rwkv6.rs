//! `rwkv6`: RWKV-6 "Finch". Instead of attention, each head has a recurrent state whose decays are
//! computed from each token ([`crate::layers::rwkv6`]). The network's activation is the square of
//! ReLU, and a gate computed from its input multiplies its output.

use ixc_ir::graph::{Unary, ValueId};

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder};
use crate::error::ArchError;
use crate::hyper::{Defaults, MAX_COUNT, Norms};
use crate::layers::rwkv;
use crate::layers::rwkv6::{PRECISE, time_mix};
use crate::layers::token_shift::{mix_previous, relu_squared_network, shift};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "rwkv6",
    doc: "RWKV-6 (Finch)",
    defaults: Defaults { norms: Norms::Layer, precise: PRECISE, ..rwkv::DEFAULTS },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let keys = b.keys();
    rwkv::check_shifts(&keys, 2)?;
    // If the key is 0 or absent, the stream is never divided by 2.
    let halving_period = keys.optional("rescale_every_n_layers", 0, MAX_COUNT)?.filter(|&period| period > 0);
    let width = b.hyper.embedding_length;
    let mut x = b.embed()?;
    x = b.norm(x, "token_embd_norm.weight")?;
    for layer in b.layers() {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let h = b.norm(x, &name("attn_norm"))?;
        let y = time_mix(b, layer, h)?;
        x = b.add(y, x)?;
        let h = b.norm(x, &name("attn_norm_2"))?;
        let before = shift(b, &format!("channel_shift.{layer}"), h)?;
        let r = mix_previous(b, h, before, &name("channel_mix_lerp_r"))?;
        let r = b.linear(r, &format!("blk.{layer}.channel_mix_receptance"), width, width, Bias::Optional)?;
        let r = b.unary(Unary::Sigmoid, r)?;
        let k = mix_previous(b, h, before, &name("channel_mix_lerp_k"))?;
        let y = relu_squared_network(b, layer, k)?;
        let y = b.mul(r, y)?;
        x = b.add(y, x)?;
        if halving_period.is_some_and(|period| (layer as u64 + 1).is_multiple_of(period)) {
            x = b.scale(x, 0.5)?;
        }
    }
    b.logits(x)
}
