//! `axk1`: A.X K1. Like `deepseek2`, but with a norm on the output of experts before it is added to
//! the stream. No other program is known to write GGUF files of this model.

use ixc_ir::graph::ValueId;

use super::deepseek2;
use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{PostNorms, Style, feed_forward};
use crate::error::ArchError;
use crate::hyper::Defaults;
use crate::layers::mla;

const NORM: &str = "post_ffw_norm";
const SPARSE: Style = Style { post_norms: Some(PostNorms { attention: NORM, network: NORM }), ..deepseek2::STYLE };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "axk1",
    doc: "A.X K1",
    defaults: Defaults { draft_input: None, ..deepseek2::DEFAULTS },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mla = b.mla()?;
    let mut x = b.embed()?;
    for layer in b.layers() {
        x = mla::attention(b, layer, x, &mla, &deepseek2::STYLE, None)?;
        let sparse = b.hyper.layers[layer].experts.is_some();
        if !sparse {
            // The checkpoint also has this norm in the dense layer, which does not use it.
            b.leave_out(&format!("blk.{layer}.{NORM}.weight"));
        }
        x = feed_forward(b, layer, x, if sparse { &SPARSE } else { &deepseek2::STYLE })?;
    }
    b.logits(x)
}
