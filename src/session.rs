//! A model that runs: a plan in an engine, with its tokenizer and its conversation.
//!
//! ```
//! use std::ops::ControlFlow;
//! use ixc::session::{Progress, Request, Session, SessionOptions};
//!
//! let mut session = Session::open(None, &SessionOptions::default())?; // The demo model.
//! let tokens = session.encode_prompt("The borrow checker")?;
//! let request = Request { tokens: &tokens, limit: Some(4), sampling: ixc::runtime::sample::Settings::greedy() };
//! let generation = session.generate(&request, |_: Progress| Ok::<_, ixc::Error>(ControlFlow::Continue(())))?;
//! assert_eq!(generation.tokens.len(), 4);
//! # Ok::<(), ixc::Error>(())
//! ```

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ixc_codegen::module::CodegenError;
use ixc_frontend::template::ChatTemplate;
use ixc_frontend::tokenizer::{Tokenizer, TokenizerError};
use ixc_ir::format::Format;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, WeightFile};
use ixc_runtime::advise::Advised;
use ixc_runtime::engine::{self, BackendKind, Engine, ExpertStore};
use ixc_runtime::file::PlanFile;
use ixc_runtime::gauge::{Activity, Gauge};
use ixc_runtime::load::{self, LoadError};
use ixc_runtime::needs;
use ixc_runtime::sample::{Sampler, Settings};
use ixc_runtime::stats::Stats;
use ixc_runtime::stream::cache;
use ixc_runtime::stream::drive::Options as DriveOptions;
use ixc_runtime::stream::predict::{self, Choice, Strategy};
use ixc_runtime::stream::store::{Config, Store};
use ixc_runtime::trace::Recorder;
use ixc_targets::Target;

use crate::Error;
use crate::budget;
use crate::compile::{self, decode_tokenizer};
use crate::machine::drive;
use crate::model::{Model, check_tokens, is_plan, open_plan};
use crate::phase::Meter;
pub use crate::phase::Phase;

mod chat;
mod stop;

use chat::Chat;
pub use chat::Fitted;
pub use stop::StopStrings;

/// Positions of the KV cache where nothing is said, unless the model's context is shorter.
pub const DEFAULT_CONTEXT: usize = load::DEFAULT_CONTEXT as usize;

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// Threads; one for each core where nothing is said.
    pub threads: Option<usize>,
    /// Positions in the KV cache; the model's context, at most [`DEFAULT_CONTEXT`], where nothing is said.
    pub context: Option<usize>,
    /// Target to compile for; the machine's best where nothing is said. A plan has its own.
    pub target: Option<Target>,
    /// Whether [`Session::take_stats`] shall know tasks.
    pub stats: bool,
    /// Whether code runs in the emulator: for targets that this machine is not.
    pub emulate: bool,
    /// Whether the checksums of a plan's own weights are left unread.
    pub skip_weight_check: bool,
    /// Whether weights are packed; the target says so where nothing is said. A plan has its own.
    pub pack: Option<bool>,
    /// Bytes that the process may take. Experts that do not fit are read when they are needed. Where nothing is said, and the weights are
    /// larger than what the machine and the control group have left, it is nearly that.
    pub memory: Option<u64>,
    /// Where experts are that do not all fit. In mapped files there is no budget.
    pub experts: ExpertStore,
    /// Which experts are read ahead; by default whichever way is measured to pay. A plan has early routers or has not.
    pub prefetch: predict::Settings,
    /// Which experts are given up for others.
    pub cache: cache::Kind,
    /// Reads of streamed experts that are outstanding at once; what is known of the drive says so where nothing is said.
    pub queue_depth: Option<usize>,
    /// Who is told what happens when.
    pub trace: Option<Arc<Recorder>>,
    /// How many of a token's experts are computed one layer later, see [`compile::Options::defer`]. A plan has its own.
    pub defer: u32,
    /// The model file of a plan, for [`Session::open`], where it is neither where the plan says nor beside the plan.
    pub model_file: Option<PathBuf>,
    /// What is told how far it is: opening, packing all weights, a prompt, tokens that are timed.
    pub gauge: Option<Arc<Gauge>>,
    /// The chat template, in place of the model's own.
    pub chat_template: Option<ChatTemplate>,
}

impl SessionOptions {
    /// What is opened is a model, which has no model file besides.
    fn is_model(&self, path: &Path) -> Result<(), Error> {
        if self.model_file.is_some() { Err(Error::NotPlan { path: path.to_owned() }) } else { Ok(()) }
    }

