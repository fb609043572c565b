//! Stream of a text: an iterator over its pieces that runs the engine.

use std::collections::VecDeque;
use std::iter::FusedIterator;
use std::ops::ControlFlow;
use std::sync::Arc;

use ixc_text::chat::{Answer, Delta, Parser};
use ixc_text::template::{Conversation, Message};

use super::Session;
use super::completion::Completion;
use super::text_run::TextRun;
use crate::Error;
use crate::answer::AnswerText;
use crate::chat::{ChatPrompt, ToolUse};
use crate::generator::{End, Request};

/// A text in generation, as an iterator over its pieces. [`Session::chat`] and
/// [`Session::complete`] begin one.
///
/// A piece is the text of one or more tokens. It is never empty, and has whole characters. Pieces
/// are content: [`TextStream::next_delta`] also returns reasoning and tool calls. The model
/// computes only while the iterator is in `next`. Dropping the iterator stops the generation, and
/// the computed tokens stay cached.
///
/// ```
/// use ixc_generate::loaded_model::LoadOptions;
/// use ixc_generate::session::Session;
/// use ixc_text::template::{Message, known};
///
/// let mut session = Session::open(None, &LoadOptions::default())?; // The demo model.
/// // It has no chat template of its own.
/// session.text_options_mut().chat.template = known::find("chatml").map(|known| known.template());
/// session.text_options_mut().sampling = ixc_runtime::sample::SamplerSettings::greedy().into();
/// session.text_options_mut().limit = Some(8);
/// let messages = [Message::new("user", "What is a trait?")];
/// for piece in session.chat(&messages)? { print!("{piece}") }
/// let completion = session.take_completion()?.expect("the loop has ended");
/// assert_eq!(completion.tokens.len(), 8);
/// # Ok::<(), ixc_generate::Error>(())
/// ```
///
/// # Errors
///
/// Items are texts and not results, so that a loop prints them as they are. An error ends the
/// iterator, and is kept until the program takes it in one of these ways:
///
/// | loop | the error |
/// | --- | --- |
/// | `while let Some(piece) = stream.try_next()?` | [`TextStream::try_next`] returns it |
/// | `for piece in &mut stream` | then [`TextStream::finish`] |
/// | `for piece in session.chat(&messages)?` | then [`Session::take_completion`] |
///
/// If the program does none of this, the session's next stream returns the error as it begins.
#[derive(Debug)]
#[must_use = "a stream generates text only while it is read"]
pub struct TextStream<'s> {
    /// Session, which takes the result when the stream is dropped.
    session: &'s mut Session,
    /// The generated tokens.
    run: TextRun,
    /// Splitter of a chat's answer.
    answer: AnswerText,
    /// The text so far.
    completion: Completion,
    /// Deltas that were not returned yet.
    deltas: VecDeque<Delta>,
    /// Error that ended the stream, until the stream returns the error.
    failure: Option<Error>,
}

