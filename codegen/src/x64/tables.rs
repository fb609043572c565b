//! Selection of ops that look up entries of tables, and of the one that moves bits to bytes.
//!
//! ```text
//! lookup_byte, 512 entries, of whole vectors where bytes can be permuted (VBMI):
//!     vpermt2b from each 128 entries by the low seven bits; vpblendmb by the eighth; vpblendmb by the ninth
//! ```

use iced_x86::Code;
use ixc_ir::format::grids::{BYTE_TABLES, TABLES};
use ixc_ir::kernel::{Type, ValueId};
use ixc_targets::Feature;

use super::codes::{
    MULTISHIFT, PACKSSDW, PACKSSWB, PAND, PBLENDMB, PERMT2B, PMOVB2M, PMOVZXBD, POR, PSLLD, PSLLQ, PSLLVQ, PSRLQ,
    PSRLVQ, PSUBQ, PTESTMB,
};
use super::machine::{Class, Inst, Mem, Rm, Vreg, Width};
use super::select::Selector;
use super::values::Read;

/// Bytes of the vectors that bytes are permuted in.
const WHOLE: u32 = 64;
/// Entries that two of those have.
const TWO: usize = 2 * WHOLE as usize;

impl Selector<'_> {
    /// Entries of a table.
    pub fn lookup(&mut self, a: ValueId, ty: Type, table: i64) -> Vreg {
        let bytes = ty.bytes().max(16);
        let entries = TABLES[table as usize];
        let (_, mask) = self.constant((entries.len() as u32 - 1).to_le_bytes().repeat(bytes as usize / 4));
        let a = self.rm(a, Read::plain(bytes));
        let numbers = self.three(PAND, bytes, mask, a);
        let base = self.table(entries.iter().flat_map(|entry| entry.to_le_bytes()).collect());
        let parts = (0..bytes / 16)
            .map(|chunk| {
                let numbers = self.chunk(numbers, chunk, bytes);
                self.entries(base, numbers, ty.lanes.min(4))
            })
            .collect();
        self.joined(parts)
    }

    /// Entries of a table of bytes.
    pub fn lookup_byte(&mut self, low: ValueId, high: ValueId, ty: Type, table: i64) -> Vreg {
        let entries = BYTE_TABLES[table as usize];
        if ty.bytes() == WHOLE && self.f.target.has(Feature::Avx512vbmi) {
            return self.permuted(low, high, entries);
        }
        // As dwords, which are narrowed again: signed, as that saturates.
        let bytes = ty.bytes().max(16);
        let (low, high) = (self.reg(low), self.reg(high));
        let mask = self.lanes_of(entries.len() as u32 - 1, 16);
        let base = self.table(entries.iter().flat_map(|&entry| i32::from(entry as i8).to_le_bytes()).collect());
        let parts = (0..bytes / 16)
            .map(|chunk| {
                let [low, high] = [low, high].map(|bytes_of| self.chunk(bytes_of, chunk, bytes));
                let quarters: Vec<Vreg> = (0..4)
                    .map(|quarter| {
                        let [low, high] = [low, high].map(|chunk| self.dwords(chunk, quarter));
                        let high = self.shift_lanes(PSLLD, 16, high, 8);
                        let numbers = self.three(POR, 16, low, Rm::Reg(high));
                        let numbers = self.three(PAND, 16, numbers, Rm::Reg(mask));
                        self.entries(base, numbers, 4)
                    })
                    .collect();
                let first = self.three(PACKSSDW, 16, quarters[0], Rm::Reg(quarters[1]));
                let second = self.three(PACKSSDW, 16, quarters[2], Rm::Reg(quarters[3]));
                self.three(PACKSSWB, 16, first, Rm::Reg(second))
            })
            .collect();
        self.joined(parts)
    }

    /// Entries of a table of bytes, of whole vectors.
    fn permuted(&mut self, low: ValueId, high: ValueId, entries: &[u8]) -> Vreg {
        let base = self.table(entries.to_vec());
        let low = self.reg(low);
        // What the bits of a number above the low seven choose between.
        let levels = (entries.len() / TWO).trailing_zeros();
        let masks: Vec<Vreg> = (0..levels)
            .map(|level| {
                let mask = self.f.vreg(Class::Mask);
                let inst = match level {
                    0 => Inst::code(PMOVB2M.2).def(mask, Width::K).read(low, Width::Z),
                    _ => {
                        let high = self.reg(high);
                        let bit = self.lanes_of(0x0101_0101 << (level - 1), WHOLE);
                        Inst::code(PTESTMB.2).def(mask, Width::K).read(high, Width::Z).read(bit, Width::Z)
                    }
                };
                self.emit(inst);
                mask
            })
            .collect();
        self.chosen(base, low, &masks, 0)
    }

    /// Of `2 << masks.len()` vectors of a table from number `first` on, the entries that `low` and the masks say.
    fn chosen(&mut self, base: Vreg, low: Vreg, masks: &[Vreg], first: i32) -> Vreg {
        let d = self.vector(WHOLE);
        let Some((mask, masks)) = masks.split_last() else {
            // The first of both tables is overwritten.
            let at = |vector: i32| Mem::at(base, vector * WHOLE as i32);
            self.emit(Inst::code(Code::EVEX_Vmovdqu32_zmm_k1z_zmmm512).def(d, Width::Z).mem(at(first)));
            self.emit(Inst::code(PERMT2B.2).update(d, Width::Z).read(low, Width::Z).mem(at(first + 1)));
            return d;
        };
        let unset = self.chosen(base, low, masks, first);
        let set = self.chosen(base, low, masks, first + (2 << masks.len()));
        let inst = Inst::code(PBLENDMB.2).def(d, Width::Z).read(unset, Width::Z).read(set, Width::Z);
        self.emit(inst.masked(*mask, false));
        d
    }

    /// Of each eight bytes of `a` those that begin at the bits that `from` says.
    pub fn multishift(&mut self, a: ValueId, from: ValueId, ty: Type) -> Vreg {
        let bytes = ty.bytes();
        let from = self.reg(from);
        if self.f.target.has(Feature::Avx512vbmi) {
            let a = self.rm(a, Read::plain(bytes.max(16)));
            return self.three(MULTISHIFT, bytes, from, a);
        }
        let a = self.reg(a);
        let quads =
            |selector: &mut Self, quad: u64| selector.constant(quad.to_le_bytes().repeat(bytes.max(16) as usize / 8)).1;
        let (numbers, sixty_four) = (quads(self, 63), quads(self, 64));
        let mut all = None;
        for byte in 0..8 {
            let right = if byte == 0 { from } else { self.shift_lanes(PSRLQ, bytes, from, 8 * byte) };
            let right = self.three(PAND, bytes, right, Rm::Reg(numbers));
            let left = self.three(PSUBQ, bytes, sixty_four, Rm::Reg(right));
            let down = self.three(PSRLVQ, bytes, a, Rm::Reg(right));
            let up = self.three(PSLLVQ, bytes, a, Rm::Reg(left));
            let bits = self.three(POR, bytes, down, Rm::Reg(up));
            let bits = if byte == 0 { bits } else { self.shift_lanes(PSLLQ, bytes, bits, 8 * byte) };
            let own = quads(self, 0xff << (8 * byte));
            let bits = self.three(PAND, bytes, bits, Rm::Reg(own));
            all = Some(match all {
                Some(all) => self.three(POR, bytes, all, Rm::Reg(bits)),
                None => bits,
            });
        }
        all.unwrap_or(a)
    }

    /// Where a table of the pool begins.
    fn table(&mut self, bytes: Vec<u8>) -> Vreg {
        let (id, _) = self.constant(bytes);
        let base = self.gpr();
        self.emit(Inst::code(Code::Lea_r64_m).def(base, Width::R64).mem(Mem::pool(id)));
        base
    }

    /// 16 bytes of so many.
    fn chunk(&mut self, a: Vreg, chunk: u32, bytes: u32) -> Vreg {
        match (chunk, bytes) {
            (0, _) => a,
            (1, _) => self.upper_half(a, 32, false),
            (_, _) => self.upper_chunk(a, chunk.into(), false),
        }
    }

    /// Four bytes of 16 as dwords.
    fn dwords(&mut self, chunk: Vreg, quarter: i64) -> Vreg {
        let mut from = chunk;
        if quarter > 0 {
            from = self.vector(16);
            let code = Code::VEX_Vpsrldq_xmm_xmm_imm8;
            self.emit(Inst::code(code).def(from, Width::X).read(chunk, Width::X).imm(4 * quarter));
        }
        let d = self.vector(16);
        self.emit(Inst::code(PMOVZXBD.0).def(d, Width::X).read(from, Width::X));
        d
    }

    /// Entries of 32 bits, one by one: the instruction that gathers them takes as long where it is microcode (AMD), and longer where it must not tell
    /// what others read (Intel).
    fn entries(&mut self, base: Vreg, numbers: Vreg, lanes: u16) -> Vreg {
        let mut all = None;
        for lane in 0..i64::from(lanes) {
            let number = self.gpr();
            self.emit(match lane {
                0 => Inst::code(Code::VEX_Vmovd_rm32_xmm).def(number, Width::R32).read(numbers, Width::X),
                _ => {
                    let inst = Inst::code(Code::VEX_Vpextrd_rm32_xmm_imm8).def(number, Width::R32);
                    inst.read(numbers, Width::X).imm(lane)
                }
            });
            let mem = Mem { index: Some((number, 4)), ..Mem::at(base, 0) };
            let d = self.vector(16);
            self.emit(match all {
                None => Inst::code(Code::VEX_Vmovd_xmm_rm32).def(d, Width::X).mem(mem),
                Some(all) => {
                    let inst = Inst::code(Code::VEX_Vpinsrd_xmm_xmm_rm32_imm8).def(d, Width::X).read(all, Width::X);
                    inst.mem(mem).imm(lane)
                }
            });
            all = Some(d);
        }
        all.unwrap_or(numbers)
    }

    /// Chunks of 16 bytes, a power of two of them, as one vector.
    fn joined(&mut self, mut parts: Vec<Vreg>) -> Vreg {
        let mut bytes = 16;
        while parts.len() > 1 {
            let (code, width) = match bytes {
                16 => (Code::VEX_Vinserti128_ymm_ymm_xmmm128_imm8, Width::Y),
                _ => (Code::EVEX_Vinserti32x8_zmm_k1z_zmm_ymmm256_imm8, Width::Z),
            };
            parts = (parts.chunks_exact(2))
                .map(|pair| {
                    let d = self.vector(2 * bytes);
                    let inst = Inst::code(code).def(d, width).read(pair[0], width).read(pair[1], Width::of(bytes));
                    self.emit(inst.imm(1));
                    d
                })
                .collect();
            bytes *= 2;
        }
        parts[0]
    }
}
