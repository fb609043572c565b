//! Packed formats interleave 16 rows of a weight. A vector lane is then a row, and kernels need no
//! horizontal sum.
//!
//! A *strip* is 16 rows. Its blocks follow each other along the columns. In a block, columns are in
//! *groups* of four. A dword holds four neighbouring columns of a row, as operands of `dot4_u8s8`.
//! The dwords of 16 rows make a vector of 64 bytes.
//!
//! If codes have four bits, or a low plane of four bits, a vector holds two groups. Group `2j` of a
//! sub-block of 32 columns is in the low nibbles, group `2j + 1` in the high nibbles. With two
//! bits, a vector holds four groups.
//!
//! ```text
//! q4_k_r16, sub-block s, vector j, for r in 0..16 and i in 0..4:
//!     byte 4r + i = q[r][32s + 8j + i] | q[r][32s + 8j + 4 + i] << 4
//! ```
//!
//! A block begins with its scales, which kernels read first. The high bits of a sub-block's codes
//! stand just before their low bits. Kernels then read memory strictly forwards, which suits
//! prefetchers. A separate field of high bits would be a second stream of reads. In products with
//! one activation row, it would cost 40 % of the memory bandwidth of a Zen 4 core.
//!
//! Scales are stored for each sub-block, interleaved for 16 rows, one byte for each scale:
//! - A byte with a six-bit scale has the two high bits of the minimum on top. The low four bits of
//!   minimums are nibbles of eight other bytes: rows 0 to 7 have the low nibbles, rows 8 to 15 the
//!   high ones.
//! - A byte with a four-bit scale has the four-bit minimum on top.
//! - Other scales are signed bytes.
//!
//! A packed weight takes at least as many bytes as in its file, both in memory and in the reads for
//! each token. Some formats take more: `q6_k` 1 %, `iq4_xs` 3 %, `q3_k` 5 %. The causes are whole
//! bytes for six-bit scales, and half a cache line of padding after a block's `d`.
//!
//! If a file has indices of a [grid](super::grids), the packed block has them too. In the vectors
//! of a sub-block, byte `i` of a row's dword is the low byte of index `i`. A vector of signs
//! follows. In it, each row has the bits of 32 columns as in the file. The field `high` has a byte
//! or a word for each row, with the high bits of indices and the other bits of the file's field.
//!
//! Codes of scales stay in the words of `high`, or in the top bits of the signs. Otherwise they are
//! nibbles of eight bytes: rows 0 to 7 have the low nibbles, rows 8 to 15 the high ones. These
//! formats take as many bytes as in their files, except `iq1_m`: it takes 4 % more, because
//! three-bit scales take four bits.
//!
//! ```text
//! iq3_s_r16, sub-block s, row r, for v in 0..2 and i in 0..4:
//!     quants[192 s + 64 v + 4 r + i] = low byte of index 4 v + i
//!     quants[192 s + 128 + 4 r ..] = 32 signs
//!     high[16 s + r] = bit 8 of 8 indices
//! ```
//!
//! Base-3 digits become codes of two bits, so `tq1_0` takes 26 % more bytes.
//!
//! [`pack`] changes only the storage of codes. File blocks and packed blocks dequantise to the same
//! numbers.
//!
//! Invariant: kernels for one activation row and kernels for many read the same packed bytes.

pub use super::SUB;
use super::codec::{self, Codec, Codes, Minimum, Number, Quants, ScaleBits, Scales};
use super::grids::{Grid, Signs};
use super::reader::{Block, Offsets, Reader};
use super::{Fields, Format, FormatRow, K_BLOCK};

/// Number of rows of a strip.
pub const STRIP: usize = 16;
/// Number of bytes of a vector of a strip: a dword for each row.
pub const VECTOR: usize = 4 * STRIP;

/// Returns the number of columns of a packed block: as many as in a block of the file, but at least
/// two file blocks of 32. The scales of such a pair are together, so that vectors stay on cache
/// lines.
const fn columns(len: usize) -> usize {
    if len == SUB { 2 * SUB } else { len }
}

/// Place of the codes of scales ([`Scales::Coded`]) in a packed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodesOfScales {
    /// The block has no codes of scales, but the scales themselves, a byte each.
    Bytes,
    /// Codes are nibbles of the field `scales`, eight bytes for 16 rows. Rows 0 to 7 have the low
    /// nibbles.
    Nibbles,
    /// Codes are the highest four bits of the dwords of signs.
    AboveSigns,
    /// Codes are bits of the words of the field `high`.
    High {
        /// Lowest bit of a code in its word.
        first: usize,
        /// Number of bits.
        width: usize,
    },
}

