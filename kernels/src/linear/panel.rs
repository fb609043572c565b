//! Panels: eight weight rows unpacked so that a lane is a weight row.
//!
//! A panel of a quantised format holds, for each block, vectors of 32 bytes: one for every four elements of the dot product,
//! with the four bytes of row `r` at `4 * r` (the form that `dot2_u8s8` wants beside a broadcast of four activations), then the
//! scales as pairs of words in the lane of their row, then the float scales. Float formats become one f32 vector for every element.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

use super::LANES;
use super::fields::{self, Block};
use super::gemv;

/// Weight rows of a panel.
pub const PANEL_ROWS: i64 = LANES as i64;
const VECTOR: i64 = 32;

/// Where the parts of a block lie in its panel, in bytes.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Quants: a vector for every four elements.
    pub quants: i64,
    /// Magnitudes of signed quants (`q8_0`), else nothing.
    pub magnitudes: i64,
    /// Scales of sub-blocks, each in both words of a lane.
    pub scales: i64,
    /// For the correction by the activations' sums: minimums as floats (`q4_k`, `q5_k`), pairs of -32 * scale (`q6_k`).
    pub corrections: i64,
    /// Float scale.
    pub d: i64,
    /// Float scale of the minimums, negated.
    pub dmin: i64,
    /// Bytes in all.
    pub bytes: i64,
}

/// The layout for a quantised format.
pub fn layout(format: Format) -> Layout {
    let vectors = format.block_len() as i64 / 4;
    let (magnitudes, scales, corrections, dmin) = match format {
        Format::Q8_0 => (vectors, 0, 0, 0),
        Format::Q4_0 => (0, 0, 0, 0),
        Format::Q4K | Format::Q5K => (0, 8, 8, 1),
        Format::Q6K => (0, 16, 8, 0),
        _ => unreachable!("{format} has no quants"),
    };
    let at = |vectors: i64| vectors * VECTOR;
    Layout {
        quants: 0,
        magnitudes: at(vectors),
        scales: at(vectors + magnitudes),
        corrections: at(vectors + magnitudes + scales),
        d: at(vectors + magnitudes + scales + corrections),
        dmin: at(vectors + magnitudes + scales + corrections + 1),
        bytes: at(vectors + magnitudes + scales + corrections + 1 + dmin),
    }
}

/// Eight rows of a weight: block `i` of row `r` is at `offset + r * row_bytes + i * block_bytes`.
#[derive(Clone)]
pub struct Strip {
    pub buffer: BufferId,
    pub offset: Affine,
    pub row_bytes: i64,
    pub format: Format,
}

impl Strip {
    fn block(&self, row: i64) -> Block {
        Block { buffer: self.buffer, offset: self.offset.clone() + row * self.row_bytes, format: self.format }
    }
}

/// Exchanges rows and columns of eight vectors of eight dwords.
fn transpose(b: &mut KernelBuilder, rows: &[ValueId]) -> Vec<ValueId> {
    let ty = b.ty(rows[0]);
    let mut unpack = |op, x, y, unit| b.op_imm(op, ty, &[x, y], unit);
    let mut quads = [Vec::new(), Vec::new()];
    for (four, quad) in rows.chunks_exact(4).zip(&mut quads) {
        let (l0, h0) = (unpack(Op::UnpackLo, four[0], four[1], 4), unpack(Op::UnpackHi, four[0], four[1], 4));
        let (l1, h1) = (unpack(Op::UnpackLo, four[2], four[3], 4), unpack(Op::UnpackHi, four[2], four[3], 4));
        quad.extend([unpack(Op::UnpackLo, l0, l1, 8), unpack(Op::UnpackHi, l0, l1, 8)]);
        quad.extend([unpack(Op::UnpackLo, h0, h1, 8), unpack(Op::UnpackHi, h0, h1, 8)]);
    }
    let mut columns = Vec::new();
    for op in [Op::JoinLo, Op::JoinHi] {
        for (x, y) in quads[0].iter().zip(&quads[1]) {
            columns.push(b.op(op, ty, &[*x, *y]));
        }
    }
    columns
}