    /// What of this a run's memory depends on, as the runtime takes it.
    fn run(&self) -> engine::Options {
        engine::Options {
            threads: self.threads,
            context: self.context.map(|context| u32::try_from(context).unwrap_or(u32::MAX)),
            memory: self.memory,
            trace: self.trace.clone(),
            gauge: self.gauge.clone(),
            ..engine::Options::default()
        }
    }
}

/// What is known of a model before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its architecture's name.
    pub architecture: String,
    /// Positions that it was made for.
    pub context: usize,
    /// Bytes of its weights as they are stored.
    pub bytes: u64,
    /// The format that most of these bytes are in, as model files name it.
    pub format: Option<Format>,
}

impl Facts {
    fn of(plan: &Plan<Kernel>) -> Facts {
        let mut formats: HashMap<Format, u64> = HashMap::new();
        for weight in &plan.weights {
            let format = weight.stored.unpacked().unwrap_or(weight.stored);
            let sum = formats.entry(format).or_default();
            *sum = sum.saturating_add(weight.bytes);
        }
        Facts {
            architecture: plan.architecture.clone(),
            context: plan.context_length as usize,
            bytes: formats.values().fold(0, |sum, bytes| sum.saturating_add(*bytes)),
            // Of equal ones always the same.
            format: formats.into_iter().max_by_key(|(format, bytes)| (*bytes, format.name())).map(|(format, _)| format),
        }
    }
}

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request<'r> {
    /// All tokens before, from the first position on.
    pub tokens: &'r [u32],
    /// Most tokens to make.
    pub limit: Option<usize>,
    /// How to choose them.
    pub sampling: Settings,
}

/// What has happened meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many tokens of the prompt are in the KV cache.
    Prefilled(usize),
    /// A token was made.
    Token(u32),
}

/// Why there are no more tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model ended with this token, which is not among those given.
    Token(u32),
    /// As many were made as were asked for.
    Limit,
    /// The KV cache is full.
    Context,
    /// The caller said so.
    Stopped,
}

/// What was generated.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Why they end.
    pub end: End,
    /// Tokens of the prompt that were not in the KV cache before.
    pub prefill: Phase,
    /// Tokens computed one by one: those made, but for the last, which nothing follows.
    pub decode: Phase,
}

/// A model that runs.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    /// What is in the KV cache.
    cached: Vec<u32>,
    tokenizer: Result<Tokenizer, TokenizerError>,
    /// Its conversation.
    chat: Chat,
    /// What is known of the model.
    facts: Facts,
    /// What is told how far it is.
    gauge: Arc<Gauge>,
    /// Tokens that were timed.
    measured: usize,
    /// The drive that experts are read from.
    drive: Option<drive::Choice>,
    /// Whether experts are deferred.
    defers: bool,
    /// The plan's model files.
    files: Vec<PathBuf>,
}

impl Session {
    /// Opens a model or a plan; the demo model where there is no path.
    ///
    /// # Errors
    /// When it is missing, malformed, not supported, or this machine cannot run it.
    pub fn open(path: Option<&Path>, options: &SessionOptions) -> Result<Session, Error> {
        let Some(path) = path else {
            options.is_model(Path::new(crate::demo::NAME))?;
            return Session::of_model(&Model::new(crate::demo::open()?)?, options);
        };
        if is_plan(path) {
            if options.defer > 0 {
                return Err(Error::PlanDefers);
            }
            let file = open_plan(path, options.model_file.as_deref())?;
            return Session::of_plan_file(file, path.parent().unwrap_or(path), options);
        }
        options.is_model(path)?;
        Session::of_model(&Model::open(path)?, options)
    }
}

impl Session {
    /// Compiles a model and loads the plan.
    ///
    /// # Errors
    /// When it cannot be compiled, or this machine cannot run it.
    pub fn of_model(model: &Model, options: &SessionOptions) -> Result<Session, Error> {
        let mut compile_options = compile::Options::default();
        if let Some(target) = options.target {
            compile_options.target = target;
        }
        compile_options.pack = options.pack;
        compile_options.predict_extra = options.prefetch.early_routers();
        compile_options.defer = options.defer;
        let (compiled, memory) = match options.experts {
            ExpertStore::Stream => budget::compile_within(model, &compile_options, &options.run())?,
            ExpertStore::Map => {
                // Kernels read experts where they are mapped, and the plan says when. Nothing is read ahead.
                let (expert_memory, pack) = (Some(0), options.pack.or(Some(false)));
                let mapped = compile::Options { expert_memory, pack, predict_extra: None, ..compile_options };
                (compile::compile(model, &mapped)?, None)
            }
        };
        Session::of_plan(compiled.plan, Path::new(""), &SessionOptions { memory, ..options.clone() })
    }

