//! `rwkv6`: RWKV-6 "Finch". Instead of attention, each head has a state with decays computed from
//! each token ([`crate::layers::rwkv6`]). Networks use the square of ReLU and are gated by their
//! rows.

use ixc_ir::graph::{Unary, ValueId};

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder};
use crate::error::ArchError;
use crate::hyper::{Defaults, Norms, Rotates, States, Wkv};
use crate::layers::rwkv6::{PRECISE, time_mix};
use crate::layers::token_shift::{mixed, shift, squared, tensors};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "rwkv6",
    doc: "RWKV-6 (Finch)",
    defaults: Defaults {
        norms: Norms::Layer,
        rotates: Rotates::Never,
        states: States::Wkv { shifts: 2 },
        made: tensors,
        precise: PRECISE,
        ..Defaults::USUAL
    },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let (width, Wkv { halved_every, .. }) = (b.hyper.embedding_length, b.wkv_sizes()?);
    let mut x = b.embed()?;
    x = b.norm(x, "token_embd_norm.weight")?;
    for layer in b.layers() {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let h = b.norm(x, &name("attn_norm"))?;
        let y = time_mix(b, layer, h)?;
        x = b.add(y, x)?;
        let h = b.norm(x, &name("attn_norm_2"))?;
        let before = shift(b, &format!("channel_shift.{layer}"), h)?;
        let r = mixed(b, h, before, &name("channel_mix_lerp_r"))?;
        let r = b.linear(r, &format!("blk.{layer}.channel_mix_receptance"), width, width, Bias::Optional)?;
        let r = b.unary(Unary::Sigmoid, r)?;
        let k = mixed(b, h, before, &name("channel_mix_lerp_k"))?;
        let y = squared(b, layer, k)?;
        let y = b.mul(r, y)?;
        x = b.add(y, x)?;
        if halved_every.is_some_and(|every| (layer as u64 + 1).is_multiple_of(every)) {
            x = b.scale(x, 0.5)?;
        }
    }
    b.logits(x)
}
