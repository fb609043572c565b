//! A loaded model: a plan in an engine, with its tokenizer and template.
//!
//! [`Session`](crate::session::Session) and [`Generator`](crate::generator::Generator) generate
//! text with it. [`Embedder`](crate::embedding::Embedder) computes vectors.
//!
//! ```
//! use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
//!
//! let mut model = LoadedModel::open(None, &LoadOptions::default())?; // The demo model.
//! let tokens = model.encode_prompt("The borrow checker")?;
//! assert_eq!(model.logits(&tokens)?.len(), tokens.len() * model.vocabulary());
//! # Ok::<(), ixc_generate::Error>(())
//! ```

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ixc_architectures::{Nextn, Parts};
use ixc_ir::format::Format;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Output, Plan};
use ixc_runtime::engine::{self, Addition, Engine, EvictError, ExpertStore, FIRST, SequenceId};
use ixc_runtime::file::PlanFile;
use ixc_runtime::load::{self, LoadError};
use ixc_runtime::memory_estimate;
use ixc_runtime::progress::{Activity, ProgressCounter};
use ixc_runtime::sample::SamplerState;
use ixc_runtime::saved::SavedError;
use ixc_runtime::stats::Stats;
use ixc_runtime::streaming::predict::{Strategy, StrategyChoice};
use ixc_runtime::streaming::store::EvictionResult;
use ixc_targets::Target;
use ixc_text::tokenizer::{Tokenizer, TokenizerError, TokenizerSpec};

use crate::Error;
use crate::budget;
use crate::drive;
use crate::plan_cache::PlanCache;
use ixc_compile::compile::{self, decode_tokenizer};
use ixc_compile::model::check_tokens;

mod cached;
mod compiled;
mod divided;
mod open;
mod unloaded;

pub(crate) use open::{compile_for, engine_options, is_for, not_loaded};
pub use unloaded::{PlanOrModel, UnloadedModel};

/// Names of properties that a plan fixes: [`Error::PlanSays`].
pub const DEFERRED: &str = "the deferred experts";
const PASSES: &str = "the options of passes";
const START: &str = "the output of passes";
const TUNED: &str = "the tiling of weights";
pub(crate) const ROWS: &str = "the number of rows in a step";

/// Default length of the context. The model's own may be shorter.
pub const DEFAULT_CONTEXT: usize = load::DEFAULT_CONTEXT as usize;

/// Options of loading a model.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Options of compiling, within [`engine::EngineOptions::memory`]. A plan is compiled already:
    /// another target or deferred experts are errors.
    pub compile: compile::CompileOptions,
    /// Options of running. Without a memory budget, weights that are larger than the free memory of
    /// the machine and the control group get most of that memory.
    pub run: engine::EngineOptions,
    /// Whether the model is for embeddings. It is then compiled without its output matrix, and
    /// steps return hidden states. A plan must be compiled that way.
    pub embeddings: bool,
    /// Use of the model's own layers as drafter ([`crate::own_layer`]). The loaded model then
    /// returns hidden states of all tokens ([`Nextn::Fed`]), or consists of only the draft layer
    /// ([`Nextn::Alone`]). Plans support neither.
    pub nextn: Nextn,
    /// Outstanding reads of streamed experts. The default comes from measurements of the drive.
    pub queue_depth: Option<usize>,
    /// Makes the context as long as memory allows, up to the model's, if
    /// [`engine::EngineOptions::context`] is `None`.
    pub longest_context: Option<LongestContext>,
    /// Model file of a plan, for [`LoadedModel::open`]. By default, the file at the path in the
    /// plan, or next to the plan.
    pub model_file: Option<PathBuf>,
    /// Cache of compiled plans. Without one, each start compiles the model.
    pub plan_cache: Option<PlanCache>,
}

/// Request for a context that is as long as memory allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongestContext {
    /// Bytes of memory to leave free.
    pub reserved: u64,
}

impl LoadOptions {
    /// Returns the parts of the model to compile.
    pub fn parts(&self) -> Parts {
        // An embedding model generates no tokens, so it needs no draft layers.
        let nextn = if self.embeddings { Nextn::Absent } else { self.nextn };
        Parts { head: !self.embeddings, nextn, ..Parts::ALL }
    }
}

