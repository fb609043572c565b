//! A session: a loaded model that generates one text at a time.
//!
//! | method | generates |
//! | --- | --- |
//! | [`Session::chat`] | the answer to messages, as an iterator over its text |
//! | [`Session::complete`] | the continuation of a text, as an iterator |
//! | [`Session::generate`] | tokens after tokens, with a callback for each |
//!
//! [`Chat`](crate::chat::Chat) makes prompts of tokens from conversations that may outgrow the
//! context.
//!
//! ```
//! use std::ops::ControlFlow;
//! use ixc_generate::generator::Request;
//! use ixc_generate::loaded_model::LoadOptions;
//! use ixc_generate::session::Session;
//!
//! let mut session = Session::open(None, &LoadOptions::default())?; // The demo model.
//! let tokens = session.model().encode_prompt("The borrow checker")?;
//! let greedy = ixc_runtime::sample::SamplerSettings::greedy();
//! let request = Request { limit: Some(4), ..Request::new(tokens, greedy) };
//! let go_on = |_: &_| Ok::<_, ixc_generate::Error>(ControlFlow::Continue(()));
//! let generation = session.generate(&request, go_on)?;
//! assert_eq!(generation.tokens.len(), 4);
//! # Ok::<(), ixc_generate::Error>(())
//! ```

use std::ops::ControlFlow;
use std::path::Path;

use ixc_files::open_regular;
use ixc_runtime::engine::{Engine, FIRST};
use ixc_runtime::sample::SamplerState;
use ixc_runtime::stats::Stats;

use crate::Error;
use crate::generator::{ContextShift, End, Event, FinalState, Generator, Request, RequestId};
use crate::loaded_model::{LoadOptions, LoadedModel};
use crate::speculate::{Speculation, Tally};
pub use crate::timing::Phase;
pub use ixc_runtime::saved::LoadedSequence;

mod breakers;
mod completion;
mod text_run;
mod text_stream;

pub use breakers::{DRY_BREAKERS, breakers};
pub use completion::{Completion, TextOptions};
use text_run::TextRun;
pub use text_stream::TextStream;

/// A generated text, and the time that it took.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Generated tokens.
    pub tokens: Vec<u32>,
    /// Reason of the end.
    pub end: End,
    /// Number of context shifts.
    pub shifts: usize,
    /// Tokens of the prompt that were not cached, and the time to compute them.
    pub prefill: Phase,
    /// Generated tokens that were computed, and the time to generate them. The last token is not
    /// computed.
    pub decode: Phase,
    /// Results of speculation: [`Session::speculate`].
    pub speculation: Tally,
    /// Times of ops. Tasks and waiting need
    /// [`engine::EngineOptions::stats`](ixc_runtime::engine::EngineOptions::stats).
    pub op_times: OpTimes,
}

/// Times of ops in the two phases of a generation.
#[derive(Clone, Debug, Default)]
pub struct OpTimes {
    /// Steps of the prompt.
    pub prefill: Stats,
    /// Steps of generated tokens.
    pub decode: Stats,
}

/// A loaded model that generates one text at a time.
#[derive(Debug)]
pub struct Session {
    /// Generator with one slot.
    generator: Generator,
    /// Tokens of the last text, including its prompt.
    text: Vec<u32>,
    /// State of the sampler after the last text.
    sampler: Option<SamplerState>,
    /// State at which the next text's sampler resumes.
    next_sampler: Option<SamplerState>,
    /// Options of the texts that [`Session::chat`] and [`Session::complete`] stream.
    options: TextOptions,
    /// Result of the last stream, until the caller takes it.
    completion: Option<Result<Completion, Error>>,
    /// Request of the current text, until the request ends. A leaked stream leaves the request
    /// here.
    open: Option<RequestId>,
}

impl Session {
    /// Opens a model or a plan: [`LoadedModel::open`].
    ///
    /// # Errors
    /// See [`LoadedModel::open`].
    pub fn open(path: Option<&Path>, options: &LoadOptions) -> Result<Session, Error> {
        LoadedModel::open(path, options).map(Session::new)
    }

    /// Creates a session without text.
    pub fn new(model: LoadedModel) -> Session {
        Session {
            generator: Generator::for_one(model),
            text: Vec::new(),
            sampler: None,
            next_sampler: None,
            options: TextOptions::default(),
            completion: None,
            open: None,
        }
    }

    /// Returns the model.
    pub fn model(&self) -> &LoadedModel {
        self.generator.model()
    }

