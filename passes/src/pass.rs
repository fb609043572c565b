//! A pass, and the context that it gets in addition to the IR.

use std::sync::Arc;

use ixc_ir::derived::Derivation;
use ixc_ir::graph::Module;
use ixc_ir::graph::interpret::WeightSource;
use ixc_ir::plan::{Plan, Pooling, SourceFile};
use ixc_kernels::KernelSpec;
use ixc_targets::{CoreCaches, Target};

use crate::decision::{Decision, Decisions};
use crate::draft::Draft;
use crate::error::PassError;
use crate::options::{OptionRow, OptionSet, PassOptions};

/// A pass: its name, its options and its function.
#[derive(Debug)]
pub struct Pass {
    /// Name on the command line.
    pub name: &'static str,
    /// One line of documentation.
    pub doc: &'static str,
    /// Options that the pass declares.
    pub options: &'static [OptionRow],
    /// Function of the pass.
    pub run: Run,
}

/// Function of a pass. Variants differ in the kinds of IR that it takes and returns.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// Returns a changed graph.
    Graph(fn(Module, &Context<'_>) -> Result<Module, PassError>),
    /// Returns the tasks of a graph.
    Lower(fn(&Module, &Context<'_>) -> Result<Draft, PassError>),
    /// Returns changed tasks.
    Draft(fn(Draft, &Context<'_>) -> Result<Draft, PassError>),
    /// Returns the plan of the tasks.
    Plan(fn(Draft, &Context<'_>) -> Result<Plan<KernelSpec>, PassError>),
}

/// Inputs of passes in addition to the IR.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// Target of the code.
    pub target: Target,
    /// Caches of a core: from the target's row, or of this machine for `native`.
    pub caches: CoreCaches,
    /// Options of passes.
    pub options: OptionSet,
    /// Properties of the model that its graph does not contain; `lower` needs them.
    pub facts: Option<PlanProperties<'a>>,
    /// Record of decisions, if requested.
    pub decisions: Option<Arc<Decisions>>,
}

impl Context<'_> {
    /// Creates a context for a target, with the caches of its row and no options.
    pub fn new(target: Target) -> Context<'static> {
        Context { target, caches: target.row().caches(), options: OptionSet::default(), facts: None, decisions: None }
    }

    /// Records a decision; the closure runs only if decisions are requested.
    pub fn decide(&self, decision: impl FnOnce() -> Decision) {
        if let Some(decisions) = &self.decisions {
            decisions.add(decision());
        }
    }

    /// Whether decisions are recorded.
    pub fn records_decisions(&self) -> bool {
        self.decisions.is_some()
    }

    /// Sets the options of a pass.
    #[must_use]
    pub fn with<O: PassOptions>(mut self, options: &O) -> Self {
        self.options = self.options.with(options);
        self
    }
}

/// Meaning of the rows that a graph returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphResult {
    /// Logits of the vocabulary.
    Logits,
    /// Hidden states.
    Hidden {
        /// Number of rows of the embedding table. Token ids are less than this number.
        vocabulary: u32,
        /// Pooling of a text's rows into one vector, if the model gives one.
        pooling: Option<Pooling>,
        /// Whether vectors are scaled to length 1; otherwise they keep the length after pooling.
        unit: bool,
    },
    /// Weighted sums of experts' results. Each function of the graph computes one layer:
    /// [`ixc_ir::graph::expert_layers`].
    Experts {
        /// Rows of the model's embedding table; every plan records them.
        vocabulary: u32,
    },
}

/// Properties of a model that the plan needs and the graph does not contain.
#[derive(Clone)]
pub struct PlanProperties<'a> {
    /// Name of the architecture, for messages.
    pub architecture: String,
    /// Max tokens of a step, at least 1.
    pub max_tokens: u32,
    /// Context length that the model was trained for.
    pub context_length: u32,
    /// Meaning of the graph's result.
    pub result: GraphResult,
    /// Elements of a row of the whole model's result, which only rank 0 has.
    pub result_width: u64,
    /// Model files; locations of weights refer to them by index.
    pub files: Vec<SourceFile>,
    /// Tensors computed from parts of the files. Locations of weights refer to such a tensor by the
    /// number of files plus its index in this list.
    pub derived: Vec<Derivation>,
    /// Tokenizer and chat template, as the frontend encodes them.
    pub tokenizer: Vec<u8>,
    /// Source of the weights; read only for frequency factors of rotations, a few hundred bytes.
    pub weights: &'a dyn WeightSource,
}

impl std::fmt::Debug for PlanProperties<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanProperties")
            .field("architecture", &self.architecture)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}
