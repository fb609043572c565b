//! A model that runs: a plan in an engine, with its tokenizer. [`Chat`](crate::chat::Chat) makes prompts of conversations.
//!
//! ```
//! use std::ops::ControlFlow;
//! use ixc::session::{Progress, Request, Session, SessionOptions};
//!
//! let mut session = Session::open(None, &SessionOptions::default())?; // The demo model.
//! let tokens = session.encode_prompt("The borrow checker")?;
//! let greedy = ixc::runtime::sample::Settings::greedy();
//! let request = Request { limit: Some(4), ..Request::new(&tokens, greedy) };
//! let generation = session.generate(&request, |_: Progress| Ok::<_, ixc::Error>(ControlFlow::Continue(())))?;
//! assert_eq!(generation.tokens.len(), 4);
//! # Ok::<(), ixc::Error>(())
//! ```

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ixc_files::open_regular;
use ixc_frontend::arch::{Nextn, Parts};
use ixc_frontend::tokenizer::{Tokenizer, TokenizerError};
use ixc_grammar::Matcher;
use ixc_ir::format::Format;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{MAX_OUTPUTS, Output, Plan};
use ixc_runtime::engine::{self, Addition, Engine, EvictError, ExpertStore, FIRST, SequenceId};
use ixc_runtime::file::PlanFile;
use ixc_runtime::gauge::{Activity, Gauge};
use ixc_runtime::load::{self, LoadError};
use ixc_runtime::memory_estimate;
use ixc_runtime::sample::{Sampler, SamplerState, Settings};
use ixc_runtime::saved::SavedError;
use ixc_runtime::stats::Stats;
use ixc_runtime::stream::predict::{Choice, Strategy};
use ixc_runtime::stream::store::Evicted;
use ixc_targets::Target;

use crate::Error;
use crate::budget;
use crate::compile::{self, decode_tokenizer};
use crate::machine::drive;
use crate::masks::{Budget, Masks};
use crate::model::{Model, check_tokens, is_plan, open_plan};
use crate::speculate::{Seen, Speculation, Tally, Text};
use crate::timing::Meter;
pub use crate::timing::Phase;
pub use ixc_runtime::saved::Loaded;

/// What a plan says, whatever options say: [`Error::PlanSays`].
pub const DEFERRED: &str = "which experts are deferred";
const PASSES: &str = "what passes make of the model";
const START: &str = "what all passes made of the model";
/// What of tuned choices a plan has.
const TUNED: &str = "how weights are cut";
/// How long its steps are.
pub(crate) const ROWS: &str = "how many rows a step has";

mod breakers;
mod open;
mod stop;

pub use breakers::{DRY_BREAKERS, breakers};
pub(crate) use open::{compile_for, engine_options, is_for, not_loaded};
pub use stop::StopStrings;

/// Positions of the KV cache where nothing is said, unless the model's context is shorter.
pub const DEFAULT_CONTEXT: usize = load::DEFAULT_CONTEXT as usize;

/// How to run: what each layer below reads, whole.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// How a model is compiled, within [`engine::Options::memory`]. A plan was: only a target that is not its own is an error, and experts to
    /// be deferred are.
    pub compile: compile::Options,
    /// How its plan is run. Where nothing is said of memory, and the weights are larger than what the machine and the control group have
    /// left, it is nearly that.
    pub run: engine::Options,
    /// Whether it is for embeddings: then a model is compiled without its output matrix, and its steps give hidden states. A plan was compiled so, or is
    /// an error.
    pub embeddings: bool,
    /// Whether the model's own layers guess what follows: then it gives hidden states of all tokens, or is such a layer alone
    /// ([`crate::own_layer`]). A plan has neither.
    pub nextn: Nextn,
    /// Reads of streamed experts that are outstanding at once; what is known of the drive says so where nothing is said.
    pub queue_depth: Option<usize>,
    /// Makes the context as long as memory allows, up to the model's, where
    /// [`engine::Options::context`] is `None`.
    pub longest_context: Option<LongestContext>,
    /// The model file of a plan, for [`Session::open`], where it is neither where the plan says nor beside the plan.
    pub model_file: Option<PathBuf>,
}

/// Request for a context that is as long as memory allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongestContext {
    /// Bytes of memory to leave free.
    pub reserved: u64,
}

