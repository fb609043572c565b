//! `falcon`: Falcon and Falcon 2. Attention and the network are parallel, after one layer norm or
//! after a norm each (`attn_norm_2` is then attention's norm). The activation is GELU with the
//! error function, as in training.
//!
//! In models trained only on RefinedWeb, the network follows attention (`use_parallel_residual` is
//! false), with the norm `ffn_norm`. They have ALiBi (`attention.max_alibi_bias`) instead of RoPE.
//! Its slopes are divided by the root of a head's length, like the products `q . k`. Transformers'
//! class rounds slopes, and slopes times positions, to eight bits; here they are exact. No
//! converter writes such files, so the keys are those that our conversion of folders writes.
//!
//! ```text
//! softmax((q . k - slope * distance) / sqrt(d)) v
//! ```

use ixc_ir::graph::attrs::ScoreAttrs;
use ixc_ir::graph::{Unary, ValueId};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Scores, Style, attention, feed_forward, parallel_blocks};
use crate::error::ArchError;
use crate::hyper::{Defaults, MAX_BIAS, Norms, RopeUse};

const STYLE: Style = Style {
    ungated: Some(Unary::GeluErf),
    // The factor on attention scores also applies to ALiBi's slopes.
    scores: |_, _, of| {
        let slope = if of.attrs.max_bias == 0.0 { 0.0 } else { of.attrs.scale };
        Ok(Scores { attrs: ScoreAttrs { slope, ..of.attrs }, ..of })
    },
    ..Style::NEOX
};
/// Name of attention's norm, in files in which the network has a norm of its own.
const OWN_NORM: &str = "attn_norm_2";

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "falcon",
    doc: "Falcon, Falcon 2, Falcon-RW",
    defaults: Defaults { reads: &[MAX_BIAS], norms: Norms::Layer, rope_use: RopeUse::WithoutAlibi, ..Defaults::USUAL },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let parallel = b.keys().parallel()?;
    let mut x = b.embed()?;
    for layer in b.layers() {
        if !parallel {
            x = attention(b, layer, x, &STYLE)?;
            x = feed_forward(b, layer, x, &STYLE)?;
            continue;
        }
        let has_own = b.has(&format!("blk.{layer}.{OWN_NORM}.weight"));
        x = parallel_blocks(b, layer, x, if has_own { OWN_NORM } else { "attn_norm" }, "attn_norm", &STYLE)?;
    }
    b.logits(x)
}
