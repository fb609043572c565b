//! Table rows of conversions between number formats, and of widening and narrowing, one for each
//! mnemonic.

use iced_x86::{Instruction, Mnemonic};

use crate::float::Float;
use crate::lanes::{self, Lane};
use crate::op::Op;
use crate::soft::Rounding;
use crate::state::Vector;
use crate::vector::{Row, Shape};
use crate::{dot, half_ops};

/// Integer type that floats can be converted to.
pub(crate) trait Integer: Lane + TryFrom<i128> + Into<i128> {
    /// Result for a float that does not fit: the least number of a signed type, or the greatest of
    /// an unsigned one.
    const INDEFINITE: Self;
}

impl Integer for i32 {
    const INDEFINITE: i32 = i32::MIN;
}
impl Integer for i64 {
    const INDEFINITE: i64 = i64::MIN;
}
impl Integer for u32 {
    const INDEFINITE: u32 = u32::MAX;
}
impl Integer for u64 {
    const INDEFINITE: u64 = u64::MAX;
}

/// Converts a float to an integer.
pub(crate) fn to_integer<F: Float, T: Integer>(x: F, rounding: Rounding) -> T {
    F::FORMAT.to_integer(x.bits(), rounding).and_then(|x| T::try_from(x).ok()).unwrap_or(T::INDEFINITE)
}

/// Converts an integer to a float.
pub(crate) fn of_integer<F: Float, T: Integer>(x: T, rounding: Rounding) -> F {
    F::of_bits(F::FORMAT.of_integer(x.into(), rounding))
}

/// Converts a float to another float format.
pub(crate) fn round_between<F: Float, R: Float>(x: F, rounding: Rounding) -> R {
    R::of_bits(F::FORMAT.convert(x.bits(), R::FORMAT, rounding))
}

/// Converts single precision to the nearest `i32`. After 3·2^51 is added in double precision, the
/// low bits of the sum are the integer.
fn nearest_i32(x: f32) -> i32 {
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    // 2^31 is exact in single precision, and NaN is outside of the range.
    let fits = (-2_147_483_648.0..2_147_483_648.0).contains(&x);
    let low = (f64::from(x) + MAGIC).to_bits() as i32;
    if fits { low } else { i32::MIN }
}

fn truncated_i32(x: f32) -> i32 {
    let fits = (-2_147_483_648.0..2_147_483_648.0).contains(&x);
    if fits { x as i32 } else { i32::MIN }
}

/// Converts half precision to single. The shifted bits are a float whose exponent is too small by
/// 112: a multiplication corrects it, which is also exact for denormals.
fn widen_half(h: u16) -> u32 {
    let (sign, rest) = (u32::from(h & 0x8000) << 16, u32::from(h & 0x7fff) << 13);
    let finite = (f32::from_bits(rest) * f32::from_bits((127 + 112) << 23)).to_bits();
    // Infinities and NaN keep their fraction; a NaN becomes quiet.
    let special = rest | 0x7f80_0000 | if h & 0x03ff != 0 { 0x0040_0000 } else { 0 };
    sign | if h & 0x7c00 == 0x7c00 { special } else { finite }
}

fn to_integers<F: Float, T: Integer>(truncates: bool) -> Row {
    fn convert_rounding<F: Float, T: Integer>(r: &mut Vector, _: &Vector, b: &Vector, op: &Op) {
        lanes::each(r, op, |i| to_integer::<F, T>(F::get(b, i), op.rounding));
    }
    fn convert_truncating<F: Float, T: Integer>(r: &mut Vector, _: &Vector, b: &Vector, op: &Op) {
        lanes::each(r, op, |i| to_integer::<F, T>(F::get(b, i), Rounding::Zero));
    }
    let lanes = if truncates { convert_truncating::<F, T> } else { convert_rounding::<F, T> };
    Row::new(Shape::Lanes(lanes), T::BYTES as u8).from(F::BYTES as u8)
}

