//! Results of a step, and how callers use them.

use serde::{Deserialize, Serialize};

use super::{BufferId, KernelId, MAX_OUTPUTS};

/// Kind of the result of a step, for the requested rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Logits `[L, vocabulary]`.
    Logits {
        /// Kernel of the sampler's softmax over one row.
        softmax: KernelId,
    },
    /// Hidden states `[L, width]` after the last norm, for embeddings. The model has no output
    /// matrix.
    Hidden {
        /// Number of elements of a row.
        width: u32,
        /// Method that combines the rows of a text into one vector, if the model specifies one.
        pooling: Option<Pooling>,
        /// Whether vectors are scaled to length 1 after pooling.
        unit: bool,
    },
    /// Results of routed experts only; the plan has no step for a whole model. The runtime runs
    /// each of [`Plan::expert_layers`](super::Plan::expert_layers) separately. Its input is rows
    /// with the ids and weights of their experts.
    Experts {
        /// Number of elements of a row.
        width: u32,
    },
}

impl Output {
    /// Returns the maximum number of output rows of a step with `tokens` tokens. For logits it is
    /// at most [`MAX_OUTPUTS`]; for hidden states it is `tokens`.
    pub fn most(&self, tokens: u32) -> u32 {
        match self {
            Output::Logits { .. } => tokens.min(MAX_OUTPUTS),
            Output::Hidden { .. } | Output::Experts { .. } => tokens,
        }
    }
}

/// Hidden states, with one row for each token of a step: f32 `[T, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenRows {
    /// Arena buffer with the rows.
    pub buffer: BufferId,
    /// Number of elements of a row.
    pub width: u32,
}

/// Id of an empty slot among the expert ids of a row. The row has no expert in this slot, or the
/// expert runs on another machine.
pub const NO_EXPERT: i32 = -1;

/// Steps of the routed experts of one layer, which run separately ([`Output::Experts`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLayer {
    /// Number of the layer in the model.
    pub layer: u32,
    /// Index of the layer's first step in [`Plan::steps`](super::Plan::steps).
    pub first: u32,
    /// Number of steps of the layer.
    pub steps: u32,
    /// Input rows: f32 `[T, n]`.
    pub rows: BufferId,
    /// Expert ids of the rows: i32 `[T, used]`. Slots that this plan does not compute have
    /// [`NO_EXPERT`].
    pub ids: BufferId,
    /// Weights of the experts in these slots: f32 `[T, used]`.
    pub weights: BufferId,
    /// Buffer of the result: f32 `[T, n]`, the weighted sum of each row's experts.
    pub result: BufferId,
}

/// Method that combines the hidden states of a text into one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pooling {
    /// Mean of the rows of all tokens.
    Mean,
    /// Row of the first token.
    First,
    /// Row of the last token.
    Last,
}

impl Pooling {
    /// All methods, each with its name in llama.cpp.
    pub const ALL: [(&'static str, Pooling); 3] =
        [("mean", Pooling::Mean), ("cls", Pooling::First), ("last", Pooling::Last)];

    /// Returns the method's name in llama.cpp.
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