impl Quants {
    /// Returns the number of vectors of codes in a packed sub-block: the vectors of high bits,
    /// which come first, and all vectors.
    pub const fn vectors(&self) -> (usize, usize) {
        match self.codes {
            Codes::Grid(grid) => (0, grid.vectors()),
            Codes::Planes | Codes::Digits(_) => (self.high_bits(), self.high_bits() + self.low.bits),
        }
    }

    /// Returns the grid if the packed block has grid indices, otherwise `None`.
    pub const fn grid(&self) -> Option<&'static Grid> {
        match self.codes {
            Codes::Grid(grid) => Some(grid),
            Codes::Planes | Codes::Digits(_) => None,
        }
    }

    /// Returns the place of codes of scales in a packed block.
    pub const fn codes_of_scales(&self) -> CodesOfScales {
        let (Some(grid), Scales::Coded(codes)) = (self.grid(), self.scales) else { return CodesOfScales::Bytes };
        match (codes.bits, grid.signs) {
            (ScaleBits::Spread(..), Signs::Words { .. }) => CodesOfScales::AboveSigns,
            (ScaleBits::Words { each: 1, width, first, .. }, Signs::Common { .. }) => {
                CodesOfScales::High { first, width }
            }
            _ => CodesOfScales::Nibbles,
        }
    }

    /// Returns the fields of a packed block of `columns` columns. Each `len` of these columns share
    /// a `d`.
    const fn packed_fields(&self, columns: usize, len: usize) -> Fields {
        let (numbers, subs) = (STRIP * (columns / len), columns / SUB);
        let halves = Number::Half.bytes() * numbers;
        let fields = match self.scales {
            Scales::Row | Scales::Multiples { .. } => Fields::from_fields(&[]),
            Scales::None | Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 | Scales::Coded(_) => {
                Fields::from_fields(&[]).then("d", self.d.bytes() * numbers)
            }
        };
        let fields = match self.minimum {
            Minimum::None => fields,
            Minimum::Half => fields.then("m", halves),
            Minimum::Scaled => fields.then("dmin", halves),
        };
        let mins = match self.scales {
            Scales::SixBits => STRIP / 2 * subs,
            Scales::None
            | Scales::Signed16
            | Scales::Nibbles16
            | Scales::Coded(_)
            | Scales::Row
            | Scales::Multiples { .. } => 0,
        };
        let scales = match (self.scale_group_len(), self.codes_of_scales()) {
            (Some(scaled), CodesOfScales::Bytes) => STRIP * (columns / scaled),
            (Some(scaled), CodesOfScales::Nibbles) => STRIP / 2 * (columns / scaled),
            _ => 0,
        };
        // Pads `d` so that the next field begins on a cache line. Adds no padding if it would
        // exceed a hundredth of the block, or if the block has few vectors.
        let pads = columns == K_BLOCK && self.grid().is_none();
        let pad = if pads { fields.bytes().next_multiple_of(VECTOR) - fields.bytes() } else { 0 };
        let high = match self.grid() {
            Some(grid) => match grid.high() {
                Some(high) => STRIP * high.bytes * subs,
                None => 0,
            },
            None => 0,
        };
        let fields = fields.then("pad", pad).then("high", high);
        fields.then("scales", scales).then("mins", mins).then("quants", subs * self.vectors().1 * VECTOR)
    }
}

