//! Prompt of a conversation: its text, its tokens, and the parser of the answer. All interfaces use
//! this module to make prompts.

use std::collections::HashSet;
use std::path::Path;

use ixc_compile::Error as CompileError;
use ixc_text::chat::{Parser, Part, TextParameters};
use ixc_text::template::{ChatTemplate, Conversation, Json, Message};
use ixc_text::tokenizer::Tokenizer;

use super::tools::{RenderedChat, ToolUse, render_with_tools};
use crate::Error;
use crate::loaded_model::{check_prompt, with_bos};

/// Maker of prompts: a model's tokenizer and template, and the length of its context.
#[derive(Clone, Copy, Debug)]
pub struct PromptMaker<'m> {
    /// Tokenizer of the model.
    pub tokenizer: &'m Tokenizer,
    /// Template of the conversation.
    pub template: &'m ChatTemplate,
    /// Program that renders the template; see [`super::ChatOptions::renderer`].
    pub renderer: Option<&'m Path>,
    /// Tokens of the context.
    pub context: usize,
    /// Tokens of the context that the model was trained with.
    pub trained_context: usize,
}

/// A conversation as a prompt.
#[derive(Debug)]
pub struct ChatPrompt {
    /// Tokens, up to the beginning of the model's answer.
    pub tokens: Vec<u32>,
    /// Text of the tokens. Names of control tokens in messages are altered in it.
    pub text: String,
    /// Parser that splits an answer; `None` if the model's answers have no structure.
    pub parser: Option<Parser>,
    /// Beginning of the answer, if it continues a message.
    pub prefix: Option<AnswerPrefix>,
}

/// Beginning of an assistant's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerPrefix {
    /// Part of the answer that new text continues; `None` if the message ends within a tool call.
    pub part: Option<Part>,
    /// Content of the message.
    pub content: String,
}

impl PromptMaker<'_> {
    /// Makes the prompt of a conversation. Names of control tokens become control tokens if the
    /// template wrote them, and plain text in messages. Without tools, text that looks like a call
    /// is content. The tokens may be more than the context holds, unless the answer continues a
    /// message.
    ///
    /// # Errors
    /// When the template fails, [`Error::ToolsLeftOut`], and [`Error::Prompt`] for a text that is
    /// too long to be tokenized. [`CompileError::Context`] for a continued message that does not
    /// fit.
    pub fn prompt(&self, conversation: &Conversation, tools: ToolUse) -> Result<ChatPrompt, Error> {
        let &PromptMaker { tokenizer, template, renderer, context, trained_context } = self;
        let rendered = render_with_tools(tokenizer, template, renderer, conversation, tools)?;
        let RenderedChat { text, mut values, format } = rendered;
        check_prompt(tokenizer, context, trained_context, &text)?;
        let tokens = with_bos(tokenizer, tokenizer.encode_rendered(&text, &values)?);
        // The parser needs the tools' parameters before it reads any part of the answer.
        let parameters = TextParameters::of_each(conversation.tools.iter().map(Json::as_str));
        let parser = Parser::new(format, &text).with_texts(parameters);
        let parser = if conversation.tools.is_empty() { parser.without_calls() } else { parser };
        let (parser, prefix) = match conversation.continued.zip(conversation.messages.last()) {
            None => (parser, None),
            // Do not parse a prompt that is too long anyway.
            Some(_) if tokens.len() > context => {
                return Err(CompileError::Context { tokens: tokens.len(), context, model: trained_context }.into());
            }
            Some((part, last)) => {
                let text = match part {
                    Part::Content => &*last.content,
                    Part::Reasoning => last.reasoning.as_deref().unwrap_or_default(),
                };
                // Names of control tokens in the message are ordinary text to the model, and
                // therefore also to the parser.
                let (parser, message) = parser.continuing(part, &values.protect(text));
                let prefix = AnswerPrefix { part: parser.part(), content: values.restore(&message.content) };
                (parser, Some(prefix))
            }
        };
        let parser = format.has_markers().then_some(parser);
        Ok(ChatPrompt { tokens, text, parser, prefix }.with_ids_after(&conversation.messages))
    }
}

