//! From a model to a plan: passes, kernels; with what each stage made kept for those who want to see it.
//!
//! ```
//! use ixc::compile::{Options, compile};
//! use ixc::model::Model;
//!
//! let model = Model::new(ixc::demo::open()?)?;
//! let compiled = compile(&model, &Options::default())?;
//! assert!(compiled.fused.functions[0].ops.len() < model.arch.module.functions[0].ops.len());
//! assert_eq!(compiled.plan.vocabulary, 4096);
//! # Ok::<(), ixc::Error>(())
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use ixc_codegen::module::Artifact;
use ixc_codegen::parallel;
use ixc_frontend::arch::{FileWeights, Hyper, Output};
use ixc_frontend::gguf::Gguf;
use ixc_frontend::tokenizer::TokenizerSpec;
use ixc_ir::graph::Module;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, SourceFile};
use ixc_kernels::{KernelSpec, generate};
use ixc_passes::draft::Draft;
use ixc_passes::error::PassError;
use ixc_passes::manager::{self, Ir};
use ixc_passes::options::OptionSet;
use ixc_passes::pass::{Context, Facts, GraphResult};
use ixc_passes::schedule::{DEFAULT_MAX_TOKENS, lower};
use ixc_passes::{defer, pack, residency};
use ixc_runtime::file::decode;
use ixc_targets::{CoreCaches, Target};

use crate::Error;
use crate::model::Model;

/// How to compile.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to generate kernels for; the best that this machine runs where nothing is said.
    pub target: Option<Target>,
    /// Caches that weights are cut for, where they are not those of the target's row, or of this machine where no target is said. The same
    /// target gives the same plan on every machine.
    pub caches: Option<CoreCaches>,
    /// Options of passes; they win over what is said below.
    pub passes: OptionSet,
    /// Most tokens of a step; longer prompts take several. Where nothing is said, [`step_tokens`] of the model.
    pub max_tokens: Option<u32>,
    /// Whether weights are packed; the target's kernels say so where nothing is said.
    pub pack: Option<bool>,
    /// Bytes that experts may take in memory. Where theirs are more, the plan says when each layer's are needed; `None` keeps all of
    /// them.
    pub expert_memory: Option<u64>,
    /// How many experts more than a token is routed to are predicted for the next layer, where they do not all fit; `None` predicts
    /// nothing.
    pub predict_extra: Option<u32>,
    /// How many of a token's experts, the lowest-weighted, are computed one layer later; 0 for none. It changes what a model computes.
    pub defer: u32,
}

/// Rows that an expert shall have in a step of a prompt, on average: what it costs to bring it in and to unpack it is shared by them.
const EXPERT_ROWS: u32 = 128;
/// Most tokens of a step all the same: what is computed for each takes memory, and one sees how far a prompt is, and stops it, between steps.
const MOST_TOKENS: u32 = 2048;

/// Tokens of a step: 512, or more where a model's experts would get few rows of that: 2048 with 8 experts of 128 for a token.
pub fn step_tokens(model: &Hyper) -> u32 {
    let layers = model.layers.iter().filter_map(|layer| layer.experts.as_ref());
    layers.map(|experts| step_of(experts.count, experts.used)).max().unwrap_or(DEFAULT_MAX_TOKENS)
}

/// The same, where a token is routed to so many of the experts.
fn step_of(experts: u64, used: u64) -> u32 {
    let tokens = experts.saturating_mul(EXPERT_ROWS.into()).div_ceil(used.max(1));
    u32::try_from(tokens).unwrap_or(u32::MAX).clamp(DEFAULT_MAX_TOKENS, MOST_TOKENS)
}

impl Default for Options {
    /// For this machine.
    fn default() -> Options {
        Options {
            target: None,
            caches: None,
            passes: OptionSet::default(),
            max_tokens: None,
            pack: None,
            expert_memory: None,
            predict_extra: None,
            defer: 0,
        }
    }
}

