//! Why a well-formed GGUF file makes no model that `ixc` can build.

use std::path::Path;

use ixc_failure::{Class, Remedy};
use ixc_ir::graph::types::TypeError;
use ixc_model_files::gguf::{GgufError, TensorType, among, quoted};

/// Why no graph can be built.
#[derive(Debug, thiserror::Error)]
pub enum ArchError {
    /// A key is missing or impossible, a tensor is missing, or its type has no format.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The architecture is not in the registry.
    #[error(
        "{}: key \"general.architecture\" is \"{}\", which is not supported; supported are {}",
        path.display(), quoted(found), among(found, known)
    )]
    UnknownArchitecture {
        /// The file.
        path: Box<Path>,
        /// The architecture that it names.
        found: Box<str>,
        /// Those of the registry.
        known: Vec<&'static str>,
    },
    /// A tensor has another shape than the hyperparameters demand.
    #[error("{}: tensor \"{}\" has dimensions {found:?}; must be {expected:?}", path.display(), quoted(tensor))]
    Shape {
        /// The file.
        path: Box<Path>,
        /// The tensor.
        tensor: Box<str>,
        /// Its dimensions in the file's order, row length first.
        found: Box<[u64]>,
        /// What they must be.
        expected: Box<[u64]>,
    },
    /// A vector that is added or multiplied elementwise is not F32.
    #[error("{}: tensor \"{}\" has type {found}; vectors must be F32", path.display(), quoted(tensor))]
    VectorType {
        /// The file.
        path: Box<Path>,
        /// The tensor.
        tensor: Box<str>,
        /// Its type.
        found: TensorType,
    },
    /// A table of numbers of experts that holds none.
    #[error("{}: tensor \"{}\" has type {found}; a table of experts must be I32", path.display(), quoted(tensor))]
    TableType {
        /// The file.
        path: Box<Path>,
        /// The tensor.
        tensor: Box<str>,
        /// Its type.
        found: TensorType,
    },
    /// A table of numbers of experts with one that there is not.
    #[error("{}: tensor \"{}\" names expert {found}; there are {count}, numbered from 0", path.display(), quoted(tensor))]
    TableId {
        /// The file.
        path: Box<Path>,
        /// The tensor.
        tensor: Box<str>,
        /// The number.
        found: i32,
        /// Experts.
        count: u64,
    },
    /// A tensor of one number that is none.
    #[error("{}: tensor \"{}\" is {found}; it must be one finite number", path.display(), quoted(tensor))]
    Scalar {
        /// The file.
        path: Box<Path>,
        /// The tensor.
        tensor: Box<str>,
        /// What it is.
        found: f32,
    },
    /// A tensor that would change the result has no place in the architecture.
    #[error(
        "{}: tensor \"{}\" has no place in architecture {architecture}; without it the result would be wrong",
        path.display(), quoted(tensor)
    )]
    UnusedTensor {
        /// The file.
        path: Box<Path>,
        /// The tensor.
        tensor: Box<str>,
        /// The architecture.
        architecture: &'static str,
    },
    /// Logits of a model whose attention is not causal.
    #[error(
        "{}: the model is an encoder ({architecture}): every token sees all of its text, so there are vectors of texts and no logits",
        path.display()
    )]
    NotCausal {
        /// The file.
        path: Box<Path>,
        /// The architecture.
        architecture: &'static str,
    },
    /// The model's own layers do not guess.
    #[error("{}: {problem}", path.display())]
    Nextn {
        /// The file.
        path: Box<Path>,
        /// Why not.
        problem: NextnProblem,
    },
    /// The keys and tensors fit each other, but no op can be made of them.
    #[error("{}: the model has no graph: {source}", path.display())]
    Graph {
        /// The file.
        path: Box<Path>,
        /// Which op, and why.
        source: Box<TypeError>,
    },
}

/// Why a model's own layers do not guess.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NextnProblem {
    /// There are none.
    #[error("the model has no layers of its own that guess (nextn), or the file was made without them")]
    None,
    /// Wrong guesses could not be taken back.
    #[error("tokens cannot be guessed: recurrent states cannot be cut, so a wrong guess could not be taken back")]
    Recurrent,
    /// Nobody knows what they take.
    #[error("layers of {architecture} that guess (nextn) are left out; those of {} are not", known.join(", "))]
    Architecture {
        /// The model's.
        architecture: &'static str,
        /// Those whose layers are built.
        known: Vec<&'static str>,
    },
}

impl ArchError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            ArchError::Gguf(error) => error.class(),
            ArchError::UnknownArchitecture { .. }
            | ArchError::Shape { .. }
            | ArchError::TableType { .. }
            | ArchError::TableId { .. }
            | ArchError::VectorType { .. }
            | ArchError::Scalar { .. }
            | ArchError::UnusedTensor { .. }
            | ArchError::NotCausal { .. }
            | ArchError::Nextn { .. }
            | ArchError::Graph { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            ArchError::UnknownArchitecture { .. } => Some(Remedy::ListModels),
            ArchError::NotCausal { .. } => Some(Remedy::UseEmbeddings),
            _ => None,
        }
    }
}