impl Session {
    /// Begins an answer to messages: an iterator over the pieces of its text. The messages are the
    /// whole conversation. If the prompt begins like the last text, only the tokens after the
    /// common beginning are computed.
    ///
    /// ```no_run
    /// # let mut session = ixc_generate::session::Session::open(None, &Default::default())?;
    /// # let messages = [ixc_text::template::Message::new("user", "What is a trait?")];
    /// for piece in session.chat(&messages)? { print!("{piece}") }
    /// session.take_completion()?; // Returns an error that ended the loop.
    /// # Ok::<(), ixc_generate::Error>(())
    /// ```
    ///
    /// [`Session::text_options_mut`] sets the template, the tools, the length and the sampler. For
    /// conversations that may outgrow the context, see [`Chat`](crate::chat::Chat).
    ///
    /// # Errors
    /// When there is no chat template or it fails, when the prompt is longer than the context, or
    /// when an option is outside its range. Also the error of the last stream, if it was not taken.
    pub fn chat(&mut self, messages: &[Message]) -> Result<TextStream<'_>, Error> {
        let ChatPrompt { tokens, parser, .. } = self.chat_prompt(messages)?;
        self.stream(tokens, parser)
    }

    /// Begins the continuation of a text, without a chat template: an iterator over the pieces of
    /// its text.
    ///
    /// # Errors
    /// When there is no tokenizer, when the prompt is longer than the context, or when an option is
    /// outside its range. Also the error of the last stream, if it was not taken.
    pub fn complete(&mut self, prompt: &str) -> Result<TextStream<'_>, Error> {
        let tokens = self.model().encode_prompt(prompt)?;
        self.stream(tokens, None)
    }

    /// Takes the result of the last stream, after it was dropped. Returns `None` if the result was
    /// taken, and before the first stream.
    ///
    /// # Errors
    /// The error that ended the stream, unless the stream returned it.
    pub fn take_completion(&mut self) -> Result<Option<Completion>, Error> {
        self.completion.take().transpose()
    }

    /// Returns the prompt of a conversation.
    fn chat_prompt(&self, messages: &[Message]) -> Result<ChatPrompt, Error> {
        let (model, options) = (self.model(), &self.options);
        let template = options.chat.template_of(model)?;
        let conversation = Conversation {
            messages: messages.to_vec(),
            tools: options.tools.clone(),
            add_generation_prompt: true,
            ..Conversation::default()
        };
        model.prompt_maker(&template, options.chat.renderer.as_deref())?.prompt(&conversation, ToolUse::FREE)
    }

    /// Begins a stream after the tokens of a prompt.
    fn stream(&mut self, tokens: Vec<u32>, parser: Option<Parser>) -> Result<TextStream<'_>, Error> {
        if let Some(Err(error)) = self.completion.take() {
            return Err(error);
        }
        let (answer, prompt_tokens) = (AnswerText::new(parser), tokens.len());
        let request = Request {
            limit: self.options.limit,
            stop: Arc::clone(&self.options.stop),
            show_special: answer.reads_markers(),
            grammar: self.options.grammar.clone(),
            ..Request::new(tokens, Arc::clone(&self.options.sampling))
        };
        let run = self.begin(request)?;
        let completion = Completion {
            answer: Answer::default(),
            tokens: Vec::new(),
            prompt_tokens,
            reused_tokens: 0,
            end: End::Stopped,
        };
        Ok(TextStream { session: self, run, answer, completion, deltas: VecDeque::new(), failure: None })
    }
}

impl TextStream<'_> {
    /// Generates up to the next piece of content, and returns it. Returns `None` after the last.
    ///
    /// # Errors
    /// When a step of the engine, the sampler or the grammar fails. The stream has ended then.
    pub fn try_next(&mut self) -> Result<Option<String>, Error> {
        while let Some(delta) = self.next_delta()? {
            if let Delta::Content(text) = delta {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// Generates up to the next delta, and returns it: content, reasoning, or a part of a tool
    /// call. Returns `None` after the last.
    ///
    /// # Errors
    /// See [`TextStream::try_next`].
    pub fn next_delta(&mut self) -> Result<Option<Delta>, Error> {
        loop {
            if let Some(delta) = self.deltas.pop_front() {
                return Ok(Some(delta));
            }
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
            if self.session.open.is_none() {
                return Ok(None);
            }
            self.step();
        }
    }

    /// Generates the rest of the text, and returns the whole text. If an error was returned
    /// already, returns the text before the error.
    ///
    /// # Errors
    /// See [`TextStream::try_next`]. An error that ended the iterator is returned here.
    pub fn finish(mut self) -> Result<Completion, Error> {
        while self.next_delta()?.is_some() {}
        Ok(self.completion.clone())
    }

    /// Runs a step of the engine, and adds its text to the stream.
    fn step(&mut self) {
        let mut text = String::new();
        let end = self.session.step(&mut self.run, &mut |event| {
            text += event.text().unwrap_or_default();
            ControlFlow::Continue(())
        });
        self.completion.reused_tokens = self.run.reused_tokens;
        let tokens = self.run.generation.tokens.iter().skip(self.completion.tokens.len());
        self.completion.tokens.extend(tokens);
        self.push(&text);
        match end {
            Some(Ok(end)) => self.end(end),
            Some(Err(error)) => self.failure = Some(error),
            None => {}
        }
    }

    /// Splits text into deltas, and adds them.
    fn push(&mut self, text: &str) {
        let deltas = self.answer.push(text);
        self.extend(deltas);
    }

    fn extend(&mut self, deltas: Vec<Delta>) {
        self.completion.answer.extend(deltas.iter().cloned());
        self.deltas.extend(deltas);
    }

    /// Ends the text, and adds the text that was withheld.
    fn end(&mut self, end: End) {
        let deltas = self.answer.end(&end);
        self.extend(deltas);
        self.completion.end = end;
    }
}

impl Iterator for TextStream<'_> {
    type Item = String;

    /// Returns the next piece; `None` after the last one and after an error.
    fn next(&mut self) -> Option<String> {
        self.try_next().unwrap_or_else(|error| {
            self.failure = Some(error);
            None
        })
    }
}

impl FusedIterator for TextStream<'_> {}

impl Drop for TextStream<'_> {
    /// Stops the generation, and gives the session its result.
    fn drop(&mut self) {
        if let Some(id) = self.session.open.take() {
            self.session.generator.cancel(id);
            // After a shift, the engine no longer holds the whole text.
            if self.run.generation.shifts > 0 {
                self.session.text.clear();
            }
            self.end(End::Stopped);
        }
        let failure = self.failure.take();
        self.session.completion = Some(failure.map_or_else(|| Ok(self.completion.clone()), Err));
    }
}