impl Options {
    /// What kernels are generated for.
    pub fn target(&self) -> Target {
        self.target.unwrap_or_else(Target::native)
    }
}

/// What compiling made.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The graph after all passes.
    pub fused: Module,
    /// The plan.
    pub plan: Plan<Kernel>,
}

/// Compiles a model.
///
/// # Errors
/// When its graph asks for what no kernel does.
pub fn compile(model: &Model, options: &Options) -> Result<Compiled, Error> {
    let (begin, target) = (Instant::now(), options.target());
    let (fused, plan) = specs(model, options)?;
    let mut kernels = parallel::map(&plan.kernels, |spec| generate(spec, target)).into_iter();
    // As many as there are specs.
    let plan = plan.try_map_kernels(|spec| kernels.next().unwrap_or_else(|| generate(&spec, target)))?;
    tracing::info!(kernels = plan.kernels.len(), target = target.name(), elapsed = ?begin.elapsed(), "plan made");
    Ok(Compiled { fused, plan })
}

/// A model's graph after all passes, and its plan with specs in place of kernels.
///
/// # Errors
/// As [`compile`].
pub fn specs(model: &Model, options: &Options) -> Result<(Module, Plan<KernelSpec>), Error> {
    let fused = fuse(model, options)?;
    let plan = scheduled(model, &fused, options)?;
    Ok((fused, plan))
}

/// The plan of a model's graph, with specs in place of kernels.
///
/// # Errors
/// As [`compile`].
pub fn scheduled(model: &Model, fused: &Module, options: &Options) -> Result<Plan<KernelSpec>, Error> {
    match run_on(model, fused, options, &manager::plan_passes())? {
        Ir::Plan(plan) => Ok(*plan),
        other @ (Ir::Graph(_) | Ir::Draft(_)) => {
            Err(PassError::Kind { pass: "none", expected: "a plan", found: other.kind() }.into())
        }
    }
}

/// The tasks of a model's graph, for threads.
///
/// # Errors
/// As [`compile`].
pub fn lowered(model: &Model, fused: &Module, options: &Options) -> Result<Draft, Error> {
    match run_on(model, fused, options, &[lower::PASS.name])? {
        Ir::Draft(draft) => Ok(*draft),
        other @ (Ir::Graph(_) | Ir::Plan(_)) => {
            Err(PassError::Kind { pass: "none", expected: "tasks", found: other.kind() }.into())
        }
    }
}

fn run_on(model: &Model, fused: &Module, options: &Options, passes: &[&str]) -> Result<Ir, Error> {
    let weights = FileWeights::new(&model.gguf, fused);
    let facts = facts(model, options, &weights)?;
    Ok(manager::run(Ir::Graph(fused.clone()), passes, &context(options, Some(facts)))?)
}

/// What a plan says of a model that its graph does not.
///
/// # Errors
/// Where its files have no path that a plan can name.
pub fn facts<'a>(model: &Model, options: &Options, weights: &'a FileWeights<'_>) -> Result<Facts<'a>, Error> {
    Ok(Facts {
        architecture: model.arch.hyper.architecture.clone(),
        max_tokens: options.max_tokens.unwrap_or_else(|| step_tokens(&model.arch.hyper)),
        context_length: u32::try_from(model.arch.hyper.context_length).unwrap_or(u32::MAX),
        result: match model.arch.output {
            Output::Logits => GraphResult::Logits,
            Output::Hidden { pooling } => {
                // A larger vocabulary is no plan's.
                let vocabulary = u32::try_from(model.arch.hyper.vocabulary).unwrap_or(u32::MAX);
                GraphResult::Hidden { vocabulary, pooling }
            }
        },
        files: source_files(&model.gguf)?,
        derived: model.gguf.derived().cloned().collect(),
        tokenizer: encode_tokenizer(&model.vocabulary)?,
        weights,
    })
}

