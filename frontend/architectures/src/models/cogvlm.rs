//! `cogvlm`: the text part of CogVLM. Like `llama`, but with one matrix for queries, keys and
//! values. Image tokens have their own matrices (`vis_attn_qkv` and similar), which text does not
//! use. llama.cpp's RoPE always has the base 10,000; here the key `rope.freq_base` decides.

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, decoder};
use crate::error::ArchError;
use crate::hyper::Defaults;

const STYLE: Style = Style::NEOX;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "cogvlm", doc: "CogVLM (text only)", defaults: Defaults::USUAL, build };

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    for layer in b.layers() {
        let of = b.hyper.layers[layer].clone();
        let (q, kv, inner) =
            (of.heads * of.key_length, of.kv_heads * (of.key_length + of.value_length), of.feed_forward);
        let own = of.heads * of.value_length;
        for (part, shape) in [
            ("attn_qkv", [q + kv, width]),
            ("attn_output", [width, own]),
            ("gate", [inner, width]),
            ("up", [inner, width]),
            ("down", [width, inner]),
        ] {
            b.accept_unused(&format!("blk.{layer}.vis_{part}.weight"), &shape)?;
        }
    }
    decoder(b, &STYLE)
}
