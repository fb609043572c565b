//! Division of a model among ranks, and the exchanges between ranks in a plan.

use serde::{Deserialize, Serialize};

use super::BufferId;

/// Maximum number of ranks.
pub const MAX_RANKS: u32 = 1 << 12;

/// Method of dividing a model among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RankDivision {
    /// Each rank has some heads of attention, and some rows or columns of other matrices.
    Tensors,
    /// Each rank has some experts of each layer.
    Experts,
    /// Each rank has a range of layers.
    Layers,
}

impl RankDivision {
    /// All methods, in the order of their declaration.
    pub const ALL: [RankDivision; 3] = [RankDivision::Tensors, RankDivision::Experts, RankDivision::Layers];

    /// Returns the method's word in command-line options.
    pub fn word(self) -> &'static str {
        match self {
            RankDivision::Tensors => "tensors",
            RankDivision::Experts => "experts",
            RankDivision::Layers => "layers",
        }
    }
}

/// Part of a model that one rank's plan computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranks {
    /// Number of this rank, below [`Ranks::ranks`].
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Method of dividing the model.
    pub division: RankDivision,
}

/// An exchange with other ranks. All buffers have rows of f32, and all ranks have the same number
/// of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exchange {
    /// Adds the addends of all ranks, in the order of the ranks.
    Sum {
        /// Buffer with the addend of this rank.
        part: BufferId,
        /// Buffer for the sum, in rows of the same length.
        sum: BufferId,
    },
    /// Concatenates the rows of all ranks, in the order of the ranks.
    Gather {
        /// Buffer with the rows of this rank.
        part: BufferId,
        /// Buffer for the concatenated rows.
        whole: BufferId,
    },
    /// Sends rows to another rank.
    Send {
        /// Buffer with the rows to send.
        rows: BufferId,
        /// Number of the receiving rank.
        to: u32,
    },
    /// Receives rows from another rank.
    Receive {
        /// Buffer for the received rows.
        rows: BufferId,
        /// Number of the sending rank.
        from: u32,
    },
    /// Adds the addends of all ranks, with the same bits as [`Exchange::Sum`]. If a step has enough
    /// tokens, the sum is made in two halves of the rows. While one half is exchanged, the ranks
    /// compute the other half.
    SumHalves {
        /// Buffer with the addend of this rank, one row for each token.
        part: BufferId,
        /// Buffer for the sum, in rows of the same length.
        sum: BufferId,
        /// Steps that compute one half of their rows after the other.
        halves: Halves,
    },
}

/// Division of the steps before and after a sum into two halves of their rows. All these steps are
/// [`Step::Run`](super::Step::Run) over tokens. From the results of other steps, each row reads
/// only its own row.
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
/// belongs to the first half if it computes a row of the first half. An item after the sum belongs
/// to the first half if all its rows are in that half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halves {
    /// Minimum number of tokens of a step for two halves. With fewer tokens, ranks exchange all
    /// rows at once.
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

/// Number of bytes that a rank can receive in the time of an additional round of messages. Between
/// machines over TCP, a round takes about 150 us, at 1.1 GB/s.
const ROUND_BYTES: u64 = 160 << 10;

/// Whether ranks add addends of this many bytes in pieces: each rank adds one piece of all addends,
/// and sends the sum to the others. Otherwise each rank receives all addends and adds them itself.
/// Pieces need a second round of messages, but each rank receives fewer bytes: `2 (N - 1) / N`
/// addends instead of `N - 1`.
pub fn adds_in_pieces(ranks: u32, part_bytes: u64) -> bool {
    let ranks = u128::from(ranks.max(1));
    let saved = u128::from(part_bytes) * (ranks - 1) * ranks.saturating_sub(2) / ranks;
    saved >= ROUND_BYTES.into()
}

impl Exchange {
    /// Returns the buffer that this rank sends, or `None` if it sends no rows.
    pub fn sent_buffer(self) -> Option<BufferId> {
        match self {
            Exchange::Sum { part, .. } | Exchange::SumHalves { part, .. } | Exchange::Gather { part, .. } => Some(part),
            Exchange::Send { rows, .. } => Some(rows),
            Exchange::Receive { .. } => None,
        }
    }

    /// Returns the buffer that the exchange writes, or `None` if it writes none.
    pub fn result(self) -> Option<BufferId> {
        match self {
            Exchange::Sum { sum, .. } | Exchange::SumHalves { sum, .. } => Some(sum),
            Exchange::Gather { whole, .. } => Some(whole),
            Exchange::Send { .. } => None,
            Exchange::Receive { rows, .. } => Some(rows),
        }
    }

    /// Returns the other rank of a message between two ranks, or `None` if all ranks take part.
    pub fn peer(self) -> Option<u32> {
        match self {
            Exchange::Sum { .. } | Exchange::SumHalves { .. } | Exchange::Gather { .. } => None,
            Exchange::Send { to, .. } => Some(to),
            Exchange::Receive { from, .. } => Some(from),
        }
    }

    /// Returns the division of steps into halves, or `None` for other exchanges.
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
        // Pieces save the transfer of 2/3 of an addend with three ranks, 3/2 with four ranks, and
        // 13 1/8 addends with sixteen ranks.
        assert_eq!([245_759, 245_760].map(|bytes| adds_in_pieces(3, bytes)), [false, true]);
        assert_eq!([109_226, 109_227].map(|bytes| adds_in_pieces(4, bytes)), [false, true]);
        assert_eq!([12_000, 28_672].map(|bytes| adds_in_pieces(16, bytes)), [false, true]);
        assert!(adds_in_pieces(MAX_RANKS, u64::MAX));
    }
}
