//! Matrix products by tiles against f64: every format, rows around every block, columns around every chunk. The interpreter
//! and the machine code in the emulator must give the same bits.

use half::f16;
use ixc_codegen::x64;
use ixc_emulator::Program;
use ixc_emulator::memory::Slice;
use ixc_ir::format::{Codec, FORMATS, Float, Format, packed};
use ixc_ir::graph::quantise::quantise;
use ixc_ir::kernel::{BufferKind, Kernel, interpret, verify};
use ixc_ir::random::Random;
use ixc_kernels::{KernelSpec, Linear, MatmulStrategy, generate};
use ixc_targets::Target;

fn rows_of(random: &mut Random, format: Format, elements: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; elements / format.block_len() * format.block_bytes()];
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        block.fill_with(|| random.bits() as u8);
        match format.codec() {
            Codec::Float(Float::Bf16) => block.copy_from_slice(&half::bf16::from_f32(random.signed()).to_le_bytes()),
            Codec::Float(_) => block.copy_from_slice(&f16::from_f32(random.signed()).to_le_bytes()),
            Codec::Quants(quants) => {
                for (name, _) in quants.halves() {
                    let at = format.field(name);
                    block[at..at + 2].copy_from_slice(&f16::from_f32(random.signed() * 0.01).to_le_bytes());
                }
            }
            Codec::Bytes { .. } | Codec::TwoBf16 => unreachable!("{format} is no weight's format"),
        }
    }
    bytes
}

fn check(format: Format, x_format: Format, k: usize, tile: usize, rows: usize, bound: f64) {
    let mut random = Random::new((k * 1000 + tile * 100 + rows) as u64);
    let from = format.unpacked().unwrap();
    let weights = rows_of(&mut random, from, tile * k);
    let mut w = vec![0u8; tile * format.row_bytes(k as u64).unwrap() as usize];
    let (from_strip, strip) = (weights.len() / tile * 16, w.len() / tile * 16);
    for (rows, out) in weights.chunks_exact(from_strip).zip(w.chunks_exact_mut(strip)) {
        packed::pack(format, rows, out);
    }
    let mut exact = vec![0f32; tile * k];
    from.dequantise(&weights, &mut exact);
    let x: Vec<f32> = (0..rows * k).map(|_| random.signed() * 2.0).collect();
    let n = tile + 32;
    let spec: KernelSpec = Linear {
        format,
        x: x_format,
        k: k as u32,
        tile: tile as u32,
        n: n as u32,
        bias: true,
        residual: false,
        strategy: MatmulStrategy::Tiles,
    }
    .into();
    let kernel = generate(&spec, Target::AMX).unwrap_or_else(|e| panic!("{e}"));
    verify::verify(&kernel).unwrap_or_else(|e| panic!("{}: {e}", spec.name()));
    let scratch = kernel.buffers.last().unwrap().size.constant as usize;
    let bias: Vec<f32> = (0..tile).map(|_| random.signed()).collect();
    let mut buffers = vec![
        quantise(x_format, &x),
        w,
        bias.iter().flat_map(|b| b.to_le_bytes()).collect(),
        vec![0xa5; (rows - 1) * n * 4 + tile * 4],
        vec![0xa5; scratch],
    ];
    let dims = [rows / 32, rows % 32 / 16, rows % 16, usize::from(!rows.is_multiple_of(16))].map(|d| d as i64);
    let mut emulated = buffers.clone();
    interpret::run(&kernel, &dims, &mut buffers).unwrap_or_else(|e| panic!("{}: {e}", spec.name()));
    emulate(&kernel, &dims, &mut emulated);
    assert_eq!(emulated[3], buffers[3], "{} at {rows} rows: emulated and interpreted", spec.name());
    for r in 0..rows {
        for c in 0..tile {
            let at = (r * n + c) * 4;
            let y = f32::from_le_bytes(buffers[3][at..at + 4].try_into().unwrap());
            let products = x[r * k..][..k].iter().zip(&exact[c * k..][..k]);
            let (sum, magnitude) = products.fold((0.0, 0.0), |(sum, magnitude), (x, w)| {
                let product = f64::from(*x) * f64::from(*w);
                (sum + product, magnitude + product.abs())
            });
            let right = sum + f64::from(bias[c]);
            let error = (f64::from(y) - right).abs();
            assert!(
                error <= bound * (magnitude + 1.0),
                "{} at {rows} rows: y[{r}, {c}] = {y}, not {right}: {error} of {magnitude}",
                spec.name()
            );
        }
    }
}

