//! Conversation: its turns, the number of turns that the model still sees, and their text as
//! tokens.
//!
//! A *turn* is a user's message and the model's answer. If the next answer would not fit in the
//! context, the oldest turns are left out of the prompt ([`Chat::fit`]). The system message stays,
//! and [`Chat::messages`] keeps all turns.
//!
//! ```text
//! system | user, assistant | user, assistant | user              86 tokens, and the context is 64
//! system |                   user, assistant | user              61 tokens: 1 turn dropped
//! ```
//!
//! ```
//! use std::ops::ControlFlow;
//! use ixc_generate::chat::{Chat, ChatOptions};
//! use ixc_text::template::known;
//! use ixc_generate::generator::Request;
//! use ixc_generate::loaded_model::LoadOptions;
//! use ixc_generate::session::Session;
//!
//! // The demo model has no template of its own.
//! let mut session = Session::open(None, &LoadOptions::default())?;
//! let template = known::find("chatml").map(|known| known.template());
//! let options = ChatOptions { template, ..ChatOptions::default() };
//! let mut chat = Chat::new(session.model(), options, Some("Be brief."))?;
//! for question in ["What is a trait?", "And a lifetime?"] {
//!     chat.say(question);
//!     let tokens = chat.fit(session.model(), 8)?.prompt.tokens;
//!     let greedy = ixc_runtime::sample::SamplerSettings::greedy();
//!     let request = Request { limit: Some(8), ..Request::new(tokens, greedy) };
//!     let answer = session
//!         .generate(&request, |_| Ok::<_, ixc_generate::Error>(ControlFlow::Continue(())))?;
//!     chat.add_answer(session.model().tokenizer()?.decode(&answer.tokens)?);
//! }
//! assert_eq!(chat.messages().len(), 4);
//! # Ok::<(), ixc_generate::Error>(())
//! ```
//!
//! Invariant: after the system message, messages of user and assistant alternate. The first message
//! that the model sees is a user message.

use std::path::{Path, PathBuf};

use ixc_compile::Error as CompileError;
use ixc_text::chat::Answer;
use ixc_text::template::{ChatTemplate, Conversation, Message};
use ixc_text::tokenizer::{Tokenizer, Values};

use crate::Error;
use crate::loaded_model::LoadedModel;

mod prompt;
mod tools;

pub use prompt::{AnswerPrefix, ChatPrompt, PromptMaker};
pub use tools::ToolUse;

/// Role of the user's messages.
pub const USER: &str = "user";
/// Role of the model's answers.
const ASSISTANT: &str = "assistant";
/// Role of the first message, which instructs the model.
const SYSTEM: &str = "system";

/// Inverse of the part of the context that is reserved for an answer: a quarter.
const ANSWER_PART: usize = 4;

/// Returns the number of tokens of a context that are reserved for an answer. Turns are dropped to
/// make room for them.
pub fn answer_room(context: usize) -> usize {
    context / ANSWER_PART
}

/// Template of a conversation, and the process that renders it.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// The template that replaces the model's template.
    pub template: Option<ChatTemplate>,
    /// Program that renders templates in a separate process, with bounds on memory and time. Its
    /// `main` must begin with [`serve_render_request`](ixc_text::template::serve_render_request),
    /// as that of `ixc` does. Without it, templates are rendered in this process. A hostile
    /// template can then use all of its memory.
    pub renderer: Option<PathBuf>,
}

impl ChatOptions {
    /// Returns the template: that of the options, or else the model's template.
    ///
    /// # Errors
    /// [`Error::NoTemplate`], and when the model's own template is malformed.
    pub(crate) fn template_of(&self, model: &LoadedModel) -> Result<ChatTemplate, Error> {
        let own = || ChatTemplate::from_source(model.chat_template().ok_or(Error::NoTemplate)?).map_err(Error::from);
        self.template.clone().map_or_else(own, Ok)
    }
}

impl LoadedModel {
    /// Returns the maker of prompts with this template.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`].
    pub(crate) fn prompt_maker<'m>(
        &'m self,
        template: &'m ChatTemplate,
        renderer: Option<&'m Path>,
    ) -> Result<PromptMaker<'m>, Error> {
        let (tokenizer, context, trained_context) = (self.tokenizer()?, self.context(), self.facts().context);
        Ok(PromptMaker { tokenizer, template, renderer, context, trained_context })
    }
}

