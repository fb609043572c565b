//! Comparisons of floats, whose results are vectors or masks, and of integers, whose results are
//! masks.

use iced_x86::{EncodingKind, Instruction, Mnemonic, OpKind};

use crate::half_ops;
use crate::lanes::{self, Lane};
use crate::op::{MaskFn, Op};
use crate::vector::{Row, Shape};

/// Results of each of the 16 comparison predicates. Bits 0 to 3 are the results for greater, less,
/// equal and unordered operands. The other 16 predicates differ from these only in their
/// exceptions.
const PREDICATES: [u8; 16] = [
    0b0100, 0b0010, 0b0110, 0b1000, 0b1011, 0b1101, 0b1001, 0b0111, 0b1100, 0b1010, 0b1110, 0b0000, 0b0011, 0b0101,
    0b0001, 0b1111,
];

/// Returns the result of `vcmpps` or a similar instruction for one pair of elements.
fn float_holds<T: PartialOrd>(a: T, b: T, op: &Op) -> bool {
    let relation = match a.partial_cmp(&b) {
        Some(std::cmp::Ordering::Greater) => 0,
        Some(std::cmp::Ordering::Less) => 1,
        Some(std::cmp::Ordering::Equal) => 2,
        None => 3,
    };
    // Legacy instructions have only the first eight predicates.
    let predicate = op.imm8() & if op.legacy { 7 } else { 15 };
    PREDICATES[usize::from(predicate)] >> relation & 1 == 1
}

/// Returns the result of `vpcmpd` or a similar instruction for one pair of elements.
fn integer_holds<T: Ord>(a: T, b: T, op: &Op) -> bool {
    match op.imm8() & 7 {
        0 => a == b,
        1 => a < b,
        2 => a <= b,
        3 => false,
        4 => a != b,
        5 => a >= b,
        6 => a > b,
        _ => true,
    }
}

macro_rules! integer {
    ($t:ty) => {
        mask::<$t>(|a, b, op| lanes::bits::<$t>(a, b, op, |a, b| integer_holds(a, b, op)))
    };
    ($t:ty, $f:expr) => {
        mask::<$t>(|a, b, op| lanes::bits::<$t>(a, b, op, $f))
    };
}

fn mask<T: Lane>(f: MaskFn) -> Row {
    Row::new(Shape::Mask(f), T::BYTES as u8)
}

/// Returns the table row of a comparison, or `None` for other instructions.
pub(crate) fn row(i: &Instruction) -> Option<Row> {
    use Mnemonic as M;
    let to_mask = i.op0_kind() == OpKind::Register && i.op0_register().is_k();
    if i.encoding() == EncodingKind::EVEX && !to_mask {
        return None;
    }
    Some(match i.mnemonic() {
        M::Vcmpps if to_mask => mask::<f32>(|a, b, op| lanes::bits::<f32>(a, b, op, |a, b| float_holds(a, b, op))),
        M::Vcmppd if to_mask => mask::<f64>(|a, b, op| lanes::bits::<f64>(a, b, op, |a, b| float_holds(a, b, op))),
        M::Vcmpph => mask::<u16>(|a, b, op| lanes::bits::<u16>(a, b, op, |a, b| half_ops::compare(a, b, op.imm8()))),
        M::Vcmpsh => Row::new(
            Shape::ScalarMask(|a, b, op| u64::from(half_ops::compare(u16::get(a, 0), u16::get(b, 0), op.imm8()))),
            2,
        ),
        M::Vcmpss if to_mask => {
            Row::new(Shape::ScalarMask(|a, b, op| u64::from(float_holds(f32::get(a, 0), f32::get(b, 0), op))), 4)
        }
        M::Vcmpsd if to_mask => {
            Row::new(Shape::ScalarMask(|a, b, op| u64::from(float_holds(f64::get(a, 0), f64::get(b, 0), op))), 8)
        }
        M::Vcmpps | M::Cmpps => Row::new(
            Shape::Lanes(|r, a, b, op| {
                lanes::two::<f32, u32>(r, a, b, op, |a, b| if float_holds(a, b, op) { !0 } else { 0 });
            }),
            4,
        ),
        M::Vcmppd | M::Cmppd => Row::new(
            Shape::Lanes(|r, a, b, op| {
                lanes::two::<f64, u64>(r, a, b, op, |a, b| if float_holds(a, b, op) { !0 } else { 0 });
            }),
            8,
        ),
        M::Vcmpss | M::Cmpss => Row::new(
            Shape::Scalar(|r, a, b, op| {
                if float_holds(f32::get(a, 0), f32::get(b, 0), op) { !0u32 } else { 0 }.set(r, 0);
            }),
            4,
        ),
        M::Vcmpsd | M::Cmpsd => Row::new(
            Shape::Scalar(|r, a, b, op| {
                if float_holds(f64::get(a, 0), f64::get(b, 0), op) { !0u64 } else { 0 }.set(r, 0);
            }),
            8,
        ),
        M::Vpcmpb => integer!(i8),
        M::Vpcmpw => integer!(i16),
        M::Vpcmpd => integer!(i32),
        M::Vpcmpq => integer!(i64),
        M::Vpcmpub => integer!(u8),
        M::Vpcmpuw => integer!(u16),
        M::Vpcmpud => integer!(u32),
        M::Vpcmpuq => integer!(u64),
        M::Vpcmpeqb => integer!(u8, |a, b| a == b),
        M::Vpcmpeqw => integer!(u16, |a, b| a == b),
        M::Vpcmpeqd => integer!(u32, |a, b| a == b),
        M::Vpcmpeqq => integer!(u64, |a, b| a == b),
        M::Vpcmpgtb => integer!(i8, |a, b| a > b),
        M::Vpcmpgtw => integer!(i16, |a, b| a > b),
        M::Vpcmpgtd => integer!(i32, |a, b| a > b),
        M::Vpcmpgtq => integer!(i64, |a, b| a > b),
        M::Vptestmb => integer!(u8, |a, b| a & b != 0),
        M::Vptestmw => integer!(u16, |a, b| a & b != 0),
        M::Vptestmd => integer!(u32, |a, b| a & b != 0),
        M::Vptestmq => integer!(u64, |a, b| a & b != 0),
        M::Vptestnmb => integer!(u8, |a, b| a & b == 0),
        M::Vptestnmw => integer!(u16, |a, b| a & b == 0),
        M::Vptestnmd => integer!(u32, |a, b| a & b == 0),
        M::Vptestnmq => integer!(u64, |a, b| a & b == 0),
        _ => return None,
    })
}
