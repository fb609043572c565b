//! Table rows of float vector arithmetic, one for each mnemonic.
//!
//! Rounding to nearest uses the host's arithmetic; every other mode uses [`soft`](crate::soft). A
//! NaN result is replaced as the processor specifies: by the first NaN operand, made quiet,
//! otherwise by the "real indefinite" NaN.

use iced_x86::{Instruction, Mnemonic};

use crate::lanes::{self, Lane};
use crate::op::Op;
use crate::soft::{F32, F64, Format, Rounding};
use crate::state::Vector;
use crate::vector::{Row, Shape};
use crate::{half_ops, wide};

/// Element type of float instructions: `f32` or `f64`.
pub(crate) trait Float: Lane {
    const FORMAT: Format;
    fn bits(self) -> u64;
    fn of_bits(bits: u64) -> Self;
    /// Computes `x · y + z`, rounded once, in every lane. `x`, `y` and `z` are whole vectors.
    fn fma(r: &mut Vector, x: &Vector, y: &Vector, z: &Vector, bytes: u8);
}

impl Float for f32 {
    const FORMAT: Format = F32;
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
    fn of_bits(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }
    fn fma(r: &mut Vector, x: &Vector, y: &Vector, z: &Vector, bytes: u8) {
        wide::fma_f32(r, x, y, z, bytes);
    }
}