impl SessionOptions {
    /// What is opened is a model, which has no model file besides.
    fn is_model(&self, path: &Path) -> Result<(), Error> {
        if self.model_file.is_some() { Err(Error::NotPlan { path: path.to_owned() }) } else { Ok(()) }
    }

    /// What is compiled of a model.
    pub(crate) fn parts(&self) -> Parts {
        // Of embeddings nothing is guessed.
        let nextn = if self.embeddings { Nextn::Absent } else { self.nextn };
        Parts { head: !self.embeddings, nextn, ..Parts::ALL }
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
    /// What they are to follow, at its beginning.
    pub grammar: Option<Matcher>,
}

impl<'r> Request<'r> {
    /// As many tokens as there is room for, without a grammar.
    pub fn new(tokens: &'r [u32], sampling: Settings) -> Request<'r> {
        Request { tokens, limit: None, sampling, grammar: None }
    }
}

/// How a text goes on where the context is full: its first tokens stay, for attention leans on them (StreamingLLM, Xiao et al., 2023), and the later half of
/// the others; those between are forgotten. What is left is computed again, so that it is what a text without them has, in every model: keys that were
/// rotated for their old places, recurrent states and what later layers made of what is forgotten are none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextShift {
    /// Tokens at the beginning that stay.
    pub keep: usize,
}

impl ContextShift {
    /// What is left of a text for a context of so many positions: at most that many tokens, half of which are free where the first ones leave as much.
    pub fn kept(self, tokens: &[u32], context: usize) -> Vec<u32> {
        let first = self.keep.min(context / 2).min(tokens.len());
        let rest = ((context - first) / 2).max(1).min(tokens.len() - first);
        [&tokens[..first], &tokens[tokens.len() - rest..]].concat()
    }
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
    /// The grammar was followed to its end.
    Grammar,
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
    /// How often the context was full, and tokens were forgotten.
    pub shifts: usize,
    /// Tokens of the prompt that were not in the KV cache before.
    pub prefill: Phase,
    /// Tokens computed one by one: those made, but for the last, which nothing follows.
    pub decode: Phase,
    /// What came of guesses, where some were made: [`Session::speculate`].
    pub guessed: Tally,
    /// Where the time of both went; tasks and waiting only if [`engine::Options::stats`] said so.
    pub spent: Spent,
}

/// Where the time of the two parts of a generation went.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    /// Of the prompt's steps.
    pub prefill: Stats,
    /// Of those of one token.
    pub decode: Stats,
}

/// A model that runs.
#[derive(Debug)]
pub struct Session {
    pub(crate) engine: Engine,
    /// What is in the KV cache.
    cached: Vec<u32>,
    /// The last text, what was made of it included, and where its sampler is.
    text: Vec<u32>,
    sampler: Option<SamplerState>,
    /// Where the next text's sampler begins.
    resumed: Option<SamplerState>,
    /// What goes on where the context is full.
    shift: Option<ContextShift>,
    /// What guesses tokens.
    speculation: Option<Speculation>,
    tokenizer: Result<Arc<Tokenizer>, TokenizerError>,
    /// Its chat template's source.
    chat_template: Option<String>,
    /// What is known of the model.
    facts: Facts,
    /// What is told how far it is.
    pub(crate) gauge: Arc<Gauge>,
    /// The drive that experts are read from.
    drive: Option<drive::Choice>,
    /// Whether experts are deferred.
    defers: bool,
    /// The plan's model files.
    files: Vec<PathBuf>,
    /// Names of kernels that somebody put in place of the generated.
    replaced: Vec<String>,
    /// Weights that are cut as somebody measured, and the file that says so.
    tuned: Option<(usize, PathBuf)>,
}

