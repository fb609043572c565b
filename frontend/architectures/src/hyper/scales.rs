//! Keys of factors on the residual stream, on attention and on logits.

use ixc_model_files::gguf::GgufError;

use super::keys::Keys;
use super::{Scales, Widths};

/// Key of the maximum bias of ALiBi.
pub(crate) const MAX_BIAS: &str = "attention.max_alibi_bias";

impl Scales {
    pub(super) fn read(keys: &Keys<'_>, widths: &Widths) -> Result<Scales, GgufError> {
        let usual = (keys.defaults.scales)(widths);
        let reads = |key: &str| keys.defaults.reads.contains(&key);
        let factor = |key: &str, usual: f64| -> Result<f64, GgufError> {
            if !reads(key) {
                return Ok(usual);
            }
            // Some converters write 0 for an absent key.
            let found = keys.float(key, 0.0, |x| x >= 0.0, "0 or a positive number")?;
            Ok(if found == 0.0 { usual } else { found })
        };
        let cap = |key: &str, usual: f64| match reads(key) {
            true => keys.float(key, usual as f32, |x| x >= 0.0, "0 or a positive number"),
            false => Ok(usual),
        };
        let multiplied = keys.defaults.logits_multiplied;
        let logit = factor("logit_scale", if multiplied { 1.0 / usual.logit } else { usual.logit })?;
        Ok(Scales {
            embedding: factor("embedding_scale", usual.embedding)?,
            residual: factor("residual_scale", usual.residual)?,
            normed: usual.normed,
            logit: if multiplied { 1.0 / logit } else { logit },
            softcap: cap("final_logit_softcapping", usual.softcap)?,
            attention_softcap: cap("attn_logit_softcapping", usual.attention_softcap)?,
            router_softcap: cap("router_logit_softcapping", usual.router_softcap)?,
            max_bias: cap(MAX_BIAS, usual.max_bias)?,
            scaled_slopes: usual.scaled_slopes,
            clamp: cap("attention.clamp_kqv", usual.clamp)?,
            value: factor("attention.value_scale", usual.value)?,
        })
    }
}
