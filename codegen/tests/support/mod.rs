//! Runs a kernel row three ways and compares.

mod reference;

use half::f16;
use ixc_codegen::generators::generate;
use ixc_codegen::module::Module;
use ixc_codegen::target::Target;
use ixc_ir::format::Format;
use ixc_ir::graph::quantise::quantise;
use ixc_ir::kernel::{Atom, BufferKind, Kernel, interpret};
use ixc_ir::plan::KernelSpec;
use ixc_ir::plan::spec::{GEMM_ROWS, Shape};

/// A spec and the values of its dims.
pub struct Case {
    pub spec: KernelSpec,
    pub dims: Vec<i64>,
}

impl Case {
    /// A kernel without dims.
    pub fn one(spec: KernelSpec) -> Case {
        Case { spec, dims: Vec::new() }
    }

    /// A kernel with dims for so many rows (or blocks).
    pub fn rows(spec: KernelSpec, rows: u32) -> Case {
        let (rows, group) = (i64::from(rows), i64::from(GEMM_ROWS));
        let dims = match &spec {
            KernelSpec::Linear { shape: Shape::Gemm, .. } | KernelSpec::Swiglu { shape: Shape::Gemm, .. } => {
                vec![rows / group, rows % group]
            }
            _ => vec![rows],
        };
        Case { spec, dims }
    }
}

/// Pseudo-random numbers (splitmix64): the same in every run.
pub struct Random(u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In -1..1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float() * 2.0).collect()
    }
}

/// Bytes of floats.
pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Blocks with random quants and scales of ordinary size.
fn random_weights(random: &mut Random, format: Format, bytes: usize) -> Vec<u8> {
    let block_bytes = format.block_bytes();
    let mut data = vec![0u8; bytes / block_bytes * block_bytes];
    for block in data.chunks_exact_mut(block_bytes) {
        match format {
            Format::F32 => block.copy_from_slice(&random.float().to_le_bytes()),
            Format::F16 => block.copy_from_slice(&f16::from_f32(random.float()).to_le_bytes()),
            Format::Bf16 => block.copy_from_slice(&half::bf16::from_f32(random.float()).to_le_bytes()),
            _ => {
                block.fill_with(|| random.next() as u8);
                for field in format.row().fields.iter().filter(|f| matches!(f.name, "d" | "dmin")) {
                    let d = f16::from_f32(random.float() * 0.01);
                    block[field.offset..][..2].copy_from_slice(&d.to_le_bytes());
                }
            }
        }
    }
    data
}

fn activations(random: &mut Random, format: Format, bytes: usize) -> Vec<u8> {
    let n = bytes / format.block_bytes() * format.block_len();
    quantise(format, &random.floats(n))
}

/// Contents of a kernel's buffers before it runs: inputs by what the spec says they are, all else poisoned.
fn inputs(spec: &KernelSpec, kernel: &Kernel, dims: &[i64]) -> Vec<Vec<u8>> {
    let mut random = Random(
        spec.name().bytes().fold(dims.iter().sum::<i64>() as u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b))),
    );
    let evaluate = |a: &ixc_ir::kernel::Affine| {
        a.evaluate(|atom| match atom {
            Atom::Dim(d) => dims[d.index()],
            Atom::Var(_) => unreachable!("sizes vary with dims alone"),
        })
        .unwrap()
    };
    let of = |buffer: &ixc_ir::kernel::Buffer| -> Vec<u8> {
        let size = evaluate(&buffer.size).max(0) as usize;
        let weights = |random: &mut Random, format| random_weights(random, format, size);
        match (&buffer.kind, spec, buffer.name.as_str()) {
            (BufferKind::Index { below }, ..) => {
                let below = evaluate(below) as u64;
                (0..size / 4).flat_map(|_| ((random.next() % below) as u32).to_le_bytes()).collect()
            }
            (BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch, ..) => vec![0xa5; size],
            (BufferKind::Read, KernelSpec::Linear { format, .. }, "w") => weights(&mut random, *format),
            (BufferKind::Read, KernelSpec::Linear { x, .. }, "x") => activations(&mut random, *x, size),
            (BufferKind::Read, KernelSpec::Swiglu { gate, .. }, "gate") => weights(&mut random, *gate),
            (BufferKind::Read, KernelSpec::Swiglu { up, .. }, "up") => weights(&mut random, *up),
            (BufferKind::Read, KernelSpec::Swiglu { x, .. }, "x") => activations(&mut random, *x, size),
            (BufferKind::Read, KernelSpec::Embed { format, .. }, "table") => weights(&mut random, *format),
            (BufferKind::Read, KernelSpec::Attention { .. }, "keys" | "values") => {
                (0..size / 2).flat_map(|_| f16::from_f32(random.float() * 2.0).to_le_bytes()).collect()
            }
            (BufferKind::Read, KernelSpec::Attention { .. }, "position") => {
                // Inside the last block, so that some of its positions are masked.
                (dims[0] as i32 * 32 - 1 - (random.next() % 32) as i32).to_le_bytes().to_vec()
            }
            (BufferKind::Read, KernelSpec::Gather { .. }, _) => (0..size).map(|_| random.next() as u8).collect(),
            (BufferKind::Read, ..) => bytes_of(&random.floats(size / 4)),
        }
    };
    let mut of = of;
    kernel.buffers.iter().map(&mut of).collect()
}

/// Runs the case on the interpreter and every target, and compares.
pub fn run(case: Case) {
    let Case { spec, dims } = case;
    let name = spec.name();
    let kernel = generate(&spec, Target::AVX2).unwrap_or_else(|e| panic!("{name}: {e}"));
    let before = inputs(&spec, &kernel, &dims);
    let mut interpreted = before.clone();
    interpret::run(&kernel, &dims, &mut interpreted).unwrap_or_else(|e| panic!("{name} {dims:?}: interpreter: {e}"));
    reference::compare(&spec, &dims, &kernel, &before, &interpreted);
    for target in [Target::PORTABLE, Target::AVX2] {
        let missing = target.missing();
        if !missing.is_empty() {
            println!(
                "NOT RUN natively: {name}: {}: this machine lacks {}",
                target.name(),
                ixc_codegen::cpu::list(&missing)
            );
            continue;
        }
        let module = Module::compile(std::slice::from_ref(&kernel), target)
            .unwrap_or_else(|e| panic!("{name}: {}: {e}", target.name()));
        let mut native = before.clone();
        module.run_checked(0, &dims, &mut native).unwrap_or_else(|e| panic!("{name}: {}: {e}", target.name()));
        for (buffer, (a, b)) in kernel.buffers.iter().zip(interpreted.iter().zip(&native)) {
            if buffer.kind != BufferKind::Scratch {
                let at = a.iter().zip(b).position(|(a, b)| a != b);
                assert_eq!(at, None, "{name} {dims:?}: {}: first other byte of {}", target.name(), buffer.name);
            }
        }
    }
}
