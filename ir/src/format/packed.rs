//! Packed formats: 16 rows of a weight side by side, so that a vector lane is a row and no horizontal sum is left.
//!
//! A *strip* is 16 rows; its blocks follow each other along the columns. In a block, columns come in *groups* of four: a dword
//! of a row holds four neighbouring columns, which is what `dot4_u8s8` takes, and 16 rows make 64 bytes. Where quants have four
//! bits (or four low bits), a vector holds two groups: group `2j` of a sub-block of 32 in the low nibbles, `2j + 1` in the high
//! ones.
//!
//! ```text
//! q4_k_r16, sub-block s, vector j:   byte 4r + i = q[r][32s + 8j + i] | q[r][32s + 8j + 4 + i] << 4      r in 0..16, i in 0..4
//! ```
//!
//! A block begins with what is read first, its scales, and the high bits of a sub-block's quants stand just before their low ones:
//! kernels then read memory strictly forwards, as prefetchers like it. (High bits in a field of their own are a second stream, and
//! cost a single row 40 % of the memory bandwidth of a Zen 4 core.)
//!
//! Scales and minimums are stored per sub-block, 16 rows side by side: one byte each, unpacked from six bits, which costs 3 % of
//! space and saves their unpacking at each use.
//!
//! [`pack`] changes the order of bits and nothing else: dequantised, both are the same numbers.
//!
//! Invariant: kernels for one row and for many read the same packed bytes.

use half::{bf16, f16};

use super::{Format, k4_scale_min};

/// Rows of a strip.
pub const STRIP: usize = 16;
/// Bytes of a vector of a strip: a dword for each row.
const VECTOR: usize = 4 * STRIP;
const NIBBLES: u32 = 0x0f0f_0f0f;

impl Format {
    /// The packed form of a weight format, if it has one.
    pub fn packed(self) -> Option<Format> {
        Some(match self {
            Format::F16 => Format::F16R16,
            Format::Bf16 => Format::Bf16R16,
            Format::Q8_0 => Format::Q8_0R16,
            Format::Q4_0 => Format::Q4_0R16,
            Format::Q4K => Format::Q4KR16,
            Format::Q5K => Format::Q5KR16,
            Format::Q6K => Format::Q6KR16,
            _ => return None,
        })
    }

    /// The format that a packed one is made from.
    pub fn unpacked(self) -> Option<Format> {
        let all = [Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0, Format::Q4K, Format::Q5K, Format::Q6K];
        all.into_iter().find(|format| format.packed() == Some(self))
    }
}

/// Vectors of the quants of a sub-block of 32 columns: of high bits, which stand first, and of all.
///
/// # Panics
/// When `format` is no packed format of blocks.
pub fn sub_block_vectors(format: Format) -> (usize, usize) {
    match format {
        Format::Q8_0R16 => (0, 8),
        Format::Q4_0R16 | Format::Q4KR16 => (0, 4),
        Format::Q5KR16 => (1, 5),
        Format::Q6KR16 => (2, 6),
        _ => panic!("{format} has no vectors of quants"),
    }
}

/// Packs one strip: `rows` are 16 rows of `to.unpacked()`, each of whole blocks of `to`; `out` gets as many blocks.
///
/// # Panics
/// When `to` is no packed format or the lengths do not fit together.
pub fn pack(to: Format, rows: &[u8], out: &mut [u8]) {
    let from = to.unpacked().unwrap_or_else(|| panic!("{to} is no packed format"));
    let block_bytes = STRIP * to.block_bytes();
    assert_eq!(out.len() % block_bytes, 0, "whole blocks of {to}");
    let blocks = out.len() / block_bytes;
    let row_bytes = blocks * to.block_len() / from.block_len() * from.block_bytes();
    assert_eq!(rows.len(), STRIP * row_bytes, "16 rows of {from}");
    if to.block_len() == 1 {
        return transpose(row_bytes, rows, out);
    }
    let source_bytes = to.block_len() / from.block_len() * from.block_bytes();
    let places = Places::of(to);
    for (b, out) in out.chunks_exact_mut(block_bytes).enumerate() {
        for r in 0..STRIP {
            let block = &rows[r * row_bytes + b * source_bytes..][..source_bytes];
            match to {
                Format::Q8_0R16 => pack_q8_0(places, r, block, out),
                Format::Q4_0R16 => pack_q4_0(places, r, block, out),
                Format::Q4KR16 => {
                    pack_k4_head(places, r, block, out);
                    pack_quants(4, r, &block[16..], &mut out[places.quants..]);
                }
                Format::Q5KR16 => {
                    pack_k4_head(places, r, block, out);
                    pack_q5_high(r, &block[16..48], &mut out[places.quants..]);
                    pack_quants(5, r, &block[48..], &mut out[places.quants + VECTOR..]);
                }
                Format::Q6KR16 => pack_q6_k(places, r, block, out),
                _ => unreachable!("{to} is no packed format"),
            }
        }
    }
}

