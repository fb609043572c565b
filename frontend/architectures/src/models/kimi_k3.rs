//! `kimi-k3`: Kimi K3. Layers of linear attention with a bounded decay for each element of a key
//! ([`crate::layers::kda`]), and some of latent attention without RoPE ([`crate::layers::mla`]);
//! their results are gated. Experts have a narrower input than the stream. They are selected by
//! sigmoids with a bias, next to shared experts, and gates and up have soft limits (SiTU).
//!
//! At regular intervals of layers, the stream is saved and a new one begins. The input of each
//! block is attention over the saved streams and the current one (attention residuals; llama.cpp
//! `kimi-k3.cpp`).
//!
//! ```text
//! // without x if it was kept: kept = kept | x
//! h = stream.attend(kept, x; attn_res_score),  x = attention(h) + x
//! h = stream.attend(kept, x; ffn_res_score),   x = experts(h) + x
//! ```

use ixc_ir::graph::attrs::RouteScore;
use ixc_ir::graph::{Unary, ValueId};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{OutputGate, Roped, Style, networks};
use crate::error::ArchError;
use crate::hyper::{Defaults, KEPT_EVERY, Parts};
use crate::layers::{kda, mla};

const STYLE: Style = Style { roped: Roped::None, output_gate: OutputGate::Own(Unary::Sigmoid), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "kimi-k3",
    doc: "Kimi K3",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        normalise: false,
        reads: &[KEPT_EVERY],
        parts: Parts::Keyless,
        ..Defaults::USUAL
    },
    build,
};

/// Streams that rows kept, concatenated.
#[derive(Default)]
struct Kept {
    rows: Option<ValueId>,
    count: u64,
}

impl Kept {
    /// Keeps another stream.
    fn push(&mut self, b: &mut Builder<'_>, x: ValueId) -> Result<(), ArchError> {
        self.rows = Some(self.rows.map_or(Ok(x), |rows| b.concat(rows, x))?);
        self.count += 1;
        Ok(())
    }

    /// Builds attention over them and `x`, scored with this weight; returns `x` if no stream is
    /// kept.
    fn attend(&self, b: &mut Builder<'_>, x: ValueId, weight: &str) -> Result<ValueId, ArchError> {
        let Some(rows) = self.rows else {
            // There is no choice without kept streams.
            b.unread(weight, &[b.hyper.embedding_length])?;
            return Ok(x);
        };
        let rows = b.split_heads(rows, self.count)?;
        b.stream_attend(rows, x, weight)
    }
}

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let (sizes, every) = (b.mla()?, b.kept_every()?);
    let (mut x, mut kept) = (b.embed()?, Kept::default());
    for layer in 0..b.hyper.layers.len() {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let h = kept.attend(b, x, &name("attn_res_score"))?;
        let begins = layer.is_multiple_of(every);
        if begins {
            kept.push(b, x)?;
        }
        let h = b.norm(h, &name("attn_norm"))?;
        let y = match b.hyper.layers[layer].recurrent {
            true => kda::mixer_of(b, layer, h)?,
            false => mla::attention_of(b, layer, h, &sizes, &STYLE, None)?,
        };
        x = if begins { y } else { b.add(y, x)? };
        let h = kept.attend(b, x, &name("ffn_res_score"))?;
        let h = b.norm(h, &name("ffn_norm"))?;
        let y = networks(b, layer, h, &STYLE)?;
        x = b.add(y, x)?;
    }
    // Only requested rows attend here, so kept streams are reduced to the same rows.
    let all = kept.rows.map(|rows| b.wanted(rows)).transpose()?;
    let x = b.wanted(x)?;
    let x = Kept { rows: all, ..kept }.attend(b, x, "output_res_score.weight")?;
    b.head(x, "output_norm.weight")
}
