//! What a server stands before: something that makes tokens of prompts.

use std::sync::Arc;

use ixc_failure::Remedy;
use ixc_grammar::{GrammarError, Matcher, Source};
use ixc_runtime::sample::{Breakers, Settings};
use ixc_text::chat::{Parser, Part};
use ixc_text::template::Conversation;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::histogram::{self, Histogram};

/// Models by name, of which some are loaded.
pub trait Models<M>: Send + Sync + 'static {
    /// All of them, loaded or not.
    fn list(&self) -> Vec<Listed<M>>;

    /// Returns the model of a query, if it is loaded.
    ///
    /// # Errors
    /// [`Refusal::NoModel`] where there is none of the name.
    fn loaded(&self, query: ModelQuery<'_>) -> Result<Option<Arc<M>>, Refusal>;

    /// The same, loaded now where it is not. May take minutes, and others wait for their turn: not for threads that anybody waits for. It stays loaded as
    /// long as somebody has it.
    ///
    /// # Errors
    /// [`Refusal::NoModel`]; [`Refusal::NoRoom`] where others answer that would have to be unloaded; [`Refusal::NotLoaded`] where it cannot be loaded.
    fn load(&self, query: ModelQuery<'_>) -> Result<Arc<M>, Refusal>;
}

/// Query for the model of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelQuery<'q> {
    /// Name of the model. `None` is the first model of the right kind.
    pub name: Option<&'q str>,
    /// Whether the request is for embeddings, not for text.
    pub embeddings: bool,
}

/// A model among others.
#[derive(Clone, Debug)]
pub struct Listed<M> {
    /// Its name.
    pub name: String,
    /// It, where it is loaded.
    pub model: Option<Arc<M>>,
    /// Bytes of memory that are counted for it, where it is loaded and that is known.
    pub memory: Option<u64>,
}

/// One model, whatever it is called.
#[derive(Clone, Debug)]
pub struct One<M>(pub Arc<M>);

impl<M: Model> Models<M> for One<M> {
    fn list(&self) -> Vec<Listed<M>> {
        vec![Listed { name: self.0.facts().name.clone(), model: Some(Arc::clone(&self.0)), memory: None }]
    }

    fn loaded(&self, _: ModelQuery<'_>) -> Result<Option<Arc<M>>, Refusal> {
        Ok(Some(Arc::clone(&self.0)))
    }

    fn load(&self, _: ModelQuery<'_>) -> Result<Arc<M>, Refusal> {
        Ok(Arc::clone(&self.0))
    }
}

