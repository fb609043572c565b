//! A loaded model: a plan in an engine, with its tokenizer and template.
//!
//! [`LoadedModel`](crate::session::LoadedModel) and [`Generator`](crate::generator::Generator) generate text
//! with it. [`Embedder`](crate::embedding::Embedder) computes vectors.
//!
//! ```
//! use ixc::loaded_model::{LoadOptions, LoadedModel};
//!
//! let mut model = LoadedModel::open(None, &LoadOptions::default())?; // The demo model.
//! let tokens = model.encode_prompt("The borrow checker")?;
//! assert_eq!(model.logits(&tokens)?.len(), tokens.len() * model.vocabulary());
//! # Ok::<(), ixc::Error>(())
//! ```

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ixc_architectures::{Nextn, Parts};
use ixc_ir::format::Format;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Output, Plan};
use ixc_runtime::engine::{self, Engine, EvictError, ExpertStore, SequenceId};
use ixc_runtime::file::PlanFile;
use ixc_runtime::gauge::{Activity, Gauge};
use ixc_runtime::load::{self, LoadError};
use ixc_runtime::memory_estimate;
use ixc_runtime::sample::SamplerState;
use ixc_runtime::saved::SavedError;
use ixc_runtime::stats::Stats;
use ixc_runtime::stream::predict::{Choice, Strategy};
use ixc_runtime::stream::store::Evicted;
use ixc_targets::Target;
use ixc_text::tokenizer::{Tokenizer, TokenizerError};

use crate::Error;
use crate::budget;
use crate::compile::{self, decode_tokenizer};
use crate::machine::drive;
use crate::model::{Model, check_tokens, is_plan, open_plan};

mod open;

pub(crate) use open::{compile_for, engine_options, is_for, not_loaded};

/// What a plan says, whatever options say: [`Error::PlanSays`].
pub const DEFERRED: &str = "which experts are deferred";
const PASSES: &str = "what passes make of the model";
const START: &str = "what all passes made of the model";
/// What of tuned choices a plan has.
const TUNED: &str = "how weights are cut";
/// How long its steps are.
pub(crate) const ROWS: &str = "how many rows a step has";

/// Positions of the KV cache where nothing is said, unless the model's context is shorter.
pub const DEFAULT_CONTEXT: usize = load::DEFAULT_CONTEXT as usize;

/// How to run: what each layer below reads, whole.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
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
    /// The model file of a plan, for [`LoadedModel::open`], where it is neither where the plan says nor beside the plan.
    pub model_file: Option<PathBuf>,
}

/// Request for a context that is as long as memory allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongestContext {
    /// Bytes of memory to leave free.
    pub reserved: u64,
}

impl LoadOptions {
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

/// A compiled model in an engine, with facts about both.
#[derive(Debug)]
pub struct LoadedModel {
    pub(crate) engine: Engine,
    tokenizer: Result<Arc<Tokenizer>, TokenizerError>,
    /// Source of the chat template.
    chat_template: Option<String>,
    facts: Facts,
    /// Progress of long operations.
    pub(crate) gauge: Arc<Gauge>,
    /// Drive that experts are read from.
    drive: Option<drive::Choice>,
    /// Whether experts are deferred.
    defers: bool,
    /// Model files of the plan.
    files: Vec<PathBuf>,
    /// Names of replaced kernels.
    replaced: Vec<String>,
    /// Number of weights with measured cuts, and the file with the measurements.
    tuned: Option<(usize, PathBuf)>,
}

impl LoadedModel {
    /// Opens a model or a plan; the demo model where there is no path.
    ///
    /// # Errors
    /// When it is missing, malformed, not supported, or this machine cannot run it.
    pub fn open(path: Option<&Path>, options: &LoadOptions) -> Result<LoadedModel, Error> {
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
            let model = LoadedModel::of_plan_file(file, path.parent().unwrap_or(path), options)?;
            return Ok(LoadedModel { replaced, ..model });
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
    /// Compiles a model to be loaded.
    fn of(model: &Model, options: &LoadOptions) -> Result<CompiledModel, Error> {
        let LoadOptions { compile: wanted, run, .. } = options;
        let predict_extra = wanted.predict_extra.or(run.prefetch.early_routers());
        let wanted = compile::Options { predict_extra, ..wanted.clone() };
        let begin = std::time::Instant::now();
        let (compiled, memory) = compile_for(model, &wanted, run)?;
        run.trace.iter().for_each(|trace| trace.phase(begin, "compile"));
        let compile::Compiled { plan, replaced, tuned, .. } = compiled;
        Ok(CompiledModel { plan, memory, replaced, tuned })
    }

    /// Loads the plan.
    fn load(self, options: &LoadOptions) -> Result<LoadedModel, Error> {
        let CompiledModel { plan, memory, replaced, tuned } = self;
        let run = engine::Options { memory, ..options.run.clone() };
        let model = LoadedModel::of_plan(plan, Path::new(""), &LoadOptions { run, ..options.clone() })?;
        Ok(LoadedModel { replaced, tuned, ..model })
    }
}

impl LoadedModel {
    /// Compiles a model and loads the plan.
    ///
    /// # Errors
    /// When it cannot be compiled, or this machine cannot run it.
    pub fn of_model(model: &Model, options: &LoadOptions) -> Result<LoadedModel, Error> {
        CompiledModel::of(model, options)?.load(options)
    }

