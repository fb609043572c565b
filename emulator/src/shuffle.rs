//! Table rows of instructions that only move elements, one for each mnemonic: shuffles,
//! permutations, blends, insertions, extractions and broadcasts.

use iced_x86::{Instruction, Mnemonic, OpKind};

use crate::lanes::{self, Lane};
use crate::op::{LaneFn, Op};
use crate::state::Vector;
use crate::vector::{Row, Shape};

/// Number of bytes of a 128-bit piece. Most shuffles move elements only within a piece.
const PIECE: usize = 16;

/// Interleaves elements of `a` and `b`, from the low halves of every 128 bits, or with `high` from
/// the high halves.
fn interleave<T: Lane>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op, high: bool) {
    let start = if high { 8 / T::BYTES } else { 0 };
    lanes::by_128(r, op, |first, i| T::get(if i % 2 == 0 { a } else { b }, first + start + i / 2));
}

fn shuffle_bytes(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    lanes::by_128(r, op, |first, i| {
        let index = u8::get(b, first + i);
        if index & 0x80 != 0 { 0 } else { u8::get(a, first + usize::from(index & 15)) }
    });
}

/// Returns the two-bit field `i` of an immediate.
fn field(imm: u8, i: usize) -> usize {
    usize::from(imm >> (2 * i) & 3)
}

fn bit(imm: u8, i: usize) -> usize {
    usize::from(imm >> i & 1)
}

fn align_bytes(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    lanes::by_128(r, op, |first, i| match i + usize::from(op.imm8()) {
        n @ 0..16 => u8::get(b, first + n),
        n @ 16..32 => u8::get(a, first + n - PIECE),
        _ => 0,
    });
}

fn align_elements<T: Lane>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    let count = usize::from(op.count);
    let by = usize::from(op.imm8()) & (count - 1);
    lanes::each(r, op, |i| if i + by < count { T::get(b, i + by) } else { T::get(a, i + by - count) });
}

/// Element type of indices. An index selects one of `count` elements, where `count` is a power of
/// two.
trait Index: Lane {
    fn of_count(self, count: usize) -> usize;
}

macro_rules! index {
    ($($t:ty)*) => {$(
        impl Index for $t {
            fn of_count(self, count: usize) -> usize {
                self as usize & (count - 1)
            }
        }
    )*};
}
index!(u8 u16 u32 u64);

/// Selects elements of `b` by the indices that are elements of `a`.
fn permute<T: Index>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    lanes::each(r, op, |i| T::get(b, T::get(a, i).of_count(usize::from(op.count))));
}

fn permute_two<T: Index>(r: &mut Vector, indexes: &Vector, tables: [&Vector; 2], op: &Op) {
    let count = usize::from(op.count);
    let mut result = Vector::ZERO;
    lanes::each(&mut result, op, |i| {
        let index = T::get(indexes, i).of_count(2 * count);
        T::get(tables[index / count], index % count)
    });
    *r = result;
}

/// Selects elements of `a` and `b` by the indices that are elements of the destination.
fn permute_by_destination<T: Index>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    let indexes = *r;
    permute_two::<T>(r, &indexes, [a, b], op);
}

/// Selects elements of the destination and `b` by the indices that are elements of `a`.
fn permute_with_destination<T: Index>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    let first = *r;
    permute_two::<T>(r, a, [&first, b], op);
}

fn permute_quads(r: &mut Vector, _: &Vector, b: &Vector, op: &Op) {
    lanes::each(r, op, |i| u64::get(b, (i & !3) + field(op.imm8(), i & 3)));
}

/// Copies `bytes` bytes from offset `at` of `from` to offset `to` of `r`.
fn copy(r: &mut Vector, to: usize, from: &Vector, at: usize, bytes: usize) {
    r.0[to..to + bytes].copy_from_slice(&from.0[at..at + bytes]);
}

fn permute_halves(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    for half in 0..2 {
        let select = op.imm8() >> (4 * half);
        if select & 8 == 0 {
            let from = if select & 2 == 0 { a } else { b };
            copy(r, PIECE * half, from, PIECE * usize::from(select & 1), PIECE);
        }
    }
}

fn shuffle_pieces(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    if op.bytes == 32 {
        copy(r, 0, a, PIECE * bit(op.imm8(), 0), PIECE);
        copy(r, PIECE, b, PIECE * bit(op.imm8(), 1), PIECE);
    } else {
        for i in 0..4 {
            copy(r, PIECE * i, if i < 2 { a } else { b }, PIECE * field(op.imm8(), i), PIECE);
        }
    }
}