impl Float for f64 {
    const FORMAT: Format = F64;
    fn bits(self) -> u64 {
        self.to_bits()
    }
    fn of_bits(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
    fn fma(r: &mut Vector, x: &Vector, y: &Vector, z: &Vector, bytes: u8) {
        wide::fma_f64(r, x, y, z, bytes);
    }
}

fn is_nan<T: Float>(x: T) -> bool {
    T::FORMAT.is_nan(x.bits())
}

fn negate<T: Float>(x: T) -> T {
    T::of_bits(x.bits() ^ T::FORMAT.sign())
}

/// Returns the result of an operation with NaN operands: the first operand that is NaN, made quiet.
fn nan_of<T: Float>(operands: &[T]) -> T {
    let first = operands.iter().copied().find(|x| is_nan(*x));
    T::of_bits(first.map_or(T::FORMAT.indefinite(), |x| x.bits() | T::FORMAT.quiet()))
}

/// Replaces NaN in the lanes of the result by the NaN that the processor returns. `nan` returns it
/// for a lane.
#[inline(always)]
fn repair<T: Float>(r: &mut Vector, op: &Op, nan: impl Fn(usize) -> T) {
    let mut any = false;
    for i in 0..usize::from(op.count) {
        let x = T::get(r, i);
        any |= x.partial_cmp(&x).is_none();
    }
    if any {
        for i in 0..usize::from(op.count) {
            if is_nan(T::get(r, i)) {
                nan(i).set(r, i);
            }
        }
    }
}

/// Computes an operation with two operands in every lane, with the rounding and the NaN rules of
/// the instruction.
#[inline(always)]
fn two<T: Float>(
    r: &mut Vector,
    a: &Vector,
    b: &Vector,
    op: &Op,
    host: impl Fn(T, T) -> T,
    soft: fn(Format, u64, u64, Rounding) -> u64,
) {
    if op.rounding == Rounding::Nearest {
        lanes::two::<T, T>(r, a, b, op, host);
        repair::<T>(r, op, |i| nan_of(&[T::get(a, i), T::get(b, i)]));
    } else {
        lanes::each(r, op, |i| {
            let (a, b) = (T::get(a, i), T::get(b, i));
            if is_nan(a) || is_nan(b) {
                nan_of(&[a, b])
            } else {
                T::of_bits(soft(T::FORMAT, a.bits(), b.bits(), op.rounding))
            }
        });
    }
}

#[inline(always)]
fn sqrt<T: Float>(r: &mut Vector, b: &Vector, op: &Op, host: impl Fn(T) -> T) {
    if op.rounding == Rounding::Nearest {
        lanes::one::<T, T>(r, b, op, host);
        repair::<T>(r, op, |i| nan_of(&[T::get(b, i)]));
    } else {
        lanes::each(r, op, |i| {
            let b = T::get(b, i);
            if is_nan(b) { nan_of(&[b]) } else { T::of_bits(T::FORMAT.sqrt(b.bits(), op.rounding)) }
        });
    }
}

/// Signs of the product and of the addend of a fused multiply-add. In the alternating instructions,
/// the addend's sign differs between even and odd lanes.
#[derive(Clone, Copy)]
struct Signs {
    product: bool,
    /// Whether the addend is negated: in even lanes, and in odd lanes.
    addend: [bool; 2],
}

const ADD: Signs = Signs { product: false, addend: [false, false] };
const SUB: Signs = Signs { product: false, addend: [true, true] };
const NEGATIVE_ADD: Signs = Signs { product: true, addend: [false, false] };
const NEGATIVE_SUB: Signs = Signs { product: true, addend: [true, true] };
const ADD_SUB: Signs = Signs { product: false, addend: [true, false] };
const SUB_ADD: Signs = Signs { product: false, addend: [false, true] };

/// Computes `x · y + z` in every lane. `r` holds the accumulator on entry. If several operands are
/// NaN, the result is that of `x`, then `y`, then `z`, with its own sign.
#[inline(always)]
fn fma<T: Float>(r: &mut Vector, x: &Vector, y: &Vector, z: &Vector, op: &Op, signs: Signs) {
    let flip = T::FORMAT.sign();
    let signed = |v: &Vector, negative: [bool; 2]| {
        let mut v = *v;
        if negative != [false, false] {
            for i in 0..64 / T::BYTES {
                T::of_bits(T::get(&v, i).bits() ^ if negative[i % 2] { flip } else { 0 }).set(&mut v, i);
            }
        }
        v
    };
    let (p, s) = (signed(x, [signs.product; 2]), signed(z, signs.addend));
    if op.rounding == Rounding::Nearest {
        T::fma(r, &p, y, &s, op.bytes);
        repair::<T>(r, op, |i| nan_of(&[T::get(x, i), T::get(y, i), T::get(z, i)]));
    } else {
        let mut result = Vector::ZERO;
        lanes::each(&mut result, op, |i| {
            let operands = [T::get(x, i), T::get(y, i), T::get(z, i)];
            if operands.iter().any(|x| is_nan(*x)) {
                return nan_of(&operands);
            }
            let bits = [&p, y, &s].map(|v| T::get(v, i).bits());
            T::of_bits(T::FORMAT.fma(bits[0], bits[1], bits[2], op.rounding))
        });
        *r = result;
    }
}

/// Computes [`fma`] in half precision.
fn fma_half(r: &mut Vector, x: &Vector, y: &Vector, z: &Vector, op: &Op, signs: Signs) {
    let mut result = Vector::ZERO;
    lanes::each(&mut result, op, |i| {
        let [x, y, z] = [x, y, z].map(|v| u16::get(v, i));
        half_ops::fma_signed(x, y, z, signs.product, signs.addend[i % 2], op.rounding)
    });
    *r = result;
}

/// Calls the fused multiply-add function for an element type.
macro_rules! fma_of {
    (half, $r:expr, $x:expr, $y:expr, $z:expr, $op:expr, $signs:ident) => {
        fma_half($r, $x, $y, $z, $op, $signs)
    };
    ($t:ident, $r:expr, $x:expr, $y:expr, $z:expr, $op:expr, $signs:ident) => {
        fma::<$t>($r, $x, $y, $z, $op, $signs)
    };
}

macro_rules! bytes_of {
    (half) => {
        2
    };
    ($t:ident) => {
        size_of::<$t>() as u8
    };
}

/// Returns the table rows of the three forms (132, 213, 231) of each line. The forms differ in the
/// operands that are multiplied and added.
macro_rules! fma_rows {
    ($i:expr; $($shape:ident $t:ident $signs:ident: $f132:ident $f213:ident $f231:ident;)*) => {
        match $i.mnemonic() {
            $(
                Mnemonic::$f132 => Some(Row::new(
                    Shape::$shape(|r, a, b, op| { let d = *r; fma_of!($t, r, &d, b, a, op, $signs) }), bytes_of!($t))),
                Mnemonic::$f213 => Some(Row::new(
                    Shape::$shape(|r, a, b, op| { let d = *r; fma_of!($t, r, a, &d, b, op, $signs) }), bytes_of!($t))),
                Mnemonic::$f231 => Some(Row::new(
                    Shape::$shape(|r, a, b, op| { let d = *r; fma_of!($t, r, a, b, &d, op, $signs) }), bytes_of!($t))),
            )*
            _ => None,
        }
    };
}

fn fma_row(i: &Instruction) -> Option<Row> {
    fma_rows!(i;
        Accumulate f32 ADD: Vfmadd132ps Vfmadd213ps Vfmadd231ps;
        Accumulate f64 ADD: Vfmadd132pd Vfmadd213pd Vfmadd231pd;
        Accumulate half ADD: Vfmadd132ph Vfmadd213ph Vfmadd231ph;
        ScalarAccumulate f32 ADD: Vfmadd132ss Vfmadd213ss Vfmadd231ss;
        ScalarAccumulate f64 ADD: Vfmadd132sd Vfmadd213sd Vfmadd231sd;
        ScalarAccumulate half ADD: Vfmadd132sh Vfmadd213sh Vfmadd231sh;
        Accumulate f32 SUB: Vfmsub132ps Vfmsub213ps Vfmsub231ps;
        Accumulate f64 SUB: Vfmsub132pd Vfmsub213pd Vfmsub231pd;
        Accumulate half SUB: Vfmsub132ph Vfmsub213ph Vfmsub231ph;
        ScalarAccumulate f32 SUB: Vfmsub132ss Vfmsub213ss Vfmsub231ss;
        ScalarAccumulate f64 SUB: Vfmsub132sd Vfmsub213sd Vfmsub231sd;
        ScalarAccumulate half SUB: Vfmsub132sh Vfmsub213sh Vfmsub231sh;
        Accumulate f32 NEGATIVE_ADD: Vfnmadd132ps Vfnmadd213ps Vfnmadd231ps;
        Accumulate f64 NEGATIVE_ADD: Vfnmadd132pd Vfnmadd213pd Vfnmadd231pd;
        Accumulate half NEGATIVE_ADD: Vfnmadd132ph Vfnmadd213ph Vfnmadd231ph;
        ScalarAccumulate f32 NEGATIVE_ADD: Vfnmadd132ss Vfnmadd213ss Vfnmadd231ss;
        ScalarAccumulate f64 NEGATIVE_ADD: Vfnmadd132sd Vfnmadd213sd Vfnmadd231sd;
        ScalarAccumulate half NEGATIVE_ADD: Vfnmadd132sh Vfnmadd213sh Vfnmadd231sh;
        Accumulate f32 NEGATIVE_SUB: Vfnmsub132ps Vfnmsub213ps Vfnmsub231ps;
        Accumulate f64 NEGATIVE_SUB: Vfnmsub132pd Vfnmsub213pd Vfnmsub231pd;
        Accumulate half NEGATIVE_SUB: Vfnmsub132ph Vfnmsub213ph Vfnmsub231ph;
        ScalarAccumulate f32 NEGATIVE_SUB: Vfnmsub132ss Vfnmsub213ss Vfnmsub231ss;
        ScalarAccumulate f64 NEGATIVE_SUB: Vfnmsub132sd Vfnmsub213sd Vfnmsub231sd;
        ScalarAccumulate half NEGATIVE_SUB: Vfnmsub132sh Vfnmsub213sh Vfnmsub231sh;
        Accumulate f32 ADD_SUB: Vfmaddsub132ps Vfmaddsub213ps Vfmaddsub231ps;
        Accumulate f64 ADD_SUB: Vfmaddsub132pd Vfmaddsub213pd Vfmaddsub231pd;
        Accumulate half ADD_SUB: Vfmaddsub132ph Vfmaddsub213ph Vfmaddsub231ph;
        Accumulate f32 SUB_ADD: Vfmsubadd132ps Vfmsubadd213ps Vfmsubadd231ps;
        Accumulate f64 SUB_ADD: Vfmsubadd132pd Vfmsubadd213pd Vfmsubadd231pd;
        Accumulate half SUB_ADD: Vfmsubadd132ph Vfmsubadd213ph Vfmsubadd231ph;
    )
}

/// Returns the minimum of two operands. If one is NaN, or both are zero, `min` and `max` return the
/// second operand.
fn min<T: Float>(a: T, b: T) -> T {
    if a < b { a } else { b }
}

fn max<T: Float>(a: T, b: T) -> T {
    if a > b { a } else { b }
}

/// Combines adjacent elements with `f`. Every 128 bits of the result have the pairs of `a`, and
/// then the pairs of `b`.
fn horizontal<T: Float>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op, f: impl Fn(T, T) -> T) {
    let half = 8 / T::BYTES;
    lanes::by_128(r, op, |first, i| {
        let (from, pair) = if i < half { (a, i) } else { (b, i - half) };
        let (x, y) = (T::get(from, first + 2 * pair), T::get(from, first + 2 * pair + 1));
        let z = f(x, y);
        if is_nan(z) { nan_of(&[x, y]) } else { z }
    });
}