fn of_integers<T: Integer, F: Float>() -> Row {
    fn convert<T: Integer, F: Float>(r: &mut Vector, _: &Vector, b: &Vector, op: &Op) {
        lanes::each(r, op, |i| of_integer::<F, T>(T::get(b, i), op.rounding));
    }
    Row::new(Shape::Lanes(convert::<T, F>), F::BYTES as u8).from(T::BYTES as u8)
}

/// Returns the table row of `r[i] = f(b[i])`, for elements of different sizes.
macro_rules! each {
    ($from:ty, $to:ty, $f:expr) => {
        Row::new(
            Shape::Lanes(|r, _, b, op| {
                let f: fn($from, &Op) -> $to = $f;
                lanes::each(r, op, |i| f(<$from>::get(b, i), op));
            }),
            size_of::<$to>() as u8,
        )
        .from(size_of::<$from>() as u8)
    };
}

/// Returns the table row of a widening of integers.
macro_rules! widen {
    ($from:ty, $to:ty) => {
        Row::new(
            Shape::Lanes(|r, _, b, op| lanes::each(r, op, |i| <$to>::from(<$from>::get(b, i)))),
            size_of::<$to>() as u8,
        )
        .from(size_of::<$from>() as u8)
    };
}

/// Returns the table row of a narrowing of integers, by truncation or by clamping to the range of
/// the second type.
macro_rules! narrow {
    ($from:ty, $to:ty) => {
        each!($from, $to, |x, _| x as $to)
    };
    ($from:ty, $to:ty, saturated) => {
        each!($from, $to, |x, _| x.clamp(<$to>::MIN as $from, <$to>::MAX as $from) as $to)
    };
}

fn imm_rounding(op: &Op) -> Rounding {
    // If bit 2 is set, the mode is that of MXCSR, which is always to nearest here.
    if op.imm8() & 4 != 0 { Rounding::Nearest } else { Rounding::from_bits(op.imm8()) }
}

/// Converts single precision to bfloat16. The low half of the result comes from `b`, and the high
/// half from `a`.
fn two_to_bf16(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    let half = usize::from(op.count) / 2;
    lanes::each(r, op, |i| dot::cvtneps2bf16(if i < half { u32::get(b, i) } else { u32::get(a, i - half) }));
}

/// Returns the table row of a conversion, or `None` for other instructions.
pub(crate) fn row(i: &Instruction) -> Option<Row> {
    integer_row(i)
        .or_else(|| float_row(i))
        .or_else(|| half_integer_row(i))
        .or_else(|| widening_row(i))
        .or_else(|| narrowing_row(i))
}

/// Returns the table row of a conversion between integers and single or double precision, or
/// `None`.
fn integer_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Vcvtps2dq | M::Cvtps2dq => Row::new(
            Shape::Lanes(|r, _, b, op| match op.rounding {
                Rounding::Nearest => lanes::one::<f32, i32>(r, b, op, nearest_i32),
                _ => lanes::each(r, op, |i| to_integer::<f32, i32>(f32::get(b, i), op.rounding)),
            }),
            4,
        ),
        M::Vcvttps2dq | M::Cvttps2dq => {
            Row::new(Shape::Lanes(|r, _, b, op| lanes::one::<f32, i32>(r, b, op, truncated_i32)), 4)
        }
        M::Vcvtdq2ps | M::Cvtdq2ps => Row::new(
            Shape::Lanes(|r, _, b, op| match op.rounding {
                Rounding::Nearest => lanes::one::<i32, f32>(r, b, op, |x| x as f32),
                _ => lanes::each(r, op, |i| of_integer::<f32, i32>(i32::get(b, i), op.rounding)),
            }),
            4,
        ),
        M::Vcvtps2udq => to_integers::<f32, u32>(false),
        M::Vcvttps2udq => to_integers::<f32, u32>(true),
        M::Vcvtps2qq => to_integers::<f32, i64>(false),
        M::Vcvttps2qq => to_integers::<f32, i64>(true),
        M::Vcvtps2uqq => to_integers::<f32, u64>(false),
        M::Vcvttps2uqq => to_integers::<f32, u64>(true),
        M::Vcvtpd2dq | M::Cvtpd2dq => to_integers::<f64, i32>(false),
        M::Vcvttpd2dq | M::Cvttpd2dq => to_integers::<f64, i32>(true),
        M::Vcvtpd2udq => to_integers::<f64, u32>(false),
        M::Vcvttpd2udq => to_integers::<f64, u32>(true),
        M::Vcvtpd2qq => to_integers::<f64, i64>(false),
        M::Vcvttpd2qq => to_integers::<f64, i64>(true),
        M::Vcvtpd2uqq => to_integers::<f64, u64>(false),
        M::Vcvttpd2uqq => to_integers::<f64, u64>(true),
        M::Vcvtudq2ps => of_integers::<u32, f32>(),
        M::Vcvtdq2pd | M::Cvtdq2pd => of_integers::<i32, f64>(),
        M::Vcvtudq2pd => of_integers::<u32, f64>(),
        M::Vcvtqq2ps => of_integers::<i64, f32>(),
        M::Vcvtuqq2ps => of_integers::<u64, f32>(),
        M::Vcvtqq2pd => of_integers::<i64, f64>(),
        M::Vcvtuqq2pd => of_integers::<u64, f64>(),
        _ => return None,
    })
}

