//! Options of the texts of a session, and a finished text.

use std::sync::Arc;

use ixc_grammar::Matcher;
use ixc_runtime::sample::SamplerSettings;
use ixc_text::chat::Answer;
use ixc_text::template::{Json, Message};

use crate::chat;
use crate::generator::End;

/// Options of a session's texts: [`Session::text_options_mut`](super::Session::text_options_mut).
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    /// Max number of generated tokens. Without it, the model ends the text, or a full context does.
    pub limit: Option<usize>,
    /// Settings of the sampler. The default is that of llama.cpp, with seed 0.
    pub sampling: Arc<SamplerSettings>,
    /// Stop strings: texts that end the generation and are not part of its text.
    pub stop: Arc<[String]>,
    /// Grammar of the generated text.
    /// [`Vocabulary::matcher`](ixc_grammar::Vocabulary::matcher) compiles one.
    pub grammar: Option<Matcher>,
    /// Chat template, and the process that renders it.
    pub chat: chat::ChatOptions,
    /// Tools of a chat. Each is `{"type": "function", "function": {"name": …, "parameters": …}}`.
    pub tools: Vec<Json>,
}

/// A finished text: the result of a [`TextStream`](super::TextStream).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The text as content, with reasoning and tool calls of a chat.
    pub answer: Answer,
    /// Generated tokens.
    pub tokens: Vec<u32>,
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of tokens of the prompt whose states were cached.
    pub reused_tokens: usize,
    /// Reason of the end. For a dropped stream, it is [`End::Stopped`].
    pub end: End,
}

impl Completion {
    /// Returns the assistant's message, which continues the chat. Templates write the reasoning and
    /// the tool calls in the model's format.
    pub fn into_message(self) -> Message {
        chat::assistant_message(self.answer)
    }
}
