//! From a model to a plan: runs the passes, generates the kernels, and keeps the result of each
//! stage.
//!
//! ```
//! use ixc_compile::compile::{CompileOptions, compile};
//! use ixc_compile::model::Model;
//!
//! let model = Model::new(ixc_compile::demo::open()?)?;
//! let compiled = compile(&model, &CompileOptions::default())?;
//! assert!(compiled.fused.functions[0].ops.len() < model.arch.module.functions[0].ops.len());
//! assert_eq!(compiled.plan.vocabulary, 4096);
//! # Ok::<(), ixc_compile::Error>(())
//! ```

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use ixc_architectures::{FileWeights, Hyper, Output};
use ixc_codegen::module::Artifact;
use ixc_codegen::parallel;
use ixc_ir::graph::{Dim, Module};
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, SourceFile, decode};
use ixc_kernels::{KernelSpec, generate};
use ixc_model_files::gguf::Gguf;
use ixc_passes::decision::{Decision, Decisions};
use ixc_passes::draft::Draft;
use ixc_passes::error::PassError;
use ixc_passes::manager::{self, Ir, PASSES, Stop, Watch};
use ixc_passes::options::OptionSet;
use ixc_passes::pass::{Context, GraphResult, Pass, PlanProperties, Run};
use ixc_passes::schedule::{DEFAULT_MAX_TOKENS, lower};
use ixc_passes::{defer, pack, residency};
use ixc_targets::{CoreCaches, Target};
use ixc_text::tokenizer::TokenizerSpec;

use crate::Error;
use crate::model::Model;
use crate::recording::Recording;
use crate::replacements::Replacements;
use crate::tuned::{self, TunedFile};

/// Options of the compiler.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// Target of the kernels. The default is the best target that this machine can run.
    pub target: Option<Target>,
    /// Sizes of the caches for tiling. By default, these are the sizes in the target's row, or this
    /// machine's if no target is given. A named target therefore gives the same plan on every
    /// machine.
    pub caches: Option<CoreCaches>,
    /// Options of passes; they override the fields below.
    pub passes: OptionSet,
    /// Max number of tokens in a step. Longer prompts take several steps. The default is the result
    /// of [`step_tokens`] for the model.
    pub max_tokens: Option<u32>,
    /// Whether weights are packed; by default, the target's kernels decide.
    pub pack: Option<bool>,
    /// Bytes of memory for experts. If all experts need more, the plan loads each layer's experts
    /// when they are needed. `None` keeps all experts in memory.
    pub expert_memory: Option<u64>,
    /// Number of experts of the next layer that are predicted, in addition to the number that a
    /// token uses. It only matters if not all experts fit in memory. `None` predicts nothing.
    pub predict_extra: Option<u32>,
    /// Number of each token's lowest-weighted experts that are computed one layer later; 0 for
    /// none. It changes the model's results.
    pub defer: u32,
    /// Intermediate IR from which compilation starts, instead of the model's own graph. Options
    /// then affect the remaining passes only.
    pub start: Option<Arc<Stop>>,
    /// Kernels that replace generated ones of the same name.
    pub kernels: Arc<Replacements>,
    /// Measured choices that are faster than those derived from cache sizes.
    pub tuned: Option<Arc<TunedFile>>,
    /// Recorder of the decisions of passes.
    pub decisions: Option<Arc<Decisions>>,
    /// Recorder of the outputs of passes.
    pub recording: Option<Arc<Recording>>,
}

/// Name of this module in recorded decisions.
pub const DECIDES: &str = "compile";
/// Average number of rows for each expert in a prefill step. The rows share the cost of loading and
/// unpacking the expert.
const EXPERT_ROWS: u32 = 128;
/// Max number of tokens in a step. Each token takes memory, and progress and interruption happen
/// between steps.
const MOST_TOKENS: u32 = 2048;

/// Default max number of tokens in a step that takes a whole text. It is the context of typical
/// models for such texts.
const MOST_OF_TEXT: u32 = 8192;

