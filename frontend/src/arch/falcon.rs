//! `falcon`: Falcon and Falcon 2: attention and the network stand beside each other, behind one layer norm, or behind two (`attn_norm_2` is then attention's). Between up
//! and down stands GELU by the error function, as the models were trained.

use ixc_ir::graph::{Unary, ValueId};

use super::Architecture;
use super::builder::Builder;
use super::decoder::{Style, beside};
use super::error::ArchError;
use super::hyper::{Defaults, Norms};

const STYLE: Style = Style { ungated: Some(Unary::GeluErf), ..Style::NEOX };
/// Attention's norm, where it has its own.
const OWN_NORM: &str = "attn_norm_2";

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "falcon",
    doc: "Falcon, Falcon 2",
    defaults: Defaults { norms: Norms::Layer, ..Defaults::USUAL },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in b.layers() {
        let has_own = b.has(&format!("blk.{layer}.{OWN_NORM}.weight"));
        x = beside(b, layer, x, [if has_own { OWN_NORM } else { "attn_norm" }, "attn_norm"], &STYLE)?;
    }
    b.logits(x)
}
