//! Table rows of integer vector arithmetic, one for each mnemonic.

use iced_x86::{EncodingKind, Instruction, Mnemonic, OpKind};

use crate::dot;
use crate::lanes::{self, Lane};
use crate::op::{LaneFn, Op};
use crate::state::Vector;
use crate::vector::{Row, Shape};

/// Returns the table row of `r = f(a, b)`, with lanes of an integer type.
macro_rules! two {
    ($t:ty, $f:expr) => {
        Row::new(Shape::Lanes(|r, a, b, op| lanes::two::<$t, $t>(r, a, b, op, $f)), size_of::<$t>() as u8)
    };
}

/// Returns the table row of `r = f(b)`, with lanes of an integer type.
macro_rules! one {
    ($t:ty, $f:expr) => {
        Row::new(Shape::Lanes(|r, _, b, op| lanes::one::<$t, $t>(r, b, op, $f)), size_of::<$t>() as u8)
    };
}

/// Returns the table row of `r = f(r, a, b)`, with lanes of an integer type.
macro_rules! three {
    ($t:ty, $f:expr) => {
        Row::new(Shape::Accumulate(|r, a, b, op| lanes::three::<$t>(r, a, b, op, $f)), size_of::<$t>() as u8)
    };
}

/// Returns the table row of a VEX or legacy comparison, which sets all bits of a lane if the
/// condition holds.
macro_rules! holds {
    ($t:ty, $f:expr) => {
        Row::new(
            Shape::Lanes(|r, a, b, op| {
                let f: fn($t, $t) -> bool = $f;
                lanes::two::<$t, $t>(r, a, b, op, |a, b| if f(a, b) { !0 } else { 0 });
            }),
            size_of::<$t>() as u8,
        )
    };
}

/// Returns the table row of a shift of all elements by the same count: an immediate, or the low
/// quadword of the last operand.
macro_rules! shift {
    ($i:expr, $t:ty, $f:expr) => {{
        let immediate = $i.op_kind($i.op_count() - 1) == OpKind::Immediate8;
        let lanes: LaneFn = if immediate {
            |r, _, b, op| {
                let f: fn($t, u64) -> $t = $f;
                let count = u64::from(op.imm8());
                lanes::one::<$t, $t>(r, b, op, |x| f(x, count));
            }
        } else {
            |r, a, b, op| {
                let f: fn($t, u64) -> $t = $f;
                let count = u64::get(b, 0);
                lanes::one::<$t, $t>(r, a, op, |x| f(x, count));
            }
        };
        // A count in memory is an operand of 16 bytes, which is always read as a whole.
        Row { whole: !immediate, ..Row::new(Shape::Lanes(lanes), size_of::<$t>() as u8) }
    }};
}

fn shift_left<T: Into<u64> + TryFrom<u64> + Default>(x: T, count: u64, bits: u64) -> T {
    if count >= bits { T::default() } else { truncate(x.into() << count, bits) }
}

fn truncate<T: TryFrom<u64> + Default>(x: u64, bits: u64) -> T {
    T::try_from(x & (u64::MAX >> (64 - bits))).unwrap_or_default()
}

fn right<T: Into<u64> + TryFrom<u64> + Default>(x: T, count: u64, bits: u64) -> T {
    if count >= bits { T::default() } else { truncate(x.into() >> count, bits) }
}

fn rotate_left(r: &mut Vector, a: &Vector, op: &Op, element: usize, count: impl Fn(usize) -> u64) {
    for i in 0..usize::from(op.count) {
        let by = count(i) as u32;
        if element == 4 {
            u32::get(a, i).rotate_left(by % 32).set(r, i);
        } else {
            u64::get(a, i).rotate_left(by % 64).set(r, i);
        }
    }
}