    /// Returns the engine, to add and run further sequences. The first sequence has the session's
    /// text and must not be changed.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.generator.model_mut().engine
    }

    /// Returns the options of [`Session::chat`] and [`Session::complete`], to change them.
    pub fn text_options_mut(&mut self) -> &mut TextOptions {
        &mut self.options
    }

    /// Cancels the request of a stream that was leaked.
    fn cancel_open(&mut self) {
        if let Some(id) = self.open.take() {
            self.generator.cancel(id);
        }
    }

    /// Generates text. Cached tokens of the prompt are not computed again. `progress` is called
    /// with each [`Event::Computed`], [`Event::Token`] and [`Event::Text`], and may stop the text.
    ///
    /// # Errors
    /// When a token is not in the model's vocabulary, or the tokens do not fit into the context;
    /// and errors of `progress`.
    pub fn generate<E: From<Error>>(
        &mut self,
        request: &Request,
        mut progress: impl FnMut(&Event) -> Result<ControlFlow<()>, E>,
    ) -> Result<Generation, E> {
        let mut run = self.begin(request.clone())?;
        let speculation = self.generator.speculation_tally();
        // The statistics so far belong to other texts, so they are discarded.
        self.generator.model_mut().take_stats();
        let (mut end, mut failure, mut is_timed) = (None, None, false);
        while end.is_none() {
            end = self.step(&mut run, &mut |event| {
                if failure.is_some() {
                    return ControlFlow::Break(());
                }
                progress(event).unwrap_or_else(|error| {
                    failure = Some(error);
                    ControlFlow::Break(())
                })
            });
            if !run.is_prompt && !is_timed {
                run.generation.op_times.prefill = self.generator.model_mut().take_stats();
                is_timed = true;
            }
        }
        let mut generation = run.generation;
        let stats = self.generator.model_mut().take_stats();
        *if is_timed { &mut generation.op_times.decode } else { &mut generation.op_times.prefill } = stats;
        generation.speculation = self.generator.speculation_tally().since(&speculation);
        if let Some(end) = end {
            generation.end = end?;
        }
        failure.map_or(Ok(generation), Err)
    }

    /// Begins a text. If the sampler of an earlier text is to be resumed, its state replaces the
    /// request's.
    fn begin(&mut self, request: Request) -> Result<TextRun, Error> {
        self.cancel_open();
        let sampler_state = self.next_sampler.take().or(request.sampler_state);
        let tokens = request.tokens.clone();
        self.open = Some(self.generator.submit(Request { sampler_state, ..request })?);
        let run = TextRun::new(tokens.len(), self.model());
        (self.text, self.sampler) = (tokens, None);
        Ok(run)
    }

    /// Runs a step of the engine, and adds its events to the text. Calls `progress` as
    /// [`Session::generate`] does. Returns the reason of the end, once the text has ended.
    fn step(
        &mut self,
        run: &mut TextRun,
        progress: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Option<Result<End, Error>> {
        let before = run.generation.tokens.len();
        self.generator.step_with(&mut |model, _, event| run.read(model, event, progress));
        self.text.extend_from_slice(&run.generation.tokens[before..]);
        let ended = run.ended.take()?;
        self.open = None;
        Some(match ended {
            Ok((end, FinalState { tokens, sampler })) => {
                (self.text, self.sampler) = (tokens, Some(sampler));
                Ok(end)
            }
            Err(error) => {
                self.text.clear();
                Err(error)
            }
        })
    }

    /// Returns whether there is a text, whose state can be saved.
    pub fn has_text(&self) -> bool {
        !self.text.is_empty() && self.model().engine().position() > 0
    }

    /// Writes the state at the end of the last text: the states of the model, the tokens, and the
    /// sampler. Returns the number of bytes. [`Session::load_state`] reads it.
    ///
    /// # Errors
    /// When there is no text, or the state cannot be written.
    pub fn save_state(&self, output: ixc_files::Output) -> Result<u64, Error> {
        self.model().save(FIRST, &self.text, self.sampler.as_ref(), output)
    }

    /// Reads a state that [`Session::save_state`] wrote, and returns its text. A request whose
    /// prompt begins with that text computes only its other tokens, with the same bits.
    ///
    /// # Errors
    /// When the state cannot be read, is of another model, or is damaged.
    pub fn load_state(&mut self, path: &Path) -> Result<LoadedSequence, Error> {
        let file = open_regular(path).map_err(Error::io(path, "open"))?;
        let bytes = file.metadata().map_err(Error::io(path, "read"))?.len();
        let loaded = self.generator.load_slot(0, file, bytes);
        let loaded = loaded.map_err(|source| Error::Saved { path: path.to_owned(), source: Box::new(source) })?;
        self.text.clone_from(&loaded.tokens);
        self.sampler.clone_from(&loaded.sampler);
        Ok(loaded)
    }

    /// Sets the shift of a full context. Without one, a full context ends the text.
    pub fn set_context_shift(&mut self, shift: Option<ContextShift>) {
        self.generator.set_context_shift(shift);
    }

    /// Enables speculation: see [`crate::speculate`]. Speculation does not change the tokens, but
    /// targets with tiles need [`exact_batch`](ixc_runtime::engine::EngineOptions::exact_batch) for
    /// that. The room for drafts is
    /// [`more_additions`](ixc_runtime::engine::EngineOptions::more_additions).
    ///
    /// # Errors
    /// [`Error::NoSpeculation`] if states cannot be truncated, so rejected drafts could not be
    /// removed.
    pub fn speculate(&mut self, speculation: Speculation) -> Result<(), Error> {
        self.generator.speculate(speculation)
    }

    /// Returns the name of the drafter, if there is one.
    pub fn drafter_name(&self) -> Option<&'static str> {
        self.generator.drafter_name()
    }

    /// Makes the next text's sampler resume from this state.
    pub fn resume_sampler(&mut self, state: SamplerState) {
        self.next_sampler = Some(state);
    }
}
