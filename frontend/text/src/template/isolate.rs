//! Rendering in a helper process. The request and the answer are JSON on standard input and output,
//! and the system enforces limits.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::{Budget, CPU_SECONDS, Conversation, Limit, STACK_BYTES, TemplateError, render as in_process};
use crate::helper::{self, Death, Limits};

/// First argument of a program that must call [`serve_render_request`].
pub const RENDER_ARGUMENT: &str = "__render-chat-template";

/// Maximum number of bytes in the helper's JSON for each byte of rendered text. JSON escapes a
/// control character with six bytes.
const ANSWER_BYTES_PER_OUTPUT_BYTE: u64 = 6;
/// Number of additional bytes for the helper's answer, for short texts and errors.
const ANSWER_BYTES: u64 = 16 << 10;

/// Request to a rendering process.
#[derive(Serialize, Deserialize)]
struct Request {
    source: String,
    conversation: Conversation,
}

/// Renders a conversation in a helper process.
pub fn render(program: &Path, source: &str, conversation: &Conversation) -> Result<String, TemplateError> {
    let budget = Budget::for_conversation(conversation);
    let failed =
        |what: &str, error: &dyn std::fmt::Display| TemplateError::Failed { reason: format!("{what}: {error}") };
    let request = Request { source: source.to_owned(), conversation: conversation.clone() };
    let request = serde_json::to_vec(&request).map_err(|error| failed("request", &error))?;
    let max = budget.output_bytes * ANSWER_BYTES_PER_OUTPUT_BYTE + ANSWER_BYTES;
    let answer =
        helper::ask(program, RENDER_ARGUMENT, &request, max, &|| true).map_err(|death| death_error(death, budget))?;
    serde_json::from_slice(&answer).unwrap_or_else(|error| Err(failed("answer", &error)))
}

/// Converts the death of a helper to an error of rendering.
fn death_error(death: Death, budget: Budget) -> TemplateError {
    let limit = |limit, allowed| TemplateError::Limit { limit, allowed };
    match death {
        Death::Memory => limit(Limit::Memory, budget.memory_bytes),
        Death::Stack => limit(Limit::Stack, STACK_BYTES as u64),
        Death::Time | Death::Unwanted => limit(Limit::Time, CPU_SECONDS),
        Death::Start { reason } => TemplateError::Start { reason },
        Death::Failed { reason } => TemplateError::Failed { reason },
    }
}

/// Runs the helper's side. Call it before anything else is set up, if the first argument is
/// [`RENDER_ARGUMENT`].
pub fn serve_render_request() -> ExitCode {
    let parse = |request: &[u8]| -> io::Result<(Request, Limits)> {
        let request: Request = serde_json::from_slice(request)?;
        let memory_bytes = Budget::for_conversation(&request.conversation).memory_bytes;
        Ok((request, Limits { stack_bytes: STACK_BYTES as u64, memory_bytes, cpu_seconds: CPU_SECONDS, niceness: 0 }))
    };
    helper::serve(parse, |Request { source, conversation }| {
        serde_json::to_vec(&in_process::render(&source, &conversation)).unwrap_or_default()
    })
}
