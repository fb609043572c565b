//! A pass, and what it knows beside its IR.

use std::sync::Arc;

use ixc_ir::derived::Derived;
use ixc_ir::graph::Module;
use ixc_ir::graph::interpret::WeightSource;
use ixc_ir::plan::{Plan, Pooling, SourceFile};
use ixc_kernels::KernelSpec;
use ixc_targets::{CoreCaches, Target};

use crate::decision::{Decision, Decisions};
use crate::draft::Draft;
use crate::error::PassError;
use crate::options::{OptionRow, OptionSet, PassOptions};

/// A pass.
#[derive(Debug)]
pub struct Pass {
    /// Name, for `--passes`.
    pub name: &'static str,
    /// One line of documentation.
    pub doc: &'static str,
    /// Its options.
    pub options: &'static [OptionRow],
    /// The pass itself.
    pub run: Run,
}

/// What a pass takes and gives.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// A graph from a graph.
    Graph(fn(Module, &Context<'_>) -> Result<Module, PassError>),
    /// Tasks from a graph.
    Lower(fn(&Module, &Context<'_>) -> Result<Draft, PassError>),
    /// Tasks from tasks.
    Draft(fn(Draft, &Context<'_>) -> Result<Draft, PassError>),
    /// A plan from tasks.
    Plan(fn(Draft, &Context<'_>) -> Result<Plan<KernelSpec>, PassError>),
}

/// What passes know beside their IR.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// What code will be made for.
    pub target: Target,
    /// Caches of a core: those of the target's row, or this machine's for `native`.
    pub caches: CoreCaches,
    /// Options of passes.
    pub options: OptionSet,
    /// What a plan says of a model that its graph does not: `lower` needs it.
    pub facts: Option<Facts<'a>>,
    /// Whom passes tell what they decide, if anybody.
    pub decisions: Option<Arc<Decisions>>,
}

impl Context<'_> {
    /// For a target, with the caches of its row and no options.
    pub fn new(target: Target) -> Context<'static> {
        Context { target, caches: target.row().caches(), options: OptionSet::default(), facts: None, decisions: None }
    }

    /// Tells a decision, which is made only where somebody wants to know.
    pub fn decide(&self, decision: impl FnOnce() -> Decision) {
        if let Some(decisions) = &self.decisions {
            decisions.add(decision());
        }
    }

    /// Whether somebody wants to know decisions.
    pub fn tells(&self) -> bool {
        self.decisions.is_some()
    }

    /// With options of a pass.
    #[must_use]
    pub fn with<O: PassOptions>(mut self, options: &O) -> Self {
        self.options = self.options.with(options);
        self
    }
}

/// What a graph's result is, which is rows of numbers in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphResult {
    /// Logits of the vocabulary.
    Logits,
    /// Hidden states.
    Hidden {
        /// Rows of the embedding table: ids are below.
        vocabulary: u32,
        /// How those of a text become one vector, where the model says it.
        pooling: Option<Pooling>,
        /// Whether vectors have length 1; otherwise they keep the length of what was pooled.
        unit: bool,
    },
    /// Sums over rows' experts, each of its functions of one layer: [`ixc_ir::graph::expert_layers`].
    Experts {
        /// Ids of the model's embedding table, as plans say it of every model.
        vocabulary: u32,
    },
}

/// What the plan says that the graph does not.
#[derive(Clone)]
pub struct Facts<'a> {
    /// Architecture's name, for people.
    pub architecture: String,
    /// Most tokens of a step, at least 1.
    pub max_tokens: u32,
    /// Context length that the model was made for.
    pub context_length: u32,
    /// What the graph's result is.
    pub result: GraphResult,
    /// Model files; weights' places count them.
    pub files: Vec<SourceFile>,
    /// Tensors that are made of parts of those; weights' places count them behind the files.
    pub derived: Vec<Derived>,
    /// Tokenizer and chat template, as the frontend encodes them.
    pub tokenizer: Vec<u8>,
    /// The weights: asked for frequency factors of rotations, a few hundred bytes, and nothing else.
    pub weights: &'a dyn WeightSource,
}

impl std::fmt::Debug for Facts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Facts")
            .field("architecture", &self.architecture)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}