    /// Loads a plan; what it names by relative paths is looked for in `folder`.
    ///
    /// # Errors
    /// When it is malformed, its model is not there or another, or this machine cannot run it.
    pub fn of_plan(plan: Plan<Kernel>, folder: &Path, options: &LoadOptions) -> Result<LoadedModel, Error> {
        LoadedModel::of_plan_file(PlanFile { plan, weights: None }, folder, options)
    }

    /// Loads an open plan file; what it names by relative paths is looked for in `folder`.
    ///
    /// # Errors
    /// As for [`LoadedModel::of_plan`], and when its weights are damaged.
    pub fn of_plan_file(file: PlanFile, folder: &Path, options: &LoadOptions) -> Result<LoadedModel, Error> {
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
        Ok(LoadedModel {
            engine,
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
    /// As for [`LoadedModel::tokenizer`].
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
    /// As for [`LoadedModel::encode_prompt`].
    pub fn encode_more(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.check_prompt(text)?;
        Ok(self.tokenizer()?.encode(text, true)?)
    }

    /// Refuses a text that does not fit into the context however few tokens it may be, before any time or memory goes into it.
    pub(crate) fn check_prompt(&self, prompt: &str) -> Result<(), Error> {
        check_prompt(self.tokenizer()?, self.context(), self.facts.context, prompt)
    }

    /// Whether tokens can be guessed.
    ///
    /// # Errors
    /// [`Error::NoSpeculation`].
    pub fn check_speculation(&self) -> Result<(), Error> {
        if self.engine.cuts_steps() { Ok(()) } else { Err(Error::NoSpeculation) }
    }

    /// Writes the states of a sequence, its tokens, and its sampler. Returns the number of bytes.
    pub(crate) fn save(
        &self,
        id: SequenceId,
        tokens: &[u32],
        sampler: Option<&SamplerState>,
        output: ixc_files::Output,
    ) -> Result<u64, Error> {
        let path = output.named().to_owned();
        let saved = |source| Error::Saved { path: path.clone(), source: Box::new(source) };
        // Errors of the output are its own.
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

    /// Returns the logits at every position, `[tokens, vocabulary]`.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, or the tokens do not fit into the context.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.begin(tokens)?;
        let mut logits = Vec::new();
        for part in tokens.chunks(self.engine.max_outputs() as usize) {
            let rows: Vec<u32> = (0..part.len() as u32).collect();
            logits.extend_from_slice(self.step(part, &rows)?);
        }
        Ok(logits)
    }

    /// Empties the KV cache before [`LoadedModel::step`] computes these tokens.
    pub(crate) fn begin(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.check(tokens)?;
        self.engine.reset();
        self.gauge.begin(Activity::Prompt, tokens.len() as u64);
        Ok(())
    }

    /// Computes tokens in one step. Returns the logits of `rows`, `[rows, vocabulary]`.
    pub(crate) fn step(&mut self, tokens: &[u32], rows: &[u32]) -> Result<&[f32], Error> {
        self.engine.step(tokens, rows)?;
        self.gauge.add(tokens.len() as u64);
        Ok(self.engine.all_logits())
    }

    /// Checks that tokens are in the vocabulary and fit into the context.
    pub(crate) fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        check_tokens(tokens, self.engine.vocabulary().into())?;
        match self.context() {
            context if tokens.len() > context => {
                Err(Error::Context { tokens: tokens.len(), context, model: self.facts.context })
            }
            _ => Ok(()),
        }
    }

    /// Returns the maximum number of tokens in a step.
    pub(crate) fn max_tokens(&self) -> usize {
        self.engine.max_tokens() as usize
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
