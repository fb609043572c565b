//! Prompts whose last message is open: the assistant's answer continues it.
//!
//! Templates write their own text after each message, and some trim messages. A mark is therefore
//! put after the text to continue; it is a character that occurs nowhere else. The template's
//! output is cut off at the mark:
//!
//! ```text
//! last message   Once upon
//! with a mark    Once upon?                                    ? is the mark U+10FFFD
//! rendered       <|im_start|>assistant\nOnce upon?<|im_end|>\n
//! cut off        <|im_start|>assistant\nOnce upon
//! ```
//!
//! Text before the message, such as empty reasoning or harmony's channel, is therefore what the
//! template writes. Some templates omit the reasoning of a message (DeepSeek R1), but begin
//! reasoning in a new message. The reasoning to continue is then appended to that. If the text to
//! continue appears several times or not at all, its place is unknown, which is an error.

use std::collections::HashSet;

use super::{Conversation, TemplateError};
use crate::chat::{Part, format_of};

/// Characters that can serve as marks: Unicode's last private plane, whose characters have no
/// meaning elsewhere.
const MARKS: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10fffd}';

/// Renders a conversation whose last message is open. `closed` renders a conversation whose last
/// message is complete.
pub(super) fn render(
    source: &str,
    conversation: &Conversation,
    closed: impl Fn(&Conversation) -> Result<String, TemplateError>,
) -> Result<String, TemplateError> {
    let Some(part) = conversation.continued else { return closed(conversation) };
    let refused = |reason: &str| Err(TemplateError::NotContinued { reason: reason.to_owned() });
    let as_it_is = Conversation { add_generation_prompt: false, continued: None, ..conversation.clone() };
    let Some(last) = as_it_is.messages.last() else { return refused("the conversation has no messages") };
    if !last.tool_calls.is_empty() {
        return refused("the message calls tools, so the results of the tools must follow");
    }
    let format = format_of(source);
    if part == Part::Reasoning && !format.has_reasoning() {
        return refused(
            "the message is unfinished reasoning, and ixc does not know this chat template's marks of reasoning",
        );
    }
    let Some(mark) = mark(source, &as_it_is) else {
        return refused("the conversation contains every character that ixc could use to mark the message's end");
    };
    let mut marked = as_it_is.clone();
    if let Some(last) = marked.messages.last_mut() {
        match part {
            Part::Content => last.content.push(mark),
            Part::Reasoning => last.reasoning.get_or_insert_default().push(mark),
        }
    }
    let mut text = closed(&marked)?;
    let places: Vec<usize> = text.match_indices(mark).map(|(at, _)| at).take(2).collect();
    match (&*places, part) {
        ([at], _) => {
            text.truncate(*at);
            Ok(text)
        }
        ([], Part::Reasoning) => {
            let messages = as_it_is.messages[..as_it_is.messages.len() - 1].to_vec();
            let before = closed(&Conversation { messages, add_generation_prompt: true, ..as_it_is.clone() })?;
            match format.thinking(&before).is_some_and(|thinking| thinking.begun) {
                true => Ok(before + last.reasoning.as_deref().unwrap_or_default()),
                false => refused("the chat template omits the reasoning of the message"),
            }
        }
        ([], Part::Content) => refused("the chat template omits the content of the message"),
        _ => refused("the chat template writes the message more than once"),
    }
}

/// Returns a mark: a character that occurs neither in the template nor in the conversation.
fn mark(source: &str, conversation: &Conversation) -> Option<char> {
    let mut taken = HashSet::new();
    let mut note = |text: &str| taken.extend(text.chars().filter(|c| MARKS.contains(c)));
    [source, &conversation.bos_token, &conversation.eos_token].into_iter().for_each(&mut note);
    conversation.messages.iter().for_each(|message| note(&message.role));
    conversation.variables.iter().for_each(|(name, _)| note(name));
    // The mapped copy is not used; the closure only examines the texts.
    let _ = conversation.map_texts(|text| {
        note(text);
        String::new()
    });
    MARKS.rev().find(|mark| !taken.contains(mark))
}