/// What makes tokens. Its methods are called by many threads at once, and none waits for tokens.
pub trait Model: Send + Sync + 'static {
    /// What is known of it.
    fn facts(&self) -> &Facts;

    /// A text as tokens; with what a model wants before a prompt, and names of special tokens as those tokens, where that is said.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] where there is no tokenizer, or it has no tokens for the text.
    fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, Refusal>;

    /// Tokens as text; what is no UTF-8 is replaced.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] where there is no such token.
    fn decode(&self, tokens: &[u32]) -> Result<String, Refusal>;

    /// A conversation as a prompt, for an answer that must be so; where tools must be called and the template knows no form of calls, they are told in it. May
    /// take long, and starts a process: not for threads that others wait for.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] where there is no template, or it does not take such a conversation.
    fn prompt(&self, conversation: &Conversation, constraint: Option<&Constraint>) -> Result<Prompt, Refusal>;

    /// Compiles the form of an answer, with the prompt for conversations. May take seconds. Ends
    /// soon after `is_wanted` returns false.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] where there is no tokenizer, the grammar is none, or the model's format has no such answers.
    fn constrain(
        &self,
        constraint: &Constraint,
        prompt: Option<&Prompt>,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Matcher, Refusal>;

    /// The tokens at which a repetition ends: those that have one of these texts in them, or begin it, and then the tokens that are its rest. Where
    /// none are given, llama.cpp's. May take tenths of a second.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] where there is no tokenizer, or they are too many.
    fn breakers(&self, texts: Option<&[String]>) -> Result<Arc<Breakers>, Refusal>;

    /// Begins to make tokens. What happens is sent; the last is [`Event::Ended`] or [`Event::Failed`]. Where nobody receives any more, it ends within a
    /// step.
    ///
    /// # Errors
    /// See [`Refusal`]; then nothing is sent.
    fn start(&self, request: Request, events: UnboundedSender<Event>) -> Result<(), Refusal>;

    /// Saves, restores or erases what a sequence holds, as soon as no request is computed in it. What came of it is sent.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] where there is no folder for it; then nothing is sent.
    fn slot(
        &self,
        number: usize,
        action: SlotAction,
        done: oneshot::Sender<Result<SlotDone, Refusal>>,
    ) -> Result<(), Refusal>;

    /// Begins to make vectors of texts. What came of it is sent.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] of what makes tokens, and as for [`Model::start`]; then nothing is sent.
    fn embed(
        &self,
        request: EmbeddingRequest,
        done: oneshot::Sender<Result<Embeddings, Refusal>>,
    ) -> Result<(), Refusal>;

    /// Tells which experts are used, or gives some up. What came of it is sent, as an object: of [`ExpertsAction::Look`] the record, of
    /// [`ExpertsAction::Evict`] how many there were and their bytes.
    ///
    /// # Errors
    /// [`Refusal::Ending`]; then nothing is sent.
    fn experts(&self, action: ExpertsAction, done: oneshot::Sender<Result<Value, Refusal>>) -> Result<(), Refusal>;

    /// How it is.
    fn status(&self) -> Status;
}

/// Texts that are to become vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingRequest {
    /// The texts.
    pub inputs: Vec<EmbeddingInput>,
    /// How many of a vector's numbers are wanted, from 1 to [`Facts::dimensions`]; all where `None`.
    pub dimensions: Option<usize>,
}

/// A text.
#[derive(Clone, Debug, PartialEq)]
pub enum EmbeddingInput {
    /// As letters, which the model's tokenizer cuts, with what it wants around a text.
    Text(String),
    /// As tokens, all of them.
    Tokens(Vec<u32>),
}

/// Vectors of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    /// In the order of the texts, each of length 1.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all texts.
    pub tokens: usize,
}

/// What can be done with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertsAction {
    /// How often each was chosen, by layer.
    Look,
    /// Those that were read and are not in use are given up.
    Evict {
        /// Of this layer with experts; of all where `None`.
        layer: Option<usize>,
        /// Whether also those that were to stay are, which stay no longer then.
        pinned: bool,
    },
}

/// What can be done with what a sequence holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotAction {
    /// It is written to the file of this name.
    Save(String),
    /// It becomes what is in the file of this name.
    Restore(String),
    /// It is emptied.
    Erase,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotDone {
    /// Tokens that were written, read or erased.
    pub tokens: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

/// What is known of a model.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Its name, as requests have it.
    pub name: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Its architecture.
    pub architecture: String,
    /// Positions that a sequence can have.
    pub context: usize,
    /// Positions that it was made for.
    pub trained_context: usize,
    /// Tokens that there are.
    pub vocabulary: usize,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Numbers of a vector, where it makes vectors of texts and no tokens.
    pub dimensions: Option<usize>,
    /// Requests that are worked on at once.
    pub parallel: usize,
    /// Requests that may wait besides.
    pub queue: usize,
    /// The source of its chat template.
    pub template: Option<String>,
    /// The program's name and version.
    pub build: String,
}

/// A conversation as a prompt.
#[derive(Debug)]
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// What they say.
    pub text: String,
    /// What takes an answer apart; none where the model's answers have nothing to take apart.
    pub parser: Option<Parser>,
    /// What was said of the answer before, where it goes on with a message.
    pub begun: Option<Begun>,
}

