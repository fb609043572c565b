//! Matrix products by tiles, compared with f64: every format, row counts around every block size,
//! column counts around every chunk size. Attention by tiles: heads that fill tiles and heads that
//! do not, row counts around every unit, positions around every run. The interpreter and the
//! machine code in the emulator must give the same bits.

use half::f16;
use ixc_codegen::x64;
use ixc_emulator::Program;
use ixc_emulator::memory::Slice;
use ixc_ir::cache::Codes;
use ixc_ir::format::{Codec, FORMATS, Float, Format, packed, requantise};
use ixc_ir::graph::quantise::quantise_rows;
use ixc_ir::kernel::{BufferKind, Kernel, interpret, verify};
use ixc_ir::plan::{ATTENTION_BLOCK, KEY_LANES};
use ixc_ir::random::Random;
use ixc_kernels::generator::reference;
use ixc_kernels::{AttentionTiles, Bits, Cache, Heads, KernelSpec, Linear, MatmulStrategy, Scores, generate};
use ixc_targets::Target;

fn rows_of(random: &mut Random, format: Format, elements: usize, row_len: usize) -> Vec<u8> {
    if format.has_row_scale() {
        let x: Vec<f32> = (0..elements).map(|_| random.signed()).collect();
        return requantise::of_floats(format, &x, row_len);
    }
    let mut bytes = vec![0u8; elements / format.block_len() * format.block_bytes()];
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        block.fill_with(|| random.bits() as u8);
        match format.codec() {
            Codec::Float(Float::Bf16) => block.copy_from_slice(&half::bf16::from_f32(random.signed()).to_le_bytes()),
            Codec::Float(_) => block.copy_from_slice(&f16::from_f32(random.signed()).to_le_bytes()),
            Codec::Quants(quants) => {
                for (name, ..) in quants.numbers() {
                    format.put(name, random.signed() * 0.01, block);
                }
            }
            Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => unreachable!("{format} is no weight's format"),
        }
    }
    bytes
}

fn check(format: Format, x_format: Format, k: usize, tile: usize, rows: usize, bound: f64) {
    // Checks the products with and without a bias.
    for bias in [true, false] {
        check_with(format, x_format, [k, tile, rows], bias, bound);
    }
}

