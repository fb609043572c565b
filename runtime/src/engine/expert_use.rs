//! Counts of how often experts were chosen, and eviction of streamed experts.

use super::sequence::Engine;
use crate::expert_counts::ExpertCounts;
use crate::experts::Experts;
use crate::streaming::store::EvictionResult;

/// The reason why no experts can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvictError {
    /// All experts are in memory or in mapped files.
    #[error("cannot evict experts: they are not streamed from the drive, so there is no expert cache")]
    NotStreamed,
    /// The layer does not exist.
    #[error("there is no expert layer {layer}; expert layers are numbered from 0 to {}", layers.saturating_sub(1))]
    NoLayer {
        /// The requested layer.
        layer: usize,
        /// Number of layers with experts.
        layers: usize,
    },
}

impl Engine {
    /// Returns how often each expert of each layer was chosen since the plan was loaded. Resident
    /// experts are also counted.
    pub fn expert_counts(&self) -> &ExpertCounts {
        &self.loaded.expert_counts
    }

    /// Evicts the experts of one layer from memory. `layer` counts only layers with experts, in the
    /// order of a step. A later step reads such an expert again if it is needed, and its results do
    /// not change. Pinned experts ([`Pins`](super::Pins)) stay, unless `pinned` is true. Then they
    /// are unpinned and evicted.
    ///
    /// # Errors
    /// See [`EvictError`].
    pub fn evict_experts(&mut self, layer: usize, pinned: bool) -> Result<EvictionResult, EvictError> {
        let layers = self.loaded.expert_counts.layers();
        let experts = self.loaded.store.experts.as_ref().map(Experts::store).ok_or(EvictError::NotStreamed)?;
        let facts = layers.get(layer).ok_or(EvictError::NoLayer { layer, layers: layers.len() })?;
        // A layer that belongs to no expert group has no streamed experts.
        Ok(facts.group.map(|group| experts.evict(group, pinned)).unwrap_or_default())
    }
}
