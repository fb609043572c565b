//! Conversion of f32 to activation formats. Kernels give the same bits as this definition.
//!
//! The steps below apply to each group of 32 elements (`a8_super`), of 16 elements (`a8_small`), or
//! to a whole row (`a8_row`). All operations are f32, and each is rounded to nearest even:
//!
//! ```text
//! amax = max |x|
//! inv  = amax > 0 ? 127 / amax : 0
//! q    = clamp(round_ties_even(x * inv), -127, 127)
//!        // never -128: u8 x s8 products of pairs must fit i16
//! d    = amax * (1 / 127 as f32)
//! sum  = of all q of the row (a8_row)
//! sums = of q per 16, and of q per 32 times d (a8_super);
//!        q[..16] * d[0] + q[16..] * d[1], summed in this order (a8_small)
//! bf16 = x to nearest even, denormal x to zero (the tile formats, bf16x1);
//!        of x, then of the remainder (bf16x2)
//! ```
//!
//! The definition holds for finite x with amax = 0 or amax >= 2^-120. With smaller amax, 127 / amax
//! overflows f32, and kernels may give other results.

use half::bf16;

use crate::format::packed::SUB;
use crate::format::{Codec, Format};

/// `1 / 127` in f32.
pub const INV_127: f32 = 1.0 / 127.0;

/// Converts rows of `row_len` elements to an activation format. For the format `f32`, returns the
/// bytes of the numbers.
///
/// # Panics
/// Panics if `format` is not an activation format, or if `x` does not divide into rows of whole
/// blocks. The type rules have checked both conditions.
pub fn quantise_rows(format: Format, x: &[f32], row_len: usize) -> Vec<u8> {
    assert!(row_len > 0 && x.len().is_multiple_of(row_len), "{} elements are not whole rows of {row_len}", x.len());
    let apart = format.row_bytes(row_len as u64).unwrap_or(0) as usize;
    let row = |x| {
        let mut row = quantise(format, x);
        row.resize(apart, 0);
        row
    };
    x.chunks_exact(row_len).flat_map(row).collect()
}

/// Converts `x` to an activation format: blocks, or one row if the format has a scale for each row.
///
/// # Panics
/// Panics if `format` is not an activation format, or if `x` does not divide into whole blocks. The
/// type rules have checked both conditions.
pub fn quantise(format: Format, x: &[f32]) -> Vec<u8> {
    assert_eq!(format.activation(), format, "{format} is not an activation format");
    assert!(x.len().is_multiple_of(format.block_len()), "{} elements are not whole blocks of {format}", x.len());
    if *format.codec() == Codec::Row {
        return row_of(format, x);
    }
    let mut bytes = vec![0; x.len() / format.block_len() * format.block_bytes()];
    for (x, block) in x.chunks_exact(format.block_len()).zip(bytes.chunks_exact_mut(format.block_bytes())) {
        match *format.codec() {
            Codec::Float(_) => put(block, 0, &x[0].to_le_bytes()),
            Codec::Bytes { scaled } => bytes_of(format, scaled, x, block),
            Codec::Bf16 { parts } => {
                put_bf16(&mut block[format.field("high")..], x);
                if parts == 1 {
                    continue;
                }
                let rest: Vec<f32> = x.iter().map(|&x| x - to_bf16(x).to_f32()).collect();
                put_bf16(&mut block[format.field("low")..], &rest);
            }
            Codec::Row | Codec::Quants(_) => unreachable!("{format} has no blocks of activations"),
        }
    }
    bytes
}

/// Converts one row to signed bytes with a single scale.
fn row_of(format: Format, x: &[f32]) -> Vec<u8> {
    let (d, quants) = quantise_block(x);
    let mut bytes: Vec<u8> = quants.iter().map(|&q| q as u8).collect();
    let mut tail = vec![0; format.tail_bytes()];
    put(&mut tail, format.tail_field("d"), &d.to_le_bytes());
    let sum: i32 = quants.iter().map(|&q| i32::from(q)).sum();
    put(&mut tail, format.tail_field("sum"), &sum.to_le_bytes());
    bytes.extend(tail);
    bytes
}

/// Writes a block of signed bytes, with all other fields that the format has.
fn bytes_of(format: Format, scaled: usize, x: &[f32], block: &mut [u8]) {
    for (s, x) in x.chunks_exact(SUB).enumerate() {
        let mut total = 0.0;
        for (i, x) in x.chunks_exact(scaled).enumerate() {
            let (d, quants) = quantise_block(x);
            put_quants(&mut block[format.field("quants") + SUB * s + scaled * i..], &quants);
            if format.has_field("sums16") {
                for (j, q) in quants.chunks_exact(16).enumerate() {
                    put(block, format.field("sums16") + 2 * (s * SUB + scaled * i) / 16 + 2 * j, &sum(q).to_le_bytes());
                }
            }
            put(block, format.field("d") + 4 * (s * SUB / scaled + i), &d.to_le_bytes());
            total += f32::from(sum(&quants)) * d;
        }
        put(block, format.field("sums") + 4 * s, &total.to_le_bytes());
    }
    if format.has_field("bf16") {
        put_bf16(&mut block[format.field("bf16")..], x);
    }
}

