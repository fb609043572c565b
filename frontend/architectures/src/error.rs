//! Errors of well-formed GGUF files that do not make a supported model.

use std::path::Path;

use ixc_failure::{Class, Remedy};
use ixc_ir::graph::types::TypeError;
use ixc_model_files::gguf::{GgufError, TensorType, among, quote};

/// Reason why no graph can be built.
#[derive(Debug, thiserror::Error)]
pub enum ArchError {
    /// A key is missing or invalid, a tensor is missing, or its type has no format.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The architecture is not in the registry.
    #[error(
        "{}: key \"general.architecture\" is \"{}\", which is not supported; supported are {}",
        path.display(), quote(found), among(found, known)
    )]
    UnknownArchitecture {
        /// Model file with the architecture.
        path: Box<Path>,
        /// Architecture in the file.
        found: Box<str>,
        /// Architectures in the registry.
        known: Vec<&'static str>,
    },
    /// A tensor has another shape than the hyperparameters require.
    #[error("{}: tensor \"{}\" has dimensions {found:?}; must be {expected:?}", path.display(), quote(tensor))]
    Shape {
        /// Model file with the tensor.
        path: Box<Path>,
        /// Name of the tensor.
        tensor: Box<str>,
        /// Dimensions in the file's order, row length first.
        found: Box<[u64]>,
        /// Required dimensions.
        expected: Box<[u64]>,
    },
    /// A vector for an elementwise op is not F32.
    #[error("{}: tensor \"{}\" has type {found}; the vectors of a model must be F32", path.display(), quote(tensor))]
    VectorType {
        /// Model file with the tensor.
        path: Box<Path>,
        /// Name of the tensor.
        tensor: Box<str>,
        /// Type of the tensor.
        found: TensorType,
    },
    /// A table of expert ids has another type than I32.
    #[error("{}: tensor \"{}\" has type {found}; a table of the experts of each token must be I32", path.display(), quote(tensor))]
    TableType {
        /// Model file with the tensor.
        path: Box<Path>,
        /// Name of the tensor.
        tensor: Box<str>,
        /// Type of the tensor.
        found: TensorType,
    },
    /// A table of expert ids has an id that is not below the number of experts.
    #[error("{}: tensor \"{}\" contains expert {found}; the model has {count} experts, numbered from 0", path.display(), quote(tensor))]
    TableId {
        /// Model file with the tensor.
        path: Box<Path>,
        /// Name of the tensor.
        tensor: Box<str>,
        /// Invalid expert id.
        found: i32,
        /// Number of experts.
        count: u64,
    },
    /// A tensor that should be one finite number has another shape or value.
    #[error("{}: tensor \"{}\" is {found}; it must be one finite number", path.display(), quote(tensor))]
    Scalar {
        /// Model file with the tensor.
        path: Box<Path>,
        /// Name of the tensor.
        tensor: Box<str>,
        /// Number in the tensor.
        found: f32,
    },
    /// The architecture does not use a tensor that would change the result.
    #[error(
        "{}: tensor \"{}\" is not used by architecture {architecture}; ignoring it would give wrong results",
        path.display(), quote(tensor)
    )]
    UnusedTensor {
        /// Model file with the tensor.
        path: Box<Path>,
        /// Name of the tensor.
        tensor: Box<str>,
        /// Name of the architecture.
        architecture: &'static str,
    },
    /// Logits were requested from a model whose attention is not causal.
    #[error(
        "{}: the model is an encoder ({architecture}), which computes embeddings of texts, not logits",
        path.display()
    )]
    NotCausal {
        /// Model file of the encoder.
        path: Box<Path>,
        /// Name of the architecture.
        architecture: &'static str,
    },
    /// The model's own layers cannot draft.
    #[error("{}: {problem}", path.display())]
    Nextn {
        /// Model file whose layers cannot draft.
        path: Box<Path>,
        /// Reason why the layers cannot draft.
        problem: NextnProblem,
    },
    /// Keys and tensors agree, but an op with them is invalid.
    #[error("{}: cannot build the graph of the model: {source}", path.display())]
    Graph {
        /// Model file of the graph.
        path: Box<Path>,
        /// The op and its type error.
        source: Box<TypeError>,
    },
}

/// Reason why a model's own draft layers cannot draft.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NextnProblem {
    /// The model has no draft layers.
    #[error("the model has no draft layers (nextn), or its file was converted without them")]
    None,
    /// The model has recurrent states, so rejected drafts could not be undone.
    #[error("tokens cannot be drafted: recurrent states cannot be rolled back after a rejected draft")]
    Recurrent,
    /// The code does not know the input of this architecture's draft layers.
    #[error("draft layers (nextn) of {architecture} are not supported; supported are those of {}", known.join(", "))]
    Architecture {
        /// Architecture of the model.
        architecture: &'static str,
        /// Architectures whose draft layers are supported.
        known: Vec<&'static str>,
    },
}

impl ArchError {
    /// Returns the class of the error, which determines the exit code.
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

    /// Returns the change that may help the user.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            ArchError::UnknownArchitecture { .. } => Some(Remedy::ListModels),
            ArchError::NotCausal { .. } => Some(Remedy::UseEmbeddings),
            _ => None,
        }
    }
}