fn insert<const BYTES: usize>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    let bytes = usize::from(op.bytes);
    copy(r, 0, a, 0, bytes);
    copy(r, BYTES * (usize::from(op.imm8()) % (bytes / BYTES)), b, 0, BYTES);
}

fn extract<const BYTES: usize>(r: &mut Vector, _: &Vector, b: &Vector, op: &Op) {
    copy(r, 0, b, BYTES * (usize::from(op.imm8()) % (usize::from(op.source_bytes) / BYTES)), BYTES);
}

/// Repeats the low `BYTES` bytes of `b` in the whole result.
fn broadcast<const BYTES: usize>(r: &mut Vector, _: &Vector, b: &Vector, op: &Op) {
    for to in r.0[..usize::from(op.bytes)].as_chunks_mut::<BYTES>().0 {
        *to = b.0.as_chunks::<BYTES>().0[0];
    }
}

/// Blends elements of `a` and `b` by a bit of the immediate for each element. For words, all
/// 128-bit pieces use the same eight bits.
fn blend<T: Lane>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    lanes::each(r, op, |i| T::get(if bit(op.imm8(), i % 8) == 1 { b } else { a }, i));
}

/// Blends elements of `a` and `b` by the sign bits of the fourth operand, which `r` holds on entry.
fn blend_by_sign<T: Lane>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    let by = *r;
    lanes::each(r, op, |i| T::get(if by.0[(i + 1) * T::BYTES - 1] & 0x80 != 0 { b } else { a }, i));
}

fn insert_float(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    let imm = op.imm8();
    copy(r, 0, a, 0, PIECE);
    // If the source is in memory, its float is the only element, so the immediate does not select
    // one.
    let from = if op.memory_bytes > 0 { 0 } else { usize::from(imm >> 6) };
    u32::get(b, from).set(r, usize::from(imm >> 4 & 3));
    for i in (0..4).filter(|i| bit(imm, *i) == 1) {
        0u32.set(r, i);
    }
}

/// Returns the table row of an instruction that reads its memory operand as a whole.
fn moving(element: u8, lanes: LaneFn) -> Option<Row> {
    Some(Row::new(Shape::Lanes(lanes), element).whole())
}

/// Returns the table row of an instruction whose source may have any number of elements.
fn repeated_row(element: u8, lanes: LaneFn) -> Option<Row> {
    Some(Row::new(Shape::Lanes(lanes), element).from(0))
}

/// Returns the table row of an instruction whose result elements come from the same positions of
/// its sources.
fn in_lanes(element: u8, lanes: LaneFn) -> Option<Row> {
    Some(Row::new(Shape::Lanes(lanes), element))
}

/// Returns the table row of an instruction that also reads its destination. It reads its memory
/// operand as a whole.
fn two_tables(element: u8, lanes: LaneFn) -> Option<Row> {
    Some(Row::new(Shape::Accumulate(lanes), element).whole())
}

/// Whether the last operand of an instruction is an immediate.
fn ends_in_immediate(i: &Instruction) -> bool {
    i.op_count() > 0 && i.op_kind(i.op_count() - 1) == OpKind::Immediate8
}

/// Returns the table row of an instruction that moves elements, or `None` for other instructions.
pub(crate) fn row(i: &Instruction) -> Option<Row> {
    interleave_row(i)
        .or_else(|| shuffle_row(i))
        .or_else(|| permute_row(i))
        .or_else(|| part_row(i))
        .or_else(|| broadcast_row(i))
        .or_else(|| blend_row(i))
}

/// Returns the table row of an instruction that interleaves two vectors, or `None`.
fn interleave_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    match i.mnemonic() {
        M::Vpunpcklbw | M::Punpcklbw => moving(1, |r, a, b, op| interleave::<u8>(r, a, b, op, false)),
        M::Vpunpcklwd | M::Punpcklwd => moving(2, |r, a, b, op| interleave::<u16>(r, a, b, op, false)),
        M::Vpunpckldq | M::Punpckldq | M::Vunpcklps | M::Unpcklps => {
            moving(4, |r, a, b, op| interleave::<u32>(r, a, b, op, false))
        }
        M::Vpunpcklqdq | M::Punpcklqdq | M::Vunpcklpd | M::Unpcklpd => {
            moving(8, |r, a, b, op| interleave::<u64>(r, a, b, op, false))
        }
        M::Vpunpckhbw | M::Punpckhbw => moving(1, |r, a, b, op| interleave::<u8>(r, a, b, op, true)),
        M::Vpunpckhwd | M::Punpckhwd => moving(2, |r, a, b, op| interleave::<u16>(r, a, b, op, true)),
        M::Vpunpckhdq | M::Punpckhdq | M::Vunpckhps | M::Unpckhps => {
            moving(4, |r, a, b, op| interleave::<u32>(r, a, b, op, true))
        }
        M::Vpunpckhqdq | M::Punpckhqdq | M::Vunpckhpd | M::Unpckhpd => {
            moving(8, |r, a, b, op| interleave::<u64>(r, a, b, op, true))
        }
        _ => None,
    }
}

