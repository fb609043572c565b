//! Block formats: how weights and quantised activations are stored, declared once.
//!
//! A *block format* stores `block_len` consecutive elements of a row in `block_bytes` bytes. Rows are independent: a row
//! of `n` elements takes `n / block_len` blocks, and `n` must divide. Scalars (`f32`, `f16`, `bf16`) are formats with
//! blocks of one element. Everything that must know a format's layout reads it here: the GGUF reader takes ids and sizes,
//! the interpreter takes [`Format::dequantise`], the passes take [`Format::activation`], the kernel generators take the
//! field offsets.
//!
//! A *packed* format interleaves 16 rows of a weight, so that a vector lane is a row; [`packed`] says how and packs. Its sizes
//! are those of a row's share, so that `n * row_bytes` holds for whole strips; its fields lie in a strip's block of 16 shares.
//!
//! ```text
//! weight @blk.0.ffn_gate_exps.weight : q4_k[16, 256, 256]     // 16 experts, 256 rows, 256 columns
//! ```

pub mod packed;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// Elements in a K-quant super-block (ggml `QK_K`).
pub const K_BLOCK: usize = 256;
/// Elements in a legacy block (ggml `QK8_0`, `QK4_0`).
pub const SMALL_BLOCK: usize = 32;

/// A named field of a block (in packed formats, of a strip's block): where it starts and how many bytes it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The field's name in the format's public description.
    pub name: &'static str,
    /// Byte offset from the start of the block.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// One row of the format table.
#[derive(Clone, Copy, Debug)]
pub struct FormatRow {
    /// The format.
    pub format: Format,
    /// Name in IR text.
    pub name: &'static str,
    /// Tensor type id in a GGUF file; `None` for formats that only activations take.
    pub gguf_id: Option<u32>,
    /// Elements in a block.
    pub block_len: usize,
    /// Bytes in a block; in packed formats, a row's share of them.
    pub block_bytes: usize,
    /// Rows that a block has elements of: 1, or 16 in packed formats.
    pub rows: usize,
    /// The block's fields in order; they cover it without gaps.
    pub fields: &'static [Field],
    /// The format that a dot product with rows of this format takes its activations in.
    pub activation: Format,
    /// Writes the block's elements to a slice of `rows * block_len`, row by row.
    pub dequantise_block: fn(&[u8], &mut [f32]),
}

