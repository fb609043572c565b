//! Places of graph values in the plan, and the rows that they have.

use ixc_ir::format::Format;
use ixc_ir::graph::WeightId;
use ixc_ir::plan::{BucketId, BufferId, Choice, Ngram, RowAxis, RowCount};

use super::{ScheduleError, row_bytes};

/// Kind of the rows of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::schedule) enum Rows {
    Tokens,
    Outputs,
    /// Slots of tokens in the order of a routing.
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
    /// Elements of a row.
    pub(in crate::schedule) width: u64,
    /// Element format; `f32` for ids, which are as wide.
    pub(in crate::schedule) format: Format,
}

impl ArenaRows {
    pub(in crate::schedule) fn row_bytes(&self) -> Result<u64, ScheduleError> {
        row_bytes(self.format, self.width)
    }
}

/// Some slots of each row of ids or weights: `expert.split` copies nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slots {
    pub(super) of: ArenaRows,
    /// First slot.
    pub(super) first: u64,
    /// Number of slots.
    pub(super) count: u64,
}

/// Place of a graph value in the plan.
#[derive(Clone, Copy, Debug)]
pub(super) enum Binding {
    ArenaRows(ArenaRows),
    /// Some of a route's slots; only experts take them.
    Chosen(Slots),
    /// Bits of an index, one for each position or for each entry; only attention takes them. Where
    /// heads choose separately, each head has its own bits, `stride` bytes after those of the head
    /// before.
    Marks {
        bits: ArenaRows,
        choice: Choice,
        stride: u64,
    },
    Ids,
    /// Rows of a table, by tokens and their predecessors; only the table's look-up takes them.
    Ngram(Ngram),
    Positions,
    /// For each row the position of its sequence's last row in the step; only attention takes them.
    Ends,
    /// Positions of a rotation: each is rounded down to a multiple of `every`; `back` rotates in
    /// the other direction.
    Turned {
        every: u32,
        back: bool,
    },
    WantedRows,
    /// A token; its type names its state.
    Token,
    /// A dequantised weight; only products may read it, in its stored form.
    Weight(WeightId),
}
