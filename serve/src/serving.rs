//! Loaded models for a server. One thread computes the requests of many clients together.
//!
//! ```text
//! connections ──start──▶ queue ──▶ the engine's thread (`thread`): steps of `tokens` or `vectors`
//!      ▲                                     │
//!      └──────────── text, end ──────────────┘
//! ```

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::model::{
    Constraint, EmbeddingInput, EmbeddingRequest, Embeddings, ExpertsAction, ModelFacts, Refusal, SlotAction, Status,
};
use ixc_failure::Remedy;
use ixc_grammar::{GrammarError, Matcher, Vocabulary};
use ixc_ir::plan::{Output, Pooling};
use ixc_runtime::engine::StepError;
use ixc_runtime::sample;
use ixc_text::chat::{Format, Parser, format_of};
use ixc_text::template::{ChatTemplate, Conversation, Demand, TemplateError};
use ixc_text::tokenizer::Tokenizer;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::Error;
use ixc_compile::Error as CompileError;
use ixc_compile::build;
use ixc_generate::Error as GenerationError;
use ixc_generate::chat::{self, ChatPrompt, PromptMaker, ToolUse};
use ixc_generate::embedding::Embedder;
use ixc_generate::expert_use::ExpertUse;
use ixc_generate::generator::{ContextShift, Event, Generator, Request, SlotSize};
use ixc_generate::loaded_model::{self, LoadedModel};
use ixc_generate::prompt_cache;
use ixc_generate::session;
use ixc_generate::speculate::Speculation;
use thread::{EmbeddingTexts, LogitsRequest, Message, Reply, Shared, SlotRequest, Submission};

mod handle;
mod kind;
mod rank_watch;
mod registry;
#[cfg(test)]
pub(crate) mod scripted;
mod thread;
mod tokens;
mod vectors;

pub use handle::{Handle, PollResult};
pub use kind::gives_embeddings;
pub use registry::{ModelEntry, ModelQuery, ModelSource, Registry};

/// Error for a request for text to an embedding model.
const NO_TEXT_MESSAGE: &str = "this model gives embeddings and no text";

/// Time without a status update after which the thread counts as stuck. A prefill step on a slow
/// machine takes seconds.
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// Options of a served model.
#[derive(Clone, Debug, Default)]
pub struct ServingOptions {
    /// The model's name in requests.
    pub name: String,
    /// Max number of waiting requests.
    pub queue: usize,
    /// Template that replaces the model's template.
    pub template: Option<ChatTemplate>,
    /// Program that renders templates; see [`chat::ChatOptions::renderer`].
    pub renderer: Option<PathBuf>,
    /// Program of the helper that compiles grammars first; see [`Vocabulary::with_helper`]. Without
    /// it, a compiler that overflows its stack ends this process.
    pub compiler: Option<PathBuf>,
    /// Folder for saved sequences; `None` forbids saving.
    pub slot_folder: Option<PathBuf>,
    /// Options of the prompt cache; `None` without one.
    pub prompts: Option<prompt_cache::PromptCacheOptions>,
    /// Limit of prompt tokens in a step that also generates tokens. The default is
    /// [`PROMPT_ROWS`](ixc_generate::generator::PROMPT_ROWS).
    pub prompt_rows: Option<usize>,
    /// Way to continue a request with a full context; `None` ends it.
    pub shift: Option<ContextShift>,
    /// Whether the oldest turns of a conversation are dropped if it is too long.
    pub drops_turns: bool,
    /// Pooling of hidden states that replaces the model's pooling. Embedding models only.
    pub pooling: Option<Pooling>,
}

/// Loaded model of a server. Many threads call its methods at once, and no method waits for tokens.
#[derive(Debug)]
pub struct Host {
    facts: ModelFacts,
    tokenizer: Option<Arc<Tokenizer>>,
    template: Option<ChatTemplate>,
    options: ServingOptions,
    /// The tokens in the form that grammars need; created for the first grammar.
    vocabulary: OnceLock<Result<Vocabulary, GrammarError>>,
    /// Default DRY sequence breakers.
    breakers: OnceLock<Arc<sample::Breakers>>,
    submissions: Sender<Message>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<ExpertUse>>>,
}

