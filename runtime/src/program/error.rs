//! Errors of the check of a plan.

use ixc_ir::derived::DerivedError;
use ixc_ir::format::Format;
use ixc_ir::plan::DimError;

/// A problem with a plan, and its location in the plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct PlanError {
    /// Location of the problem in the plan, such as a step and a task.
    pub place: String,
    /// The problem, with the violated requirement.
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
        /// Minimum value.
        min: u64,
        /// Maximum value.
        max: u64,
    },
    /// An id names no object of its kind in the plan.
    #[error("{what} {found} does not exist; the plan has {count}")]
    Id {
        /// Kind of the object, such as a kernel or a buffer.
        what: &'static str,
        /// Id that is out of range.
        found: u32,
        /// Number of objects of this kind in the plan.
        count: usize,
    },
    /// The number of objects differs from what another part of the plan requires.
    #[error("has {found} {what}, must have {expected}")]
    Count {
        /// Kind of the objects.
        what: &'static str,
        /// Number found.
        found: usize,
        /// Number expected.
        expected: usize,
    },
    /// A derived tensor does not match the files that it is derived from.
    #[error("derived tensor: {error}")]
    Derived {
        /// Reason why the tensor does not match.
        error: DerivedError,
    },
    /// A range ends outside its container.
    #[error("{bytes} bytes at {offset} end outside {what} of {available} bytes")]
    Outside {
        /// Name of the container.
        what: &'static str,
        /// Offset of the range.
        offset: u64,
        /// Length of the range; `u64::MAX` if its length overflows.
        bytes: u64,
        /// Length of the container.
        available: u64,
    },
    /// The length of a weight does not match its shape.
    #[error("has {found} bytes; its format and shape take {expected}")]
    WeightBytes {
        /// Length in the plan, in bytes.
        found: u64,
        /// Length that the shape requires, in bytes; 0 if the shape fits no format.
        expected: u64,
    },
    /// A weight cannot be packed or converted from its stored format to the kernels' format.
    #[error("kernels read it as {format}, but it is stored as {stored}; {expected}")]
    Stored {
        /// Format in which kernels read the weight.
        format: Format,
        /// Format in which the file stores the weight.
        stored: Format,
        /// The violated requirement, as text.
        expected: &'static str,
    },
    /// The shape of a weight does not fit the format that kernels read.
    #[error("shape {shape:?} is not whole blocks of {format}: {} rows of {} columns", format.rows(), format.block_len())]
    Blocks {
        /// Shape of the weight.
        shape: Vec<u64>,
        /// Format in which kernels read the weight.
        format: Format,
    },
    /// A kernel's buffer is fed from a source that it cannot have.
    #[error("buffer %{buffer} is `{kind}`, but comes from {source_name}; {expected}")]
    Feed {
        /// Name of the kernel's buffer.
        buffer: String,
        /// Keyword of the buffer's kind in the kernel IR.
        kind: &'static str,
        /// Name of the source.
        source_name: &'static str,
        /// The violated requirement, as text.
        expected: &'static str,
    },
    /// The address of an index buffer is not a multiple of 4.
    #[error("buffer %{buffer} of indices must lie at multiples of 4")]
    IndexAlignment {
        /// Name of the kernel's buffer.
        buffer: String,
    },
    /// A buffer that a kernel writes overlaps another buffer of the same call.
    #[error("buffer %{written} is written and shares memory with buffer %{other}")]
    Overlap {
        /// Name of the written buffer.
        written: String,
        /// Name of the other buffer.
        other: String,
    },
    /// A buffer's size or index limit does not depend only on dims.
    #[error("buffer %{buffer}: its size and limit may vary with dims only")]
    NotOverDims {
        /// Name of the kernel's buffer.
        buffer: String,
    },
    /// The variants of a task do not cover all row counts, or are not in ascending order of row
    /// counts.
    #[error("row counts of variants must ascend and end with {}", u32::MAX)]
    Variants,
    /// A dim of a kernel uses an input that its task does not have.
    #[error("dim `{dim}` {expected}")]
    Dim {
        /// Expression of the dim.
        dim: String,
        /// The violated requirement, as text.
        expected: &'static str,
    },
    /// The expression of a dim has no value for some inputs.
    #[error("dim {0}")]
    NoDim(#[from] DimError),
    /// A routing is used before it is filled, is filled twice, or is never filled.
    #[error("routing {bucket} must be filled by one step, before any step that uses it")]
    Order {
        /// Number of the routing.
        bucket: u32,
    },
    /// The kernels execute more statements for a token than a model of this size could need.
    #[error(
        "its kernels execute up to {found} statements for a token of a context of {context}; its weights, states and buffers explain at most {max}"
    )]
    Work {
        /// Number of statements of the plan.
        found: u64,
        /// Maximum number of statements.
        max: u64,
        /// Context length in positions.
        context: u32,
    },
    /// A part of the plan, such as the logits or the ids of a routing, has the wrong form.
    #[error("expected {expected}")]
    Shape {
        /// The required form.
        expected: &'static str,
    },
}
