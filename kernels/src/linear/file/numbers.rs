//! Conversion of the floats of blocks to f32.

use ixc_ir::format::Number;
use ixc_ir::format::codec::HALF_OF_E4M3;
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

/// Returns the number that is stored as an f16, which may be divided by a power of two.
fn part(b: &mut KernelBuilder, number: Number, whole: ValueId) -> ValueId {
    match number {
        Number::PartOfHalf { halved } | Number::TopsOfWords { halved } => {
            let part = b.splat_f32(b.ty(whole).lanes, Number::part(halved));
            b.mul(whole, part)
        }
        Number::Half | Number::HalfOfPower | Number::HalfOfE4m3 | Number::Single => whole,
    }
}

/// Half of the number that would come after E4M3's largest number.
const E4M3_BEYOND: f32 = 240.0;

/// Returns a block's float, or the adjacent floats of several rows, as f32.
pub fn numbers(b: &mut KernelBuilder, number: Number, lanes: u16, buffer: BufferId, at: Affine) -> ValueId {
    match number {
        Number::Half => {
            let halves = b.load(Type::f16(lanes), buffer, at);
            b.op(Op::F16ToF32, Type::f32(lanes), &[halves])
        }
        Number::PartOfHalf { .. } => {
            let whole = numbers(b, Number::Half, lanes, buffer, at);
            part(b, number, whole)
        }
        Number::TopsOfWords { .. } => {
            let half = number_bits(b, number, buffer, at);
            let half = b.bitcast(Type::f16(1), half);
            let half = b.op(Op::F16ToF32, Type::f32(1), &[half]);
            part(b, number, half)
        }
        Number::HalfOfE4m3 => {
            let bytes = b.load(Type::i8(lanes), buffer, at);
            let words = b.op(Op::ExtendU, Type::i16(lanes), &[bytes]);
            let (words, magnitude) = (b.shift(Op::Shl, words, 7), b.splat_int(Type::i16(lanes), 0x3fff));
            let halves = b.same(Op::And, &[words, magnitude]);
            let halves = b.bitcast(Type::f16(lanes), halves);
            let whole = b.op(Op::F16ToF32, Type::f32(lanes), &[halves]);
            let (factor, nan) = (b.splat_f32(lanes, HALF_OF_E4M3), b.splat_f32(lanes, E4M3_BEYOND));
            let whole = b.mul(whole, factor);
            // After the conversion, E4M3's NaN has the value [`E4M3_BEYOND`]. It is replaced by 0.
            let is_number = b.op(Op::CmpLtF, Type::i32(lanes), &[whole, nan]);
            let bits = b.bitcast(Type::i32(lanes), whole);
            let bits = b.same(Op::And, &[bits, is_number]);
            b.bitcast(Type::f32(lanes), bits)
        }
        Number::HalfOfPower => {
            // The exponent field of `2^(e - 128)` is `e - 1`. For `e` of 0 and 1 the number is
            // subnormal, and its mantissa bits are `e + 1` in units of 2^-128. The larger of the
            // two bit patterns is the f32.
            let bytes = b.load(Type::i8(lanes), buffer, at);
            let e = b.op(Op::ExtendU, Type::i32(lanes), &[bytes]);
            let one = b.splat_int(Type::i32(lanes), 1);
            let (exponent, mantissa) = (b.same(Op::ISub, &[e, one]), b.iadd(e, one));
            let (normal, small) = (b.shift(Op::Shl, exponent, 23), b.shift(Op::Shl, mantissa, 21));
            let bits = b.same(Op::IMax, &[normal, small]);
            b.bitcast(Type::f32(lanes), bits)
        }
        Number::Single => b.load(Type::f32(lanes), buffer, at),
    }
}

/// Returns the type of an integer scalar with one, two or four bytes.
pub fn whole(bytes: usize) -> Type {
    match bytes {
        1 => Type::i8(1),
        2 => Type::i16(1),
        _ => Type::i32(1),
    }
}

/// Returns the bits of a block's float in the storage of packed blocks.
pub fn number_bits(b: &mut KernelBuilder, number: Number, buffer: BufferId, at: Affine) -> ValueId {
    match number {
        Number::Half | Number::PartOfHalf { .. } | Number::HalfOfPower | Number::HalfOfE4m3 | Number::Single => {
            b.load(whole(number.bytes()), buffer, at)
        }
        Number::TopsOfWords { .. } => {
            let dword = Type::i32(1);
            // The top four bits of each word are extracted, and the bits of two words are joined.
            let tops = [0, 4].map(|from| {
                let words = b.load(dword, buffer, at.clone() + from);
                let [low, high] = [(12, 15), (24, 0xf0)].map(|(by, mask)| {
                    let moved = b.shift(Op::ShrU, words, by);
                    let mask = b.splat_int(dword, mask);
                    b.same(Op::And, &[moved, mask])
                });
                b.same(Op::Or, &[low, high])
            });
            let high = b.shift(Op::Shl, tops[1], 8);
            let both = b.same(Op::Or, &[tops[0], high]);
            let words = b.bitcast(Type::i16(2), both);
            b.op_imm(Op::Extract, Type::i16(1), &[words], 0)
        }
    }
}
