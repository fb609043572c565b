//! Receivers of messages, and the state of outlets that wait for them.

use std::ops::Range;

use super::routing::NONE;

/// Waiting state of an outlet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// The next outlet that waits for room at the same instance.
    pub next: u32,
    /// The instance without room; [`NONE`] if the outlet does not wait for room.
    pub at: u32,
    /// First receiver that is not yet known to have room: index of its segment, and its column in
    /// the segment. All receivers before it have room.
    pub segment: u32,
    pub column: u32,
    /// Whether the outlet is in the waiting list of its routing.
    pub routing: bool,
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting { next: NONE, at: NONE, segment: 0, column: 0, routing: false }
    }
}

/// Consecutive receivers of a message: columns of a program, for one expert and part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Number of the first instance.
    pub first: u32,
    /// Distance to the next instance.
    pub step: u32,
    pub count: u32,
    pub port: u32,
    pub firing: u32,
    /// Number of rows for which the receivers have room.
    pub rows: u32,
    /// Offset in the row of the first receiver's slice; `stride` is the distance to the next
    /// receiver's slice.
    pub start: u64,
    pub stride: u64,
    pub bytes: u64,
    /// Offset of the slice in the port's buffer.
    pub to: u64,
}

impl Segment {
    pub fn instance(&self, column: u32) -> u32 {
        self.first + column * self.step
    }

    /// Returns the part of the row's bytes `bytes` that a column receives.
    pub fn overlap(&self, column: u32, bytes: &Range<u64>) -> Range<u64> {
        let start = self.start + u64::from(column) * self.stride;
        start.max(bytes.start)..(start + self.bytes).min(bytes.end)
    }
}
