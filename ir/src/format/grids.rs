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
//! Packed strips have indices and signs, too, those of 16 rows side by side ([`super::packed`]), so that a packed weight takes the bytes that it has in its
//! file. They are looked up as a strip is read: eight elements at a time, or, where bytes of whole vectors can be permuted, as bytes of 64 indices at once.

mod data;

use super::packed::SUB;

/// A table of a grid, for kernels (`lookup`): entries of 32 bits, whose bytes have the codes of four elements, or of the first four of eight in
/// their low nibbles and of the other four in the high ones.
pub static TABLES: [&[u32]; 6] = [
    &expand::<256>(&data::IQ3_XXS, 3, 4),
    &expand::<512>(&data::IQ3_S, 3, 4),
    &expand::<256>(&data::IQ2_XXS, 2, 8),
    &expand::<512>(&data::IQ2_XS, 2, 8),
    &expand::<1024>(&data::IQ2_S, 2, 8),
    &expand::<2048>(&data::IQ1_S, 2, 8),
];

/// Tables of bytes, for kernels (`lookup_byte`): of each of [`TABLES`] the lower and the upper byte of entries whose codes stand side by side, the first
/// lowest; then [`SIGNS`].
pub static BYTE_TABLES: [&[u8]; 13] = [
    &bytes::<256>(&data::IQ3_XXS, 0),
    &bytes::<256>(&data::IQ3_XXS, 8),
    &bytes::<512>(&data::IQ3_S, 0),
    &bytes::<512>(&data::IQ3_S, 8),
    &bytes::<256>(&data::IQ2_XXS, 0),
    &bytes::<256>(&data::IQ2_XXS, 8),
    &bytes::<512>(&data::IQ2_XS, 0),
    &bytes::<512>(&data::IQ2_XS, 8),
    &bytes::<1024>(&data::IQ2_S, 0),
    &bytes::<1024>(&data::IQ2_S, 8),
    &bytes::<2048>(&data::IQ1_S, 0),
    &bytes::<2048>(&data::IQ1_S, 8),
    &even_signs(),
];
/// The table that has for seven signs all eight, of which an even number is negative.
pub const SIGNS: usize = 12;

/// Codes of `bits` bits, `len` of an entry, as [`TABLES`] have them.
const fn expand<const N: usize>(packed: &[u16; N], bits: usize, len: usize) -> [u32; N] {
    let (mut all, mut i) = ([0; N], 0);
    while i < N {
        let mut place = 0;
        while place < len {
            all[i] |= ((packed[i] >> (place * bits) & ((1 << bits) - 1)) as u32) << at(place);
            place += 1;
        }
        i += 1;
    }
    all
}

/// The bit that element `place` of an entry of [`TABLES`] begins at.
const fn at(place: usize) -> usize {
    place % 4 * 8 + place / 4 * 4
}

/// The byte of each entry from bit `from` on.
const fn bytes<const N: usize>(packed: &[u16; N], from: u32) -> [u8; N] {
    let (mut all, mut i) = ([0; N], 0);
    while i < N {
        all[i] = (packed[i] >> from) as u8;
        i += 1;
    }
    all
}

/// See [`SIGNS`].
const fn even_signs() -> [u8; 128] {
    let (mut all, mut i) = ([0; 128], 0);
    while i < 128 {
        all[i as usize] = even(i);
        i += 1;
    }
    all
}