/// Returns the max number of tokens in a step. It is 512, or more if each expert of the model would
/// get too few rows. For example, it is 2048 for a model that uses 8 of 128 experts per token. If a
/// step takes a whole text, it is the model's context length, at most 8192.
pub fn step_tokens(model: &Hyper) -> u32 {
    if !model.causal {
        return u32::try_from(model.context_length).unwrap_or(u32::MAX).min(MOST_OF_TEXT);
    }
    let layers = model.layers.iter().filter_map(|layer| layer.experts.as_ref());
    layers.map(|experts| step_of(experts.count, experts.used)).max().unwrap_or(DEFAULT_MAX_TOKENS)
}

/// Returns the step size for a layer that uses `used` of its `experts` for each token.
fn step_of(experts: u64, used: u64) -> u32 {
    let tokens = experts.saturating_mul(EXPERT_ROWS.into()).div_ceil(used.max(1));
    u32::try_from(tokens).unwrap_or(u32::MAX).clamp(DEFAULT_MAX_TOKENS, MOST_TOKENS)
}

impl Default for CompileOptions {
    /// Returns the default options for this machine.
    fn default() -> CompileOptions {
        CompileOptions {
            target: None,
            caches: None,
            passes: OptionSet::default(),
            max_tokens: None,
            pack: None,
            expert_memory: None,
            predict_extra: None,
            defer: 0,
            start: None,
            kernels: Arc::default(),
            tuned: None,
            decisions: None,
            recording: None,
        }
    }
}

impl CompileOptions {
    /// Returns the target of the kernels.
    pub fn target(&self) -> Target {
        self.target.unwrap_or_else(Target::native)
    }
}

/// Result of a compilation.
#[derive(Clone, Debug)]
pub struct Compilation {
    /// The graph after all graph passes; empty if the compilation started from later IR.
    pub fused: Module,
    /// The plan.
    pub plan: Plan<Kernel>,
    /// Names of kernels that replaced generated ones.
    pub replaced: Vec<String>,
    /// Number of weights with a measured tiling, and the file that has the measurements.
    pub tuned: Option<(usize, PathBuf)>,
}

/// Compiles a model.
///
/// # Errors
/// Fails if the graph needs an operation that no kernel has.
pub fn compile(model: &Model, options: &CompileOptions) -> Result<Compilation, Error> {
    let begin = Instant::now();
    let (fused, plan) = specs(model, options)?;
    finish(fused, with_kernels(plan, options.target())?, options, begin)
}

/// Completes a compilation that started at time `begin`. Replaces kernels of its plan, and counts
/// the weights with measured tilings.
///
/// # Errors
/// Fails if a kernel cannot be replaced.
pub fn finish(
    fused: Module,
    mut plan: Plan<Kernel>,
    options: &CompileOptions,
    begin: Instant,
) -> Result<Compilation, Error> {
    let replaced = options.kernels.put_into(&mut plan)?;
    let target = options.target().name();
    tracing::info!(kernels = plan.kernels.len(), target, elapsed = ?begin.elapsed(), "plan made");
    let tuned = options.tuned.as_ref().map(|tuned| (tuned::weights(&fused), tuned.path.clone()));
    let tuned = tuned.filter(|(weights, _)| *weights > 0);
    Ok(Compilation { fused, plan, replaced, tuned })
}

/// Returns a plan with generated kernels in place of their specs.
///
/// # Errors
/// Fails if no kernel can do what a spec requires.
pub fn with_kernels(plan: Plan<KernelSpec>, target: Target) -> Result<Plan<Kernel>, Error> {
    GeneratedKernels::new(target).put_into(plan)
}

/// Kernels of earlier plans for a target, by spec. A later plan of the same model uses them, so
/// that each kernel is generated once.
#[derive(Debug)]
pub struct GeneratedKernels {
    target: Target,
    kernels: HashMap<KernelSpec, Kernel>,
    kernel_count: usize,
}

impl GeneratedKernels {
    /// Creates an empty set for a target.
    pub fn new(target: Target) -> GeneratedKernels {
        GeneratedKernels { target, kernels: HashMap::new(), kernel_count: 0 }
    }

