//! Keys of a factor on queries. It grows with the position, once every `temperature_length`
//! positions.
//!
//! ```text
//! q *= 1 + temperature_scale * ln(1 + floor((position + offset) / temperature_length))
//! ```

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::TemperatureAttrs;
use ixc_model_files::gguf::GgufError;

use crate::builder::Builder;
use crate::error::ArchError;
use crate::hyper::{Keys, MAX_CONTEXT};

/// Key of the factor's scale; 0 means no factor. Architectures that support it list it in `reads`.
pub(crate) const SCALE: &str = "attention.temperature_scale";
/// Key of the number of positions that have the same factor.
const LENGTH: &str = "attention.temperature_length";

/// Reads the factor's scale; `usual` without the key.
pub(crate) fn scale(keys: &Keys<'_>, usual: f64) -> Result<f64, GgufError> {
    keys.float(SCALE, usual as f32, |x| x >= 0.0, "0 or a positive number")
}

/// Reads scale and length, with these defaults.
fn read(keys: &Keys<'_>, usual: TemperatureAttrs) -> Result<TemperatureAttrs, GgufError> {
    let scale = scale(keys, usual.scale)?;
    if scale == 0.0 {
        return Ok(TemperatureAttrs { scale, ..usual });
    }
    let length = keys.optional(LENGTH, 0, MAX_CONTEXT)?.unwrap_or(usual.length);
    if length == 0 {
        return Err(keys.missing(LENGTH));
    }
    Ok(TemperatureAttrs { scale, length, ..usual })
}

/// Multiplies the queries `q` by the factor that the file states, or by `usual`.
pub(crate) fn temper(b: &mut Builder<'_>, q: ValueId, usual: TemperatureAttrs) -> Result<ValueId, ArchError> {
    let of = read(&b.keys(), usual)?;
    b.temperature(q, &of)
}
