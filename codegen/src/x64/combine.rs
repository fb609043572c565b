//! Ops that merge with their user into one instruction.
//!
//! | deferred op | merged with | instruction |
//! | --- | --- | --- |
//! | a comparison used only as a mask of choices | each choice | compare to mask, masked blend |
//! | `and`, `or`, `xor` with one use | another of them | `vpternlogd` |
//! | `dot2_s16` with one use | a sum of 32-bit integers | `vpdpwssd` |
//!
//! ```text
//! %t = and i32x16 %a, %mask
//! %r = or i32x16 %t, %b               vpternlogd: bit by bit, (a & mask) | b
//! ```

use ixc_ir::kernel::{Inst as Statement, Type, ValueId};

use super::arithmetic::LT_OQ;
use super::codes::{
    BLENDMPS, CMPPS, CMPPS_VEX, Codes, DPBUSD, DPWSSD, PADDD, PAND, PBLENDMD, PCMPEQD, PCMPEQD_VEX, PCMPGTD,
    PCMPGTD_VEX, PMADDWD, PMOVM2D, POR, PSLLW, PSRAW, PSRLW, PXOR, evex,
};
use super::families::{Bitwise, Comparison};
use super::locations::{DeferredOp, DeferredValue, Read, Value};
use super::machine::{Class, Inst, Opcode, Rm, Vreg, Width};
use super::select::Selector;
use super::uses::Consumer;
use ixc_targets::Feature;

/// Truth tables of the three operands `a`, `b` and `c` themselves. Bit `4a + 2b + c` of a table is
/// the result for these values.
pub(super) const A: u8 = 0b1111_0000;
pub(super) const B: u8 = 0b1100_1100;
pub(super) const C: u8 = 0b1010_1010;

fn bitwise(op: Bitwise, a: u8, b: u8) -> u8 {
    match op {
        Bitwise::And => a & b,
        Bitwise::Or => a | b,
        Bitwise::Xor => a ^ b,
    }
}