/// Returns the row of the format table for a packed format.
pub(super) const fn row(
    format: Format,
    name: &'static str,
    unpacked: Format,
    len: usize,
    codec: Codec,
    activation: Format,
) -> FormatRow {
    let (block_len, fields) = match &codec {
        Codec::Float(float) => (len, Fields::from_fields(&[]).then("value", STRIP * float.bytes())),
        Codec::Quants(quants) => {
            let of_d = match quants.columns_of_d {
                Some(columns) => columns as usize,
                None => len,
            };
            (columns(len), quants.packed_codec().packed_fields(columns(len), of_d))
        }
        Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => panic!("activations are not packed"),
    };
    let tail = match &codec {
        Codec::Quants(Quants { scales: Scales::Row | Scales::Multiples { .. }, .. }) => {
            Fields::from_fields(&[]).then("d", 4 * STRIP)
        }
        Codec::Quants(_) | Codec::Float(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => {
            Fields::from_fields(&[])
        }
    };
    let codec = match codec {
        Codec::Quants(quants) => Codec::Quants(quants.packed_codec()),
        Codec::Float(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => codec,
    };
    let block_bytes = fields.bytes() / STRIP;
    let (gguf_id, tiles, pairs, packed, unpacked) = (None, None, None, None, Some(unpacked));
    FormatRow {
        format,
        name,
        gguf_id,
        block_len,
        block_bytes,
        rows: STRIP,
        fields,
        tail,
        codec,
        activation,
        tiles,
        pairs,
        packed,
        unpacked,
    }
}

/// Places of a code's bits in the field `quants` of a packed block: each is a byte, and a bit in
/// that byte.
struct Places {
    low: (usize, usize),
    high: (usize, usize),
}

impl Quants {
    /// Returns the places of the code of row `r`, column `c`.
    const fn places(&self, r: usize, c: usize) -> Places {
        let (high, all) = self.vectors();
        let (first, group, byte) = (c / SUB * all, c % SUB / 4, 4 * r + c % 4);
        // Numbers of groups of columns in a vector of low bits, and in a vector of high bits.
        let (low, each_high) = (8 / self.low.bits, 8 / if high > 0 { high } else { 8 });
        Places {
            low: ((first + high + group / low) * VECTOR + byte, group % low * self.low.bits),
            high: ((first + group / each_high) * VECTOR + byte, group % each_high * high),
        }
    }
}

/// A row of a packed block.
pub(super) struct Strip<'a> {
    pub row: &'a FormatRow,
    pub offsets: &'a Offsets,
    pub block: &'a [u8],
    pub r: usize,
}

impl Strip<'_> {
    /// Returns the sub-block's bits of the field `high`, or 0 without such a field.
    fn high(&self, grid: &Grid, sub: usize) -> u16 {
        grid.high().map_or(0, |high| {
            let bytes = &self.block[self.offsets.high + high.bytes * (STRIP * sub + self.r)..];
            if high.bytes == 1 { bytes[0].into() } else { u16::from_le_bytes([bytes[0], bytes[1]]) }
        })
    }

    /// Returns the code of the scale of element `i`.
    fn scale_code(&self, codes: &codec::ScaleCodes, i: usize) -> u8 {
        let (at, quants) = (i / codes.columns, self.row.format.quants());
        let scales = &self.block[self.offsets.scales..];
        let Some((quants, grid)) = quants.and_then(|quants| Some((quants, quants.grid()?))) else {
            return scales[STRIP * at + self.r];
        };
        let code = match quants.codes_of_scales() {
            CodesOfScales::Bytes => return scales[STRIP * at + self.r],
            CodesOfScales::Nibbles => scales[STRIP / 2 * at + self.r % 8] >> (self.r / 8 * 4) & 15,
            CodesOfScales::AboveSigns => {
                let vector = at * grid.vectors() + grid.index_vectors();
                self.block[self.offsets.quants + vector * VECTOR + 4 * self.r + 3] >> 4
            }
            CodesOfScales::High { first, width } => (self.high(grid, at) >> first & ((1 << width) - 1)) as u8,
        };
        codes.number(code) as u8
    }
}

impl Reader for Strip<'_> {
    fn codes(&self, quants: &Quants, first: usize, codes: &mut [u8]) {
        let bytes = &self.block[self.offsets.quants..];
        if let Some(grid) = quants.grid() {
            let sub = first / SUB;
            let dword = |vector: usize| {
                let bytes = &bytes[(sub * grid.vectors() + vector) * VECTOR + 4 * self.r..];
                [bytes[0], bytes[1], bytes[2], bytes[3]]
            };
            let high = self.high(grid, sub);
            for (i, code) in (first % SUB..).zip(codes) {
                *code = grid.code_of(dword, high, i);
            }
            return;
        }
        let bits = |(byte, shift): (usize, usize), bits: usize| bytes[byte] >> shift & ((1u16 << bits) - 1) as u8;
        for (i, code) in (first..).zip(codes) {
            let places = quants.places(self.r, i);
            let low = bits(places.low, quants.low.bits);
            *code = match quants.high {
                // Codes of eight bits are stored as the bytes that kernels multiply.
                None if quants.low.bits == 8 => low ^ quants.byte(0),
                None => low,
                Some(high) => low | bits(places.high, high.bits) << quants.low.bits,
            };
        }
    }

    fn float(&self, number: Number, field: usize, i: usize) -> f32 {
        let i = i / self.row.format.d_columns();
        number.at(&self.block[field..], number.bytes() * (STRIP * i + self.r))
    }

    fn scale(&self, scales: Scales, i: usize) -> (f32, f32) {
        let bytes = &self.block[self.offsets.scales..];
        match scales {
            Scales::None | Scales::Row => (1.0, 0.0),
            Scales::SixBits => {
                let both = bytes[STRIP * (i / SUB) + self.r];
                let nibbles = self.block[self.offsets.mins + STRIP / 2 * (i / SUB) + self.r % 8];
                (f32::from(both & 63), f32::from(both >> 6 << 4 | nibbles >> (self.r / 8 * 4) & 15))
            }
            Scales::Signed16 => (f32::from(bytes[STRIP * (i / 16) + self.r] as i8), 0.0),
            Scales::Nibbles16 => codec::nibbles(bytes[STRIP * (i / 16) + self.r]),
            Scales::Coded(codes) => (f32::from(self.scale_code(&codes, i) as i8), 0.0),
            Scales::Multiples { columns } => (f32::from(bytes[STRIP * (i / columns) + self.r] as i8), 0.0),
        }
    }

    fn offsets(&self) -> &Offsets {
        self.offsets
    }
}

