//! Block formats: the storage of weights and quantised activations, in one table.
//!
//! A *block format* stores `block_len` consecutive elements of a row in `block_bytes` bytes. Rows
//! are independent: a row of `n` elements takes `n / block_len` blocks, and `n` must be a multiple
//! of `block_len`. Scalars (`f32`, `f16`, `bf16`) are formats with blocks of one element.
//!
//! All code that depends on a format reads its row of [`FORMATS`]. The GGUF reader uses ids and
//! sizes, and the passes use [`Format::activation`]. Code that computes with blocks uses the
//! [`Codec`], which gives the meaning of the bytes. No code compares formats by name.
//!
//! Data that all elements of a row share (the scale of `i8_row`) follow the row's blocks. In packed
//! formats, they follow the blocks of the strip of 16 rows. These data are the *tail*. The tail
//! also contains padding between rows (`pad`).
//!
//! A *packed* format interleaves 16 rows of a weight, a *strip*, so that each vector lane is a row
//! ([`packed`]). It is computed from the codec of its unpacked format and needs no hand-written
//! table row. Its sizes are per row, so `n` rows take `n * row_bytes`, for whole strips. Its fields
//! describe a strip's block, which has 16 times as many bytes.
//!
//! ```text
//! weight @blk.0.ffn_gate_exps.weight : q4_k[16, 256, 256]     // 16 experts, 256 rows, 256 columns
//! ```
//!
//! To add a weight format, add a row to the table below. Tests of the table and of the kernels
//! report what is missing.

pub mod codec;
mod decode;
pub mod digits;
pub mod encode;
pub mod grids;
mod integers;
pub mod packed;
mod reader;
pub mod requantise;

use serde::{Deserialize, Serialize};

pub use codec::{
    Codec, Codes, Float, Minimum, Number, Plane, Quants, ScaleBits, ScaleCodes, ScaleNumber, Scales, Spread, Values,
};
pub use digits::Digits;
pub use grids::Grid;
use grids::{HighBits, Index, Signs};

