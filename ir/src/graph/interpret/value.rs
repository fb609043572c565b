//! What goes into the interpreter and comes out: bytes of weights, values, errors.

use std::borrow::Cow;

use ixc_failure::Class;

use crate::format::Format;
use crate::graph::WeightId;
use crate::graph::verify::VerifyError;

/// Why a weight could not be read.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Where an interpreter gets the bytes of weights from.
pub trait WeightSource {
    /// The bytes of a weight, all of them, as its format stores them.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn bytes(&self, weight: WeightId) -> Result<Cow<'_, [u8]>, SourceError>;
}

impl WeightSource for Vec<Vec<u8>> {
    fn bytes(&self, weight: WeightId) -> Result<Cow<'_, [u8]>, SourceError> {
        let bytes = self.get(weight.index()).ok_or_else(|| format!("no bytes for weight number {}", weight.0))?;
        Ok(Cow::Borrowed(bytes))
    }
}

/// The value of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Floats.
    F32 {
        /// Dimensions, outermost first.
        dims: Vec<usize>,
        /// Row-major.
        data: Vec<f32>,
    },
    /// Integers.
    I32 {
        /// Dimensions, outermost first.
        dims: Vec<usize>,
        /// Row-major.
        data: Vec<i32>,
    },
    /// Blocks of an activation format.
    Blocks {
        /// The format.
        format: Format,
        /// Dimensions in elements, outermost first.
        dims: Vec<usize>,
        /// Row-major.
        bytes: Vec<u8>,
    },
    /// A dequantised weight, f32, that is read where it is used: of expert matrices only those routed to.
    Weight(WeightId),
    /// State.
    Token,
}

/// Why a function could not be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum InterpretError {
    /// The module is wrong.
    #[error("the module does not verify: {0}")]
    Verify(#[from] VerifyError),
    /// There is no such function.
    #[error("the module has no function @{name}")]
    NoFunction {
        /// Its name.
        name: String,
    },
    /// Too many arguments or too few.
    #[error("@{function} takes {expected} arguments, not {found}")]
    ArgumentCount {
        /// The function.
        function: String,
        /// Its parameters.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// An argument that does not fit its parameter.
    #[error("argument {name} is {found}; it must be {expected}")]
    Argument {
        /// The parameter.
        name: String,
        /// What was given.
        found: String,
        /// Its type, with the symbols that are known by then.
        expected: String,
    },
    /// A weight that could not be read.
    #[error("weight @{name}: {source}")]
    Weight {
        /// Its name.
        name: String,
        /// Why.
        source: SourceError,
    },
    /// A weight with too many bytes or too few.
    #[error("weight @{name} has {found} bytes; its shape takes {expected}")]
    WeightBytes {
        /// Its name.
        name: String,
        /// What the shape takes.
        expected: u64,
        /// What the source gave.
        found: usize,
    },
    /// A number in an i32 tensor that is out of range.
    #[error("{op}: {what} {found} is not in 0..{bound}")]
    Index {
        /// Mnemonic.
        op: &'static str,
        /// `id`, `row`, `expert` or `position`.
        what: &'static str,
        /// The number.
        found: i64,
        /// What it must stay below.
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
            | InterpretError::Index { .. } => Class::Data,
        }
    }
}