/// Seven signs, and the eighth that makes them even.
const fn even(seven: u8) -> u8 {
    seven | (seven.count_ones() as u8 & 1) << 7
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

/// Most vectors of a packed sub-block: two of indices of four elements, and one of signs.
const MOST_VECTORS: usize = 3;

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

/// Of each sub-block of a block in a file, four bytes that a packed one has side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FourBytes {
    /// The field that has them.
    pub field: &'static str,
    /// Bytes of it from one sub-block's to the next one's.
    pub stride: usize,
    /// The first of them.
    pub first: usize,
    /// From one to the next: 1, or 2 where it is every other byte of words.
    pub step: usize,
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

    /// Vectors of a packed sub-block that indices take.
    pub const fn index_vectors(&self) -> usize {
        self.each() / 4
    }

    /// Vectors of a packed sub-block: of indices, then of signs.
    pub const fn vectors(&self) -> usize {
        match self.signs {
            Signs::Bits { .. } | Signs::Words { .. } | Signs::AboveIndex => self.index_vectors() + 1,
            Signs::Common { .. } => self.index_vectors(),
        }
    }

    /// What a row's dwords of vector `vector` of a packed block's sub-blocks are.
    pub const fn vector(&self, vector: usize) -> FourBytes {
        let (is_signs, words) = (vector == self.index_vectors(), self.words_stride());
        match (is_signs, self.signs, self.index) {
            (false, _, Index::Bytes { field, stride, .. }) => FourBytes { field, stride, first: 4 * vector, step: 1 },
            (true, Signs::Bits { field }, _) => FourBytes { field, stride: SUB / 8, first: 0, step: 1 },
            (true, Signs::Words { field, stride, at }, _) => FourBytes { field, stride, first: at, step: 1 },
            (_, _, Index::Words { field }) => FourBytes { field, stride: words, first: is_signs as usize, step: 2 },
            (true, Signs::AboveIndex | Signs::Common { .. }, Index::Bytes { .. }) => panic!("signs among others' bits"),
        }
    }

    /// The bits of indices above those of a byte that stand in the field `high`.
    pub const fn high(&self) -> Option<HighBits> {
        match self.index {
            Index::Bytes { high, .. } => high,
            Index::Words { .. } => None,
        }
    }

    /// The places of each entry's elements, the first lowest.
    pub(super) fn entries(&self) -> impl Iterator<Item = u16> {
        let [low, high] = [0, 1].map(|half| BYTE_TABLES[2 * self.table + half]);
        low.iter().zip(high).map(|(low, high)| u16::from_le_bytes([*low, *high]))
    }

    /// How many neighbours' signs say each other's, from the first of as many on; 1 where each is its own.
    pub(super) const fn span(&self) -> usize {
        match self.signs {
            Signs::Bits { .. } => 1,
            Signs::Words { .. } | Signs::AboveIndex => 8,
            Signs::Common { apart: 0, .. } => SUB,
            Signs::Common { .. } => self.len,
        }
    }

    /// Patterns of signs that are worth a try for the elements of a [span](Grid::span), a bit for each negative one. Where an even number is, and
    /// another number of `x`, so many of those that matter least are tried the other way.
    pub(super) fn patterns(&self, x: &[f32], w: &[f32], flipped: usize) -> Vec<u32> {
        let negative = x.iter().rev().fold(0u32, |all, x| all << 1 | u32::from(*x < 0.0));
        match self.signs {
            Signs::Common { .. } => vec![0, u32::MAX],
            Signs::Words { .. } | Signs::AboveIndex if !negative.count_ones().is_multiple_of(2) => {
                let mut order: Vec<usize> = (0..x.len()).collect();
                order.sort_by(|&a, &b| (w[a] * x[a].abs()).total_cmp(&(w[b] * x[b].abs())));
                order.into_iter().take(flipped).map(|i| negative ^ 1 << i).collect()
            }
            Signs::Bits { .. } | Signs::Words { .. } | Signs::AboveIndex => vec![negative],
        }
    }

    /// Writes an index of a sub-block, to a block of zeros: `put` gets a field, a byte of it, and the bits that are set there.
    pub(super) fn put_index(&self, sub: usize, number: usize, index: usize, put: &mut impl FnMut(&str, usize, u8)) {
        let low = self.vector(number / 4);
        put(low.field, sub * low.stride + low.first + number % 4 * low.step, index as u8);
        let above = index >> 8;
        match self.index {
            Index::Bytes { high: None, .. } => {}
            Index::Bytes { high: Some(bits), .. } => put_high(sub, bits.bytes, above << (bits.apart * number), put),
            Index::Words { field } => put(field, sub * self.words_stride() + 2 * number + 1, above as u8),
        }
    }

    /// Writes the signs of eight elements of a sub-block, likewise.
    pub(super) fn put_signs(&self, sub: usize, eight: usize, signs: u8, put: &mut impl FnMut(&str, usize, u8)) {
        match self.signs {
            Signs::Bits { field } => put(field, sub * (SUB / 8) + eight, signs),
            Signs::Words { field, stride, at } => {
                let word = u32::from(signs & 127) << (7 * eight);
                let bytes = word.to_le_bytes().into_iter().enumerate();
                bytes.for_each(|(byte, bits)| put(field, sub * stride + at + byte, bits));
            }
            Signs::AboveIndex => {
                let high = self.vector(self.index_vectors());
                put(high.field, sub * high.stride + high.first + eight * high.step, signs << 1);
            }
            Signs::Common { first, apart } => {
                let bytes = self.high().map_or(0, |high| high.bytes);
                put_high(sub, bytes, usize::from(signs & 1) << (first + apart * eight), put);
            }
        }
    }

    /// Writes the codes of consecutive elements of a sub-block, from `first` on, of a block whose
    /// fields `field` gives.
    pub(super) fn codes<'a>(&self, field: impl Fn(&str) -> &'a [u8], first: usize, codes: &mut [u8]) {
        let sub = first / SUB;
        let mut dwords = [[0; 4]; MOST_VECTORS];
        for (vector, dword) in dwords.iter_mut().enumerate().take(self.vectors()) {
            let FourBytes { field: name, stride, first, step } = self.vector(vector);
            let bytes = &field(name)[sub * stride + first..];
            *dword = [0, 1, 2, 3].map(|byte| bytes[byte * step]);
        }
        let high = self.high().map_or(0, |bits| match bits.bytes {
            1 => field("high")[sub].into(),
            _ => u16::from_le_bytes([field("high")[2 * sub], field("high")[2 * sub + 1]]),
        });
        for (i, code) in (first % SUB..).zip(codes) {
            *code = self.code_of(|vector| dwords[vector], high, i);
        }
    }

    /// The code of element `i` of a sub-block, of which `dword` gives a row's bytes of each vector, and `high` those of the field of this name.
    pub(super) fn code_of(&self, dword: impl Fn(usize) -> [u8; 4], high: u16, i: usize) -> u8 {
        let number = i / self.len;
        let low = dword(number / 4)[number % 4];
        let of_signs = || dword(self.index_vectors());
        let above = match self.index {
            Index::Bytes { high: None, .. } => 0,
            Index::Bytes { high: Some(bits), .. } => high >> (bits.apart * number) & ((1 << bits.width) - 1),
            Index::Words { .. } => (of_signs()[number] & 1).into(),
        };
        let signs = match self.signs {
            Signs::Bits { .. } => of_signs()[i / 8],
            Signs::Words { .. } => even((u32::from_le_bytes(of_signs()) >> (7 * (i / 8)) & 127) as u8),
            Signs::AboveIndex => even(of_signs()[number] >> 1),
            Signs::Common { first, apart } if high >> (first + apart * number) & 1 == 1 => u8::MAX,
            Signs::Common { .. } => 0,
        };
        let place = TABLES[self.table][usize::from(low) | usize::from(above) << 8] >> at(i % self.len);
        place as u8 & ((1 << self.bits) - 1) | (signs >> (i % 8) & 1) << self.bits
    }
}

/// Writes bits of the field `high` of a sub-block.
fn put_high(sub: usize, bytes: usize, bits: usize, put: &mut impl FnMut(&str, usize, u8)) {
    (0..bytes).for_each(|byte| put("high", sub * bytes + byte, (bits >> (8 * byte)) as u8));
}
