//! Keys of limits of gates and up in networks.

use ixc_model_files::gguf::GgufError;

use super::Hyper;
use super::keys::Keys;

/// Key of the limits of shared experts.
const SHARED_LIMIT: &str = "swiglu_clamp_shexp";

/// Soft limits of gates and up (SiTU, Kimi K3): `bend * tanh(x / bend)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bends {
    /// Soft limit of gates.
    pub gate: f64,
    /// Soft limit of up; 0 for none.
    pub up: f64,
}

impl Bends {
    pub(super) fn read(keys: &Keys<'_>) -> Result<Option<Bends>, GgufError> {
        const GATE: &str = "activation.situ_beta";
        if keys.metadata.get(&keys.name(GATE)).is_none() {
            return Ok(None);
        }
        // Caps have an inverse, like those of all models, because the formula divides by them.
        let cap = |x: f64| (1e-3..=1e6).contains(&x);
        Ok(Some(Bends {
            gate: keys.float(GATE, 0.0, cap, "from 0.001 to 1000000")?,
            up: keys.float(
                "activation.situ_linear_beta",
                0.0,
                |x| x == 0.0 || (1e-3..=1e6).contains(&x),
                "0, or from 0.001 to 1000000",
            )?,
        }))
    }
}

/// Limits of gates and up in a layer's networks; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// In routed experts.
    pub routed: f64,
    /// In shared experts, and in the dense network.
    pub shared: f64,
}

impl Limits {
    /// Reads the limits of each layer, for architectures with these keys.
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
    /// Applies the limits of routed experts also to shared ones, unless the file states others.
    pub(crate) fn limit_shared_experts(&mut self, keys: &Keys<'_>) {
        if !keys.has(SHARED_LIMIT) {
            self.layers.iter_mut().for_each(|layer| layer.limits.shared = layer.limits.routed);
        }
    }
}
