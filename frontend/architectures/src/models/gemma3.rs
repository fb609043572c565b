//! `gemma3`: Gemma 3. Five of every six layers have an attention window and their own RoPE. A norm
//! precedes and follows each block, and gates go through GELU.

use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, PostNorms, Style, decoder, embed_by_root};
use crate::hyper::{Defaults, Windows};

pub(super) const STYLE: Style = Style {
    head_norm: HeadNorm::HEADS,
    post_norms: Some(PostNorms::USUAL),
    gate: GateAttrs::plain(Activation::Gelu),
    embed: embed_by_root,
    ..Style::NEOX
};

/// Number of layers of the model with 27 billion parameters. Its score factor depends on the
/// stream's width instead of the key length. Files have no key for this.
const LAYERS_27B: usize = 62;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma3",
    doc: "Gemma 3",
    defaults: Defaults {
        windows: Some(Windows { base: Some(10_000.0), scaled: false, ..Windows::every(6) }),
        // No released model uses this key, but transformers' class supports it.
        reads: &["final_logit_softcapping"],
        attention_scale: |sizes| if sizes.layers == LAYERS_27B { sizes.by_width() } else { sizes.by_key() },
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
