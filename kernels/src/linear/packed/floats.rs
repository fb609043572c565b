//! Sums of products with packed `f16` and `bf16`. A vector has one column of a strip, or of a part
//! of a strip.

use ixc_ir::format::Codec;
use ixc_ir::format::packed::STRIP;
use ixc_ir::kernel::{Affine, KernelBuilder, Op, Type, ValueId};

use super::Block;
use super::panel::{self, Dots, Source};

/// Number of columns of an iteration.
const UNROLL: i64 = 4;

/// Sums of each strip with each row, in the order of [`Block::sums`]. Each sum is divided into
/// several chains, which are added at the end.
type Chains = Vec<Vec<ValueId>>;

/// See [`Block::sums`].
pub fn sums(block: &Block, b: &mut KernelBuilder) -> Vec<ValueId> {
    // With a single row there are few sums, so each is divided into two chains to hide latency.
    let each = if block.rows.len() == 1 { 2 } else { 1 };
    let zero = b.splat_f32(block.lanes, 0.0);
    let sums = vec![vec![zero; block.strips.len() * block.rows.len()]; each];
    let (k, column) = (i64::from(block.k), (STRIP * block.format.block_bytes()) as i64);
    let mut sums = match block.x_format.codec() {
        Codec::Bf16 { parts: 1 } => unreachable!("{} is multiplied by pairs", block.x_format),
        Codec::Bf16 { .. } => {
            let (len, bytes) = (block.x_format.block_len() as i64, block.x_format.block_bytes() as i64);
            carry(b, "b", k / len, sums, |b, i, sums| {
                carry(b, "c", len / 2, sums, |b, pair, mut sums| {
                    let first = i.clone() * len + pair.clone() * 2;
                    block.prefetch(b, &(first.clone() * column), 2 * column);
                    let columns = [first.clone(), first + 1];
                    step(b, block, columns, &mut sums, |b, row| {
                        bf16_pair(b, block, row + i.clone() * bytes + pair.clone() * 4)
                    });
                    sums
                })
            })
        }
        Codec::Float(_) | Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row => {
            let columns = |b: &mut KernelBuilder, first: Affine, count: i64, sums: &mut Chains| {
                for c in 0..count {
                    let column = first.clone() + c;
                    step(b, block, [column.clone()], sums, |b, row| {
                        [b.load_splat(Type::f32(block.lanes), block.x, row + column.clone() * 4)]
                    });
                    // The next column uses the next chain.
                    sums.rotate_left(1);
                }
            };
            let mut sums = carry(b, "c", k / UNROLL, sums, |b, i, mut sums| {
                block.prefetch(b, &(i.clone() * (UNROLL * column)), UNROLL * column);
                columns(b, i * UNROLL, UNROLL, &mut sums);
                sums
            });
            columns(b, Affine::constant(k - k % UNROLL), k % UNROLL, &mut sums);
            sums
        }
    };
    let first = sums.remove(0);
    sums.iter().fold(first, |total, chain| total.iter().zip(chain).map(|(t, c)| b.add(*t, *c)).collect())
}

/// Emits a loop over columns that carries the chains of sums.
fn carry(
    b: &mut KernelBuilder,
    name: &str,
    trip: i64,
    sums: Chains,
    body: impl FnOnce(&mut KernelBuilder, Affine, Chains) -> Chains,
) -> Chains {
    let each = sums[0].len();
    let split = |flat: &[ValueId]| flat.chunks_exact(each).map(<[ValueId]>::to_vec).collect::<Chains>();
    let flat = b.for_carry(name, trip, &sums.concat(), |b, i, sums| body(b, i.into(), split(sums)).concat());
    split(&flat)
}

/// Adds the products of some columns of every strip and every row. `x` loads the numbers of a row.
/// If sums have several chains, consecutive columns use different ones.
fn step<const N: usize>(
    b: &mut KernelBuilder,
    block: &Block,
    columns: [Affine; N],
    sums: &mut Chains,
    x: impl Fn(&mut KernelBuilder, Affine) -> [ValueId; N],
) {
    let weights = columns.map(|column| {
        let weights = |(strip, part): &(Affine, super::strip::Part)| {
            let offset = strip.clone() + column.clone() * (STRIP * block.format.block_bytes()) as i64;
            let source = Source { panel: false, format: block.format, dots: Dots::Dot4, buffer: block.w, offset };
            panel::column(b, &source, *part)
        };
        block.strips.iter().map(weights).collect::<Vec<_>>()
    });
    let chains = sums.len();
    for (r, row) in block.rows.iter().enumerate() {
        let x = x(b, row.clone());
        for (c, (x, weights)) in x.into_iter().zip(&weights).enumerate() {
            for (strip, w) in weights.iter().enumerate() {
                let sum = &mut sums[c % chains][strip * block.rows.len() + r];
                *sum = b.fma(*w, x, *sum);
            }
        }
    }
}

/// Returns two columns of a row in `bf16x2`, each in all lanes as f32. The sum of high and low part
/// is exact.
fn bf16_pair(b: &mut KernelBuilder, block: &Block, at: Affine) -> [ValueId; 2] {
    let (dwords, floats) = (Type::i32(block.lanes), Type::f32(block.lanes));
    let parts = ["high", "low"].map(|part| {
        let at = at.clone() + block.x_format.field(part) as i64;
        b.load_splat(dwords, block.x, at)
    });
    let upper = b.splat_int(dwords, 0xffff_0000u32 as i32 as i64);
    let even = parts.map(|pair| {
        let bits = b.shift(Op::Shl, pair, 16);
        b.bitcast(floats, bits)
    });
    let odd = parts.map(|pair| {
        let bits = b.same(Op::And, &[pair, upper]);
        b.bitcast(floats, bits)
    });
    [even, odd].map(|[high, low]| b.add(high, low))
}