#[cfg(test)]
mod tests {
    use ixc_runtime::engine;
    use ixc_runtime::sample::SamplerSettings;
    use ixc_text::chat::format_of;
    use ixc_text::template::known;
    use ixc_text::tokenizer::DecodeOptions;

    use super::*;
    use crate::loaded_model::LoadOptions;

    const PROMPT: &str = "The borrow checker";
    const LIMIT: usize = 16;

    /// Opens the demo model with a short context, and a template that it lacks.
    fn session() -> Session {
        let run = engine::EngineOptions { threads: Some(2), context: Some(64), ..engine::EngineOptions::default() };
        let mut session = Session::open(None, &LoadOptions { run, ..LoadOptions::default() }).unwrap();
        let options = session.text_options_mut();
        (options.limit, options.sampling) = (Some(LIMIT), SamplerSettings::greedy().into());
        options.chat.template = known::find("chatml").map(|known| known.template());
        session
    }

    /// Returns the tokens that the engine generates after the prompt.
    fn greedy_tokens() -> Vec<u32> {
        let mut session = session();
        let tokens = session.model().encode_prompt(PROMPT).unwrap();
        let request = Request { limit: Some(LIMIT), ..Request::new(tokens, SamplerSettings::greedy()) };
        session.generate(&request, |_| Ok::<_, Error>(ControlFlow::Continue(()))).unwrap().tokens
    }

    /// Fills the context, so that the stream's next step fails.
    fn break_engine(stream: &mut TextStream<'_>) {
        let engine = &mut stream.session.generator.model_mut().engine;
        let room = (engine.context() - engine.position()) as usize;
        engine.step(&vec![1; room], &[]).unwrap();
    }

    fn is_step_error(error: &Error) -> bool {
        matches!(error, Error::Step(_))
    }

    #[test]
    fn pieces_are_the_text_of_the_generated_tokens() {
        let mut session = session();
        let mut stream = session.complete(PROMPT).unwrap();
        let pieces: Vec<String> = stream.by_ref().collect();
        assert_eq!(stream.next(), None);
        let completion = stream.finish().unwrap();
        assert_eq!((&completion.tokens, &completion.end), (&greedy_tokens(), &End::Limit));
        assert!(pieces.len() > 1 && pieces.iter().all(|piece| !piece.is_empty()), "{pieces:?}");
        let options = DecodeOptions { show_special: false, at_start: false };
        let text = session.model().tokenizer().unwrap().decode_with(&completion.tokens, options).unwrap();
        assert_eq!((pieces.concat(), &completion.answer.content), (text.clone(), &text));
        // The session keeps the text, so that its state can be saved.
        assert!(session.has_text() && session.text.ends_with(&completion.tokens) && session.sampler.is_some());
        assert_eq!(session.take_completion().unwrap(), Some(completion));
        assert_eq!(session.take_completion().unwrap(), None);
    }

