//! Which model a command works on, and for what target.

use std::path::PathBuf;

use ixc::codegen::target::Target;
use ixc::compile::TargetName;
use ixc::model::Model;
use ixc::runtime::engine::ExpertStore;
use ixc::session::SessionOptions;

use super::BadInput;
use super::output::note;
use super::prefetch::{CacheChoice, PrefetchChoice};
use super::size::Size;

/// A model: a path, or the built-in demo model.
#[derive(Debug, clap::Args)]
pub struct ModelChoice {
    /// The model; without one, the built-in demo model.
    model: Option<PathBuf>,
    /// The same, as llama.cpp spells it.
    #[arg(short, long = "model", value_name = "MODEL", conflicts_with = "model", hide = true)]
    model_option: Option<PathBuf>,
}

impl ModelChoice {
    /// Its path, unless it is the demo model.
    pub fn path(&self) -> Option<&PathBuf> {
        self.model.as_ref().or(self.model_option.as_ref())
    }

    /// Opens it.
    pub fn open(&self) -> anyhow::Result<Model> {
        Ok(match self.path() {
            Some(path) => Model::open(path)?,
            None => Model::new(ixc::demo::open()?)?,
        })
    }
}

/// The target of a command that runs a model.
#[derive(Debug, clap::Args)]
pub struct TargetChoice {
    /// What to generate code for: native, a target or a CPU of `ixc doctor`; a plan is for one target already.
    #[arg(long)]
    target: Option<TargetName>,
}

impl TargetChoice {
    /// The target, if one is named.
    pub fn target(&self) -> Option<Target> {
        self.target.map(|target| target.0)
    }
}

/// Where experts are, of a command that runs a model.
#[derive(Clone, Copy, Debug, clap::Args)]
struct ExpertsChoice {
    /// Where the experts of a model are that do not all fit in memory.
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = Experts::Stream)]
    experts: Experts,
    #[command(flatten)]
    queue: QueueChoice,
}

/// How deep the drive's queue is.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct QueueChoice {
    /// Reads of streamed experts that are outstanding at once [default: as `ixc doctor --drive` found, or else as a short look at
    /// the drive says].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    queue_depth: Option<u16>,
}

impl QueueChoice {
    /// Reads at once, if it is said.
    pub fn depth(self) -> Option<usize> {
        self.queue_depth.map(usize::from)
    }
}

/// Where experts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Experts {
    /// Read from the drive when they are needed, within a budget.
    Stream,
    /// In the mapped file: the page cache keeps what it likes, and is told what will be needed. No budget holds but a control group's.
    Map,
}

impl ExpertsChoice {
    /// As the runtime takes it.
    ///
    /// # Errors
    /// Where there is a budget, too, which mapped files do not keep.
    fn store(self, memory: &MemoryChoice) -> anyhow::Result<ExpertStore> {
        match self.experts {
            Experts::Stream => Ok(ExpertStore::Stream),
            Experts::Map if memory.bytes().is_some() => {
                let problem = "--memory is a budget, which --experts map cannot keep: the page cache has no limit of its own; \
                               leave --memory out and run it in a control group, or leave --experts out";
                Err(BadInput(problem.into()).into())
            }
            Experts::Map => Ok(ExpertStore::Map),
        }
    }
}

/// The memory of a command that runs a model.
#[derive(Clone, Debug, clap::Args)]
pub struct MemoryChoice {
    /// Memory that may be taken, such as 6GiB: experts that do not fit are read from the drive when they are needed [default: all
    /// that is left, where the model is larger than that].
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
}

impl MemoryChoice {
    /// In bytes, if it is said.
    pub fn bytes(&self) -> Option<u64> {
        self.memory.map(|size| size.0)
    }
}

/// Deferral, of a command that compiles.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct DeferChoice {
    /// Compute the N experts of least weight of each token one layer later, so that they can be read meanwhile: the output is
    /// approximate. 0 is off.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub defer: u32,
}

/// What of a model is in memory and how the rest comes there, of a command that runs a model.
#[derive(Clone, Debug, clap::Args)]
pub struct StreamingChoice {
    #[command(flatten)]
    memory: MemoryChoice,
    #[command(flatten)]
    experts: ExpertsChoice,
    #[command(flatten)]
    prefetch: PrefetchChoice,
    #[command(flatten)]
    cache: CacheChoice,
    #[command(flatten)]
    deferral: DeferChoice,
}

impl StreamingChoice {
    /// Experts of a token that are computed one layer later.
    pub fn defer(&self) -> u32 {
        self.deferral.defer
    }

    /// As a session takes it; all else is the default.
    ///
    /// # Errors
    /// Where there is a budget for mapped files.
    pub fn options(&self) -> anyhow::Result<SessionOptions> {
        let experts = self.experts.store(&self.memory)?;
        if let Some((option, why)) = self.prefetch.without_effect(experts == ExpertStore::Map) {
            note!("ixc: {option} is without effect: {why}");
        }
        Ok(SessionOptions {
            memory: self.memory.bytes(),
            experts,
            queue_depth: self.experts.queue.depth(),
            prefetch: self.prefetch.settings(),
            cache: self.cache.kind(),
            defer: self.defer(),
            ..SessionOptions::default()
        })
    }
}