/// Returns the table row of a conversion between float formats, or `None`.
fn float_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Vcvtps2pd | M::Cvtps2pd => each!(f32, f64, |x, op| round_between(x, op.rounding)),
        M::Vcvtpd2ps | M::Cvtpd2ps => each!(f64, f32, |x, op| round_between(x, op.rounding)),
        M::Vcvtss2sd | M::Cvtss2sd => {
            Row::new(Shape::Scalar(|r, _, b, op| round_between::<f32, f64>(f32::get(b, 0), op.rounding).set(r, 0)), 8)
        }
        M::Vcvtsd2ss | M::Cvtsd2ss => {
            Row::new(Shape::Scalar(|r, _, b, op| round_between::<f64, f32>(f64::get(b, 0), op.rounding).set(r, 0)), 4)
        }
        M::Vcvtph2ps | M::Vcvtph2psx => each!(u16, u32, |x, _| widen_half(x)),
        M::Vcvtps2ph => each!(u32, u16, |x, op| half_ops::from_f32(x, imm_rounding(op))),
        M::Vcvtneps2bf16 => each!(u32, u16, |x, _| dot::cvtneps2bf16(x)),
        M::Vcvtne2ps2bf16 => Row::new(Shape::Lanes(two_to_bf16), 2).whole(),
        M::Vcvtps2phx => each!(u32, u16, |x, op| half_ops::from_f32(x, op.rounding)),
        M::Vcvtph2pd => each!(u16, u64, |x, _| half_ops::to_f64(x)),
        M::Vcvtpd2ph => each!(u64, u16, |x, op| half_ops::from_f64(x, op.rounding)),
        M::Vcvtsh2ss => Row::new(Shape::Scalar(|r, _, b, _| half_ops::to_f32(u16::get(b, 0)).set(r, 0)), 4),
        M::Vcvtsh2sd => Row::new(Shape::Scalar(|r, _, b, _| half_ops::to_f64(u16::get(b, 0)).set(r, 0)), 8),
        M::Vcvtss2sh => {
            Row::new(Shape::Scalar(|r, _, b, op| half_ops::from_f32(u32::get(b, 0), op.rounding).set(r, 0)), 2)
        }
        M::Vcvtsd2sh => {
            Row::new(Shape::Scalar(|r, _, b, op| half_ops::from_f64(u64::get(b, 0), op.rounding).set(r, 0)), 2)
        }
        _ => return None,
    })
}

