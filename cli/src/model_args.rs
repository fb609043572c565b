//! Options that choose the model of a command, and its target.

use std::path::Path;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ixc_architectures::{Nextn, Parts};
use ixc_compile::compile::{self, TargetName};
use ixc_compile::model::{Input, Model};
use ixc_generate::loaded_model::LoadOptions;
use ixc_passes::options::OptionSet;
use ixc_runtime::engine::{self, BackendKind, ExpertStore};
use ixc_runtime::numa::Numa;
use ixc_runtime::processors::Pin;
use ixc_runtime::streaming::store::Config;
use ixc_targets::{CoreCaches, Target};

use super::Usage;
use super::download::DownloadChoice;
use super::model_name::ModelName;
use super::output::note;
use super::overrides::{ChangeChoice, OverrideCheck};
use super::passes::PassChoice;
use super::perf::PerfChoice;
use super::plan_cache::PlanCacheChoice;
use super::prefetch::{CacheChoice, PrefetchChoice};
use super::ranks;
use super::size::Size;

/// Model of a command that does not take plans.
#[derive(Debug, clap::Args)]
pub struct ModelArgument {
    /// GGUF file (any shard of a split model), folder of safetensors, or ORG/NAME from Hugging
    /// Face's cache [default: `demo`, the built-in model].
    #[arg(value_parser = ModelName::parser())]
    model: Option<ModelName>,
    /// Same as MODEL, in llama.cpp's spelling.
    #[arg(short, long = "model", value_name = "MODEL", value_parser = ModelName::parser(), conflicts_with = "model", hide = true)]
    model_option: Option<ModelName>,
    #[command(flatten)]
    _download: DownloadChoice,
}

impl ModelArgument {
    /// Returns the model's path, or `None` for the demo model.
    pub fn path(&self) -> Option<&Path> {
        self.model.as_ref().or(self.model_option.as_ref())?.path()
    }

    /// Opens the model.
    pub fn open(&self) -> anyhow::Result<Model> {
        open(self.path())
    }

    /// Opens the model for display: [`Model::to_see`].
    pub fn open_for_display(&self) -> anyhow::Result<Model> {
        let gguf = match self.path() {
            Some(path) => Input::open(path)?.model(path)?,
            None => ixc_compile::demo::open()?,
        };
        Ok(Model::to_see(gguf)?)
    }

    /// Opens the model, and builds the graph of these parts only.
    pub fn open_parts(&self, parts: Parts) -> anyhow::Result<Model> {
        Ok(match self.path() {
            Some(path) => Model::open_parts(path, parts)?,
            None => Model::of_parts(ixc_compile::demo::open()?, parts)?,
        })
    }
}

/// Opens a model, or the demo model.
pub fn open(path: Option<&Path>) -> anyhow::Result<Model> {
    Ok(match path {
        Some(path) => Model::open(path)?,
        None => Model::new(ixc_compile::demo::open()?)?,
    })
}

/// Model or plan, for a command that takes either.
#[derive(Debug, clap::Args)]
pub struct ModelChoice {
    // The text is help, not Markdown.
    #[allow(rustdoc::broken_intra_doc_links)]
    /// GGUF file, plan, folder of safetensors, or ORG/NAME[:QUANT] from Hugging Face's cache
    /// [default: `demo`, the built-in model].
    #[arg(value_parser = ModelName::parser())]
    model: Option<ModelName>,
    /// Model file of a plan, if that file was moved: any shard of a split model. Without MODEL,
    /// this is the model to run.
    #[arg(short, long = "model", value_name = "FILE", value_parser = ModelName::parser())]
    model_file: Option<ModelName>,
    #[command(flatten)]
    _download: DownloadChoice,
}

impl ModelChoice {
    /// Returns the path of the model or plan; `None` for the demo model.
    pub fn path(&self) -> Option<&Path> {
        self.model.as_ref().or(self.model_file.as_ref())?.path()
    }

    /// Returns whether a model is named.
    pub fn is_given(&self) -> bool {
        self.model.is_some() || self.model_file.is_some()
    }

    /// Returns the model file of a plan, if it was named.
    pub fn file(&self) -> Option<&Path> {
        self.model.as_ref().and(self.model_file.as_ref())?.path()
    }

    /// Returns the paths of the model and of its model file, if they are named.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.model, &self.model_file].into_iter().flatten().filter_map(ModelName::path)
    }

    /// Returns the model's path, or the name of the demo model, for messages.
    pub fn name(&self) -> &Path {
        self.path().unwrap_or(Path::new(ixc_compile::demo::NAME))
    }

    /// Opens the model.
    pub fn open(&self) -> anyhow::Result<Model> {
        let model = open(self.path())?;
        match self.file() {
            Some(_) => Err(ixc_generate::Error::NotPlan { path: self.name().to_owned() }.into()),
            None => Ok(model),
        }
    }
}

