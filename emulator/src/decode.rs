//! Lookup of the row of a vector instruction: searches the tables one after the other.

use iced_x86::{EncodingKind, Instruction, Mnemonic};

use crate::op::{Op, Run};
use crate::{compare, convert, float, integer, masks, moves, shuffle, vector};

/// Whether an instruction's memory operand must be aligned. Legacy instructions have separate
/// rules.
fn is_aligned(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Vmovaps
            | M::Vmovapd
            | M::Vmovdqa
            | M::Vmovdqa32
            | M::Vmovdqa64
            | M::Vmovntdq
            | M::Vmovntps
            | M::Vmovntpd
            | M::Vmovntdqa
    )
}

/// Whether a legacy instruction's 16 bytes of memory need not be aligned.
fn is_unaligned_legacy(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(mnemonic, M::Movups | M::Movupd | M::Movdqu | M::Lddqu)
}

/// Decodes a vector, mask or tile instruction.
pub(crate) fn decode(i: &Instruction, op: &mut Op) -> Option<Run> {
    op.legacy = i.encoding() == EncodingKind::Legacy;
    let aligned = op.legacy && op.memory_bytes == 16 && !is_unaligned_legacy(i.mnemonic());
    if is_aligned(i.mnemonic()) || aligned {
        op.alignment = op.memory_bytes;
    }
    if let Some(run) = masks::decode(i, op).or_else(|| moves::decode(i, op)) {
        return Some(run);
    }
    let row = integer::row(i).or_else(|| float::row(i)).or_else(|| compare::row(i)).or_else(|| convert::row(i));
    let row = row.or_else(|| shuffle::row(i))?;
    vector::operands(i, op, &row)
}
