//! Keys of the limits that gates and up products of networks are clamped to.

use ixc_model_files::gguf::GgufError;

use super::Hyper;
use super::keys::Keys;

/// Key of the limits of shared experts.
const SHARED_LIMIT: &str = "swiglu_clamp_shexp";

/// Limits of gates and up products in a layer's networks; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Limit of routed experts.
    pub routed: f64,
    /// Limit of shared experts, and of the dense network.
    pub shared: f64,
}

impl Limits {
    /// Reads the limits of each layer, if the architecture supports these keys.
    pub(super) fn read(keys: &Keys<'_>, layers: usize) -> Result<Vec<Limits>, GgufError> {
        const ROUTED: &str = "swiglu_clamp_exp";
        if !keys.defaults.reads.contains(&ROUTED) {
            return Ok(vec![Limits::default(); layers]);
        }
        let (routed, shared) = (keys.limits(ROUTED, layers)?, keys.limits(SHARED_LIMIT, layers)?);
        let [routed, shared] = [routed, shared].map(|limits| limits.unwrap_or_else(|| vec![0.0; layers]));
        Ok(routed.into_iter().zip(shared).map(|(routed, shared)| Limits { routed, shared }).collect())
    }
}

impl Hyper {
    /// Applies the limits of routed experts also to shared experts, unless the file states limits
    /// for them.
    pub(crate) fn limit_shared_experts(&mut self, keys: &Keys<'_>) {
        if !keys.has(SHARED_LIMIT) {
            self.layers.iter_mut().for_each(|layer| layer.limits.shared = layer.limits.routed);
        }
    }
}
