//! Options of the passes `residency` and `defer`.
//!
//! ```text
//! ixc dump model.gguf --stage plan --expert-memory 6GiB --predict 2
//! ```

use super::model_args::DeferChoice;
use super::size::Size;

/// Options for the memory of experts, their prediction, and deferral.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Experts {
    /// Memory budget of experts, such as 6GiB. If they need more, the plan states when each layer's
    /// experts are loaded.
    #[arg(long, value_name = "SIZE")]
    expert_memory: Option<Size>,
    /// Predict experts of the next layer: the number that a token uses, plus N.
    #[arg(long, value_name = "N", requires = "expert_memory")]
    pub predict: Option<u32>,
    #[command(flatten)]
    pub deferral: DeferChoice,
}

impl Experts {
    /// Returns the memory for experts, in bytes.
    pub fn memory(&self) -> Option<u64> {
        self.expert_memory.map(|Size(bytes)| bytes)
    }
}