/// A conversation.
#[derive(Clone, Debug)]
pub struct Chat {
    template: ChatTemplate,
    renderer: Option<PathBuf>,
    system: Option<String>,
    /// Messages after the system message; user and assistant alternate.
    messages: Vec<Message>,
    /// Number of messages that the model no longer sees.
    dropped: usize,
}

/// Prompt of a conversation that fits in the context.
#[derive(Debug)]
pub struct FittedPrompt {
    /// The prompt, and the parser of its answer.
    pub prompt: ChatPrompt,
    /// Turns that this call dropped.
    pub dropped: usize,
}

impl Chat {
    /// Begins a conversation with a model.
    ///
    /// # Errors
    /// When there is no template, or the template refuses a conversation with this system message.
    /// The check is made here, so that the error comes before the first message.
    pub fn new(model: &LoadedModel, options: ChatOptions, system: Option<&str>) -> Result<Chat, Error> {
        let template = options.template_of(model)?;
        let (messages, dropped) = (Vec::new(), 0);
        let mut chat = Chat { template, renderer: options.renderer, system: None, messages, dropped };
        chat.set_system(model, system)?;
        Ok(chat)
    }

    /// Begins the conversation again; the system message stays.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.dropped = 0;
    }

    /// Replaces the system message for the rest of the conversation.
    ///
    /// # Errors
    /// When the template does not accept the message; the old one then stays.
    pub fn set_system(&mut self, model: &LoadedModel, system: Option<&str>) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.system, system.map(str::to_owned));
        let probe = Message::new(USER, "?");
        let result = self.encode(model, [&probe].into_iter()).map(drop);
        if result.is_err() {
            self.system = before;
        }
        result
    }

    /// Returns the system message.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Returns all messages after the system message, including those that the model no longer
    /// sees.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Adds a message from the user.
    pub fn say(&mut self, text: impl Into<String>) {
        self.messages.push(Message::new(USER, text));
    }

    /// Removes the user's last message, unless it was answered, and returns its text.
    pub fn take_back(&mut self) -> Option<String> {
        self.messages.pop_if(|message| message.role == USER).map(|message| message.content)
    }

    /// Adds the model's answer to the conversation.
    pub fn add_answer(&mut self, text: impl Into<String>) {
        self.messages.push(Message::new(ASSISTANT, text));
    }

    /// Adds a parsed answer to the conversation. Templates then write reasoning and calls of
    /// earlier turns in the model's format, or leave them out.
    pub fn answered_with(&mut self, answer: Answer) {
        self.messages.push(assistant_message(answer));
    }

    /// Removes the last answer, so that the model can answer again, and returns it.
    pub fn take_back_answer(&mut self) -> Option<Message> {
        self.messages.pop_if(|message| message.role == ASSISTANT)
    }

    /// Puts a removed answer back.
    pub fn put_back_answer(&mut self, answer: Message) {
        self.messages.push(answer);
    }

    /// Returns the prompt of the conversation, up to the beginning of the model's answer. Drops the
    /// oldest turns until `room` tokens of an answer fit in the context. If even the last turn
    /// leaves less room, only the turn itself has to fit.
    ///
    /// # Errors
    /// [`CompileError::Context`] if the user's last message does not fit even without earlier
    /// turns; also if the template fails. Nothing is dropped then.
    pub fn fit(&mut self, model: &LoadedModel, room: usize) -> Result<FittedPrompt, Error> {
        let turns = self.turns();
        let context = model.context();
        let from = |turn: Option<&usize>| {
            let first = turn.copied().unwrap_or(self.messages.len());
            match self.encode(model, self.messages[first..].iter()) {
                // The text is too long to tokenize; with fewer turns it may be short enough.
                Err(error @ Error::Prompt { .. }) => Ok(Err(error)),
                other => other.map(Ok),
            }
        };
        let fits = |rest: &Result<ChatPrompt, Error>| {
            rest.as_ref().is_ok_and(|prompt| prompt.tokens.len().saturating_add(room) <= context)
        };
        let (dropped, prompt) = fewest_dropped(turns.len(), |dropped| from(turns.get(dropped)), fits)?;
        let prompt = prompt?;
        let tokens = prompt.tokens.len();
        if tokens > context {
            return Err(CompileError::Context { tokens, context, model: model.facts().context }.into());
        }
        self.dropped = turns.get(dropped).copied().unwrap_or(self.dropped);
        Ok(FittedPrompt { prompt: prompt.with_ids_after(&self.messages), dropped })
    }

    /// Returns the index of the first message of each turn that the model sees.
    fn turns(&self) -> Vec<usize> {
        let seen = self.messages.iter().enumerate().skip(self.dropped);
        seen.filter(|(_, message)| message.role == USER).map(|(number, _)| number).collect()
    }

    /// Returns the prompt for the system message and these messages.
    fn encode<'m>(
        &self,
        model: &LoadedModel,
        messages: impl Iterator<Item = &'m Message>,
    ) -> Result<ChatPrompt, Error> {
        let system = self.system.iter().map(|text| Message::new(SYSTEM, text));
        let messages = system.chain(messages.cloned()).collect();
        let conversation = Conversation { messages, add_generation_prompt: true, ..Conversation::default() };
        model.prompt_maker(&self.template, self.renderer.as_deref())?.prompt(&conversation, ToolUse::FREE)
    }
}