/// Returns the table row of a rotation by an immediate, or by the elements of the last operand. A
/// rotation to the right is a rotation to the left by the negated count.
fn rotate(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    let element = match i.mnemonic() {
        M::Vprold | M::Vprord | M::Vprolvd | M::Vprorvd => 4,
        M::Vprolq | M::Vprorq | M::Vprolvq | M::Vprorvq => 8,
        _ => return None,
    };
    let lanes: LaneFn = match i.mnemonic() {
        M::Vprold => |r, _, b, op| rotate_left(r, b, op, 4, |_| u64::from(op.imm8())),
        M::Vprolq => |r, _, b, op| rotate_left(r, b, op, 8, |_| u64::from(op.imm8())),
        M::Vprord => |r, _, b, op| rotate_left(r, b, op, 4, |_| u64::from(op.imm8()).wrapping_neg()),
        M::Vprorq => |r, _, b, op| rotate_left(r, b, op, 8, |_| u64::from(op.imm8()).wrapping_neg()),
        M::Vprolvd => |r, a, b, op| rotate_left(r, a, op, 4, |i| u64::from(u32::get(b, i))),
        M::Vprolvq => |r, a, b, op| rotate_left(r, a, op, 8, |i| u64::get(b, i)),
        M::Vprorvd => |r, a, b, op| rotate_left(r, a, op, 4, |i| u64::from(u32::get(b, i)).wrapping_neg()),
        _ => |r, a, b, op| rotate_left(r, a, op, 8, |i| u64::get(b, i).wrapping_neg()),
    };
    Some(Row::new(Shape::Lanes(lanes), element))
}

fn saturate<T: TryFrom<i64> + Into<i64> + Copy>(x: i64, least: T, most: T) -> T {
    T::try_from(x.clamp(least.into(), most.into())).unwrap_or(most)
}

/// Computes `r[i] = f(pair i of a, pair i of b)`. The operands' elements are half as wide as those
/// of the result.
fn pairs<T: Lane, R: Lane>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op, f: impl Fn([T; 2], [T; 2]) -> R) {
    lanes::each(r, op, |i| f([T::get(a, 2 * i), T::get(a, 2 * i + 1)], [T::get(b, 2 * i), T::get(b, 2 * i + 1)]));
}

/// Combines adjacent elements with `f`. Every 128 bits of the result have the pairs of `a`, and
/// then the pairs of `b`.
fn horizontal<T: Lane>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op, f: impl Fn(T, T) -> T) {
    let half = 8 / T::BYTES;
    lanes::by_128(r, op, |first, i| {
        let (from, pair) = if i < half { (a, i) } else { (b, i - half) };
        f(T::get(from, first + 2 * pair), T::get(from, first + 2 * pair + 1))
    });
}

/// Narrows elements with saturation. Every 128 bits of the result have the elements of `a`, and
/// then those of `b`.
fn pack<T: Lane + Into<i64>, R: Lane>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op, f: impl Fn(i64) -> R) {
    let per = 16 / T::BYTES;
    lanes::by_128(r, op, |first, i| {
        let from = if i < per { a } else { b };
        f(T::get(from, first / 2 + i % per).into())
    });
}

fn sums_of_differences(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    for i in 0..usize::from(op.bytes) / 8 {
        let sum: u64 = (0..8).map(|k| u64::from(u8::get(a, 8 * i + k).abs_diff(u8::get(b, 8 * i + k)))).sum();
        sum.set(r, i);
    }
}

fn multishift(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    lanes::each(r, op, |i| u64::get(b, i / 8).rotate_right(u32::from(u8::get(a, i) & 63)) as u8);
}

fn ternary(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    let table = op.imm8();
    // The function of three bits is the sum of those of its eight products whose bit is set in the
    // table.
    let term = |n: u8, on: u64| if table >> n & 1 == 1 { on } else { 0 };
    lanes::three::<u64>(r, a, b, op, |r, a, b| {
        term(0, !r & !a & !b)
            | term(1, !r & !a & b)
            | term(2, !r & a & !b)
            | term(3, !r & a & b)
            | term(4, r & !a & !b)
            | term(5, r & !a & b)
            | term(6, r & a & !b)
            | term(7, r & a & b)
    });
}

/// Returns the table row of a sign operation: `x` with the sign of `s`, or zero if `s` is zero.
macro_rules! sign {
    ($t:ty) => {
        two!($t, |x, s| if s == 0 {
            0
        } else if s < 0 {
            x.wrapping_neg()
        } else {
            x
        })
    };
}

macro_rules! shift_each {
    ($t:ty, $f:expr) => {
        two!($t, |x, count| {
            let f: fn($t, u64) -> $t = $f;
            f(x, count.into())
        })
    };
}

/// Returns the table row of an integer instruction, or `None` for other instructions.
pub(crate) fn row(i: &Instruction) -> Option<Row> {
    sum_row(i)
        .or_else(|| product_row(i))
        .or_else(|| logic_row(i))
        .or_else(|| extremum_row(i))
        .or_else(|| comparison_row(i))
        .or_else(|| shift_row(i))
        .or_else(|| rotate(i))
        .or_else(|| horizontal_row(i))
        .or_else(|| dot_row(i))
}

