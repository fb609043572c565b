//! Selection of a statement: finds the selection function for its op.

use ixc_ir::kernel::{Imm, Inst as Statement, ValueId};

use super::X64Error;
use super::families::{Computation, Family};
use super::machine::Vreg;
use super::select::Selector;

/// Returns the integer immediate, or 0.
fn integer(inst: &Statement) -> i64 {
    match inst.imm {
        Imm::Int(i) => i,
        Imm::None | Imm::Float(_) | Imm::Bytes(_) => 0,
    }
}

/// Returns the error for a statement that the verifier refuses.
pub(super) fn malformed_error(inst: &Statement) -> X64Error {
    X64Error::Malformed { op: inst.op, ty: inst.ty }
}

/// Returns the value that a statement defines.
pub(super) fn result_of(inst: &Statement) -> Result<ValueId, X64Error> {
    inst.result.ok_or_else(|| malformed_error(inst))
}

/// Returns operand number `i` of a statement.
pub(super) fn operand_of(inst: &Statement, i: usize) -> Result<ValueId, X64Error> {
    inst.operands.get(i).copied().ok_or_else(|| malformed_error(inst))
}

impl Selector<'_> {
    /// Selects a statement that is not a loop.
    pub(super) fn statement(&mut self, inst: &Statement) -> Result<(), X64Error> {
        if inst.result.is_some_and(|r| self.uses.count(r) == 0) || self.defer(inst) {
            return Ok(());
        }
        match Family::from_op(inst.op) {
            Family::Nullary(op) => self.nullary(op, inst)?,
            Family::Store => self.store(inst)?,
            Family::Prefetch => self.prefetch(inst)?,
            Family::Tile(op) => self.tile(op, inst)?,
            Family::Bitcast => self.alias(result_of(inst)?, operand_of(inst, 0)?),
            Family::Broadcast if inst.ty.lanes == 1 => self.alias(result_of(inst)?, operand_of(inst, 0)?),
            Family::Broadcast => self.broadcast(result_of(inst)?, operand_of(inst, 0)?, inst.ty),
            // With an immediate of 0, the result is the operand itself or its low part.
            Family::Computation(Computation::Slice | Computation::Shift(_)) if integer(inst) == 0 => {
                self.alias(result_of(inst)?, operand_of(inst, 0)?);
            }
            Family::Computation(op) => {
                let result = result_of(inst)?;
                let register = self.computation(op, inst)?;
                self.set(result, register);
            }
        }
        Ok(())
    }

    /// Computes the result of an op and returns its register.
    fn computation(&mut self, op: Computation, inst: &Statement) -> Result<Vreg, X64Error> {
        let operand = |i| operand_of(inst, i);
        let refused = || malformed_error(inst);
        let (first, ty, int) = (operand(0)?, inst.ty, integer(inst));
        Ok(match op {
            Computation::Slice => self.slice(first, ty, int),
            Computation::Combine(op) => self.combine(op, ty, first, operand(1)?, int),
            Computation::SwapPairs => self.swap_pairs(first, ty),
            Computation::Interleave => self.interleave(first, ty),
            Computation::Lookup => self.lookup(first, ty, int),
            Computation::LookupQuarter => self.lookup_quarter(first, operand(1)?, ty, int),
            Computation::LookupByte => self.lookup_byte(first, operand(1)?, ty, int),
            Computation::Multishift => self.multishift(first, operand(1)?, ty),
            Computation::Binary(op) => self.binary(op, ty, first, operand(1)?).ok_or_else(refused)?,
            Computation::Bitwise(op) => self.bitwise(op, ty, first, operand(1)?),
            Computation::Comparison(op) => self.compare(op, ty, first, operand(1)?),
            Computation::Unary(op) => self.unary(op, ty, first).ok_or_else(refused)?,
            Computation::Shift(op) => self.shift(op, ty, first, int).ok_or_else(refused)?,
            Computation::Fma => self.fma(first, operand(1)?, operand(2)?, ty),
            Computation::Select => self.choose(first, operand(1)?, operand(2)?, ty),
            Computation::Dot4U8S8 => self.dot4(ty, first, operand(1)?, operand(2)?),
            Computation::Dot2Bf16 => self.dot2_bf16(ty, first, operand(1)?, operand(2)?),
            Computation::ToBf16 => self.to_bf16(first, ty),
            Computation::ToBf16Pairs => self.to_bf16_pairs(first, operand(1)?, ty),
            Computation::Bf16ToF32 => self.bf16_to_f32(first, ty),
            Computation::Extend(op) => self.extend(op, first, ty).ok_or_else(refused)?,
            Computation::NarrowS => self.narrow(first, ty).ok_or_else(refused)?,
            Computation::Reduce(op) => self.reduce(op, first).ok_or_else(refused)?,
        })
    }
}