    #[test]
    fn chat_continues_from_the_cached_prompt() {
        let mut session = session();
        let mut messages = vec![Message::new("user", "What is a trait?")];
        let first = session.chat(&messages).unwrap().finish().unwrap();
        assert_eq!(first.reused_tokens, 0);
        messages.extend([first.clone().into_message(), Message::new("user", "Why?")]);
        assert_eq!((&*messages[1].role, &messages[1].content), ("assistant", &first.answer.content));
        session.text_options_mut().limit = Some(1);
        let second = session.chat(&messages).unwrap().finish().unwrap();
        assert!(second.reused_tokens >= first.prompt_tokens - 1, "{second:?}");
        assert!(second.prompt_tokens > second.reused_tokens && second.tokens.len() == 1);
    }

    #[test]
    fn dropped_stream_stops_the_generation() {
        let mut session = session();
        let first = session.complete(PROMPT).unwrap().next().unwrap();
        let completion = session.take_completion().unwrap().unwrap();
        assert!(completion.end == End::Stopped && completion.tokens.len() < LIMIT, "{completion:?}");
        assert!(completion.answer.content.starts_with(&first));
        assert!(session.generator.is_idle() && session.has_text());
        // A leaked stream does not disturb the next text.
        std::mem::forget(session.complete(PROMPT).unwrap());
        assert_eq!(session.complete(PROMPT).unwrap().finish().unwrap().tokens, greedy_tokens());
    }

    #[test]
    fn stop_string_ends_the_text_and_is_left_out() {
        let mut session = session();
        let whole = session.complete(PROMPT).unwrap().finish().unwrap().answer.content;
        let stop = whole.split_whitespace().nth(2).unwrap().to_owned();
        session.text_options_mut().stop = [stop.clone()].into();
        let completion = session.complete(PROMPT).unwrap().finish().unwrap();
        assert_eq!(completion.answer.content, whole.split_once(&stop).unwrap().0);
        assert_eq!(completion.end, End::StopString(stop));
    }

    #[test]
    fn end_of_a_begun_call_is_that_of_all_interfaces() {
        let mut session = session();
        let parser = || Some(Parser::new(format_of("<tool_call>"), ""));
        for end in [End::Token(2), End::StopString("x".into()), End::Grammar, End::Limit, End::Context, End::Stopped] {
            let (mut text, mut expected) = (AnswerText::new(parser()), Answer::default());
            let mut stream = session.complete(PROMPT).unwrap();
            stream.answer = AnswerText::new(parser());
            for piece in ["Wait. ", "<tool_call>{\"na"] {
                expected.extend(text.push(piece));
                stream.push(piece);
            }
            expected.extend(text.end(&end));
            stream.end(end.clone());
            assert_eq!((&stream.completion.answer, &stream.completion.end), (&expected, &end));
        }
    }

    #[test]
    fn error_during_a_generation_is_returned_in_each_way() {
        let mut session = session();
        let mut stream = session.complete(PROMPT).unwrap();
        assert!(stream.next().is_some());
        break_engine(&mut stream);
        assert!(is_step_error(&stream.try_next().unwrap_err()));
        assert_eq!(stream.next(), None);
        assert!(!stream.finish().unwrap().answer.content.is_empty());

        let mut stream = session.complete(PROMPT).unwrap();
        assert!(stream.next().is_some());
        break_engine(&mut stream);
        assert_eq!(stream.by_ref().count(), 0);
        assert!(is_step_error(&stream.finish().unwrap_err()));

        let drop_after_failure = |session: &mut Session| {
            let mut stream = session.complete(PROMPT).unwrap();
            assert!(stream.next().is_some());
            break_engine(&mut stream);
            assert_eq!(stream.count(), 0);
        };
        drop_after_failure(&mut session);
        assert!(is_step_error(&session.take_completion().unwrap_err()));
        // If an error was not taken, the next stream returns it once.
        drop_after_failure(&mut session);
        assert!(is_step_error(&session.complete(PROMPT).map(drop).unwrap_err()));
        assert_eq!(session.complete(PROMPT).unwrap().finish().unwrap().tokens, greedy_tokens());
    }
}