/// Returns the table row of a sum, difference or average, or `None`.
fn sum_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Vpaddb | M::Paddb => two!(u8, u8::wrapping_add),
        M::Vpaddw | M::Paddw => two!(u16, u16::wrapping_add),
        M::Vpaddd | M::Paddd => two!(u32, u32::wrapping_add),
        M::Vpaddq | M::Paddq => two!(u64, u64::wrapping_add),
        M::Vpsubb | M::Psubb => two!(u8, u8::wrapping_sub),
        M::Vpsubw | M::Psubw => two!(u16, u16::wrapping_sub),
        M::Vpsubd | M::Psubd => two!(u32, u32::wrapping_sub),
        M::Vpsubq | M::Psubq => two!(u64, u64::wrapping_sub),
        M::Vpaddsb | M::Paddsb => two!(i8, i8::saturating_add),
        M::Vpaddsw | M::Paddsw => two!(i16, i16::saturating_add),
        M::Vpaddusb | M::Paddusb => two!(u8, u8::saturating_add),
        M::Vpaddusw | M::Paddusw => two!(u16, u16::saturating_add),
        M::Vpsubsb | M::Psubsb => two!(i8, i8::saturating_sub),
        M::Vpsubsw | M::Psubsw => two!(i16, i16::saturating_sub),
        M::Vpsubusb | M::Psubusb => two!(u8, u8::saturating_sub),
        M::Vpsubusw | M::Psubusw => two!(u16, u16::saturating_sub),
        M::Vpavgb | M::Pavgb => two!(u8, |a, b| (u16::from(a) + u16::from(b)).div_ceil(2) as u8),
        M::Vpavgw | M::Pavgw => two!(u16, |a, b| (u32::from(a) + u32::from(b)).div_ceil(2) as u16),
        _ => return None,
    })
}

/// Returns the table row of a product, or `None`.
fn product_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Vpmullw | M::Pmullw => two!(u16, u16::wrapping_mul),
        M::Vpmulld | M::Pmulld => two!(u32, u32::wrapping_mul),
        M::Vpmullq => two!(u64, u64::wrapping_mul),
        M::Vpmulhw | M::Pmulhw => two!(i16, |a, b| ((i32::from(a) * i32::from(b)) >> 16) as i16),
        M::Vpmulhuw | M::Pmulhuw => two!(u16, |a, b| ((u32::from(a) * u32::from(b)) >> 16) as u16),
        M::Vpmulhrsw | M::Pmulhrsw => {
            two!(i16, |a, b| ((((i32::from(a) * i32::from(b)) >> 14) + 1) >> 1) as i16)
        }
        M::Vpmuldq | M::Pmuldq => two!(i64, |a, b| i64::from(a as i32) * i64::from(b as i32)).whole(),
        M::Vpmuludq | M::Pmuludq => two!(u64, |a, b| u64::from(a as u32) * u64::from(b as u32)).whole(),
        M::Vpmaddwd | M::Pmaddwd => Row::new(
            Shape::Lanes(|r, a, b, op| {
                pairs::<i16, i32>(r, a, b, op, |[a, c], [b, d]| {
                    (i32::from(a) * i32::from(b)).wrapping_add(i32::from(c) * i32::from(d))
                });
            }),
            4,
        )
        .whole(),
        M::Vpmaddubsw | M::Pmaddubsw => Row::new(
            Shape::Lanes(|r, a, b, op| {
                lanes::two::<u16, u16>(r, a, b, op, |a, b| {
                    let [a, c] = a.to_le_bytes().map(i32::from);
                    let [b, d] = b.to_le_bytes().map(|x| i32::from(x.cast_signed()));
                    saturate::<i16>(i64::from(a * b + c * d), i16::MIN, i16::MAX).cast_unsigned()
                });
            }),
            2,
        )
        .whole(),
        M::Vpsadbw | M::Psadbw => Row::new(Shape::Lanes(sums_of_differences), 8),
        _ => return None,
    })
}