    /// Loads a plan; what it names by relative paths is looked for in `folder`.
    ///
    /// # Errors
    /// When it is malformed, its model is not there or another, or this machine cannot run it.
    pub fn of_plan(plan: Plan<Kernel>, folder: &Path, options: &SessionOptions) -> Result<Session, Error> {
        Session::of_plan_file(PlanFile { plan, weights: None }, folder, options)
    }

    /// Loads an open plan file; what it names by relative paths is looked for in `folder`.
    ///
    /// # Errors
    /// As for [`Session::of_plan`], and when its weights are damaged.
    pub fn of_plan_file(file: PlanFile, folder: &Path, options: &SessionOptions) -> Result<Session, Error> {
        let plan = &file.plan;
        if let Some(wanted) = options.target.filter(|wanted| wanted.name() != plan.target) {
            return Err(Error::OtherTarget { plan: plan.target.clone(), wanted: wanted.name() });
        }
        if options.experts == ExpertStore::Map && plan.expert_groups.is_empty() {
            return Err(Error::NoGroups);
        }
        if options.prefetch.choice == Choice::Always(Strategy::Given)
            && options.experts == ExpertStore::Stream
            && plan.expert_groups.len() > 1
            && !needs::has_early_routers(plan)?
        {
            return Err(Error::NoEarlyRouters);
        }
        let defers = needs::defers(plan);
        let files = plan.files.iter().map(|source| folder.join(&source.path)).collect();
        let facts = Facts::of(plan);
        let spec = decode_tokenizer(&plan.tokenizer)?;
        let run = options.run();
        let built_in = Some(crate::demo::built_in());
        let memory = match options.experts {
            ExpertStore::Stream => match options.memory {
                Some(memory) => Some(memory),
                None => budget::of_plan(plan, &run)?,
            },
            ExpertStore::Map => None,
        };
        let experts = memory.and_then(|_| experts_file(&file, folder));
        let drive = experts.map(|path| drive::choose(&path, options.queue_depth));
        let mut stream = Config { policy: options.cache, ..Config::default() };
        if let Some(drive) = &drive {
            stream.drive = DriveOptions::of_depth(drive.depth);
        }
        let engine_options = engine::Options {
            built_in,
            skip_weight_check: options.skip_weight_check,
            stats: options.stats,
            backend: if options.emulate { BackendKind::Emulated } else { BackendKind::Native },
            memory,
            experts: options.experts,
            stream,
            prefetch: options.prefetch,
            ..run
        };
        let engine = Engine::load_file(file, folder, &engine_options).map_err(|error| match error {
            LoadError::Codegen(source) if matches!(*source, CodegenError::MissingFeatures { .. }) => {
                Error::NeedsCpu { source }
            }
            error => error.into(),
        })?;
        let tokenizer = Tokenizer::new(&spec);
        let template = options.chat_template.as_ref().map(|template| template.source().to_owned());
        Ok(Session {
            engine,
            cached: Vec::new(),
            tokenizer,
            chat: Chat::new(template.or(spec.chat_template)),
            facts,
            gauge: options.gauge.clone().unwrap_or_default(),
            measured: 0,
            drive,
            defers,
            files,
        })
    }

    /// Model files that it reads, besides a plan. The demo model is none.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Whether experts are deferred, so that what is missed says little of the model's routing: a prompt reads some of them twice.
    pub fn defers(&self) -> bool {
        self.defers
    }

