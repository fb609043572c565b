//! `bitnet-b1.58`: BitNet b1.58 2B4T. It has a norm before `attn_output` and another before
//! `ffn_down`. Gates go through the square of ReLU.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{LayerMatrix, Product, Style, decoder, linear};
use crate::error::ArchError;
use crate::hyper::Defaults;

pub(super) const STYLE: Style =
    Style { linear: normed_linear, gate: GateAttrs::plain(Activation::ReluSquared), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bitnet-b1.58",
    doc: "BitNet b1.58 2B4T",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};

/// Builds the usual product. A norm precedes the products with `attn_output` and `ffn_down`.
pub(super) fn normed_linear(b: &mut Builder<'_>, of: &Product<'_>) -> Result<ValueId, ArchError> {
    let norm = match of.matrix {
        LayerMatrix::QueriesKeysValues | LayerMatrix::Queries | LayerMatrix::Keys | LayerMatrix::Values { .. } => {
            return linear(b, of);
        }
        LayerMatrix::Output => "attn_sub_norm",
        LayerMatrix::Down => "ffn_sub_norm",
    };
    let x = b.rms_norm(of.x, &format!("blk.{}.{norm}.weight", of.layer), of.from)?;
    linear(b, &Product { x, ..*of })
}
