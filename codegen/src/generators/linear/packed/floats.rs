//! Sums over packed `f16` and `bf16`: a vector is a column of 16 weight rows.

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::kernel::{Affine, KernelBuilder, Op, Type, ValueId};

use super::{Block, LANES, SINGLES};

/// Bytes of a column of a strip.
const COLUMN: i64 = 2 * STRIP as i64;
/// Columns of a step.
const UNROLL: i64 = 4;
const DWORDS: Type = Type::i32(LANES);

/// See [`Block::sums`].
pub fn sums(block: &Block, b: &mut KernelBuilder) -> Vec<ValueId> {
    // Few rows are few chains: two for each.
    let each = if block.rows.len() == 1 { 2 } else { 1 };
    let zero = b.splat_f32(LANES, 0.0);
    let mut sums = vec![vec![zero; block.strips.len() * block.rows.len()]; each];
    let k = i64::from(block.k);
    match block.x_format {
        Format::Bf16x2 => {
            let (len, bytes) = (block.x_format.block_len() as i64, block.x_format.block_bytes() as i64);
            sums = carry(b, "b", k / len, sums, |b, i, sums| {
                let rows: Vec<Affine> = block.rows.iter().map(|at| at.clone() + i.clone() * bytes).collect();
                carry(b, "c", len / 2, sums, |b, pair, mut sums| {
                    let x: Vec<[ValueId; 2]> =
                        rows.iter().map(|at| bf16_pair(b, block, at.clone() + pair.clone() * 4)).collect();
                    for next in 0..2 {
                        let column = i.clone() * len + pair.clone() * 2 + next as i64;
                        let x: Vec<ValueId> = x.iter().map(|x| x[next]).collect();
                        step(b, block, column, &x, &mut sums[next % each]);
                    }
                    sums
                })
            });
        }
        _ => {
            let columns = |b: &mut KernelBuilder, first: Affine, count: i64, sums: &mut [Vec<ValueId>]| {
                for c in 0..count {
                    let column = first.clone() + c;
                    let x: Vec<ValueId> = block
                        .rows
                        .iter()
                        .map(|at| b.load_splat(SINGLES, block.x, at.clone() + column.clone() * 4))
                        .collect();
                    step(b, block, column, &x, &mut sums[c as usize % each]);
                }
            };
            sums = carry(b, "c", k / UNROLL, sums, |b, i, mut sums| {
                columns(b, i * UNROLL, UNROLL, &mut sums);
                sums
            });
            columns(b, Affine::constant(k - k % UNROLL), k % UNROLL, &mut sums);
        }
    }
    let first = sums.remove(0);
    sums.iter().fold(first, |total, chain| total.iter().zip(chain).map(|(t, c)| b.add(*t, *c)).collect())
}

/// A loop that carries chains of sums.
fn carry(
    b: &mut KernelBuilder,
    name: &str,
    trip: i64,
    sums: Vec<Vec<ValueId>>,
    body: impl FnOnce(&mut KernelBuilder, Affine, Vec<Vec<ValueId>>) -> Vec<Vec<ValueId>>,
) -> Vec<Vec<ValueId>> {
    let each = sums[0].len();
    let split = |flat: &[ValueId]| flat.chunks_exact(each).map(<[ValueId]>::to_vec).collect::<Vec<_>>();
    let flat = b.for_carry(name, trip, &sums.concat(), |b, i, sums| body(b, i.into(), split(sums)).concat());
    split(&flat)
}

/// Adds one column of every strip times that of every row.
fn step(b: &mut KernelBuilder, block: &Block, column: Affine, x: &[ValueId], sums: &mut [ValueId]) {
    for (strip, sums) in block.strips.iter().zip(sums.chunks_exact_mut(x.len())) {
        let at = strip.clone() + column.clone() * COLUMN;
        let w = match block.format {
            Format::F16R16 => {
                let halves = b.load(Type::f16(LANES), block.w, at);
                b.op(Op::F16ToF32, SINGLES, &[halves])
            }
            _ => {
                let halves = b.load(Type::bf16(LANES), block.w, at);
                b.bf16_to_f32(halves)
            }
        };
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = b.fma(w, *x, *sum);
        }
    }
}

/// Two columns of a row in `bf16x2`, each in all lanes: high plus low part, which is exact.
fn bf16_pair(b: &mut KernelBuilder, block: &Block, at: Affine) -> [ValueId; 2] {
    let parts = ["high", "low"].map(|part| {
        let at = at.clone() + block.x_format.field(part) as i64;
        b.load_splat(DWORDS, block.x, at)
    });
    let upper = b.splat_int(DWORDS, 0xffff_0000u32 as i32 as i64);
    let even = parts.map(|pair| {
        let bits = b.shift(Op::Shl, pair, 16);
        b.bitcast(SINGLES, bits)
    });
    let odd = parts.map(|pair| {
        let bits = b.same(Op::And, &[pair, upper]);
        b.bitcast(SINGLES, bits)
    });
    [even, odd].map(|[high, low]| b.add(high, low))
}