/// Returns the table row of a bitwise operation, or `None`.
fn logic_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Vpand | M::Vpandd | M::Pand | M::Vandps | M::Andps => two!(u32, |a, b| a & b),
        M::Vpandq | M::Vandpd | M::Andpd => two!(u64, |a, b| a & b),
        M::Vpandn | M::Vpandnd | M::Pandn | M::Vandnps | M::Andnps => two!(u32, |a, b| !a & b),
        M::Vpandnq | M::Vandnpd | M::Andnpd => two!(u64, |a, b| !a & b),
        M::Vpor | M::Vpord | M::Por | M::Vorps | M::Orps => two!(u32, |a, b| a | b),
        M::Vporq | M::Vorpd | M::Orpd => two!(u64, |a, b| a | b),
        M::Vpxor | M::Vpxord | M::Pxor | M::Vxorps | M::Xorps => two!(u32, |a, b| a ^ b),
        M::Vpxorq | M::Vxorpd | M::Xorpd => two!(u64, |a, b| a ^ b),
        M::Vpternlogd => Row::new(Shape::Accumulate(ternary), 4),
        M::Vpternlogq => Row::new(Shape::Accumulate(ternary), 8),
        _ => return None,
    })
}

/// Returns the table row of a minimum, maximum, absolute value or sign, or `None`.
fn extremum_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Vpminsb | M::Pminsb => two!(i8, i8::min),
        M::Vpminsw | M::Pminsw => two!(i16, i16::min),
        M::Vpminsd | M::Pminsd => two!(i32, i32::min),
        M::Vpminsq => two!(i64, i64::min),
        M::Vpminub | M::Pminub => two!(u8, u8::min),
        M::Vpminuw | M::Pminuw => two!(u16, u16::min),
        M::Vpminud | M::Pminud => two!(u32, u32::min),
        M::Vpminuq => two!(u64, u64::min),
        M::Vpmaxsb | M::Pmaxsb => two!(i8, i8::max),
        M::Vpmaxsw | M::Pmaxsw => two!(i16, i16::max),
        M::Vpmaxsd | M::Pmaxsd => two!(i32, i32::max),
        M::Vpmaxsq => two!(i64, i64::max),
        M::Vpmaxub | M::Pmaxub => two!(u8, u8::max),
        M::Vpmaxuw | M::Pmaxuw => two!(u16, u16::max),
        M::Vpmaxud | M::Pmaxud => two!(u32, u32::max),
        M::Vpmaxuq => two!(u64, u64::max),
        M::Vpabsb | M::Pabsb => one!(i8, i8::wrapping_abs),
        M::Vpabsw | M::Pabsw => one!(i16, i16::wrapping_abs),
        M::Vpabsd | M::Pabsd => one!(i32, i32::wrapping_abs),
        M::Vpabsq => one!(i64, i64::wrapping_abs),
        M::Vpsignb | M::Psignb => sign!(i8),
        M::Vpsignw | M::Psignw => sign!(i16),
        M::Vpsignd | M::Psignd => sign!(i32),
        _ => return None,
    })
}

/// Returns the table row of a comparison whose result is a vector, or `None`.
fn comparison_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    // EVEX comparisons are excluded, since their result is a mask.
    if i.encoding() == EncodingKind::EVEX {
        return None;
    }
    Some(match i.mnemonic() {
        M::Vpcmpeqb | M::Pcmpeqb => holds!(u8, |a, b| a == b),
        M::Vpcmpeqw | M::Pcmpeqw => holds!(u16, |a, b| a == b),
        M::Vpcmpeqd | M::Pcmpeqd => holds!(u32, |a, b| a == b),
        M::Vpcmpeqq | M::Pcmpeqq => holds!(u64, |a, b| a == b),
        M::Vpcmpgtb | M::Pcmpgtb => holds!(i8, |a, b| a > b),
        M::Vpcmpgtw | M::Pcmpgtw => holds!(i16, |a, b| a > b),
        M::Vpcmpgtd | M::Pcmpgtd => holds!(i32, |a, b| a > b),
        M::Vpcmpgtq | M::Pcmpgtq => holds!(i64, |a, b| a > b),
        _ => return None,
    })
}

