//! Resource limits for rendering templates. They grow with the user's text, but not with the
//! template.

use super::Conversation;

/// Maximum length of a template's source in bytes. The longest templates in use have about 20 KiB.
pub const MAX_SOURCE_BYTES: usize = 64 << 10;

/// Size in bytes of the rendering thread's stack: four times the maximum need. [`MAX_SOURCE_BYTES`]
/// bounds the nesting of operators and branches, and [`Budget::steps`] bounds lists in lists. The
/// worst cases are in `render`'s tests. In a debug build, they overflow 32 MiB and fit into 64 MiB.
/// Unused stack costs nothing.
pub const STACK_BYTES: usize = 256 << 20;

/// Maximum processor time of a rendering process, in seconds. Real templates take milliseconds.
pub const CPU_SECONDS: u64 = 2;

/// Number of steps (instructions of the template engine) that each rendering may run.
const BASE_STEPS: u64 = 100_000;
/// Number of additional steps for each message. Real templates use a few dozen for a message.
const STEPS_PER_MESSAGE: u64 = 1_000;
/// Number of additional steps for each byte of the tools' schemas, which some templates traverse to
/// print them as types. Of seventy templates, eight use more than one step for a byte, and all use
/// fewer than eight.
const STEPS_PER_TOOL_BYTE: u64 = 8;
/// Maximum number of steps. Values nest at most as deeply as the number of steps allows, and must
/// fit into [`STACK_BYTES`].
const MAX_STEPS: u64 = 1_000_000;
/// Number of output bytes that each rendering may write.
const BASE_OUTPUT: u64 = 1 << 20;
/// Memory that each rendering may use, in addition to its stack, in bytes.
const BASE_MEMORY: u64 = 48 << 20;
/// Number of additional bytes of memory for each byte of input. During rendering, the input exists
/// in several copies: the request as JSON and as values, slices, the output and its JSON.
const MEMORY_PER_INPUT_BYTE: u64 = 32;

/// Limits for rendering one conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum number of instructions of minijinja's virtual machine.
    pub steps: u64,
    /// Maximum length of the output in bytes.
    pub output_bytes: u64,
    /// Maximum heap in bytes, in a rendering process.
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
