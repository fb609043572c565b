//! `kimi-k3`: Kimi K3. Most layers have linear attention with a bounded decay for each element of a
//! key ([`crate::layers::kda`]). Some have latent attention without RoPE ([`crate::layers::mla`]).
//! Both have gates on their results. Experts take rows that are narrower than the stream. They are
//! selected by sigmoids with a bias, and shared experts are added. Gates and up products have soft
//! limits (SiTU).
//!
//! After every few layers, the residual stream is saved and a new stream begins. The input of each
//! block is attention over the saved streams and the current stream (attention residuals; llama.cpp
//! `kimi-k3.cpp`).
//!
//! ```text
//! // after h at the start of a period: saved = saved | x, and the new x is attention(h) alone
//! h = stream.attend(saved, x; attn_res_score),  x = attention(h) + x
//! h = stream.attend(saved, x; ffn_res_score),   x = experts(h) + x
//! ```

use ixc_ir::graph::attrs::{Activation, GateAttrs, RouteScore};
use ixc_ir::graph::{Unary, ValueId};
use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{OutputGate, RopeLayers, Style, networks};
use crate::error::ArchError;
use crate::hyper::{Defaults, Keys, LayerParts, MAX_COUNT};
use crate::layers::{kda, mla};

const STYLE: Style =
    Style { rope_layers: RopeLayers::None, output_gate: OutputGate::Own(Unary::Sigmoid), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "kimi-k3",
    doc: "Kimi K3",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        normalise: false,
        reads: &[SAVE_PERIOD],
        layer_parts: LayerParts::Keyless,
        ..Defaults::USUAL
    },
    build,
};

/// Key of the number of layers after which the stream is saved.
const SAVE_PERIOD: &str = "attn_res.block_size";

/// Reads the soft limits of gates and up products (SiTU): `limit * tanh(x / limit)`. Without the
/// key, returns the style's gate.
fn gate(keys: &Keys<'_>) -> Result<GateAttrs, GgufError> {
    const GATE: &str = "activation.situ_beta";
    if !keys.has(GATE) {
        return Ok(STYLE.gate);
    }
    // Limits must not be near 0, because the formula divides by them.
    let bend = keys.float(GATE, 0.0, |x| (1e-3..=1e6).contains(&x), "from 0.001 to 1000000")?;
    // 0 means that up products have no limit.
    let limit = keys.float(
        "activation.situ_linear_beta",
        0.0,
        |x| x == 0.0 || (1e-3..=1e6).contains(&x),
        "0, or from 0.001 to 1000000",
    )?;
    Ok(GateAttrs { bend, limit, ..GateAttrs::plain(Activation::BentSilu) })
}

/// Residual streams that were saved. Each row has the saved streams of a token, one after the
/// other.
#[derive(Default)]
struct SavedStreams {
    rows: Option<ValueId>,
    count: u64,
}

impl SavedStreams {
    /// Saves the stream `x`.
    fn push(&mut self, b: &mut Builder<'_>, x: ValueId) -> Result<(), ArchError> {
        self.rows = Some(self.rows.map_or(Ok(x), |rows| b.concat(rows, x))?);
        self.count += 1;
        Ok(())
    }

    /// Builds attention over the saved streams and `x`, with scores from the tensor `weight`.
    /// Returns `x` if no stream is saved.
    fn attend(&self, b: &mut Builder<'_>, x: ValueId, weight: &str) -> Result<ValueId, ArchError> {
        let Some(rows) = self.rows else {
            // Without saved streams, attention over `x` alone would return `x`.
            b.accept_unused(weight, &[b.hyper.embedding_length])?;
            return Ok(x);
        };
        let rows = b.split_heads(rows, self.count)?;
        b.stream_attend(rows, x, weight)
    }
}

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let keys = b.keys();
    let (sizes, period) = (b.mla()?, keys.required_size(SAVE_PERIOD, 1, MAX_COUNT)? as usize);
    let kda = kda::Kda::read(&keys)?;
    let style = Style { gate: gate(&keys)?, ..STYLE };
    let (mut x, mut saved) = (b.embed()?, SavedStreams::default());
    for layer in 0..b.hyper.layers.len() {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let h = saved.attend(b, x, &name("attn_res_score"))?;
        let begins = layer.is_multiple_of(period);
        if begins {
            saved.push(b, x)?;
        }
        let h = b.norm(h, &name("attn_norm"))?;
        let y = match b.hyper.layers[layer].recurrent {
            true => kda::mixer_of(b, layer, h, &kda)?,
            false => mla::attention_of(b, layer, h, &sizes, &style, None)?,
        };
        x = if begins { y } else { b.add(y, x)? };
        let h = saved.attend(b, x, &name("ffn_res_score"))?;
        let h = b.norm(h, &name("ffn_norm"))?;
        let y = networks(b, layer, h, &style)?;
        x = b.add(y, x)?;
    }
    // Only the requested rows are needed for logits, so saved streams are reduced to the same rows.
    let all = saved.rows.map(|rows| b.requested_rows(rows)).transpose()?;
    let x = b.requested_rows(x)?;
    let x = SavedStreams { rows: all, ..saved }.attend(b, x, "output_res_score.weight")?;
    b.head(x, "output_norm.weight")
}
