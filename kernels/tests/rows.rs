//! Tests that a row of activations has the same products alone and in a batch, with kernels for few
//! rows and for many rows. A row's bits must not depend on the other rows of its batch.

use ixc_ir::format::packed::STRIP;
use ixc_ir::format::{FORMATS, Format};
use ixc_ir::kernel::{Kernel, interpret};
use ixc_kernels::catalogue::inputs;
use ixc_kernels::{KernelSpec, Linear, MatmulStrategy, Pace, generate};
use ixc_targets::Target;

/// Number of rows. A kernel for many rows divides them into a group of eight, a group of four, and
/// a single row.
const ROWS: u32 = 13;
/// Index of one row in each of these three groups.
const ALONE: [usize; 3] = [0, 9, 12];
/// Numbers of blocks of a row: one, an even number, an odd number, and a number that is larger than
/// kernels unpack at once, with an odd remainder.
const BLOCKS: [u32; 5] = [1, 2, 3, 5, 19];

/// Returns each weight format with each activation format for which a row's sums do not depend on
/// the kernel. For float weights, this is only bf16 in pairs: with f32, `gemv` and `gemm` add in
/// different orders.
fn pairs() -> impl Iterator<Item = (Format, Format)> {
    let weights = FORMATS.iter().map(|row| row.format).filter(|format| format.is_weight());
    weights.flat_map(|format| {
        let own = format.activation();
        let forms = match format.is_quantised() {
            true => [Some(own), own.row().tiles],
            false => [None, format.pair_activation()],
        };
        forms.into_iter().flatten().map(move |x| (format, x))
    })
}

/// Returns one target for each kind of vector instructions.
fn targets() -> Vec<Target> {
    let mut targets: Vec<Target> = Vec::new();
    for target in Target::all() {
        let vectors = |target: Target| {
            (target.isa().vector_bytes, target.isa().tile_registers, target.has_dot4(), target.permutes_bytes())
        };
        if targets.iter().all(|other| vectors(*other) != vectors(target)) {
            targets.push(target);
        }
    }
    targets
}

/// A generated kernel that multiplies rows by a weight, with its spec.
struct Product {
    kernel: Kernel,
    spec: KernelSpec,
}

impl Product {
    fn new(linear: Linear, target: Target) -> Product {
        let spec: KernelSpec = linear.into();
        Product { kernel: generate(&spec, target).unwrap(), spec }
    }

    fn buffer(&self, name: &str) -> usize {
        self.kernel.buffers.iter().position(|buffer| buffer.name == name).unwrap()
    }

    /// Returns random activations for `rows` rows, and a random weight.
    fn inputs(&self, rows: u32) -> [Vec<u8>; 2] {
        let filled = inputs::fill(&self.kernel, Some(&self.spec), &self.spec.dims_of_rows(rows), 0).unwrap();
        ["x", "w"].map(|name| filled[self.buffer(name)].clone())
    }

    fn run(&self, rows: u32, x: &[u8], w: &[u8]) -> Vec<u8> {
        let dims = self.spec.dims_of_rows(rows);
        let mut buffers = inputs::fill(&self.kernel, Some(&self.spec), &dims, 0).unwrap();
        for (name, bytes) in [("x", x), ("w", w)] {
            buffers[self.buffer(name)].copy_from_slice(bytes);
        }
        interpret::run(&self.kernel, &dims, &mut buffers).unwrap();
        buffers.swap_remove(self.buffer("y"))
    }
}

#[test]
fn a_row_has_the_same_products_alone_and_among_others_on_even_targets() {
    compare_rows(0);
}

#[test]
fn a_row_has_the_same_products_alone_and_among_others_on_odd_targets() {
    compare_rows(1);
}

/// Compares the products of rows on every second target, from the target at index `first` on.
fn compare_rows(first: usize) {
    let mut others = Vec::new();
    for target in targets().into_iter().skip(first).step_by(2) {
        for (format, x) in pairs() {
            for blocks in BLOCKS {
                let k = blocks * format.block_len().max(x.block_len()) as u32;
                let n = STRIP as u32;
                let product = |strategy| {
                    let linear = Linear {
                        format,
                        x,
                        k,
                        tile: n,
                        n,
                        bias: false,
                        residual: false,
                        strategy,
                        pace: Pace::default(),
                    };
                    Product::new(linear, target)
                };
                let [few, many] = [MatmulStrategy::Gemv, MatmulStrategy::Gemm].map(product);
                let [x, w] = many.inputs(ROWS);
                let expected = many.run(ROWS, &x, &w);
                let row =
                    |bytes: &[u8], r: usize| bytes.chunks_exact(bytes.len() / ROWS as usize).nth(r).map(<[u8]>::to_vec);
                let mut compare = |how: &str, r: usize, y: Option<&[u8]>| {
                    if row(&expected, r).as_deref() != y {
                        others.push(format!("{}: row {r} of {ROWS} and {how}", many.kernel.name));
                    }
                };
                let among = few.run(ROWS, &x, &w);
                for r in 0..ROWS as usize {
                    compare("by the kernel for few", r, row(&among, r).as_deref());
                }
                for r in ALONE {
                    let alone = few.run(1, &row(&x, r).unwrap(), &w);
                    compare("alone", r, Some(&alone));
                }
            }
        }
    }
    assert!(others.is_empty(), "{} rows have other bits:\n{}", others.len(), others.join("\n"));
}

#[test]
fn six_rows_of_floats_have_the_bits_of_four() {
    let (x, n, rows) = (Format::F32, STRIP as u32, 23);
    for target in targets() {
        for format in [Format::F32R16, Format::F16R16, Format::Bf16R16] {
            for k in [5, 600] {
                let (bias, residual, pace) = (false, false, Pace::default());
                let [eight, twelve] = [MatmulStrategy::Gemm, MatmulStrategy::Gemm6].map(|strategy| {
                    Product::new(Linear { format, x, k, tile: n, n, bias, residual, strategy, pace }, target)
                });
                let [x, w] = eight.inputs(rows);
                let (found, expected) = (twelve.run(rows, &x, &w), eight.run(rows, &x, &w));
                assert!(
                    found == expected,
                    "{}, {rows} rows: other bits than {}",
                    twelve.kernel.name,
                    eight.kernel.name
                );
            }
        }
    }
}

#[test]
fn gemm6_supports_only_floats() {
    let (k, n, strategy, target) = (256, STRIP as u32, MatmulStrategy::Gemm6, targets()[0]);
    for (format, x) in [(Format::Q4KR16, Format::A8Super), (Format::F16R16, Format::Bf16x2)] {
        let (bias, residual, pace) = (false, false, Pace::default());
        let error = generate(&Linear { format, x, k, tile: n, n, bias, residual, strategy, pace }.into(), target);
        let error = error.unwrap_err().to_string();
        let expected = format!("format of the weight is {format}, must be floats, with activations in f32");
        assert!(error.contains(&expected), "{format} and {x}: {error}");
    }
}