/// Facts about a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelProperties {
    /// Name of the architecture.
    pub architecture: String,
    /// Context length of the training.
    pub context: usize,
    /// Bytes of the stored weights.
    pub bytes: u64,
    /// Format with the most bytes.
    pub format: Option<Format>,
}

impl ModelProperties {
    fn from_plan(plan: &Plan<Kernel>) -> ModelProperties {
        let mut formats: HashMap<Format, u64> = HashMap::new();
        for weight in &plan.weights {
            let format = weight.stored.unpacked_format().unwrap_or(weight.stored);
            let sum = formats.entry(format).or_default();
            *sum = sum.saturating_add(weight.bytes);
        }
        ModelProperties {
            architecture: plan.architecture.clone(),
            context: plan.context_length as usize,
            bytes: formats.values().fold(0, |sum, bytes| sum.saturating_add(*bytes)),
            // Ties are broken by name.
            format: formats.into_iter().max_by_key(|(format, bytes)| (*bytes, format.name())).map(|(format, _)| format),
        }
    }
}

/// A compiled model in an engine, with the properties of model and engine.
#[derive(Debug)]
pub struct LoadedModel {
    pub(crate) engine: Engine,
    tokenizer: Result<Arc<Tokenizer>, TokenizerError>,
    /// Source of the chat template.
    chat_template: Option<String>,
    facts: ModelProperties,
    /// Progress of long operations.
    pub(crate) progress: Arc<ProgressCounter>,
    /// Drive that experts are read from.
    drive: Option<drive::QueueDepth>,
    /// Whether experts are deferred.
    defers: bool,
    /// Model files of the plan.
    files: Vec<PathBuf>,
    /// Names of replaced kernels.
    replaced: Vec<String>,
    /// Number of weights with measured tilings, and the file with the measurements.
    tuned: Option<(usize, PathBuf)>,
}

impl LoadedModel {
    /// Loads a plan. Its relative paths start at `folder`.
    ///
    /// # Errors
    /// When the plan is malformed, its model file is missing or differs, or this machine cannot run
    /// it.
    pub fn of_plan(plan: Plan<Kernel>, folder: &Path, options: &LoadOptions) -> Result<LoadedModel, Error> {
        LoadedModel::of_plan_file(PlanFile::new(plan), folder, options)
    }

    /// Loads an open plan file. Its relative paths start at `folder`.
    ///
    /// # Errors
    /// See [`LoadedModel::of_plan`]; and when the weights of the file are damaged.
    pub fn of_plan_file(file: PlanFile, folder: &Path, options: &LoadOptions) -> Result<LoadedModel, Error> {
        let vocabulary = decode_tokenizer(&file.plan.tokenizer)?;
        LoadedModel::of_parts(file, vocabulary, folder, options)
    }

    /// Loads a plan. `vocabulary` comes from the compilation, or was decoded from the plan.
    fn of_parts(
        file: PlanFile,
        vocabulary: TokenizerSpec,
        folder: &Path,
        options: &LoadOptions,
    ) -> Result<LoadedModel, Error> {
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
        if run.prefetch.choice == StrategyChoice::Always(Strategy::EarlyRouter)
            && run.experts == ExpertStore::Stream
            && plan.expert_groups.len() > 1
            && !memory_estimate::has_early_routers(plan)?
        {
            return Err(Error::NoEarlyRouters);
        }
        let defers = memory_estimate::defers(plan);
        let files = plan.files.iter().map(|source| folder.join(&source.path)).collect();
        let facts = ModelProperties::from_plan(plan);
        let (mut engine_options, drive) = engine_options(&file, folder, run, options.queue_depth)?;
        if let (None, Some(LongestContext { reserved })) = (run.context, options.longest_context) {
            engine_options.context = Some(budget::longest_context(plan, &engine_options, reserved)?.into());
        }
        let progress = engine_options.progress.clone().unwrap_or_default();
        let engine = Engine::load_file(file, folder, &engine_options).map_err(not_loaded)?;
        let tokenizer = Tokenizer::new(&vocabulary).map(Arc::new);
        Ok(LoadedModel {
            engine,
            tokenizer,
            chat_template: vocabulary.chat_template,
            facts,
            progress,
            drive,
            defers,
            files,
            replaced: Vec::new(),
            tuned: None,
        })
    }

