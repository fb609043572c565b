//! Keys of experts and of the router.

use ixc_ir::graph::attrs::RouteScore;
use ixc_model_files::gguf::GgufError;

use super::keys::Keys;
use super::{MAX_COUNT, MAX_WIDTH};

/// Key of the function that turns router logits into weights.
pub(crate) const SCORE: &str = "expert_gating_func";

/// Sizes of a layer's experts, and rules of its router.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts.
    pub count: u64,
    /// Number of experts selected for each token.
    pub used: u64,
    /// Width of one expert.
    pub feed_forward: u64,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights of experts.
    pub scale: f64,
    /// Function that turns router logits into weights.
    pub score: RouteScore,
    /// Width of the network that every token uses (the shared expert, or several merged into one);
    /// 0 without such a network.
    pub shared: u64,
    /// Width of the experts' input and output, if it differs from the stream's.
    pub latent: Option<u64>,
    /// Number of groups of experts; all groups have the same size.
    pub groups: u64,
    /// Number of groups from which a token's experts are selected.
    pub groups_kept: u64,
}

/// Keys of experts, before they are assigned to layers.
pub(super) struct ExpertKeys {
    count: u64,
    used: Vec<u64>,
    feed_forward: Option<Vec<u64>>,
    normalise: bool,
    scale: f64,
    score: RouteScore,
    /// Number of shared experts. It gives their total width if no key states that width.
    shared_count: u64,
    shared_feed_forward: Option<u64>,
    latent: Option<u64>,
    groups: u64,
    groups_kept: u64,
}

/// Reads `expert_gating_func`, with llama.cpp's numbers (`LLAMA_EXPERT_GATING_FUNC_TYPE_*`).
fn score(keys: &Keys<'_>) -> Result<RouteScore, GgufError> {
    match keys.optional(SCORE, 0, u64::MAX)?.unwrap_or(0) {
        0 => Ok(keys.defaults.score),
        1 => Ok(RouteScore::Softmax),
        2 => Ok(RouteScore::Sigmoid),
        3 => Ok(RouteScore::Chosen),
        4 => Ok(RouteScore::RootSoftplus),
        found => {
            let limit = "1 (softmax), 2 (sigmoid), 3 (softmax over the chosen) or 4 (root of softplus)";
            Err(keys.metadata.bad_value(&keys.name(SCORE), found, limit))
        }
    }
}

pub(super) fn experts(keys: &Keys<'_>, layers: usize) -> Result<Option<ExpertKeys>, GgufError> {
    let count = keys.optional("expert_count", 0, MAX_COUNT)?.unwrap_or(0);
    if count == 0 {
        return match keys.per_layer("expert_used_count", layers, 0, 0) {
            Err(GgufError::KeyValue { path, key, found, .. }) => Err(GgufError::KeyValue {
                path,
                key,
                found,
                limit: "0, because the model has no experts (expert_count)".into(),
            }),
            Err(other) => Err(other),
            Ok(_) => Ok(None),
        };
    }
    // Lists may have zeros for layers without experts.
    let least = u64::from(!keys.defaults.layer_parts.lack_both());
    let used = keys.per_layer("expert_used_count", layers, least, count)?;
    let used = used.ok_or_else(|| keys.missing("expert_used_count"))?;
    let feed_forward = keys.per_layer("expert_feed_forward_length", layers, least, MAX_WIDTH)?;
    let normalise = keys.metadata.read_or(&keys.name("expert_weights_norm"), keys.defaults.normalise)?;
    let scale = keys.float("expert_weights_scale", 1.0, |x| x >= 0.0, "0 or a positive number")?;
    // Some converters write 0 for an absent key.
    let scale = if scale == 0.0 { 1.0 } else { scale };
    let groups = keys.optional("expert_group_count", 0, count)?.unwrap_or(1).max(1);
    if !count.is_multiple_of(groups) || (groups > 1 && count / groups < 2) {
        let limit = format!("a divisor of expert_count, {count}, with at least two experts in each group");
        return Err(keys.metadata.bad_value(&keys.name("expert_group_count"), groups, limit));
    }
    let groups_kept = keys.optional("expert_group_used_count", 0, groups)?.filter(|&kept| kept > 0).unwrap_or(groups);
    Ok(Some(ExpertKeys {
        groups,
        groups_kept,
        count,
        used,
        feed_forward,
        normalise,
        scale,
        score: score(keys)?,
        shared_count: keys.optional("expert_shared_count", 0, MAX_COUNT)?.unwrap_or(0),
        shared_feed_forward: keys.optional("expert_shared_feed_forward_length", 0, MAX_WIDTH)?,
        // Kimi K3's files have the key `moe_latent_size`; others have `expert_latent_length`.
        latent: match keys.optional("moe_latent_size", 0, MAX_WIDTH)? {
            None => keys.optional("expert_latent_length", 0, MAX_WIDTH)?,
            found => found,
        }
        .filter(|&latent| latent > 0),
    }))
}

impl ExpertKeys {
    pub(super) fn layer(&self, keys: &Keys<'_>, layer: usize, dense: u64) -> Result<Experts, GgufError> {
        let feed_forward = self.feed_forward.as_ref().map_or(dense, |lengths| lengths[layer]);
        if feed_forward == 0 {
            return Err(keys.missing("expert_feed_forward_length"));
        }
        keys.in_range("expert_used_count", self.used[layer], 1, self.count)?;
        let ExpertKeys {
            count,
            ref used,
            normalise,
            scale,
            score,
            shared_count,
            shared_feed_forward,
            latent,
            groups,
            groups_kept,
            ..
        } = *self;
        let shared = shared_feed_forward.unwrap_or(shared_count * feed_forward);
        Ok(Experts {
            count,
            used: used[layer],
            feed_forward,
            normalise,
            scale,
            score,
            shared,
            latent,
            groups,
            groups_kept,
        })
    }
}