/// Returns the backend that runs kernels.
pub fn backend(emulate: bool) -> BackendKind {
    if emulate { BackendKind::Emulated } else { BackendKind::Native }
}

/// Target of a command that runs a model.
#[derive(Debug, clap::Args)]
pub struct TargetChoice {
    /// Target or CPU to generate code for: `native`, or a name that `ixc doctor` lists. A plan
    /// already has its target.
    #[arg(long)]
    target: Option<TargetName>,
}

impl TargetChoice {
    /// Returns the target, if the user named one.
    pub fn target(&self) -> Option<Target> {
        self.target.map(|target| target.target)
    }

    /// Returns the cache sizes for tiling, if they differ from those in the target's table row.
    pub fn caches(&self) -> Option<CoreCaches> {
        self.target.and_then(|target| target.caches)
    }
}

/// Option for binding threads to processors, for commands that run a model.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct PinChoice {
    /// Pin each thread to its own core. `auto` pins if there is one thread per core and the machine
    /// is idle; `on` pins wherever the system allows.
    #[arg(long, value_name = "WHEN", default_value = "off", value_parser = PossibleValuesParser::new(Pin::ALL.map(|(name, _)| name)).try_map(|name| name.parse::<Pin>()))]
    pub pin: Pin,
}

/// Option for NUMA nodes, for commands that run a model.
#[derive(Clone, Debug, clap::Args)]
pub struct NumaChoice {
    /// Use of NUMA nodes: `cut` runs a part of the model on each, `mirror` copies all weights to
    /// each. `auto` is `cut` if there are several nodes.
    #[arg(long, value_name = "HOW", default_value = "off", value_parser = PossibleValuesParser::new(Numa::ALL.map(|(name, _)| name)).try_map(|name| name.parse::<Numa>()))]
    pub numa: Numa,
}

/// Storage of experts, for a command that runs a model.
#[derive(Clone, Copy, Debug, clap::Args)]
struct ExpertsChoice {
    /// Storage of experts if not all of them fit in memory.
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = Experts::Stream)]
    experts: Experts,
    #[command(flatten)]
    queue: QueueChoice,
}

/// Option for the queue depth of the drive.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct QueueChoice {
    /// Max number of outstanding reads of experts [default: the result of `ixc doctor --drive`, or
    /// a short measurement].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    queue_depth: Option<u16>,
}

impl QueueChoice {
    /// Returns the number of reads in flight at once, if it was given.
    pub fn depth(self) -> Option<usize> {
        self.queue_depth.map(usize::from)
    }
}

/// Storage of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Experts {
    /// Read from the drive when needed, within the memory budget.
    Stream,
    /// Experts stay in the mapped file. The kernel's page cache decides which are in memory, with
    /// hints about coming experts. Only a control group limits memory.
    Map,
}

impl ExpertsChoice {
    /// Returns the chosen storage of experts as the runtime's type.
    ///
    /// # Errors
    /// If there is also a memory budget: with mapped files, no budget can be guaranteed.
    fn store(self, memory: &MemoryChoice) -> anyhow::Result<ExpertStore> {
        match self.experts {
            Experts::Stream => Ok(ExpertStore::Stream),
            Experts::Map if memory.bytes().is_some() => {
                let problem = "--experts map cannot keep the budget of --memory, since ixc cannot limit the page cache; leave --memory out and run ixc in a control group, or leave --experts out";
                Err(Usage(problem.into()).into())
            }
            Experts::Map => Ok(ExpertStore::Map),
        }
    }
}

/// Memory of a command that runs a model.
#[derive(Clone, Debug, clap::Args)]
pub struct MemoryChoice {
    /// Memory budget, such as 6GiB. Experts beyond it are read from the drive when needed [default:
    /// the free memory, if the model is larger].
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
}

impl MemoryChoice {
    /// Returns the budget in bytes, if it was given.
    pub fn bytes(&self) -> Option<u64> {
        self.memory.map(|size| size.0)
    }
}

/// Option for deferral of experts, for commands that compile.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct DeferChoice {
    /// Defer each token's N lowest-weighted experts by one layer, which gives time to read them; 0
    /// is off. The output becomes approximate.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub defer: u32,
}