/// Subtracts in even lanes and adds in odd ones.
fn alternate<T: Float>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op, f: impl Fn(T, T) -> T) {
    lanes::each(r, op, |i| {
        let (x, y) = (T::get(a, i), T::get(b, i));
        let z = f(x, if i % 2 == 0 { negate(y) } else { y });
        if is_nan(z) { nan_of(&[x, y]) } else { z }
    });
}

/// Executes `vroundps` and similar instructions. With `scaled`, executes `vrndscaleps` and similar
/// instructions.
fn round<T: Float>(r: &mut Vector, b: &Vector, op: &Op, scaled: bool) {
    let imm = op.imm8();
    // If bit 2 is set, the mode is that of MXCSR, which is always to nearest here.
    let rounding = if imm & 4 != 0 { Rounding::Nearest } else { Rounding::from_bits(imm) };
    let scale = if scaled { imm >> 4 } else { 0 };
    lanes::each(r, op, |i| {
        let x = T::get(b, i);
        if is_nan(x) { nan_of(&[x]) } else { T::of_bits(T::FORMAT.round_to_multiple(x.bits(), scale, rounding)) }
    });
}

/// Executes `vreduceps` and similar instructions: returns the difference between the operand and
/// the result of [`round`].
fn reduce<T: Float>(r: &mut Vector, b: &Vector, op: &Op) {
    let imm = op.imm8();
    let rounding = if imm & 4 != 0 { Rounding::Nearest } else { Rounding::from_bits(imm) };
    lanes::each(r, op, |i| {
        let x = T::get(b, i);
        if is_nan(x) {
            return nan_of(&[x]);
        }
        if T::FORMAT.is_infinite(x.bits()) {
            return T::of_bits(0);
        }
        let rounded = T::FORMAT.round_to_multiple(x.bits(), imm >> 4, rounding);
        T::of_bits(T::FORMAT.sub(x.bits(), rounded, rounding))
    });
}

