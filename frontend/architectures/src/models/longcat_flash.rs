//! `longcat-flash`: LongCat-Flash. Each layer has latent attention ([`crate::layers::mla`]) and a
//! dense network. Every other layer also has experts, which take the same input as its dense
//! network. Their output is added only after the next layer's network (shortcut-connected experts).
//! One layer in transformers' `longcat_flash` is two layers here. Some experts of the router have
//! no matrices and return their input (identity or "zero-computation" experts). Experts are
//! selected by a softmax plus a bias. Their weights are the softmax, not divided by its sum.
//!
//! ```text
//! h = ffn_norm x
//! s = sum over selected experts of p * expert(h)  +  (sum over selected identities of p) * h
//! x = x + network(h)
//! x = x + attention(x)  ...  x + network(x) + s      // of the next layer
//! ```
//!
//! Norms of latent rows have an epsilon of 1e-6, whatever epsilon files state for the other norms.
//!
//! No GGUF file of this model is known. The keys and tensors are those of `deepseek2`, and the keys
//! below. The model has factors on latent rows (`mla_scale_q_lora`, `mla_scale_kv_lora`): the
//! square root of the stream's width divided by the row's length. The weights of the rows' norms
//! include these factors.
//!
//! ```text
//! longcat-flash.block_count           = 56     // twice the number in the model's configuration
//! longcat-flash.expert_count          = 512    // experts with matrices
//! // identity experts, whose ids follow; ffn_gate_inp and exp_probs_b have rows for both kinds
//! longcat-flash.expert_identity_count = 256
//! ```

use ixc_ir::graph::ValueId;
use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder, GroupScore, Route};
use crate::decoder::{Style, network, select, selected_experts};
use crate::error::ArchError;
use crate::hyper::{Defaults, Experts, Keys, MAX_COUNT};
use crate::layers::mla::attention;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "longcat-flash",
    doc: "LongCat-Flash",
    defaults: Defaults {
        normalise: false,
        reads: &[IDENTITIES, "rope.scaling.yarn_log_multiplier"],
        dense_by_tensor: true,
        // This is the default epsilon of norms in transformers.
        adjust: |_, hyper| {
            hyper.default_latent_eps(1e-6);
            Ok(())
        },
        ..Defaults::USUAL
    },
    build,
};

/// Key of the number of identity experts, which have no matrices and return their input. Their ids
/// follow those of the ordinary experts.
const IDENTITIES: &str = "expert_identity_count";

/// Reads the number of identity experts.
fn identities(keys: &Keys<'_>) -> Result<u64, GgufError> {
    let identities = keys.optional(IDENTITIES, 0, MAX_COUNT)?.unwrap_or(0);
    let groups = keys.optional("expert_group_count", 0, MAX_COUNT)?.unwrap_or(1);
    if identities > 0 && groups > 1 {
        let limit = format!("1, because {identities} identity experts belong to no group ({IDENTITIES})");
        return Err(keys.metadata.bad_value(&keys.name("expert_group_count"), groups, limit));
    }
    Ok(identities)
}

/// Selected experts of a layer, whose output the next layer adds.
struct Shortcut {
    layer: usize,
    h: ValueId,
    /// Ids and weights of the selected experts with matrices.
    route: Route,
    /// Sum of the weights of identity experts; `None` in models without identity experts.
    identity: Option<ValueId>,
    of: Experts,
}

impl Shortcut {
    /// Selects experts for the rows `h` of a layer.
    fn select(
        b: &mut Builder<'_>,
        layer: usize,
        h: ValueId,
        of: Experts,
        identities: u64,
    ) -> Result<Shortcut, ArchError> {
        if identities == 0 {
            return Ok(Shortcut { layer, h, route: select(b, layer, h, &of)?, identity: None, of });
        }
        let all = Experts { count: of.count.saturating_add(identities), ..of.clone() };
        let width = b.hyper.embedding_length;
        let logits = b.linear(h, &format!("blk.{layer}.ffn_gate_inp"), width, all.count, Bias::Optional)?;
        // Identity experts have no factors on their outputs, so no factors are given for the
        // weights.
        let route = b.route_of(layer, logits, &all, None, GroupScore::TwoBest)?;
        let (route, identity) = b.identities(route, of.count)?;
        Ok(Shortcut { layer, h, route, identity: Some(identity), of })
    }

    /// Adds the experts' output to the stream `x`.
    fn add(self, b: &mut Builder<'_>, mut x: ValueId) -> Result<ValueId, ArchError> {
        if let Some(identity) = self.identity {
            let inputs = b.scale_heads(self.h, identity)?;
            x = b.add(inputs, x)?;
        }
        let (routed, others) = selected_experts(b, self.layer, Some(x), self.h, self.route, &self.of, &STYLE)?;
        b.add(routed, others.unwrap_or(x))
    }
}

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let (identities, mla) = (identities(&b.keys())?, b.mla()?);
    let mut x = b.embed()?;
    let mut shortcut: Option<Shortcut> = None;
    for layer in b.layers() {
        x = attention(b, layer, x, &mla, &STYLE, None)?;
        let h = b.norm(x, &format!("blk.{layer}.ffn_norm.weight"))?;
        let own = match b.hyper.layers[layer].experts.clone() {
            Some(of) => Some(Shortcut::select(b, layer, h, of, identities)?),
            None => None,
        };
        let y = network(b, layer, h, "", b.hyper.layers[layer].feed_forward, &STYLE)?;
        x = b.add(y, x)?;
        x = shortcut.take().map_or(Ok(x), |of_last| of_last.add(b, x))?;
        shortcut = own;
    }
    x = shortcut.take().map_or(Ok(x), |of_last| of_last.add(b, x))?;
    b.logits(x)
}