impl Host {
    /// Starts the model's thread. `speculation` turns speculative decoding on.
    ///
    /// # Errors
    /// When the template is malformed, or the system refuses memory or a thread;
    /// [`GenerationError::NoSpeculation`] if the model does not support speculation.
    pub fn new(model: LoadedModel, speculation: Option<Speculation>, options: ServingOptions) -> Result<Host, Error> {
        let own = || model.chat_template().map(ChatTemplate::from_source).transpose();
        let template = options.template.clone().map_or_else(own, |template| Ok(Some(template)))?;
        let tokenizer = model.shared_tokenizer().ok().cloned();
        let of = model.facts();
        let facts = ModelFacts {
            name: options.name.clone(),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
            architecture: of.architecture.clone(),
            context: model.longest_text(),
            trained_context: of.context,
            vocabulary: model.vocabulary(),
            bos: tokenizer.as_ref().and_then(|tokenizer| tokenizer.bos()),
            eos: tokenizer.as_ref().and_then(|tokenizer| tokenizer.eos()),
            bytes: of.bytes,
            dimensions: match model.engine().output() {
                Output::Logits { .. } | Output::Experts { .. } => None,
                Output::Hidden { width, .. } => Some(width as usize),
            },
            parallel: model.engine().sequences() as usize,
            queue: options.queue,
            template: template.as_ref().map(|template| template.source().to_owned()),
            build: format!("ixc {}", build::version()),
        };
        // If both folders were one, prompt cache files and saved sequences would be mixed. Files of
        // one kind would be removed for the other.
        let canonical = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let cache_folder = options.prompts.as_ref().and_then(|prompts| prompts.folder.as_ref());
        let is_cache_folder = |path: &&PathBuf| cache_folder.is_some_and(|folder| canonical(folder) == canonical(path));
        if let Some(path) = options.slot_folder.as_ref().filter(is_cache_folder) {
            return Err(Error::SameFolder { path: path.clone() });
        }
        if facts.dimensions.is_some() {
            let embedder = Embedder::new(model, options.pooling)?;
            return Host::with_thread(facts, tokenizer, template, options, |shared, incoming| {
                thread::run(vectors::Worker::new(embedder, shared), shared, incoming)
            });
        }
        let mut generator = Generator::new(model)?;
        if let Some(prompts) = &options.prompts {
            generator.enable_prompt_cache(prompts.clone())?;
        }
        options.prompt_rows.into_iter().for_each(|rows| generator.limit_prompt_rows(rows));
        generator.set_context_shift(options.shift);
        speculation.map_or(Ok(()), |speculation| generator.speculate(speculation))?;
        let folder = options.slot_folder.clone();
        Host::with_thread(facts, tokenizer, template, options, move |shared, incoming| {
            thread::run(tokens::Worker::new(generator, shared, folder), shared, incoming)
        })
    }

    /// Creates a host whose messages go to a thread that runs `work`.
    ///
    /// # Errors
    /// When the system refuses a thread.
    fn with_thread(
        facts: ModelFacts,
        tokenizer: Option<Arc<Tokenizer>>,
        template: Option<ChatTemplate>,
        options: ServingOptions,
        work: impl FnOnce(&Shared, &Receiver<Message>) -> ExpertUse + Send + 'static,
    ) -> Result<Host, Error> {
        let shared = Arc::new(Shared {
            status: Mutex::new((Status { is_alive: true, ..Status::default() }, Instant::now())),
            waiting: AtomicUsize::new(0),
            failure: OnceLock::new(),
        });
        let (submissions, incoming) = channel();
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("engine".into()).spawn(move || work(&of_thread, &incoming));
        let thread = Mutex::new(Some(thread.map_err(Error::io(Path::new("a thread"), "start"))?));
        let (vocabulary, breakers) = (OnceLock::new(), OnceLock::new());
        Ok(Host { facts, tokenizer, template, options, vocabulary, breakers, submissions, shared, thread })
    }

    /// Refuses requests for text to an embedding model.
    fn check_text_model(&self) -> Result<(), Refusal> {
        if self.facts.dimensions.is_some() { Err(Refusal::no_text(&self.facts.name)) } else { Ok(()) }
    }

    fn tokenizer(&self) -> Result<&Tokenizer, Refusal> {
        self.tokenizer.as_deref().ok_or_else(|| invalid("the model has no tokenizer that is supported"))
    }

    /// Encodes a text, between BOS and EOS if the model needs them.
    fn encode_with_ends(&self, text: &str) -> Result<Vec<u32>, Refusal> {
        let tokens = self.encode(text, false, true)?;
        Ok(loaded_model::with_ends(self.tokenizer()?, tokens))
    }