/// Columns that are transposed at a time: 16 rows of 32 two-byte elements and their transposed form fit a first-level cache.
const COLUMNS: usize = 32;

/// 16 rows of two-byte elements, column by column.
fn transpose(row_bytes: usize, rows: &[u8], out: &mut [u8]) {
    for (i, out) in out.chunks_mut(2 * STRIP * COLUMNS).enumerate() {
        for r in 0..STRIP {
            let row = &rows[r * row_bytes + 2 * COLUMNS * i..][..out.len() / STRIP];
            for (element, column) in row.chunks_exact(2).zip(out.chunks_exact_mut(2 * STRIP)) {
                column[2 * r..2 * r + 2].copy_from_slice(element);
            }
        }
    }
}

/// Where a block has what, looked up once; 0 for what it does not have.
#[derive(Clone, Copy, Debug)]
struct Places {
    d: usize,
    /// `dmin`, or what stands there.
    d2: usize,
    scales: usize,
    mins: usize,
    quants: usize,
}

impl Places {
    fn of(format: Format) -> Places {
        let find = |names: &[&str]| {
            format.row().fields.iter().find(|field| names.contains(&field.name)).map_or(0, |field| field.offset)
        };
        Places {
            d: find(&["d"]),
            d2: find(&["dmin", "pad"]),
            scales: find(&["scales"]),
            mins: find(&["mins"]),
            quants: find(&["quants"]),
        }
    }
}

