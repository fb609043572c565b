//! Turns one line of specification into machine code: `cargo run --release --example kernels`.
//!
//! A generator makes kernel IR, and the IR is compiled for every target that this machine supports.
//! All targets give the same numbers. `ixc dump --stage kernel` and `--stage asm` show the same for
//! a whole model.

use ixc::codegen::module::Module;
use ixc::compile::assembly;
use ixc::kernels::{Elementwise, KernelSpec, Map, generate};
use ixc::targets::Target;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let spec = KernelSpec::from(Map { function: Elementwise::Silu, n: 12 });
    let numbers: Vec<f32> = (0..12).map(|i| i as f32 - 6.0).collect();
    for target in Target::all().filter(|target| target.missing().is_empty()) {
        let kernel = generate(&spec, target)?;
        println!("{kernel}");
        println!("{}", assembly([&kernel], target)?);

        let module = Module::compile(&[kernel], target)?;
        let input = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut buffers = [input, vec![0; 4 * numbers.len()]];
        module.run_checked(0, &[], &mut buffers)?;
        let output: Vec<f32> = buffers[1].as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
        println!("{}: silu({numbers:?}) = {output:?}\n", target.name());
    }
    Ok(())
}
