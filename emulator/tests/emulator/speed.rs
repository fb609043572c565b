//! Measurement of the speed of emulating generated kernels. The speed is printed and not checked,
//! because times differ between machines. The results of the kernels are compared with those of the
//! interpreter.

use ixc_kernels::{AttentionPart, Bits, Cache, Heads, KernelSpec, Linear, MatmulStrategy, RmsNorm, Scores, generate};
use std::time::Instant;

use ixc_ir::format::Format;
use ixc_ir::kernel::{Atom, BufferKind, Kernel, interpret};
use ixc_targets::Target;

use super::compiled::{call, decoded};
use ixc_ir::random::Random;

fn linear(format: Format, strategy: MatmulStrategy) -> KernelSpec {
    let x = format.activation();
    Linear {
        format,
        x,
        k: 512,
        tile: 16,
        n: 64,
        bias: false,
        residual: false,
        strategy,
        pace: ixc_kernels::Pace::default(),
    }
    .into()
}

/// Returns bytes for all buffers that are ordinary numbers. As halves or as floats, they are
/// between 0.03 and 1.
fn buffers(kernel: &Kernel, dims: &[i64]) -> Vec<Vec<u8>> {
    let mut random = Random::new(5);
    let sizes = kernel.buffers.iter().map(|b| {
        let size = b.size.evaluate(|atom| match atom {
            Atom::Dim(d) => dims[d.index()],
            Atom::Var(_) => unreachable!("sizes vary with dims alone"),
        });
        (b, size.unwrap().max(0) as usize)
    });
    sizes
        .map(|(b, size)| match b.kind {
            BufferKind::Index { .. } => vec![0; size],
            _ if b.name == "position" => 40_i32.to_le_bytes().to_vec(),
            _ => (0..size).map(|_| 0x38 + random.index(4) as u8).collect(),
        })
        .collect()
}

#[test]
fn emulation_speed_of_generated_kernels_is_printed() {
    let specs = [
        (linear(Format::Q4K, MatmulStrategy::Gemv), vec![0, 1]),
        (linear(Format::Q4K, MatmulStrategy::Gemm), vec![2, 0, 0]),
        (linear(Format::Q8_0, MatmulStrategy::Gemm), vec![2, 0, 0]),
        (linear(Format::F16, MatmulStrategy::Gemv), vec![0, 1]),
        (
            AttentionPart {
                heads: Heads { group: 4, d: 64, dv: 64 },
                scores: Scores::with_scale(0.125),
                cache: Cache::default(),
            }
            .into(),
            vec![1, 1, 0],
        ),
        (RmsNorm { n: 2048, eps: Bits::from_value(1e-6), out: Format::A8Super, plain: false }.into(), vec![]),
    ];
    for target in [Target::AVX2, Target::AVX512] {
        for (spec, dims) in &specs {
            let kernel = generate(spec, target).unwrap_or_else(|e| panic!("{}: {e}", spec.name()));
            let program = decoded(&kernel, target);
            let before = buffers(&kernel, dims);
            let mut right = before.clone();
            interpret::run(&kernel, dims, &mut right).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
            let (mut instructions, mut fastest) = (0, f64::INFINITY);
            for _ in 0..10 {
                let (mut got, start) = (before.clone(), Instant::now());
                instructions =
                    call(&program, &kernel, dims, &mut got).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
                fastest = fastest.min(start.elapsed().as_secs_f64());
                for (b, (got, right)) in kernel.buffers.iter().zip(got.iter().zip(&right)) {
                    assert!(b.kind == BufferKind::Scratch || got == right, "{}: %{} differs", kernel.name, b.name);
                }
            }
            let mips = instructions as f64 / fastest / 1e6;
            println!("{:60} {instructions:9} instructions, {mips:6.1} million a second", kernel.name);
        }
    }
}
