//! Conversions between element types.

use cranelift_codegen::ir::{InstBuilder, Value, types};
use ixc_ir::kernel::{Elem, Inst, Op};

use super::super::PortableError;
use super::super::chunk_types::{Chunks, chunk_count};
use super::super::lower::Lowering;

impl Lowering<'_> {
    /// Lowers a conversion between element types.
    pub(super) fn conversion(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        let ty = inst.ty;
        Ok(match inst.op {
            Op::ToF32 => self.map(inst, |l, a| l.b.ins().fcvt_from_sint(types::F32X4, a))?,
            Op::ToI32 => self.map(inst, Self::round_to_i32)?,
            Op::F16ToF32 => {
                let halves = self.operand(inst, 0)?;
                let wide = self.widen(&halves, false, chunk_count(ty));
                wide.into_iter().map(|half| self.f16_to_f32(half)).collect()
            }
            Op::F32ToF16 => {
                let wide = self.map(inst, Self::f32_to_f16)?;
                self.narrow(&wide)
            }
            Op::ToBf16 => {
                let wide = self.map(inst, Self::f32_to_bf16)?;
                self.narrow(&wide)
            }
            Op::Bf16ToF32 => {
                let bf16 = self.operand(inst, 0)?;
                let wide = self.widen(&bf16, false, chunk_count(ty));
                wide.into_iter().map(|bf16| self.bf16_to_f32(bf16)).collect()
            }
            Op::ToBf16Pairs => self.map2(inst, |l, a, b| {
                let (a, b) = (l.f32_to_bf16(a), l.f32_to_bf16(b));
                let a = l.shl(a, 16);
                let a = l.shr_u(a, 16);
                let b = l.shl(b, 16);
                let pairs = l.b.ins().bor(a, b);
                l.cast(types::I16X8, pairs)
            })?,
            Op::ExtendS => self.extend(inst, true)?,
            Op::ExtendU => self.extend(inst, false)?,
            Op::NarrowS => {
                let mut value = self.operand(inst, 0)?;
                let mut bytes = self.operand_type(inst, 0)?.elem.bytes();
                // Narrowing in two saturating steps gives the same result as one saturation.
                while bytes > ty.elem.bytes() {
                    value = self.narrow(&value);
                    bytes /= 2;
                }
                value
            }
            _ => return Err(self.unsupported_error(inst)),
        })
    }

    /// Widens the lanes of each chunk to twice the size, which gives two chunks; returns the first
    /// `count` chunks.
    fn widen(&mut self, chunks: &[Value], signed: bool, count: usize) -> Chunks {
        let mut wide = Chunks::new();
        for &chunk in chunks {
            let ins = self.b.ins();
            wide.push(if signed { ins.swiden_low(chunk) } else { ins.uwiden_low(chunk) });
            if wide.len() < count {
                let ins = self.b.ins();
                wide.push(if signed { ins.swiden_high(chunk) } else { ins.uwiden_high(chunk) });
            }
        }
        wide
    }

    fn extend(&mut self, inst: &Inst, signed: bool) -> Result<Chunks, PortableError> {
        let (mut value, mut ty) = (self.operand(inst, 0)?, self.operand_type(inst, 0)?);
        while ty.elem.bytes() < inst.ty.elem.bytes() {
            ty.elem = if ty.elem == Elem::I8 { Elem::I16 } else { Elem::I32 };
            value = self.widen(&value, signed, chunk_count(ty));
        }
        Ok(value)
    }

    /// Narrows lanes to half the size with signed saturation; two chunks become one.
    fn narrow(&mut self, chunks: &[Value]) -> Chunks {
        chunks.chunks(2).map(|pair| self.b.ins().snarrow(pair[0], *pair.last().unwrap_or(&pair[0]))).collect()
    }
}
