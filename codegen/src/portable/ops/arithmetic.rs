//! Arithmetic, comparisons, dot products and reductions.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use ixc_ir::kernel::{Elem, Inst, Op};

use super::super::PortableError;
use super::super::chunk_types::{CHUNK_BYTES, Chunks, chunk_type};
use super::super::lower::Lowering;

impl Lowering<'_> {
    /// Lowers float arithmetic.
    pub(super) fn float_op(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        Ok(match inst.op {
            Op::Add => self.map2(inst, |l, a, b| l.b.ins().fadd(a, b))?,
            Op::Sub => self.map2(inst, |l, a, b| l.b.ins().fsub(a, b))?,
            Op::Mul => self.map2(inst, |l, a, b| l.b.ins().fmul(a, b))?,
            Op::Div => self.map2(inst, |l, a, b| l.b.ins().fdiv(a, b))?,
            Op::Min => self.map2(inst, Self::float_min)?,
            Op::Max => self.map2(inst, Self::float_max)?,
            Op::Sqrt => self.map(inst, |l, a| l.b.ins().sqrt(a))?,
            Op::Fma => {
                let (a, b, c) = (self.operand(inst, 0)?, self.operand(inst, 1)?, self.operand(inst, 2)?);
                (0..a.len()).map(|i| self.fma(a[i], b[i], c[i])).collect()
            }
            _ => return Err(self.unsupported_error(inst)),
        })
    }

    /// Lowers integer arithmetic.
    pub(super) fn integer_op(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        let ty = inst.ty;
        Ok(match inst.op {
            Op::IAdd => self.map2(inst, |l, a, b| l.b.ins().iadd(a, b))?,
            Op::ISub => self.map2(inst, |l, a, b| l.b.ins().isub(a, b))?,
            Op::IMul => self.map2(inst, |l, a, b| l.b.ins().imul(a, b))?,
            Op::IMin => self.map2(inst, |l, a, b| l.b.ins().smin(a, b))?,
            Op::IMax => self.map2(inst, |l, a, b| l.b.ins().smax(a, b))?,
            Op::IAbs => self.map(inst, |l, a| l.b.ins().iabs(a))?,
            Op::Sign => self.map2(inst, |l, a, b| {
                let zero = l.constant(chunk_type(ty.elem), [0; CHUNK_BYTES]);
                // (a ^ -1) - -1 is -a.
                let negative = l.b.ins().icmp(IntCC::SignedLessThan, b, zero);
                let flipped = l.b.ins().bxor(a, negative);
                let signed = l.b.ins().isub(flipped, negative);
                let is_zero = l.b.ins().icmp(IntCC::Equal, b, zero);
                l.b.ins().band_not(signed, is_zero)
            })?,
            _ => return Err(self.unsupported_error(inst)),
        })
    }

    /// Lowers a bitwise operation or a shift.
    pub(super) fn bit_op(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        Ok(match inst.op {
            Op::And => self.map2(inst, |l, a, b| l.b.ins().band(a, b))?,
            Op::Or => self.map2(inst, |l, a, b| l.b.ins().bor(a, b))?,
            Op::Xor => self.map2(inst, |l, a, b| l.b.ins().bxor(a, b))?,
            Op::Shl => {
                let by = self.immediate(inst)?;
                self.map(inst, |l, a| l.shl(a, by))?
            }
            Op::ShrU => {
                let by = self.immediate(inst)?;
                self.map(inst, |l, a| l.shr_u(a, by))?
            }
            Op::ShrS => {
                let by = self.immediate(inst)?;
                self.map(inst, |l, a| l.shr_s(a, by))?
            }
            _ => return Err(self.unsupported_error(inst)),
        })
    }

    /// Lowers a comparison or a selection.
    pub(super) fn comparison(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        Ok(match inst.op {
            Op::CmpEq => self.map2(inst, |l, a, b| l.b.ins().icmp(IntCC::Equal, a, b))?,
            Op::CmpGt => self.map2(inst, |l, a, b| l.b.ins().icmp(IntCC::SignedGreaterThan, a, b))?,
            Op::CmpLtF => self.map2(inst, |l, a, b| l.b.ins().fcmp(FloatCC::LessThan, a, b))?,
            Op::Select => {
                let (mask, a, b) = (self.operand(inst, 0)?, self.operand(inst, 1)?, self.operand(inst, 2)?);
                (0..a.len()).map(|i| self.choose(mask[i], a[i], b[i])).collect()
            }
            _ => return Err(self.unsupported_error(inst)),
        })
    }

    /// Lowers a dot product.
    pub(super) fn dot_op(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        Ok(match inst.op {
            Op::Dot2U8S8 => self.map2(inst, |l, a, b| {
                let (even, odd) = l.products_u8s8(a, b);
                l.b.ins().sadd_sat(even, odd)
            })?,
            Op::Dot2S16 => self.map2(inst, Self::dot2_s16)?,
            Op::Dot4U8S8 => {
                let (acc, u, s) = (self.operand(inst, 0)?, self.operand(inst, 1)?, self.operand(inst, 2)?);
                let ones = self.constant(types::I16X8, std::array::from_fn(|i| (i % 2 == 0).into()));
                let mut sums = Chunks::new();
                for i in 0..acc.len() {
                    let (even, odd) = self.products_u8s8(u[i], s[i]);
                    let (even, odd) = (self.dot2_s16(even, ones), self.dot2_s16(odd, ones));
                    let sum = self.b.ins().iadd(even, odd);
                    sums.push(self.b.ins().iadd(acc[i], sum));
                }
                sums
            }

            Op::Dot2Bf16 => {
                let (acc, a, b) = (self.operand(inst, 0)?, self.operand(inst, 1)?, self.operand(inst, 2)?);
                (0..acc.len()).map(|i| self.dot2_bf16(acc[i], a[i], b[i])).collect()
            }
            _ => return Err(self.unsupported_error(inst)),
        })
    }

    /// Lowers a reduction to one lane.
    pub(super) fn reduction(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        let ty = inst.ty;
        Ok(match inst.op {
            Op::ReduceAdd => match ty.elem {
                Elem::F32 => self.reduce(inst, |l, a, b| l.b.ins().fadd(a, b))?,
                Elem::I8 | Elem::I16 | Elem::I32 | Elem::F16 | Elem::Bf16 => {
                    self.reduce(inst, |l, a, b| l.b.ins().iadd(a, b))?
                }
            },
            Op::ReduceMax => match ty.elem {
                Elem::F32 => self.reduce(inst, Self::float_max)?,
                Elem::I8 | Elem::I16 | Elem::I32 | Elem::F16 | Elem::Bf16 => {
                    self.reduce(inst, |l, a, b| l.b.ins().smax(a, b))?
                }
            },
            Op::ReduceMin => match ty.elem {
                Elem::F32 => self.reduce(inst, Self::float_min)?,
                Elem::I8 | Elem::I16 | Elem::I32 | Elem::F16 | Elem::Bf16 => {
                    self.reduce(inst, |l, a, b| l.b.ins().smin(a, b))?
                }
            },
            _ => return Err(self.unsupported_error(inst)),
        })
    }

    /// Multiplies unsigned with signed bytes and returns words: the products of the even bytes,
    /// then those of the odd bytes. Every product fits: 255 * -128 and 255 * 127 are inside 16
    /// bits. The bytes are extended within their words, so that products stay in their lanes.
    fn products_u8s8(&mut self, u: Value, s: Value) -> (Value, Value) {
        let (u, s) = (self.cast(types::I16X8, u), self.cast(types::I16X8, s));
        let low_byte = self.constant(types::I16X8, std::array::from_fn(|i| if i % 2 == 0 { 0xff } else { 0 }));
        let u_even = self.b.ins().band(u, low_byte);
        let u_odd = self.shr_u(u, 8);
        let s_even = self.shl(s, 8);
        let s_even = self.shr_s(s_even, 8);
        let s_odd = self.shr_s(s, 8);
        (self.b.ins().imul(u_even, s_even), self.b.ins().imul(u_odd, s_odd))
    }

    /// Multiplies words and adds neighbouring products. Cranelift selects x86's `pmaddwd` for
    /// exactly this sequence of ops.
    fn dot2_s16(&mut self, a: Value, b: Value) -> Value {
        let (a_low, b_low) = (self.b.ins().swiden_low(a), self.b.ins().swiden_low(b));
        let (a_high, b_high) = (self.b.ins().swiden_high(a), self.b.ins().swiden_high(b));
        let low = self.b.ins().imul(a_low, b_low);
        let high = self.b.ins().imul(a_high, b_high);
        self.b.ins().iadd_pairwise(low, high)
    }

    /// Combines the upper half of the lanes with the lower half, until one lane remains.
    fn reduce(
        &mut self,
        inst: &Inst,
        mut f: impl FnMut(&mut Self, Value, Value) -> Value,
    ) -> Result<Chunks, PortableError> {
        let mut chunks = self.operand(inst, 0)?;
        while chunks.len() > 1 {
            let upper = chunks.split_off(chunks.len() / 2);
            chunks = chunks.into_iter().zip(upper).map(|(low, high)| f(self, low, high)).collect();
        }
        let mut value = chunks[0];
        let mut bytes = (self.operand_type(inst, 0)?.bytes() as usize).min(CHUNK_BYTES);
        while bytes > inst.ty.elem.bytes() as usize {
            bytes /= 2;
            let upper = self.move_down(value, bytes);
            value = f(self, value, upper);
        }
        Ok(vec![value])
    }
}
