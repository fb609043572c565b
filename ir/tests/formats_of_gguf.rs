//! Tests every format of files against the Python package `gguf`. Both must dequantise the same
//! pseudo-random blocks to the same bits. `formats/generate.py` computed the checksums.

use ixc_ir::format::{FORMATS, Format};

/// Number of blocks of each format.
const BLOCKS: usize = 64;

/// Returns the same blocks as the function `blocks` of `formats/generate.py`.
fn blocks(format: Format) -> Vec<u8> {
    let (mut state, size) = (1u64, format.block_bytes());
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    let mut bytes: Vec<u8> = (0..BLOCKS * size).map(|_| next()).collect();
    for block in bytes.chunks_exact_mut(size) {
        for (field, number, _) in format.quants().unwrap().numbers() {
            let floats = block[format.field(field)..].chunks_exact_mut(number.bytes());
            floats.take(format.block_len() / format.d_columns()).for_each(|float| number.tame(float));
        }
    }
    bytes
}

fn checksum(x: &[f32]) -> u64 {
    // Adding 0 turns -0 into 0, so that the sign of a zero does not change the checksum.
    let bytes = x.iter().flat_map(|x| (x + 0.0).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn blocks_are_the_same_numbers_as_in_python() {
    let lines = include_str!("formats/checksums.txt").lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let lines: Vec<Vec<&str>> = lines.collect();
    for format in FORMATS.iter().filter(|row| row.gguf_id.is_some() && row.block_len > 1).map(|row| row.format) {
        let line = lines.iter().find(|line| line[0] == format.name()).unwrap_or_else(|| panic!("no line of {format}"));
        assert_eq!(line[1], format.row().gguf_id.unwrap().to_string(), "{format}");
        let mut x = vec![0.0; BLOCKS * format.block_len()];
        format.dequantise(&blocks(format), &mut x);
        assert_eq!(line[2], format!("{:016x}", checksum(&x)), "{format}");
    }
}
