//! Requests to a model for other results than text, refusals, and the model's status. Requests for
//! text and their events are those of [`ixc_generate::generator`].

use ixc_failure::Remedy;
use ixc_generate::generator::SlotStatus;
use ixc_grammar::{GrammarError, GrammarSource};
use ixc_runtime::engine::{RankCounts, StateBytes};
use ixc_runtime::homes::NodeUse;
use serde_json::Value;

use crate::histogram::{self, Histogram};

/// A request for embeddings of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingRequest {
    /// Texts or tokens to embed.
    pub inputs: Vec<EmbeddingInput>,
    /// Number of elements of a vector to return, from 1 to [`ModelFacts::dimensions`]; `None`
    /// returns all.
    pub dimensions: Option<usize>,
}

/// Input of an embedding.
#[derive(Clone, Debug, PartialEq)]
pub enum EmbeddingInput {
    /// Text, which the model's tokenizer splits and surrounds with its special tokens.
    Text(String),
    /// All tokens of the input.
    Tokens(Vec<u32>),
}

/// Embeddings of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    /// Vectors in the order of the texts, each of length 1.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all texts.
    pub tokens: usize,
}

/// An action on experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertsAction {
    /// Return how often each expert was chosen, by layer.
    Look,
    /// Evict experts that were read and are not in use.
    Evict {
        /// Layer with experts; `None` for all layers.
        layer: Option<usize>,
        /// Whether pinned experts are also evicted, and lose their pin.
        pinned: bool,
    },
}

/// An action on the state of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotAction {
    /// Write the state to the file with this name.
    Save(String),
    /// Replace the state by the state in the file with this name.
    Restore(String),
    /// Erase the state.
    Erase,
}

/// Facts of a model.
#[derive(Clone, Debug, Default)]
pub struct ModelFacts {
    /// Name in requests.
    pub name: String,
    /// Time of loading, in seconds since 1970.
    pub created: u64,
    /// Name of the architecture.
    pub architecture: String,
    /// Max positions of a sequence.
    pub context: usize,
    /// Max positions that the model was trained for.
    pub trained_context: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Token for the beginning of a text.
    pub bos: Option<u32>,
    /// Token for the end of a text.
    pub eos: Option<u32>,
    /// Bytes of the weights.
    pub bytes: u64,
    /// Number of elements of a vector, for a model that computes embeddings instead of tokens.
    pub dimensions: Option<usize>,
    /// Max number of requests that run at once.
    pub parallel: usize,
    /// Max number of requests that wait, in addition to the running ones.
    pub queue: usize,
    /// Source of the chat template.
    pub template: Option<String>,
    /// Name and version of the program.
    pub build: String,
}

/// Required output format of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// Grammar of the whole answer.
    Text(GrammarSource),
    /// JSON that a schema describes, after any reasoning.
    Json(Value),
    /// A text that a regular expression matches as a whole, after any reasoning.
    Regex(String),
    /// The answer has at least one call of these tools, each with the schema of its parameters.
    Calls {
        /// Names and schemas.
        tools: Vec<(String, Value)>,
        /// Whether several calls are allowed.
        several: bool,
        /// Output format of content that may replace calls: [`Constraint::Json`] or
        /// [`Constraint::Regex`].
        otherwise: Option<Box<Constraint>>,
    },
}

impl Constraint {
    /// Returns whether a tool must be called.
    pub fn must_call(&self) -> bool {
        matches!(self, Constraint::Calls { otherwise: None, .. })
    }
}

/// Reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request is invalid.
    #[error("{message}")]
    Invalid {
        /// Text that describes the reason.
        message: String,
    },
    /// The server's options do not allow the request.
    #[error("{message}")]
    Unsupported {
        /// Text that describes the reason.
        message: String,
        /// Change of the server's options that would allow the request.
        remedy: Option<Remedy>,
    },
    /// The model generates only embeddings, or only text.
    #[error("{message}")]
    OtherKind {
        /// Text that describes the reason.
        message: String,
        /// Change of the server's options that would allow the request.
        remedy: Option<Remedy>,
    },
    /// The prompt is longer than the context.
    #[error("{message}")]
    TooLong {
        /// Tokens of the prompt; a lower bound if the prompt is too long to be counted.
        tokens: usize,
        /// Positions of a sequence.
        context: usize,
        /// Text that describes the reason.
        message: String,
    },
    /// The queue is full.
    #[error("the queue is full ({waiting} requests wait); try again later")]
    Busy {
        /// Number of waiting requests.
        waiting: usize,
    },
    /// Other requests use a resource that this one needs.
    #[error("{message}")]
    Later {
        /// Text that names the resource.
        message: String,
    },
    /// No model has this name.
    #[error("there is no model {name:?}; the models are {known}")]
    NoModel {
        /// Requested name.
        name: String,
        /// Names of existing models, as text.
        known: String,
    },
    /// There is no memory for the model while other models are used.
    #[error("there is no memory for model {name} while requests to {others} run; try again later")]
    NoRoom {
        /// Requested name.
        name: String,
        /// Names of the models that take the memory, as text.
        others: String,
    },
    /// The model cannot be loaded.
    #[error("model {name} cannot be loaded: {message}")]
    NotLoaded {
        /// Requested name.
        name: String,
        /// Text that describes the reason.
        message: String,
    },
    /// There is no space left on the drive.
    #[error("{message}")]
    NoSpace {
        /// Text that describes the reason.
        message: String,
    },
    /// The request started, and failed.
    #[error("{message}")]
    Failed {
        /// Text that describes the reason.
        message: String,
    },
    /// The client has closed the connection.
    #[error("the client has disconnected")]
    Gone,
    /// The server is ending, or has failed.
    #[error("the server is shutting down")]
    Ending,
}