impl ChatPrompt {
    /// Reserves the ids of calls in `messages`, so that no call of the answer gets one of them.
    /// Pass all messages, including those that were dropped from the conversation.
    #[must_use]
    pub fn with_ids_after(self, messages: &[Message]) -> ChatPrompt {
        let calls = || messages.iter().flat_map(|message| &message.tool_calls);
        let distinct = |parser: Parser| {
            let ids: HashSet<String> = calls().map(|call| call.id.clone()).collect();
            parser.numbered_from(calls().count()).beside_ids(ids)
        };
        ChatPrompt { parser: self.parser.map(distinct), ..self }
    }
}

#[cfg(test)]
mod tests {
    use ixc_text::chat::{Answer, ToolCall};

    use super::*;

    const TEMPLATE: &str = "{# <tool_call> #}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}\
                            {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    const CALL: &str = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";

    /// Returns the parsed call of a model that calls `f`.
    fn answer(parser: Option<Parser>) -> Answer {
        let mut parser = parser.unwrap();
        let mut answer = Answer::default();
        answer.extend(parser.push(CALL));
        answer.extend(parser.finish());
        answer
    }

    #[test]
    fn calls_need_tools_and_get_ids_of_their_own() {
        let tokenizer = ixc_compile::model::tokenizer(&ixc_compile::demo::open().unwrap()).unwrap();
        let template = ChatTemplate::from_source(TEMPLATE).unwrap();
        let (tokenizer, template) = (&tokenizer, &template);
        let maker = PromptMaker { tokenizer, template, renderer: None, context: 512, trained_context: 512 };
        // An earlier message already has the id `call_1`.
        let call = ToolCall { id: "call_1".into(), name: "f".into(), arguments: "{}".into() };
        let earlier = Message { tool_calls: vec![call], ..Message::new("assistant", "Wait.") };
        let messages = vec![Message::new("user", "Hi"), earlier.clone()];
        let tool = Json::new(r#"{"type": "function", "function": {"name": "f", "parameters": {}}}"#).unwrap();
        let conversation = Conversation { messages, tools: vec![tool], ..Conversation::default() };
        let prompt = |conversation: &Conversation| maker.prompt(conversation, ToolUse::FREE).unwrap();
        let ids = |prompt: ChatPrompt| answer(prompt.parser).calls.into_iter().map(|call| call.id).collect::<Vec<_>>();
        assert_eq!(ids(prompt(&conversation)), ["call_2"]);
        // Dropped messages have ids, too.
        let short = Conversation { messages: vec![Message::new("user", "Hi")], ..conversation.clone() };
        assert_eq!(ids(prompt(&short)), ["call_0"]);
        assert_eq!(ids(prompt(&short).with_ids_after(&[earlier])), ["call_2"]);
        let without = prompt(&Conversation { tools: Vec::new(), ..short });
        assert_eq!(answer(without.parser), Answer { content: CALL.into(), ..Answer::default() });
    }

    #[test]
    fn continued_message_that_does_not_fit_is_refused() {
        let tokenizer = ixc_compile::model::tokenizer(&ixc_compile::demo::open().unwrap()).unwrap();
        let template = ChatTemplate::from_source(TEMPLATE).unwrap();
        let (tokenizer, template) = (&tokenizer, &template);
        let maker = |context| PromptMaker { tokenizer, template, renderer: None, context, trained_context: 512 };
        let messages = vec![Message::new("user", "Hi"), Message::new("assistant", "One, two")];
        let continued = Some(Part::Content);
        let conversation = Conversation { messages, continued, ..Conversation::default() };
        let prompt = maker(512).prompt(&conversation, ToolUse::FREE).unwrap();
        let prefix = AnswerPrefix { part: continued, content: "One, two".into() };
        assert_eq!(prompt.prefix, Some(prefix));
        let tokens = prompt.tokens.len();
        assert!(maker(tokens).prompt(&conversation, ToolUse::FREE).is_ok());
        let error = maker(tokens - 1).prompt(&conversation, ToolUse::FREE).unwrap_err();
        assert!(matches!(error, Error::Compile(CompileError::Context { .. })), "{error}");
    }
}