/// Executes `vgetexpps` and similar instructions: returns the exponent as a float.
fn exponent<T: Float>(r: &mut Vector, b: &Vector, op: &Op) {
    lanes::each(r, op, |i| {
        let x = T::get(b, i);
        let f = T::FORMAT;
        if is_nan(x) {
            return nan_of(&[x]);
        }
        T::of_bits(if f.is_infinite(x.bits()) {
            f.infinity()
        } else if f.is_zero(x.bits()) {
            f.infinity() | f.sign()
        } else {
            let x = f.unpack(x.bits());
            let top = 127 - x.mantissa.leading_zeros() as i32;
            f.of_integer(i128::from(top + x.exponent), Rounding::Nearest)
        })
    });
}

/// Executes `vscalefps` and similar instructions: `a · 2^floor(b)`.
fn scale<T: Float>(r: &mut Vector, a: &Vector, b: &Vector, op: &Op) {
    lanes::each(r, op, |i| {
        let (a, b) = (T::get(a, i), T::get(b, i));
        let f = T::FORMAT;
        if is_nan(a) {
            // With a quiet NaN in `a` and an infinite scale, the result is not NaN, but infinity or
            // zero.
            let quiet = a.bits() & f.quiet() != 0;
            return match (quiet && f.is_infinite(b.bits()), b.bits() & f.sign() != 0) {
                (true, false) => T::of_bits(f.infinity()),
                (true, true) => T::of_bits(0),
                (false, _) => nan_of(&[a]),
            };
        }
        if is_nan(b) {
            return nan_of(&[b]);
        }
        let sign = a.bits() & f.sign();
        let (zero, infinite) = (f.is_zero(a.bits()), f.is_infinite(a.bits()));
        if f.is_infinite(b.bits()) {
            let up = b.bits() & f.sign() == 0;
            return T::of_bits(match (up, zero, infinite) {
                (true, true, _) | (false, _, true) => f.indefinite(),
                (true, ..) => f.infinity() | sign,
                (false, ..) => sign,
            });
        }
        if zero || infinite {
            return a;
        }
        // With larger exponents, the result overflows or becomes zero in every case.
        let by = f.to_integer(b.bits(), Rounding::Down).unwrap_or(if b.bits() & f.sign() != 0 {
            i128::MIN
        } else {
            i128::MAX
        });
        let mut x = f.unpack(a.bits());
        x.exponent += by.clamp(-10_000, 10_000) as i32;
        T::of_bits(f.round(x, false, op.rounding))
    });
}

