//! Which experts are used, and which of them stay in memory where they are streamed.
//!
//! ```text
//! counts of a run     layer 0: [12, 0, 500, 7]    layer 1: [3, 3, 510, 3]
//! pins of a later one: the most used of both layers, as many as a part of the slots holds, are read when the plan is loaded, and stay
//! ```

use super::sequence::Engine;
use crate::expert_counts::ExpertCounts;
use crate::experts::Experts;
use crate::stream::store::Evicted;

/// Which streamed experts stay in memory: the most used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// By layer with experts, in the order of a step, and expert: how often it was chosen.
    pub chosen: Vec<Vec<u64>>,
    /// The part of the memory for experts that they may take, in percent. What streaming needs at the least is left in any case.
    pub percent: u32,
}

/// Why no experts can be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvictError {
    /// All are in memory, or in mapped files.
    #[error("experts are not streamed here: there is no cache to give them up from")]
    NotStreamed,
    /// There is no such layer.
    #[error("there is no layer {layer} with experts; they go from 0 to {}", layers.saturating_sub(1))]
    NoLayer {
        /// What was named.
        layer: usize,
        /// How many there are.
        layers: usize,
    },
}

impl Engine {
    /// How often each expert of each layer was chosen since the plan was loaded, wherever experts are.
    pub fn expert_counts(&self) -> &ExpertCounts {
        &self.loaded.expert_counts
    }

    /// Gives up the experts of a layer with experts, in the order of a step, that are in memory: who needs them has them read again, and computes the
    /// same. Those that [`Pins`] keep stay, unless `pinned` says that they are kept no longer.
    ///
    /// # Errors
    /// See [`EvictError`].
    pub fn evict_experts(&mut self, layer: usize, pinned: bool) -> Result<Evicted, EvictError> {
        let layers = self.loaded.expert_counts.layers();
        let experts = self.loaded.store.experts.as_ref().map(Experts::store).ok_or(EvictError::NotStreamed)?;
        let facts = layers.get(layer).ok_or(EvictError::NoLayer { layer, layers: layers.len() })?;
        // Of a layer that is in no group nothing is streamed.
        Ok(facts.group.map(|group| experts.evict(group, pinned)).unwrap_or_default())
    }
}