/// Packs one strip, bit by bit, as the codec describes. This function is the definition of packing.
/// `rows` are 16 rows of `to.unpacked_format()`, each of whole blocks of `to`. `out` gets the same
/// number of blocks.
///
/// # Panics
/// `to` is not a packed format, or the lengths do not fit together.
pub fn pack(to: Format, rows: &[u8], out: &mut [u8]) {
    let from = to.unpacked_format().unwrap_or_else(|| panic!("{to} is not a packed format"));
    let block_bytes = STRIP * to.block_bytes();
    let blocks = (out.len() - to.row().tail.bytes()) / block_bytes;
    let (out, tail) = out.split_at_mut(blocks * block_bytes);
    assert_eq!(tail.len(), to.row().tail.bytes(), "whole blocks of {to}");
    // Number of blocks of a file's row in one packed block.
    let each = to.block_len() / from.block_len();
    let row_bytes = blocks * each * from.block_bytes() + from.tail_bytes();
    assert_eq!(rows.len(), STRIP * row_bytes, "16 rows of {from}");
    out.fill(0);
    let offsets = Offsets::from_row(from.row());
    for (b, out) in out.chunks_exact_mut(block_bytes).enumerate() {
        for r in 0..STRIP {
            for i in 0..each {
                let at = r * row_bytes + (b * each + i) * from.block_bytes();
                let block = Block { row: from.row(), offsets: &offsets, block: &rows[at..][..from.block_bytes()] };
                pack_block(to.row(), r, i, &block, out);
            }
        }
    }
    // Scales of whole rows, interleaved: the tails of 16 rows form the tail of the strip.
    let tails = rows.chunks_exact(row_bytes).map(|row| &row[row_bytes - from.tail_bytes()..]);
    tail.copy_from_slice(&tails.collect::<Vec<_>>().concat());
}