macro_rules! arithmetic {
    ($shape:ident, $t:ty, $host:expr, $soft:ident) => {
        Row::new(Shape::$shape(|r, a, b, op| two::<$t>(r, a, b, op, $host, Format::$soft)), size_of::<$t>() as u8)
    };
}

macro_rules! plain {
    ($shape:ident, $t:ty, $f:expr) => {
        Row::new(Shape::$shape(|r, a, b, op| lanes::two::<$t, $t>(r, a, b, op, $f)), size_of::<$t>() as u8)
    };
}

macro_rules! unary {
    ($shape:ident, $t:ty, $f:expr) => {
        Row::new(Shape::$shape($f), size_of::<$t>() as u8)
    };
}

macro_rules! half {
    ($shape:ident, $f:expr) => {
        Row::new(
            Shape::$shape(|r, a, b, op| {
                let f: fn(u16, u16, &Op) -> u16 = $f;
                let a = *a;
                lanes::each(r, op, |i| f(u16::get(&a, i), u16::get(b, i), op));
            }),
            2,
        )
    };
}

/// Returns the table row of a float instruction, or `None` for other instructions.
pub(crate) fn row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Vaddps | M::Addps => arithmetic!(Lanes, f32, |a, b| a + b, add),
        M::Vaddpd | M::Addpd => arithmetic!(Lanes, f64, |a, b| a + b, add),
        M::Vaddss | M::Addss => arithmetic!(Scalar, f32, |a, b| a + b, add),
        M::Vaddsd | M::Addsd => arithmetic!(Scalar, f64, |a, b| a + b, add),
        M::Vsubps | M::Subps => arithmetic!(Lanes, f32, |a, b| a - b, sub),
        M::Vsubpd | M::Subpd => arithmetic!(Lanes, f64, |a, b| a - b, sub),
        M::Vsubss | M::Subss => arithmetic!(Scalar, f32, |a, b| a - b, sub),
        M::Vsubsd | M::Subsd => arithmetic!(Scalar, f64, |a, b| a - b, sub),
        M::Vmulps | M::Mulps => arithmetic!(Lanes, f32, |a, b| a * b, mul),
        M::Vmulpd | M::Mulpd => arithmetic!(Lanes, f64, |a, b| a * b, mul),
        M::Vmulss | M::Mulss => arithmetic!(Scalar, f32, |a, b| a * b, mul),
        M::Vmulsd | M::Mulsd => arithmetic!(Scalar, f64, |a, b| a * b, mul),
        M::Vdivps | M::Divps => arithmetic!(Lanes, f32, |a, b| a / b, div),
        M::Vdivpd | M::Divpd => arithmetic!(Lanes, f64, |a, b| a / b, div),
        M::Vdivss | M::Divss => arithmetic!(Scalar, f32, |a, b| a / b, div),
        M::Vdivsd | M::Divsd => arithmetic!(Scalar, f64, |a, b| a / b, div),
        M::Vminps | M::Minps => plain!(Lanes, f32, min),
        M::Vminpd | M::Minpd => plain!(Lanes, f64, min),
        M::Vminss | M::Minss => plain!(Scalar, f32, min),
        M::Vminsd | M::Minsd => plain!(Scalar, f64, min),
        M::Vmaxps | M::Maxps => plain!(Lanes, f32, max),
        M::Vmaxpd | M::Maxpd => plain!(Lanes, f64, max),
        M::Vmaxss | M::Maxss => plain!(Scalar, f32, max),
        M::Vmaxsd | M::Maxsd => plain!(Scalar, f64, max),
        M::Vsqrtps | M::Sqrtps => unary!(Lanes, f32, |r, _, b, op| sqrt::<f32>(r, b, op, f32::sqrt)),
        M::Vsqrtpd | M::Sqrtpd => unary!(Lanes, f64, |r, _, b, op| sqrt::<f64>(r, b, op, f64::sqrt)),
        M::Vsqrtss | M::Sqrtss => unary!(Scalar, f32, |r, _, b, op| sqrt::<f32>(r, b, op, f32::sqrt)),
        M::Vsqrtsd | M::Sqrtsd => unary!(Scalar, f64, |r, _, b, op| sqrt::<f64>(r, b, op, f64::sqrt)),

        M::Vroundps | M::Roundps => unary!(Lanes, f32, |r, _, b, op| round::<f32>(r, b, op, false)),
        M::Vroundpd | M::Roundpd => unary!(Lanes, f64, |r, _, b, op| round::<f64>(r, b, op, false)),
        M::Vroundss | M::Roundss => unary!(Scalar, f32, |r, _, b, op| round::<f32>(r, b, op, false)),
        M::Vroundsd | M::Roundsd => unary!(Scalar, f64, |r, _, b, op| round::<f64>(r, b, op, false)),
        M::Vrndscaleps => unary!(Lanes, f32, |r, _, b, op| round::<f32>(r, b, op, true)),
        M::Vrndscalepd => unary!(Lanes, f64, |r, _, b, op| round::<f64>(r, b, op, true)),
        M::Vrndscaless => unary!(Scalar, f32, |r, _, b, op| round::<f32>(r, b, op, true)),
        M::Vrndscalesd => unary!(Scalar, f64, |r, _, b, op| round::<f64>(r, b, op, true)),
        M::Vreduceps => unary!(Lanes, f32, |r, _, b, op| reduce::<f32>(r, b, op)),
        M::Vreducepd => unary!(Lanes, f64, |r, _, b, op| reduce::<f64>(r, b, op)),
        M::Vreducess => unary!(Scalar, f32, |r, _, b, op| reduce::<f32>(r, b, op)),
        M::Vreducesd => unary!(Scalar, f64, |r, _, b, op| reduce::<f64>(r, b, op)),
        M::Vgetexpps => unary!(Lanes, f32, |r, _, b, op| exponent::<f32>(r, b, op)),
        M::Vgetexppd => unary!(Lanes, f64, |r, _, b, op| exponent::<f64>(r, b, op)),
        M::Vgetexpss => unary!(Scalar, f32, |r, _, b, op| exponent::<f32>(r, b, op)),
        M::Vgetexpsd => unary!(Scalar, f64, |r, _, b, op| exponent::<f64>(r, b, op)),
        M::Vscalefps => unary!(Lanes, f32, scale::<f32>),
        M::Vscalefpd => unary!(Lanes, f64, scale::<f64>),
        M::Vscalefss => unary!(Scalar, f32, scale::<f32>),
        M::Vscalefsd => unary!(Scalar, f64, scale::<f64>),

        M::Vhaddps | M::Haddps => unary!(Lanes, f32, |r, a, b, op| horizontal::<f32>(r, a, b, op, |x, y| x + y)),
        M::Vhaddpd | M::Haddpd => unary!(Lanes, f64, |r, a, b, op| horizontal::<f64>(r, a, b, op, |x, y| x + y)),
        M::Vhsubps | M::Hsubps => unary!(Lanes, f32, |r, a, b, op| horizontal::<f32>(r, a, b, op, |x, y| x - y)),
        M::Vhsubpd | M::Hsubpd => unary!(Lanes, f64, |r, a, b, op| horizontal::<f64>(r, a, b, op, |x, y| x - y)),
        M::Vaddsubps | M::Addsubps => unary!(Lanes, f32, |r, a, b, op| alternate::<f32>(r, a, b, op, |x, y| x + y)),
        M::Vaddsubpd | M::Addsubpd => unary!(Lanes, f64, |r, a, b, op| alternate::<f64>(r, a, b, op, |x, y| x + y)),

        M::Vaddph => half!(Lanes, |a, b, op| half_ops::add(a, b, op.rounding)),
        M::Vaddsh => half!(Scalar, |a, b, op| half_ops::add(a, b, op.rounding)),
        M::Vsubph => half!(Lanes, |a, b, op| half_ops::sub(a, b, op.rounding)),
        M::Vsubsh => half!(Scalar, |a, b, op| half_ops::sub(a, b, op.rounding)),
        M::Vmulph => half!(Lanes, |a, b, op| half_ops::mul(a, b, op.rounding)),
        M::Vmulsh => half!(Scalar, |a, b, op| half_ops::mul(a, b, op.rounding)),
        M::Vdivph => half!(Lanes, |a, b, op| half_ops::div(a, b, op.rounding)),
        M::Vdivsh => half!(Scalar, |a, b, op| half_ops::div(a, b, op.rounding)),
        M::Vminph => half!(Lanes, |a, b, _| half_ops::min(a, b)),
        M::Vminsh => half!(Scalar, |a, b, _| half_ops::min(a, b)),
        M::Vmaxph => half!(Lanes, |a, b, _| half_ops::max(a, b)),
        M::Vmaxsh => half!(Scalar, |a, b, _| half_ops::max(a, b)),
        M::Vsqrtph => half!(Lanes, |_, b, op| half_ops::sqrt(b, op.rounding)),
        M::Vsqrtsh => half!(Scalar, |_, b, op| half_ops::sqrt(b, op.rounding)),
        M::Vrndscaleph => half!(Lanes, |_, b, op| half_ops::round_scale(b, op.imm8())),
        M::Vrndscalesh => half!(Scalar, |_, b, op| half_ops::round_scale(b, op.imm8())),
        _ => return fma_row(i),
    })
}
