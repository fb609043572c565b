//! Decoding of vector, mask and tile instructions. The tables of the modules are searched one after
//! another.

use iced_x86::{EncodingKind, Instruction, Mnemonic};

use crate::op::{Op, Run};
use crate::{compare, convert, float, integer, masks, moves, shuffle, vector};

/// Whether the memory operand of a VEX or EVEX instruction must be aligned. Legacy instructions
/// have another rule.
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

/// Whether a legacy instruction accepts an unaligned memory operand of 16 bytes.
fn is_unaligned_legacy(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(mnemonic, M::Movups | M::Movupd | M::Movdqu | M::Lddqu)
}

/// Decodes a vector, mask or tile instruction. Returns `None` for other instructions.
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
