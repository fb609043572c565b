//! Option for a full context.

use ixc_generate::generator::ContextShift;

/// Default number of first tokens that stay. Attention needs them as sinks, whatever their text
/// (StreamingLLM).
const SINKS: usize = 4;

/// Option for texts that fill the context.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ShiftChoice {
    /// Continue when the context is full: drop the older half of the tokens after the first --keep,
    /// and recompute the rest. Without this, the text ends there.
    #[arg(long)]
    context_shift: bool,
    /// Number of first tokens that --context-shift keeps, such as the system message; at most half
    /// of the context.
    #[arg(long, value_name = "N", default_value_t = SINKS, requires = "context_shift")]
    keep: usize,
}

impl ShiftChoice {
    /// Returns how a text continues when the context is full; `None` if it ends.
    pub fn shift(self) -> Option<ContextShift> {
        self.context_shift.then_some(ContextShift { keep: self.keep })
    }
}
