//! The unit of work of a stage: rows and columns that one call of a kernel computes.

use ixc_ir::plan::PositionChoice;

use super::parts::Span;
use crate::storage::memory::Region;

/// The rows and columns of one kernel call, and how it reads its inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) row: u64,
    pub(super) rows: u64,
    pub(super) column: u32,
    /// Number of the band (a part of the column's rows) that the item computes.
    pub(super) band: u32,
    pub(super) expert: u32,
    /// Number of the piece (rows of one sequence) that contains the item's rows; 0 if the item
    /// spans all pieces.
    pub(super) piece: u32,
    /// Memory of the expert's block, if experts are streamed.
    pub(super) block: Option<Region>,
    pub(super) span: Span,
    /// Number of the state with a sliding window. The item's positions are counted from the state's
    /// first position in memory.
    pub(super) sliding: Option<u32>,
    /// The sparse-attention index's choice of positions, if the kernel reads only chosen positions.
    pub(super) listed: Option<PositionChoice>,
    /// Number of later positions that each row can attend to, if attention is not causal.
    pub(super) whole: Option<u32>,
}