/// Returns a parsed answer as a message of the assistant.
pub(crate) fn assistant_message(answer: Answer) -> Message {
    let Answer { reasoning, content, calls } = answer;
    let reasoning = Some(reasoning).filter(|text| !text.is_empty());
    Message { reasoning, tool_calls: calls, ..Message::new(ASSISTANT, content) }
}

/// Renders a conversation with a template, which also gets the texts of the model's BOS and EOS.
/// Returns the text and the values that the template inserted, for [`Tokenizer::encode_rendered`].
///
/// # Errors
/// When the template fails, or the process that renders it.
fn render<'t>(
    tokenizer: &'t Tokenizer,
    template: &ChatTemplate,
    renderer: Option<&Path>,
    conversation: Conversation,
) -> Result<(String, Values<'t>), Error> {
    let text = |id: Option<u32>| -> Result<String, Error> {
        let bytes = id.map(|id| tokenizer.token_bytes(id)).transpose()?;
        Ok(String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned())
    };
    let (bos_token, eos_token) = (text(tokenizer.bos())?, text(tokenizer.eos())?);
    let conversation = Conversation { bos_token, eos_token, ..conversation };
    let mut texts = vec![template.source().to_owned()];
    // Roles are not protected: they are constants, which templates compare.
    let said = conversation.map_texts(|text| {
        texts.push(text.to_owned());
        text.to_owned()
    });
    let mut values = tokenizer.values(texts.iter().map(String::as_str));
    let conversation = said.map_texts(|text| values.protect(text));
    let prompt = match renderer {
        Some(program) => template.render_isolated(program, &conversation)?,
        None => template.render(&conversation)?,
    };
    Ok((prompt, values))
}

/// Returns the smallest number of turns to drop so that the remaining turns fit, and the rendered
/// remaining turns. If nothing fits, drops all of `turns` but the last. Fewer turns take no more
/// tokens, so a binary search is valid. It saves calls of `render`, which may start a process.
///
/// # Errors
/// The errors of `render`.
pub fn fewest_dropped<T, E>(
    turns: usize,
    mut render: impl FnMut(usize) -> Result<T, E>,
    fits: impl Fn(&T) -> bool,
) -> Result<(usize, T), E> {
    let all = render(0)?;
    if turns <= 1 || fits(&all) {
        return Ok((0, all));
    }
    // Invariant: with `too_few` turns dropped, the remaining turns do not fit. With `best.0` turns
    // dropped they fit, or `best.0` is the max.
    let (mut too_few, mut best) = (0, (turns - 1, render(turns - 1)?));
    while best.0 - too_few > 1 && fits(&best.1) {
        let middle = too_few + (best.0 - too_few) / 2;
        let rest = render(middle)?;
        if fits(&rest) {
            best = (middle, rest);
        } else {
            too_few = middle;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewest_necessary_turns_are_dropped() {
        for turns in 1..20usize {
            // Each turn takes 10 tokens, and the last one 7.
            let tokens = |dropped: usize| 10 * (turns - 1 - dropped) + 7;
            for room in 0..220 {
                let mut rendered = 0;
                let render = |dropped| {
                    rendered += 1;
                    Ok::<_, ()>(tokens(dropped))
                };
                let (dropped, rest) = fewest_dropped(turns, render, |&tokens| tokens <= room).unwrap();
                let expected = (0..turns).find(|&dropped| tokens(dropped) <= room).unwrap_or(turns - 1);
                assert_eq!((dropped, rest), (expected, tokens(expected)), "{turns} turns, room for {room}");
                assert!(rendered <= 2 + turns.ilog2() + 1, "{turns} turns were rendered {rendered} times");
            }
        }
        assert_eq!(fewest_dropped(3, Err::<(), _>, |()| true), Err(0));
    }
}
