//! Random kernels against the interpreter: nested loops, carried values, index loads and all ops.

use ixc_testing::random_kernels::{KernelOptions, random_buffers, random_dims, random_kernel, random_kernel_with};

use super::*;

#[test]
fn random_kernels_agree_with_the_interpreter() {
    for seed in 0..150 {
        let kernel = random_kernel(seed, if seed % 2 == 0 { 32 } else { 64 });
        for run in 0..3 {
            let dims = random_dims(&kernel, seed + run);
            agree(&kernel, &random_buffers(&kernel, &dims, seed + run), &dims, Compare::Bytes);
        }
    }
}

#[test]
fn portable_refuses_tile_ops_by_name() {
    let mut refused = Vec::new();
    for seed in 0..60 {
        let kernel = random_kernel_with(seed, KernelOptions { widest: 64, tiles: true, has: |_| true });
        verify::verify(&kernel).unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
        match compile(&kernel) {
            Err(PortableError::Unsupported { op, ty, .. }) => {
                assert!(op.starts_with("tile_") && ty.is_tile(), "{op} {ty}");
                refused.push(op);
            }
            Ok(_) => assert!(!kernel.values.iter().any(|ty| ty.is_tile()), "{kernel}"),
            Err(error) => panic!("{error}"),
        }
    }
    refused.sort();
    refused.dedup();
    assert_eq!(refused, ["tile_load", "tile_zero"], "the first tile of a kernel is loaded or zero");
}