/// Unpacks one block of eight rows to `to` of `panel`.
pub fn unpack_block(b: &mut KernelBuilder, strip: &Strip, panel: BufferId, to: &Affine) {
    let format = strip.format;
    let layout = layout(format);
    for group in 0..format.block_len() as i64 / 32 {
        let rows: Vec<ValueId> = (0..PANEL_ROWS).map(|r| fields::quants(b, &strip.block(r), group)).collect();
        for (j, column) in transpose(b, &rows).into_iter().enumerate() {
            let at = to.clone() + (group * 8 + j as i64) * VECTOR;
            b.store(panel, at.clone() + layout.quants, column);
            if format == Format::Q8_0 {
                let magnitude = b.same(Op::IAbs, &[column]);
                b.store(panel, at + layout.magnitudes, magnitude);
            }
        }
    }
    for r in 0..PANEL_ROWS {
        let d = strip.block(r).half(b, "d");
        b.store(panel, to.clone() + layout.d + 4 * r, d);
        if matches!(format, Format::Q4K | Format::Q5K) {
            let dmin = strip.block(r).half(b, "dmin");
            let minus = b.splat_f32(1, -1.0);
            let dmin = b.mul(dmin, minus);
            b.store(panel, to.clone() + layout.dmin + 4 * r, dmin);
        }
    }
    if matches!(format, Format::Q4K | Format::Q5K | Format::Q6K) {
        unpack_scales(b, strip, &layout, panel, to);
    }
}

/// Scales of eight rows into the lanes of their rows.
fn unpack_scales(b: &mut KernelBuilder, strip: &Strip, layout: &Layout, panel: BufferId, to: &Affine) {
    let rows: Vec<ValueId> = (0..PANEL_ROWS).map(|r| fields::scales(b, &strip.block(r))).collect();
    // Bytes of eight rows by sixteen scales: pairs, then fours, then eights of rows side by side, two scales to a vector.
    let ty = Type::i8(16);
    let mut eights = Vec::new();
    for half in [Op::UnpackLo, Op::UnpackHi] {
        let pairs: Vec<ValueId> = rows.chunks_exact(2).map(|two| b.op_imm(half, ty, &[two[0], two[1]], 1)).collect();
        for quarter in [Op::UnpackLo, Op::UnpackHi] {
            let low = b.op_imm(quarter, ty, &[pairs[0], pairs[1]], 2);
            let high = b.op_imm(quarter, ty, &[pairs[2], pairs[3]], 2);
            for eighth in [Op::UnpackLo, Op::UnpackHi] {
                eights.push(b.op_imm(eighth, ty, &[low, high], 4));
            }
        }
    }
    let signed = strip.format == Format::Q6K;
    let dwords: Vec<ValueId> = (0..16)
        .map(|s| {
            let bytes = b.op_imm(Op::Slice, Type::i8(8), &[eights[s / 2]], (s % 2 * 8) as i64);
            b.op(if signed { Op::ExtendS } else { Op::ExtendU }, Type::i32(LANES), &[bytes])
        })
        .collect();
    let pair = |b: &mut KernelBuilder, low: ValueId, high: ValueId| {
        let mask = b.splat_int(Type::i32(LANES), 0xffff);
        let low = if signed { b.same(Op::And, &[low, mask]) } else { low };
        let high = b.shift(Op::Shl, high, 16);
        b.same(Op::Or, &[low, high])
    };
    for (s, dword) in dwords.iter().enumerate().take(if signed { 16 } else { 8 }) {
        let v = pair(b, *dword, *dword);
        b.store(panel, to.clone() + layout.scales + s as i64 * VECTOR, v);
    }
    for i in 0..8 {
        let v = if signed {
            let minus = b.splat_int(Type::i32(LANES), -32);
            let (low, high) =
                (b.same(Op::IMul, &[dwords[2 * i], minus]), b.same(Op::IMul, &[dwords[2 * i + 1], minus]));
            pair(b, low, high)
        } else {
            b.op(Op::ToF32, Type::f32(LANES), &[dwords[8 + i]])
        };
        b.store(panel, to.clone() + layout.corrections + i as i64 * VECTOR, v);
    }
}

/// Unpacks eight elements of eight rows of a float format: a vector for each element.
pub fn unpack_floats(b: &mut KernelBuilder, strip: &Strip, panel: BufferId, to: &Affine) {
    let rows: Vec<ValueId> = (0..PANEL_ROWS)
        .map(|r| {
            let at = strip.offset.clone() + r * strip.row_bytes;
            gemv::float_weights(b, strip.format, strip.buffer, at, LANES)
        })
        .collect();
    for (j, column) in transpose(b, &rows).into_iter().enumerate() {
        b.store(panel, to.clone() + j as i64 * VECTOR, column);
    }
}
