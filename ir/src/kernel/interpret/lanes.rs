//! Ops that create vectors or move their lanes.

use super::InterpretError;
use super::vector::Vector;
use crate::format::grids::{BYTE_TABLES, TABLES};
use crate::kernel::{Imm, QUARTERS, Type};

/// Returns a vector with the constant `imm` in each lane.
pub fn splat(ty: Type, imm: &Imm) -> Vector {
    match imm {
        Imm::Float(value) => Vector::from_lanes(usize::from(ty.lanes), |_| *value),
        Imm::Int(value) => Vector::from_ints(ty, |_| *value),
        Imm::None | Imm::Bytes(_) => Vector::ZERO,
    }
}

/// Returns a vector of the constant bytes `imm`.
pub fn bytes_of(imm: &Imm) -> Vector {
    let mut vector = Vector::ZERO;
    if let Imm::Bytes(bytes) = imm {
        vector.0[..bytes.len()].copy_from_slice(bytes);
    }
    vector
}

/// Returns a vector with lane `lane` of `a` in every lane.
pub fn repeat_element(ty: Type, a: &Vector, lane: usize) -> Vector {
    let element = a.int(ty.elem, lane);
    Vector::from_ints(ty, |_| element)
}

/// Returns alternating groups of `unit` bytes of `a` and of `b`. In every 16 bytes, the groups come
/// from half `half` of the operands.
pub fn unpack(ty: Type, a: &Vector, b: &Vector, unit: usize, half: usize) -> Vector {
    let mut vector = Vector::ZERO;
    for chunk in (0..ty.bytes() as usize).step_by(16) {
        for i in 0..8 {
            let (from, to) = (chunk + half + i, chunk + (i / unit) * 2 * unit + i % unit);
            vector.0[to] = a.0[from];
            vector.0[to + unit] = b.0[from];
        }
    }
    vector
}

/// Exchanges lanes `2 i` and `2 i + 1`.
pub fn swap_pairs(lanes: usize, a: &Vector) -> Vector {
    Vector::from_lanes(lanes, |i| a.lane::<i32>(i ^ 1))
}

/// Returns alternating lanes of the lower half and of the upper half of `a`.
pub fn interleave(lanes: usize, a: &Vector) -> Vector {
    Vector::from_lanes(lanes, |i| a.lane::<u16>(i / 2 + i % 2 * (lanes / 2)))
}

/// Selects bytes of `a` by number within every 16 bytes. If the top bit of a number is set, the
/// result is 0.
pub fn shuffle_bytes(lanes: usize, a: &Vector, numbers: &Vector) -> Vector {
    Vector::from_lanes(lanes, |i| {
        let by = numbers.lane::<u8>(i);
        if by & 0x80 != 0 { 0u8 } else { a.lane((i & !15) + usize::from(by & 15)) }
    })
}

/// Returns the entries of table `table` whose indices are the lanes of `a`.
pub fn lookup(lanes: usize, a: &Vector, table: usize) -> Vector {
    let table = TABLES[table];
    Vector::from_lanes(lanes, |i| table[a.lane::<u32>(i) as usize % table.len()])
}

/// Returns a table entry for each 32-bit lane. In the lane, one byte of `low` is the low byte of
/// the entry's index, and the same byte of `high` is the high byte. `immediate` selects the table
/// and the byte.
pub fn lookup_quarter(lanes: usize, low: &Vector, high: &Vector, immediate: usize) -> Vector {
    let (table, quarter) = (TABLES[immediate / QUARTERS as usize], immediate % QUARTERS as usize);
    Vector::from_lanes(lanes, |i| {
        let byte = QUARTERS as usize * i + quarter;
        table[usize::from(u16::from_le_bytes([low.lane(byte), high.lane(byte)])) % table.len()]
    })
}

/// Returns entries of a table of bytes. For each byte lane, `low` and `high` have the bytes of the
/// entry's index.
pub fn lookup_byte(lanes: usize, low: &Vector, high: &Vector, table: usize) -> Vector {
    let table = BYTE_TABLES[table];
    let number = |i| usize::from(u16::from_le_bytes([low.lane(i), high.lane(i)]));
    Vector::from_lanes(lanes, |i| table[number(i) % table.len()])
}

/// Returns eight bits of `a` in each byte. They begin at the bit number in `from`, within the same
/// 8 bytes of `a`.
pub fn multishift(lanes: usize, a: &Vector, from: &Vector) -> Vector {
    Vector::from_lanes(lanes, |i| {
        let eight = u64::from_le_bytes(std::array::from_fn(|byte| a.lane((i & !7) + byte)));
        eight.rotate_right(u32::from(from.lane::<u8>(i) & 63)) as u8
    })
}

/// Returns lanes of `a` where the mask's lane is all ones, otherwise lanes of `b`.
///
/// # Errors
/// Fails if a lane of the mask is neither all ones nor all zeros.
pub fn select(lanes: usize, mask: &Vector, a: &Vector, b: &Vector) -> Result<Vector, InterpretError> {
    for lane in 0..lanes {
        let found = mask.lane::<u32>(lane);
        if found != 0 && found != u32::MAX {
            return Err(InterpretError::Mask { lane, found });
        }
    }
    Ok(Vector::from_lanes(lanes, |i| if mask.lane::<u32>(i) != 0 { a.lane::<u32>(i) } else { b.lane(i) }))
}