/// What an assistant's message says so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The part that text goes on with; none where it is in a call.
    pub part: Option<Part>,
    /// Its content.
    pub content: String,
}

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// All of it.
    Text(Source),
    /// JSON that a schema describes, behind reasoning.
    Json(Value),
    /// A text that a regular expression matches as a whole, after any reasoning.
    Regex(String),
    /// One call at least of these tools, each with the schema of its parameters.
    Calls {
        /// Names and schemas.
        tools: Vec<(String, Value)>,
        /// Whether there may be more than one.
        several: bool,
        /// Form of content that may replace calls: [`Constraint::Json`] or [`Constraint::Regex`].
        otherwise: Option<Box<Constraint>>,
    },
}

impl Constraint {
    /// Whether a tool must be called.
    pub fn must_call(&self) -> bool {
        matches!(self, Constraint::Calls { otherwise: None, .. })
    }
}

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// All tokens before, one at least.
    pub tokens: Vec<u32>,
    /// Most tokens to make; as many as there is room for where `None`.
    pub limit: Option<usize>,
    /// Settings of the sampler, shared by the answers to one body.
    pub sampling: Arc<Settings>,
    /// Index of this answer among the answers to one prompt. It is added to the seed.
    pub number: u32,
    /// Texts that end the answer and are no part of it.
    pub stop: Arc<[String]>,
    /// Tokens that end the answer and are not part of it.
    pub stop_tokens: Vec<u32>,
    /// Whether tokens that end an answer are never made.
    pub ignore_end: bool,
    /// Whether the names of special tokens are a part of the text.
    pub show_special: bool,
    /// What the answer is to follow.
    pub grammar: Option<Matcher>,
    /// How many of the likeliest tokens are told with each token, and how likely it was; neither where `None`.
    pub likeliest: Option<usize>,
    /// Whether that is told of what samplers left, and not of what the model says.
    pub after_sampling: bool,
    /// Whether the request reads and writes the prompt cache.
    pub cache_prompt: bool,
}

impl Request {
    /// As many tokens as there is room for, until the model ends; without a grammar.
    pub fn new(tokens: Vec<u32>, sampling: impl Into<Arc<Settings>>) -> Request {
        Request {
            tokens,
            limit: None,
            sampling: sampling.into(),
            number: 0,
            stop: Arc::default(),
            stop_tokens: Vec::new(),
            ignore_end: false,
            show_special: false,
            grammar: None,
            likeliest: None,
            after_sampling: false,
            cache_prompt: true,
        }
    }

    /// Copies the request for each of these prompts. Check the number of prompts before.
    pub(crate) fn to_each(&self, prompts: Vec<Vec<u32>>) -> Vec<Request> {
        prompts.into_iter().map(|tokens| Request { tokens, ..self.clone() }).collect()
    }
}

/// A token, and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Likely {
    /// The token.
    pub token: u32,
    /// Its text, which need not be whole characters.
    pub bytes: Vec<u8>,
    /// The logarithm of its probability.
    pub log_probability: f32,
}

/// What has happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It is worked on: how many of its prompt's tokens did not have to be computed again.
    Begun {
        /// Those tokens.
        reused: usize,
    },
    /// Text that is certain to be a part of the answer, and how many tokens were made so far.
    Text {
        /// The text; empty where a token's is not yet certain.
        text: String,
        /// Tokens.
        made: usize,
    },
    /// How likely a token was that was made, and the likeliest, where that was asked for. Its text comes behind it.
    Likely {
        /// The token.
        token: Likely,
        /// The likeliest.
        likeliest: Vec<Likely>,
    },
    /// Of tokens that were guessed so many were computed, and so many of these made. Comes before the end, where there were any.
    Guessed {
        /// Computed.
        drafted: usize,
        /// Made.
        accepted: usize,
    },
    /// There is no more.
    Ended {
        /// Why.
        end: End,
        /// Tokens that were made.
        made: usize,
    },
    /// It failed.
    Failed {
        /// Why, for people.
        message: String,
    },
    /// The request's grammar failed during the answer.
    Refused {
        /// A message for people.
        message: String,
    },
}

