//! Prompts with an open last message, which the assistant's answer continues.
//!
//! Templates end each message with their own text, and some trim messages. A mark, which is a
//! character without other use, is therefore put after the text to continue. The output of the
//! template is cut off at the mark:
//!
//! ```text
//! the last message  Once upon
//! with a mark       Once upon?                                    ? is U+10FFFD
//! rendered          <|im_start|>assistant\nOnce upon?<|im_end|>\n
//! cut               <|im_start|>assistant\nOnce upon
//! ```
//!
//! The text before the message is therefore the template's own: an empty reasoning before an
//! answer, or the channel of harmony. Some templates omit reasoning (DeepSeek R1) but open the
//! reasoning of a new message; the message's reasoning is then appended to this. If the text
//! appears twice or not at all, the place to continue is unknown, which is an error.

use std::collections::HashSet;

use super::{Conversation, TemplateError};
use crate::chat::{Part, format_of};

/// Characters without a meaning elsewhere: Unicode's last private plane.
const MARKS: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10fffd}';

/// Renders a conversation with an open last message; `closed` renders one with a complete last
/// message.
pub(super) fn render(
    source: &str,
    conversation: &Conversation,
    closed: impl Fn(&Conversation) -> Result<String, TemplateError>,
) -> Result<String, TemplateError> {
    let Some(part) = conversation.continued else { return closed(conversation) };
    let refused = |reason: &str| Err(TemplateError::NotContinued { reason: reason.to_owned() });
    let as_it_is = Conversation { add_generation_prompt: false, continued: None, ..conversation.clone() };
    let Some(last) = as_it_is.messages.last() else { return refused("there are no messages") };
    if !last.tool_calls.is_empty() {
        return refused("it calls tools, whose results must follow");
    }
    let format = format_of(source);
    if part == Part::Reasoning && !format.has_reasoning() {
        return refused("it is reasoning, and the chat template has no known marks for reasoning");
    }
    let Some(mark) = mark(source, &as_it_is) else {
        return refused("the conversation contains every character that could mark its end");
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
                false => refused("the chat template leaves its reasoning out"),
            }
        }
        ([], Part::Content) => refused("the chat template leaves its content out"),
        _ => refused("the chat template writes it more than once"),
    }
}

/// Returns a character that no text of the template or the conversation contains.
fn mark(source: &str, conversation: &Conversation) -> Option<char> {
    let mut taken = HashSet::new();
    let mut note = |text: &str| taken.extend(text.chars().filter(|c| MARKS.contains(c)));
    [source, &conversation.bos_token, &conversation.eos_token].into_iter().for_each(&mut note);
    conversation.messages.iter().for_each(|message| note(&message.role));
    conversation.variables.iter().for_each(|(name, _)| note(name));
    // The copy is dropped; only its texts are examined.
    let _ = conversation.map_texts(|text| {
        note(text);
        String::new()
    });
    MARKS.rev().find(|mark| !taken.contains(mark))
}