impl From<GrammarError> for Refusal {
    fn from(error: GrammarError) -> Refusal {
        let message = error.to_string();
        match error {
            GrammarError::Busy => Refusal::Later { message },
            GrammarError::ClientGone => Refusal::Gone,
            GrammarError::HelperFailed { .. } => Refusal::Failed { message },
            _ => Refusal::Invalid { message },
        }
    }
}

impl Refusal {
    /// Refuses a request for text to an embedding model.
    pub fn no_text(model: &str) -> Refusal {
        let message = format!("model {model} returns embeddings (/v1/embeddings), not text; use another model");
        Refusal::OtherKind { message, remedy: None }
    }

    /// Refuses a request for embeddings to a text model.
    pub fn no_embeddings(model: &str) -> Refusal {
        let message = format!("model {model} returns text, not embeddings; use an embedding model");
        Refusal::OtherKind { message, remedy: Some(Remedy::ServeEmbeddings) }
    }

    /// Refuses a prompt with more tokens than a sequence has positions.
    pub fn too_long(tokens: usize, context: usize) -> Refusal {
        let message = format!("the prompt has {tokens} tokens; the context holds {context}");
        Refusal::TooLong { tokens, context, message }
    }

    /// Returns the change of the server that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Refusal::TooLong { .. } => Some(Remedy::LargerContext),
            Refusal::OtherKind { remedy, .. } | Refusal::Unsupported { remedy, .. } => *remedy,
            _ => None,
        }
    }
}

/// Status of a model. Counts of tokens and requests begin with its loading.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Whether the model's thread was active recently.
    pub is_alive: bool,
    /// Running requests.
    pub active: usize,
    /// Waiting requests.
    pub waiting: usize,
    /// Prompt tokens that were computed.
    pub prompt_tokens: u64,
    /// Prompt tokens that a sequence already held.
    pub reused_tokens: u64,
    /// Generated tokens.
    pub generated_tokens: u64,
    /// Draft tokens that were computed. The next two fields count the accepted draft tokens, and
    /// how often tokens were drafted for a request.
    pub drafted_tokens: u64,
    /// See [`Status::drafted_tokens`].
    pub accepted_tokens: u64,
    /// See [`Status::drafted_tokens`].
    pub drafts: u64,
    /// Seconds of steps with prompt tokens.
    pub prompt_seconds: f64,
    /// Seconds of steps without prompt tokens.
    pub decode_seconds: f64,
    /// Number of steps.
    pub steps: u64,
    /// Rows of all steps.
    pub rows: u64,
    /// Requests that ended.
    pub ended: u64,
    /// Requests that ended at their token limit or at a full context.
    pub truncated: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests whose client disconnected.
    pub cancelled: u64,
    /// Status of each sequence.
    pub slots: Vec<SlotStatus>,
    /// Sequence that computed last.
    pub recent: Option<usize>,
    /// Memory of sequence states, in bytes.
    pub states: StateBytes,
    /// Bytes of cached prompts in memory.
    pub prompt_cache_memory: u64,
    /// Bytes of cached prompts in files.
    pub prompt_cache_folder: u64,
    /// Number of sequences with a request, summed over all steps.
    pub busy_slots: u64,
    /// Max tokens that a sequence has held.
    pub max_slot_tokens: usize,
    /// Distributions of times and step sizes.
    pub distributions: Distributions,
    /// Counts of streamed experts, if there are any.
    pub experts: Option<ExpertCounts>,
    /// Counters of each rank, if the model is divided.
    pub ranks: Vec<RankCounts>,
    /// Memory of each rank, or of each copy of the weights, by NUMA node.
    pub nodes: Vec<NodeUse>,
}

/// Distributions of request times in seconds, and of step sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Distributions {
    /// Time from a request to its start.
    pub queued: Histogram,
    /// Time from a request to its first token.
    pub first_token: Histogram,
    /// Time from each token of a request to the next.
    pub between_tokens: Histogram,
    /// Time from a request to its end, for requests that ended.
    pub whole: Histogram,
    /// Rows of steps.
    pub rows: Histogram,
}

impl Default for Distributions {
    fn default() -> Distributions {
        let times = || Histogram::new(histogram::SECONDS);
        Distributions {
            queued: times(),
            first_token: times(),
            between_tokens: times(),
            whole: times(),
            rows: Histogram::new(histogram::ROWS),
        }
    }
}

/// Counts of streamed experts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpertCounts {
    /// Needed experts that were in memory.
    pub hits: u64,
    /// Hits whose expert was prefetched.
    pub foreseen: u64,
    /// Needed experts whose read was in progress.
    pub on_the_way: u64,
    /// Needed experts that had to be read.
    pub misses: u64,
    /// Seconds that threads waited, in total.
    pub stall_seconds: f64,
    /// Number of reads.
    pub reads: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Seconds in which at least one read was outstanding.
    pub busy_seconds: f64,
}