/// Why there is no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The model ended.
    Model,
    /// One of the texts to stop at came up.
    Stop(String),
    /// As many tokens were made as were asked for.
    Limit,
    /// The context is full.
    Context,
}

/// Why a request is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// What was asked for is wrong.
    #[error("{message}")]
    Invalid {
        /// How, for people.
        message: String,
    },
    /// It can be done, and was not allowed when the server was started.
    #[error("{message}")]
    Unsupported {
        /// The message for people.
        message: String,
        /// The change of the server that would allow it.
        remedy: Option<Remedy>,
    },
    /// The model generates only embeddings, or only text.
    #[error("{message}")]
    OtherKind {
        /// The message for people.
        message: String,
        /// The change of the server that would allow it.
        remedy: Option<Remedy>,
    },
    /// The prompt is longer than the context.
    #[error("{message}")]
    TooLong {
        /// Its tokens, or how many they are at least where it is so long that they were not counted.
        tokens: usize,
        /// Positions of a sequence.
        context: usize,
        /// That, for people.
        message: String,
    },
    /// As many requests wait as may.
    #[error("as many requests wait as may ({waiting}); try again later")]
    Busy {
        /// How many.
        waiting: usize,
    },
    /// Other requests use a resource that this one needs.
    #[error("{message}")]
    Later {
        /// The resource, for people.
        message: String,
    },
    /// There is no such model.
    #[error("there is no model {name:?}; there are {known}")]
    NoModel {
        /// What was asked for.
        name: String,
        /// What there is, for people.
        known: String,
    },
    /// There is no memory for it as long as others are used.
    #[error("there is no room for {name} while {others} answer; try again later")]
    NoRoom {
        /// What was asked for.
        name: String,
        /// What takes the memory, for people.
        others: String,
    },
    /// It cannot be loaded.
    #[error("{name} cannot be loaded: {message}")]
    NotLoaded {
        /// What was asked for.
        name: String,
        /// Why, for people.
        message: String,
    },
    /// There is no space left on the drive.
    #[error("{message}")]
    NoSpace {
        /// A message for people.
        message: String,
    },
    /// It was begun, and failed.
    #[error("{message}")]
    Failed {
        /// Why, for people.
        message: String,
    },
    /// The client has closed the connection.
    #[error("the client has gone")]
    Gone,
    /// It is ending, or has failed.
    #[error("the server is shutting down")]
    Ending,
}

impl From<GrammarError> for Refusal {
    fn from(error: GrammarError) -> Refusal {
        let message = error.to_string();
        match error {
            GrammarError::Busy => Refusal::Later { message },
            GrammarError::Unwanted => Refusal::Gone,
            GrammarError::Failed { .. } => Refusal::Failed { message },
            _ => Refusal::Invalid { message },
        }
    }
}

impl Refusal {
    /// Refuses a request for text to an embedding model.
    pub fn no_text(model: &str) -> Refusal {
        let message = format!("{model} gives embeddings (/v1/embeddings) and no text; name another model");
        Refusal::OtherKind { message, remedy: None }
    }

    /// Refuses a request for embeddings to a text model.
    pub fn no_embeddings(model: &str) -> Refusal {
        let message = format!("{model} gives text and no embeddings; name an encoder");
        Refusal::OtherKind { message, remedy: Some(Remedy::ServeEmbeddings) }
    }

    /// Of a prompt with more tokens than a sequence has positions.
    pub fn too_long(tokens: usize, context: usize) -> Refusal {
        let message = format!("the prompt has {tokens} tokens; the context holds {context}");
        Refusal::TooLong { tokens, context, message }
    }