    /// Returns the number of kernels that were generated, for all plans.
    pub fn kernel_count(&self) -> usize {
        self.kernel_count
    }

    /// Adds the kernels of a finished plan. `specs` are the specs of the plan, in its order.
    pub fn add(&mut self, specs: Vec<KernelSpec>, kernels: Vec<Kernel>) {
        self.kernels.extend(specs.into_iter().zip(kernels));
    }

    /// Replaces the specs of a plan with kernels: moves the kernels that exist into the plan, and
    /// generates the missing ones.
    ///
    /// # Errors
    /// Fails if no kernel can do what a spec requires.
    pub fn put_into(&mut self, plan: Plan<KernelSpec>) -> Result<Plan<Kernel>, Error> {
        let missing: Vec<_> = plan.kernels.iter().filter(|spec| !self.kernels.contains_key(spec)).cloned().collect();
        self.kernel_count += missing.len();
        let kernels = parallel::map(&missing, |spec| generate(spec, self.target));
        for (spec, kernel) in missing.into_iter().zip(kernels) {
            self.kernels.insert(spec, kernel?);
        }
        // A plan has each spec only once, so a kernel can be moved out of the set.
        Ok(plan.try_map_kernels(|spec| self.kernels.remove(&spec).map_or_else(|| generate(&spec, self.target), Ok))?)
    }
}

/// Returns a model's graph after all passes, and its plan with specs in place of kernels.
///
/// # Errors
/// See [`compile`].
pub fn specs(model: &Model, options: &CompileOptions) -> Result<(Module, Plan<KernelSpec>), Error> {
    let last = manager::names().last().copied();
    let (fused, left) = graph_and_left(model, options, last, None)?;
    Ok((fused, plan_of(left)?))
}

/// Runs the remaining passes of a model up to `last`; `None` runs no pass. Calls `watch` after each
/// pass with its result, and whether the pass changed anything.
///
/// # Errors
/// See [`compile`]. Also fails if compilation starts from the output of a pass after `last`.
pub fn passes_left(
    model: &Model,
    options: &CompileOptions,
    last: Option<&'static str>,
    watch: &mut Watch<'_>,
) -> Result<Ir, Error> {
    graph_and_left(model, options, last, Some(watch)).map(|(_, left)| left)
}

/// Runs the remaining passes like [`passes_left`]. Returns the result, and the graph that was
/// lowered (empty if none was). Copies the first IR once, because `model` or `options` keep it;
/// only `watch` needs more copies.
fn graph_and_left(
    model: &Model,
    options: &CompileOptions,
    last: Option<&'static str>,
    watch: Option<&mut Watch<'_>>,
) -> Result<(Module, Ir), Error> {
    let passes = passes_to(options, last)?;
    let ir = begin(model, options)?;
    run_owned(model, options, ir, passes, watch)
}