/// Packs block `number` of row `r` of a strip. Both numbers are relative to the packed block.
fn pack_block(to: &FormatRow, r: usize, number: usize, reader: &Block<'_>, out: &mut [u8]) {
    let &Block { row: from, block, .. } = reader;
    let at = |name: &str| codec::offset(&to.fields, name);
    let quants = match &to.codec {
        Codec::Float(float) => return out[r * float.bytes()..][..float.bytes()].copy_from_slice(block),
        Codec::Quants(quants) => quants,
        Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => unreachable!("activations are not packed"),
    };
    for (name, float, _) in from.format.quants().map_or(Vec::new(), Quants::numbers) {
        let floats = from.block_len / from.format.d_columns();
        for i in 0..floats {
            let float = float.pack(&block[codec::offset(&from.fields, name) + i * float.bytes()..]);
            let bytes = float.len();
            out[at(name) + bytes * (STRIP * (number * floats + i) + r)..][..bytes].copy_from_slice(&float);
        }
    }
    let base = at("quants");
    let first = number * from.block_len;
    if let Some(grid) = quants.grid() {
        let of = |name: &str| &block[codec::offset(&from.fields, name)..];
        for sub in 0..from.block_len / SUB {
            for vector in 0..grid.vectors() {
                let bytes = grid.vector(vector);
                for i in 0..4 {
                    let byte = of(bytes.field)[sub * bytes.stride + bytes.first + i * bytes.step];
                    out[base + (sub * grid.vectors() + vector) * VECTOR + 4 * r + i] = byte;
                }
            }
            if let Some(high) = grid.high() {
                let to = at("high") + high.bytes * (STRIP * sub + r);
                out[to..][..high.bytes].copy_from_slice(&of("high")[high.bytes * sub..][..high.bytes]);
            }
        }
    }
    let mut codes = [0; K_BLOCK];
    let codes = &mut codes[..if quants.grid().is_some() { 0 } else { from.block_len }];
    reader.codes(quants, 0, codes);
    for (i, &code) in codes.iter().enumerate() {
        let places = quants.places(r, first + i);
        let mut put = |(byte, shift): (usize, usize), bits: u8| out[base + byte] |= bits << shift;
        match quants.low.bits {
            8 => put(places.low, quants.byte(code)),
            bits => {
                put(places.low, code & ((1 << bits) - 1));
                if quants.high.is_some() {
                    put(places.high, code >> bits);
                }
            }
        }
    }
    let scales = &block[from.fields.iter().find(|field| field.name == "scales").map_or(0, |field| field.offset)..];
    match quants.scales {
        Scales::None | Scales::Row => {}
        Scales::SixBits => {
            for s in 0..from.block_len / SUB {
                let (scale, minimum) = codec::six_bits(scales, s);
                out[at("scales") + STRIP * s + r] = scale | minimum >> 4 << 6;
                out[at("mins") + STRIP / 2 * s + r % 8] |= (minimum & 15) << (r / 8 * 4);
            }
        }
        Scales::Signed16 | Scales::Nibbles16 => {
            for s in 0..from.block_len / 16 {
                out[at("scales") + STRIP * s + r] = scales[s];
            }
        }
        Scales::Coded(codes) => {
            for s in 0..from.block_len / codes.columns {
                match quants.codes_of_scales() {
                    CodesOfScales::Bytes => {
                        out[at("scales") + STRIP * s + r] = codes.number(reader.scale_code(&codes, s)) as u8;
                    }
                    CodesOfScales::Nibbles => {
                        let code = reader.scale_code(&codes, s) << (r / 8 * 4);
                        out[at("scales") + STRIP / 2 * s + r % 8] |= code;
                    }
                    // These scales are in the words of `high` or in the signs, which are already
                    // packed.
                    CodesOfScales::AboveSigns | CodesOfScales::High { .. } => {}
                }
            }
        }
        Scales::Multiples { columns } => {
            let each = from.block_len / columns;
            for (s, scale) in scales[..each].iter().enumerate() {
                out[at("scales") + STRIP * (number * each + s) + r] = *scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests random bit patterns of every field, with finite scales.
    #[test]
    fn packed_rows_decode_to_the_same_numbers() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        for to in super::super::FORMATS.iter().filter(|row| row.rows > 1).map(|row| row.format) {
            let from = to.unpacked_format().unwrap();
            let k = 3 * to.block_len();
            let row_bytes = from.row_bytes(k as u64).unwrap() as usize;
            let mut rows: Vec<u8> = (0..STRIP * row_bytes).map(|_| random()).collect();
            for row in rows.chunks_exact_mut(row_bytes).filter(|_| from.has_row_scale()) {
                row[row_bytes - 4..].copy_from_slice(&(0.25 + f32::from(random())).to_le_bytes());
            }
            for block in rows.chunks_exact_mut(from.block_bytes()).filter(|_| !from.has_row_scale()) {
                let Some(quants) = from.quants() else {
                    // Clears exponent bits, so that the number is neither infinite nor NaN.
                    block[from.field("value") + 1] &= 0xbb;
                    continue;
                };
                for (name, number, _) in quants.numbers() {
                    let floats = block[from.field(name)..].chunks_exact_mut(number.bytes());
                    floats.take(from.block_len() / from.d_columns()).for_each(|float| number.tame(float));
                }
            }
            let mut packed = vec![0xee; STRIP * to.row_bytes(k as u64).unwrap() as usize];
            pack(to, &rows, &mut packed);
            let right = from.dequantise_rows(&rows, k);
            let mut found = vec![f32::NAN; STRIP * k];
            to.dequantise(&packed, &mut found);
            assert_eq!(found, right, "{to}");
            // `pack` must write every byte, so the earlier contents of the output make no
            // difference.
            let mut again = vec![0; packed.len()];
            pack(to, &rows, &mut again);
            assert!(packed == again, "{to}");
        }
    }
}
