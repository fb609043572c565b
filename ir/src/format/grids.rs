//! Grids: tables of several codes at once, for formats that have an index where others have codes.
//!
//! The best points of a lattice are kept in a table, and a block has the numbers of entries: 8 to 10 bits for four or eight elements, beside which each
//! element has a sign of its own. What a code is, [`super::Values`] says, as of other formats.
//!
//! ```text
//! iq3_s     9 bits for 4 magnitudes of 8, 4 signs         code = place of the magnitude | sign << 3
//! iq2_xxs   8 bits for 8 magnitudes of 3, 7 signs         code = place of the magnitude | sign << 2; an even number of signs is negative
//! iq1_m     11 bits for 8 numbers of 3, one sign          code = place of the number | sign << 2; what the sign is of stands beside the number
//! ```
//!
//! Indices are looked up where rows are read as they lie in a file. Packed strips have the codes, in planes as those of other formats: products cost what
//! they do with codes of as many bits, and a packed weight takes more memory than in its file.

mod data;

use super::packed::SUB;

/// A table of a grid, for kernels (`lookup`): entries of 32 bits, of which each has the codes of four elements in its bytes or of eight in
/// its nibbles, the first lowest.
pub static TABLES: [&[u32]; 6] = [
    &expand::<256>(&data::IQ3_XXS, 3, 8),
    &expand::<512>(&data::IQ3_S, 3, 8),
    &expand::<256>(&data::IQ2_XXS, 2, 4),
    &expand::<512>(&data::IQ2_XS, 2, 4),
    &expand::<1024>(&data::IQ2_S, 2, 4),
    &expand::<2048>(&data::IQ1_S, 2, 4),
];

/// Codes of `bits` bits, as such that are `apart` bits apart.
const fn expand<const N: usize>(packed: &[u16; N], bits: u32, apart: u32) -> [u32; N] {
    let (mut all, mut i) = ([0; N], 0);
    while i < N {
        let mut place = 0;
        while place < 32 / apart {
            all[i] |= ((packed[i] >> (place * bits) & ((1 << bits) - 1)) as u32) << (place * apart);
            place += 1;
        }
        i += 1;
    }
    all
}

/// How a block of 256 has its elements' codes by a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Number of the table in [`TABLES`].
    pub table: usize,
    /// Elements of an entry: 4 or 8.
    pub len: usize,
    /// Bits of a magnitude's place; above it stands the sign.
    pub bits: usize,
    /// Where indices are.
    pub index: Index,
    /// Where signs are.
    pub signs: Signs,
}

/// Where the indices of a sub-block of 32 elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Bytes of a field, so many from one sub-block's first to the next one's.
    Bytes {
        /// The field.
        field: &'static str,
        /// Bytes of it for each sub-block.
        stride: usize,
        /// The bits above them, if any.
        high: Option<HighBits>,
    },
    /// The low nine bits of the words of a field.
    Words {
        /// The field.
        field: &'static str,
    },
}

/// Bits of indices above those of a byte: in the field `high`, a byte or a 16-bit word for each sub-block, the first index's lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HighBits {
    /// Bytes for each sub-block: 1 or 2.
    pub bytes: usize,
    /// Bits of an index.
    pub width: usize,
    /// From one index's to the next one's.
    pub apart: usize,
}

/// Where the signs of a sub-block are: a bit for each element, set where it is negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signs {
    /// Bits of a field.
    Bits {
        /// The field.
        field: &'static str,
    },
    /// Of eight elements seven bits, the last sign being the others' parity: the low 28 bits of a 32-bit word for each sub-block.
    Words {
        /// The field.
        field: &'static str,
        /// Bytes of it for each sub-block.
        stride: usize,
        /// The word's place in these.
        at: usize,
    },
    /// The same: the high seven bits of each index's word.
    AboveIndex,
    /// One for all elements of an index: a bit among the [`HighBits`].
    Common {
        /// The first index's.
        first: usize,
        /// From one index's to the next one's.
        apart: usize,
    },
}

impl Grid {
    /// Indices of a sub-block.
    pub const fn each(&self) -> usize {
        SUB / self.len
    }

    /// Bytes of a sub-block in a field of words with indices.
    pub const fn words_stride(&self) -> usize {
        2 * self.each()
    }

    /// The code of element `i`, of a block whose fields `field` gives.
    pub(super) fn code<'a>(&self, field: impl Fn(&str) -> &'a [u8], i: usize) -> u8 {
        let (sub, number) = (i / SUB, i % SUB / self.len);
        let word = |name: &str| {
            let bytes = &field(name)[self.words_stride() * sub + 2 * number..];
            usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))
        };
        let high_bits = |bits: HighBits| match bits.bytes {
            1 => usize::from(field("high")[sub]),
            _ => usize::from(u16::from_le_bytes([field("high")[2 * sub], field("high")[2 * sub + 1]])),
        };
        let index = match self.index {
            Index::Bytes { field: name, stride, high } => {
                let above = high.map_or(0, |bits| high_bits(bits) >> (bits.apart * number) & ((1 << bits.width) - 1));
                usize::from(field(name)[stride * sub + number]) | above << 8
            }
            Index::Words { field: name } => word(name) & 511,
        };
        let seven = |bits: usize| (bits & 127) as u8 | ((bits & 127).count_ones() as u8 & 1) << 7;
        let signs = match (self.signs, self.index) {
            (Signs::Bits { field: name }, _) => field(name)[i / 8],
            (Signs::Words { field: name, stride, at }, _) => {
                let bytes = &field(name)[stride * sub + at..];
                let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                seven((word >> (7 * (i % SUB / 8))) as usize)
            }
            (Signs::AboveIndex, Index::Words { field: name }) => seven(word(name) >> 9),
            (Signs::Common { first, apart }, Index::Bytes { high: Some(bits), .. }) => {
                if high_bits(bits) >> (first + apart * number) & 1 == 1 { u8::MAX } else { 0 }
            }
            (Signs::AboveIndex, Index::Bytes { .. }) => unreachable!("no word with an index and signs"),
            (Signs::Common { .. }, _) => unreachable!("no bits above those of indices"),
        };
        let place = TABLES[self.table][index] >> (i % self.len * (32 / self.len)) & ((1 << self.bits) - 1);
        place as u8 | (signs >> (i % 8) & 1) << self.bits
    }
}
