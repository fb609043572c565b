//! Grids: tables whose entries are the codes of several elements, for formats that store indices of
//! entries.
//!
//! A table has selected points of a lattice. A block stores the index of an entry in 8 to 11 bits,
//! for four or eight elements. Signs are stored separately. [`super::Values`] gives the number of a
//! code, as for other formats.
//!
//! ```text
//! iq3_s     9 bits for 4 magnitudes of 8, 4 signs     code = place of the magnitude | sign << 3
//! iq2_xxs   8 bits for 8 magnitudes of 3, 7 signs     code = place of the magnitude | sign << 2;
//!                                                     an even number of signs is negative
//! iq1_m     11 bits for 8 numbers of 3, one sign      code = place of the number | sign << 2;
//!                                                     the sign is that of an addend
//! ```
//!
//! Packed strips also have indices and signs, interleaved for 16 rows ([`super::packed`]). A packed
//! weight therefore takes as many bytes as in its file. Kernels look indices up while they read a
//! strip. They look up the codes of eight elements at a time. If the processor can permute bytes of
//! whole vectors, they look up one byte of 64 entries at once.

mod data;

use super::SUB;

/// Tables of grids for the kernel op `lookup`. An entry has 32 bits, whose four bytes have the
/// codes of four elements. In entries of eight elements, the low nibbles have the first four codes
/// and the high nibbles the last four.
pub static TABLES: [&[u32]; 6] = [
    &expand::<256>(&data::IQ3_XXS, 3, 4),
    &expand::<512>(&data::IQ3_S, 3, 4),
    &expand::<256>(&data::IQ2_XXS, 2, 8),
    &expand::<512>(&data::IQ2_XS, 2, 8),
    &expand::<1024>(&data::IQ2_S, 2, 8),
    &expand::<2048>(&data::IQ1_S, 2, 8),
];

/// Tables of bytes for the kernel op `lookup_byte`. For each table of [`TABLES`], one byte table
/// has the lower bytes of the entries, and the next one the upper bytes. An entry's codes are
/// packed without gaps, the first code in the lowest bits. The last table is [`SIGNS`].
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
/// Index in [`BYTE_TABLES`] of the table that extends seven signs by the eighth, so that an even
/// number is negative.
pub const SIGNS: usize = 12;

/// Expands entries of `len` codes of `bits` bits to the layout of [`TABLES`].
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

/// Returns the first bit of the code of element `place` in an entry of [`TABLES`].
const fn at(place: usize) -> usize {
    place % 4 * 8 + place / 4 * 4
}

/// Returns the byte from bit `from` on of each packed entry.
const fn bytes<const N: usize>(packed: &[u16; N], from: u32) -> [u8; N] {
    let (mut all, mut i) = ([0; N], 0);
    while i < N {
        all[i] = (packed[i] >> from) as u8;
        i += 1;
    }
    all
}

/// Returns the byte table at index [`SIGNS`].
const fn even_signs() -> [u8; 128] {
    let (mut all, mut i) = ([0; 128], 0);
    while i < 128 {
        all[i as usize] = even(i);
        i += 1;
    }
    all
}

/// Returns seven signs with the eighth, which makes the number of negative signs even.
const fn even(seven: u8) -> u8 {
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Storage of the codes of a block of 256 elements as indices of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Index of the grid's table in [`TABLES`].
    pub table: usize,
    /// Number of elements of an entry: 4 or 8.
    pub len: usize,
    /// Number of bits of a magnitude in a code. The sign is the next bit.
    pub bits: usize,
    /// Place of the indices in a block.
    pub index: Index,
    /// Place of the signs in a block.
    pub signs: Signs,
}

/// Place of the indices of entries of a sub-block of 32 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Indices are bytes of a field. The bytes of a sub-block begin `stride` bytes after those of
    /// the sub-block before.
    Bytes {
        /// Field with the bytes.
        field: &'static str,
        /// Number of bytes of the field for each sub-block.
        stride: usize,
        /// Place of additional high bits of each index, if it has more than eight bits.
        high: Option<HighBits>,
    },
    /// Indices are the low nine bits of the 16-bit words of a field.
    Words {
        /// Field with the words.
        field: &'static str,
    },
}

/// Maximum number of vectors of a packed sub-block: two of indices for four elements each, and one
/// of signs.
const MOST_VECTORS: usize = 3;

/// Place of the bits of indices above their low bytes. The field `high` has a byte or a 16-bit word
/// for each sub-block, with the bits of the first index lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HighBits {
    /// Number of bytes for each sub-block: 1 or 2.
    pub bytes: usize,
    /// Number of high bits of an index.
    pub width: usize,
    /// Distance in bits from one index to the next.
    pub apart: usize,
}