impl Session {
    /// Opens a model or a plan; the demo model where there is no path.
    ///
    /// # Errors
    /// When it is missing, malformed, not supported, or this machine cannot run it.
    pub fn open(path: Option<&Path>, options: &SessionOptions) -> Result<Session, Error> {
        let Some(path) = path else {
            options.is_model(Path::new(crate::demo::NAME))?;
            let model = Model::of_parts(crate::demo::open()?, options.parts())?;
            return CompiledModel::of(&model, options)?.load(options);
        };
        if is_plan(path) {
            if options.nextn != Nextn::Absent {
                return Err(Error::IsPlan { path: path.to_owned() });
            }
            let compile = &options.compile;
            let named = compile.tuned.as_ref().is_some_and(|tuned| tuned.is_named());
            let asked = [
                (compile.defer > 0, DEFERRED),
                (!compile.passes.is_empty(), PASSES),
                (compile.start.is_some(), START),
                (named, TUNED),
            ];
            if let Some((_, what)) = asked.into_iter().find(|(asked, _)| *asked) {
                return Err(Error::PlanSays { what });
            }
            let mut file = open_plan(path, options.model_file.as_deref())?;
            let replaced = compile.kernels.put_into(&mut file.plan)?;
            let session = Session::of_plan_file(file, path.parent().unwrap_or(path), options)?;
            return Ok(Session { replaced, ..session });
        }
        options.is_model(path)?;
        // The model is freed before its plan is loaded, which measures the memory in use.
        let compiled = CompiledModel::of(&Model::open_parts(path, options.parts())?, options)?;
        compiled.load(options)
    }
}

/// Plan of a model, with facts about its compilation.
struct CompiledModel {
    plan: Plan<Kernel>,
    memory: Option<u64>,
    replaced: Vec<String>,
    tuned: Option<(usize, PathBuf)>,
}

impl CompiledModel {
    /// Compiles a model as a session needs it.
    fn of(model: &Model, options: &SessionOptions) -> Result<CompiledModel, Error> {
        let SessionOptions { compile: wanted, run, .. } = options;
        let predict_extra = wanted.predict_extra.or(run.prefetch.early_routers());
        let wanted = compile::Options { predict_extra, ..wanted.clone() };
        let begin = std::time::Instant::now();
        let (compiled, memory) = compile_for(model, &wanted, run)?;
        run.trace.iter().for_each(|trace| trace.phase(begin, "compile"));
        let compile::Compiled { plan, replaced, tuned, .. } = compiled;
        Ok(CompiledModel { plan, memory, replaced, tuned })
    }

    /// Loads the plan.
    fn load(self, options: &SessionOptions) -> Result<Session, Error> {
        let CompiledModel { plan, memory, replaced, tuned } = self;
        let run = engine::Options { memory, ..options.run.clone() };
        let session = Session::of_plan(plan, Path::new(""), &SessionOptions { run, ..options.clone() })?;
        Ok(Session { replaced, tuned, ..session })
    }
}

impl Session {
    /// Compiles a model and loads the plan.
    ///
    /// # Errors
    /// When it cannot be compiled, or this machine cannot run it.
    pub fn of_model(model: &Model, options: &SessionOptions) -> Result<Session, Error> {
        CompiledModel::of(model, options)?.load(options)
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
        let (plan, run) = (&file.plan, &options.run);
        is_for(plan, &options.compile)?;
        if let Output::Experts { .. } = plan.output {
            return Err(LoadError::NoSteps.into());
        }
        if options.embeddings != matches!(plan.output, Output::Hidden { .. }) {
            return Err(Error::OtherOutput { embeddings: options.embeddings });
        }
        if run.experts == ExpertStore::Map && plan.expert_groups.is_empty() {
            return Err(Error::NoGroups);
        }
        if run.prefetch.choice == Choice::Always(Strategy::EarlyRouter)
            && run.experts == ExpertStore::Stream
            && plan.expert_groups.len() > 1
            && !memory_estimate::has_early_routers(plan)?
        {
            return Err(Error::NoEarlyRouters);
        }
        let defers = memory_estimate::defers(plan);
        let files = plan.files.iter().map(|source| folder.join(&source.path)).collect();
        let facts = Facts::of(plan);
        let spec = decode_tokenizer(&plan.tokenizer)?;
        let (mut engine_options, drive) = engine_options(&file, folder, run, options.queue_depth)?;
        if let (None, Some(LongestContext { reserved })) = (run.context, options.longest_context) {
            engine_options.context = Some(budget::longest_context(plan, &engine_options, reserved)?);
        }
        let gauge = engine_options.gauge.clone().unwrap_or_default();
        let engine = Engine::load_file(file, folder, &engine_options).map_err(not_loaded)?;
        let tokenizer = Tokenizer::new(&spec).map(Arc::new);
        Ok(Session {
            engine,
            cached: Vec::new(),
            text: Vec::new(),
            sampler: None,
            resumed: None,
            shift: None,
            speculation: None,
            tokenizer,
            chat_template: spec.chat_template,
            facts,
            gauge,
            drive,
            defers,
            files,
            replaced: Vec::new(),
            tuned: None,
        })
    }

