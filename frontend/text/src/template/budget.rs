//! How much a template may use. Text that the user sent may cost more the more there is of it; the template may not.

use super::Conversation;

/// Longest template source, in bytes. The longest in use have about 20 KiB.
pub const MAX_SOURCE_BYTES: usize = 64 << 10;

/// Stack of the rendering thread: four times what the deepest template takes. What nests is bounded by
/// [`MAX_SOURCE_BYTES`] (chains of operators and branches) and [`Budget::steps`] (lists in lists); the worst of each, in
/// `render`'s tests, overflows 32 MiB and fits into 64 MiB in a debug build. Unused stack costs nothing.
pub const STACK_BYTES: usize = 256 << 20;

/// Processor time of a rendering child. Real templates take milliseconds.
pub const CPU_SECONDS: u64 = 2;

/// Steps that any template may take.
const BASE_STEPS: u64 = 100_000;
/// Further steps for each message; a message takes a few dozen in real templates.
const STEPS_PER_MESSAGE: u64 = 1_000;
/// Further steps for each byte of the tools' schemas, which templates walk through and write as types: of seventy templates eight take more
/// than one, none takes eight.
const STEPS_PER_TOOL_BYTE: u64 = 8;
/// And no more: what a value can nest grows with the steps, and must fit into [`STACK_BYTES`].
const MAX_STEPS: u64 = 1_000_000;
/// Output that any template may make.
const BASE_OUTPUT: u64 = 1 << 20;
/// Memory that any template may use, beside its stack.
const BASE_MEMORY: u64 = 48 << 20;
/// Copies of the input that rendering may hold: the request as JSON and as values, slices, the output and its JSON.
const MEMORY_PER_INPUT_BYTE: u64 = 32;

/// The bounds for one conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Instructions of minijinja's machine.
    pub steps: u64,
    /// Bytes of output.
    pub output_bytes: u64,
    /// Bytes of heap, in a child process.
    pub memory_bytes: u64,
}

impl Budget {
    /// The budget for a conversation.
    pub fn of(conversation: &Conversation) -> Budget {
        let input = conversation.text_bytes();
        let messages = conversation.messages.len() as u64;
        let tools: u64 = conversation.tools.iter().map(|tool| tool.as_str().len() as u64).sum();
        let steps =
            messages.saturating_mul(STEPS_PER_MESSAGE).saturating_add(tools.saturating_mul(STEPS_PER_TOOL_BYTE));
        Budget {
            steps: steps.saturating_add(BASE_STEPS).min(MAX_STEPS),
            output_bytes: input.saturating_mul(4).saturating_add(BASE_OUTPUT),
            memory_bytes: input.saturating_mul(MEMORY_PER_INPUT_BYTE).saturating_add(BASE_MEMORY),
        }
    }
}