/// Number of elements in a K-quant super-block (ggml `QK_K`).
pub const K_BLOCK: usize = 256;
/// Columns of a sub-block. Packed blocks, and the indices of a grid, are stored sub-block by
/// sub-block.
pub const SUB: usize = 32;
/// Numbers that the codes of `iq4_nl` stand for (ggml `kvalues_iq4nl`).
const IQ4_NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Numbers of E2M1 (OCP microscaling formats, 5.3.3), doubled to make them integers. The sign is
/// the highest bit of the code.
const E2M1_TWICE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// Numbers that a one-bit code stands for.
const SIGNS: [i8; 16] = [-1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// Magnitudes of the `iq3_xxs` grid, then the same numbers negated.
const IQ3_XXS: [i8; 16] = [4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62];
const IQ3_S: [i8; 16] = [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15];
const IQ2: [i8; 16] = [8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// Eight times the grid numbers -1, 0 and 1, plus the addend 1 or minus 1.
const IQ1: [i8; 16] = [-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A named field of a block. In packed formats, a field of a strip's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the field, for [`Format::field`].
    pub name: &'static str,
    /// Byte offset from the start of the block.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// The fields of a block in order. They cover it without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    list: [Field; Fields::MAX],
    count: usize,
}

impl Fields {
    const MAX: usize = 8;

    /// Returns a list of these fields.
    const fn from_fields(fields: &[Field]) -> Fields {
        let mut all = Fields { list: [Field { name: "", offset: 0, bytes: 0 }; Fields::MAX], count: 0 };
        while all.count < fields.len() {
            all.list[all.count] = fields[all.count];
            all.count += 1;
        }
        all
    }

    /// Appends a field, unless it has no bytes.
    const fn then(mut self, name: &'static str, bytes: usize) -> Fields {
        if bytes > 0 {
            self.list[self.count] = Field { name, offset: self.bytes(), bytes };
            self.count += 1;
        }
        self
    }

    /// Returns the number of bytes of all fields.
    const fn bytes(&self) -> usize {
        match self.count {
            0 => 0,
            count => self.list[count - 1].offset + self.list[count - 1].bytes,
        }
    }
}

impl std::ops::Deref for Fields {
    type Target = [Field];

    fn deref(&self) -> &[Field] {
        &self.list[..self.count]
    }
}

/// One row of the format table.
#[derive(Clone, Copy, Debug)]
pub struct FormatRow {
    /// The format.
    pub format: Format,
    /// Name in IR text.
    pub name: &'static str,
    /// Tensor type id in a GGUF file. `None` for formats that do not appear in GGUF files: packed
    /// formats and formats of activations.
    pub gguf_id: Option<u32>,
    /// Number of elements in a block.
    pub block_len: usize,
    /// Bytes in a block. In packed formats, the block's bytes divided by its number of rows.
    pub block_bytes: usize,
    /// Number of rows that have elements in a block: 1, or 16 in packed formats.
    pub rows: usize,
    /// The block's fields.
    pub fields: Fields,
    /// Fields that a row has once, after its blocks. In packed formats, fields of a strip of rows.
    pub tail: Fields,
    /// Meaning of the bytes of a block. A packed format has the codec of its unpacked format.
    pub codec: Codec,
    /// Activation format for dot products with rows of this format.
    pub activation: Format,
    /// Activation format that tile products use instead of this one. It has additional fields after
    /// the same first fields, or different fields.
    pub tiles: Option<Format>,
    /// Activation format that products of bf16 pairs use instead of this one.
    pub pairs: Option<Format>,
    /// Packed form of a weight format. `None` if it has none.
    pub packed: Option<Format>,
    /// Unpacked form of a packed format. `None` for other formats.
    pub unpacked: Option<Format>,
}

macro_rules! format_table {
    (
        weights {$($(#[$w_doc:meta])* $w:ident $w_name:literal $(gguf $id:literal)?, $w_len:literal => $w_bytes:literal,
            { $($w_field:ident @ $w_offset:literal, $w_size:literal);* } $(row { $($w_tail:ident @ $w_tail_at:literal, $w_tail_size:literal);* })?,
            $w_codec:expr, activation $w_act:ident $(, packed $packed:ident $packed_name:literal)?;)*}
        activations {$($(#[$a_doc:meta])* $a:ident $a_name:literal, $a_len:literal => $a_bytes:literal,
            { $($a_field:ident @ $a_offset:literal, $a_size:literal);* } $(row { $($a_tail:ident @ $a_tail_at:literal, $a_tail_size:literal);* })?,
            $a_codec:expr $(, tiles $a_tiles:ident)?;)*}
    ) => {
        /// A storage format of weights or activations.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Format {
            $($(#[$w_doc])* $w,)*
            $($(#[$a_doc])* $a,)*
            $($(
                #[doc = concat!("Packed `", $w_name, "`: 16 rows side by side.")]
                $packed,
            )?)*
        }

        /// The format table, in the order of [`Format`].
        pub static FORMATS: &[FormatRow] = &[
            $(FormatRow {
                format: Format::$w, name: $w_name, gguf_id: format_table!(@id $($id)?), block_len: $w_len, block_bytes: $w_bytes, rows: 1,
                fields: Fields::from_fields(&[$(Field { name: stringify!($w_field), offset: $w_offset, bytes: $w_size }),*]),
                tail: Fields::from_fields(&[$($(Field { name: stringify!($w_tail), offset: $w_tail_at, bytes: $w_tail_size }),*)?]),
                codec: $w_codec, activation: Format::$w_act, tiles: format_table!(@tiles $w), pairs: format_table!(@pairs $w),
                packed: format_table!(@option $($packed)?), unpacked: None,
            },)*
            $(FormatRow {
                format: Format::$a, name: $a_name, gguf_id: None, block_len: $a_len, block_bytes: $a_bytes, rows: 1,
                fields: Fields::from_fields(&[$(Field { name: stringify!($a_field), offset: $a_offset, bytes: $a_size }),*]),
                tail: Fields::from_fields(&[$($(Field { name: stringify!($a_tail), offset: $a_tail_at, bytes: $a_tail_size }),*)?]),
                codec: $a_codec, activation: Format::$a, tiles: format_table!(@option $($a_tiles)?), pairs: None,
                packed: None, unpacked: None,
            },)*
            $($(packed::row(Format::$packed, $packed_name, Format::$w, $w_len, $w_codec, Format::$w_act),)?)*
        ];
    };
    (@id) => { None };
    (@id $id:literal) => { Some($id) };
    (@option) => { None };
    (@option $format:ident) => { Some(Format::$format) };
    // F32 is the only weight format that is also an activation format.
    (@tiles F32) => { Some(Format::Bf16x2) };
    (@tiles $format:ident) => { None };
    (@pairs F32) => { Some(Format::Bf16x1) };
    (@pairs $format:ident) => { None };
}

format_table! {
    weights {
        /// IEEE single.
        F32 "f32" gguf 0, 1 => 4, { value @ 0, 4 }, Codec::Float(Float::F32), activation F32, packed F32R16 "f32_r16";
        /// IEEE half.
        F16 "f16" gguf 1, 1 => 2, { value @ 0, 2 }, Codec::Float(Float::F16), activation F32, packed F16R16 "f16_r16";
        /// Upper half of an IEEE single.
        Bf16 "bf16" gguf 30, 1 => 2, { value @ 0, 2 }, Codec::Float(Float::Bf16), activation F32, packed Bf16R16 "bf16_r16";
        /// ggml `block_q8_0`: `x = d * q`.
        Q8_0 "q8_0" gguf 8, 32 => 34, { d @ 0, 2; quants @ 2, 32 },
            Codec::Quants(Quants::new(Plane::new("quants", 8, 32), Values::Signed)), activation A8Small, packed Q8_0R16 "q8_0_r16";
        /// ggml `block_q4_0`: `x = d * (q - 8)`. Byte `j` holds elements `j` (low nibble) and
        /// `j + 16` (high).
        Q4_0 "q4_0" gguf 2, 32 => 18, { d @ 0, 2; quants @ 2, 16 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 16), Values::Linear { zero: 8 })), activation A8Small, packed Q4_0R16 "q4_0_r16";
        /// ggml `block_q4_K`: eight sub-blocks of 32, `x = d * scale * q - dmin * min`, 6-bit
        /// scales and minimums.
        Q4K "q4_k" gguf 12, 256 => 144, { d @ 0, 2; dmin @ 2, 2; scales @ 4, 12; quants @ 16, 128 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 32), Values::Linear { zero: 0 }).scales(Scales::SixBits)), activation A8Super, packed Q4KR16 "q4_k_r16";
        /// ggml `block_q5_K`: like `q4_k`, with the fifth bit of every element in `high`.
        Q5K "q5_k" gguf 13, 256 => 176, { d @ 0, 2; dmin @ 2, 2; scales @ 4, 12; high @ 16, 32; quants @ 48, 128 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 32), Values::Linear { zero: 0 }).high(Plane::new("high", 1, 32)).scales(Scales::SixBits)), activation A8Super, packed Q5KR16 "q5_k_r16";
        /// ggml `block_q6_K`: sixteen sub-blocks of 16, `x = d * scale * (q - 32)`, signed 8-bit
        /// scales.
        Q6K "q6_k" gguf 14, 256 => 210, { low @ 0, 128; high @ 128, 64; scales @ 192, 16; d @ 208, 2 },
            Codec::Quants(Quants::new(Plane::new("low", 4, 64), Values::Linear { zero: 32 }).high(Plane::new("high", 2, 32)).scales(Scales::Signed16)), activation A8Super, packed Q6KR16 "q6_k_r16";
        /// ggml `block_q4_1`: `x = d * q + m`.
        Q4_1 "q4_1" gguf 3, 32 => 20, { d @ 0, 2; m @ 2, 2; quants @ 4, 16 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 16), Values::Linear { zero: 0 }).plus_m()), activation A8Small, packed Q4_1R16 "q4_1_r16";
        /// ggml `block_q5_0`: `x = d * (q - 16)`. Bit `i` of the word `high` is the fifth bit of
        /// element `i`.
        Q5_0 "q5_0" gguf 6, 32 => 22, { d @ 0, 2; high @ 2, 4; quants @ 6, 16 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 16), Values::Linear { zero: 16 }).high(Plane::new("high", 1, 1))), activation A8Small, packed Q5_0R16 "q5_0_r16";
        /// ggml `block_q5_1`: `x = d * q + m`, with fifth bits as in `q5_0`.
        Q5_1 "q5_1" gguf 7, 32 => 24, { d @ 0, 2; m @ 2, 2; high @ 4, 4; quants @ 8, 16 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 16), Values::Linear { zero: 0 }).high(Plane::new("high", 1, 1)).plus_m()), activation A8Small, packed Q5_1R16 "q5_1_r16";
        /// ggml `block_q8_1`: `q8_0` with `s`, which is `d` times the sum of all `q`. llama.cpp
        /// uses it for activations. Files may contain it.
        Q8_1 "q8_1" gguf 9, 32 => 36, { d @ 0, 2; s @ 2, 2; quants @ 4, 32 },
            Codec::Quants(Quants::new(Plane::new("quants", 8, 32), Values::Signed)), activation A8Small, packed Q8_1R16 "q8_1_r16";
        /// ggml `block_iq4_nl`: `x = d * table[q]`.
        Iq4Nl "iq4_nl" gguf 20, 32 => 18, { d @ 0, 2; quants @ 2, 16 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 16), Values::Codebook(&IQ4_NL))), activation A8Small, packed Iq4NlR16 "iq4_nl_r16";
        /// ggml `block_mxfp4`, the OCP microscaling format MXFP4: `x = d * table[q]`. `d` is a
        /// power of two in a byte.
        Mxfp4 "mxfp4" gguf 39, 32 => 17, { d @ 0, 1; quants @ 1, 16 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 16), Values::Codebook(&E2M1_TWICE)).d(Number::HalfOfPower)), activation A8Small, packed Mxfp4R16 "mxfp4_r16";
        /// ggml `block_nvfp4`: `x = d * table[q]`. `d` is a byte for 16 elements, which are stored
        /// in eight bytes. The first eight of them are in the low nibbles.
        Nvfp4 "nvfp4" gguf 40, 64 => 36, { d @ 0, 4; quants @ 4, 32 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 8), Values::Codebook(&E2M1_TWICE)).d(Number::HalfOfE4m3).d_of(16)), activation A8Halves, packed Nvfp4R16 "nvfp4_r16";
        /// ggml `block_q1_0`: `x = d * (2 q - 1)`, one bit.
        Q1_0 "q1_0" gguf 41, 128 => 18, { d @ 0, 2; quants @ 2, 16 },
            Codec::Quants(Quants::new(Plane::new("quants", 1, 1), Values::Codebook(&SIGNS))), activation A8Small, packed Q1_0R16 "q1_0_r16";
        /// ggml `block_q2_0`: `x = d * (q - 1)`, two bits, neighbours in the same byte.
        Q2_0 "q2_0" gguf 42, 64 => 18, { d @ 0, 2; quants @ 2, 16 },
            Codec::Quants(Quants::new(Plane::new("quants", 2, 1), Values::Linear { zero: 1 })), activation A8Small, packed Q2_0R16 "q2_0_r16";
        /// ggml `block_iq4_xs`: eight sub-blocks of 32, `x = d * (scale - 32) * table[q]`, 6-bit
        /// scales.
        Iq4Xs "iq4_xs" gguf 23, 256 => 136, { d @ 0, 2; scales_high @ 2, 2; scales_low @ 4, 4; quants @ 8, 128 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 16), Values::Codebook(&IQ4_NL)).scales(Scales::Coded(ScaleCodes {
                columns: 32, bits: ScaleBits::Planes(Plane::new("scales_low", 4, 1), Plane::new("scales_high", 2, 1)), number: ScaleNumber::Less(32),
            }))), activation A8Super, packed Iq4XsR16 "iq4_xs_r16";
        /// ggml `block_q2_K`: sixteen sub-blocks of 16, `x = d * scale * q - dmin * min`, four bits
        /// each of scales and minimums.
        Q2K "q2_k" gguf 10, 256 => 84, { scales @ 0, 16; quants @ 16, 64; d @ 80, 2; dmin @ 82, 2 },
            Codec::Quants(Quants::new(Plane::new("quants", 2, 32), Values::Linear { zero: 0 }).scales(Scales::Nibbles16)), activation A8Super, packed Q2KR16 "q2_k_r16";
        /// ggml `block_q3_K`: sixteen sub-blocks of 16, `x = d * (scale - 32) * (q - 4)`, 6-bit
        /// scales.
        Q3K "q3_k" gguf 11, 256 => 110, { high @ 0, 32; quants @ 32, 64; scales_low @ 96, 8; scales_high @ 104, 4; d @ 108, 2 },
            Codec::Quants(Quants::new(Plane::new("quants", 2, 32), Values::Linear { zero: 4 }).high(Plane::new("high", 1, 32)).scales(Scales::Coded(ScaleCodes {
                columns: 16, bits: ScaleBits::Planes(Plane::new("scales_low", 4, 8), Plane::new("scales_high", 2, 4)), number: ScaleNumber::Less(32),
            }))), activation A8Super, packed Q3KR16 "q3_k_r16";
        /// ggml `block_iq3_xxs`: `x = d / 4 * (2 scale + 1) * (grid, with signs)`. Eight 4-bit
        /// scales are in the high bits of the words of signs.
        Iq3Xxs "iq3_xxs" gguf 18, 256 => 98, { d @ 0, 2; quants @ 2, 64; words @ 66, 32 },
            Codec::Quants(Quants::by_grid(&Grid {
                table: 0, len: 4, bits: 3, index: Index::Bytes { field: "quants", stride: 8, high: None }, signs: Signs::Words { field: "words", stride: 4, at: 0 },
            }, Values::Codebook(&IQ3_XXS)).d(Number::PartOfHalf { halved: 2 }).scales(Scales::Coded(ScaleCodes {
                columns: 32, bits: ScaleBits::Spread(Plane::new("words", 4, 1), Spread { each: 8, first: 7 }), number: ScaleNumber::Odd,
            }))), activation A8Super, packed Iq3XxsR16 "iq3_xxs_r16";
        /// ggml `block_iq3_s`: `x = d * (2 scale + 1) * (grid, with signs)`, eight scales of four
        /// bits.
        Iq3S "iq3_s" gguf 21, 256 => 110, { d @ 0, 2; quants @ 2, 64; high @ 66, 8; signs @ 74, 32; scales @ 106, 4 },
            Codec::Quants(Quants::by_grid(&Grid {
                table: 1, len: 4, bits: 3, index: Index::Bytes { field: "quants", stride: 8, high: Some(HighBits { bytes: 1, width: 1, apart: 1 }) }, signs: Signs::Bits { field: "signs" },
            }, Values::Codebook(&IQ3_S)).scales(Scales::Coded(ScaleCodes {
                columns: 32, bits: ScaleBits::Plane(Plane::new("scales", 4, 1)), number: ScaleNumber::Odd,
            }))), activation A8Super, packed Iq3SR16 "iq3_s_r16";
        /// ggml `block_iq2_xxs`: `x = d / 8 * (2 scale + 1) * (grid, with signs)`. Eight 4-bit
        /// scales are in the high bits of the words of signs.
        Iq2Xxs "iq2_xxs" gguf 16, 256 => 66, { d @ 0, 2; words @ 2, 64 },
            Codec::Quants(Quants::by_grid(&Grid {
                table: 2, len: 8, bits: 2, index: Index::Bytes { field: "words", stride: 8, high: None }, signs: Signs::Words { field: "words", stride: 8, at: 4 },
            }, Values::Codebook(&IQ2)).d(Number::PartOfHalf { halved: 3 }).scales(Scales::Coded(ScaleCodes {
                columns: 32, bits: ScaleBits::Spread(Plane::new("words", 4, 1), Spread { each: 16, first: 15 }), number: ScaleNumber::Odd,
            }))), activation A8Super, packed Iq2XxsR16 "iq2_xxs_r16";
        /// ggml `block_iq2_xs`: `x = d / 8 * (2 scale + 1) * (grid, with signs)`, sixteen scales of
        /// four bits.
        Iq2Xs "iq2_xs" gguf 17, 256 => 74, { d @ 0, 2; words @ 2, 64; scales @ 66, 8 },
            Codec::Quants(Quants::by_grid(&Grid {
                table: 3, len: 8, bits: 2, index: Index::Words { field: "words" }, signs: Signs::AboveIndex,
            }, Values::Codebook(&IQ2)).d(Number::PartOfHalf { halved: 3 }).scales(Scales::Coded(ScaleCodes {
                columns: 16, bits: ScaleBits::Plane(Plane::new("scales", 4, 1)), number: ScaleNumber::Odd,
            }))), activation A8Super, packed Iq2XsR16 "iq2_xs_r16";
        /// ggml `block_iq2_s`: `x = d / 8 * (2 scale + 1) * (grid, with signs)`, sixteen scales of
        /// four bits.
        Iq2S "iq2_s" gguf 22, 256 => 82, { d @ 0, 2; quants @ 2, 32; signs @ 34, 32; high @ 66, 8; scales @ 74, 8 },
            Codec::Quants(Quants::by_grid(&Grid {
                table: 4, len: 8, bits: 2, index: Index::Bytes { field: "quants", stride: 4, high: Some(HighBits { bytes: 1, width: 2, apart: 2 }) }, signs: Signs::Bits { field: "signs" },
            }, Values::Codebook(&IQ2)).d(Number::PartOfHalf { halved: 3 }).scales(Scales::Coded(ScaleCodes {
                columns: 16, bits: ScaleBits::Plane(Plane::new("scales", 4, 1)), number: ScaleNumber::Odd,
            }))), activation A8Super, packed Iq2SR16 "iq2_s_r16";
        /// ggml `block_iq1_s`: `x = d / 8 * (2 scale + 1) * (8 grid + 1 or - 1)`. In each word of
        /// `high`, a 3-bit scale is above the high bits of the indices and below the sign of the
        /// addend.
        Iq1S "iq1_s" gguf 19, 256 => 50, { d @ 0, 2; quants @ 2, 32; high @ 34, 16 },
            Codec::Quants(Quants::by_grid(&Grid {
                table: 5, len: 8, bits: 2, index: Index::Bytes { field: "quants", stride: 4, high: Some(HighBits { bytes: 2, width: 3, apart: 3 }) },
                signs: Signs::Common { first: 15, apart: 0 },
            }, Values::Codebook(&IQ1)).d(Number::PartOfHalf { halved: 3 }).scales(Scales::Coded(ScaleCodes {
                columns: 32, bits: ScaleBits::Words { field: "high", each: 1, width: 3, first: 12 }, number: ScaleNumber::Odd,
            }))), activation A8Super, packed Iq1SR16 "iq1_s_r16";
        /// ggml `block_iq1_m`: `x = d / 8 * (2 scale + 1) * (8 grid + 1 or - 1)`. Sixteen 3-bit
        /// scales are in words whose top bits hold `d`.
        Iq1M "iq1_m" gguf 29, 256 => 56, { quants @ 0, 32; high @ 32, 16; d @ 48, 8 },
            Codec::Quants(Quants::by_grid(&Grid {
                table: 5, len: 8, bits: 2, index: Index::Bytes { field: "quants", stride: 4, high: Some(HighBits { bytes: 2, width: 3, apart: 4 }) },
                signs: Signs::Common { first: 3, apart: 4 },
            }, Values::Codebook(&IQ1)).d(Number::TopsOfWords { halved: 3 }).scales(Scales::Coded(ScaleCodes {
                columns: 16, bits: ScaleBits::Words { field: "d", each: 4, width: 3, first: 0 }, number: ScaleNumber::Odd,
            }))), activation A8Super, packed Iq1MR16 "iq1_m_r16";
        /// ggml `block_tq1_0`: `x = d * (q - 1)`. Codes are digits of base 3, five to a byte.
        Tq1_0 "tq1_0" gguf 34, 256 => 54, { quants @ 0, 48; high @ 48, 4; d @ 52, 2 },
            Codec::Quants(Quants::by_digits(&[
                Digits { field: "quants", at: 0, run: 32, each: 5 }, Digits { field: "quants", at: 32, run: 16, each: 5 }, Digits { field: "high", at: 0, run: 4, each: 4 },
            ], Values::Linear { zero: 1 })), activation A8Super, packed Tq1_0R16 "tq1_0_r16";
        /// ggml `block_tq2_0`: `x = d * (q - 1)`, two bits.
        Tq2_0 "tq2_0" gguf 35, 256 => 66, { quants @ 0, 64; d @ 64, 2 },
            Codec::Quants(Quants::new(Plane::new("quants", 2, 32), Values::Linear { zero: 1 })), activation A8Super, packed Tq2_0R16 "tq2_0_r16";
        /// Requantised weights: signed bytes with a scale for the whole row, `x = d * q`
        /// (KTransformers' AMXINT8).
        I8Row "i8_row", 64 => 64, { quants @ 0, 64 } row { d @ 0, 4 },
            Codec::Quants(Quants::new(Plane::new("quants", 8, 64), Values::Signed).scales(Scales::Row)), activation A8Row, packed I8RowR16 "i8_row_r16";
        /// Requantised weights: four bits with a scale for the whole row, `x = d * (q - 8)`
        /// (KTransformers' AMXINT4).
        I4Row "i4_row", 64 => 32, { quants @ 0, 32 } row { d @ 0, 4 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 32), Values::Linear { zero: 8 }).scales(Scales::Row)), activation A8Row, packed I4RowR16 "i4_row_r16";
        /// Requantised weights: four bits, with an integer scale for 128 columns that multiplies
        /// the row's scale: `x = d * (scale * (q - 8))`. AWQ, GPTQ and KTransformers'
        /// AMXINT4_KGroup have a float scale instead. A float scale has 2 % less error, but
        /// products then need a float operation every 128 columns.
        I4G128 "i4_g128", 128 => 65, { quants @ 0, 64; scales @ 64, 1 } row { d @ 0, 4 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 32), Values::Linear { zero: 8 }).scales(Scales::Multiples { columns: 128 })), activation A8Row, packed I4G128R16 "i4_g128_r16";
        /// Checkpoint weights: signed bytes with an f32 scale for 64 columns, `x = d * q`.
        /// KTransformers' AMXINT8 needs this format if the columns of a row are cut into parts with
        /// separate scales.
        I8D64 "i8_d64", 64 => 68, { d @ 0, 4; quants @ 4, 64 },
            Codec::Quants(Quants::new(Plane::new("quants", 8, 64), Values::Signed).d(Number::Single)), activation A8Small, packed I8D64R16 "i8_d64_r16";
        /// Checkpoint weights: four bits with an f32 scale for 128 columns, `x = d * (q - 8)`.
        /// KTransformers' AMXINT4 needs this format if the columns of a row are cut into parts.
        I4D128 "i4_d128", 128 => 68, { d @ 0, 4; quants @ 4, 64 },
            Codec::Quants(Quants::new(Plane::new("quants", 4, 32), Values::Linear { zero: 8 }).d(Number::Single)), activation A8Small, packed I4D128R16 "i4_d128_r16";
    }
    activations {
        /// Activations for K-quants: eight sub-blocks of 32 signed bytes in -127..=127, each with
        /// an f32 scale. The block also has the sums of 16 bytes as i16, and the sums of 32 bytes
        /// times their scale. ggml's `block_q8_K` has one scale for 256 elements and twice the
        /// error.
        A8Super "a8_super", 256 => 352, { quants @ 0, 256; sums16 @ 256, 32; d @ 288, 32; sums @ 320, 32 }, Codec::Bytes { scaled: 32 }, tiles A8SuperTile;
        /// Activations for 32-element formats: 32 signed bytes in -127..=127, an f32 scale for
        /// every 16 bytes, and the sum of the elements as f32. One scale for all 32, as in ggml's
        /// `block_q8_0`, has a third more error.
        A8Small "a8_small", 32 => 44, { quants @ 0, 32; d @ 32, 8; sums @ 40, 4 }, Codec::Bytes { scaled: 16 }, tiles A8SmallTile;
        /// `a8_small` with the sums of 16 bytes as i16, for weight formats with a float scale for
        /// 16 elements.
        A8Halves "a8_halves", 32 => 48, { quants @ 0, 32; sums16 @ 32, 4; d @ 36, 8; sums @ 44, 4 }, Codec::Bytes { scaled: 16 }, tiles A8HalvesTile;
        /// `a8_super` with the same elements as bf16 for tile products. In all formats for tile
        /// products, rows are an odd number of cache lines apart. The 16 rows of a tile are then in
        /// 16 different sets of a cache. No product reads the padding line between two rows.
        A8SuperTile "a8_super_tile", 256 => 896, { quants @ 0, 256; sums16 @ 256, 32; d @ 288, 32; sums @ 320, 32; pad @ 352, 32; bf16 @ 384, 512 } row { pad @ 0, 64 }, Codec::Bytes { scaled: 32 };
        /// `a8_small` with the same elements as bf16 for tile products.
        A8SmallTile "a8_small_tile", 32 => 128, { quants @ 0, 32; d @ 32, 8; sums @ 40, 4; pad @ 44, 20; bf16 @ 64, 64 } row { pad @ 0, 64 }, Codec::Bytes { scaled: 16 };
        /// `a8_halves` with the same elements as bf16 for tile products.
        A8HalvesTile "a8_halves_tile", 32 => 128, { quants @ 0, 32; sums16 @ 32, 4; d @ 36, 8; sums @ 44, 4; pad @ 48, 16; bf16 @ 64, 64 } row { pad @ 0, 64 }, Codec::Bytes { scaled: 16 };
        /// Activations for float weights in tile products: `x = high + low`, both bf16, accurate to
        /// 16 bits.
        Bf16x2 "bf16x2", 32 => 128, { high @ 0, 64; low @ 64, 64 } row { pad @ 0, 64 }, Codec::Bf16 { parts: 2 };
        /// Activations for bf16 weights in products of pairs, rounded to bf16.
        Bf16x1 "bf16x1", 32 => 64, { high @ 0, 64 }, Codec::Bf16 { parts: 1 };
        /// Activations for weights with a scale for each row: signed bytes in -127..=127, then an
        /// f32 scale and the sum of the bytes as i32. If the number of columns is a multiple of
        /// 128, the distance between rows is an odd number of cache lines and no power of two.
        A8Row "a8_row", 64 => 64, { quants @ 0, 64 } row { d @ 0, 4; sum @ 4, 4; pad @ 8, 56 }, Codec::Row, tiles A8Row;
    }
}