    /// Kernels that are not those that are generated by their names.
    pub fn replaced(&self) -> &[String] {
        &self.replaced
    }

    /// How many weights are cut as somebody measured, and the file that says so.
    pub fn tuned(&self) -> Option<(usize, &Path)> {
        self.tuned.as_ref().map(|(weights, path)| (*weights, path.as_path()))
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
        self.shared_tokenizer().map(|tokenizer| &**tokenizer)
    }

    /// Its tokenizer, for other threads too.
    ///
    /// # Errors
    /// As for [`Session::tokenizer`].
    pub fn shared_tokenizer(&self) -> Result<&Arc<Tokenizer>, Error> {
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

    /// Words that logits are of.
    pub fn vocabulary(&self) -> usize {
        self.engine.vocabulary() as usize
    }

    /// The source of its chat template, where it has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// The engine, with its expert cache, the tallies of predictions and the hints to the page cache.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The measurements of the drive that experts are read from, and the queue depth in use.
    pub fn drive(&self) -> Option<&drive::Choice> {
        self.drive.as_ref()
    }

    /// Gives up the streamed experts of a layer that are in memory; see [`Engine::evict_experts`].
    ///
    /// # Errors
    /// When experts are not streamed, or there is no such layer.
    pub fn evict_experts(&mut self, layer: usize, pinned: bool) -> Result<Evicted, EvictError> {
        self.engine.evict_experts(layer, pinned)
    }

    /// Where the time went since the last call, or the last text.
    pub fn take_stats(&mut self) -> Stats {
        self.engine.take_stats()
    }

    /// Positions of the KV cache.
    pub fn context(&self) -> usize {
        self.engine.context() as usize
    }

    /// Most tokens of a text: those of the context, and no more than a step has where that has all of a text.
    pub fn longest_text(&self) -> usize {
        match self.engine.reads_whole() {
            true => self.context().min(self.max_tokens()),
            false => self.context(),
        }
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

    /// A text as tokens that go on after others: without BOS. Names of special tokens are those tokens.
    ///
    /// # Errors
    /// As for [`Session::encode_prompt`].
    pub fn encode_more(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.check_prompt(text)?;
        Ok(self.tokenizer()?.encode(text, true)?)
    }

    /// Refuses a text that does not fit into the context however few tokens it may be, before any time or memory goes into it.
    pub(crate) fn check_prompt(&self, prompt: &str) -> Result<(), Error> {
        check_prompt(self.tokenizer()?, self.context(), self.facts.context, prompt)
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
        if let Some(state) = self.resumed.take() {
            sampler.resume(&state);
        }
        let ends: Vec<u32> = self.tokenizer().map(Tokenizer::end_of_generation).unwrap_or_default();
        self.check(request.tokens)?;
        let follow = |grammar| Masks::follow(grammar, Budget::USUAL, &Arc::default());
        let masks = request.grammar.clone().map(follow).transpose();
        let mut masks = masks.map_err(Error::io(Path::new("masks"), "start"))?;
        request.tokens.iter().for_each(|&token| sampler.accept(token));
        let mut generation = Generation {
            tokens: Vec::new(),
            end: End::Limit,
            shifts: 0,
            prefill: Phase::default(),
            decode: Phase::default(),
            guessed: Tally::default(),
            spent: Spent::default(),
        };
        let guessed_before = self.guessed();
        self.speculation.iter_mut().for_each(|speculation| speculation.begin(0));
        // What was before is none of this one's.
        self.engine.take_stats();

        // The last token is always computed: its logits are wanted.
        let reused = self.keep(&request.tokens[..request.tokens.len() - 1]);
        let meter = Meter::new(&self.engine);
        self.gauge.begin(Activity::Prompt, (request.tokens.len() - reused) as u64);
        for part in request.tokens[reused..].chunks(self.max_tokens()) {
            self.feed(part)?;
            generation.prefill = meter.phase(generation.prefill.tokens + part.len(), &self.engine);
            if progress(Progress::Prefilled(self.cached.len()))?.is_break() {
                generation.end = End::Stopped;
                generation.spent.prefill = self.engine.take_stats();
                (self.text, self.sampler) = (request.tokens.to_vec(), Some(sampler.state()));
                return Ok(generation);
            }
        }
        generation.spent.prefill = self.engine.take_stats();

        let meter = Meter::new(&self.engine);
        // What the context is of: all tokens, until it is full. What was guessed to follow, and computed.
        let (mut window, mut draft) = (request.tokens.to_vec(), Vec::new());
        let limit = request.limit.unwrap_or(usize::MAX);
        while generation.tokens.len() < limit {
            let mut accepted = 0;
            // Each token is drawn as it would be without guesses; what was guessed tells only whether the next one's logits are there already.
            let end = loop {
                // The text that the answer continues may be complete already.
                if masks.as_mut().map(Masks::is_ended).transpose().map_err(Error::from)? == Some(true) {
                    break Some(End::Grammar);
                }
                let mask = masks.as_mut().map(Masks::wait_for_mask).transpose().map_err(Error::from)?;
                let token = sampler.sample_allowed(self.engine.logits(accepted), mask, &self.engine);
                let token = token.map_err(Error::from)?;
                if ends.contains(&token) {
                    break Some(End::Token(token));
                }
                generation.tokens.push(token);
                window.push(token);
                if progress(Progress::Token(token))?.is_break() {
                    break Some(End::Stopped);
                }
                masks.iter_mut().for_each(|masks| masks.accept(token));
                if masks.as_mut().map(Masks::is_ended).transpose().map_err(Error::from)? == Some(true) {
                    break Some(End::Grammar);
                }
                if draft.get(accepted) != Some(&token) {
                    break None;
                }
                accepted += 1;
            };
            generation.decode.tokens += accepted;
            self.note_draft(draft.len(), accepted);
            if !draft.is_empty() {
                // The last token is not computed, unless it is none of the text.
                let held = window.len() - usize::from(!matches!(end, Some(End::Token(_))));
                self.keep(&window[..held]);
                draft.clear();
            }
            if let Some(end) = end {
                generation.end = end;
                break;
            }
            if generation.tokens.len() < limit {
                if self.cached.len() == self.context() {
                    let Some(shift) = self.shift else {
                        generation.end = End::Context;
                        break;
                    };
                    window = shift.kept(&window, self.context());
                    generation.shifts += 1;
                }
                // One token, or all that is left of a text whose beginning was forgotten.
                let there = self.keep(&window[..window.len() - 1]);
                match window.len() - there {
                    1 => {
                        draft = self.guess(&window, limit - generation.tokens.len() - 1);
                        self.feed_drafted(window[there], &draft)?;
                    }
                    _ => window[there..].chunks(self.max_tokens()).try_for_each(|part| self.feed(part))?,
                }
                generation.decode.tokens += window.len() - there;
            }
            generation.decode = meter.phase(generation.decode.tokens, &self.engine);
        }
        generation.guessed = self.guessed().since(&guessed_before);
        generation.spent.decode = self.engine.take_stats();
        self.text = window;
        self.sampler = Some(sampler.state());
        Ok(generation)
    }

    /// Whether there was a text, so that there is a state to save.
    pub fn has_text(&self) -> bool {
        !self.text.is_empty() && self.engine.position() > 0
    }

    /// Writes where the last text ended: what its states hold, its tokens, and its sampler; gives how many bytes it took. See
    /// [`Session::load_state`].
    ///
    /// # Errors
    /// When there was no text, or it cannot be written.
    pub fn save_state(&self, output: ixc_files::Output) -> Result<u64, Error> {
        self.save(FIRST, &self.text, self.sampler.as_ref(), output)
    }

    /// Writes what a sequence of the engine holds, whose tokens these are.
    pub(crate) fn save(
        &self,
        id: SequenceId,
        tokens: &[u32],
        sampler: Option<&SamplerState>,
        output: ixc_files::Output,
    ) -> Result<u64, Error> {
        let path = output.named().to_owned();
        let saved = |source| Error::Saved { path: path.clone(), source: Box::new(source) };
        // What the output refuses is its own error, and says so.
        let mut failed = None;
        let written = output.write(|mut out| {
            let state = self.engine.save_state(id, tokens, sampler, &mut out);
            state.map(drop).map_err(|error| match error {
                SavedError::Io { source } => source,
                error => {
                    failed = Some(error);
                    std::io::ErrorKind::InvalidData.into()
                }
            })
        });
        match failed {
            Some(error) => Err(saved(error)),
            None => Ok(written?),
        }
    }

    /// Goes on from a state that [`Session::save_state`] wrote; gives the tokens of its text. A request that begins with these computes only what follows
    /// them, and has the bits that it would have had.
    ///
    /// # Errors
    /// When it cannot be read, is of another model, or is damaged.
    pub fn load_state(&mut self, path: &Path) -> Result<Loaded, Error> {
        let file = open_regular(path).map_err(Error::io(path, "open"))?;
        let bytes = file.metadata().map_err(Error::io(path, "read"))?.len();
        self.cached.clear();
        let mut input = std::io::BufReader::with_capacity(1 << 20, file);
        let loaded = self.engine.load_state(FIRST, &mut input, bytes);
        let position = self.engine.position() as usize;
        let loaded = loaded.map_err(|source| {
            // What was there before may be there still, and nobody knows its tokens any more.
            self.engine.reset();
            Error::Saved { path: path.to_owned(), source: Box::new(source) }
        })?;
        self.cached.extend_from_slice(&loaded.tokens[..position]);
        self.text.clone_from(&loaded.tokens);
        self.sampler.clone_from(&loaded.sampler);
        Ok(loaded)
    }

    /// Has texts go on where the context is full, or end there.
    pub fn set_context_shift(&mut self, shift: Option<ContextShift>) {
        self.shift = shift;
    }

    /// Has tokens guessed: see [`crate::speculate`]. Texts have the tokens that they have without; with [`engine::Options::exact_batch`] also where tiles
    /// multiply. As many are guessed as [`engine::Options::more_additions`] has room for.
    ///
    /// # Errors
    /// [`Error::NoSpeculation`] where states cannot be cut: what was guessed wrong could not be taken back.
    pub fn speculate(&mut self, speculation: Speculation) -> Result<(), Error> {
        self.check_speculation()?;
        self.speculation = Some(speculation);
        Ok(())
    }

    /// Whether tokens can be guessed.
    ///
    /// # Errors
    /// [`Error::NoSpeculation`].
    pub fn check_speculation(&self) -> Result<(), Error> {
        if self.engine.cuts_steps() { Ok(()) } else { Err(Error::NoSpeculation) }
    }

    /// What guesses tokens, by name, where something does.
    pub fn guesses(&self) -> Option<&'static str> {
        self.speculation.as_ref().map(Speculation::name)
    }

    /// What came of guesses so far.
    fn guessed(&self) -> Tally {
        self.speculation.as_ref().map(Speculation::tally).unwrap_or_default()
    }

    /// What may follow a text whose last token is to be computed, at most so many tokens.
    fn guess(&mut self, text: &[u32], most: usize) -> Vec<u32> {
        let rows = self.max_tokens().min(self.engine.max_additions() as usize).min(MAX_OUTPUTS as usize);
        let most = most.min(self.context().saturating_sub(text.len()));
        let Some(speculation) = &mut self.speculation else { return Vec::new() };
        let text = Text { slot: 0, tokens: text, most, draft: Vec::new() };
        speculation.draft(vec![text], rows.saturating_sub(1)).pop().unwrap_or_default()
    }

    /// Computes a token and what was guessed to follow it.
    fn feed_drafted(&mut self, token: u32, draft: &[u32]) -> Result<(), Error> {
        let (begin, packing) = (Instant::now(), self.engine.packing_time());
        let tokens = [&[token], draft].concat();
        let additions: Vec<Addition<'_>> =
            tokens.chunks(1).map(|tokens| Addition { sequence: FIRST, tokens, outputs: &[0] }).collect();
        if let Err(error) = self.engine.step_batch(&additions) {
            // A step that fails may leave less than there was.
            self.cached.truncate(self.engine.position() as usize);
            return Err(error.into());
        }
        self.extend(&tokens);
        self.gauge.add(1);
        let packed = self.engine.packing_time().saturating_sub(packing);
        if let Some(speculation) = &mut self.speculation {
            speculation.note_step(1, tokens.len(), begin.elapsed().saturating_sub(packed));
        }
        Ok(())
    }

    /// A step has computed these behind what was there: what guesses from hidden states sees them.
    fn extend(&mut self, tokens: &[u32]) {
        if let Some(speculation) = self.speculation.as_mut().filter(|speculation| speculation.sees()) {
            let hidden = self.engine.hidden();
            speculation.see(&[Seen { slot: 0, before: &self.cached, added: [tokens, &[]], hidden }]);
        }
        self.cached.extend_from_slice(tokens);
    }

    /// Of so many guessed tokens so many were drawn.
    fn note_draft(&mut self, drafted: usize, accepted: usize) {
        self.speculation.iter_mut().for_each(|speculation| speculation.note_draft(0, drafted, accepted));
    }

    /// Has the next text's sampler go on where another one was.
    pub fn resume_sampler(&mut self, state: SamplerState) {
        self.resumed = Some(state);
    }

    /// Logits at every position, `[tokens, vocabulary]`, from an empty KV cache.
    ///
    /// # Errors
    /// When the tokens are none of this model's, or do not fit into the context.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.begin(tokens)?;
        let mut logits = Vec::new();
        for part in tokens.chunks(self.engine.max_outputs() as usize) {
            let rows: Vec<u32> = (0..part.len() as u32).collect();
            logits.extend_from_slice(self.step(part, &rows)?);
        }
        Ok(logits)
    }