/// Returns the remaining passes up to `last`; `None` means no pass.
///
/// # Errors
/// [`Error::BehindPass`].
pub fn passes_to(options: &CompileOptions, last: Option<&'static str>) -> Result<&'static [&'static Pass], Error> {
    let start = options.start.as_deref();
    let after = start.and_then(|start| start.after);
    let passes = start.map_or(PASSES, |start| start.passes());
    let count = match last.filter(|last| after != Some(last)) {
        Some(last) => {
            let at = passes.iter().position(|pass| pass.name == last);
            at.ok_or_else(|| Error::BehindPass { start: after.unwrap_or_default(), last })? + 1
        }
        None => 0,
    };
    Ok(&passes[..count])
}

/// Returns a copy of the IR on which the first remaining pass runs. Records the decisions that come
/// before all passes.
pub(crate) fn begin(model: &Model, options: &CompileOptions) -> Result<Ir, Error> {
    if let Some(tuned) = &options.tuned {
        tuned.check(options.target())?;
    }
    record_step_tokens(model, options);
    let start = options.start.as_deref();
    Ok(start.map_or_else(|| Ir::Graph(model.arch.module.clone()), |start| start.ir.clone()))
}

/// Runs passes on IR of a model. Returns the result, and the graph that was lowered (empty if none
/// was).
pub(crate) fn run_owned(
    model: &Model,
    options: &CompileOptions,
    ir: Ir,
    passes: &[&'static Pass],
    watch: Option<&mut Watch<'_>>,
) -> Result<(Module, Ir), Error> {
    let mut record = options.recording.as_deref().map(Recording::watch);
    let mut watch: Option<&mut Watch<'_>> = match (watch, &mut record) {
        (Some(watch), _) => Some(watch),
        (None, Some(record)) => Some(record),
        (None, None) => None,
    };
    let graph_passes = passes.iter().position(|pass| !matches!(pass.run, Run::Graph(_))).unwrap_or(passes.len());
    let (on_graph, rest) = passes.split_at(graph_passes);
    let own = context(options, None);
    // Only lowering needs properties of the model that are not in its graph.
    match manager::run_watched(ir, on_graph, &own, watch.as_deref_mut())? {
        Ir::Graph(module) if !rest.is_empty() => {
            let weights = FileWeights::new(&model.gguf, &module);
            let own = Context { facts: Some(facts(model, options, &weights)?), ..own };
            let left = manager::run_on(&module, rest, &own, watch)?;
            model.gguf.check_readable()?;
            Ok((module, left))
        }
        ir if rest.is_empty() => Ok((Module::default(), ir)),
        ir => Ok((Module::default(), manager::run_watched(ir, rest, &own, watch)?)),
    }
}

/// Returns the plan that the passes returned.
///
/// # Errors
/// Fails if the passes returned IR other than a plan.
pub fn plan_of(ir: Ir) -> Result<Plan<KernelSpec>, Error> {
    match ir {
        Ir::Plan(plan) => Ok(*plan),
        other @ (Ir::Graph(_) | Ir::Draft(_)) => {
            Err(PassError::Left { expected: "a plan", found: other.kind() }.into())
        }
    }
}

/// Returns the tasks of a model's graph, made for threads.
///
/// # Errors
/// See [`compile`].
pub fn lower_module(model: &Model, fused: &Module, options: &CompileOptions) -> Result<Draft, Error> {
    match run_on(model, fused, options, &[lower::PASS.name])? {
        Ir::Draft(draft) => Ok(*draft),
        other @ (Ir::Graph(_) | Ir::Plan(_)) => Err(PassError::Left { expected: "tasks", found: other.kind() }.into()),
    }
}

fn run_on(model: &Model, fused: &Module, options: &CompileOptions, passes: &[&str]) -> Result<Ir, Error> {
    let weights = FileWeights::new(&model.gguf, fused);
    record_step_tokens(model, options);
    let facts = facts(model, options, &weights)?;
    let passes = passes.iter().map(|name| manager::find(name)).collect::<Result<Vec<_>, _>>()?;
    let left = manager::run_on(fused, &passes, &context(options, Some(facts)), None)?;
    model.gguf.check_readable()?;
    Ok(left)
}

/// Returns the properties of a model that a plan needs but a graph does not contain.
///
/// # Errors
/// Fails if a file's path cannot be stored in a plan.
pub fn facts<'a>(
    model: &Model,
    options: &CompileOptions,
    weights: &'a FileWeights<'_>,
) -> Result<PlanProperties<'a>, Error> {
    Ok(PlanProperties {
        architecture: model.arch.hyper.architecture.clone(),
        max_tokens: options.max_tokens.unwrap_or_else(|| step_tokens(&model.arch.hyper)),
        context_length: u32::try_from(model.arch.hyper.context_length).unwrap_or(u32::MAX),
        result_width: result_width(&model.arch.module),
        result: match model.arch.output {
            Output::Logits => GraphResult::Logits,
            Output::Hidden { pooling, unit } => {
                // A plan cannot represent a larger vocabulary.
                let vocabulary = u32::try_from(model.arch.hyper.vocabulary).unwrap_or(u32::MAX);
                GraphResult::Hidden { vocabulary, pooling, unit }
            }
            Output::Experts => {
                GraphResult::Experts { vocabulary: u32::try_from(model.arch.hyper.vocabulary).unwrap_or(u32::MAX) }
            }
        },
        files: source_files(&model.gguf)?,
        derived: model.gguf.derived_tensors().cloned().collect(),
        tokenizer: encode_tokenizer(&model.vocabulary)?,
        weights,
    })
}

