//! Selection of a statement: finds the function for its op.

use ixc_ir::kernel::{Imm, Inst as Statement, Op, ValueId};

use super::X64Error;
use super::machine::Vreg;
use super::select::Selector;

/// Returns the integer immediate, or 0.
fn integer(inst: &Statement) -> i64 {
    match inst.imm {
        Imm::Int(i) => i,
        Imm::None | Imm::Float(_) | Imm::Bytes(_) => 0,
    }
}

/// Whether the result is the low part of the first operand.
fn is_alias(inst: &Statement) -> bool {
    match inst.op {
        Op::Bitcast => true,
        Op::Extract | Op::Slice | Op::Shl | Op::ShrU | Op::ShrS => integer(inst) == 0,
        Op::Broadcast => inst.ty.lanes == 1,
        _ => false,
    }
}

impl Selector<'_> {
    /// Selects a statement that is not a loop.
    pub(super) fn statement(&mut self, inst: &Statement) -> Result<(), X64Error> {
        let result = inst.result;
        if result.is_some_and(|r| self.uses.count(r) == 0) || self.defer(inst) {
            return Ok(());
        }
        if inst.op.takes_tiles() {
            return self.tile(inst);
        }
        // The verifier ensures the number of operands, and the presence of addresses and
        // immediates.
        let Some(&first) = inst.operands.first() else {
            return self.without_operands(inst);
        };
        if inst.op == Op::Store {
            return self.store(inst, first);
        }
        let Some(result) = result else {
            return Err(X64Error::NoLowering { op: inst.op, ty: inst.ty });
        };
        if is_alias(inst) {
            self.alias(result, first);
        } else if inst.op == Op::Broadcast {
            self.broadcast(result, first, inst.ty);
        } else {
            let register = self.computation(inst, first)?;
            self.set(result, register);
        }
        Ok(())
    }

    /// Computes the result of an op in a register.
    fn computation(&mut self, inst: &Statement, first: ValueId) -> Result<Vreg, X64Error> {
        let operand = |n: usize| inst.operands.get(n).copied().unwrap_or(first);
        let (second, third) = (operand(1), operand(2));
        let (ty, int) = (inst.ty, integer(inst));
        Ok(match inst.op {
            Op::Extract | Op::Slice => self.slice(first, ty, int),
            Op::Concat | Op::JoinLo | Op::JoinHi | Op::UnpackLo | Op::UnpackHi => {
                self.combine(inst.op, ty, first, second, int)
            }
            Op::SwapPairs => self.swap_pairs(first, ty),
            Op::Interleave => self.interleave(first, ty),
            Op::Lookup => self.lookup(first, ty, int),
            Op::LookupQuarter => self.lookup_quarter(first, second, ty, int),
            Op::LookupByte => self.lookup_byte(first, second, ty, int),
            Op::Multishift => self.multishift(first, second, ty),
            Op::Fma => self.fma(first, second, third, ty),
            Op::Select => self.choose(first, second, third, ty),
            Op::Add
            | Op::Sub
            | Op::Mul
            | Op::Div
            | Op::Min
            | Op::Max
            | Op::IAdd
            | Op::ISub
            | Op::IMul
            | Op::IMin
            | Op::IMax
            | Op::Sign
            | Op::And
            | Op::Or
            | Op::Xor
            | Op::CmpEq
            | Op::CmpGt
            | Op::CmpLtF
            | Op::Dot2U8S8
            | Op::Dot2S16
            | Op::ShuffleBytes => self.binary(inst.op, ty, first, second)?,
            Op::Sqrt | Op::IAbs | Op::ToF32 | Op::ToI32 | Op::F16ToF32 | Op::F32ToF16 => {
                self.unary(inst.op, ty, first)?
            }
            Op::Shl | Op::ShrU | Op::ShrS => self.shift(inst.op, ty, first, int)?,
            Op::Dot4U8S8 => self.dot4(ty, first, second, third),
            Op::Dot2Bf16 => self.dot2_bf16(ty, first, second, third),
            Op::ToBf16 => self.to_bf16(first, ty),
            Op::Bf16ToF32 => self.bf16_to_f32(first, ty),
            Op::ToBf16Pairs => self.to_bf16_pairs(first, second, ty),
            Op::ExtendS | Op::ExtendU => self.extend(inst.op == Op::ExtendS, first, ty)?,
            Op::NarrowS => self.narrow(first, ty),
            Op::ReduceAdd | Op::ReduceMax | Op::ReduceMin => self.reduce(inst.op, first)?,
            Op::Splat
            | Op::Bytes
            | Op::Iota
            | Op::Index
            | Op::Load
            | Op::LoadSplat
            | Op::Store
            | Op::Prefetch
            | Op::Bitcast
            | Op::Broadcast
            | Op::TileZero
            | Op::TileLoad
            | Op::TileStore
            | Op::TileDotBf16
            | Op::TileDotS8S8
            | Op::TileDotS8U8
            | Op::TileDotU8S8
            | Op::TileDotU8U8 => return Err(X64Error::NoLowering { op: inst.op, ty }),
        })
    }
}
