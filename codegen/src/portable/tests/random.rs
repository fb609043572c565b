//! Random kernels against the interpreter: nested loops, carried values, index loads, all ops together.

use ixc_ir::kernel::random::{random_buffers, random_dims, random_kernel};

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