    /// Returns the format of an answer under a constraint, for prompts whose conversation does not
    /// set it.
    fn format(&self, constraint: Option<&Constraint>) -> &'static Format {
        let own = format_of(self.template.as_ref().map_or("", ChatTemplate::source));
        if matches!(constraint, Some(Constraint::Calls { .. })) { own.for_calls() } else { own }
    }

    /// Makes the prompt of a conversation. The prompt describes tools as text if the template
    /// ignores them, or if its format of calls cannot be enforced.
    fn whole_prompt(
        &self,
        conversation: &Conversation,
        constraint: Option<&Constraint>,
    ) -> Result<ChatPrompt, Refusal> {
        let tools = ToolUse {
            is_enforced: matches!(constraint, Some(Constraint::Calls { .. })),
            demand: if constraint.is_some_and(Constraint::must_call) { Demand::Call } else { Demand::Maybe },
        };
        let maker = PromptMaker {
            tokenizer: self.tokenizer()?,
            template: self.template.as_ref().ok_or_else(|| invalid(GenerationError::NoTemplate))?,
            renderer: self.options.renderer.as_deref(),
            context: self.facts.context,
            trained_context: self.facts.trained_context,
        };
        maker.prompt(conversation, tools).map_err(encode_refusal)
    }
}

fn invalid(message: impl ToString) -> Refusal {
    Refusal::Invalid { message: message.to_string() }
}

/// Converts an error of encoding a text, such as a text that is too long.
fn encode_refusal(error: GenerationError) -> Refusal {
    let message = error.to_string();
    match error {
        GenerationError::Prompt { bytes, context, longest, .. } => {
            Refusal::TooLong { tokens: bytes.div_ceil(longest.max(1)), context, message }
        }
        GenerationError::Compile(CompileError::Context { tokens, context, .. }) => Refusal::too_long(tokens, context),
        // The server caused the fault, not the request.
        GenerationError::Template(TemplateError::Start { .. } | TemplateError::Failed { .. }) => {
            Refusal::Failed { message }
        }
        _ => Refusal::Invalid { message },
    }
}