/// Runs the machine code of a kernel in the emulator.
fn emulate(kernel: &Kernel, dims: &[i64], buffers: &mut [Vec<u8>]) {
    let compiled = x64::compile(kernel, Target::AMX).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
    let code = [compiled.code.as_slice(), &compiled.constants].concat();
    let program = Program::new(&code, compiled.code_bytes, Target::AMX.features()).unwrap_or_else(|e| panic!("{e}"));
    let slices: Vec<Slice<'_>> = buffers
        .iter_mut()
        .zip(&kernel.buffers)
        .map(|(bytes, buffer)| match buffer.kind {
            BufferKind::Read => Slice::read(&buffer.name, bytes),
            _ => Slice::write(&buffer.name, bytes),
        })
        .collect();
    program.call(&slices, dims).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
}

/// Both factors are rounded to bf16, each by up to 2^-9; sums in f32 add little.
const BF16: f64 = 2.1 / 512.0;
/// Of two bf16 each, without the product of both low parts: 2^-16 for what is left of either factor, and the sum's roundings.
const TWICE: f64 = 1.0 / 16384.0;

#[test]
fn products_by_tiles_are_right_in_every_format() {
    let mut checked = 0;
    for format in FORMATS.iter().map(|row| row.format) {
        let Some(x) = format.tile_activation() else { continue };
        let bound = if format.is_quantised() { BF16 } else { TWICE };
        checked += 1;
        for (k, tile, rows) in [
            (256, 32, 1),
            (256, 64, 17),
            (768, 64, 49),
            (1280, 32, 33),
            (512, 96, 16),
            (256, 32, 32),
            (1024, 32, 95),
            (512, 160, 33),
        ] {
            check(format, x, k, tile, rows, bound);
        }
    }
    assert!(checked > 6, "{checked} formats");
    for k in [64, 192, 320] {
        check(Format::Q8_0R16, Format::A8SmallTile, k, 32, 19, BF16);
        check(Format::F16R16, Format::Bf16x2, k, 32, 19, TWICE);
    }
}

/// Nothing is spilled, and tiles are configured and released once. What is moved are quants on their way into mantissas: a `vpternlogd` writes over
/// one of its three operands, all of which are needed again, and a move takes no port.
#[test]
fn code_by_tiles_is_tight() {
    let spec: KernelSpec = Linear {
        format: Format::Q4KR16,
        x: Format::A8SuperTile,
        k: 2048,
        tile: 64,
        n: 2048,
        bias: false,
        residual: false,
        strategy: MatmulStrategy::Tiles,
    }
    .into();
    let kernel = generate(&spec, Target::AMX).unwrap();
    let compiled = x64::compile(&kernel, Target::AMX).unwrap_or_else(|e| panic!("{e}"));
    let text = x64::listing::text(&compiled, &kernel);
    println!("{text}\n{:?}", compiled.stats);
    assert_eq!((compiled.stats.vector_spills, compiled.stats.gpr_spills), (0, 0));
    assert!(compiled.stats.moves_in_innermost_loops <= text.matches("vpternlogd").count(), "{:?}", compiled.stats);
    for once in ["ldtilecfg", "tilerelease"] {
        assert_eq!(text.matches(once).count(), 1, "{once}");
    }
}