impl Format {
    /// Returns the format's row of [`FORMATS`].
    pub fn row(self) -> &'static FormatRow {
        &FORMATS[self as usize]
    }

    /// Returns the name in IR text.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the format with this name.
    pub fn from_name(name: &str) -> Option<Format> {
        FORMATS.iter().find(|row| row.name == name).map(|row| row.format)
    }

    /// Returns the weight format with this GGUF tensor type id.
    pub fn from_gguf_id(id: u32) -> Option<Format> {
        FORMATS.iter().find(|row| row.gguf_id == Some(id)).map(|row| row.format)
    }

    /// Returns the number of elements in a block.
    pub fn block_len(self) -> usize {
        self.row().block_len
    }

    /// Returns the number of elements of a quantised weight's row that share the floats `d` and
    /// addend: a block of the file format, or less.
    pub fn d_columns(self) -> usize {
        let own = self.quants().and_then(|quants| quants.columns_of_d);
        own.map_or_else(|| self.unpacked_format().unwrap_or(self).block_len(), usize::from)
    }

    /// Sets every float with the field name `name` in a file's block to a number near `x`. Tests
    /// use it to generate blocks.
    pub fn put(self, name: &str, x: f32, block: &mut [u8]) {
        let number = self.quants().map_or(Number::Half, |quants| quants.number(name));
        let floats = block[self.field(name)..].chunks_exact_mut(number.bytes());
        floats.take(self.block_len() / self.d_columns()).for_each(|float| number.put(x, float));
    }

    /// Returns the number of bytes in a block. In packed formats, returns the block's bytes divided
    /// by its number of rows.
    pub fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Returns the number of rows that have elements in a block: 1, or 16 in packed formats.
    pub fn rows(self) -> usize {
        self.row().rows
    }

    /// Returns the activation format of a dot product with this weight format.
    pub fn activation(self) -> Format {
        self.row().activation
    }

    /// Returns the activation format of tile products with this weight format, or `None` if the
    /// format has no tile products.
    pub fn tile_activation(self) -> Option<Format> {
        let parts = match self.codec() {
            Codec::Float(float) => float.bf16_parts(),
            Codec::Quants(_) => Some(1),
            Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => None,
        };
        parts.filter(|_| self.rows() > 1).and_then(|_| self.activation().row().tiles)
    }

    /// Returns the activation format of products of bf16 pairs with this weight format, or `None`
    /// if its numbers are not bf16.
    pub fn pair_activation(self) -> Option<Format> {
        let exact = match self.codec() {
            Codec::Float(float) => float.bf16_parts() == Some(1),
            Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => false,
        };
        if exact && self.rows() > 1 { self.activation().row().pairs } else { None }
    }

    /// Returns the packed form of a weight format, if it has one.
    pub fn packed_format(self) -> Option<Format> {
        self.row().packed
    }

    /// Returns the unpacked form of a packed format, or `None` for any other format.
    pub fn unpacked_format(self) -> Option<Format> {
        self.row().unpacked
    }

    /// Whether files can store tensors in this format.
    pub fn is_in_files(self) -> bool {
        self.row().gguf_id.is_some()
    }

    /// Whether weights can have this format: a format of files, a target of requantisation, or the
    /// packed form of such a format.
    pub fn is_weight(self) -> bool {
        self.packed_format().is_some() || self.unpacked_format().is_some()
    }

    /// Whether all elements of a row share a scale. If so, a row must be quantised as a whole.
    pub fn has_row_scale(self) -> bool {
        match self.codec() {
            Codec::Quants(quants) => match quants.scales {
                Scales::Row | Scales::Multiples { .. } => true,
                Scales::None | Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 | Scales::Coded(_) => false,
            },
            Codec::Row => true,
            Codec::Float(_) | Codec::Bytes { .. } | Codec::Bf16 { .. } => false,
        }
    }

    /// Returns the weight formats that can be a target of requantisation.
    pub fn requantisation_formats() -> impl Iterator<Item = Format> {
        let by_rows = FORMATS.iter().filter(|row| row.packed.is_some()).map(|row| row.format);
        by_rows.filter(|format| format.has_row_scale())
    }

    /// Whether values of a graph or a plan can have this format.
    pub fn is_activation(self) -> bool {
        self.activation() == self
    }

    /// Returns the meaning of the bytes of a block.
    pub fn codec(self) -> &'static Codec {
        &self.row().codec
    }

    /// Returns the integer codec of a quantised weight format, or `None` for any other format.
    pub fn quants(self) -> Option<&'static Quants> {
        match self.codec() {
            Codec::Quants(quants) => Some(quants),
            Codec::Float(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => None,
        }
    }

    /// Whether a block has a field of this name.
    pub fn has_field(self, name: &str) -> bool {
        self.row().fields.iter().any(|field| field.name == name)
    }

    /// Whether blocks hold more than one element.
    pub fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Returns the number of elements of the smallest part of a block with its own scales and sums.
    /// Each such sub-block of activations can be quantised separately.
    pub fn sub_block_len(self) -> usize {
        match self.codec() {
            Codec::Bytes { .. } => SUB.min(self.block_len()),
            Codec::Float(_) | Codec::Quants(_) | Codec::Row | Codec::Bf16 { .. } => self.block_len(),
        }
    }

    /// Returns the byte offset of the field `name` in a row's tail, as [`Format::field`] does for a
    /// block.
    pub fn tail_field(self, name: &str) -> usize {
        codec::offset(&self.row().tail, name)
    }

    /// Returns the number of bytes of a row's tail. In packed formats, returns the bytes of a
    /// strip's tail divided by its number of rows.
    pub fn tail_bytes(self) -> usize {
        self.row().tail.bytes() / self.rows()
    }

    /// Returns the byte offset of the field `name` in a block. The table must list the name.
    pub fn field(self, name: &str) -> usize {
        match self.row().fields.iter().find(|field| field.name == name) {
            Some(field) => field.offset,
            None => unreachable!("format {} has no field {name}", self.name()),
        }
    }

    /// Returns the number of bytes from a row of `len` elements to the next. Returns `None` if
    /// `len` is not a multiple of the block, or on overflow.
    pub fn row_bytes(self, len: u64) -> Option<u64> {
        self.blocks_bytes(len)?.checked_add(self.tail_bytes() as u64)
    }

    /// Returns the number of bytes of the blocks of `len` elements. Returns `None` if `len` is not
    /// a multiple of the block, or on overflow.
    pub fn blocks_bytes(self, len: u64) -> Option<u64> {
        let block = self.block_len() as u64;
        len.is_multiple_of(block).then(|| (len / block).checked_mul(self.block_bytes() as u64)).flatten()
    }

    /// Returns the number of bytes that `len` elements take when they are written. Formats with a
    /// scale for each row write whole rows. Other formats write blocks, which may be a part of a
    /// row.
    pub fn written_bytes(self, len: u64) -> Option<u64> {
        if self.has_row_scale() { self.row_bytes(len) } else { self.blocks_bytes(len) }
    }

    /// Returns the number of elements in `bytes` of rows with `row_len` elements each, or `None` if
    /// the bytes are not whole rows.
    pub fn elements(self, bytes: usize, row_len: usize) -> Option<usize> {
        let row = usize::try_from(self.row_bytes(row_len as u64)?).ok()?;
        (row > 0 && bytes.is_multiple_of(row)).then(|| bytes / row * row_len)
    }

    /// Dequantises consecutive whole blocks. In formats with a scale for each row, it dequantises
    /// one row. In packed formats, it dequantises one strip of [`Format::rows`] rows, and `out`
    /// gets one row after another.
    ///
    /// # Panics
    /// The lengths do not fit together. Callers have checked shapes before.
    pub fn dequantise(self, bytes: &[u8], out: &mut [f32]) {
        let row = self.row();
        assert_eq!(
            out.len() % (row.rows * row.block_len),
            0,
            "{} elements are not whole blocks of {}",
            out.len(),
            row.name
        );
        let all = out.len() / row.block_len * row.block_bytes;
        let whole = all + row.tail.bytes();
        // The padding after the last row may be missing.
        assert!(
            bytes.len() == whole || bytes.len() == all && !self.has_row_scale(),
            "{} bytes of {}",
            bytes.len(),
            row.name
        );
        let (blocks, tail) = bytes.split_at(all);
        if let (Codec::Float(float), 1) = (row.codec, row.rows) {
            float.widen(blocks, out);
            return;
        }
        let (k, offsets) = (out.len() / row.rows, &reader::Offsets::from_row(row));
        for (i, block) in blocks.chunks_exact(row.rows * row.block_bytes).enumerate() {
            for (r, out) in out.chunks_exact_mut(k).enumerate() {
                let out = &mut out[i * row.block_len..][..row.block_len];
                row.codec.dequantise(&decode::Place { row, offsets, block, tail, r }, out);
            }
        }
    }

    /// Dequantises rows of `row_len` elements. In packed formats, dequantises strips of such rows.
    ///
    /// # Panics
    /// The bytes are not whole rows or strips. Callers have checked shapes before.
    pub fn dequantise_rows(self, bytes: &[u8], row_len: usize) -> Vec<f32> {
        let elements = self.elements(bytes.len(), row_len).filter(|n| n.is_multiple_of(self.rows() * row_len));
        let Some(elements) = elements else {
            panic!("{} bytes are not whole rows of {row_len} elements in {self}", bytes.len())
        };
        let mut out = vec![0.0; elements];
        if let Some(strips) = elements.checked_div(self.rows() * row_len).filter(|n| *n > 0) {
            let parts = bytes.chunks_exact(bytes.len() / strips).zip(out.chunks_exact_mut(self.rows() * row_len));
            parts.for_each(|(bytes, out)| self.dequantise(bytes, out));
        }
        out
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The L1 cache has 64 sets and selects the set by the line's number. An even distance between
    /// rows would put a tile's 16 rows into fewer than 16 sets.
    #[test]
    fn tile_row_strides_are_odd_in_cache_lines() {
        let read: Vec<Format> = FORMATS.iter().filter_map(|row| row.tiles).collect();
        assert!(read.len() >= 4, "{read:?}");
        for format in read {
            for k in (256..=32768).step_by(256) {
                let bytes = format.row_bytes(k).unwrap();
                assert!(bytes.is_multiple_of(64) && !(bytes / 64).is_multiple_of(2), "{format}: {bytes} for {k}");
            }
        }
    }

    #[test]
    fn format_rows_match_the_enum_and_fields_fill_blocks() {
        for (i, row) in FORMATS.iter().enumerate() {
            assert_eq!(row.format as usize, i);
            let end = row.fields.iter().fold(0, |at, field| {
                assert_eq!(field.offset, at, "{}.{}", row.name, field.name);
                at + field.bytes
            });
            assert_eq!(end, row.rows * row.block_bytes, "{}", row.name);
            assert!(row.tail.bytes().is_multiple_of(row.rows), "{}", row.name);
            if let Some(packed) = row.packed {
                assert_eq!(
                    (packed.unpacked_format(), packed.rows()),
                    (Some(row.format), packed::STRIP),
                    "{}",
                    row.name
                );
            }
        }
    }
}
