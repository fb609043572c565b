//! Results of a step.

use serde::{Deserialize, Serialize};

use super::{BufferId, KernelId, MAX_OUTPUTS};

/// Result of a step for the requested rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Logits `[L, vocabulary]`.
    Logits {
        /// The sampler's softmax over one row.
        softmax: KernelId,
    },
    /// Hidden states `[L, width]` after the last norm, for embeddings: the model has no output
    /// matrix.
    Hidden {
        /// Elements of a row.
        width: u32,
        /// Method that combines the rows of a text into one vector, if the model names one.
        pooling: Option<Pooling>,
        /// Whether vectors are scaled to length 1. Otherwise they keep their length after pooling.
        unit: bool,
    },
    /// Routed experts only, which is not a step of a whole model. The runtime runs each of
    /// [`Plan::expert_layers`](super::Plan::expert_layers) separately, on rows that
    /// come with their experts and weights.
    Experts {
        /// Elements of a row.
        width: u32,
    },
}

impl Output {
    /// Returns the maximum number of output rows of a step with `tokens` tokens: [`MAX_OUTPUTS`]
    /// for logits, all rows for hidden states.
    pub fn most(&self, tokens: u32) -> u32 {
        match self {
            Output::Logits { .. } => tokens.min(MAX_OUTPUTS),
            Output::Hidden { .. } | Output::Experts { .. } => tokens,
        }
    }
}

/// Hidden states with a row for each token of a step: f32 `[T, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenRows {
    /// Arena buffer with the rows.
    pub buffer: BufferId,
    /// Elements of a row.
    pub width: u32,
}

/// Id of an empty slot in a row's expert ids: the row has no expert in this slot, or the expert
/// runs on another machine.
pub const NO_EXPERT: i32 = -1;

/// The routed experts of one layer, run separately: [`Output::Experts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLayer {
    /// The layer's number in the model.
    pub layer: u32,
    /// Index of the layer's first step in [`Plan::steps`](super::Plan::steps).
    pub first: u32,
    /// Number of the layer's steps.
    pub steps: u32,
    /// Input rows: f32 `[T, n]`.
    pub rows: BufferId,
    /// Expert ids of the rows: i32 `[T, used]`, [`NO_EXPERT`] in slots that are not computed here.
    pub ids: BufferId,
    /// The experts' weights: f32 `[T, used]`.
    pub weights: BufferId,
    /// Result: f32 `[T, n]`, the weighted sums over each row's experts.
    pub result: BufferId,
}

/// Method that combines the hidden states of a text into one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pooling {
    /// Mean of all rows.
    Mean,
    /// Row of the first token.
    First,
    /// Row of the last token.
    Last,
}

impl Pooling {
    /// All methods, with llama.cpp's names for them.
    pub const ALL: [(&'static str, Pooling); 3] =
        [("mean", Pooling::Mean), ("cls", Pooling::First), ("last", Pooling::Last)];

    /// Returns the method's name.
    pub fn name(self) -> &'static str {
        Pooling::ALL.iter().find(|(_, pooling)| *pooling == self).map_or("", |(name, _)| name)
    }
}

impl std::str::FromStr for Pooling {
    type Err = String;

    fn from_str(text: &str) -> Result<Pooling, String> {
        let found = Pooling::ALL.iter().find(|(name, _)| *name == text).map(|(_, pooling)| *pooling);
        let names = || Pooling::ALL.map(|(name, _)| name).join(", ");
        found.ok_or_else(|| format!("{text:?} is not a pooling method; expected one of {}", names()))
    }
}
