//! Prompts of conversations with tools. If the template ignores tools, or its calls cannot be
//! enforced, the prompt describes them as text.

use std::path::Path;

use ixc_text::chat::{Format, format_of};
use ixc_text::template::{ChatTemplate, Conversation, Demand};
use ixc_text::tokenizer::{Tokenizer, Values};

use super::render;
use crate::Error;

/// Use of tools in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolUse {
    /// Whether a grammar enforces the form of calls.
    pub is_enforced: bool,
    /// Whether a call is required.
    pub demand: Demand,
}

impl ToolUse {
    /// Use of tools without a grammar: the model decides about calls.
    pub const FREE: ToolUse = ToolUse { is_enforced: false, demand: Demand::Maybe };
}

/// A rendered conversation.
#[derive(Debug)]
pub(super) struct RenderedChat<'t> {
    /// Text of the prompt. Names of control tokens in messages are altered in it.
    pub text: String,
    /// The values that the template inserted into the text. [`Tokenizer::encode_rendered`] turns
    /// their control tokens into plain text.
    pub values: Values<'t>,
    /// Format of the answer.
    pub format: &'static Format,
}

/// Renders a conversation that may have tools, and returns the format of its answer.
///
/// # Errors
/// When the template fails, and [`Error::ToolsLeftOut`].
pub(super) fn render_with_tools<'t>(
    tokenizer: &'t Tokenizer,
    template: &ChatTemplate,
    renderer: Option<&Path>,
    conversation: &Conversation,
    tools: ToolUse,
) -> Result<RenderedChat<'t>, Error> {
    let render = |conversation: &Conversation| render(tokenizer, template, renderer, conversation.clone());
    let own = format_of(template.source());
    let wanted = if tools.is_enforced { own.for_calls() } else { own };
    let rendered = render(conversation);
    let presents = match &rendered {
        _ if conversation.tools.is_empty() => true,
        Ok((text, values)) => conversation.presents_tools(template.source(), &values.restore(text), |short| {
            render(short).ok().map(|(text, values)| values.restore(&text))
        }),
        // The tools may be the reason of the failure.
        Err(_) => false,
    };
    if presents && wanted.name == own.name {
        return rendered.map(|(text, values)| RenderedChat { text, values, format: own });
    }
    let format = own.for_calls();
    if format.call_frame("").is_none() {
        return rendered.and(Err(Error::ToolsLeftOut));
    }
    let described = conversation.with_tools_in_prompt(format, tools.demand);
    let (text, values) = match presents {
        true => render(&described)?,
        // Report the error of the conversation with tools.
        false => render(&described.with_calls_as_text(format)).or_else(|error| rendered.and(Err(error)))?,
    };
    Ok(RenderedChat { text, values, format })
}
