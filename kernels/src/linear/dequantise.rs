//! Dequantisation of a weight row to f32, for embeddings.

use ixc_ir::format::{Codec, Format, Minimum, Scales};
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

use super::file::{self, Block};
use super::packed::panel;
use super::{LANES, SUB, for_vectors};
use crate::linear;

/// Writes `n` elements of the weight row at `offset` of `w` to `y`, as f32.
pub fn dequantise_row(b: &mut KernelBuilder, format: Format, n: u32, w: BufferId, offset: Affine, y: BufferId) {
    if let Codec::Float(float) = format.codec() {
        for_vectors(b, LANES, n, |b, at, lanes| {
            let from = offset.clone() + at.clone() * float.bytes() as i64;
            let v = panel::floats(b, *float, lanes, w, from);
            b.store(y, at * 4, v);
        });
        return;
    }
    let codec = linear::quants(format);
    let (len, bytes) = (format.block_len() as i64, format.block_bytes() as i64);
    b.for_each("b", i64::from(n) / len, |b, i| {
        let block = Block { buffer: w, offset: offset.clone() + i * bytes, format };
        let d = match codec.scales {
            Scales::Row | Scales::Multiples { .. } => {
                b.load(Type::f32(1), w, offset.clone() + i64::from(n) / len * bytes + format.tail_field("d") as i64)
            }
            Scales::None | Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 | Scales::Coded(_) => {
                block.number(b, "d", 0)
            }
        };
        let added = match codec.minimum {
            Minimum::None => None,
            Minimum::Half => Some(block.number(b, "m", 0)),
            Minimum::Scaled => Some(block.number(b, "dmin", 0)),
        };
        let scales = match codec.scales {
            Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 | Scales::Coded(_) => {
                codec.scale_group_len().map(|columns| (columns as i64, block.scales(b)))
            }
            Scales::None | Scales::Row | Scales::Multiples { .. } => None,
        };
        for sub in 0..len / SUB {
            let codes = block.codes(b, sub);
            let quants = file::bytes(b, codec, codes);
            for eight in 0..SUB / 8 {
                let q = b.op_imm(Op::Slice, Type::i8(8), &[quants], eight * 8);
                let q = b.op(Op::ExtendU, Type::i32(LANES), &[q]);
                let zero = b.splat_int(Type::i32(LANES), codec.zero().into());
                let q = if codec.zero() == 0 { q } else { b.same(Op::ISub, &[q, zero]) };
                let q = b.op(Op::ToF32, Type::f32(LANES), &[q]);
                let q = match codec.multiples() {
                    Some(columns) => {
                        let at = block.field("scales") + sub * SUB / columns as i64;
                        let scale = b.load(Type::i8(1), w, at);
                        let scale = b.op(Op::ExtendS, Type::i32(1), &[scale]);
                        let scale = b.op(Op::ToF32, Type::f32(1), &[scale]);
                        let scale = b.broadcast(LANES, scale);
                        b.mul(q, scale)
                    }
                    None => q,
                };
                let number = (sub * SUB + eight * 8) / scales.map_or(SUB, |(columns, _)| columns);
                let scale = match scales {
                    None => {
                        let d = match codec.columns_of_d {
                            Some(columns) => block.number(b, "d", (sub * SUB + eight * 8) / i64::from(columns)),
                            None => d,
                        };
                        b.broadcast(LANES, d)
                    }
                    Some((_, scales)) => {
                        let scale = scale(b, codec.scales, scales, number);
                        scale_integer(b, scale, d)
                    }
                };
                let v = b.mul(q, scale);
                let v = match (codec.minimum, added, scales) {
                    (Minimum::Half, Some(m), _) => {
                        let m = b.broadcast(LANES, m);
                        b.add(v, m)
                    }
                    (Minimum::Scaled, Some(dmin), Some((_, scales))) => {
                        let minimum = minimum(b, codec.scales, scales, number);
                        let m = scale_integer(b, minimum, dmin);
                        b.sub(v, m)
                    }
                    (Minimum::None | Minimum::Half | Minimum::Scaled, _, _) => v,
                };
                b.store(y, i * (len * 4) + (sub * SUB + eight * 8) * 4, v);
            }
        }
    });
}

/// Returns one of the scales that [`Block::scales`] returned: that at index `number`.
fn scale(b: &mut KernelBuilder, scales: Scales, bytes: ValueId, number: i64) -> ValueId {
    let byte = b.op_imm(Op::Extract, Type::i8(1), &[bytes], number);
    let extend = match scales {
        Scales::Signed16 | Scales::Coded(_) => Op::ExtendS,
        Scales::None | Scales::SixBits | Scales::Nibbles16 | Scales::Row | Scales::Multiples { .. } => Op::ExtendU,
    };
    let scale = b.op(extend, Type::i32(1), &[byte]);
    if scales != Scales::Nibbles16 {
        return scale;
    }
    let mask = b.splat_int(Type::i32(1), 15);
    b.same(Op::And, &[scale, mask])
}

/// Returns the minimum at index `number`, which belongs to the scale at the same index.
fn minimum(b: &mut KernelBuilder, scales: Scales, bytes: ValueId, number: i64) -> ValueId {
    let together = scales == Scales::Nibbles16;
    let byte = b.op_imm(Op::Extract, Type::i8(1), &[bytes], if together { number } else { number + 8 });
    let minimum = b.op(Op::ExtendU, Type::i32(1), &[byte]);
    if together { b.shift(Op::ShrU, minimum, 4) } else { minimum }
}

/// Returns an integer times `d`, as f32 in all lanes.
fn scale_integer(b: &mut KernelBuilder, integer: ValueId, d: ValueId) -> ValueId {
    let s = b.op(Op::ToF32, Type::f32(1), &[integer]);
    let v = b.mul(d, s);
    b.broadcast(LANES, v)
}