/// Returns the table row of a shift by one count, or by a count for each element, or `None`.
fn shift_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Vpsllw | M::Psllw => shift!(i, u16, |x, n| shift_left(x, n, 16)),
        M::Vpslld | M::Pslld => shift!(i, u32, |x, n| shift_left(x, n, 32)),
        M::Vpsllq | M::Psllq => shift!(i, u64, |x, n| shift_left(x, n, 64)),
        M::Vpsrlw | M::Psrlw => shift!(i, u16, |x, n| right(x, n, 16)),
        M::Vpsrld | M::Psrld => shift!(i, u32, |x, n| right(x, n, 32)),
        M::Vpsrlq | M::Psrlq => shift!(i, u64, |x, n| right(x, n, 64)),
        M::Vpsraw | M::Psraw => shift!(i, i16, |x, n| x >> n.min(15)),
        M::Vpsrad | M::Psrad => shift!(i, i32, |x, n| x >> n.min(31)),
        M::Vpsraq => shift!(i, i64, |x, n| x >> n.min(63)),
        M::Vpsllvw => shift_each!(u16, |x, n| shift_left(x, n, 16)),
        M::Vpsllvd => shift_each!(u32, |x, n| shift_left(x, n, 32)),
        M::Vpsllvq => shift_each!(u64, |x, n| shift_left(x, n, 64)),
        M::Vpsrlvw => shift_each!(u16, |x, n| right(x, n, 16)),
        M::Vpsrlvd => shift_each!(u32, |x, n| right(x, n, 32)),
        M::Vpsrlvq => shift_each!(u64, |x, n| right(x, n, 64)),
        M::Vpsravw => two!(i16, |x, n| x >> n.cast_unsigned().min(15)),
        M::Vpsravd => two!(i32, |x, n| x >> n.cast_unsigned().min(31)),
        M::Vpsravq => two!(i64, |x, n| x >> n.cast_unsigned().min(63)),
        M::Vpmultishiftqb => Row::new(Shape::Lanes(multishift), 1).whole(),
        _ => return None,
    })
}

/// Returns the table row of a horizontal sum or a pack, or `None`.
fn horizontal_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Vphaddw | M::Phaddw => Row::new(Shape::Lanes(|r, a, b, op| horizontal(r, a, b, op, u16::wrapping_add)), 2),
        M::Vphaddd | M::Phaddd => Row::new(Shape::Lanes(|r, a, b, op| horizontal(r, a, b, op, u32::wrapping_add)), 4),
        M::Vphaddsw | M::Phaddsw => {
            Row::new(Shape::Lanes(|r, a, b, op| horizontal(r, a, b, op, i16::saturating_add)), 2)
        }
        M::Vphsubw | M::Phsubw => Row::new(Shape::Lanes(|r, a, b, op| horizontal(r, a, b, op, u16::wrapping_sub)), 2),
        M::Vphsubd | M::Phsubd => Row::new(Shape::Lanes(|r, a, b, op| horizontal(r, a, b, op, u32::wrapping_sub)), 4),
        M::Vphsubsw | M::Phsubsw => {
            Row::new(Shape::Lanes(|r, a, b, op| horizontal(r, a, b, op, i16::saturating_sub)), 2)
        }
        M::Vpacksswb | M::Packsswb => {
            Row::new(Shape::Lanes(|r, a, b, op| pack::<i16, i8>(r, a, b, op, |x| saturate(x, i8::MIN, i8::MAX))), 1)
                .whole()
        }
        M::Vpackssdw | M::Packssdw => {
            Row::new(Shape::Lanes(|r, a, b, op| pack::<i32, i16>(r, a, b, op, |x| saturate(x, i16::MIN, i16::MAX))), 2)
                .whole()
        }
        M::Vpackuswb | M::Packuswb => {
            Row::new(Shape::Lanes(|r, a, b, op| pack::<i16, u8>(r, a, b, op, |x| saturate(x, u8::MIN, u8::MAX))), 1)
                .whole()
        }
        M::Vpackusdw | M::Packusdw => {
            Row::new(Shape::Lanes(|r, a, b, op| pack::<i32, u16>(r, a, b, op, |x| saturate(x, u16::MIN, u16::MAX))), 2)
                .whole()
        }
        _ => return None,
    })
}

/// Returns the table row of a dot product that adds to the destination, or `None`.
fn dot_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        // In the manual, masked elements of these instructions and of `vpmuldq` do not fault. On a
        // Zen 4, they do.
        M::Vpdpbusd => three!(u32, dot::pdpbusd).whole(),
        M::Vpdpbusds => three!(u32, dot::pdpbusds).whole(),
        M::Vpdpwssd => three!(u32, dot::pdpwssd).whole(),
        M::Vpdpwssds => three!(u32, dot::pdpwssds).whole(),
        M::Vdpbf16ps => three!(u32, dot::dpbf16ps),
        _ => return None,
    })
}
