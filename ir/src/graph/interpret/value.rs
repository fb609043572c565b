//! Inputs and outputs of the interpreter: weight bytes, values and errors.

use std::borrow::Cow;

use ixc_failure::Class;

use crate::format::Format;
use crate::graph::WeightId;
use crate::graph::ranks::RanksError;
use crate::graph::verify::VerifyError;

/// Reason why a weight could not be read.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Source of the weights' bytes.
pub trait WeightSource {
    /// Returns all bytes of a weight, as its format stores them.
    ///
    /// # Errors
    /// Fails if the weight cannot be read.
    fn bytes(&self, weight: WeightId) -> Result<Cow<'_, [u8]>, SourceError>;
}

impl WeightSource for Vec<Vec<u8>> {
    fn bytes(&self, weight: WeightId) -> Result<Cow<'_, [u8]>, SourceError> {
        let bytes = self.get(weight.index()).ok_or_else(|| format!("no bytes for weight number {}", weight.0))?;
        Ok(Cow::Borrowed(bytes))
    }
}

/// Data of an IR value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Tensor of f32.
    F32 {
        /// Dimensions, outermost first.
        dims: Vec<usize>,
        /// Elements, row-major.
        data: Vec<f32>,
    },
    /// Tensor of i32.
    I32 {
        /// Dimensions, outermost first.
        dims: Vec<usize>,
        /// Elements, row-major.
        data: Vec<i32>,
    },
    /// Tensor of blocks of an activation format.
    Blocks {
        /// Activation format of the blocks.
        format: Format,
        /// Dimensions in elements, outermost first.
        dims: Vec<usize>,
        /// Blocks, row-major.
        bytes: Vec<u8>,
    },
    /// A dequantised weight (f32). It is read only when an op uses it. Of experts' matrices, only
    /// those of routed experts are read.
    Weight(WeightId),
    /// A token of a state, of the experts' memory or of a group of ranks. It has no data.
    Token,
}

/// Reason why a function could not be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum InterpretError {
    /// The verifier rejects the module.
    #[error("the module does not verify: {0}")]
    Verify(#[from] VerifyError),
    /// The module has no such function.
    #[error("the module has no function @{name}")]
    NoFunction {
        /// Name of the function.
        name: String,
    },
    /// Too many arguments, or too few.
    #[error("@{function} takes {expected} arguments, not {found}")]
    ArgumentCount {
        /// Name of the function.
        function: String,
        /// Number of the function's parameters.
        expected: usize,
        /// Number of arguments.
        found: usize,
    },
    /// An argument that does not fit its parameter.
    #[error("argument {name} is {found}; it must be {expected}")]
    Argument {
        /// Name of the parameter.
        name: String,
        /// Type of the argument.
        found: String,
        /// Type of the parameter, with the dimensions that earlier arguments determine.
        expected: String,
    },
    /// A weight that could not be read.
    #[error("weight @{name}: {source}")]
    Weight {
        /// Name of the weight.
        name: String,
        /// Reason why the weight could not be read.
        source: SourceError,
    },
    /// A weight whose source has too many bytes, or too few.
    #[error("weight @{name} has {found} bytes; its shape takes {expected}")]
    WeightBytes {
        /// Name of the weight.
        name: String,
        /// Number of bytes that the weight's shape needs.
        expected: u64,
        /// Number of bytes that the source has.
        found: usize,
    },
    /// A collective in a graph of several ranks that is interpreted without the other ranks.
    #[error("{op} needs the graphs of all {ranks} ranks; this is rank {rank} alone")]
    OtherRanks {
        /// Mnemonic of the collective.
        op: &'static str,
        /// Rank of the graph.
        rank: u32,
        /// Number of ranks, each with its own graph.
        ranks: u32,
    },
    /// The graphs of the ranks do not match.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// An element of an i32 tensor that is out of range.
    #[error("{op}: {what} {found} is not in 0..{bound}")]
    Index {
        /// Mnemonic of the op.
        op: &'static str,
        /// Meaning of the number: `id`, `row`, `expert` or `position`.
        what: &'static str,
        /// The number outside its range.
        found: i64,
        /// Exclusive upper bound of the number.
        bound: usize,
    },
}

impl InterpretError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            InterpretError::Verify(_)
            | InterpretError::NoFunction { .. }
            | InterpretError::ArgumentCount { .. }
            | InterpretError::Argument { .. }
            | InterpretError::Weight { .. }
            | InterpretError::WeightBytes { .. }
            | InterpretError::OtherRanks { .. }
            | InterpretError::Ranks(_)
            | InterpretError::Index { .. } => Class::Data,
        }
    }
}
