//! A conversation: its turns, how many of them the model still sees, and their text as tokens.
//!
//! A *turn* is what the user said and what the model answered. Where the next answer would not have room in the context, the oldest turns are
//! no longer given to the model ([`Session::fit_chat`]); the system message stays, and [`Session::messages`] keeps all of them.
//!
//! ```text
//! system | user, assistant | user, assistant | user              86 tokens, and the context is 64
//! system |                   user, assistant | user              61 tokens: 1 turn dropped
//! ```
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use ixc::session::{Request, Session, SessionOptions};
//!
//! let mut session = Session::open(None, &SessionOptions::default())?;
//! session.chat(Some("Be brief."))?;
//! for question in ["What is a trait?", "And a lifetime?"] {
//!     session.say(question);
//!     let tokens = session.fit_chat(256)?.tokens;
//!     let request = Request { tokens: &tokens, limit: Some(256), sampling: ixc::runtime::sample::Settings::greedy() };
//!     let answer = session.generate(&request, |_| Ok::<_, ixc::Error>(ControlFlow::Continue(())))?;
//!     let text = session.tokenizer()?.decode(&answer.tokens)?;
//!     println!("{text}");
//!     session.answered(text);
//! }
//! # Ok::<(), ixc::Error>(())
//! ```
//!
//! Invariant: messages after the system's are the user's and the assistant's in turn, and the first that the model sees is the user's.

use std::path::Path;

use ixc_frontend::template::{ChatTemplate, Conversation, Message, own_program};

use super::{Session, with_bos};
use crate::Error;

/// The role of what the user says.
const USER: &str = "user";
/// The role of what the model answers.
const ASSISTANT: &str = "assistant";
/// The role of what is said before all else.
const SYSTEM: &str = "system";

/// A conversation.
#[derive(Debug, Default)]
pub(super) struct Chat {
    /// The template's source, where there is one.
    template: Option<String>,
    system: Option<String>,
    /// What was said since, the user's and the assistant's in turn.
    messages: Vec<Message>,
    /// How many messages the model no longer sees.
    dropped: usize,
}

impl Chat {
    /// With nothing said.
    pub(super) fn new(template: Option<String>) -> Chat {
        Chat { template, ..Chat::default() }
    }

    /// Where the turns begin that the model sees.
    fn turns(&self) -> Vec<usize> {
        let seen = self.messages.iter().enumerate().skip(self.dropped);
        seen.filter(|(_, message)| message.role == USER).map(|(number, _)| number).collect()
    }
}

/// A conversation as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fitted {
    /// The tokens, up to where the model is to answer.
    pub tokens: Vec<u32>,
    /// Turns that were dropped just now.
    pub dropped: usize,
}