/// What passes are told.
pub fn context<'a>(options: &Options, facts: Option<Facts<'a>>) -> Context<'a> {
    let Options { caches, pack, expert_memory, predict_extra, defer, .. } = *options;
    let told = OptionSet::default()
        .with(&defer::Options { experts: defer })
        .with(&residency::Options { memory: expert_memory, predict: predict_extra })
        .with(&pack::Options { weights: pack.unwrap_or(true) });
    let target = options.target();
    let row = target.row();
    let own = || if options.target.is_none() { CoreCaches::here(row) } else { row.caches() };
    let caches = caches.unwrap_or_else(own);
    Context { target, caches, options: told.over(&options.passes), facts }
}

/// What a pass leaves of a model; those before it are run, too.
///
/// # Errors
/// As [`compile`], and for a name that no pass has.
pub fn after(model: &Model, options: &Options, pass: &str) -> Result<Ir, Error> {
    let last = manager::find(pass)?.name;
    let names = manager::names();
    let end = names.iter().position(|name| *name == last).map_or(0, |at| at + 1);
    run_passes(model, options, Ir::Graph(model.arch.module.clone()), &names[..end])
}

/// Runs passes on what is between some of a model.
///
/// # Errors
/// As [`compile`], and where a pass takes something else.
pub fn run_passes(model: &Model, options: &Options, ir: Ir, passes: &[&str]) -> Result<Ir, Error> {
    // Weights are asked for by their position, which passes leave as it is.
    let module = match &ir {
        Ir::Graph(module) => module.clone(),
        Ir::Draft(_) | Ir::Plan(_) => Module::default(),
    };
    let weights = FileWeights::new(&model.gguf, &module);
    let facts = facts(model, options, &weights)?;
    Ok(manager::run(ir, passes, &context(options, Some(facts)))?)
}

/// A model's graph after all passes.
///
/// # Errors
/// When more experts are to be deferred than can be, or there are none; otherwise when a pass finds the graph wrong: a bug, since
/// architectures build verified graphs.
pub fn fuse(model: &Model, options: &Options) -> Result<Module, Error> {
    let passes = manager::graph_passes();
    Ok(manager::run_pipeline(model.arch.module.clone(), &passes, &context(options, None))?)
}

/// The machine code of kernels, as one text.
///
/// # Errors
/// When the target has no code for one.
pub fn assembly<'k>(kernels: impl IntoIterator<Item = &'k Kernel>, target: Target) -> Result<String, Error> {
    let listing = |(number, kernel): (usize, &Kernel)| {
        let artifact = Artifact::of(kernel, target, true)?;
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

/// A tokenizer's spec as plans hold it.
///
/// # Errors
/// None for a spec that was read from a file.
pub fn encode_tokenizer(spec: &TokenizerSpec) -> Result<Vec<u8>, Error> {
    postcard::to_allocvec(spec).map_err(|source| Error::PlanTokenizer { source: source.into() })
}

/// The tokenizer's spec of a plan; it is checked when a tokenizer is built from it.
///
/// # Errors
/// [`Error::PlanTokenizer`].
pub fn decode_tokenizer(bytes: &[u8]) -> Result<TokenizerSpec, Error> {
    decode::take_from_bytes(bytes).map(|(spec, _)| spec).map_err(|source| Error::PlanTokenizer { source })
}

/// What `compile` makes something for: a processor, or a grid of processing elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileTarget {
    /// A processor.
    Processor(TargetName),
    /// A grid, by its name or its file.
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
                .map_err(|error| format!("{error}; and dataflow:GRID, GRID being a name or a TOML file")),
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

/// A target by name, or `native`: the best that this machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetName {
    /// The target.
    pub target: Target,
    /// Caches that weights are cut for: this machine's for `native`, those of its row for a target by name.
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
    fn steps_are_longer_where_experts_would_get_few_rows() {
        let steps =
            [(1, 1), (8, 2), (64, 8), (64, 6), (128, 8), (u64::MAX, 0)].map(|(count, used)| step_of(count, used));
        assert_eq!(steps, [512, 512, 1024, 1366, 2048, 2048]);
    }
}
