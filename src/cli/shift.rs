//! What happens where a context is full.

use ixc::generator::ContextShift;

/// Tokens that stay where nothing is said: what attention leans on, whatever they say (StreamingLLM).
const SINKS: usize = 4;

/// Whether texts go on where the context is full.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ShiftChoice {
    /// Go on where the context is full: the first tokens (--keep) and the later half of the others stay, and are computed again; those between are
    /// forgotten. Otherwise a text ends there.
    #[arg(long)]
    context_shift: bool,
    /// Tokens at the beginning that --context-shift keeps, such as those of the system message; at most half of the context.
    #[arg(long, value_name = "N", default_value_t = SINKS, requires = "context_shift")]
    keep: usize,
}

impl ShiftChoice {
    /// How they go on, if they do.
    pub fn shift(self) -> Option<ContextShift> {
        self.context_shift.then_some(ContextShift { keep: self.keep })
    }
}