    /// Returns the change of the server that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Refusal::TooLong { .. } => Some(Remedy::LargerContext),
            Refusal::OtherKind { remedy, .. } | Refusal::Unsupported { remedy, .. } => *remedy,
            _ => None,
        }
    }
}

/// How a model is. Numbers of tokens and requests are since it was loaded.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Whether its thread has moved lately.
    pub alive: bool,
    /// Requests that are worked on.
    pub active: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Tokens of prompts that were computed.
    pub prompt_tokens: u64,
    /// Tokens of prompts that a sequence held already.
    pub reused_tokens: u64,
    /// Tokens that were made.
    pub made_tokens: u64,
    /// Tokens that were guessed and computed, those of them that were made, and how often some were guessed of a request.
    pub drafted_tokens: u64,
    /// See [`Status::drafted_tokens`].
    pub accepted_tokens: u64,
    /// See [`Status::drafted_tokens`].
    pub drafts: u64,
    /// Seconds of steps in which prompts were computed.
    pub prompt_seconds: f64,
    /// Seconds of the other steps.
    pub decode_seconds: f64,
    /// Steps.
    pub steps: u64,
    /// Rows of all steps.
    pub rows: u64,
    /// Requests that ended.
    pub ended: u64,
    /// Those of them that ended because as many tokens were made as were asked for, or the context was full.
    pub bounded: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests whose client went away.
    pub cancelled: u64,
    /// What each sequence holds: tokens, and whether a request is worked on.
    pub slots: Vec<Slot>,
    /// What sequences hold in memory, in bytes.
    pub states: StateBytes,
    /// Bytes in memory that are kept of prompts.
    pub kept_memory: u64,
    /// Bytes of files.
    pub kept_folder: u64,
    /// Sequences with a request, summed over all steps.
    pub busy: u64,
    /// Most tokens that a sequence has held.
    pub most_held: usize,
    /// How values are distributed.
    pub distributions: Distributions,
    /// What streamed experts did, where there are such.
    pub experts: Option<Experts>,
}

/// How long requests took, in seconds, and how large steps were.
#[derive(Clone, Debug, PartialEq)]
pub struct Distributions {
    /// From a request until it was worked on.
    pub queued: Histogram,
    /// From a request to its first token.
    pub first_token: Histogram,
    /// From each token of a request to the next.
    pub between_tokens: Histogram,
    /// From a request to its end, of those that ended.
    pub whole: Histogram,
    /// Rows of steps.
    pub rows: Histogram,
}

impl Default for Distributions {
    fn default() -> Distributions {
        let times = || Histogram::new(histogram::SECONDS);
        Distributions {
            queued: times(),
            first_token: times(),
            between_tokens: times(),
            whole: times(),
            rows: Histogram::new(histogram::ROWS),
        }
    }
}

/// What streamed experts did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Experts {
    /// Needed ones that were there.
    pub hits: u64,
    /// Those of them that had been read ahead.
    pub foreseen: u64,
    /// Needed ones that were being read.
    pub on_the_way: u64,
    /// Needed ones that were not.
    pub misses: u64,
    /// Seconds that threads waited, all together.
    pub stall_seconds: f64,
    /// Reads.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Seconds with a read outstanding.
    pub busy_seconds: f64,
}

/// A sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Tokens that it holds.
    pub cached: usize,
    /// Whether a request is worked on.
    pub active: bool,
    /// Bytes that these take.
    pub bytes: u64,
    /// How many of them lie in pages that other sequences may have, too.
    pub shared_bytes: u64,
}

/// What sequences hold in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// Bytes that are one sequence's.
    pub own: u64,
    /// Bytes of pages that several share, each counted once.
    pub shared: u64,
    /// The same, counted for each that has them.
    pub unshared: u64,
    /// Sequences that began as a copy of another.
    pub copies: u64,
    /// How many of them share nothing.
    pub whole_copies: u64,
}
