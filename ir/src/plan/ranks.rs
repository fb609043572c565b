//! Division of a model among ranks, and the exchanges of a rank's plan.

use serde::{Deserialize, Serialize};

use super::BufferId;

/// Max number of ranks.
pub const MAX_RANKS: u32 = 1 << 12;

/// Division of a model among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RankDivision {
    /// Heads of attention, and rows and columns of other products.
    Tensors,
    /// Experts of each layer.
    Experts,
    /// Ranges of layers.
    Layers,
}

impl RankDivision {
    /// All divisions.
    pub const ALL: [RankDivision; 3] = [RankDivision::Tensors, RankDivision::Experts, RankDivision::Layers];

    /// Returns the word in options.
    pub fn word(self) -> &'static str {
        match self {
            RankDivision::Tensors => "tensors",
            RankDivision::Experts => "experts",
            RankDivision::Layers => "layers",
        }
    }
}

/// The part of a model that a plan computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranks {
    /// Number of this rank, below [`Ranks::ranks`].
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Division of the model.
    pub division: RankDivision,
}

/// An exchange with other ranks. All buffers hold rows of f32. All ranks have the same number of
/// rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exchange {
    /// Adds the parts of all ranks, in the order of the ranks.
    Sum {
        /// The part of this rank.
        part: BufferId,
        /// The sum, in rows of the same length.
        sum: BufferId,
    },
    /// Concatenates the rows of all ranks, in the order of the ranks.
    Gather {
        /// The part of this rank.
        part: BufferId,
        /// The concatenated rows.
        whole: BufferId,
    },
    /// Sends rows to a rank.
    Send {
        /// The rows to send.
        rows: BufferId,
        /// The receiving rank.
        to: u32,
    },
    /// Receives rows from a rank.
    Receive {
        /// Memory for the rows.
        rows: BufferId,
        /// The sending rank.
        from: u32,
    },
    /// Adds the parts of all ranks as [`Exchange::Sum`] does, with the same bits. Steps with enough
    /// tokens do so in two halves, each while the ranks compute the other half.
    SumHalves {
        /// The part of this rank, in rows of tokens.
        part: BufferId,
        /// The sum, in rows of the same length.
        sum: BufferId,
        /// The steps that compute the halves one after the other.
        halves: Halves,
    },
}

/// Division of the steps around a sum into halves of their rows. All are
/// [`Step::Run`](super::Step::Run) over tokens, and read of other steps only their own rows.
///
/// ```text
/// steps before      first half of the rows
///   begin the sum of the first half
/// steps before      second half
///   begin the sum of the second half, finish that of the first
/// steps after       first half
///   finish the sum of the second half
/// steps after       second half
/// ```
///
/// The items of a step (kernel calls) are the same as without halves. An item before the sum
/// belongs to the first half if the sum of that half needs one of its rows. An item after the sum
/// does if all its rows are in that half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halves {
    /// Min tokens of a step for halves. With fewer, ranks exchange all rows at once.
    pub rows: u32,
    /// Number of steps directly before the sum.
    pub before: u32,
    /// Number of steps directly after the sum.
    pub after: u32,
}

impl Halves {
    /// Returns the number of rows of the first half.
    pub fn first_rows(tokens: u32) -> u32 {
        tokens / 2
    }
}

/// Bytes that arrive in the time of another round of messages: about 150 us between machines over
/// TCP, at 1.1 GB/s.
const ROUND_BYTES: u64 = 160 << 10;

/// Whether ranks add parts of this many bytes in pieces: each rank adds one piece, and sends the
/// sum to the others. Otherwise each rank gets all parts, and adds them all. Pieces need a second
/// round of messages, and fewer bytes arrive at a rank: `2 (N - 1) / N` parts, not `N - 1`.
pub fn adds_in_pieces(ranks: u32, part_bytes: u64) -> bool {
    let ranks = u128::from(ranks.max(1));
    let saved = u128::from(part_bytes) * (ranks - 1) * ranks.saturating_sub(2) / ranks;
    saved >= ROUND_BYTES.into()
}

impl Exchange {
    /// Returns the buffer that this rank sends, if any.
    pub fn sent_buffer(self) -> Option<BufferId> {
        match self {
            Exchange::Sum { part, .. } | Exchange::SumHalves { part, .. } | Exchange::Gather { part, .. } => Some(part),
            Exchange::Send { rows, .. } => Some(rows),
            Exchange::Receive { .. } => None,
        }
    }

    /// Returns the buffer that the exchange writes, if any.
    pub fn result(self) -> Option<BufferId> {
        match self {
            Exchange::Sum { sum, .. } | Exchange::SumHalves { sum, .. } => Some(sum),
            Exchange::Gather { whole, .. } => Some(whole),
            Exchange::Send { .. } => None,
            Exchange::Receive { rows, .. } => Some(rows),
        }
    }

    /// Returns the only other rank that takes part, or `None` if all ranks do.
    pub fn peer(self) -> Option<u32> {
        match self {
            Exchange::Sum { .. } | Exchange::SumHalves { .. } | Exchange::Gather { .. } => None,
            Exchange::Send { to, .. } => Some(to),
            Exchange::Receive { from, .. } => Some(from),
        }
    }

    /// Returns the division into halves of the rows, if any.
    pub fn halves(self) -> Option<Halves> {
        match self {
            Exchange::SumHalves { halves, .. } => Some(halves),
            Exchange::Sum { .. } | Exchange::Gather { .. } | Exchange::Send { .. } | Exchange::Receive { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_for_large_parts_or_many_ranks() {
        for bytes in [0, 1 << 20, u64::MAX] {
            assert!(!adds_in_pieces(1, bytes) && !adds_in_pieces(2, bytes));
        }
        // Three ranks save 2/3 of a part, four ranks 3/2, sixteen ranks 13 parts and an eighth.
        assert_eq!([245_759, 245_760].map(|bytes| adds_in_pieces(3, bytes)), [false, true]);
        assert_eq!([109_226, 109_227].map(|bytes| adds_in_pieces(4, bytes)), [false, true]);
        assert_eq!([12_000, 28_672].map(|bytes| adds_in_pieces(16, bytes)), [false, true]);
        assert!(adds_in_pieces(MAX_RANKS, u64::MAX));
    }
}