/// Rounds to the nearest bf16, halves to even, and denormal numbers to zero, as the kernel op
/// `to_bf16` does.
fn to_bf16(x: f32) -> bf16 {
    bf16::from_f32(if x.is_subnormal() { 0.0f32.copysign(x) } else { x })
}

fn put_bf16(out: &mut [u8], x: &[f32]) {
    for (out, &x) in out.chunks_exact_mut(2).zip(x) {
        out.copy_from_slice(&to_bf16(x).to_le_bytes());
    }
}

/// Returns the scale and the codes of elements that share a scale.
fn quantise_block(x: &[f32]) -> (f32, Vec<i8>) {
    let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
    let inv = if amax > 0.0 { 127.0 / amax } else { 0.0 };
    // Numbers outside the defined range can give NaN, which `as` converts to 0.
    let quants = x.iter().map(|x| (x * inv).round_ties_even().clamp(-127.0, 127.0) as i8).collect();
    (amax * INV_127, quants)
}

/// Sums at most 32 codes, each at most 127, so the sum fits in an i16.
fn sum(quants: &[i8]) -> i16 {
    quants.iter().map(|&q| i16::from(q)).sum()
}

fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put_quants(block: &mut [u8], quants: &[i8]) {
    for (byte, q) in block.iter_mut().zip(quants) {
        *byte = *q as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extreme_is_127_and_ties_round_to_even() {
        let mut x = vec![0f32; 32];
        x[0] = 127.0;
        x[1] = 0.5;
        x[2] = 1.5;
        x[3] = -2.5;
        x[4] = -126.7;
        let bytes = quantise(Format::A8Small, &x);
        assert_eq!(&bytes[..5], &[127, 0, 2, -2i8 as u8, -127i8 as u8]);
        assert_eq!(bytes[32..36], (127.0 * INV_127).to_le_bytes());
        assert_eq!(bytes[36..44], [0; 8]);
    }

    #[test]
    fn a8_super_sums_match_the_format_table() {
        // The last of each 32 elements is 127, so every scale is 1 and the codes equal the
        // elements.
        let x: Vec<f32> = (0..256).map(|i| if i % 32 == 31 { 127.0 } else { (i % 100) as f32 }).collect();
        let bytes = quantise(Format::A8Super, &x);
        let float = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        for (i, x) in x.chunks_exact(16).enumerate() {
            let word = i16::from_le_bytes([bytes[256 + 2 * i], bytes[257 + 2 * i]]);
            assert_eq!(f32::from(word), x.iter().sum::<f32>());
        }
        for (i, x) in x.chunks_exact(32).enumerate() {
            assert_eq!(float(288 + 4 * i), 127.0 * INV_127);
            assert_eq!(float(320 + 4 * i), x.iter().sum::<f32>() * (127.0 * INV_127));
        }
        let mut back = vec![0f32; 256];
        Format::A8Super.dequantise(&bytes, &mut back);
        assert!(x.iter().zip(&back).all(|(x, y)| (x - y).abs() < 1e-4));
    }

    #[test]
    fn a8_row_stores_scale_and_sum_after_bytes() {
        let x: Vec<f32> = (0..128).map(|i| i as f32 - 1.0).collect();
        let bytes = quantise_rows(Format::A8Row, &[x.clone(), vec![0.0; 128]].concat(), 128);
        assert_eq!(bytes.len(), 2 * 192);
        assert_eq!((bytes[0] as i8, bytes[127] as i8), (-1, 127));
        assert_eq!(bytes[128..132], (126.0 * INV_127).to_le_bytes());
        let sum: i32 = bytes[..128].iter().map(|&q| i32::from(q as i8)).sum();
        assert_eq!(bytes[132..136], sum.to_le_bytes());
        assert!(bytes[136..].iter().all(|&b| b == 0));
        let back = Format::A8Row.dequantise_rows(&bytes, 128);
        assert!(x.iter().zip(&back).all(|(x, y)| (x - y).abs() <= 126.0 / 127.0 * 0.501));
    }

    #[test]
    fn zeros_stay_zeros() {
        assert!(quantise(Format::A8Super, &[0.0; 512]).iter().all(|&b| b == 0));
    }
}