impl Selector<'_> {
    /// Defers a statement to the statement that uses its result, if one instruction can compute
    /// both. Returns whether it was deferred.
    pub fn defer(&mut self, inst: &Statement) -> bool {
        let (Some(value), &[a, b]) = (inst.result, &inst.operands[..]) else { return false };
        let Some(op) = DeferredOp::from_op(inst.op) else { return false };
        let (uses, consumer) = (self.uses.count(value), self.uses.consumer(value));
        let defers = match op {
            DeferredOp::Bitwise(_) => consumer == Consumer::Bitwise && self.has_evex() && uses == 1,
            DeferredOp::Comparison(_) => consumer == Consumer::Choice && self.has_evex(),
            DeferredOp::Dot2S16 => {
                consumer == Consumer::Sum && uses == 1 && self.vnni(DPWSSD, inst.ty.bytes()).is_some()
            }
        };
        if defers {
            self.values[value.index()] = Value::Deferred(self.deferred.len());
            let (ty, origin) = (inst.ty, self.origin);
            self.deferred.push(DeferredValue { value, op, ty, operands: [a, b], uses, origin });
        }
        defers
    }

    /// Takes the deferred op that defines a value, if `part` returns something for it, and counts
    /// one use. Also returns the result of `part`.
    fn take<T>(&mut self, value: ValueId, part: fn(DeferredOp) -> Option<T>) -> Option<(T, DeferredValue)> {
        let Value::Deferred(d) = self.values[value.index()] else { return None };
        let deferred = &mut self.deferred[d];
        let part = part(deferred.op)?;
        deferred.uses -= 1;
        if deferred.uses == 0 {
            self.values[value.index()] = Value::Undefined;
        }
        Some((part, *deferred))
    }

    /// Emits a deferred op as a separate instruction.
    pub fn make(&mut self, d: usize) -> Vreg {
        let DeferredValue { op, ty, operands: [a, b], origin, .. } = self.deferred[d];
        let origin = std::mem::replace(&mut self.origin, origin);
        let register = match op {
            DeferredOp::Bitwise(op) => self.two_bitwise(op, ty, a, b),
            DeferredOp::Comparison(op) => self.compare(op, ty, a, b),
            DeferredOp::Dot2S16 => {
                let (a, b) = self.commute(a, b, Read::plain(ty.bytes().max(16)));
                self.three(PMADDWD, ty.bytes(), a, b)
            }
        };
        self.origin = origin;
        register
    }

    /// Selects `and`, `or` and `xor`, merged with a deferred bitwise op if possible.
    pub fn bitwise(&mut self, op: Bitwise, ty: Type, a: ValueId, b: ValueId) -> Vreg {
        for (inner, other) in [(a, b), (b, a)] {
            if let Some((first, DeferredValue { operands: [a, b], .. })) = self.take(inner, DeferredOp::bitwise) {
                return self.ternary(bitwise(op, bitwise(first, A, B), C), ty, [a, b, other]);
            }
        }
        self.two_bitwise(op, ty, a, b)
    }

    fn two_bitwise(&mut self, op: Bitwise, ty: Type, a: ValueId, b: ValueId) -> Vreg {
        let codes = match op {
            Bitwise::And => PAND,
            Bitwise::Or => POR,
            Bitwise::Xor => PXOR,
        };
        let (a, b) = self.commute(a, b, Read::lanes32(ty.bytes().max(16)));
        self.three(codes, ty.bytes(), a, b)
    }

    /// Computes any bitwise function of three operands.
    fn ternary(&mut self, table: u8, ty: Type, operands: [ValueId; 3]) -> Vreg {
        let read = Read::lanes32(ty.bytes().max(16));
        let memory = operands.iter().position(|&v| self.in_memory(v, read));
        let mut sources = [None; 3];
        for (i, &v) in operands.iter().enumerate() {
            if memory != Some(i) {
                sources[i] = Some(Rm::Reg(self.reg(v)));
            }
        }
        let d = self.vector(ty.bytes());
        let width = self.f.width(d);
        let mut inst = Inst::new(Opcode::Ternary(table)).def(d, width);
        for (source, &v) in sources.into_iter().zip(&operands) {
            let source = source.unwrap_or_else(|| self.rm(v, read));
            inst = match source {
                Rm::Reg(v) => inst.read(v, width),
                Rm::Mem(mem) => inst.mem(mem),
            };
        }
        self.emit(inst);
        d
    }

    /// Computes a comparison as a vector whose lanes have all bits set or all bits clear.
    pub fn compare(&mut self, op: Comparison, ty: Type, a: ValueId, b: ValueId) -> Vreg {
        let bytes = ty.bytes();
        if self.has_evex() {
            let mask = self.compare_mask(op, ty, a, b);
            let (code, width) = PMOVM2D.for_size(bytes);
            let d = self.vector(bytes);
            self.emit(Inst::code(code).def(d, width).read(mask, Width::K));
            return d;
        }
        let read = Read::plain(bytes.max(16));
        match op {
            Comparison::Equal => {
                let (a, b) = self.commute(a, b, read);
                self.three(PCMPEQD_VEX, bytes, a, b)
            }
            Comparison::Greater => {
                let (a, b) = (self.reg(a), self.rm(b, read));
                self.three(PCMPGTD_VEX, bytes, a, b)
            }
            Comparison::LessFloat => {
                let (a, b) = (self.reg(a), self.rm(b, read));
                self.three_imm(CMPPS_VEX, bytes, a, b, LT_OQ)
            }
        }
    }

    /// Computes a comparison as a mask register.
    fn compare_mask(&mut self, op: Comparison, ty: Type, a: ValueId, b: ValueId) -> Vreg {
        let read = Read::lanes32(ty.bytes().max(16));
        let (codes, imm) = match op {
            Comparison::Equal => (PCMPEQD, None),
            Comparison::Greater => (PCMPGTD, None),
            Comparison::LessFloat => (CMPPS, Some(LT_OQ)),
        };
        let (a, b) = if op == Comparison::Equal { self.commute(a, b, read) } else { (self.reg(a), self.rm(b, read)) };
        let (code, width) = codes.for_size(ty.bytes());
        let mask = self.f.vreg(Class::Mask);
        let inst = Inst::code(code).def(mask, Width::K).read(a, width).rm(b, width);
        self.emit(imm.into_iter().fold(inst, Inst::imm));
        mask
    }

    /// Computes `mask ? a : b` on targets with EVEX.
    pub fn choose_evex(&mut self, mask: ValueId, a: ValueId, b: ValueId, ty: Type) -> Vreg {
        let bytes = ty.bytes();
        let Some((op, comparison)) = self.take(mask, DeferredOp::comparison) else {
            return self.ternary(A & B | !A & C, ty, [mask, a, b]);
        };
        let [x, y] = comparison.operands;
        if comparison.uses > 0 {
            // The comparison may be emitted again for another use, so its operands must stay in
            // registers.
            self.reg(x);
            self.reg(y);
        }
        let b = self.reg(b);
        let a = self.rm(a, Read::lanes32(bytes.max(16)));
        let mask = self.compare_mask(op, comparison.ty, x, y);
        let float = ty.elem == ixc_ir::kernel::Elem::F32;
        let (code, width) = if float { BLENDMPS } else { PBLENDMD }.for_size(bytes);
        let d = self.vector(bytes);
        self.emit(Inst::code(code).def(d, width).read(b, width).rm(a, width).with_mask(mask, false));
        d
    }

    /// Adds 32-bit integers where one operand is a deferred dot product; `None` if neither is.
    pub fn add_dot(&mut self, ty: Type, a: ValueId, b: ValueId) -> Option<Vreg> {
        for (dot, other) in [(a, b), (b, a)] {
            if let Some(((), DeferredValue { operands: [a, b], .. })) = self.take(dot, DeferredOp::dot2_s16) {
                let swap = self.in_memory(a, Read::lanes32(ty.bytes().max(16)));
                let (a, b) = if swap { (b, a) } else { (a, b) };
                return self.accumulate(DPWSSD, ty, other, a, b);
            }
        }
        None
    }

    /// Computes `sum + a * b` by an instruction that overwrites the sum; `None` if the target lacks
    /// it.
    pub fn accumulate(&mut self, codes: Codes, ty: Type, sum: ValueId, a: ValueId, b: ValueId) -> Option<Vreg> {
        let (code, width) = self.vnni(codes, ty.bytes())?;
        Some(self.overwrite(code, width, ty, sum, a, b))
    }

    /// Computes `sum + a * b` by an instruction that overwrites the sum.
    pub fn overwrite(
        &mut self,
        code: iced_x86::Code,
        width: Width,
        ty: Type,
        sum: ValueId,
        a: ValueId,
        b: ValueId,
    ) -> Vreg {
        let a = self.reg(a);
        let b = self.rm(b, Read::lanes32(ty.bytes().max(16)));
        let d = self.vector(ty.bytes());
        self.write_home(d, sum);
        self.emit(Inst::code(code).update(d, width).read(a, width).rm(b, width));
        d
    }

    /// Adds four products of bytes to each lane of `sum`. The bytes of `u` are unsigned, those of
    /// `s` signed.
    pub fn dot4(&mut self, ty: Type, sum: ValueId, u: ValueId, s: ValueId) -> Vreg {
        if let Some(d) = self.accumulate(DPBUSD, ty, sum, u, s) {
            return d;
        }
        // `vpmaddubsw` saturates, so even and odd bytes become words first.
        let bytes = ty.bytes();
        let (u, s) = (self.reg(u), self.reg(s));
        let low_bytes = self.lanes_of(0x00ff_00ff, bytes);
        let even = self.three(PAND, bytes, u, Rm::Reg(low_bytes));
        let signed = self.shift_lanes(PSLLW, bytes, s, 8);
        let signed = self.shift_lanes(PSRAW, bytes, signed, 8);
        let even = self.three(PMADDWD, bytes, even, Rm::Reg(signed));
        let odd = self.shift_lanes(PSRLW, bytes, u, 8);
        let signed = self.shift_lanes(PSRAW, bytes, s, 8);
        let odd = self.three(PMADDWD, bytes, odd, Rm::Reg(signed));
        let products = self.three(PADDD, bytes, even, Rm::Reg(odd));
        let sum = self.rm(sum, Read::lanes32(bytes.max(16)));
        self.three(PADDD, bytes, products, sum)
    }

    /// Returns the target's form of an integer dot product, or `None`.
    fn vnni(&self, codes: Codes, bytes: u32) -> Option<(iced_x86::Code, Width)> {
        let (code, width) = codes.for_size(bytes);
        if self.f.target.has(Feature::AvxVnni) && bytes <= 32 {
            return Some((code, width));
        }
        self.f.target.has(Feature::Avx512vnni).then(|| (evex(code).unwrap_or(code), width))
    }
}