/// Memory and streaming options of a command that runs a model.
#[derive(Clone, Debug, clap::Args)]
pub struct StreamingChoice {
    #[command(flatten)]
    memory: MemoryChoice,
    /// Lock weights in memory, so that the system never swaps or drops them. Streamed and mapped
    /// experts are not locked.
    #[arg(long)]
    mlock: bool,
    #[command(flatten)]
    experts: ExpertsChoice,
    #[command(flatten)]
    prefetch: PrefetchChoice,
    #[command(flatten)]
    cache: CacheChoice,
    #[command(flatten)]
    deferral: DeferChoice,
    #[command(flatten)]
    passes: PassChoice,
    #[command(flatten)]
    changes: ChangeChoice,
    #[command(flatten)]
    override_check: OverrideCheck,
}

impl StreamingChoice {
    /// Returns the number of a token's experts that are computed one layer later.
    pub fn defer(&self) -> u32 {
        self.deferral.defer
    }

    /// Returns the memory budget in bytes, if it was given.
    pub fn memory(&self) -> Option<u64> {
        self.memory.bytes()
    }

    /// Returns the options of the passes.
    ///
    /// # Errors
    /// Never for options that clap has parsed.
    pub fn pass_options(&self) -> Result<OptionSet, ixc_error::Error> {
        self.passes.options()
    }

    /// Returns the options for loading a model. Options without an argument keep their defaults.
    ///
    /// # Errors
    /// If there is a memory budget and experts are mapped.
    pub fn options(&self) -> anyhow::Result<LoadOptions> {
        let experts = self.experts.store(&self.memory)?;
        if let Some((option, why)) = self.prefetch.without_effect(experts == ExpertStore::Map) {
            note!("ixc: {option} has no effect: {why}");
        }
        let stream = Config { policy: self.cache.kind(), ..Config::default() };
        let (memory, prefetch) = (self.memory.bytes(), self.prefetch.settings());
        let compile = compile::CompileOptions {
            defer: self.defer(),
            passes: self.passes.options()?,
            ..compile::CompileOptions::default()
        };
        Ok(LoadOptions {
            compile: self.changes.over(compile, self.override_check)?,
            run: engine::EngineOptions {
                memory,
                experts,
                prefetch,
                stream,
                lock: self.mlock,
                transport: ranks::transport(),
                ..engine::EngineOptions::default()
            },
            embeddings: false,
            nextn: Nextn::Absent,
            queue_depth: self.experts.queue.depth(),
            longest_context: None,
            model_file: None,
            plan_cache: None,
        })
    }
}

/// Threads, context, target and memory of a command that generates text.
#[derive(Debug, clap::Args)]
pub struct RunChoice {
    /// Number of threads [default: one per core].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    pin: PinChoice,
    #[command(flatten)]
    nodes: NumaChoice,
    /// Context length in tokens: positions of the KV cache, for each request [default: the model's,
    /// at most 4096; in `ixc serve`, as memory allows].
    #[arg(short = 'c', long = "ctx", alias = "ctx-size", value_name = "N")]
    context: Option<u64>,
    #[command(flatten)]
    target: TargetChoice,
    /// Do not pack weights: read them in the model file's layout, even if packed kernels are
    /// faster.
    #[arg(long)]
    no_pack: bool,
    /// Do not verify the checksums of a plan's weights when it is loaded.
    #[arg(long)]
    no_check: bool,
    #[command(flatten)]
    perf: PerfChoice,
    #[command(flatten)]
    plan_cache: PlanCacheChoice,
    #[command(flatten)]
    pub streaming: StreamingChoice,
}

impl RunChoice {
    /// Returns whether the length of the context is given.
    pub fn has_context(&self) -> bool {
        self.context.is_some()
    }

    /// Returns the options for loading a model. Options without an argument keep their defaults.
    ///
    /// # Errors
    /// If there is a memory budget and experts are mapped.
    pub fn options(&self, model: &ModelChoice) -> anyhow::Result<LoadOptions> {
        self.perf.enable()?;
        let streaming = self.streaming.options()?;
        let (target, pack) = (self.target.target(), self.no_pack.then_some(false));
        Ok(LoadOptions {
            compile: compile::CompileOptions { target, caches: self.target.caches(), pack, ..streaming.compile },
            run: engine::EngineOptions {
                threads: self.threads.or_else(ranks::threads),
                pin: self.pin.pin,
                numa: self.nodes.numa,
                context: self.context,
                skip_weight_check: self.no_check,
                ..streaming.run
            },
            model_file: model.file().map(Path::to_owned),
            plan_cache: self.plan_cache.cache(),
            ..streaming
        })
    }
}