    /// Its tokenizer.
    ///
    /// # Errors
    /// When the model has none, or one that is not supported.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.tokenizer.as_ref().map_err(|reason| Error::NoTokenizer { reason: reason.to_string() })
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.engine.threads()
    }

    /// What its kernels were generated for.
    pub fn target(&self) -> Target {
        self.engine.target()
    }

    /// Packs all weights that are to be packed, now and not when a step first needs them: for measuring steps.
    ///
    /// # Errors
    /// When a thread fails.
    pub fn pack_weights(&mut self) -> Result<(), Error> {
        Ok(self.engine.pack_weights()?)
    }

    /// Words that logits are of.
    pub fn vocabulary(&self) -> usize {
        self.engine.vocabulary() as usize
    }

    /// The weight store, where experts are streamed.
    pub fn stream(&self) -> Option<&Store> {
        self.engine.stream()
    }

    /// What the page cache was told, where experts stay in mapped files.
    pub fn advised(&self) -> Option<Advised> {
        self.engine.advised()
    }

    /// How predicting experts did, where they are streamed.
    pub fn predictions(&self) -> Option<predict::Report> {
        self.engine.predictions()
    }

    /// What is known of the drive that experts are read from, and the depth that is used.
    pub fn drive(&self) -> Option<&drive::Choice> {
        self.drive.as_ref()
    }

    /// Where the time went since the last call.
    pub fn take_stats(&mut self) -> Stats {
        self.engine.take_stats()
    }

    /// Positions of the KV cache.
    pub fn context(&self) -> usize {
        self.engine.context() as usize
    }

    /// Positions that the model was made for.
    fn model_context(&self) -> usize {
        self.facts.context
    }

    /// What is known of the model.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// A prompt as tokens, with BOS where the model wants it. Names of special tokens are those tokens.
    ///
    /// # Errors
    /// When there is no tokenizer, or it has no tokens for the text.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>, Error> {
        let tokenizer = self.tokenizer()?;
        self.check_prompt(prompt)?;
        Ok(with_bos(tokenizer, tokenizer.encode(prompt, true)?))
    }

    /// Refuses a text that does not fit into the context however few tokens it may be, before any time or memory goes into it.
    fn check_prompt(&self, prompt: &str) -> Result<(), Error> {
        let (context, longest) = (self.context(), self.tokenizer()?.longest_token());
        let bytes = prompt.len();
        match bytes > context.saturating_mul(longest) {
            true => Err(Error::Prompt { bytes, context, longest, model: self.model_context() }),
            false => Ok(()),
        }
    }

    /// Makes tokens. What the KV cache holds of the request's tokens already is not computed again. `progress` is called
    /// after each part of the prompt and for each token, and may stop it.
    ///
    /// # Errors
    /// When the tokens are none of this model's, or do not fit into the context; and those of `progress`.
    pub fn generate<E: From<Error>>(
        &mut self,
        request: &Request<'_>,
        mut progress: impl FnMut(Progress) -> Result<ControlFlow<()>, E>,
    ) -> Result<Generation, E> {
        let mut sampler = Sampler::new(request.sampling.clone()).map_err(Error::from)?;
        let ends: Vec<u32> = self.tokenizer.as_ref().map(Tokenizer::end_of_generation).unwrap_or_default();
        self.check(request.tokens)?;
        request.tokens.iter().for_each(|&token| sampler.accept(token));
        let mut generation =
            Generation { tokens: Vec::new(), end: End::Limit, prefill: Phase::default(), decode: Phase::default() };

        // The last token is always computed: its logits are wanted.
        let reused = self.cached.iter().zip(request.tokens).take_while(|(a, b)| a == b).count();
        let reused = reused.min(request.tokens.len() - 1);
        self.truncate(reused);
        let meter = Meter::new(&self.engine);
        self.gauge.begin(Activity::Prompt, (request.tokens.len() - reused) as u64);
        for part in request.tokens[reused..].chunks(self.max_tokens()) {
            self.feed(part)?;
            generation.prefill = meter.phase(generation.prefill.tokens + part.len(), &self.engine);
            if progress(Progress::Prefilled(self.cached.len()))?.is_break() {
                generation.end = End::Stopped;
                return Ok(generation);
            }
        }

        let meter = Meter::new(&self.engine);
        while request.limit.is_none_or(|limit| generation.tokens.len() < limit) {
            let token = sampler.sample(self.engine.logits(0), &self.engine).map_err(Error::from)?;
            if ends.contains(&token) {
                generation.end = End::Token(token);
                break;
            }
            generation.tokens.push(token);
            if progress(Progress::Token(token))?.is_break() {
                generation.end = End::Stopped;
                break;
            }
            if generation.tokens.len() < request.limit.unwrap_or(usize::MAX) {
                if self.cached.len() == self.context() {
                    generation.end = End::Context;
                    break;
                }
                self.feed(&[token])?;
                generation.decode.tokens += 1;
            }
            generation.decode = meter.phase(generation.decode.tokens, &self.engine);
        }
        Ok(generation)
    }

    /// Logits at every position, `[tokens, vocabulary]`, from an empty KV cache.
    ///
    /// # Errors
    /// When the tokens are none of this model's, or do not fit into the context.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.check(tokens)?;
        self.truncate(0);
        let mut logits = Vec::new();
        self.gauge.begin(Activity::Prompt, tokens.len() as u64);
        for part in tokens.chunks(self.max_tokens()) {
            let rows: Vec<u32> = (0..part.len() as u32).collect();
            logits.extend_from_slice(self.engine.step(part, &rows)?);
            self.gauge.add(part.len() as u64);
        }
        self.cached = tokens.to_vec();
        Ok(logits)
    }

    /// Times the prefill of `tokens` tokens behind `depth` others, which are computed before and do not count.
    ///
    /// # Errors
    /// When they do not fit into the context.
    pub fn time_prefill(&mut self, depth: usize, tokens: usize) -> Result<Phase, Error> {
        let tokens = self.descend(depth, tokens)?;
        self.gauge.begin(Activity::Prompt, tokens.len() as u64);
        let meter = Meter::new(&self.engine);
        for part in tokens.chunks(self.max_tokens()) {
            self.feed(part)?;
        }
        Ok(meter.phase(tokens.len(), &self.engine))
    }

    /// Times the decode of `tokens` tokens, one after the other, behind `depth` others, which do not count.
    ///
    /// # Errors
    /// When they do not fit into the context.
    pub fn time_decode(&mut self, depth: usize, tokens: usize) -> Result<Phase, Error> {
        let tokens = self.descend(depth, tokens)?;
        self.gauge.begin(Activity::Tokens, tokens.len() as u64);
        let meter = Meter::new(&self.engine);
        tokens.iter().try_for_each(|token| self.feed(&[*token]))?;
        Ok(meter.phase(tokens.len(), &self.engine))
    }

    /// Brings `depth` tokens into the KV cache, those that are there already left as they are; the `tokens` that come next.
    fn descend(&mut self, depth: usize, tokens: usize) -> Result<Vec<u32>, Error> {
        let before = self.some_tokens(0, depth);
        // Other ones each time: experts that were streamed for the last ones are no help to these.
        let next = self.some_tokens(depth.saturating_add(self.measured), tokens);
        self.measured = self.measured.saturating_add(tokens);
        self.check(&[&before[..], &next].concat())?;
        let there = self.cached.iter().zip(&before).take_while(|(a, b)| a == b).count();
        self.truncate(there);
        self.gauge.begin(Activity::Prompt, (depth - there) as u64);
        for part in before[there..].chunks(self.max_tokens()) {
            self.feed(part)?;
        }
        Ok(next)
    }

    /// Tokens that differ from each other, so that routers choose as they do for text: `count` of a fixed sequence from `first` on.
    fn some_tokens(&self, first: usize, count: usize) -> Vec<u32> {
        // Knuth's multiplicative hash.
        let hash = |index: u64| index.wrapping_add(1).wrapping_mul(2_654_435_761) >> 7;
        let vocabulary = u64::from(self.engine.vocabulary()).max(1);
        (0..count as u64).map(|index| (hash(index.wrapping_add(first as u64)) % vocabulary) as u32).collect()
    }

    fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        check_tokens(tokens, self.engine.vocabulary().into())?;
        match self.context() {
            context if tokens.len() > context => {
                Err(Error::Context { tokens: tokens.len(), context, model: self.model_context() })
            }
            _ => Ok(()),
        }
    }

    fn truncate(&mut self, len: usize) {
        // No longer than the context, which is a u32.
        self.engine.truncate(len as u32);
        self.cached.truncate(len);
    }

    /// Tokens of a step.
    fn max_tokens(&self) -> usize {
        self.engine.max_tokens() as usize
    }

    /// Computes at most a step of tokens behind what is cached; the logits of the last stay in the engine.
    fn feed(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.engine.prefill(tokens)?;
        self.cached.extend_from_slice(tokens);
        self.gauge.add(tokens.len() as u64);
        Ok(())
    }
}

/// The tokens of a prompt, behind BOS where the model wants it.
fn with_bos(tokenizer: &Tokenizer, mut tokens: Vec<u32>) -> Vec<u32> {
    if let Some(bos) = tokenizer.add_bos().filter(|bos| tokens.first() != Some(bos)) {
        tokens.insert(0, bos);
    }
    tokens
}

/// The file that most experts of a plan lie in, if it says when they are needed and that is a file.
fn experts_file(file: &PlanFile, folder: &Path) -> Option<PathBuf> {
    let plan = &file.plan;
    let own = || file.weights.as_ref().map(|own| own.place().0);
    let mut bytes: HashMap<PathBuf, u64> = HashMap::new();
    for weight in plan.expert_groups.iter().flat_map(|group| &group.weights) {
        let weight = plan.weights.get(*weight as usize)?;
        let path = match weight.file {
            WeightFile::Source(number) => plan.files.get(number as usize).map(|source| folder.join(&source.path)),
            WeightFile::Plan | WeightFile::Blocks { .. } => own(),
        };
        let sum = bytes.entry(path?).or_default();
        *sum = sum.saturating_add(weight.bytes);
    }
    // The demo model is no file.
    bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(path, _)| path).filter(|path| path.is_file())
}
