//! Keys of rotary position embedding (RoPE).

use ixc_ir::graph::attrs::RopeScaling;
use ixc_model_files::gguf::GgufError;

use super::keys::Keys;
use super::{MAX_CONTEXT, Rope, RopeSizes};

/// Key that only ixc defines. It states whether the bounds of YaRN's ramp are rounded to whole
/// pairs (`truncate` in configurations of transformers).
pub(crate) const YARN_TRUNCATE: &str = "rope.scaling.yarn_truncate";

impl Rope {
    /// Reads RoPE from its usual keys.
    pub(crate) fn usual(keys: &Keys<'_>, sizes: RopeSizes) -> Result<Rope, GgufError> {
        let rope = Rope::plain(keys, sizes, Rope::rotated_dims(keys, sizes)?)?;
        let type_key = keys.name("rope.scaling.type");
        // The default type is that of llama.cpp. Older files state the factor of linear scaling as
        // `rope.scale_linear`; 0 means no scaling.
        let kind = keys.metadata.read_or(&type_key, "linear")?;
        let legacy = keys.float("rope.scale_linear", 0.0, |x| x >= 0.0, "0 or a positive number")?;
        let factor = keys.float("rope.scaling.factor", legacy as f32, |x| x >= 0.0, "0 or a positive number")?;
        let (scaling, factor) = match kind {
            "none" => (RopeScaling::None, 1.0),
            "linear" if factor == 0.0 || factor == 1.0 => (RopeScaling::None, 1.0),
            "linear" => (RopeScaling::Linear, factor),
            // LongRoPE's divisors of frequencies are tensors, so no other scaling applies.
            "longrope" => (RopeScaling::None, 1.0),
            "yarn" if factor >= 1.0 => match keys.metadata.read_or(&keys.name(YARN_TRUNCATE), true)? {
                true => (RopeScaling::Yarn, factor),
                false => (RopeScaling::YarnUntruncated, factor),
            },
            "yarn" => {
                return Err(keys.metadata.bad_value(&keys.name("rope.scaling.factor"), factor, "at least 1 for yarn"));
            }
            other => {
                let found = format!("\"{}\"", ixc_model_files::gguf::quote(other));
                return Err(keys.metadata.bad_value(&type_key, found, "none, linear, yarn or longrope"));
            }
        };
        Ok(Rope { scaling, factor, ..rope })
    }

    /// Reads the number of elements of a head that RoPE rotates.
    pub(crate) fn rotated_dims(keys: &Keys<'_>, sizes: RopeSizes) -> Result<u64, GgufError> {
        let stated = keys.optional("rope.dimension_count", 1, sizes.key_length)?;
        Ok(stated.unwrap_or(sizes.key_length))
    }

    /// Reads RoPE that rotates `dims` elements and is not scaled, even if the file states a
    /// scaling.
    pub(crate) fn plain(keys: &Keys<'_>, sizes: RopeSizes, dims: u64) -> Result<Rope, GgufError> {
        let positive = |x: f64| x > 0.0;
        let base = keys.float("rope.freq_base", 10_000.0, positive, "a positive number")?;
        if !dims.is_multiple_of(2) {
            return Err(keys.metadata.bad_value(
                &keys.name("rope.dimension_count"),
                dims,
                "even, because dimensions are rotated in pairs",
            ));
        }
        keys.neutral("rope.scaling.yarn_ext_factor", &[1.0])?;
        Ok(Rope {
            base,
            dims,
            scaling: RopeScaling::None,
            factor: 1.0,
            original_context: keys
                .optional("rope.scaling.original_context_length", 1, MAX_CONTEXT)?
                .unwrap_or(sizes.context_length),
            beta_fast: keys.float("rope.scaling.yarn_beta_fast", 32.0, positive, "a positive number")?,
            beta_slow: keys.float("rope.scaling.yarn_beta_slow", 1.0, positive, "a positive number")?,
            attn_factor: keys.rope_factor()?,
            divided: true,
        })
    }

    /// Returns a RoPE that rotates no elements, for models without RoPE.
    pub(super) fn none(context_length: u64) -> Rope {
        Rope {
            base: 10_000.0,
            dims: 0,
            scaling: RopeScaling::None,
            factor: 1.0,
            original_context: context_length,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attn_factor: 1.0,
            divided: false,
        }
    }

    /// Returns the same RoPE without scaling.
    pub(crate) fn without_scaling(&self) -> Rope {
        Rope { scaling: RopeScaling::None, factor: 1.0, attn_factor: 1.0, ..self.clone() }
    }
}

impl Keys<'_> {
    /// Reads the factor on rotated elements that applies in addition to YaRN's factor.
    pub(crate) fn rope_factor(&self) -> Result<f64, GgufError> {
        self.float("rope.scaling.attn_factor", 1.0, |x| x > 0.0, "a positive number")
    }
}

/// Sets YaRN's factor on rotated elements. It is the stated factor. Otherwise it is the magnitude
/// with weight 1, divided by the magnitude with the weight `yarn_log_multiplier`
/// (`mscale_all_dim`).
pub(super) fn yarn_magnitude(keys: &Keys<'_>, rope: &mut Rope) -> Result<(), GgufError> {
    let weight = keys.float("rope.scaling.yarn_log_multiplier", 0.0, |x| x >= 0.0, "0 or a positive number")?;
    let stated = stated_magnitude(keys)?;
    match rope.scaling {
        RopeScaling::None | RopeScaling::Linear => {}
        RopeScaling::Yarn | RopeScaling::YarnUntruncated => match stated {
            Some(stated) => rope.attn_factor *= stated / (1.0 + 0.1 * rope.factor.ln()),
            None => rope.attn_factor /= 1.0 + 0.1 * weight * rope.factor.ln(),
        },
    }
    Ok(())
}

/// Reads the factor on rotated elements that replaces YaRN's factor, if the file states one. It is
/// `attention_factor` in configurations. llama.cpp's converter writes it, but llama.cpp recomputes
/// the factor (`llama-context.cpp`).
pub(super) fn stated_magnitude(keys: &Keys<'_>) -> Result<Option<f64>, GgufError> {
    let stated = keys.float("rope.scaling.yarn_attn_factor", 0.0, |_| true, "a number")?;
    Ok(Some(stated).filter(|stated| *stated > 0.0))
}