/// Returns the number of elements in a row of the model's result; 0 if it has none.
fn result_width(module: &Module) -> u64 {
    let step = module.functions.iter().find(|function| function.name == "step");
    let dims = step.and_then(|step| step.results.first().map(|&result| step.ty(result).dims().to_vec()));
    dims.and_then(|dims| dims.last().and_then(Dim::fixed)).unwrap_or(0)
}

/// Records the decision about the number of tokens in a prefill step.
fn record_step_tokens(model: &Model, options: &CompileOptions) {
    let Some(decisions) = &options.decisions else { return };
    let tokens = step_tokens(&model.arch.hyper);
    decisions.begin(DECIDES);
    let decision = Decision::new("a prefill step", "", "tokens");
    decisions.add(match options.max_tokens.filter(|asked| *asked != tokens) {
        Some(asked) => {
            decision.chose(asked.to_string()).over(tokens.to_string(), format!("the user requested {asked} tokens"))
        }
        None if !model.arch.hyper.causal => decision
            .chose(tokens.to_string())
            .over(DEFAULT_MAX_TOKENS.to_string(), "attention is not causal, so one step must hold the whole text"),
        None if tokens > DEFAULT_MAX_TOKENS => {
            let why = format!("an expert would get fewer than {EXPERT_ROWS} rows of a step on average");
            decision.chose(tokens.to_string()).over(DEFAULT_MAX_TOKENS.to_string(), why)
        }
        None => {
            let why = "longer steps take more memory, and are not faster";
            decision.chose(tokens.to_string()).over(MOST_TOKENS.to_string(), why)
        }
    });
}

/// Returns the context of passes.
pub fn context<'a>(options: &CompileOptions, facts: Option<PlanProperties<'a>>) -> Context<'a> {
    let CompileOptions { caches, pack, expert_memory, predict_extra, defer, .. } = *options;
    let told = OptionSet::default()
        .with(&defer::DeferOptions { experts: defer })
        .with(&residency::ResidencyOptions { memory: expert_memory, predict: predict_extra })
        .with(&pack::PackOptions { weights: pack.unwrap_or(true) });
    let target = options.target();
    let row = target.row();
    let own = || if options.target.is_none() { CoreCaches::here(row) } else { row.caches() };
    let caches = caches.unwrap_or_else(own);
    let told = told.over(&options.passes);
    let told = match &options.tuned {
        Some(tuned) => tuned.tell(told, target, &caches, options.target.is_none()),
        None => told,
    };
    Context { target, caches, options: told, facts, decisions: options.decisions.clone() }
}

/// Runs the passes up to and including `pass`, and returns the result.
///
/// # Errors
/// See [`compile`]. Also fails for an unknown pass.
pub fn stop_after(model: &Model, options: &CompileOptions, pass: &str) -> Result<Stop, Error> {
    let last = Some(manager::find(pass)?.name);
    let (_, ir) = graph_and_left(model, options, last, None)?;
    Ok(Stop { ir, after: last })
}

/// Runs some passes on an intermediate IR of a model.
///
/// # Errors
/// See [`compile`]. Also fails if a pass takes another kind of IR.
pub fn run_passes(model: &Model, options: &CompileOptions, ir: Ir, passes: &[&str]) -> Result<Ir, Error> {
    let passes = passes.iter().map(|name| manager::find(name)).collect::<Result<Vec<_>, _>>()?;
    record_step_tokens(model, options);
    run_owned(model, options, ir, &passes, None).map(|(_, left)| left)
}

/// Returns a model's graph after all passes.
///
/// # Errors
/// Fails if all experts of a token would be deferred, or if there are no experts to defer. Any
/// other error of a pass is a bug, since architectures build verified graphs.
pub fn fuse(model: &Model, options: &CompileOptions) -> Result<Module, Error> {
    let passes = manager::graph_passes();
    Ok(manager::run_pipeline(model.arch.module.clone(), &passes, &context(options, None))?)
}

