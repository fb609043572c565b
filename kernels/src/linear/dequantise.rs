//! A weight row as f32: the embedding's lookup.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

use super::fields::{self, Block};
use super::{LANES, for_vectors, gemv};

/// Writes `n` elements of the row at `offset` of `w` to `y`.
pub fn dequantise_row(b: &mut KernelBuilder, format: Format, n: u32, w: BufferId, offset: Affine, y: BufferId) {
    if !format.is_quantised() {
        for_vectors(b, LANES, n, |b, at, lanes| {
            let v = gemv::float_weights(b, format, w, offset.clone() + at.clone() * format.block_bytes() as i64, lanes);
            b.store(y, at * 4, v);
        });
        return;
    }
    let (len, bytes) = (format.block_len() as i64, format.block_bytes() as i64);
    b.for_each("b", i64::from(n) / len, |b, i| {
        let block = Block { buffer: w, offset: offset.clone() + i * bytes, format };
        let d = block.half(b, "d");
        let dmin = matches!(format, Format::Q4K | Format::Q5K).then(|| block.half(b, "dmin"));
        let scales = matches!(format, Format::Q4K | Format::Q5K | Format::Q6K).then(|| fields::scales(b, &block));
        for group in 0..len / 32 {
            let quants = fields::quants(b, &block, group);
            for eight in 0..4 {
                let q = b.op_imm(Op::Slice, Type::i8(8), &[quants], eight * 8);
                let signed = format == Format::Q8_0;
                let q = b.op(if signed { Op::ExtendS } else { Op::ExtendU }, Type::i32(LANES), &[q]);
                let stored_plus = match format {
                    Format::Q4_0 => 8,
                    Format::Q6K => 32,
                    _ => 0,
                };
                let offset = b.splat_int(Type::i32(LANES), stored_plus);
                let q = if stored_plus == 0 { q } else { b.same(Op::ISub, &[q, offset]) };
                let q = b.op(Op::ToF32, Type::f32(LANES), &[q]);
                let v = match (scales, dmin) {
                    (None, _) => {
                        let d = b.broadcast(LANES, d);
                        b.mul(q, d)
                    }
                    (Some(scales), None) => {
                        let d = scaled(b, scales, group * 2 + eight / 2, d, true);
                        b.mul(q, d)
                    }
                    (Some(scales), Some(dmin)) => {
                        let d = scaled(b, scales, group, d, false);
                        let m = scaled(b, scales, group + 8, dmin, false);
                        let v = b.mul(q, d);
                        b.sub(v, m)
                    }
                };
                b.store(y, i * (len * 4) + (group * 32 + eight * 8) * 4, v);
            }
        }
    });
}

/// `d` times the integer scale in lane `lane`, in all lanes.
fn scaled(b: &mut KernelBuilder, scales: ValueId, lane: i64, d: ValueId, signed: bool) -> ValueId {
    let s = b.op_imm(Op::Extract, Type::i8(1), &[scales], lane);
    let s = b.op(if signed { Op::ExtendS } else { Op::ExtendU }, Type::i32(1), &[s]);
    let s = b.op(Op::ToF32, Type::f32(1), &[s]);
    let v = b.mul(d, s);
    b.broadcast(LANES, v)
}