/// Returns the table row of a conversion between integers and half precision, or `None`.
fn half_integer_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Vcvtph2w => each!(u16, i16, |x, op| half_ops::to_i16(x, op.rounding)),
        M::Vcvttph2w => each!(u16, i16, |x, _| half_ops::to_i16(x, Rounding::Zero)),
        M::Vcvtph2uw => each!(u16, u16, |x, op| half_ops::to_u16(x, op.rounding)),
        M::Vcvttph2uw => each!(u16, u16, |x, _| half_ops::to_u16(x, Rounding::Zero)),
        M::Vcvtph2dq => each!(u16, i32, |x, op| half_ops::to_i32(x, op.rounding)),
        M::Vcvttph2dq => each!(u16, i32, |x, _| half_ops::to_i32(x, Rounding::Zero)),
        M::Vcvtph2udq => each!(u16, u32, |x, op| half_ops::to_u32(x, op.rounding)),
        M::Vcvttph2udq => each!(u16, u32, |x, _| half_ops::to_u32(x, Rounding::Zero)),
        M::Vcvtph2qq => each!(u16, i64, |x, op| half_ops::to_i64(x, op.rounding)),
        M::Vcvttph2qq => each!(u16, i64, |x, _| half_ops::to_i64(x, Rounding::Zero)),
        M::Vcvtph2uqq => each!(u16, u64, |x, op| half_ops::to_u64(x, op.rounding)),
        M::Vcvttph2uqq => each!(u16, u64, |x, _| half_ops::to_u64(x, Rounding::Zero)),
        M::Vcvtw2ph => each!(i16, u16, |x, op| half_ops::from_i16(x, op.rounding)),
        M::Vcvtuw2ph => each!(u16, u16, |x, op| half_ops::from_u16(x, op.rounding)),
        M::Vcvtdq2ph => each!(i32, u16, |x, op| half_ops::from_i32(x, op.rounding)),
        M::Vcvtudq2ph => each!(u32, u16, |x, op| half_ops::from_u32(x, op.rounding)),
        M::Vcvtqq2ph => each!(i64, u16, |x, op| half_ops::from_i64(x, op.rounding)),
        M::Vcvtuqq2ph => each!(u64, u16, |x, op| half_ops::from_u64(x, op.rounding)),
        _ => return None,
    })
}

/// Returns the table row of a widening of integers, or `None`.
fn widening_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Vpmovzxbw | M::Pmovzxbw => widen!(u8, u16),
        M::Vpmovzxbd | M::Pmovzxbd => widen!(u8, u32),
        M::Vpmovzxbq | M::Pmovzxbq => widen!(u8, u64),
        M::Vpmovzxwd | M::Pmovzxwd => widen!(u16, u32),
        M::Vpmovzxwq | M::Pmovzxwq => widen!(u16, u64),
        M::Vpmovzxdq | M::Pmovzxdq => widen!(u32, u64),
        M::Vpmovsxbw | M::Pmovsxbw => widen!(i8, i16),
        M::Vpmovsxbd | M::Pmovsxbd => widen!(i8, i32),
        M::Vpmovsxbq | M::Pmovsxbq => widen!(i8, i64),
        M::Vpmovsxwd | M::Pmovsxwd => widen!(i16, i32),
        M::Vpmovsxwq | M::Pmovsxwq => widen!(i16, i64),
        M::Vpmovsxdq | M::Pmovsxdq => widen!(i32, i64),
        _ => return None,
    })
}

/// Returns the table row of a narrowing of integers, or `None`.
fn narrowing_row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Vpmovwb => narrow!(u16, u8),
        M::Vpmovdb => narrow!(u32, u8),
        M::Vpmovqb => narrow!(u64, u8),
        M::Vpmovdw => narrow!(u32, u16),
        M::Vpmovqw => narrow!(u64, u16),
        M::Vpmovqd => narrow!(u64, u32),
        M::Vpmovswb => narrow!(i16, i8, saturated),
        M::Vpmovsdb => narrow!(i32, i8, saturated),
        M::Vpmovsqb => narrow!(i64, i8, saturated),
        M::Vpmovsdw => narrow!(i32, i16, saturated),
        M::Vpmovsqw => narrow!(i64, i16, saturated),
        M::Vpmovsqd => narrow!(i64, i32, saturated),
        M::Vpmovuswb => narrow!(u16, u8, saturated),
        M::Vpmovusdb => narrow!(u32, u8, saturated),
        M::Vpmovusqb => narrow!(u64, u8, saturated),
        M::Vpmovusdw => narrow!(u32, u16, saturated),
        M::Vpmovusqw => narrow!(u64, u16, saturated),
        M::Vpmovusqd => narrow!(u64, u32, saturated),
        _ => return None,
    })
}