macro_rules! format_table {
    ($($(#[$doc:meta])* $variant:ident $name:literal gguf $id:expr, $len:expr => $bytes:expr, $(x $rows:literal,)?
        { $($field:ident @ $offset:expr, $size:expr);* }, activation $act:ident, $deq:path;)*) => {
        /// A storage format of weights or activations.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Format { $($(#[$doc])* $variant),* }

        /// The format table, in the order of [`Format`].
        pub static FORMATS: &[FormatRow] = &[$(FormatRow {
            format: Format::$variant, name: $name, gguf_id: $id, block_len: $len, block_bytes: $bytes,
            rows: format_table!(@rows $($rows)?),
            fields: &[$(Field { name: stringify!($field), offset: $offset, bytes: $size }),*],
            activation: Format::$act, dequantise_block: $deq,
        }),*];
    };
    (@rows) => { 1 };
    (@rows $rows:literal) => { $rows };
}

format_table! {
    /// IEEE single.
    F32 "f32" gguf Some(0), 1 => 4, { value @ 0, 4 }, activation F32, dequantise_f32;
    /// IEEE half.
    F16 "f16" gguf Some(1), 1 => 2, { value @ 0, 2 }, activation F32, dequantise_f16;
    /// Upper half of an IEEE single.
    Bf16 "bf16" gguf Some(30), 1 => 2, { value @ 0, 2 }, activation F32, dequantise_bf16;
    /// ggml `block_q8_0`: `x = d * q`.
    Q8_0 "q8_0" gguf Some(8), 32 => 34, { d @ 0, 2; quants @ 2, 32 }, activation A8Small, dequantise_q8_0;
    /// ggml `block_q4_0`: `x = d * (q - 8)`; byte `j` holds elements `j` (low nibble) and `j + 16` (high).
    Q4_0 "q4_0" gguf Some(2), 32 => 18, { d @ 0, 2; quants @ 2, 16 }, activation A8Small, dequantise_q4_0;
    /// ggml `block_q4_K`: eight sub-blocks of 32, `x = d * scale * q - dmin * min`, 6-bit scales and minimums.
    Q4K "q4_k" gguf Some(12), 256 => 144, { d @ 0, 2; dmin @ 2, 2; scales @ 4, 12; quants @ 16, 128 }, activation A8Super, dequantise_q4_k;
    /// ggml `block_q5_K`: as `q4_k` with a fifth bit of every element in `high`.
    Q5K "q5_k" gguf Some(13), 256 => 176, { d @ 0, 2; dmin @ 2, 2; scales @ 4, 12; high @ 16, 32; quants @ 48, 128 }, activation A8Super, dequantise_q5_k;
    /// ggml `block_q6_K`: sixteen sub-blocks of 16, `x = d * scale * (q - 32)`, signed 8-bit scales.
    Q6K "q6_k" gguf Some(14), 256 => 210, { low @ 0, 128; high @ 128, 64; scales @ 192, 16; d @ 208, 2 }, activation A8Super, dequantise_q6_k;
    /// Activations for K-quants: eight sub-blocks of 32 signed bytes in -127..=127, each with an f32 scale (ggml's `block_q8_K` has
    /// one for 256, which costs twice the error), the sums of 16 bytes as i16, and the sums of 32 bytes times their scale.
    A8Super "a8_super" gguf None, 256 => 352, { quants @ 0, 256; sums16 @ 256, 32; d @ 288, 32; sums @ 320, 32 }, activation A8Super, dequantise_a8_super;
    /// Activations for 32-element formats: 32 signed bytes in -127..=127, an f32 scale for each 16 of them (one for all 32, as in
    /// ggml's `block_q8_0`, has a third more error), and the sum of the elements as f32.
    A8Small "a8_small" gguf None, 32 => 44, { quants @ 0, 32; d @ 32, 8; sum @ 40, 4 }, activation A8Small, dequantise_a8_small;
    /// `a8_super`, and the same elements as bf16 for tile products.
    A8SuperTile "a8_super_tile" gguf None, 256 => 896, { quants @ 0, 256; sums16 @ 256, 32; d @ 288, 32; sums @ 320, 32; pad @ 352, 32; bf16 @ 384, 512 }, activation A8SuperTile, dequantise_a8_super;
    /// `a8_small`, and the same elements as bf16 for tile products.
    A8SmallTile "a8_small_tile" gguf None, 32 => 128, { quants @ 0, 32; d @ 32, 8; sum @ 40, 4; pad @ 44, 20; bf16 @ 64, 64 }, activation A8SmallTile, dequantise_a8_small;
    /// Activations for float weights in tile products: `x = high + low`, both bf16, to 16 bits.
    Bf16x2 "bf16x2" gguf None, 32 => 128, { high @ 0, 64; low @ 64, 64 }, activation Bf16x2, dequantise_bf16x2;
    /// Packed `f16`: 16 rows' elements of one column side by side.
    F16R16 "f16_r16" gguf None, 1 => 2, x 16, { value @ 0, 32 }, activation F32, packed::dequantise_f16;
    /// Packed `bf16`: likewise.
    Bf16R16 "bf16_r16" gguf None, 1 => 2, x 16, { value @ 0, 32 }, activation F32, packed::dequantise_bf16;
    /// Packed `q8_0`: two blocks of 32 columns; quants are `q + 128`.
    Q8_0R16 "q8_0_r16" gguf None, 64 => 68, x 16, { d @ 0, 64; quants @ 64, 1024 }, activation A8Small, packed::dequantise_q8_0;
    /// Packed `q4_0`: two blocks of 32 columns.
    Q4_0R16 "q4_0_r16" gguf None, 64 => 36, x 16, { d @ 0, 64; quants @ 64, 512 }, activation A8Small, packed::dequantise_q4_0;
    /// Packed `q4_k`: scales and minimums are whole bytes.
    Q4KR16 "q4_k_r16" gguf None, 256 => 144, x 16, { d @ 0, 32; dmin @ 32, 32; scales @ 64, 128; mins @ 192, 64; quants @ 256, 2048 }, activation A8Super, packed::dequantise_q4_k;
    /// Packed `q5_k`: likewise; each sub-block's quants begin with a vector of high bits, bit `g` of a byte for group `g`.
    Q5KR16 "q5_k_r16" gguf None, 256 => 176, x 16, { d @ 0, 32; dmin @ 32, 32; scales @ 64, 128; mins @ 192, 64; quants @ 256, 2560 }, activation A8Super, packed::dequantise_q5_k;
    /// Packed `q6_k`: each sub-block's quants begin with two vectors of high bits, two bits for each of four groups.
    Q6KR16 "q6_k_r16" gguf None, 256 => 212, x 16, { d @ 0, 32; pad @ 32, 32; scales @ 64, 256; quants @ 320, 3072 }, activation A8Super, packed::dequantise_q6_k;
}

impl Format {
    /// This format's row of the table.
    pub fn row(self) -> &'static FormatRow {
        &FORMATS[self as usize]
    }

    /// Name in IR text.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The format with this name.
    pub fn from_name(name: &str) -> Option<Format> {
        FORMATS.iter().find(|row| row.name == name).map(|row| row.format)
    }

    /// The weight format with this GGUF tensor type id.
    pub fn from_gguf_id(id: u32) -> Option<Format> {
        FORMATS.iter().find(|row| row.gguf_id == Some(id)).map(|row| row.format)
    }

    /// Elements in a block.
    pub fn block_len(self) -> usize {
        self.row().block_len
    }

    /// Bytes in a block; in packed formats, a row's share of them.
    pub fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Rows that a block has elements of: 1, or 16 in packed formats.
    pub fn rows(self) -> usize {
        self.row().rows
    }

    /// The activation format that a dot product with this weight format takes.
    pub fn activation(self) -> Format {
        self.row().activation
    }

    /// Whether blocks hold more than one element.
    pub fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Byte offset of the field `name` in a block. The name must be one of the table's: a wrong one is a bug here.
    pub fn field(self, name: &str) -> usize {
        match self.row().fields.iter().find(|field| field.name == name) {
            Some(field) => field.offset,
            None => unreachable!("format {} has no field {name}", self.name()),
        }
    }

    /// Bytes that a row of `len` elements takes, or `None` where `len` is no multiple of the block or the size overflows.
    pub fn row_bytes(self, len: u64) -> Option<u64> {
        let block = self.block_len() as u64;
        len.is_multiple_of(block).then(|| (len / block).checked_mul(self.block_bytes() as u64)).flatten()
    }

    /// Dequantises whole blocks. `bytes` holds `out.len() / block_len` blocks; in packed formats they are those of one strip of
    /// [`Format::rows`] rows, and `out` is the rows one after the other.
    ///
    /// # Panics
    /// When the lengths do not fit together; callers have checked shapes before.
    pub fn dequantise(self, bytes: &[u8], out: &mut [f32]) {
        let row = self.row();
        assert_eq!(
            out.len() % (row.rows * row.block_len),
            0,
            "{} elements are no whole blocks of {}",
            out.len(),
            row.name
        );
        assert_eq!(out.len() / row.block_len * row.block_bytes, bytes.len(), "bytes of {}", row.name);
        let blocks = bytes.chunks_exact(row.rows * row.block_bytes);
        if row.rows == 1 {
            for (block, out) in blocks.zip(out.chunks_exact_mut(row.block_len)) {
                (row.dequantise_block)(block, out);
            }
            return;
        }
        let k = out.len() / row.rows;
        let mut block_out = vec![0.0; row.rows * row.block_len];
        for (i, block) in blocks.enumerate() {
            (row.dequantise_block)(block, &mut block_out);
            for (row_out, x) in out.chunks_exact_mut(k).zip(block_out.chunks_exact(row.block_len)) {
                row_out[i * row.block_len..][..row.block_len].copy_from_slice(x);
            }
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

fn f32_at(block: &[u8], offset: usize) -> f32 {
    f32::from_le_bytes([block[offset], block[offset + 1], block[offset + 2], block[offset + 3]])
}

fn dequantise_f32(block: &[u8], out: &mut [f32]) {
    out[0] = f32_at(block, 0);
}

fn dequantise_f16(block: &[u8], out: &mut [f32]) {
    out[0] = half_at(block, 0);
}

fn dequantise_bf16(block: &[u8], out: &mut [f32]) {
    out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32();
}

fn dequantise_q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (y, &q) in out.iter_mut().zip(&block[2..]) {
        *y = d * f32::from(q as i8);
    }
}

fn dequantise_q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (j, &q) in block[2..].iter().enumerate() {
        out[j] = d * (f32::from(q & 15) - 8.0);
        out[j + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

/// The 6-bit scale and minimum of sub-block `s` (ggml `get_scale_min_k4`): four low pairs are whole, four high ones are
/// split between a nibble and the two top bits of the low ones.
pub fn k4_scale_min(scales: &[u8], s: usize) -> (u8, u8) {
    if s < 4 {
        (scales[s] & 63, scales[s + 4] & 63)
    } else {
        ((scales[s + 4] & 15) | ((scales[s - 4] >> 6) << 4), (scales[s + 4] >> 4) | ((scales[s] >> 6) << 4))
    }
}

fn dequantise_q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for s in 0..8 {
        let (scale, min) = k4_scale_min(&block[4..16], s);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for l in 0..32 {
            let q = (block[16 + s / 2 * 32 + l] >> (4 * (s % 2))) & 15;
            out[s * 32 + l] = scale * f32::from(q) - min;
        }
    }
}

fn dequantise_q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for s in 0..8 {
        let (scale, min) = k4_scale_min(&block[4..16], s);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for l in 0..32 {
            let low = (block[48 + s / 2 * 32 + l] >> (4 * (s % 2))) & 15;
            let q = low | (((block[16 + l] >> s) & 1) << 4);
            out[s * 32 + l] = scale * f32::from(q) - min;
        }
    }
}

fn dequantise_q6_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 208);
    for (i, y) in out.iter_mut().enumerate() {
        // Two halves of 128: `low` holds 32-element quarters 0 and 2 in one set of 32 bytes, 1 and 3 in the next.
        let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
        let low = (block[half * 64 + quarter % 2 * 32 + l] >> (4 * (quarter / 2))) & 15;
        let high = (block[128 + half * 32 + l] >> (2 * quarter)) & 3;
        let scale = block[192 + i / 16] as i8;
        *y = d * f32::from(scale) * (f32::from(low | (high << 4)) - 32.0);
    }
}

fn dequantise_a8_super(block: &[u8], out: &mut [f32]) {
    for (i, (y, &q)) in out.iter_mut().zip(block).enumerate() {
        *y = f32_at(block, 288 + i / 32 * 4) * f32::from(q as i8);
    }
}

fn dequantise_a8_small(block: &[u8], out: &mut [f32]) {
    for (i, (y, &q)) in out.iter_mut().zip(block).enumerate() {
        *y = f32_at(block, 32 + i / 16 * 4) * f32::from(q as i8);
    }
}

fn dequantise_bf16x2(block: &[u8], out: &mut [f32]) {
    let at = |i: usize| bf16::from_le_bytes([block[i], block[i + 1]]).to_f32();
    for (i, y) in out.iter_mut().enumerate() {
        *y = at(2 * i) + at(64 + 2 * i);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_enum_and_fields_cover_the_block() {
        for (i, row) in FORMATS.iter().enumerate() {
            assert_eq!(row.format as usize, i);
            let end = row.fields.iter().fold(0, |at, field| {
                assert_eq!(field.offset, at, "{}.{}", row.name, field.name);
                at + field.bytes
            });
            assert_eq!(end, row.rows * row.block_bytes, "{}", row.name);
        }
    }
}
