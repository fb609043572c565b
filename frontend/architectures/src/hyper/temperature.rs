//! Keys of the factor on queries that depends on the position.

use ixc_ir::graph::attrs::TemperatureAttrs;
use ixc_model_files::gguf::GgufError;

use super::keys::Keys;
use super::{MAX_CONTEXT, Rope, Temperature};

/// Reads the factor on queries that depends on the position.
pub(super) fn temperature(keys: &Keys<'_>, rope: &Rope) -> Result<Option<TemperatureAttrs>, GgufError> {
    const SCALE: &str = "attention.temperature_scale";
    const LENGTH: &str = "attention.temperature_length";
    let usual = match keys.defaults.temperature {
        Temperature::None => return Ok(None),
        Temperature::OfContext => TemperatureAttrs { scale: 0.0, length: rope.original_context, offset: 0 },
        Temperature::OfLength => TemperatureAttrs { scale: 0.0, length: 0, offset: 0 },
        Temperature::WithDefaults(usual) => usual,
    };
    let scale = keys.float(SCALE, usual.scale as f32, |x| x >= 0.0, "0 or a positive number")?;
    if scale == 0.0 {
        return Ok(None);
    }
    let length = match keys.defaults.temperature {
        Temperature::OfContext => usual.length,
        _ => keys.optional(LENGTH, 0, MAX_CONTEXT)?.unwrap_or(usual.length),
    };
    if length == 0 {
        return Err(keys.missing(LENGTH));
    }
    Ok(Some(TemperatureAttrs { scale, length, ..usual }))
}
