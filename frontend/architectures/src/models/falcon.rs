//! `falcon`: Falcon and Falcon 2: attention and the network stand beside each other, behind one layer norm, or behind two (`attn_norm_2` is then attention's). Between up
//! and down stands GELU by the error function, as the models were trained.
//!
//! Those trained on RefinedWeb alone follow each other (`use_parallel_residual` is false, and `ffn_norm` the network's), and have no RoPE: scores fall with distance
//! (`attention.max_alibi_bias`) by what is divided by the root of a head's length, as products are. Transformers' class rounds slopes, and slopes times positions, to eight
//! bits; here they are as they are meant. No converter writes such files: keys are as folders have them.
//!
//! ```text
//! softmax((q . k - slope * distance) / sqrt(d)) v
//! ```

use ixc_ir::graph::{Unary, ValueId};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention, beside, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, MAX_BIAS, Norms, Rotates, Scales};

const STYLE: Style = Style { ungated: Some(Unary::GeluErf), ..Style::NEOX };
/// Attention's norm, where it has its own.
const OWN_NORM: &str = "attn_norm_2";

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "falcon",
    doc: "Falcon, Falcon 2, Falcon-RW",
    defaults: Defaults {
        reads: &[MAX_BIAS],
        norms: Norms::Layer,
        rotates: Rotates::IfUnbiased,
        scales: |_| Scales { scaled_slopes: true, ..Scales::NONE },
        ..Defaults::USUAL
    },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in b.layers() {
        if !b.hyper.parallel {
            x = attention(b, layer, x, &STYLE)?;
            x = feed_forward(b, layer, x, &STYLE)?;
            continue;
        }
        let has_own = b.has(&format!("blk.{layer}.{OWN_NORM}.weight"));
        x = beside(b, layer, x, [if has_own { OWN_NORM } else { "attn_norm" }, "attn_norm"], &STYLE)?;
    }
    b.logits(x)
}
