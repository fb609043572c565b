//! Location of graph values in the plan, and the kinds of their rows.

use ixc_ir::format::Format;
use ixc_ir::graph::WeightId;
use ixc_ir::plan::{BucketId, BufferId, Ngram, PositionChoice, RowAxis, RowCount};

use super::{ScheduleError, row_bytes};

/// Kind of the rows of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::schedule) enum Rows {
    Tokens,
    Outputs,
    /// Slots of tokens, sorted by the experts of a routing.
    Routed {
        bucket: BucketId,
        top_k: u32,
    },
}

impl Rows {
    pub(in crate::schedule) fn axis(self) -> RowAxis {
        match self {
            Rows::Tokens => RowAxis::Tokens,
            Rows::Outputs => RowAxis::Outputs,
            Rows::Routed { bucket, .. } => RowAxis::Routed(bucket),
        }
    }

    pub(super) fn count(self) -> RowCount {
        match self {
            Rows::Tokens => RowCount::Tokens,
            Rows::Outputs => RowCount::Outputs,
            Rows::Routed { top_k, .. } => RowCount::Routed { top_k },
        }
    }
}

/// A value in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::schedule) struct ArenaRows {
    pub(in crate::schedule) buffer: BufferId,
    pub(in crate::schedule) rows: Rows,
    /// Number of elements of a row.
    pub(in crate::schedule) width: u64,
    /// Element format; `f32` for ids, which have the same size.
    pub(in crate::schedule) format: Format,
}

impl ArenaRows {
    pub(in crate::schedule) fn row_bytes(&self) -> Result<u64, ScheduleError> {
        row_bytes(self.format, self.width)
    }
}

/// A range of slots in each row of ids or weights. It is the result of `expert.split`, which copies
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slots {
    pub(super) of: ArenaRows,
    /// Number of the first slot.
    pub(super) first: u64,
    /// Number of slots in the range.
    pub(super) count: u64,
}

/// Location of a graph value in the plan.
#[derive(Clone, Copy, Debug)]
pub(super) enum Binding {
    ArenaRows(ArenaRows),
    /// Some of the slots of a `route`; only ops on experts read them.
    Chosen(Slots),
    /// Bits of an index, one for each position or for each entry; only attention reads them. If
    /// heads choose separately, each head has its own bits, `stride` bytes after those of the
    /// previous head.
    Marks {
        bits: ArenaRows,
        choice: PositionChoice,
        stride: u64,
    },
    Ids,
    /// Rows of a table, selected by tokens and their predecessors; only the table's look-up reads
    /// them.
    Ngram(Ngram),
    Positions,
    /// For each row, the position of the last row of its sequence in this step. Only attention
    /// reads it.
    Ends,
    /// Positions of a rotation, each rounded down to a multiple of `every`. `back` rotates in the
    /// other direction.
    Turned {
        every: u32,
        back: bool,
    },
    WantedRows,
    /// A token of a state or of experts' memory, which has no data.
    Token,
    /// A dequantised weight. Only products may read it, in its stored form.
    Weight(WeightId),
}