    /// Empties the KV cache for these tokens, which [`Session::step`] is to compute.
    pub(crate) fn begin(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.check(tokens)?;
        self.truncate(0);
        self.gauge.begin(Activity::Prompt, tokens.len() as u64);
        Ok(())
    }

    /// Computes at most a step of tokens behind what is cached; gives the logits at `rows` of them, `[rows, vocabulary]`.
    pub(crate) fn step(&mut self, tokens: &[u32], rows: &[u32]) -> Result<&[f32], Error> {
        if let Err(error) = self.engine.step(tokens, rows) {
            // A step that fails may leave less than there was.
            self.cached.truncate(self.engine.position() as usize);
            return Err(error.into());
        }
        self.extend(tokens);
        self.gauge.add(tokens.len() as u64);
        Ok(self.engine.all_logits())
    }

    /// Refuses tokens that are none of this model's, or do not fit into the context.
    pub(crate) fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        check_tokens(tokens, self.engine.vocabulary().into())?;
        match self.context() {
            context if tokens.len() > context => {
                Err(Error::Context { tokens: tokens.len(), context, model: self.facts.context })
            }
            _ => Ok(()),
        }
    }

    /// Keeps what the states have of these tokens and no others, as far as they can get back to that; how many are left.
    pub(crate) fn keep(&mut self, tokens: &[u32]) -> usize {
        let common = self.cached.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.truncate(common)
    }

    /// Goes back to so many tokens, or to as many before that as the states can get back to; gives how many are left.
    fn truncate(&mut self, len: usize) -> usize {
        // No longer than the context, which is a u32.
        let left = self.engine.truncate(len as u32) as usize;
        self.cached.truncate(left);
        left
    }

    /// Tokens of a step.
    pub(crate) fn max_tokens(&self) -> usize {
        self.engine.max_tokens() as usize
    }

    /// Computes at most a step of tokens behind what is cached; the logits of the last stay in the engine.
    pub(crate) fn feed(&mut self, tokens: &[u32]) -> Result<(), Error> {
        if let Err(error) = self.engine.prefill(tokens) {
            // A step that fails may leave less than there was.
            self.cached.truncate(self.engine.position() as usize);
            return Err(error.into());
        }
        self.extend(tokens);
        self.gauge.add(tokens.len() as u64);
        Ok(())
    }
}

/// Refuses a text that does not fit into the context of a model however few tokens it may be.
pub(crate) fn check_prompt(tokenizer: &Tokenizer, context: usize, model: usize, prompt: &str) -> Result<(), Error> {
    let (bytes, longest) = (prompt.len(), tokenizer.longest_token());
    match bytes > context.saturating_mul(longest) {
        true => Err(Error::Prompt { bytes, context, longest, model }),
        false => Ok(()),
    }
}

/// The tokens of a text that is whole, between BOS and EOS where the model wants them.
pub(crate) fn with_ends(tokenizer: &Tokenizer, tokens: Vec<u32>) -> Vec<u32> {
    let mut tokens = with_bos(tokenizer, tokens);
    tokens.extend(tokenizer.add_eos().filter(|eos| tokens.last() != Some(eos)));
    tokens
}

/// The tokens of a prompt, behind BOS where the model wants it.
pub(crate) fn with_bos(tokenizer: &Tokenizer, mut tokens: Vec<u32>) -> Vec<u32> {
    if let Some(bos) = tokenizer.add_bos().filter(|bos| tokens.first() != Some(bos)) {
        tokens.insert(0, bos);
    }
    tokens
}
