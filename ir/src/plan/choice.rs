//! Number of places of a state that an index op chooses for a row. A *place* is a position, or an
//! entry that several positions share.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ixc_failure::Class;
use serde::{Deserialize, Serialize};

/// Number of positions of a block, for an index op that chooses blocks for each head. It must be a
/// power of two in this range. With at least 32 positions, each 32-bit word of selection bits
/// belongs to a single block. The choice of blocks then also takes little time compared with the
/// scores of their positions.
pub const CHOSEN_BLOCK: RangeInclusive<u64> = 32..=4096;

/// Number of places that an index op chooses for a row. The number depends only on the row's
/// position. The work of attention over the chosen places is therefore also divided by the position
/// alone.
///
/// ```
/// use ixc_ir::plan::{PositionChoice, ChoiceUnit};
///
/// // 2048 positions of those up to the row's own.
/// let choice = PositionChoice { top_k: 2048, every: 1, of: ChoiceUnit::Positions };
/// assert_eq!([0, 2047, 2048, 100_000].map(|position| choice.count(position)), [1, 2048, 2048, 2048]);
/// assert_eq!([2047, 2048].map(|position| choice.is_all(position)), [true, false]);
/// // Whole runs of 4, and the positions after the last whole run.
/// let choice = PositionChoice { top_k: 16, every: 4, of: ChoiceUnit::Positions };
/// assert_eq!([14, 15, 16, 18, 19, 22].map(|position| choice.count(position)), [15, 16, 17, 19, 16, 19]);
/// // Whole entries of 4 positions.
/// let choice = PositionChoice { top_k: 16, every: 4, of: ChoiceUnit::Entries };
/// assert_eq!([2, 3, 62, 63, 1000].map(|position| choice.count(position)), [0, 1, 15, 16, 16]);
/// // Blocks of 4 positions, including the row's own block.
/// let choice = PositionChoice { top_k: 16, every: 4, of: ChoiceUnit::Blocks };
/// assert_eq!([14, 15, 16, 18, 19, 20].map(|position| choice.count(position)), [15, 16, 13, 15, 16, 13]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PositionChoice {
    /// Maximum number of places that are chosen by their scores.
    pub top_k: u32,
    /// Number of positions that are chosen together: 1, or the length of a run, an entry or a
    /// block.
    pub every: u32,
    /// Unit in which places are chosen.
    pub of: ChoiceUnit,
}

/// Unit that an index op chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ChoiceUnit {
    /// Runs of positions. The positions after the last whole run are always chosen.
    Positions,
    /// Complete entries, each of several positions.
    Entries,
    /// Blocks of positions. The block of the row's own position is always chosen, up to that
    /// position.
    Blocks,
}

/// Error for a text that is not a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a choice of cache slots, such as `16 chosen in runs of 4`")]
pub struct ChoiceError;

impl ChoiceError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        Class::Data
    }
}

/// Text of a choice between its two numbers.
const FORMS: [(ChoiceUnit, &str); 3] = [
    (ChoiceUnit::Positions, " chosen in runs of "),
    (ChoiceUnit::Entries, " chosen entries of "),
    (ChoiceUnit::Blocks, " chosen in blocks of "),
];
/// Text of a choice after its number, if positions are chosen one by one.
const SINGLE: &str = " chosen";

impl fmt::Display for PositionChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PositionChoice { top_k, every, of } = self;
        match FORMS.iter().find(|(own, _)| own == of) {
            Some((_, form)) if (*every, *of) != (1, ChoiceUnit::Positions) => write!(f, "{top_k}{form}{every}"),
            _ => write!(f, "{top_k}{SINGLE}"),
        }
    }
}

impl FromStr for PositionChoice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<PositionChoice, ChoiceError> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| ChoiceError);
        if let Some(top_k) = text.strip_suffix(SINGLE) {
            return Ok(PositionChoice { top_k: number(top_k)?, every: 1, of: ChoiceUnit::Positions });
        }
        let parts = FORMS.iter().find_map(|(of, form)| Some((*of, text.split_once(form)?)));
        let (of, (top_k, every)) = parts.ok_or(ChoiceError)?;
        Ok(PositionChoice { top_k: number(top_k)?, every: number(every)?, of })
    }
}

impl PositionChoice {
    /// Whether the choice has at least one place, and only whole runs or blocks.
    pub fn is_valid(self) -> bool {
        let is_whole = match self.of {
            ChoiceUnit::Positions | ChoiceUnit::Blocks => self.top_k.is_multiple_of(self.every),
            ChoiceUnit::Entries => true,
        };
        self.top_k > 0 && self.every > 0 && is_whole
    }

    /// Returns the number of places that a row at `position` would see if no index op restricted
    /// it.
    pub fn visible_places(self, position: u32) -> u32 {
        let positions = position.saturating_add(1);
        match self.of {
            ChoiceUnit::Positions | ChoiceUnit::Blocks => positions,
            ChoiceUnit::Entries => positions / self.every.max(1),
        }
    }

    /// Returns the number of places that a row at `position` sees with the choice.
    pub fn count(self, position: u32) -> u32 {
        let (seen, every) = (self.visible_places(position), self.every.max(1));
        match self.of {
            ChoiceUnit::Positions => (seen / every).min(self.top_k / every) * every + seen % every,
            ChoiceUnit::Entries => seen.min(self.top_k),
            ChoiceUnit::Blocks => {
                let before = (self.top_k / every).saturating_sub(1);
                (position / every).min(before) * every + position % every + 1
            }
        }
    }

    /// Whether a row at `position` sees all places that it would see without the index op. If so,
    /// kernels read the state directly. This is true for all positions before
    /// [`PositionChoice::beyond`], and for no later position.
    pub fn is_all(self, position: u32) -> bool {
        self.count(position) == self.visible_places(position)
    }

    /// Returns the first position whose row does not see all earlier places.
    ///
    /// ```
    /// use ixc_ir::plan::{PositionChoice, ChoiceUnit::*};
    ///
    /// for (top_k, every, of) in [(5, 1, Positions), (1, 1, Positions), (8, 4, Positions), (5, 4, Entries), (8, 4, Blocks)] {
    ///     let choice = PositionChoice { top_k, every, of };
    ///     assert!((0..100).all(|position| choice.is_all(position) == (position < choice.beyond())));
    /// }
    /// ```
    pub fn beyond(self) -> u32 {
        let every = self.every.max(1);
        // The last position of the first place that exceeds `top_k`. With blocks, the first
        // position of that block.
        match self.of {
            ChoiceUnit::Positions => (self.top_k / every).saturating_add(1).saturating_mul(every) - 1,
            ChoiceUnit::Entries => self.top_k.saturating_add(1).saturating_mul(every) - 1,
            ChoiceUnit::Blocks => (self.top_k / every).max(1).saturating_mul(every),
        }
    }

    /// Returns the maximum number of places that a row sees, for any position.
    pub fn most(self) -> u64 {
        let behind = match self.of {
            ChoiceUnit::Positions => u64::from(self.every.max(1)) - 1,
            ChoiceUnit::Entries | ChoiceUnit::Blocks => 0,
        };
        u64::from(self.top_k) + behind
    }

    /// Returns the number of positions that share one bit of the index op's result.
    pub fn of_bit(self) -> u32 {
        match self.of {
            ChoiceUnit::Positions | ChoiceUnit::Blocks => 1,
            ChoiceUnit::Entries => self.every,
        }
    }
}
