//! Tests of bands of a block of results. Together, the bands must give the same bits as a kernel
//! for the whole block, and only one band may write each byte.

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::Activation;
use ixc_ir::kernel::{Buffer, Kernel, interpret};
use ixc_kernels::catalogue::inputs;
use ixc_kernels::{KernelSpec, MatmulStrategy, Pace, Swiglu, generate};
use ixc_targets::Target;

/// Two different contents of the result buffer before a run. A byte that is equal after two runs,
/// one with each content, was written by the kernel.
const BEFORE: [u8; 2] = [inputs::POISON, !inputs::POISON];

/// Runs a kernel whose result buffer contains `before`, and returns the buffer.
fn results(kernel: &Kernel, dims: &[i64], inputs: &[Vec<u8>], before: u8) -> Vec<u8> {
    let mut buffers = inputs.to_vec();
    let y = kernel.buffers.iter().position(|buffer| buffer.name == "y").unwrap();
    buffers[y].fill(before);
    interpret::run(kernel, dims, &mut buffers).unwrap();
    buffers.swap_remove(y)
}

#[test]
fn bands_of_a_block_make_the_block_and_write_each_byte_once() {
    for (format, x, out, target) in [
        (Format::Q4KR16, Format::A8Super, Format::A8Super, Target::AVX2),
        (Format::Q6K, Format::A8Super, Format::A8Super, Target::AVX512),
        (Format::Q4KR16, Format::A8SuperTile, Format::A8SuperTile, Target::AMX),
    ] {
        for (band, rows) in [(32u32, 1), (64, 3), (128, 5)] {
            let block = out.block_len() as u32;
            let (k, n, strategy) = (256, 2 * block, MatmulStrategy::Gemv);
            let spec = |tile| Swiglu {
                gate: format,
                up: format,
                x,
                k,
                tile,
                n,
                out,
                rows: 5,
                act: Activation::Silu,
                limit: None,
                shift: None,
                bend: None,
                gate_bias: false,
                up_bias: false,
                strategy,
                pace: Pace::default(),
            };
            let (whole, part): (KernelSpec, KernelSpec) = (spec(block).into(), spec(band).into());
            let (of_whole, of_band) = (generate(&whole, target).unwrap(), generate(&part, target).unwrap());
            let dims = whole.dims_of_rows(rows);
            let inputs_of_whole = inputs::fill(&of_whole, Some(&whole), &dims, 0).unwrap();
            let [expected, other] = BEFORE.map(|before| results(&of_whole, &dims, &inputs_of_whole, before));

            let mut writers = vec![0; expected.len()];
            for number in 0..block / band {
                let dims: Vec<i64> = dims.iter().copied().chain([number.into()]).collect();
                let weight_bytes = (band * k) as usize / format.block_len() * format.block_bytes();
                let input = |(buffer, size): (&Buffer, usize)| {
                    let named = of_whole.buffers.iter().zip(&inputs_of_whole).find(|(of, _)| of.name == buffer.name);
                    let first = if size == weight_bytes { number as usize * weight_bytes } else { 0 };
                    let mut bytes = named.unwrap().1[first..].to_vec();
                    bytes.resize(size, 0);
                    bytes
                };
                let sizes = inputs::sizes(&of_band, &dims).unwrap();
                let inputs: Vec<Vec<u8>> = of_band.buffers.iter().zip(sizes).map(input).collect();
                let [a, b] = BEFORE.map(|before| results(&of_band, &dims, &inputs, before));
                for (at, (a, b)) in a.iter().zip(&b).enumerate().filter(|(_, (a, b))| a == b) {
                    writers[at] += 1;
                    assert_eq!((a, b), (&expected[at], &expected[at]), "{} band {number}: byte {at}", of_band.name);
                }
            }
            // Bytes between the blocks of two rows belong to other columns, so no kernel writes
            // them.
            let of_all: Vec<u32> = expected.iter().zip(&other).map(|(a, b)| u32::from(a == b)).collect();
            assert_eq!(writers, of_all, "{}", of_band.name);
        }
    }
}

#[test]
fn bands_consist_of_sub_blocks_and_divide_the_block() {
    let error = |tile: u32, out: &str| {
        let spec = format!("swiglu gate=q4_k up=q4_k k=256 tile={tile} n=512 out={out} rows=5 shape=gemv");
        generate(&spec.parse().unwrap(), Target::AVX2).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(error(32, "a8_super"), Ok(()));
    for (tile, out, expected) in [
        (16, "a8_super", "tile is 16, must be a multiple of 256, or a multiple of 32 that divides it"),
        (96, "a8_super", "tile is 96, must be a multiple of 256, or a multiple of 32 that divides it"),
        (16, "a8_small", "tile is 16, must be a multiple of 32, or a multiple of 32 that divides it"),
        (272, "a8_super", "row length is 272, must be a multiple of 256"),
    ] {
        let error = error(tile, out).unwrap_err();
        assert!(error.ends_with(expected), "{error}");
    }
}