fn dword(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Sets row `r`'s dword of a vector.
fn put(out: &mut [u8], vector: usize, r: usize, value: u32) {
    out[vector * VECTOR + 4 * r..][..4].copy_from_slice(&value.to_le_bytes());
}

fn pack_q8_0(at: Places, r: usize, blocks: &[u8], out: &mut [u8]) {
    for (half, block) in blocks.chunks_exact(34).enumerate() {
        for g in 0..8 {
            put(&mut out[at.quants..], 8 * half + g, r, dword(block, 2 + 4 * g) ^ 0x8080_8080);
        }
        out[at.d + 32 * half + 2 * r..][..2].copy_from_slice(&block[..2]);
    }
}

fn pack_q4_0(at: Places, r: usize, blocks: &[u8], out: &mut [u8]) {
    for (half, block) in blocks.chunks_exact(18).enumerate() {
        // The first 16 columns are the low nibbles, the others the high ones.
        let group = |g: usize| dword(block, 2 + 4 * (g % 4)) >> (4 * (g / 4)) & NIBBLES;
        for j in 0..4 {
            put(&mut out[at.quants..], 4 * half + j, r, group(2 * j) | group(2 * j + 1) << 4);
        }
        out[at.d + 32 * half + 2 * r..][..2].copy_from_slice(&block[..2]);
    }
}

fn pack_k4_head(at: Places, r: usize, block: &[u8], out: &mut [u8]) {
    for s in 0..8 {
        let (scale, min) = k4_scale_min(&block[4..16], s);
        out[at.scales + STRIP * s + r] = scale;
        out[at.mins + STRIP * s + r] = min;
    }
    out[at.d + 2 * r..][..2].copy_from_slice(&block[..2]);
    out[at.d2 + 2 * r..][..2].copy_from_slice(&block[2..4]);
}

/// Four-bit quants of `q4_k` and `q5_k`: 64 columns in 32 bytes, the first 32 in the low nibbles. Sub-blocks of `out` are `vectors`
/// apart.
fn pack_quants(vectors: usize, r: usize, quants: &[u8], out: &mut [u8]) {
    for pair in 0..4 {
        put_nibbles(r, &quants[32 * pair..][..32], out, 2 * pair * vectors, (2 * pair + 1) * vectors);
    }
}

/// 32 bytes: the low nibbles become four vectors from `low` on, the high ones from `high` on.
fn put_nibbles(r: usize, bytes: &[u8], out: &mut [u8], low: usize, high: usize) {
    for j in 0..4 {
        let (a, b) = (dword(bytes, 8 * j), dword(bytes, 8 * j + 4));
        put(out, low + j, r, a & NIBBLES | (b & NIBBLES) << 4);
        put(out, high + j, r, a >> 4 & NIBBLES | b & !NIBBLES);
    }
}

fn pack_q5_high(r: usize, high: &[u8], out: &mut [u8]) {
    let groups: [u32; 8] = std::array::from_fn(|g| dword(high, 4 * g));
    for s in 0..8 {
        let value = groups.iter().enumerate().fold(0, |value, (g, group)| value | (group >> s & 0x0101_0101) << g);
        put(out, 5 * s, r, value);
    }
}

fn pack_q6_k(at: Places, r: usize, block: &[u8], out: &mut [u8]) {
    for half in 0..2 {
        for pair in 0..2 {
            let s = 4 * half + pair;
            put_nibbles(r, &block[64 * half + 32 * pair..][..32], &mut out[at.quants..], 6 * s + 2, 6 * (s + 2) + 2);
        }
        let groups: [u32; 8] = std::array::from_fn(|g| dword(block, 128 + 32 * half + 4 * g));
        for quarter in 0..4 {
            for (h, groups) in groups.chunks_exact(4).enumerate() {
                let two = |group: u32| group >> (2 * quarter) & 0x0303_0303;
                let value = groups.iter().enumerate().fold(0, |value, (g, group)| value | two(*group) << (2 * g));
                put(&mut out[at.quants..], 6 * (4 * half + quarter) + h, r, value);
            }
        }
    }
    for (i, &scale) in block[192..208].iter().enumerate() {
        out[at.scales + STRIP * i + r] = scale;
    }
    out[at.d + 2 * r..][..2].copy_from_slice(&block[208..210]);
    out[at.d2 + 2 * r..][..2].fill(0);
}

fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

pub(super) fn dequantise_f16(block: &[u8], out: &mut [f32]) {
    for (r, y) in out.iter_mut().enumerate() {
        *y = half_at(block, 2 * r);
    }
}

pub(super) fn dequantise_bf16(block: &[u8], out: &mut [f32]) {
    for (r, y) in out.iter_mut().enumerate() {
        *y = bf16::from_le_bytes([block[2 * r], block[2 * r + 1]]).to_f32();
    }
}

pub(super) fn dequantise_q8_0(block: &[u8], out: &mut [f32]) {
    let quants = &block[Format::Q8_0R16.field("quants")..];
    for (at, y) in out.iter_mut().enumerate() {
        let (r, c) = (at / 64, at % 64);
        let q = quants[c / 4 * VECTOR + 4 * r + c % 4];
        *y = half_at(block, Format::Q8_0R16.field("d") + 32 * (c / 32) + 2 * r) * (f32::from(q) - 128.0);
    }
}

/// The low four bits of the quant of row `r`, column `c`.
fn nibble(format: Format, block: &[u8], r: usize, c: usize) -> u8 {
    let (high, all) = sub_block_vectors(format);
    let vector = c / 32 * all + high + c % 32 / 8;
    block[format.field("quants") + vector * VECTOR + 4 * r + c % 4] >> (4 * (c / 4 % 2)) & 15
}

/// The byte with the high bits of row `r`, column `c`, which stands for `groups` neighbouring groups of four.
fn high(format: Format, block: &[u8], r: usize, c: usize, groups: usize) -> u8 {
    let vector = c / 32 * sub_block_vectors(format).1 + c % 32 / (4 * groups);
    block[format.field("quants") + vector * VECTOR + 4 * r + c % 4]
}

pub(super) fn dequantise_q4_0(block: &[u8], out: &mut [f32]) {
    let format = Format::Q4_0R16;
    for (at, y) in out.iter_mut().enumerate() {
        let (r, c) = (at / 64, at % 64);
        let q = f32::from(nibble(format, block, r, c)) - 8.0;
        *y = half_at(block, format.field("d") + 32 * (c / 32) + 2 * r) * q;
    }
}

/// `d * scale * q - dmin * min`, rounded as the formats that rows are packed from round it.
fn k4(format: Format, block: &[u8], r: usize, c: usize, q: u8) -> f32 {
    let at = |field: &str| f32::from(block[format.field(field) + STRIP * (c / 32) + r]);
    let half = |field: &str| half_at(block, format.field(field) + 2 * r);
    let (scale, min) = (half("d") * at("scales"), half("dmin") * at("mins"));
    scale * f32::from(q) - min
}

pub(super) fn dequantise_q4_k(block: &[u8], out: &mut [f32]) {
    for (at, y) in out.iter_mut().enumerate() {
        let (r, c) = (at / 256, at % 256);
        *y = k4(Format::Q4KR16, block, r, c, nibble(Format::Q4KR16, block, r, c));
    }
}

pub(super) fn dequantise_q5_k(block: &[u8], out: &mut [f32]) {
    for (at, y) in out.iter_mut().enumerate() {
        let (r, c) = (at / 256, at % 256);
        let high = high(Format::Q5KR16, block, r, c, 8) >> (c / 4 % 8) & 1;
        *y = k4(Format::Q5KR16, block, r, c, nibble(Format::Q5KR16, block, r, c) | high << 4);
    }
}

pub(super) fn dequantise_q6_k(block: &[u8], out: &mut [f32]) {
    let format = Format::Q6KR16;
    for (at, y) in out.iter_mut().enumerate() {
        let (r, c) = (at / 256, at % 256);
        let high = high(format, block, r, c, 4) >> (2 * (c / 4 % 4)) & 3;
        let scale = block[format.field("scales") + STRIP * (c / 16) + r] as i8;
        let q = f32::from(nibble(format, block, r, c) | high << 4) - 32.0;
        *y = half_at(block, format.field("d") + 2 * r) * f32::from(scale) * q;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every bit pattern of every field, so far as random bytes have them; scales are kept finite.
    #[test]
    fn packed_rows_are_the_same_numbers() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        for to in super::super::FORMATS.iter().filter(|row| row.rows > 1).map(|row| row.format) {
            let from = to.unpacked().unwrap();
            let k = 3 * to.block_len();
            let row_bytes = from.row_bytes(k as u64).unwrap() as usize;
            let mut rows: Vec<u8> = (0..STRIP * row_bytes).map(|_| random()).collect();
            for block in rows.chunks_exact_mut(from.block_bytes()) {
                for field in from.row().fields.iter().filter(|f| ["d", "dmin", "value"].contains(&f.name)) {
                    // An exponent below the top: no infinity, no NaN.
                    block[field.offset + 1] &= 0xbb;
                }
            }
            let mut packed = vec![0xee; STRIP * to.row_bytes(k as u64).unwrap() as usize];
            pack(to, &rows, &mut packed);
            let mut right = vec![0.0; STRIP * k];
            from.dequantise(&rows, &mut right);
            let mut found = vec![f32::NAN; STRIP * k];
            to.dequantise(&packed, &mut found);
            assert_eq!(found, right, "{to}");
            // Every byte is written: what was there before makes no difference.
            let mut again = vec![0; packed.len()];
            pack(to, &rows, &mut again);
            assert!(packed == again, "{to}");
        }
    }
}
