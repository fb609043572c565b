//! Request for attention, as an op of a graph states it, and the answers of kernels.
//!
//! A kernel's `accepts` reads only the request. It returns a spec and the sizes of its items, or
//! the first reason why the kernel does not accept the request.

use std::fmt;

use ixc_ir::plan::Division;

use super::heads::{Heads, Scores, Window};
use crate::KernelSpec;
use crate::generator::cache::Cache;

/// Attention that an op requests, and the maximum rows of a step.
#[derive(Clone, Copy, Debug)]
pub struct AttentionRequest {
    /// Query heads that share a key head.
    pub heads: Heads,
    /// Scores of positions and entries.
    pub scores: Scores,
    /// Formats of keys and values.
    pub cache: Cache,
    /// Key heads of a row.
    pub key_heads: u32,
    /// Window of the state: the number of positions, up to and including the row's position, that a
    /// row sees. `None` for all.
    pub window: Option<Window>,
    /// Number of positions after the row's position that a row sees.
    pub ahead: Lookahead,
    /// Whether an index chose the positions.
    pub chosen: bool,
    /// Entries that rows see in addition to positions.
    pub entries: Option<Entries>,
    /// Whether results stay f32, so weights rounded to bf16 would lose too much.
    pub exact: bool,
    /// Whether the target has tile registers.
    pub tiles: bool,
    /// Max rows of a step.
    pub rows: u32,
}

/// Positions after the row's position that a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookahead {
    /// A row sees no position after its own.
    Nothing,
    /// This number of positions. A row sees the same number of positions before its own.
    Positions(u32),
    /// Positions up to the end of the text.
    Text,
}

/// Entries that several positions share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries {
    /// Positions of an entry.
    pub every: u32,
    /// Max entries that a row sees, if an index chose them.
    pub chosen: Option<u32>,
    /// Formats of the entries' keys and values.
    pub cache: Cache,
}

/// A kernel that can compute a request, with the sizes of its items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelOffer {
    /// Spec of the kernel.
    pub spec: KernelSpec,
    /// Max rows of an item.
    pub row_chunk: u32,
    /// Division of an item, if threads would lack items.
    pub division: ItemDivision,
    /// Advantage over kernels of lower preference.
    pub why: &'static str,
    /// Larger items that the kernel could have, and the reason against them.
    pub larger: Option<LargerItems>,
}

/// Division of an item of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemDivision {
    /// The item stays whole.
    Whole,
    /// Each part has some positions; a second kernel combines the parts.
    Positions {
        /// Number and sizes of the parts.
        division: Division,
        /// The second kernel.
        combine: KernelSpec,
    },
    /// Each band has some of the query heads.
    Heads {
        /// Query heads of a band.
        group: u32,
        /// The kernel of a band.
        spec: KernelSpec,
    },
}

/// Larger items that are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargerItems {
    /// Max rows of an item.
    pub row_chunk: u32,
    /// Reason against larger items.
    pub why: &'static str,
}

/// Reason why a kernel is not used for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// Another kernel of higher preference accepts the request.
    #[error("{0}")]
    Preferred(&'static str),
    /// Entries are requested.
    #[error("it sees no entries")]
    Entries,
    /// No entries are requested.
    #[error("there are no entries")]
    NoEntries,
    /// The state with the entries has no window, or chunks.
    #[error("entries need a window without chunks")]
    WindowOfEntries,
    /// A window is requested.
    #[error("it sees all positions, and rows see a window of them")]
    Window,
    /// No window is requested.
    #[error("rows see all positions, not a window of them")]
    NoWindow,
    /// An index chose the positions.
    #[error("it sees no positions that an index chose")]
    Chosen,
    /// Positions after the row's position are requested.
    #[error("it sees no positions after the row's position")]
    Lookahead,
    /// Positions after the row's position are requested, and the state has a window.
    #[error("it sees no positions after the row's position if the state has a window")]
    AheadOfWindow,
    /// Positions after the row's position are requested, and an index chose the positions.
    #[error("it sees no positions after the row's position if an index chose some")]
    AheadOfChoice,
    /// Positions after the row's position are requested, with slopes.
    #[error("its ALiBi slopes cover only positions before the row; here rows also see later positions")]
    AheadWithSlopes,
    /// Slopes are requested, which the kernel lacks.
    #[error("it has no ALiBi slopes")]
    Slopes,
    /// Slopes are requested, and an index chose the positions. Kernels read chosen positions as
    /// contiguous memory without their distances.
    #[error("it has no ALiBi slopes for positions that an index chose")]
    SlopesOfChoice,
    /// A cap is requested.
    #[error("it has no soft cap of scores")]
    Cap,
    /// Sinks are requested.
    #[error("it has no sinks")]
    Sinks,
    /// Keys or values are in a block format, and an index chose positions, or there are entries.
    #[error("it reads chosen positions and entries only in f16, not in a block format")]
    Blocks,
    /// The target has no tile registers.
    #[error("the target has no tile registers")]
    NoTiles,
    /// A step has too few rows.
    #[error("tiles do not pay for so few rows: threads would lack items")]
    FewRows,
    /// A step has several rows.
    #[error("it takes one row")]
    SeveralRows,
}

impl Reason {
    /// Returns this reason as an error if the request needs the feature.
    pub(super) fn refuse_if(self, is_requested: bool) -> Result<(), Reason> {
        if is_requested { Err(self) } else { Ok(()) }
    }
}

/// A kernel that is not used for a request, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// First word of the kernel's spec.
    pub kernel: &'static str,
    /// Reason why the kernel was not chosen.
    pub reason: Reason,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kernel, self.reason)
    }
}

impl AttentionRequest {
    /// Returns a request for one row that sees all positions up to its own, without tiles.
    pub fn plain(heads: Heads, scores: Scores, key_heads: u32) -> AttentionRequest {
        AttentionRequest {
            heads,
            scores,
            cache: Cache::default(),
            key_heads,
            window: None,
            ahead: Lookahead::Nothing,
            chosen: false,
            entries: None,
            exact: true,
            tiles: false,
            rows: 1,
        }
    }

    /// Returns the window that rows see, or `None` if they see all positions. Rows that see as far
    /// ahead as back have a window that ends ahead of them.
    ///
    /// # Errors
    /// Positions ahead together with a window, a choice or slopes.
    pub(super) fn sight(&self) -> Result<Option<Window>, Reason> {
        let window = match self.ahead {
            Lookahead::Nothing => return Ok(self.window),
            Lookahead::Positions(reach) => {
                let positions = reach.saturating_mul(2).saturating_add(1);
                Some(Window { positions, chunked: false, both: true })
            }
            Lookahead::Text => None,
        };
        Reason::AheadOfWindow.refuse_if(self.window.is_some())?;
        Reason::AheadOfChoice.refuse_if(self.chosen)?;
        Reason::AheadWithSlopes.refuse_if(self.scores.slopes)?;
        Ok(window)
    }

    /// Checks that rows see all positions, or positions that an index chose, without other
    /// restrictions.
    ///
    /// # Errors
    /// A window, entries, or another property that excludes chosen positions.
    pub(super) fn all_positions(&self) -> Result<(), Reason> {
        Reason::Entries.refuse_if(self.entries.is_some())?;
        Reason::Window.refuse_if(self.sight()?.is_some())?;
        Reason::SlopesOfChoice.refuse_if(self.chosen && self.scores.slopes)?;
        Reason::Blocks.refuse_if(self.chosen && self.cache != Cache::default())
    }
}
