//! Lowering of each op of the op table, by family. [`arithmetic`], [`convert`] and [`lanes`]
//! contain the families with several ops.

mod arithmetic;
mod convert;
mod lanes;

use cranelift_codegen::ir::{InstBuilder, Value, types};
use ixc_ir::kernel::{Address, Elem, Imm, Inst, Op, Type, ValueId};

use super::PortableError;
use super::chunk_types::Chunks;
use super::lower::Lowering;

impl Lowering<'_> {
    /// Lowers one computation and returns the chunks of its result; a store has no chunks.
    pub(super) fn inst(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        match inst.op {
            Op::Splat | Op::Bytes | Op::Iota | Op::Index => self.constant_op(inst),
            Op::Load => self.load(inst.ty, self.memory(inst)?),
            Op::LoadSplat => self.load_splat(inst.ty, self.memory(inst)?),
            Op::Store => {
                let value = self.operand(inst, 0)?;
                self.store(inst.ty, &value, self.memory(inst)?)?;
                Ok(Chunks::new())
            }
            Op::Prefetch => Ok(Chunks::new()),

            Op::Broadcast
            | Op::Extract
            | Op::Slice
            | Op::Concat
            | Op::JoinLo
            | Op::JoinHi
            | Op::Bitcast
            | Op::UnpackLo
            | Op::UnpackHi
            | Op::SwapPairs
            | Op::Interleave
            | Op::ShuffleBytes
            | Op::Multishift => self.lane_op(inst),
            Op::Lookup => self.lookup(inst),
            Op::LookupQuarter => self.lookup_quarter(inst),
            Op::LookupByte => self.lookup_byte(inst),

            Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Min | Op::Max | Op::Sqrt | Op::Fma => self.float_op(inst),
            Op::IAdd | Op::ISub | Op::IMul | Op::IMin | Op::IMax | Op::IAbs | Op::Sign => self.integer_op(inst),
            Op::And | Op::Or | Op::Xor | Op::Shl | Op::ShrU | Op::ShrS => self.bit_op(inst),
            Op::CmpEq | Op::CmpGt | Op::CmpLtF | Op::Select => self.comparison(inst),
            Op::ToF32
            | Op::ToI32
            | Op::F16ToF32
            | Op::F32ToF16
            | Op::ToBf16
            | Op::Bf16ToF32
            | Op::ToBf16Pairs
            | Op::ExtendS
            | Op::ExtendU
            | Op::NarrowS => self.conversion(inst),
            Op::Dot2U8S8 | Op::Dot2S16 | Op::Dot4U8S8 | Op::Dot2Bf16 => self.dot_op(inst),
            Op::ReduceAdd | Op::ReduceMax | Op::ReduceMin => self.reduction(inst),

            Op::TileZero
            | Op::TileLoad
            | Op::TileStore
            | Op::TileDotBf16
            | Op::TileDotS8S8
            | Op::TileDotS8U8
            | Op::TileDotU8S8
            | Op::TileDotU8U8 => Err(self.unsupported_error(inst)),
        }
    }

    /// Returns the error for an op without a lowering.
    fn unsupported_error(&self, inst: &Inst) -> PortableError {
        let kernel = self.kernel.name.clone();
        PortableError::Unsupported { kernel, op: inst.op.row().mnemonic, ty: inst.ty }
    }

    /// Lowers an op without operands, such as a constant.
    pub(super) fn constant_op(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        let ty = inst.ty;
        let lane = inst.ty.elem.bytes() as usize;
        Ok(match inst.op {
            Op::Splat => {
                let pattern = self.scalar_bytes(inst)?;
                self.constants(ty, |i| pattern[i % lane])
            }
            Op::Bytes => {
                let Imm::Bytes(bytes) = &inst.imm else {
                    return Err(self.malformed_error("bytes", "bytes as its immediate"));
                };
                self.constants(ty, |i| bytes.get(i).copied().unwrap_or(0))
            }
            Op::Iota => self.constants(ty, |i| (i as u32 / 4).to_le_bytes()[i % 4]),
            Op::Index => {
                let Some(affine) = &inst.index else {
                    return Err(self.malformed_error("index", "an affine value"));
                };
                let value = self.affine(affine)?;
                let value = self.b.ins().ireduce(types::I32, value);
                vec![self.scalar_chunk(types::I32X4, value)]
            }
            _ => return Err(self.unsupported_error(inst)),
        })
    }

    fn operand_id(&self, inst: &Inst, index: usize) -> Result<ValueId, PortableError> {
        let id = inst.operands.get(index).copied();
        id.ok_or_else(|| self.malformed_error(inst.op.row().mnemonic, "as many operands as the op table says"))
    }

    pub(super) fn operand(&self, inst: &Inst, index: usize) -> Result<Chunks, PortableError> {
        self.chunks(self.operand_id(inst, index)?)
    }

    fn operand_type(&self, inst: &Inst, index: usize) -> Result<Type, PortableError> {
        Ok(self.kernel.ty(self.operand_id(inst, index)?))
    }

    fn memory<'i>(&self, inst: &'i Inst) -> Result<&'i Address, PortableError> {
        inst.address.as_ref().ok_or_else(|| self.malformed_error(inst.op.row().mnemonic, "an address"))
    }

    pub(super) fn immediate(&self, inst: &Inst) -> Result<i64, PortableError> {
        match inst.imm {
            Imm::Int(value) => Ok(value),
            _ => Err(self.malformed_error(inst.op.row().mnemonic, "an integer as its immediate")),
        }
    }

    /// Returns the little-endian bytes of a scalar immediate; an integer wraps to the element's
    /// size.
    fn scalar_bytes(&self, inst: &Inst) -> Result<[u8; 8], PortableError> {
        match (&inst.imm, inst.ty.elem) {
            (Imm::Int(value), Elem::I8 | Elem::I16 | Elem::I32) => Ok(value.to_le_bytes()),
            (Imm::Float(value), Elem::F32) => Ok(u64::from(value.to_bits()).to_le_bytes()),
            _ => Err(self.malformed_error(inst.op.row().mnemonic, "a number of the element type as its immediate")),
        }
    }

    fn map(&mut self, inst: &Inst, mut f: impl FnMut(&mut Self, Value) -> Value) -> Result<Chunks, PortableError> {
        let a = self.operand(inst, 0)?;
        Ok(a.into_iter().map(|a| f(self, a)).collect())
    }

    pub(super) fn map2(
        &mut self,
        inst: &Inst,
        mut f: impl FnMut(&mut Self, Value, Value) -> Value,
    ) -> Result<Chunks, PortableError> {
        let (a, b) = (self.operand(inst, 0)?, self.operand(inst, 1)?);
        Ok(a.into_iter().zip(b).map(|(a, b)| f(self, a, b)).collect())
    }
}
