//! States in a plan: their fields, and the sizes of their memory.

use serde::{Deserialize, Serialize};

use super::ATTENTION_BLOCK;
use crate::format::Format;
use crate::state::{Rollback, StateKind};

/// A field of a state: `columns` times `width` elements. If it has positions, it has these elements
/// for every position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateField {
    /// Format of the elements.
    pub format: Format,
    /// Number of columns: the outermost dimension, such as heads.
    pub columns: u32,
    /// Whether the field has data for every position.
    pub positions: bool,
    /// Number of elements of a column. If the field has positions, the number for one position.
    pub width: u32,
}

impl StateField {
    /// Returns the number of bytes of a column, for one position if the field has positions.
    /// Returns `None` on overflow.
    pub fn row_bytes(&self) -> Option<u64> {
        self.format.row_bytes(self.width.into())
    }

    /// Returns the number of bytes of the field for `positions` positions, or `None` on overflow.
    pub fn bytes(&self, positions: u32) -> Option<u64> {
        let rows = if self.positions { positions } else { 1 };
        self.row_bytes()?.checked_mul(rows.into())?.checked_mul(self.columns.into())
    }
}

/// A state, which is kept from step to step. [`crate::state`] explains its properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Name, shown to users.
    pub name: String,
    /// Kind of the state.
    pub kind: StateKind,
    /// Fields of the state, in the order that its kind defines.
    pub fields: Vec<StateField>,
    /// Method of returning the state to an earlier position.
    pub rollback: Rollback,
    /// Number of positions that a token sees, including its own position. `None` means its own and
    /// all earlier positions.
    pub window: Option<u32>,
    /// Number of positions that share one entry of the state. With 1, each position has its own
    /// entry.
    pub every: u32,
    /// Whether the window is a chunk. A token then sees the positions from the last multiple of
    /// `window` on, and no earlier ones.
    pub chunked: bool,
}

impl State {
    /// Returns a state with the keys and values of `heads` heads.
    pub fn paged(name: &str, heads: u32, key: u32, value: u32) -> State {
        let fields = StateKind::Paged.row().fields.iter().zip([key, value]);
        let field = |(row, width): (&crate::state::FieldRow, u32)| StateField {
            format: row.format(),
            columns: heads,
            positions: row.positions,
            width,
        };
        State {
            name: name.to_string(),
            kind: StateKind::Paged,
            fields: fields.map(field).collect(),
            rollback: Rollback::Cut,
            window: None,
            every: 1,
            chunked: false,
        }
    }

    /// Returns the number of entries in memory for a context of `capacity` positions and steps of
    /// up to `max_tokens` tokens. Without a window, the memory has the entries of all positions.
    /// With a window, it has those of the step's tokens and of the window before the first of them.
    /// This number is rounded up to blocks of [`ATTENTION_BLOCK`].
    pub fn entries_in_memory(&self, capacity: u32, max_tokens: u32) -> u32 {
        let Some(window) = self.window else { return self.places(capacity) };
        let own = window.saturating_add(max_tokens).saturating_add(ATTENTION_BLOCK);
        own.checked_next_multiple_of(ATTENTION_BLOCK).map_or(capacity, |own| own.min(capacity))
    }

    /// Returns the number of entries for `positions` positions. If several positions share an
    /// entry, the result is rounded up to blocks of [`ATTENTION_BLOCK`].
    fn places(&self, positions: u32) -> u32 {
        match self.every {
            0 | 1 => positions,
            every => positions.div_ceil(every).checked_next_multiple_of(ATTENTION_BLOCK).unwrap_or(u32::MAX),
        }
    }

    /// Returns the number of bytes of all fields with `positions` entries, or `None` on overflow.
    pub fn bytes(&self, positions: u32) -> Option<u64> {
        self.fields.iter().try_fold(0u64, |sum, field| sum.checked_add(field.bytes(positions)?))
    }

    /// Returns the bytes of the state that do not depend on the length of the context, and the
    /// bytes for each position of the context. Steps have up to `max_tokens` tokens.
    pub fn fixed_and_position_bytes(&self, max_tokens: u32) -> (u64, u64) {
        let bytes = |positions| self.bytes(positions).unwrap_or(u64::MAX);
        match self.window {
            Some(_) => (bytes(self.entries_in_memory(u32::MAX, max_tokens)), 0),
            // The number of entries is rounded up to a block, so the fixed bytes include one block.
            None if self.every > 1 => {
                (bytes(ATTENTION_BLOCK), bytes(1).saturating_sub(bytes(0)).div_ceil(self.every.into()))
            }
            None => (bytes(0), bytes(1) - bytes(0)),
        }
    }
}