/// Place of the signs of a sub-block. A sign is a bit for each element, set if the element is
/// negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signs {
    /// Signs are the bits of a field, one for each element.
    Bits {
        /// Field with the bits.
        field: &'static str,
    },
    /// Seven bits give the signs of eight elements: an even number of signs is negative. The signs
    /// of a sub-block are the low 28 bits of a 32-bit word.
    Words {
        /// Field with the words.
        field: &'static str,
        /// Number of bytes of the field for each sub-block.
        stride: usize,
        /// Offset of the 32-bit word in these bytes.
        at: usize,
    },
    /// Seven bits give the signs of eight elements: an even number of signs is negative. They are
    /// the high seven bits of each index's word.
    AboveIndex,
    /// All elements of an entry have the same sign, which is a bit of the field `high`
    /// ([`HighBits`]).
    Common {
        /// Bit of the first index's sign.
        first: usize,
        /// Distance in bits from the sign of one index to the sign of the next.
        apart: usize,
    },
}

/// Place of four bytes of each sub-block in a file's block. They form a dword of the packed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FourBytes {
    /// Field with the bytes.
    pub field: &'static str,
    /// Distance from the bytes of one sub-block to those of the next, in bytes of the field.
    pub stride: usize,
    /// Offset of the first of the four bytes.
    pub first: usize,
    /// Distance from one of the four bytes to the next: 2 for the low or the high bytes of 16-bit
    /// words, else 1.
    pub step: usize,
}

impl Grid {
    /// Returns the number of indices in a sub-block.
    pub const fn each(&self) -> usize {
        SUB / self.len
    }

    /// Returns the number of bytes per sub-block of a field of 16-bit words with indices.
    pub const fn words_stride(&self) -> usize {
        2 * self.each()
    }

    /// Returns the number of vectors with indices in a packed sub-block.
    pub const fn index_vectors(&self) -> usize {
        self.each() / 4
    }

    /// Returns the number of vectors in a packed sub-block: vectors of indices, then of signs.
    pub const fn vectors(&self) -> usize {
        match self.signs {
            Signs::Bits { .. } | Signs::Words { .. } | Signs::AboveIndex => self.index_vectors() + 1,
            Signs::Common { .. } => self.index_vectors(),
        }
    }

    /// Returns the place in a file's block of the dwords that vector `vector` of a packed sub-block
    /// contains.
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

    /// Returns the place of the high bits of indices, or `None` if the format has no field `high`.
    pub const fn high(&self) -> Option<HighBits> {
        match self.index {
            Index::Bytes { high, .. } => high,
            Index::Words { .. } => None,
        }
    }

    /// Returns the entries. Each has the indices of its magnitudes, the first index in the lowest
    /// bits.
    pub(super) fn entries(&self) -> impl Iterator<Item = u16> {
        let [low, high] = [0, 1].map(|half| BYTE_TABLES[2 * self.table + half]);
        low.iter().zip(high).map(|(low, high)| u16::from_le_bytes([*low, *high]))
    }

    /// Returns the number of neighbouring elements whose signs depend on each other, or 1 if signs
    /// are independent.
    pub(super) const fn span(&self) -> usize {
        match self.signs {
            Signs::Bits { .. } => 1,
            Signs::Words { .. } | Signs::AboveIndex => 8,
            Signs::Common { apart: 0, .. } => SUB,
            Signs::Common { .. } => self.len,
        }
    }

    /// Returns the patterns of signs to try for a [span](Grid::span) of elements. A pattern has a
    /// bit for each negative element. If the number of negative signs must be even but is odd in
    /// `x`, each pattern flips one sign. The candidates are the `flipped` elements with the least
    /// weighted cost of a flip.
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

    /// Writes an index of a sub-block to a zeroed block. `put` gets a field, a byte of it, and the
    /// bits to set there.
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

    /// Writes the signs of eight elements of a sub-block to a zeroed block, with `put` as for
    /// [`Grid::put_index`].
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

    /// Writes the codes of consecutive elements of a block, from `first` on. `field` returns the
    /// bytes of a field of the block.
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

    /// Returns the code of element `i` of a packed sub-block. `dword(v)` returns the row's bytes of
    /// vector `v`. `high` are the sub-block's bits of the field `high`.
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

/// Passes the bits of a sub-block in the field `high` to `put`, byte by byte.
fn put_high(sub: usize, bytes: usize, bits: usize, put: &mut impl FnMut(&str, usize, u8)) {
    (0..bytes).for_each(|byte| put("high", sub * bytes + byte, (bits >> (8 * byte)) as u8));
}