impl Host {
    /// Returns the model's facts.
    pub fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    /// Converts text to tokens. `add_special` adds the tokens that the model takes before a prompt;
    /// `parse_special` reads names of special tokens as those tokens.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if there is no tokenizer, or it has no tokens for the text.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, Refusal> {
        let tokenizer = self.tokenizer()?;
        let ModelFacts { context, trained_context, .. } = self.facts;
        loaded_model::check_prompt(tokenizer, context, trained_context, text).map_err(encode_refusal)?;
        let tokens = tokenizer.encode(text, parse_special).map_err(invalid)?;
        Ok(if add_special { loaded_model::with_bos(tokenizer, tokens) } else { tokens })
    }

    /// Converts tokens to text; invalid UTF-8 is replaced.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if there is no such token.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, Refusal> {
        self.tokenizer()?.decode(tokens).map_err(invalid)
    }

    /// Returns the bytes of a token's text; none if there is no such token.
    pub(crate) fn token_bytes(&self, token: u32) -> &[u8] {
        self.tokenizer.as_deref().and_then(|tokenizer| tokenizer.token_bytes(token).ok()).unwrap_or_default()
    }

    /// Makes a prompt from a conversation, for an answer with this constraint. If tools must be
    /// called but the template has no form of calls, the prompt describes the calls. May take long
    /// and starts a process, so do not call this on a thread that others wait for.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if there is no template, or it does not accept the conversation.
    pub fn prompt(&self, conversation: &Conversation, constraint: Option<&Constraint>) -> Result<ChatPrompt, Refusal> {
        self.check_text_model()?;
        if !self.options.drops_turns {
            return self.whole_prompt(conversation, constraint);
        }
        let said = conversation.messages.iter().enumerate();
        let turns: Vec<usize> = said.filter(|(_, message)| message.role == chat::USER).map(|(at, _)| at).collect();
        let first = turns.first().copied().unwrap_or(0);
        let most = self.facts.context - chat::answer_room(self.facts.context);
        let without = |dropped: usize| {
            let from = turns.get(dropped).copied().unwrap_or(first);
            let messages = [&conversation.messages[..first], &conversation.messages[from..]].concat();
            match self.whole_prompt(&Conversation { messages, ..conversation.clone() }, constraint) {
                // Too long to tokenize; fewer turns may be short enough.
                Err(error @ (Refusal::Invalid { .. } | Refusal::TooLong { .. })) if dropped + 1 < turns.len() => {
                    Ok(Err(error))
                }
                other => other.map(Ok),
            }
        };
        let fits = |rest: &Result<ChatPrompt, Refusal>| rest.as_ref().is_ok_and(|prompt| prompt.tokens.len() <= most);
        let (_, prompt) = chat::fewest_dropped(turns.len(), without, fits)?;
        prompt.map(|prompt| prompt.with_ids_after(&conversation.messages))
    }

    /// Compiles the grammar of an answer under a constraint. For an answer to a conversation,
    /// `prompt` is the prompt of the conversation. May take seconds. Ends soon after `is_wanted`
    /// returns false.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if there is no tokenizer, the grammar is invalid, or the model's format
    /// cannot have such answers.
    pub fn constrain(
        &self,
        constraint: &Constraint,
        prompt: Option<&ChatPrompt>,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Matcher, Refusal> {
        let tokenizer = self.tokenizer()?;
        let vocabulary = || {
            let own = Vocabulary::new(tokenizer);
            own.map(|own| match &self.options.compiler {
                Some(program) => own.with_helper(program.clone()),
                None => own,
            })
        };
        let vocabulary = self.vocabulary.get_or_init(vocabulary).as_ref().map_err(invalid)?;
        let format = prompt.and_then(|prompt| prompt.parser.as_ref());
        let format = format.map_or_else(|| self.format(Some(constraint)), Parser::format);
        let answer = crate::constraint::answer_grammar(constraint, format, prompt, tokenizer).map_err(invalid)?;
        // The grammar also describes the answer's prefix, which is in the prompt already.
        let prefix = tokenizer.encode(&answer.prefix, false).map_err(invalid)?;
        Ok(vocabulary.matcher_after(&answer.source, &prefix, is_wanted)?)
    }

    /// Returns the DRY sequence breakers for these texts: tokens that contain a text, and tokens
    /// that begin a text, with the tokens that may complete it. Without texts, llama.cpp's default
    /// breakers are used. May take tenths of a second.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if there is no tokenizer, or the texts have too many tokens.
    pub fn breakers(&self, texts: Option<&[String]>) -> Result<Arc<sample::Breakers>, Refusal> {
        let tokenizer = self.tokenizer()?;
        match texts {
            Some(texts) => session::breakers(tokenizer, texts).map(Arc::new).map_err(invalid),
            None => {
                let own = || Arc::new(session::breakers(tokenizer, &session::DRY_BREAKERS).unwrap_or_default());
                Ok(Arc::clone(self.breakers.get_or_init(own)))
            }
        }
    }

    /// Begins to generate tokens. Sends all events to `events`, except [`Event::Computed`] and
    /// [`Event::Shifted`]. The last event is [`Event::Ended`] or [`Event::Failed`]. Generation ends
    /// within a step after the receiver is dropped.
    ///
    /// # Errors
    /// See [`Refusal`]; no event is sent then.
    pub fn start(&self, mut request: Request, events: UnboundedSender<Event>) -> Result<(), Refusal> {
        self.check_text_model()?;
        let (tokens, context) = (request.tokens.len(), self.facts.context);
        if tokens > context {
            return Err(Refusal::too_long(tokens, context));
        }
        ixc_compile::model::check_tokens(&request.tokens, self.facts.vocabulary as u64).map_err(invalid)?;
        // With context shifts, the context never ends an answer.
        request.limit = request.limit.or(self.options.shift.map(|_| context));
        let waiting = self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        let free = self.status().slots.iter().filter(|slot| !slot.has_request).count();
        let refused = if waiting >= self.options.queue.saturating_add(free) {
            Some(Refusal::Busy { waiting: self.options.queue })
        } else {
            let message = Message::Request(Box::new(Submission { request, events, time: Instant::now() }));
            self.submissions.send(message).is_err().then_some(Refusal::Ending)
        };
        match refused {
            None => Ok(()),
            Some(refusal) => {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                Err(refusal)
            }
        }
    }

    /// Saves, restores or erases the state of a sequence, as soon as no request runs in it. Sends
    /// the result to `done`.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] if the server has no folder for states; nothing is sent then.
    pub fn slot(&self, number: usize, action: SlotAction, done: Reply<SlotSize>) -> Result<(), Refusal> {
        if self.options.slot_folder.is_none() {
            let message = "saving of sequences is off".to_owned();
            return Err(Refusal::Unsupported { message, remedy: Some(Remedy::SlotFolder) });
        }
        self.submissions.send(Message::Slot(SlotRequest { number, action, done })).map_err(|_| Refusal::Ending)
    }

    /// Begins to compute embeddings of texts. Sends the result to `done`.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] for a text model, and the errors of [`Host::start`]; nothing is
    /// sent then.
    pub fn embed(&self, request: EmbeddingRequest, done: Reply<Embeddings>) -> Result<(), Refusal> {
        if self.facts.dimensions.is_none() {
            return Err(Refusal::no_embeddings(&self.facts.name));
        }
        let EmbeddingRequest { inputs, dimensions } = request;
        let tokens = inputs.into_iter().map(|input| {
            if done.is_closed() {
                return Err(Refusal::Gone);
            }
            let tokens = match input {
                EmbeddingInput::Text(text) => self.encode_with_ends(&text)?,
                EmbeddingInput::Tokens(tokens) => tokens,
            };
            let (count, context) = (tokens.len(), self.facts.context);
            ixc_compile::model::check_tokens(&tokens, self.facts.vocabulary as u64).map_err(invalid)?;
            if count > context { Err(Refusal::too_long(count, context)) } else { Ok(tokens) }
        });
        let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
        let waiting = self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        let refused = if waiting >= self.options.queue.saturating_add(self.facts.parallel) {
            Some(Refusal::Busy { waiting: self.options.queue })
        } else {
            let message = Message::Embed(EmbeddingTexts { tokens, dimensions, done });
            self.submissions.send(message).is_err().then_some(Refusal::Ending)
        };
        refused.map_or(Ok(()), |refusal| {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            Err(refusal)
        })
    }

    /// Reports the use of experts, or evicts some experts. Sends the result to `done` as an object:
    /// the record for [`ExpertsAction::Look`], the number of experts and their bytes for
    /// [`ExpertsAction::Evict`].
    ///
    /// # Errors
    /// [`Refusal::Ending`]; nothing is sent then.
    pub fn experts(&self, action: ExpertsAction, done: Reply<Value>) -> Result<(), Refusal> {
        self.submissions.send(Message::Experts(action, done)).map_err(|_| Refusal::Ending)
    }

    /// Returns the model's status.
    pub fn status(&self) -> Status {
        let (status, beat) = &*self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let is_alive = thread.as_ref().is_some_and(|thread| !thread.is_finished()) && beat.elapsed() < STUCK_AFTER;
        Status { is_alive, waiting: self.shared.waiting.load(Ordering::Relaxed), ..status.clone() }
    }

    /// Returns the reason why the model can compute no further step: its group of ranks has ended.
    pub fn failure(&self) -> Option<&StepError> {
        self.shared.failure.get()
    }

    /// Returns the max number of requests that are computed at once.
    pub fn parallel(&self) -> usize {
        self.facts.parallel
    }

    /// Begins to compute the logits at every position, `[tokens, vocabulary]`, in a sequence
    /// without a request. Sends the result to `done`.
    ///
    /// # Errors
    /// [`Refusal::OtherKind`] for an embedding model. [`Refusal::TooLong`] and
    /// [`Refusal::Invalid`] for tokens that the model cannot take. [`Refusal::Ending`]. Nothing is
    /// sent then.
    pub fn logits(&self, tokens: Vec<u32>, done: oneshot::Sender<Result<Vec<f32>, Refusal>>) -> Result<(), Refusal> {
        self.check_text_model()?;
        if tokens.len() > self.facts.context {
            return Err(Refusal::too_long(tokens.len(), self.facts.context));
        }
        ixc_compile::model::check_tokens(&tokens, self.facts.vocabulary as u64).map_err(invalid)?;
        self.submissions.send(Message::Logits(LogitsRequest { tokens, done })).map_err(|_| Refusal::Ending)
    }

    /// Ends the thread after the current requests, and waits until the prompt cache is written.
    /// Returns the expert use on the first call.
    pub fn end(&self) -> Option<ExpertUse> {
        // Clones of the sender may still exist, but no further message is sent.
        let _ = self.submissions.send(Message::End);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ended = thread?.join();
        ended.inspect_err(|_| tracing::error!("the engine's thread has failed")).ok()
    }
}
