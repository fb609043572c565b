//! Keys of factors on the residual stream, on slopes of ALiBi and on logits.

use ixc_model_files::gguf::GgufError;

use super::keys::Keys;
use super::{Scales, Widths};

/// Key of the maximum bias of ALiBi, which determines its slopes.
pub(crate) const MAX_BIAS: &str = "attention.max_alibi_bias";

impl Scales {
    pub(super) fn read(keys: &Keys<'_>, widths: &Widths) -> Result<Scales, GgufError> {
        let usual = (keys.defaults.scales)(widths);
        let reads = |key: &str| keys.defaults.reads.contains(&key);
        let factor = |key: &str, usual: f64| if reads(key) { keys.factor(key, usual) } else { Ok(usual) };
        let cap = |key: &str, usual: f64| if reads(key) { keys.cap(key, usual) } else { Ok(usual) };
        let multiplied = keys.defaults.logits_multiplied;
        let logit = factor("logit_scale", if multiplied { 1.0 / usual.logit } else { usual.logit })?;
        Ok(Scales {
            embedding: factor("embedding_scale", usual.embedding)?,
            residual: factor("residual_scale", usual.residual)?,
            logit: if multiplied { 1.0 / logit } else { logit },
            softcap: cap("final_logit_softcapping", usual.softcap)?,
            max_bias: cap(MAX_BIAS, usual.max_bias)?,
        })
    }
}