/// Returns the machine code of several kernels as one text.
///
/// # Errors
/// Fails if a kernel has no code for the target.
pub fn assembly<'k>(kernels: impl IntoIterator<Item = &'k Kernel>, target: Target) -> Result<String, Error> {
    let listing = |(number, kernel): (usize, &Kernel)| {
        let artifact = Artifact::generate(kernel, target, true)?;
        Ok(artifact.listing(kernel, number))
    };
    let listings = kernels.into_iter().enumerate().map(listing).collect::<Result<Vec<_>, Error>>()?;
    Ok(listings.join("\n"))
}

fn source_files(gguf: &Gguf) -> Result<Vec<SourceFile>, Error> {
    let files = gguf.files().iter().map(|file| {
        let identity = file.identity();
        let path = match file.is_mapped() {
            true => std::path::absolute(&identity.path).map_err(Error::io(&identity.path, "find"))?,
            false => identity.path,
        };
        let path = path.to_str().ok_or_else(|| Error::PathNotUtf8 { path: path.clone() })?.to_owned();
        let (bytes, header_crc, header_bytes) = (identity.bytes, identity.header_crc, identity.header_bytes);
        Ok(SourceFile { path, bytes, header_crc, header_bytes })
    });
    files.collect()
}

/// Encodes a tokenizer's spec for storage in a plan.
///
/// # Errors
/// Never fails for a spec that was read from a file.
pub fn encode_tokenizer(spec: &TokenizerSpec) -> Result<Vec<u8>, Error> {
    postcard::to_allocvec(spec).map_err(|source| Error::PlanTokenizer { source: source.into() })
}

/// Decodes the tokenizer's spec of a plan. The spec is checked later, when a tokenizer is built
/// from it.
///
/// # Errors
/// [`Error::PlanTokenizer`].
pub fn decode_tokenizer(bytes: &[u8]) -> Result<TokenizerSpec, Error> {
    decode::take_from_bytes(bytes).map(|(spec, _)| spec).map_err(|source| Error::PlanTokenizer { source })
}

/// Target of `compile`: a processor, or a grid of processing elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileTarget {
    /// A processor, by the name of its target.
    Processor(TargetName),
    /// A grid of processing elements, by its name or its file.
    Dataflow(String),
}

impl FromStr for CompileTarget {
    type Err = String;

    fn from_str(name: &str) -> Result<CompileTarget, String> {
        match name.strip_prefix("dataflow:") {
            Some(grid) => Ok(CompileTarget::Dataflow(grid.to_owned())),
            None => name
                .parse()
                .map(CompileTarget::Processor)
                .map_err(|error| format!("{error}; or dataflow:GRID, where GRID is the name of a grid or a TOML file")),
        }
    }
}

impl fmt::Display for CompileTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompileTarget::Processor(target) => target.fmt(f),
            CompileTarget::Dataflow(grid) => write!(f, "dataflow:{grid}"),
        }
    }
}

/// A processor target by name, or `native`: the best target that this machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetName {
    /// The target.
    pub target: Target,
    /// Caches for tiling: this machine's for `native`, those of its row for a named target.
    pub caches: Option<CoreCaches>,
}

impl FromStr for TargetName {
    type Err = String;

    fn from_str(name: &str) -> Result<TargetName, String> {
        let native = || TargetName { target: Target::native(), caches: Some(CoreCaches::here(Target::native().row())) };
        let named = || Target::from_name(name).map(|target| TargetName { target, caches: None });
        if name == "native" { Some(native()) } else { named() }.ok_or_else(|| {
            let names: Vec<_> = ixc_targets::TARGETS.iter().map(|row| row.name).collect();
            format!("targets are native, {}", names.join(", "))
        })
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.target.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_steps_are_longer_with_many_experts() {
        let steps =
            [(1, 1), (8, 2), (64, 8), (64, 6), (128, 8), (u64::MAX, 0)].map(|(count, used)| step_of(count, used));
        assert_eq!(steps, [512, 512, 1024, 1366, 2048, 2048]);
    }
}