    /// Returns the names of replaced kernels.
    pub fn replaced_kernels(&self) -> &[String] {
        &self.replaced
    }

    /// Returns the number of weights with measured tilings, and the file with the measurements.
    pub fn tuned_weights(&self) -> Option<(usize, &Path)> {
        self.tuned.as_ref().map(|(weights, path)| (*weights, path.as_path()))
    }

    /// Returns the model files, without the plan. The demo model has none.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Returns whether experts are deferred. Cache misses are then no measure of the model's
    /// routing, since a prompt reads some experts twice.
    pub fn defers(&self) -> bool {
        self.defers
    }

    /// Returns the tokenizer.
    ///
    /// # Errors
    /// When the model has no tokenizer, or one that is not supported.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.shared_tokenizer().map(|tokenizer| &**tokenizer)
    }

    /// Returns a shared pointer to the tokenizer, for other threads.
    ///
    /// # Errors
    /// See [`LoadedModel::tokenizer`].
    pub fn shared_tokenizer(&self) -> Result<&Arc<Tokenizer>, Error> {
        self.tokenizer.as_ref().map_err(|reason| Error::NoTokenizer { reason: reason.to_string() })
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.engine.threads()
    }

    /// Returns the target of the kernels.
    pub fn target(&self) -> Target {
        self.engine.target()
    }

    /// Returns the size of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.engine.vocabulary() as usize
    }

    /// Returns the source of the chat template, if there is one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the engine, to change its sequences.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Returns the engine without the model's other parts.
    pub fn into_engine(self) -> Engine {
        self.engine
    }

    /// Returns the progress of long operations.
    pub fn progress(&self) -> &ProgressCounter {
        &self.progress
    }

    /// Returns the measurements of the experts' drive, and the queue depth in use.
    pub fn drive(&self) -> Option<&drive::QueueDepth> {
        self.drive.as_ref()
    }

    /// Evicts the streamed experts of a layer: [`Engine::evict_experts`].
    ///
    /// # Errors
    /// When experts are not streamed, or there is no such layer.
    pub fn evict_experts(&mut self, layer: usize, pinned: bool) -> Result<EvictionResult, EvictError> {
        self.engine.evict_experts(layer, pinned)
    }

    /// Returns the times of ops since the last call or the last text.
    pub fn take_stats(&mut self) -> Stats {
        self.engine.take_stats()
    }

    /// Returns the number of positions of the KV cache.
    pub fn context(&self) -> usize {
        self.engine.context() as usize
    }

    /// Returns the maximum length of a text: the context's, or a step's for a model that reads a
    /// whole text in one step.
    pub fn longest_text(&self) -> usize {
        match self.engine.reads_whole() {
            true => self.context().min(self.max_tokens()),
            false => self.context(),
        }
    }

    /// Returns facts about the model.
    pub fn facts(&self) -> &ModelProperties {
        &self.facts
    }

    /// Encodes a prompt, with BOS if the model needs it. Names of special tokens become these
    /// tokens.
    ///
    /// # Errors
    /// When there is no tokenizer, or it cannot encode the text.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>, Error> {
        let tokenizer = self.tokenizer()?;
        self.check_prompt(prompt)?;
        Ok(with_bos(tokenizer, tokenizer.encode(prompt, true)?))
    }

    /// Encodes a continuation, without BOS. Names of special tokens become these tokens.
    ///
    /// # Errors
    /// See [`LoadedModel::encode_prompt`].
    pub fn encode_more(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.check_prompt(text)?;
        Ok(self.tokenizer()?.encode(text, true)?)
    }

    /// Refuses a text that is too long for the context, however it is encoded.
    fn check_prompt(&self, prompt: &str) -> Result<(), Error> {
        check_prompt(self.tokenizer()?, self.context(), self.facts.context, prompt)
    }

    /// Checks that speculation is possible.
    ///
    /// # Errors
    /// [`Error::NoSpeculation`].
    pub fn check_speculation(&self) -> Result<(), Error> {
        if self.engine.cuts_steps() { Ok(()) } else { Err(Error::NoSpeculation) }
    }

    /// Writes the states of a sequence, its tokens, and its sampler. Returns the number of bytes.
    ///
    /// # Errors
    /// When the sequence is empty or does not have these tokens, or the output cannot be written.
    pub fn save(
        &self,
        id: SequenceId,
        tokens: &[u32],
        sampler: Option<&SamplerState>,
        output: ixc_files::Output,
    ) -> Result<u64, Error> {
        let path = output.given_path().to_owned();
        let saved = |source| Error::Saved { path: path.clone(), source: Box::new(source) };
        // The closure returns only errors of the output, so an error of the state is kept here.
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
        self.logits_in(FIRST, tokens)
    }

    /// Adds tokens to an empty sequence. Returns the logits of each, `[tokens, vocabulary]`.
    pub(crate) fn logits_in(&mut self, sequence: SequenceId, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        let mut logits = Vec::new();
        for part in tokens.chunks(self.engine.max_outputs() as usize) {
            let outputs: Vec<u32> = (0..part.len() as u32).collect();
            let addition = Addition { sequence, tokens: part, outputs: &outputs };
            logits.extend_from_slice(self.engine.step_batch(&[addition])?);
            self.progress.add(part.len() as u64);
        }
        Ok(logits)
    }

    /// Empties the KV cache before [`LoadedModel::step`] computes these tokens.
    ///
    /// # Errors
    /// The errors of [`LoadedModel::check`].
    pub fn begin(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.check(tokens)?;
        self.engine.reset();
        self.progress.begin(Activity::Prompt, tokens.len() as u64);
        Ok(())
    }

    /// Computes tokens in one step. Returns the logits of `rows`, `[rows, vocabulary]`.
    ///
    /// # Errors
    /// The errors of the engine's step.
    pub fn step(&mut self, tokens: &[u32], rows: &[u32]) -> Result<&[f32], Error> {
        self.engine.step(tokens, rows)?;
        self.progress.add(tokens.len() as u64);
        Ok(self.engine.all_logits())
    }

    /// Checks that tokens are in the vocabulary and fit into the context.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, or the tokens do not fit.
    pub fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        check_tokens(tokens, self.engine.vocabulary().into())?;
        match self.context() {
            context if tokens.len() > context => {
                Err(ixc_compile::Error::Context { tokens: tokens.len(), context, model: self.facts.context }.into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the maximum number of tokens in a step.
    pub fn max_tokens(&self) -> usize {
        self.engine.max_tokens() as usize
    }
}

/// Refuses a text that is too long for the context, however it is encoded.
///
/// # Errors
/// [`Error::Prompt`].
pub fn check_prompt(tokenizer: &Tokenizer, context: usize, model: usize, prompt: &str) -> Result<(), Error> {
    let (bytes, longest) = (prompt.len(), tokenizer.longest_token());
    match bytes > context.saturating_mul(longest) {
        true => Err(Error::Prompt { bytes, context, longest, model }),
        false => Ok(()),
    }
}

/// Puts the tokens of a whole text between BOS and EOS, if the model needs them.
pub fn with_ends(tokenizer: &Tokenizer, tokens: Vec<u32>) -> Vec<u32> {
    let mut tokens = with_bos(tokenizer, tokens);
    tokens.extend(tokenizer.add_eos().filter(|eos| tokens.last() != Some(eos)));
    tokens
}

/// Puts BOS before the tokens of a prompt, if the model needs it.
pub fn with_bos(tokenizer: &Tokenizer, mut tokens: Vec<u32>) -> Vec<u32> {
    if let Some(bos) = tokenizer.add_bos().filter(|bos| tokens.first() != Some(bos)) {
        tokens.insert(0, bos);
    }
    tokens
}