/// Returns the table row of a shuffle within each 128 bits, or of an alignment, or `None`.
fn shuffle_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    match i.mnemonic() {
        M::Vpshufb | M::Pshufb => moving(1, shuffle_bytes),
        M::Vpshufd | M::Pshufd => {
            moving(4, |r, _, b, op| lanes::by_128(r, op, |first, i| u32::get(b, first + field(op.imm8(), i))))
        }
        M::Vpshufhw | M::Pshufhw => moving(2, |r, _, b, op| {
            lanes::by_128(r, op, |first, i| u16::get(b, first + if i < 4 { i } else { 4 + field(op.imm8(), i - 4) }));
        }),
        M::Vpshuflw | M::Pshuflw => moving(2, |r, _, b, op| {
            lanes::by_128(r, op, |first, i| u16::get(b, first + if i < 4 { field(op.imm8(), i) } else { i }));
        }),
        M::Vpermilps if ends_in_immediate(i) => {
            moving(4, |r, _, b, op| lanes::by_128(r, op, |first, i| u32::get(b, first + field(op.imm8(), i))))
        }
        M::Vpermilpd if ends_in_immediate(i) => {
            moving(8, |r, _, b, op| lanes::by_128(r, op, |first, i| u64::get(b, first + bit(op.imm8(), first + i))))
        }
        M::Vpermilps => moving(4, |r, a, b, op| {
            lanes::by_128(r, op, |first, i| u32::get(a, first + (u32::get(b, first + i) & 3) as usize));
        }),
        M::Vpermilpd => moving(8, |r, a, b, op| {
            lanes::by_128(r, op, |first, i| u64::get(a, first + (u64::get(b, first + i) >> 1 & 1) as usize));
        }),
        M::Vshufps | M::Shufps => moving(4, |r, a, b, op| {
            lanes::by_128(r, op, |first, i| u32::get(if i < 2 { a } else { b }, first + field(op.imm8(), i)));
        }),
        M::Vshufpd | M::Shufpd => moving(8, |r, a, b, op| {
            lanes::by_128(r, op, |first, i| u64::get(if i == 0 { a } else { b }, first + bit(op.imm8(), first + i)));
        }),
        M::Vpalignr | M::Palignr => moving(1, align_bytes),
        M::Vpslldq | M::Pslldq => moving(1, |r, _, b, op| {
            lanes::by_128(r, op, |first, i| i.checked_sub(usize::from(op.imm8())).map_or(0, |i| u8::get(b, first + i)));
        }),
        M::Vpsrldq | M::Psrldq => moving(1, |r, _, b, op| {
            lanes::by_128(r, op, |first, i| {
                let from = i + usize::from(op.imm8());
                if from < PIECE { u8::get(b, first + from) } else { 0 }
            });
        }),
        M::Valignd => moving(4, align_elements::<u32>),
        M::Valignq => moving(8, align_elements::<u64>),
        _ => None,
    }
}

/// Returns the table row of a permutation across 128-bit pieces, or `None`.
fn permute_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    match i.mnemonic() {
        M::Vpermq | M::Vpermpd if ends_in_immediate(i) => moving(8, permute_quads),
        M::Vpermb => moving(1, permute::<u8>),
        M::Vpermw => moving(2, permute::<u16>),
        M::Vpermd | M::Vpermps => moving(4, permute::<u32>),
        M::Vpermq | M::Vpermpd => moving(8, permute::<u64>),
        M::Vpermi2b => two_tables(1, permute_by_destination::<u8>),
        M::Vpermi2w => two_tables(2, permute_by_destination::<u16>),
        M::Vpermi2d | M::Vpermi2ps => two_tables(4, permute_by_destination::<u32>),
        M::Vpermi2q | M::Vpermi2pd => two_tables(8, permute_by_destination::<u64>),
        M::Vpermt2b => two_tables(1, permute_with_destination::<u8>),
        M::Vpermt2w => two_tables(2, permute_with_destination::<u16>),
        M::Vpermt2d | M::Vpermt2ps => two_tables(4, permute_with_destination::<u32>),
        M::Vpermt2q | M::Vpermt2pd => two_tables(8, permute_with_destination::<u64>),
        M::Vperm2i128 | M::Vperm2f128 => moving(8, permute_halves),
        M::Vshuff32x4 | M::Vshufi32x4 => moving(4, shuffle_pieces),
        M::Vshuff64x2 | M::Vshufi64x2 => moving(8, shuffle_pieces),
        _ => None,
    }
}

