//! What lasts from step to step: fields of a state, and the bytes and places that it takes.

use serde::{Deserialize, Serialize};

use super::ATTENTION_BLOCK;
use crate::format::Format;
use crate::state::{Rollback, StateKind};

/// A field of a state: `columns` times `width` elements, for every position where there are positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateField {
    /// Format of the elements.
    pub format: Format,
    /// Outermost dimension: heads.
    pub columns: u32,
    /// Whether there is something for every position.
    pub positions: bool,
    /// Elements of a column, for each position where there are positions.
    pub width: u32,
}

impl StateField {
    /// Bytes of a column's position, or of a column without positions; `None` where they do not fit.
    pub fn row_bytes(&self) -> Option<u64> {
        self.format.row_bytes(self.width.into())
    }

    /// Bytes for so many positions; `None` where they do not fit.
    pub fn bytes(&self, positions: u32) -> Option<u64> {
        let rows = if self.positions { positions } else { 1 };
        self.row_bytes()?.checked_mul(rows.into())?.checked_mul(self.columns.into())
    }
}

/// What lasts from step to step, and what it can do: [`crate::state`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Its name, for people.
    pub name: String,
    /// Its kind.
    pub kind: StateKind,
    /// Its fields, as the kind lists them.
    pub fields: Vec<StateField>,
    /// How it gets back to an earlier position.
    pub rollback: Rollback,
    /// How many positions, up to that of a token, are needed for the token; all where `None`.
    pub window: Option<u32>,
    /// How many positions share a place; 1 where each has its own.
    pub every: u32,
    /// Whether that is a chunk: positions from the last multiple of `window` on are needed, and no more before them.
    pub chunked: bool,
}

impl State {
    /// Keys and values of `heads` heads.
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

    /// Places that there must be room for, in a context of `capacity` and for steps of `max_tokens`: of each position or of so many; with a window,
    /// those that a step's first token needs from a block of [`ATTENTION_BLOCK`] on, and the step's own.
    pub fn held(&self, capacity: u32, max_tokens: u32) -> u32 {
        let Some(window) = self.window else { return self.places(capacity) };
        let own = window.saturating_add(max_tokens).saturating_add(ATTENTION_BLOCK);
        own.checked_next_multiple_of(ATTENTION_BLOCK).map_or(capacity, |own| own.min(capacity))
    }

    /// Places of so many positions: all of them, or whole blocks of [`ATTENTION_BLOCK`].
    fn places(&self, positions: u32) -> u32 {
        match self.every {
            0 | 1 => positions,
            every => positions.div_ceil(every).checked_next_multiple_of(ATTENTION_BLOCK).unwrap_or(u32::MAX),
        }
    }

    /// Bytes of all fields for so many places; `None` where they do not fit.
    pub fn bytes(&self, positions: u32) -> Option<u64> {
        self.fields.iter().try_fold(0u64, |sum, field| sum.checked_add(field.bytes(positions)?))
    }

    /// Bytes that it takes whatever the context, and bytes for each position of the context, for steps of `max_tokens`.
    pub fn fixed_and_position_bytes(&self, max_tokens: u32) -> (u64, u64) {
        let bytes = |positions| self.bytes(positions).unwrap_or(u64::MAX);
        match self.window {
            Some(_) => (bytes(self.held(u32::MAX, max_tokens)), 0),
            // Up to a block that no position fills.
            None if self.every > 1 => {
                (bytes(ATTENTION_BLOCK), bytes(1).saturating_sub(bytes(0)).div_ceil(self.every.into()))
            }
            None => (bytes(0), bytes(1) - bytes(0)),
        }
    }
}
