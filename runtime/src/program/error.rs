//! Errors of a plan's check.

use ixc_ir::derived::DerivedError;
use ixc_ir::format::Format;
use ixc_ir::plan::DimError;

/// A problem with a plan, and the part of the plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct PlanError {
    /// The part of the plan.
    pub place: String,
    /// The problem, and the requirement.
    #[source]
    pub problem: Problem,
}

/// A problem with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A number is outside its range.
    #[error("{what} is {found}, must be in {min}..={max}")]
    Range {
        /// Name of the number.
        what: &'static str,
        /// The value found.
        found: u64,
        /// Min value.
        min: u64,
        /// Max value.
        max: u64,
    },
    /// An id is out of range.
    #[error("{what} {found} does not exist; the plan has {count}")]
    Id {
        /// Kind of the object.
        what: &'static str,
        /// Id that is out of range.
        found: u32,
        /// Number of objects of this kind in the plan.
        count: usize,
    },
    /// The number of objects is wrong.
    #[error("has {found} {what}, must have {expected}")]
    Count {
        /// Kind of the objects.
        what: &'static str,
        /// Number found.
        found: usize,
        /// Number expected.
        expected: usize,
    },
    /// A derived tensor does not match the files.
    #[error("derived tensor: {error}")]
    Derived {
        /// The reason.
        error: DerivedError,
    },
    /// A range ends outside its container.
    #[error("{bytes} bytes at {offset} end outside {what} of {available} bytes")]
    Outside {
        /// Name of the container.
        what: &'static str,
        /// Offset of the range.
        offset: u64,
        /// Length of the range; the largest number if it overflows.
        bytes: u64,
        /// Length of the container.
        available: u64,
    },
    /// The length of a weight does not match its shape.
    #[error("has {found} bytes; its format and shape take {expected}")]
    WeightBytes {
        /// Bytes found.
        found: u64,
        /// Bytes expected; 0 if the shape fits no format.
        expected: u64,
    },
    /// A weight cannot be made from its stored format.
    #[error("kernels read it as {format}, but it is stored as {stored}; {expected}")]
    Stored {
        /// The format that kernels read.
        format: Format,
        /// The format in the file.
        stored: Format,
        /// Requirement, as text.
        expected: &'static str,
    },
    /// The shape of a weight does not fit the format that kernels read.
    #[error("shape {shape:?} is not whole blocks of {format}: {} rows of {} columns", format.rows(), format.block_len())]
    Blocks {
        /// Shape of the weight.
        shape: Vec<u64>,
        /// Format that kernels read.
        format: Format,
    },
    /// A kernel's buffer has a source of a wrong kind.
    #[error("buffer %{buffer} is `{kind}`, but comes from {source_name}; {expected}")]
    Feed {
        /// The kernel's buffer.
        buffer: String,
        /// Keyword of the buffer's kind.
        kind: &'static str,
        /// Name of the source.
        source_name: &'static str,
        /// Requirement, as text.
        expected: &'static str,
    },
    /// Indices lie at an address that is not a multiple of 4.
    #[error("buffer %{buffer} of indices must lie at multiples of 4")]
    IndexAlignment {
        /// The kernel's buffer.
        buffer: String,
    },
    /// A written buffer shares memory with another buffer of the same call.
    #[error("buffer %{written} is written and shares memory with buffer %{other}")]
    Overlap {
        /// Name of the written buffer.
        written: String,
        /// Name of the other buffer.
        other: String,
    },
    /// A size or limit depends on more than dims.
    #[error("buffer %{buffer}: its size and limit may vary with dims only")]
    NotOverDims {
        /// The kernel's buffer.
        buffer: String,
    },
    /// Variants do not cover all row counts in ascending order.
    #[error("row counts of variants must ascend and end with {}", u32::MAX)]
    Variants,
    /// A dim uses an input that its task does not have.
    #[error("dim `{dim}` {expected}")]
    Dim {
        /// Name of the dim.
        dim: String,
        /// Requirement, as text.
        expected: &'static str,
    },
    /// A dim has no value for some items.
    #[error("dim {0}")]
    NoDim(#[from] DimError),
    /// A routing is used before it is filled, is filled twice, or is never filled.
    #[error("routing {bucket} must be filled by one step, before any step that uses it")]
    Order {
        /// Number of the routing.
        bucket: u32,
    },
    /// The kernels execute more statements than the model could need.
    #[error(
        "its kernels execute up to {found} statements for a token of a context of {context}; its weights, states and buffers explain at most {max}"
    )]
    Work {
        /// Statements found.
        found: u64,
        /// Max statements.
        max: u64,
        /// Positions of the context.
        context: u32,
    },
    /// Logits, ids of a routing, the softmax kernel or another part have the wrong form.
    #[error("expected {expected}")]
    Shape {
        /// The required form.
        expected: &'static str,
    },
}
