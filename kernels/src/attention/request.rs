//! Requests for attention, as an op of a graph specifies it, and the answers of kernels.
//!
//! A kernel's `accepts` reads only the request. It returns a spec and the sizes of its items, or
//! the first reason why the kernel does not accept the request.

use std::fmt;

use ixc_ir::plan::Division;

use super::heads::{Heads, Scores, Window};
use crate::KernelSpec;
use crate::generator::cache::Cache;

/// Properties of attention that an op requests, and the maximum number of rows of a step.
#[derive(Clone, Copy, Debug)]
pub struct AttentionRequest {
    /// Query heads that share a key head, and the sizes of heads.
    pub heads: Heads,
    /// Computation of the scores of positions and entries.
    pub scores: Scores,
    /// Formats of keys and values.
    pub cache: Cache,
    /// Number of key heads of a row.
    pub key_heads: u32,
    /// Window of the state: the number of positions that a row sees, including its own. `None` if a
    /// row sees all positions up to its own.
    pub window: Option<Window>,
    /// Positions after a row's own position that the row sees.
    pub ahead: Lookahead,
    /// Whether an index chose the positions.
    pub chosen: bool,
    /// Entries that rows see in addition to positions.
    pub entries: Option<Entries>,
    /// Whether results stay f32. If so, kernels that round weights to bf16 are not precise enough.
    pub exact: bool,
    /// Whether the target has tile registers.
    pub tiles: bool,
    /// Maximum number of rows of a step.
    pub rows: u32,
}

/// Positions after a row's own position that the row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookahead {
    /// No positions after the row's own.
    Nothing,
    /// A number of positions. A row also sees this number of positions before its own.
    Positions(u32),
    /// All positions up to the end of the text.
    Text,
}

/// Compressed entries, each of several positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries {
    /// Number of positions of an entry.
    pub every: u32,
    /// Maximum number of entries that a row sees, if an index chose them.
    pub chosen: Option<u32>,
    /// Formats of the entries' keys and values.
    pub cache: Cache,
}

/// A kernel that accepts a request, with the sizes of its items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelOffer {
    /// Spec of the kernel.
    pub spec: KernelSpec,
    /// Maximum number of rows of an item.
    pub row_chunk: u32,
    /// Division of an item that is used if there are too few items for all threads.
    pub division: ItemDivision,
    /// Reason to prefer this kernel to later candidates.
    pub why: &'static str,
    /// Larger items that the kernel could have, and the reason why they are not used.
    pub larger: Option<LargerItems>,
}

/// Method of dividing an item of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemDivision {
    /// No division.
    Whole,
    /// Division by positions. A second kernel combines the results of the parts.
    Positions {
        /// Number and sizes of the parts.
        division: Division,
        /// Spec of the kernel that combines the results.
        combine: KernelSpec,
    },
    /// Division into bands, each with some of the query heads.
    Heads {
        /// Number of query heads of a band.
        group: u32,
        /// Spec of the kernel that computes a band.
        spec: KernelSpec,
    },
}

/// Larger items that a kernel could have, but that are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargerItems {
    /// Maximum number of rows of such an item.
    pub row_chunk: u32,
    /// Reason why larger items are not used.
    pub why: &'static str,
}

/// Reason why a kernel is not used for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// Another kernel with higher preference accepts the request.
    #[error("{0}")]
    Preferred(&'static str),
    /// The request has entries, which the kernel does not support.
    #[error("the kernel does not support compressed entries")]
    Entries,
    /// The request has no entries, and the kernel needs them.
    #[error("the kernel needs compressed entries, but this attention has none")]
    NoEntries,
    /// The request has entries, but the state of its positions has no window, or has chunks.
    #[error("the kernel supports compressed entries only with a sliding window without chunks")]
    WindowOfEntries,
    /// The request has a window, which the kernel does not support.
    #[error("the kernel does not support sliding windows")]
    Window,
    /// The request has no window, and the kernel needs one.
    #[error("the kernel needs a sliding window, but rows see all positions")]
    NoWindow,
    /// An index chose the positions, which the kernel does not support.
    #[error("the kernel does not support positions that an index chose")]
    Chosen,
    /// Rows see positions after their own, which the kernel does not support.
    #[error("the kernel does not support positions after the row's own")]
    Lookahead,
    /// Rows see positions after their own, and the state has a window.
    #[error("the kernel does not support positions after the row's own if the state has a sliding window")]
    AheadOfWindow,
    /// Rows see positions after their own, and an index chose the positions.
    #[error("the kernel does not support positions after the row's own if an index chose the positions")]
    AheadOfChoice,
    /// Rows see positions after their own, and heads have slopes.
    #[error("the kernel supports ALiBi slopes only if rows see no positions after their own")]
    AheadWithSlopes,
    /// Heads have slopes, which the kernel does not support.
    #[error("the kernel does not support ALiBi slopes")]
    Slopes,
    /// Heads have slopes, and an index chose the positions. Kernels read chosen positions from
    /// contiguous memory, so they do not know the distances.
    #[error("the kernel does not support ALiBi slopes for positions that an index chose")]
    SlopesOfChoice,
    /// The scores have a cap, which the kernel does not support.
    #[error("the kernel does not support a soft cap of scores")]
    Cap,
    /// Heads have sinks, which the kernel does not support.
    #[error("the kernel does not support attention sinks")]
    Sinks,
    /// Keys or values are in a block format, which the kernel does not support for chosen positions
    /// and entries.
    #[error("the kernel reads compressed entries, and positions that an index chose, only in f16")]
    Blocks,
    /// The target has no tile registers.
    #[error("the target has no tile registers")]
    NoTiles,
    /// The steps have too few rows for the kernel.
    #[error("too few rows for tiles: there would be fewer work items than threads")]
    FewRows,
    /// The steps have several rows, and the kernel computes only one.
    #[error("the kernel computes one row at a time")]
    SeveralRows,
}

impl Reason {
    /// Returns this reason as an error if `is_requested` is true.
    pub(super) fn refuse_if(self, is_requested: bool) -> Result<(), Reason> {
        if is_requested { Err(self) } else { Ok(()) }
    }
}

/// A kernel that is not used for a request, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// First word of the text of the kernel's spec.
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
    /// Returns a request for one row that sees all positions up to its own, on a target without
    /// tile registers.
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

    /// Returns the window that rows see, or `None` if they see all positions. If rows see a number
    /// of positions after their own, the window ends after the row's position.
    ///
    /// # Errors
    /// Fails if rows see positions after their own, and the request also has a window, a choice of
    /// positions or slopes.
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

    /// Checks that rows see all positions, or all positions that an index chose.
    ///
    /// # Errors
    /// Fails if the request has a window or entries, or another property that excludes chosen
    /// positions.
    pub(super) fn all_positions(&self) -> Result<(), Reason> {
        Reason::Entries.refuse_if(self.entries.is_some())?;
        Reason::Window.refuse_if(self.sight()?.is_some())?;
        Reason::SlopesOfChoice.refuse_if(self.chosen && self.scores.slopes)?;
        Reason::Blocks.refuse_if(self.chosen && self.cache != Cache::default())
    }
}
