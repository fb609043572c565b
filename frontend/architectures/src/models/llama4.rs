//! `llama4`: Llama 4. Three of every four layers attend within chunks of positions. They have RoPE,
//! and then normalise queries and keys without a weight. The fourth layer attends to all positions,
//! has no RoPE, and multiplies queries by a factor that grows with the position. A router selects
//! one expert for each token. The expert's input is the row *times* the sigmoid of the expert's
//! logit. A shared expert is added.
//!
//! ```text
//! _, w   = route logits {score = sigmoid}      // w: the sigmoid of the highest logit
//! id, p  = route logits {score = chosen}       // id: its expert; p: 1
//! y      = expert(id, w * h) * p + shared(h)
//! ```
//!
//! Most files have no keys for the length of a chunk, which is 8192, or for the factor on queries.
//! If a file has these keys, they are used.

use ixc_ir::graph::attrs::{RouteScore, TemperatureAttrs};
use ixc_ir::graph::{State, ValueId};

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder, GroupScore};
use crate::decoder::{HeadNorm, RopeLayers, Style, attention, feed_forward, routed_experts, shared_expert};
use crate::error::ArchError;
use crate::hyper::{Defaults, Experts, Windows};
use crate::layers::temperature::{SCALE, temper};

const STYLE: Style = Style {
    rope_layers: RopeLayers::Windowed,
    // Only layers without RoPE have the factor on queries.
    temper: |b, q, of| if of.has_rope { Ok(q) } else { temper(b, q, TEMPERATURE) },
    // The window is the chunk: a row attends to the positions of its chunk up to its own.
    state: |state| State { chunked: state.window.is_some(), ..state },
    head_norm: HeadNorm::PLAIN_AFTER_ROPE,
    ..Style::LLAMA
};

/// Number of positions in an attention chunk, in all released models. The factor on queries also
/// changes after this number of positions.
const CHUNK: u64 = 8192;
/// Factor on queries in all released models.
const TEMPERATURE: TemperatureAttrs = TemperatureAttrs { scale: 0.1, length: CHUNK, offset: 1 };
/// Number of experts of Maverick. It identifies the model, which does not normalise queries and
/// keys; files have no key for this.
const PLAIN_EXPERTS: u64 = 128;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "llama4",
    doc: "Llama 4 Scout, Maverick",
    defaults: Defaults {
        reads: &[SCALE],
        windows: Some(Windows { length: Some(CHUNK), optional: true, ..Windows::every(4) }),
        ..Defaults::USUAL
    },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let experts = b.hyper.layers.iter().find_map(|layer| layer.experts.as_ref()).map(|experts| experts.count);
    let style = match experts {
        Some(PLAIN_EXPERTS) => Style { head_norm: HeadNorm::ABSENT, ..STYLE },
        _ => STYLE,
    };
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        x = attention(b, layer, x, &style)?;
        x = match b.hyper.layers[layer].experts.clone() {
            Some(of) => experts_of(b, layer, x, &of)?,
            None => feed_forward(b, layer, x, &style)?,
        };
    }
    b.logits(x)
}

/// Builds the expert block: norm, the routed expert, the shared expert, and addition to the stream.
fn experts_of(b: &mut Builder<'_>, layer: usize, x: ValueId, of: &Experts) -> Result<ValueId, ArchError> {
    if of.used != 1 {
        return Err(b.key_error(
            "expert_used_count",
            of.used,
            "1: the input of an expert is multiplied by its routing weight",
        ));
    }
    let h = b.norm(x, &format!("blk.{layer}.ffn_norm.weight"))?;
    let logits =
        b.linear(h, &format!("blk.{layer}.ffn_gate_inp"), b.hyper.embedding_length, of.count, Bias::Optional)?;
    let weighted = Experts { score: RouteScore::Sigmoid, normalise: false, ..of.clone() };
    let weight = b.route_of(layer, logits, &weighted, None, GroupScore::TwoBest)?.weights;
    let chosen = Experts { score: RouteScore::Chosen, normalise: false, scale: 1.0, ..of.clone() };
    let route = b.route(layer, logits, &chosen)?;
    let shared = shared_expert(b, layer, h, of.feed_forward, &STYLE)?;
    let x = b.add(shared, x)?;
    let h = b.scale_heads(h, weight)?;
    let y = routed_experts(b, layer, h, route, of, &STYLE)?;
    b.add(y, x)
}
