//! What can be wrong with a plan.

use ixc_ir::derived::DerivedError;
use ixc_ir::format::Format;
use ixc_ir::plan::DimError;

/// What is wrong with a plan, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct PlanError {
    /// Which part of the plan.
    pub place: String,
    /// What is wrong, and what would be right.
    #[source]
    pub problem: Problem,
}

/// What can be wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A number outside its range.
    #[error("{what} is {found}, must be in {least}..={most}")]
    Range {
        /// Which number.
        what: &'static str,
        /// Its value.
        found: u64,
        /// Smallest.
        least: u64,
        /// Largest.
        most: u64,
    },
    /// An id of something that is not there.
    #[error("{what} {found} does not exist, the plan has {count}")]
    Id {
        /// What kind of thing.
        what: &'static str,
        /// The id.
        found: u32,
        /// How many there are.
        count: usize,
    },
    /// Another number of things than there must be.
    #[error("has {found} {what}, must have {expected}")]
    Count {
        /// What kind of things.
        what: &'static str,
        /// How many.
        found: usize,
        /// How many there must be.
        expected: usize,
    },
    /// A tensor that is not made of what the files have.
    #[error("derived tensor: {error}")]
    Derived {
        /// Why not.
        error: DerivedError,
    },
    /// Something that ends outside what it lies in.
    #[error("{bytes} bytes at {offset} end outside {what} of {available} bytes")]
    Outside {
        /// What it must lie in.
        what: &'static str,
        /// Where it begins.
        offset: u64,
        /// Its length; the largest number where that does not fit.
        bytes: u64,
        /// Length of what it must lie in.
        available: u64,
    },
    /// A weight whose length is not that of its shape.
    #[error("has {found} bytes; its format and shape take {expected}")]
    WeightBytes {
        /// Found.
        found: u64,
        /// Expected; 0 where the shape fits no format.
        expected: u64,
    },
    /// A weight that cannot be made of what is stored.
    #[error("kernels read it as {format} and it is stored as {stored}; {expected}")]
    Stored {
        /// What kernels read.
        format: Format,
        /// What is in the file.
        stored: Format,
        /// What would be right.
        expected: &'static str,
    },
    /// A weight whose shape does not fit the format that kernels read.
    #[error("shape {shape:?} is no whole blocks of {format}: {} rows of {} columns", format.rows(), format.block_len())]
    Blocks {
        /// The shape.
        shape: Vec<u64>,
        /// The format.
        format: Format,
    },
    /// A buffer that is fed from where it may not be.
    #[error("buffer %{buffer} is `{kind}` and comes from {source_name}; {expected}")]
    Feed {
        /// The kernel's buffer.
        buffer: String,
        /// Keyword of its kind.
        kind: &'static str,
        /// Where it comes from.
        source_name: &'static str,
        /// What would be right.
        expected: &'static str,
    },
    /// Indices at an address that is no multiple of 4.
    #[error("buffer %{buffer} of indices must lie at multiples of 4")]
    IndexAlignment {
        /// The kernel's buffer.
        buffer: String,
    },
    /// A written buffer in the memory of another one of the same call.
    #[error("buffer %{written} is written and shares memory with buffer %{other}")]
    Overlap {
        /// The buffer that is written.
        written: String,
        /// The other one.
        other: String,
    },
    /// Something that varies with more than dims.
    #[error("buffer %{buffer}: its size and limit may vary with dims only")]
    NotOverDims {
        /// The kernel's buffer.
        buffer: String,
    },
    /// Variants that do not cover all row counts in order.
    #[error("row counts of variants must ascend and end with {}", u32::MAX)]
    Variants,
    /// A dim that does not fit its task.
    #[error("dim `{dim}` {expected}")]
    Dim {
        /// The dim.
        dim: String,
        /// Requirement.
        expected: &'static str,
    },
    /// A dim without a value for some items.
    #[error("dim {0}")]
    NoDim(#[from] DimError),
    /// A routing that is used before, or filled more than once, or never.
    #[error("routing {bucket} must be filled by one step, before any step that uses it")]
    Order {
        /// The routing.
        bucket: u32,
    },
    /// The logits, the ids of a routing or the softmax kernel are not what they must be.
    #[error("must be {expected}")]
    Shape {
        /// What it must be.
        expected: &'static str,
    },
}
