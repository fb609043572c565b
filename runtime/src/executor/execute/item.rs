//! The unit of work of a stage: rows and columns that one call of a kernel computes.

use ixc_ir::plan::PositionChoice;

use super::parts::Span;
use crate::storage::memory::Region;

/// The data of one item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) row: u64,
    pub(super) rows: u64,
    pub(super) column: u32,
    /// Number of the band in the column.
    pub(super) band: u32,
    pub(super) expert: u32,
    /// Number of the piece (rows of one sequence) that contains these rows; 0 if the item spans all
    /// pieces.
    pub(super) piece: u32,
    /// The expert's block, if it is streamed.
    pub(super) block: Option<Region>,
    pub(super) span: Span,
    /// The sliding-window state from whose first position in memory positions are counted.
    pub(super) sliding: Option<u32>,
    /// The index's choice of positions, if kernels read only chosen positions.
    pub(super) listed: Option<PositionChoice>,
    /// Number of later positions that rows attend to, if attention is not causal.
    pub(super) whole: Option<u32>,
}
