//! Keys of layers with an attention window.
//!
//! ```text
//! gemma3.attention.sliding_window         = 1024    // positions that a row attends to
//! // period of layers without a window, or an array with whether each layer has one
//! gemma3.attention.sliding_window_pattern = 6
//! // base of RoPE in layers with a window
//! gemma3.rope.freq_base_swa               = 10000.0
//! ```

use ixc_model_files::gguf::{GgufError, Value};

use super::keys::Keys;
use super::{Hyper, Layer, MAX_CONTEXT, MAX_COUNT, Rope, Windows};

/// Reads the number of positions in a window, and the rule for which layers have it.
pub(super) fn windows(keys: &Keys<'_>, context_length: u64) -> Result<(u64, Option<Windows>), GgufError> {
    const WINDOW: &str = "attention.sliding_window";
    let window = match keys.defaults.windows {
        Some(Windows { optional: true, length, .. }) => keys.optional(WINDOW, 0, MAX_CONTEXT)?.or(length).unwrap_or(0),
        Some(Windows { length: Some(length), .. }) => keys.optional(WINDOW, 1, MAX_CONTEXT)?.unwrap_or(length),
        Some(_) => keys.required_size(WINDOW, 1, MAX_CONTEXT)?,
        None => keys.optional(WINDOW, 0, u64::MAX)?.unwrap_or(0),
    };
    let windows = match keys.defaults.windows {
        // In an architecture whose window is optional, a file may have no window: its key is 0, or
        // the key is missing and has no default.
        Some(windows) => Some(windows).filter(|_| window > 0),
        // Files of other architectures have a window if they state one that is smaller than the
        // context.
        None => Some(Windows::STATED).filter(|_| (1..context_length).contains(&window)),
    };
    Ok((window, windows))
}
impl Windows {
    /// Sets `window` in the layers for which `windowed` is true.
    pub(super) fn apply(&self, window: u64, layers: &mut [Layer], windowed: &[bool]) {
        for (layer, windowed) in layers.iter_mut().zip(windowed) {
            layer.window = windowed.then_some(window);
        }
    }

    /// Returns the RoPE of layers with a window, whose keys have the length `key_length`.
    pub(super) fn rope(&self, keys: &Keys<'_>, rope: &Rope, key_length: u64) -> Result<Rope, GgufError> {
        const DIMS: &str = "rope.dimension_count_swa";
        let dims = keys.optional(DIMS, 1, key_length)?.unwrap_or(rope.dims);
        if !dims.is_multiple_of(2) || dims > key_length {
            let limit = format!("even and at most {key_length}, the length of a key in layers with a window");
            return Err(keys.metadata.bad_value(&keys.name(DIMS), dims, limit));
        }
        let base = self.base.unwrap_or(rope.base as f32);
        let base = keys.float("rope.freq_base_swa", base, |x| x > 0.0, "a positive number")?;
        let usual = if self.scaled { rope.clone() } else { rope.without_scaling() };
        Ok(Rope { base, dims, divided: true, ..usual })
    }
}

impl Hyper {
    /// Stops `rope_freqs.weight` from applying to layers with a window: their frequencies are not
    /// divided by it. Architectures with such layers call this in `adjust`.
    pub(crate) fn keep_local_frequencies(&mut self) {
        self.local_rope.iter_mut().for_each(|rope| rope.divided = false);
    }
}

/// Returns whether each of `count` layers has a window. The file's list may omit the last `drafts`
/// layers, which are draft layers.
pub(super) fn layer_windows(keys: &Keys<'_>, count: usize, drafts: usize) -> Result<Vec<bool>, GgufError> {
    let Some(windows) = keys.defaults.windows else { return Ok(vec![false; count]) };
    const KEY: &str = "attention.sliding_window_pattern";
    if let Some(Value::Array(pattern)) = keys.metadata.get(&keys.name(KEY)) {
        let listed = pattern.len().clamp(count - drafts, count);
        let pattern = keys.first_per_layer(KEY, listed, 0, 1)?;
        let drafts = std::iter::repeat_n(false, count - listed);
        return Ok(pattern.into_iter().map(|windowed| windowed == 1).chain(drafts).collect());
    }
    let period = match keys.optional(KEY, 1, MAX_COUNT)?.unwrap_or(windows.period) {
        0 => return Err(keys.metadata.missing(&keys.name(KEY), "array of bools")),
        period => period,
    };
    let full = if windows.first_is_full { 0 } else { period - 1 };
    Ok((0..count as u64).map(|layer| layer % period != full).collect())
}