/// Returns the table row of an insertion or extraction of a part of a vector or of a float, or
/// `None`.
fn part_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    match i.mnemonic() {
        M::Vinsertf128 | M::Vinserti128 | M::Vinsertf64x2 | M::Vinserti64x2 => moving(8, insert::<16>),
        M::Vinsertf32x4 | M::Vinserti32x4 => moving(4, insert::<16>),
        M::Vinsertf32x8 | M::Vinserti32x8 => moving(4, insert::<32>),
        M::Vinsertf64x4 | M::Vinserti64x4 => moving(8, insert::<32>),
        M::Vextractf128 | M::Vextracti128 | M::Vextractf64x2 | M::Vextracti64x2 => moving(8, extract::<16>),
        M::Vextractf32x4 | M::Vextracti32x4 => moving(4, extract::<16>),
        M::Vextractf32x8 | M::Vextracti32x8 => moving(4, extract::<32>),
        M::Vextractf64x4 | M::Vextracti64x4 => moving(8, extract::<32>),
        M::Vinsertps | M::Insertps => moving(4, insert_float),
        M::Vmovlhps | M::Movlhps => in_lanes(8, |r, a, b, _| {
            copy(r, 0, a, 0, 8);
            copy(r, 8, b, 0, 8);
        }),
        M::Vmovhlps | M::Movhlps => in_lanes(8, |r, a, b, _| {
            copy(r, 0, b, 8, 8);
            copy(r, 8, a, 8, 8);
        }),
        _ => None,
    }
}

/// Returns the table row of an instruction that repeats elements, or `None`.
fn broadcast_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    match i.mnemonic() {
        M::Vpbroadcastb => repeated_row(1, broadcast::<1>),
        M::Vpbroadcastw => repeated_row(2, broadcast::<2>),
        M::Vpbroadcastd | M::Vbroadcastss => repeated_row(4, broadcast::<4>),
        M::Vpbroadcastq | M::Vbroadcastsd => repeated_row(8, broadcast::<8>),
        M::Vbroadcastf32x2 | M::Vbroadcasti32x2 => repeated_row(4, broadcast::<8>),
        M::Vbroadcastf32x4 | M::Vbroadcasti32x4 => repeated_row(4, broadcast::<16>),
        M::Vbroadcastf128 | M::Vbroadcasti128 | M::Vbroadcastf64x2 | M::Vbroadcasti64x2 => {
            repeated_row(8, broadcast::<16>)
        }
        M::Vbroadcastf32x8 | M::Vbroadcasti32x8 => repeated_row(4, broadcast::<32>),
        M::Vbroadcastf64x4 | M::Vbroadcasti64x4 => repeated_row(8, broadcast::<32>),
        M::Vmovddup | M::Movddup => {
            moving(8, |r, _, b, op| lanes::each(r, op, |i| u64::get(b, i & !1))).map(|row| row.from(0))
        }
        M::Vmovshdup | M::Movshdup => moving(4, |r, _, b, op| lanes::each(r, op, |i| u32::get(b, i | 1))),
        M::Vmovsldup | M::Movsldup => moving(4, |r, _, b, op| lanes::each(r, op, |i| u32::get(b, i & !1))),
        _ => None,
    }
}

/// Returns the table row of an instruction that takes each element from the same position of one of
/// two vectors, or `None`.
fn blend_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    match i.mnemonic() {
        M::Vblendps | M::Blendps | M::Vpblendd => in_lanes(4, blend::<u32>),
        M::Vblendpd | M::Blendpd => in_lanes(8, blend::<u64>),
        M::Vpblendw | M::Pblendw => in_lanes(2, blend::<u16>),
        M::Vblendvps => Some(Row::new(Shape::Accumulate(blend_by_sign::<u32>), 4)),
        M::Vblendvpd => Some(Row::new(Shape::Accumulate(blend_by_sign::<u64>), 8)),
        M::Vpblendvb => Some(Row::new(Shape::Accumulate(blend_by_sign::<u8>), 1)),
        M::Vpblendmb => Some(Row::new(Shape::Blend, 1)),
        M::Vpblendmw => Some(Row::new(Shape::Blend, 2)),
        M::Vpblendmd | M::Vblendmps => Some(Row::new(Shape::Blend, 4)),
        M::Vpblendmq | M::Vblendmpd => Some(Row::new(Shape::Blend, 8)),
        _ => None,
    }
}
