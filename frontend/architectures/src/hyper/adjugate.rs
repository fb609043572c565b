//! Keys of small experts that each group of experts shares (Grove MoE, arXiv 2508.07785).

use ixc_model_files::gguf::GgufError;

use super::MAX_WIDTH;
use super::keys::Keys;

/// Small experts in addition to the others: whenever an expert is used, so is the small one of its
/// group, with the same weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjugate {
    /// Experts of a group: a power of two.
    pub size: u64,
    /// Width of a small expert; `None` for the length of a head.
    pub feed_forward: Option<u64>,
    /// Factor on their output.
    pub scale: f64,
}

impl Adjugate {
    pub(super) fn read(keys: &Keys<'_>) -> Result<Option<Adjugate>, GgufError> {
        const SIZE: &str = "experts_per_group";
        let count = keys.optional("expert_count", 0, super::MAX_COUNT)?.unwrap_or(0);
        let Some(size) = keys.optional(SIZE, 1, count.max(1))? else { return Ok(None) };
        if !size.is_power_of_two() || !count.is_multiple_of(size) {
            let limit = format!("a power of two that divides expert_count, {count}");
            return Err(keys.metadata.bad_value(&keys.name(SIZE), size, limit));
        }
        let feed_forward = keys.optional("expert_chunk_feed_forward_length", 0, MAX_WIDTH)?.filter(|&width| width > 0);
        const SCALE: &str = "expert_group_scale";
        if keys.metadata.get(&keys.name(SCALE)).is_none() {
            return Err(keys.metadata.missing(&keys.name(SCALE), "f32"));
        }
        let scale = keys.float(SCALE, 0.0, |_| true, "a number")?;
        Ok(Some(Adjugate { size, feed_forward, scale }))
    }
}
