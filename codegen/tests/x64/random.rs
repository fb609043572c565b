//! Random kernels against the interpreter, bit for bit: any ops, nested loops, carried values,
//! index loads and addresses of all shapes. `IXC_TEST_SEED=n` runs one seed and prints its listing.

use ixc_codegen::x64::listing;
use ixc_ir::kernel::{Kernel, interpret};
use ixc_targets::Target;
use ixc_testing::random_kernels::{KernelOptions, random_buffers, random_dims, random_kernel_with};

use super::native::{Engine, has_lowering, targets};

/// Seed of the first random kernel.
const SEED: u64 = 0x71e5;
/// Number of seeds; each seed gives one kernel.
const KERNELS: u64 = 300;
#[test]
fn random_x64_kernels_match_the_interpreter() {
    for target in targets() {
        println!("{}", target.name());
        compare(target);
    }
}

fn compare(target: Target) {
    let one = std::env::var("IXC_TEST_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds: Vec<u64> = one.map_or_else(|| (SEED..SEED + KERNELS).collect(), |seed| vec![seed]);
    println!("seeds {SEED} and the {KERNELS} after it");
    let options = KernelOptions { widest: target.isa().vector_bytes, tiles: false, has: has_lowering };
    let kernels: Vec<Kernel> = seeds.iter().map(|&seed| random_kernel_with(seed, options)).collect();
    let native = Engine::new(&kernels, target);
    let (mut spilled, mut gprs, mut rematerialised) = (0, 0, 0);
    for (i, (&seed, kernel)) in seeds.iter().zip(&kernels).enumerate() {
        if let Some(compiled) = native.compiled(i) {
            spilled += usize::from(compiled.stats.vector_spills > 0);
            gprs += usize::from(compiled.stats.gpr_spills > 0);
            rematerialised += usize::from(compiled.stats.rematerialised > 0);
            if one.is_some() {
                println!("{}", listing::text(compiled, kernel));
            }
        }
        for (round, &guard) in native.guards().iter().enumerate() {
            let at = seed.wrapping_mul(3) + round as u64;
            let dims = random_dims(kernel, at);
            let buffers = random_buffers(kernel, &dims, at);
            let (mut right, mut got) = (buffers.clone(), buffers);
            interpret::run(kernel, &dims, &mut right)
                .unwrap_or_else(|e| panic!("IXC_TEST_SEED={seed}, {target:?}: {e}"));
            native.run(i, kernel, &dims, &mut got, guard);
            for (b, (got, right)) in got.iter().zip(&right).enumerate() {
                let at = got.iter().zip(right).position(|(a, b)| a != b);
                assert_eq!(
                    at, None,
                    "IXC_TEST_SEED={seed}, {target:?}, dims {dims:?}: buffer %{} differs",
                    kernel.buffers[b].name
                );
            }
        }
    }
    println!(
        "{spilled} kernels with spilled vectors, {gprs} with spilled integers, {rematerialised} with constants read at \
         each use"
    );
}
