//! Readers of activations for products with packed weights. They load numbers of a row's sub-block
//! into all lanes.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId, VarId};

use super::SUB;

/// Number of bytes of a group of four quantised activations.
pub const GROUP: i64 = 4;

/// A block of a row of activations, with the index of a sub-block in it.
pub struct RowBlock {
    pub buffer: BufferId,
    pub format: Format,
    pub at: Affine,
    pub sub: Option<VarId>,
}

impl RowBlock {
    /// Returns the offset of element `i` of the sub-block in the field `field`. The field has
    /// `bytes` bytes for each sub-block.
    pub fn field(&self, field: &str, bytes: i64, i: i64) -> Affine {
        let at = self.at.clone() + (self.format.field(field) as i64 + i);
        match self.sub {
            Some(sub) => at + sub * bytes,
            None => at,
        }
    }

    /// Loads the number at [`RowBlock::field`], and copies it to all lanes.
    pub fn splat(&self, b: &mut KernelBuilder, ty: Type, field: &str, bytes: i64, i: i64) -> ValueId {
        let at = self.field(field, bytes, i);
        b.load_splat(ty, self.buffer, at)
    }

    /// Returns the minimums of the two halves of the sub-block times the activations' sums over
    /// these halves, as floats. `minimums` has two words for each row of the weight, in a dword.
    pub fn minimums(&self, b: &mut KernelBuilder, minimums: ValueId) -> ValueId {
        let (words, lanes) = (b.ty(minimums), b.ty(minimums).lanes / 2);
        let sums = self.splat(b, Type::i32(lanes), "sums16", 4, 0);
        let sums = b.bitcast(words, sums);
        let both = b.op(Op::Dot2S16, Type::i32(lanes), &[minimums, sums]);
        b.op(Op::ToF32, Type::f32(lanes), &[both])
    }

    /// Loads the four quantised activations of a group, and copies them to all lanes.
    pub fn group(&self, b: &mut KernelBuilder, lanes: u16, group: i64) -> ValueId {
        let x = self.splat(b, Type::i32(lanes), "quants", SUB, GROUP * group);
        b.bitcast(Type::i8(4 * lanes), x)
    }
}
