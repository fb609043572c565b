//! Activations beside packed weights: numbers of a row's sub-block, each in all lanes.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId, VarId};

use super::SUB;

/// Bytes of four quants.
pub const GROUP: i64 = 4;

/// A block of a row of activations, and which of its sub-blocks.
pub struct RowBlock {
    pub buffer: BufferId,
    pub format: Format,
    pub at: Affine,
    pub sub: Option<VarId>,
}

impl RowBlock {
    /// Item `i` of `field`, of which a sub-block has `bytes`.
    pub fn field(&self, field: &str, bytes: i64, i: i64) -> Affine {
        let at = self.at.clone() + (self.format.field(field) as i64 + i);
        match self.sub {
            Some(sub) => at + sub * bytes,
            None => at,
        }
    }

    /// The number there, in all lanes.
    pub fn splat(&self, b: &mut KernelBuilder, ty: Type, field: &str, bytes: i64, i: i64) -> ValueId {
        let at = self.field(field, bytes, i);
        b.load_splat(ty, self.buffer, at)
    }

    /// Minimums of both halves of the sub-block, words in a dword for each row of the weight, times the sums of these: as floats.
    pub fn minimums(&self, b: &mut KernelBuilder, minimums: ValueId) -> ValueId {
        let (words, lanes) = (b.ty(minimums), b.ty(minimums).lanes / 2);
        let sums = self.splat(b, Type::i32(lanes), "sums16", 4, 0);
        let sums = b.bitcast(words, sums);
        let both = b.op(Op::Dot2S16, Type::i32(lanes), &[minimums, sums]);
        b.op(Op::ToF32, Type::f32(lanes), &[both])
    }

    /// The four quants of a group, in all lanes.
    pub fn group(&self, b: &mut KernelBuilder, lanes: u16, group: i64) -> ValueId {
        let x = self.splat(b, Type::i32(lanes), "quants", SUB, GROUP * group);
        b.bitcast(Type::i8(4 * lanes), x)
    }
}