impl Session {
    /// Whether the model or [`SessionOptions`](super::SessionOptions) has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.chat.template.is_some()
    }

    /// Begins a conversation.
    ///
    /// # Errors
    /// When there is no template, or it does not take such a conversation; better now than after the first message.
    pub fn chat(&mut self, system: Option<&str>) -> Result<(), Error> {
        self.chat = Chat::new(self.chat.template.take());
        self.set_system(system)
    }

    /// Replaces the system message from here on.
    ///
    /// # Errors
    /// When the template does not take it; the system message is then as it was.
    pub fn set_system(&mut self, system: Option<&str>) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.chat.system, system.map(str::to_owned));
        let probe = Message::new(USER, "?");
        let result = self.encode_chat([&probe].into_iter()).map(drop);
        if result.is_err() {
            self.chat.system = before;
        }
        result
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.chat.system.as_deref()
    }

    /// All that was said after the system message, also what the model no longer sees.
    pub fn messages(&self) -> &[Message] {
        &self.chat.messages
    }

    /// What the user says next.
    pub fn say(&mut self, text: impl Into<String>) {
        self.chat.messages.push(Message::new(USER, text));
    }

    /// Takes back what the user said last, unless it was answered; gives its text.
    pub fn take_back(&mut self) -> Option<String> {
        self.chat.messages.pop_if(|message| message.role == USER).map(|message| message.content)
    }

    /// Takes what the model answered into the conversation.
    pub fn answered(&mut self, text: impl Into<String>) {
        self.chat.messages.push(Message::new(ASSISTANT, text));
    }

    /// Takes back the last answer, so that the model can answer again; gives its text.
    pub fn take_back_answer(&mut self) -> Option<String> {
        self.chat.messages.pop_if(|message| message.role == ASSISTANT).map(|message| message.content)
    }

    /// The conversation as tokens, up to where the model is to answer. As many of the oldest turns are dropped as it takes for `room`
    /// tokens of an answer to fit into the context; where not even the last turn leaves that much, it is enough that this turn fits.
    ///
    /// Names of control tokens are those tokens where the template wrote them, and text in what was said.
    /// The template runs in a process of its own, since it comes from the file and nothing else bounds its memory: this program again,
    /// whose `main` must begin with [`serve_render_request`](ixc_frontend::template::serve_render_request) as that of `ixc` does.
    ///
    /// # Errors
    /// [`Error::Context`] where what the user said last does not fit by itself; and when there is no template, or that goes wrong. Nothing is
    /// dropped then.
    pub fn fit_chat(&mut self, room: usize) -> Result<Fitted, Error> {
        let turns = self.chat.turns();
        let context = self.context();
        let from = |turn: Option<&usize>| {
            let first = turn.copied().unwrap_or(self.chat.messages.len());
            match self.encode_chat(self.chat.messages[first..].iter()) {
                // Too long to be looked at; with fewer turns it may not be.
                Err(error @ Error::Prompt { .. }) => Ok(Err(error)),
                other => other.map(Ok),
            }
        };
        let fits = |rest: &Result<Vec<u32>, Error>| {
            rest.as_ref().is_ok_and(|tokens| tokens.len().saturating_add(room) <= context)
        };
        let (dropped, tokens) = fewest_dropped(turns.len(), |dropped| from(turns.get(dropped)), fits)?;
        let tokens = tokens?;
        if tokens.len() > context {
            return Err(Error::Context { tokens: tokens.len(), context, model: self.model_context() });
        }
        self.chat.dropped = turns.get(dropped).copied().unwrap_or(self.chat.dropped);
        Ok(Fitted { tokens, dropped })
    }

    /// The prompt for these messages after the system's.
    fn encode_chat<'m>(&self, messages: impl Iterator<Item = &'m Message>) -> Result<Vec<u32>, Error> {
        let source = self.chat.template.as_deref().ok_or(Error::NoTemplate)?;
        let tokenizer = self.tokenizer()?;
        let text = |id: Option<u32>| -> Result<String, Error> {
            let bytes = id.map(|id| tokenizer.token_bytes(id)).transpose()?;
            Ok(String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned())
        };
        let system = self.chat.system.iter().map(|text| Message::new(SYSTEM, text));
        let said: Vec<Message> = system.chain(messages.cloned()).collect();
        let mut values = tokenizer.values(said.iter().map(|m| &*m.content).chain([source]));
        // Roles are this program's own words, which templates compare.
        let messages = said.iter().map(|m| Message::new(&*m.role, values.protect(&m.content))).collect();
        let (bos_token, eos_token) = (text(tokenizer.bos())?, text(tokenizer.eos())?);
        let conversation = Conversation { messages, add_generation_prompt: true, bos_token, eos_token };
        let helper = own_program().map_err(Error::io(Path::new("/proc/self/exe"), "find"))?;
        let prompt = ChatTemplate::from_source(source)?.render_isolated(&helper, &conversation)?;
        self.check_prompt(&prompt)?;
        Ok(with_bos(tokenizer, tokenizer.encode_rendered(&prompt, &values)?))
    }
}

/// The fewest of `turns` turns to drop so that the rest fits, and the rest; all but the last where nothing does. Fewer turns take no more
/// tokens, so halving finds it: rendering a turn starts a process.
fn fewest_dropped<T, E>(
    turns: usize,
    mut render: impl FnMut(usize) -> Result<T, E>,
    fits: impl Fn(&T) -> bool,
) -> Result<(usize, T), E> {
    let all = render(0)?;
    if turns <= 1 || fits(&all) {
        return Ok((0, all));
    }
    // `too_few` is known not to fit; `best` does, or is the most that can be dropped.
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
    fn no_more_turns_are_dropped_than_it_takes() {
        for turns in 1..20usize {
            // Every turn takes 10 tokens, the last one 7.
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
