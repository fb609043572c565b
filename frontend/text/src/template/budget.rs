//! Resource limits of templates. The limits grow with the user's text, but not with the template.

use super::Conversation;

/// Maximum length of a template's source, in bytes. The longest in use have about 20 KiB.
pub const MAX_SOURCE_BYTES: usize = 64 << 10;

/// Stack of the rendering thread: four times the maximum need. Nesting is bounded by
/// [`MAX_SOURCE_BYTES`] (chains of operators and branches) and by [`Budget::steps`] (lists in
/// lists). The worst cases, in `render`'s tests, overflow 32 MiB and fit into 64 MiB in a debug
/// build. Unused stack costs nothing.
pub const STACK_BYTES: usize = 256 << 20;

/// Processor time of a rendering process, in seconds. Real templates take milliseconds.
pub const CPU_SECONDS: u64 = 2;

/// Number of steps (instructions of the template engine) that any template may run.
const BASE_STEPS: u64 = 100_000;
/// Number of further steps for each message; real templates use a few dozen.
const STEPS_PER_MESSAGE: u64 = 1_000;
/// Further steps for each byte of the tools' schemas, which templates traverse and print as types.
/// Of seventy templates, eight use more than one step, and all use fewer than eight.
const STEPS_PER_TOOL_BYTE: u64 = 8;
/// Maximum number of steps: nesting of values grows with the steps, and must fit into
/// [`STACK_BYTES`].
const MAX_STEPS: u64 = 1_000_000;
/// Output bytes for any template.
const BASE_OUTPUT: u64 = 1 << 20;
/// Memory for any template, in addition to its stack.
const BASE_MEMORY: u64 = 48 << 20;
/// Bytes of memory for each byte of input. During rendering there are several copies of it: the
/// request as JSON and as values, slices, the output and its JSON.
const MEMORY_PER_INPUT_BYTE: u64 = 32;

/// Limits for one conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Instructions of minijinja's virtual machine.
    pub steps: u64,
    /// Output in bytes.
    pub output_bytes: u64,
    /// Heap in bytes, in a rendering process.
    pub memory_bytes: u64,
}

impl Budget {
    /// Returns the budget for a conversation.
    pub fn for_conversation(conversation: &Conversation) -> Budget {
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
