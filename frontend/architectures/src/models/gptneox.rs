//! `gptneox`: GPT-NeoX, Pythia, StableLM of the first year: attention and the network stand beside each other, each behind a layer norm of its own, or one behind the
//! other where files say so (`use_parallel_residual`). Between up and down stands GELU by the error function, as the models were trained, but for GPT-NeoX itself, which had what is near to
//! it; files have no key for that.

use ixc_ir::graph::{Unary, ValueId};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention, beside, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style::NEOX;

/// The width of GPT-NeoX, and of no other model of its kind.
const NEAR: u64 = 6144;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gptneox",
    doc: "GPT-NeoX, Pythia",
    defaults: Defaults { norms: Norms::Layer, ..Defaults::USUAL },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let near = b.hyper.embedding_length == NEAR;
    let style = &Style { ungated: Some(if near { Unary::Gelu } else { Unary::GeluErf }), ..STYLE };
    let mut x = b.embed()?;
    for layer in b.layers() {
        if b.hyper.parallel {
            x = beside(b, layer, x, ["attn_norm", style.ffn_norm], style)?;
            continue;
        }
        x = attention(b, layer, x, style)?;
        x = feed_forward(b, layer, x, style)?;
    }
    b.logits(x)
}