fn check_with(format: Format, x_format: Format, [k, tile, rows]: [usize; 3], has_bias: bool, bound: f64) {
    let mut random = Random::new((k * 1000 + tile * 100 + rows) as u64);
    let from = format.unpacked_format().unwrap();
    let weights = rows_of(&mut random, from, tile * k, k);
    let mut w = vec![0u8; tile * format.row_bytes(k as u64).unwrap() as usize];
    let (from_strip, strip) = (weights.len() / tile * 16, w.len() / tile * 16);
    for (rows, out) in weights.chunks_exact(from_strip).zip(w.chunks_exact_mut(strip)) {
        packed::pack(format, rows, out);
    }
    let exact = from.dequantise_rows(&weights, k);
    let x: Vec<f32> = (0..rows * k).map(|_| random.signed() * 2.0).collect();
    let n = tile + 32;
    let spec_by = |strategy| -> KernelSpec {
        let [k, tile, n] = [k, tile, n].map(|n| n as u32);
        Linear {
            format,
            x: x_format,
            k,
            tile,
            n,
            bias: has_bias,
            residual: false,
            strategy,
            pace: ixc_kernels::Pace::default(),
        }
        .into()
    };
    let spec = spec_by(MatmulStrategy::Tiles);
    let kernel = generate(&spec, Target::AMX).unwrap_or_else(|e| panic!("{e}"));
    verify::verify(&kernel).unwrap_or_else(|e| panic!("{}: {e}", spec.name()));
    let scratch = kernel.buffers.last().unwrap().size.constant as usize;
    let bias: Vec<f32> = (0..tile).map(|_| if has_bias { random.signed() } else { 0.0 }).collect();
    let mut buffers = vec![quantise_rows(x_format, &x, k), w];
    if has_bias {
        buffers.push(bias.iter().flat_map(|b| b.to_le_bytes()).collect());
    }
    let result = buffers.len();
    buffers.extend([vec![0xa5; (rows - 1) * n * 4 + tile * 4], vec![0xa5; scratch]]);
    let dims = [rows / 32, rows % 32 / 16, rows % 16, usize::from(!rows.is_multiple_of(16))].map(|d| d as i64);
    let (mut emulated, mut by_vectors) = (buffers.clone(), buffers[..=result].to_vec());
    interpret::run(&kernel, &dims, &mut buffers).unwrap_or_else(|e| panic!("{}: {e}", spec.name()));
    emulate(&kernel, &dims, &mut emulated);
    assert_eq!(emulated[result], buffers[result], "{} at {rows} rows: emulated and interpreted", spec.name());
    if format.has_row_scale() {
        // Integer sums are exact in any order, so the bits of two kernels must be equal.
        let spec = spec_by(MatmulStrategy::Gemv);
        let kernel = generate(&spec, Target::AVX2).unwrap_or_else(|e| panic!("{e}"));
        let dims = spec.dims_of_rows(rows as u32);
        interpret::run(&kernel, &dims, &mut by_vectors).unwrap_or_else(|e| panic!("{}: {e}", spec.name()));
        assert_eq!(by_vectors[result], buffers[result], "{} at {rows} rows: vectors and tiles", spec.name());
    }
    for r in 0..rows {
        for c in 0..tile {
            let at = (r * n + c) * 4;
            let y = f32::from_le_bytes(buffers[result][at..at + 4].try_into().unwrap());
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

/// Relative error bound for products in bf16. A weight is truncated to bf16 (up to 2^-7), and an
/// activation rounded (up to 2^-8). The error of sums in f32 is small.
const BF16: f64 = 6.1 / 512.0;
/// Error bound for 8-bit activations: half a step, with 127 steps up to a row's largest element.
/// Elements are half as large as that on average.
const BYTES: f64 = 1.0 / 127.0;
/// Error bound if both factors are split into two bf16 each, and the product of the two low parts
/// is omitted. The error is 2^-16 for the remainder of either factor, plus the rounding of the sum.
const TWICE: f64 = 1.0 / 16384.0;

#[test]
fn tile_products_are_correct_in_every_format() {
    let mut checked = 0;
    for format in FORMATS.iter().map(|row| row.format) {
        let Some(x) = format.tile_activation() else { continue };
        let bound = match x {
            Format::Bf16x2 => TWICE,
            Format::A8Row => BYTES,
            _ => BF16,
        };
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
    // Tests several chunks of columns, and columns that remain after the last chunk.
    check(Format::Q4KR16, Format::A8SuperTile, 2 * 4096 + 256, 64, 17, BF16);
    check(Format::Q6KR16, Format::A8SuperTile, 8192 + 256, 32, 33, BF16);
    check(Format::Q8_0R16, Format::A8SmallTile, 4096 + 64, 64, 16, BF16);
    check(Format::F16R16, Format::Bf16x2, 2048 + 32, 64, 1, TWICE);
    for k in [64, 192, 320] {
        check(Format::Q8_0R16, Format::A8SmallTile, k, 32, 19, BF16);
        check(Format::F16R16, Format::Bf16x2, k, 32, 19, TWICE);
    }
}

/// Checks that nothing is spilled, and that tiles are configured and released once. Moves are
/// allowed where quantised values are put into mantissas: a `vpternlogd` overwrites one of its
/// three operands, and each operand has later uses. A move takes no execution port.
#[test]
fn tile_product_code_has_no_spills() {
    let spec: KernelSpec = Linear {
        format: Format::Q4KR16,
        x: Format::A8SuperTile,
        k: 2048,
        tile: 64,
        n: 2048,
        bias: false,
        residual: false,
        strategy: MatmulStrategy::Tiles,
        pace: ixc_kernels::Pace::default(),
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

/// A test sequence for attention: queries of all heads, keys and values.
struct Sequence {
    spec: AttentionTiles,
    kernel: Kernel,
    q: Vec<u8>,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Sequence {
    fn new(spec: AttentionTiles, positions: usize) -> Sequence {
        let AttentionTiles { heads: Heads { group, d, dv }, key_heads: heads, .. } = spec;
        let mut random = Random::new(u64::from(group * 1000 + d * 10 + dv));
        let floats = |random: &mut Random, n: u32| -> Vec<u8> {
            (0..n).flat_map(|_| (random.signed() * 2.0).to_le_bytes()).collect()
        };
        let kernel = generate(&spec.into(), Target::AMX).unwrap_or_else(|e| panic!("{e}"));
        verify::verify(&kernel).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
        let capacity = positions.next_multiple_of(ATTENTION_BLOCK as usize);
        // Positions that no row may see get large values.
        let halves = |random: &mut Random, seen: usize, all: usize| -> Vec<u8> {
            let of = |i: usize, x: f32| f16::from_f32(if i < seen { x * 2.0 } else { x * 60000.0 });
            (0..all).flat_map(|i| of(i, random.signed()).to_le_bytes()).collect()
        };
        let field = |random: &mut Random, format: Format, width: usize| match Codes::from_format(format) {
            None => halves(random, positions * width, capacity * width),
            Some(codes) => {
                let mut bytes: Vec<u8> =
                    (0..capacity * width / codes.len * format.block_bytes()).map(|_| random.bits() as u8).collect();
                for (i, panel) in bytes.chunks_exact_mut(codes.panel()).enumerate() {
                    let first = i / (width / codes.len) * KEY_LANES as usize;
                    for (lane, d) in panel[..codes.first()].chunks_exact_mut(2).enumerate() {
                        let x = if first + lane < positions { 2.0 / -codes.least as f32 } else { 60000.0 };
                        d.copy_from_slice(&f16::from_f32(random.signed() * x).to_le_bytes());
                    }
                }
                bytes
            }
        };
        let keys = field(&mut random, spec.cache.keys, d as usize);
        let values = field(&mut random, spec.cache.values, dv as usize);
        Sequence { spec, kernel, q: floats(&mut random, positions as u32 * heads * group * d), keys, values }
    }

    /// Computes the result of an item of `rows` rows from position `first` on. Checks that
    /// interpreter, emulator and formula agree.
    fn attend(&self, first: usize, rows: usize) -> Vec<u8> {
        let AttentionTiles { heads: Heads { group, d, dv }, key_heads: heads, .. } = self.spec;
        let block = ATTENTION_BLOCK as usize;
        let dims = self.spec.dims(first as u64..(first + rows) as u64);
        // With a window, the buffers begin with the first block that the first row sees.
        let seen = self.spec.window.map_or(0, |window| (first + 1).saturating_sub(window as usize));
        let blocks = seen / block..(first + rows - 1) / block + 1;
        let cache = |bytes: &[u8], format: Format, n: usize, at: &dyn Fn(usize, usize) -> usize| {
            let row = format.row_bytes(n as u64).unwrap() as usize;
            let mut part = bytes[blocks.start * block * row..blocks.end * block * row].to_vec();
            // Positions that no row may see get large elements, or large scales of blocks.
            for (position, i) in (0..seen % block).flat_map(|p| (0..n / format.block_len()).map(move |i| (p, i))) {
                let lanes = KEY_LANES as usize;
                let place = match Codes::from_format(format) {
                    None => at(position, i) * 2,
                    Some(codes) => (position / lanes * (n / codes.len) + i) * codes.panel() + position % lanes * 2,
                };
                part[place..][..2].copy_from_slice(&f16::from_f32(60000.0).to_le_bytes());
            }
            part
        };
        let (keys_at, values_at) =
            (|p: usize, e: usize| (p / 16 * d as usize + e) * 16 + p % 16, |p: usize, e: usize| p * dv as usize + e);
        let extent = |n: u32| ((rows - 1) * (heads * group * n) as usize + (group * n) as usize) * 4;
        let scratch = self.kernel.buffers.last().unwrap().size.constant as usize;
        let mut before = vec![
            self.q[first * (heads * group * d) as usize * 4..][..extent(d)].to_vec(),
            (first..first + rows).flat_map(|position| (position as i32).to_le_bytes()).collect(),
            cache(&self.keys, self.spec.cache.keys, d as usize, &keys_at),
            cache(&self.values, self.spec.cache.values, dv as usize, &values_at),
        ];
        // Slopes of the first heads, which decrease.
        let slopes = (0..group).flat_map(|h| (-1.5 - 0.5 * h as f32).exp2().to_le_bytes()).collect();
        before.extend(self.spec.scores.slopes.then_some(slopes));
        before.extend([
            vec![0xa5; extent(dv)],
            // Fills scratch memory with NaN, which is NaN both as bf16 and as f32.
            vec![0xff; scratch],
        ]);
        let result = before.len() - 2;
        let (mut after, mut emulated) = (before.clone(), before.clone());
        let what = || format!("{} of {rows} rows at {first}", self.kernel.name);
        interpret::run(&self.kernel, &dims, &mut after).unwrap_or_else(|e| panic!("{}: {e}", what()));
        emulate(&self.kernel, &dims, &mut emulated);
        assert_eq!(emulated[result], after[result], "{}: emulated and interpreted", what());
        let run = reference::Run { kernel: &self.kernel, dims: &dims, before: &before, after: &after };
        KernelSpec::from(self.spec).reference(&run).unwrap_or_else(|e| panic!("{}: {e}", what()));
        after.swap_remove(result)
    }
}

fn attention([group, d, dv]: [u32; 3], key_heads: u32, rows: u32, exact: bool) -> AttentionTiles {
    let rows = rows.next_multiple_of(AttentionTiles::unit(group));
    AttentionTiles {
        heads: Heads { group, d, dv },
        scores: Scores::with_scale(1.0 / f64::from(d).sqrt()),
        key_heads,
        rows,
        exact,
        window: None,
        chunked: false,
        both: false,
        cache: Cache::default(),
    }
}

#[test]
fn tile_attention_is_correct_for_all_shapes() {
    for (sizes, heads) in [([1, 64, 64], 2), ([3, 80, 80], 1), ([8, 128, 128], 1), ([5, 33, 40], 2), ([2, 7, 5], 1)] {
        for exact in [false, true] {
            let sequence = Sequence::new(attention(sizes, heads, 70, exact), 260);
            for (first, rows) in [(0, 1), (0, 17), (127, 33), (95, 70), (190, 70)] {
                if sizes[0] * sizes[1] * rows < 35_000 {
                    sequence.attend(first as usize, rows as usize);
                }
            }
        }
    }
}

#[test]
fn tile_attention_over_quantised_cache_is_correct() {
    for (keys, values) in [(Format::Q8_0, Format::Q8_0), (Format::Q4_0, Format::Q8_0), (Format::F16, Format::Q4_0)] {
        for (sizes, window) in [([8, 64, 64], None), ([2, 32, 96], Some(40)), ([3, 96, 32], Some(290))] {
            for exact in [false, true] {
                let cache = Cache { keys, values };
                let sequence = Sequence::new(AttentionTiles { window, cache, ..attention(sizes, 2, 70, exact) }, 420);
                let row = (2 * sizes[0] * sizes[2] * 4) as usize;
                let whole = sequence.attend(290, 24);
                for (first, rows) in [(0, 17), (290, 1), (293, 9)] {
                    let part = sequence.attend(first, rows);
                    if let Some(before) = first.checked_sub(290) {
                        assert_eq!(part, &whole[before * row..][..part.len()], "{rows} rows at {first}");
                    }
                }
            }
        }
    }
}

/// Tests windows shorter than a block, shorter than the rows of an item, and longer than both. Also
/// tests windows with and without full runs, and sequences shorter than the window.
#[test]
fn tile_attention_over_windows_is_correct() {
    let mut seen = [false; 5];
    for (window, sizes) in
        [(1, [4, 32, 16]), (20, [3, 16, 24]), (40, [2, 7, 5]), (128, [8, 64, 64]), (290, [2, 32, 16])]
    {
        for exact in [false, true] {
            let spec = AttentionTiles { window: Some(window), ..attention(sizes, 2, 160, exact) };
            let sequence = Sequence::new(spec, 720);
            for (first, rows) in [(0u64, 17u64), (126, 3), (300, 160), (500, 33), (687, 33)] {
                if u64::from(sizes[0] * sizes[1]) * rows < 20_000 {
                    let dims = spec.dims(first..first + rows);
                    seen.iter_mut().zip(&dims[1..]).for_each(|(seen, dim)| *seen |= *dim > 0);
                    sequence.attend(first as usize, rows as usize);
                }
            }
        }
    }
    assert_eq!(seen, [true; 5], "lead, head, full, masked and rest");
}

/// Tests chunks as long as a run, shorter and longer, with rows of one and of two chunks, and
/// capped scores.
#[test]
fn tile_attention_over_chunks_with_caps_is_correct() {
    for (chunk, sizes) in [(32, [3, 16, 24]), (128, [8, 64, 64]), (256, [2, 32, 16])] {
        for (exact, cap) in [(false, None), (true, Some(Bits::from_value(0.75))), (false, Some(Bits::from_value(0.75)))]
        {
            let of = attention(sizes, 2, 160, exact);
            let of = AttentionTiles { scores: Scores { cap, ..of.scores }, ..of };
            let sequence = Sequence::new(AttentionTiles { window: Some(chunk), chunked: true, ..of }, 720);
            let all = Sequence::new(of, 720);
            for (first, rows) in [(0u64, 17u64), (126, 3), (255, 1), (300, 160), (500, 33)] {
                if u64::from(sizes[0] * sizes[1]) * rows < 20_000 {
                    sequence.attend(first as usize, rows as usize);
                    all.attend(first as usize, rows as usize);
                }
            }
        }
    }
}

/// Tests scores that decrease with distance: alone, capped, within windows and chunks, and over
/// blocks. A row's result depends on no other row.
#[test]
fn tile_attention_with_slopes_is_correct() {
    let blocks = Cache { keys: Format::Q8_0, values: Format::Q4_0 };
    for (sizes, window, chunked, cap, cache) in [
        ([1, 64, 64], None, false, None, Cache::default()),
        ([3, 16, 24], None, false, Some(Bits::from_value(0.75)), Cache::default()),
        ([2, 32, 16], Some(290), false, None, Cache::default()),
        ([8, 64, 64], Some(128), true, None, Cache::default()),
        ([2, 32, 96], None, false, None, blocks),
    ] {
        for exact in [false, true] {
            let of = attention(sizes, 2, 70, exact);
            let scores = Scores { slopes: true, cap, ..of.scores };
            let sequence = Sequence::new(AttentionTiles { scores, window, chunked, cache, ..of }, 720);
            let row = (2 * sizes[0] * sizes[2] * 4) as usize;
            let whole = sequence.attend(490, 40);
            for (first, rows) in [(0, 17), (127, 33), (490, 1), (500, 25), (513, 3), (650, 32)] {
                let part = sequence.attend(first, rows);
                // As with windows, the buffers of a chunked item begin at a block that depends on
                // the item, so results are not compared.
                if let Some(before) = first.checked_sub(490).filter(|before| !chunked && before + rows <= 40) {
                    assert_eq!(part, &whole[before * row..][..part.len()], "{rows} rows at {first}");
                }
            }
        }
    }
}

/// Checks that the result does not depend on the first row of the item, and thus on the first
/// block.
#[test]
fn windowed_tile_attention_rows_are_independent() {
    for window in [30, 290] {
        let spec = AttentionTiles { window: Some(window), ..attention([2, 32, 16], 1, 160, false) };
        let sequence = Sequence::new(spec, 700);
        let whole = sequence.attend(500, 160);
        let row = 2 * 16 * 4;
        for (first, rows) in [(500, 1), (523, 32), (543, 2), (640, 1), (655, 5)] {
            let part = sequence.attend(first, rows);
            assert_eq!(part, &whole[(first - 500) * row..][..rows * row], "{rows} rows at {first}, window {window}");
        }
    }
}

/// Checks that the result does not depend on the item's first row or number of rows. Items have
/// masked and unmasked rows, in whole units and in a partial one.
#[test]
fn tile_attention_rows_are_independent() {
    for exact in [false, true] {
        let sequence = Sequence::new(attention([2, 32, 16], 1, 80, exact), 300);
        let whole = sequence.attend(200, 80);
        let row = 2 * 16 * 4;
        for (first, rows) in [(200, 1), (223, 32), (254, 1), (255, 1), (255, 25), (256, 3), (279, 1)] {
            let part = sequence.attend(first, rows);
            assert_eq!(part, &whole[(first - 200) * row..][..rows * row], "{rows} rows at {first}");
        }
    }
}

/// Checks that nothing is spilled, as for products with weights.
#[test]
fn tile_attention_code_has_no_spills() {
    for (exact, window) in [(false, None), (true, None), (false, Some(128)), (true, Some(1024))] {
        let spec = AttentionTiles { window, ..attention([8, 128, 128], 4, 32, exact) };
        let kernel = generate(&spec.into(), Target::AMX).unwrap();
        let compiled = x64::compile(&kernel, Target::AMX).unwrap_or_else(|e| panic!("{e}"));
        println!("{:?}", compiled.stats);
        assert_eq!(compiled.stats.vector_spills, 0);
    }
}
