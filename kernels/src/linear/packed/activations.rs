//! Activations beside packed weights: numbers of a row's sub-block, each in all lanes.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Type, ValueId, VarId};

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

    /// The four quants of a group, in all lanes.
    pub fn group(&self, b: &mut KernelBuilder, lanes: u16, group: i64) -> ValueId {
        let x = self.splat(b, Type::i32(lanes), "quants", SUB, GROUP * group);
        b.bitcast(Type::i8(4 * lanes), x)
    }
}
