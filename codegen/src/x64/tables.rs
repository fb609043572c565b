//! Selection of ops that look up entries of tables, and of the one that moves bits to bytes.
//!
//! Numbers of entries are put into the frame and loaded from there one by one: taking them out of a vector are two instructions' worth of work each, on the
//! port or pipe that entries are put together on.
//!
//! ```text
//! lookup_quarter, more than 256 entries: vmovdqu [slot], words of all four quarters; for each lane movzx, [slot + ..]; vpinsrd entries, [table + 4 number]
//!                 256:                   the same, from where low was loaded
//!                 up to 512, AVX-512 BW: vpermt2w from each 64 entries that fit a word, for two quarters at once; vpblendmw; vpunpckwd, vpsrlvw, vpand
//! lookup_byte, 512 entries, of whole vectors where bytes can be permuted (VBMI):
//!     vpermt2b from each 128 entries by the low seven bits; vpblendmb by the eighth; vpblendmb by the ninth
//! ```

use iced_x86::Code;
use ixc_ir::format::grids::{BYTE_TABLES, TABLES};
use ixc_ir::kernel::{QUARTERS, Type, ValueId};
use ixc_targets::Feature;

use super::codes::{
    Codes, MOVDQU_STORE, MULTISHIFT, PACKSSDW, PACKSSWB, PAND, PBLENDMB, PBLENDMW, PERMT2B, PERMT2W, PMOVB2M, PMOVZXBD,
    POR, PSHUFB, PSLLD, PSLLQ, PSLLVQ, PSRLQ, PSRLVQ, PSRLVW, PSUBQ, PTESTMB, PTESTMW, PUNPCKHBW, PUNPCKHWD, PUNPCKLBW,
    PUNPCKLWD,
};
use super::machine::{Class, Inst, Mem, Rm, Vreg, Width};
use super::select::Selector;
use super::values::Read;

/// Bytes of the vectors that bytes are permuted in.
const WHOLE: u32 = 64;
/// Entries that two of those have.
const TWO: usize = 2 * WHOLE as usize;

/// Entries that a byte numbers all of.
const BYTE: usize = 256;

/// The most entries that are looked up as words, in whole vectors: where a word of two vectors is three instructions' worth of work (Intel), more take
/// longer than one by one.
const MOST_WORDS: usize = 512;

/// What is ready of numbers of entries.
#[derive(Clone, Copy)]
pub enum Numbers {
    /// They are in memory.
    Memory(OneByOne),
    /// They are looked up: the words, and what makes entries of them.
    Words([Vreg; 2], Halves),
}

/// Where memory has numbers of entries.
#[derive(Clone, Copy)]
pub struct OneByOne {
    /// The places: of lanes two by two in turn, where a lane's are more than a dword.
    at: [Mem; 2],
    /// What loads one.
    code: Code,
    /// Bytes of a lane.
    lane: u32,
}

impl OneByOne {
    /// The number of a lane's quarter.
    fn at(&self, lane: u32, quarter: u32) -> Mem {
        // What interleaves bytes has the lower half of each 16 bytes in the first place.
        let (mem, place) = match self.lane {
            8 => (self.at[lane as usize / 2 % 2], 16 * (lane / 4) + 8 * (lane % 2)),
            _ => (self.at[0], 4 * lane),
        };
        Mem { disp: mem.disp + (place + quarter * self.lane / QUARTERS as u32) as i32, ..mem }
    }
}

/// Entries of 32 bits as words: the upper half stands beside the lower one.
#[derive(Clone, Copy)]
pub struct Halves {
    /// How much higher.
    by: u32,
    /// The bits that a half has.
    own: u16,
}

impl Halves {
    /// Those of a table, if there is place for both.
    fn of(entries: &[u32]) -> Option<Halves> {
        let own = entries.iter().fold(0, |own, entry| own | *entry as u16 | (entry >> 16) as u16);
        let apart = |by: u32| {
            let moved = u32::from(own) << by;
            moved <= u16::MAX.into() && moved as u16 & own == 0 && own >> by & own == 0
        };
        (1..u16::BITS).find(|by| apart(*by)).map(|by| Halves { by, own })
    }

    /// An entry.
    fn word(self, entry: u32) -> u16 {
        entry as u16 | ((entry >> 16) as u16) << self.by
    }
}

impl Selector<'_> {
    /// Entries of a table.
    pub fn lookup(&mut self, a: ValueId, ty: Type, table: i64) -> Vreg {
        let (bytes, entries) = (ty.bytes().max(16), TABLES[table as usize]);
        let a = match entries.len() {
            BYTE => self.reg(a),
            len => {
                let (_, mask) = self.constant((len as u32 - 1).to_le_bytes().repeat(bytes as usize / 4));
                let a = self.rm(a, Read::plain(bytes));
                self.three(PAND, bytes, mask, a)
            }
        };
        let at = Mem::slot(self.framed(a, bytes));
        let code = if entries.len() == BYTE { Code::Movzx_r32_rm8 } else { Code::Mov_r32_rm32 };
        let numbers = OneByOne { at: [at; 2], code, lane: 4 };
        self.entries_of(entries, numbers, ty, 0)
    }

    /// Entries of a table, whose numbers are one byte of each lane, and one of the lanes beside these.
    pub fn lookup_quarter(&mut self, low: ValueId, high: ValueId, ty: Type, immediate: i64) -> Vreg {
        let (table, quarter) = ((immediate / QUARTERS) as usize, (immediate % QUARTERS) as u32);
        let entries = TABLES[table];
        let key = (self.current, low, if entries.len() == BYTE { low } else { high }, table);
        let numbers = match self.numbers.get(&key) {
            Some(numbers) => *numbers,
            None => {
                let numbers = self.numbers(low, high, ty.bytes().max(16), entries);
                self.numbers.insert(key, numbers);
                numbers
            }
        };
        match numbers {
            Numbers::Memory(numbers) => self.entries_of(entries, numbers, ty, quarter),
            Numbers::Words(words, halves) => self.widened(words[quarter as usize / 2], quarter % 2, halves),
        }
    }

    /// Makes numbers of all four quarters ready.
    fn numbers(&mut self, low: ValueId, high: ValueId, bytes: u32, entries: &[u32]) -> Numbers {
        let words = bytes == WHOLE && self.f.target.has(Feature::Avx512bw) && entries.len() <= MOST_WORDS;
        if let (true, Some(halves)) = (words, Halves::of(entries)) {
            return self.words(low, high, entries, halves);
        }
        let one_by_one = |at, code, lane| Numbers::Memory(OneByOne { at, code, lane });
        if entries.len() == BYTE {
            let at = match self.origins.get(&low) {
                Some((block, mem)) if *block == self.current => *mem,
                _ => {
                    let low = self.reg(low);
                    Mem::slot(self.framed(low, bytes))
                }
            };
            return one_by_one([at; 2], Code::Movzx_r32_rm8, 4);
        }
        let (low, high) = (self.reg(low), self.reg(high));
        let (_, mask) = self.constant((entries.len() as u16 - 1).to_le_bytes().repeat(bytes as usize / 2));
        let at = [PUNPCKLBW, PUNPCKHBW].map(|codes| {
            let words = self.three(codes, bytes, low, Rm::Reg(high));
            let words = self.three(PAND, bytes, words, Rm::Reg(mask));
            Mem::slot(self.framed(words, bytes))
        });
        one_by_one(at, Code::Movzx_r32_rm16, 8)
    }

    /// Entries as words: of the first two quarters, four lanes of each in turn, and of the others.
    fn words(&mut self, low: ValueId, high: ValueId, entries: &[u32], halves: Halves) -> Numbers {
        let base = self.table(entries.iter().flat_map(|&entry| halves.word(entry).to_le_bytes()).collect());
        let order: Vec<u8> = (0..16).map(|i| i % 4 * 4 + i / 4).collect();
        let (_, order) = self.constant(order.repeat(WHOLE as usize / 16));
        let by_quarters = |selector: &mut Self, bytes: ValueId| {
            let bytes = selector.reg(bytes);
            selector.three(PSHUFB, WHOLE, bytes, Rm::Reg(order))
        };
        let low = by_quarters(self, low);
        // What is above a byte is not looked at where a byte is enough.
        let high = if entries.len() == BYTE { low } else { by_quarters(self, high) };
        let words = [PUNPCKLBW, PUNPCKHBW].map(|codes| {
            let numbers = self.three(codes, WHOLE, low, Rm::Reg(high));
            let levels = (entries.len() / WHOLE as usize).trailing_zeros();
            let masks: Vec<Vreg> = (0..levels)
                .map(|level| {
                    let bit = self.lanes_of(0x0001_0001 << (WHOLE.trailing_zeros() + level), WHOLE);
                    self.tested(PTESTMW, numbers, bit)
                })
                .collect();
            self.chosen((PERMT2W, PBLENDMW), base, numbers, &masks, 0)
        });
        Numbers::Words(words, halves)
    }

    /// Entries of four lanes of each 16 bytes, of the lower words there or of the upper ones.
    fn widened(&mut self, words: Vreg, upper: u32, halves: Halves) -> Vreg {
        let codes = if upper == 0 { PUNPCKLWD } else { PUNPCKHWD };
        let both = self.three(codes, WHOLE, words, Rm::Reg(words));
        let by = self.lanes_of(halves.by << 16, WHOLE);
        let moved = self.three(PSRLVW, WHOLE, both, Rm::Reg(by));
        let own = self.lanes_of(u32::from(halves.own) << 16 | u32::from(halves.own), WHOLE);
        self.three(PAND, WHOLE, moved, Rm::Reg(own))
    }

    /// A mask of lanes that have one of these bits.
    fn tested(&mut self, codes: Codes, lanes: Vreg, bits: Vreg) -> Vreg {
        let mask = self.f.vreg(Class::Mask);
        self.emit(Inst::code(codes.2).def(mask, Width::K).read(lanes, Width::Z).read(bits, Width::Z));
        mask
    }

    /// Puts a vector into the frame.
    fn framed(&mut self, vector: Vreg, bytes: u32) -> u32 {
        let slot = self.f.slots.len() as u32;
        self.f.slots.push(bytes);
        let (code, width) = MOVDQU_STORE.of(bytes);
        self.emit(Inst::code(code).mem(Mem::slot(slot)).read(vector, width));
        slot
    }

    /// The entries of one number of each lane.
    fn entries_of(&mut self, entries: &[u32], numbers: OneByOne, ty: Type, quarter: u32) -> Vreg {
        let base = self.table(entries.iter().flat_map(|entry| entry.to_le_bytes()).collect());
        let lanes = u32::from(ty.lanes);
        let parts = (0..lanes)
            .step_by(4)
            .map(|first| {
                let numbers: Vec<Vreg> = (first..lanes.min(first + 4))
                    .map(|lane| {
                        let number = self.gpr();
                        let mem = numbers.at(lane, quarter);
                        self.emit(Inst::code(numbers.code).def(number, Width::R32).mem(mem));
                        number
                    })
                    .collect();
                self.entries(base, &numbers)
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
                        let at = Mem::slot(self.framed(numbers, 16));
                        let numbers = OneByOne { at: [at; 2], code: Code::Mov_r32_rm32, lane: 4 };
                        let numbers = [0, 1, 2, 3].map(|lane| {
                            let number = self.gpr();
                            self.emit(Inst::code(numbers.code).def(number, Width::R32).mem(numbers.at(lane, 0)));
                            number
                        });
                        self.entries(base, &numbers)
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
            .map(|level| match level {
                0 => {
                    let mask = self.f.vreg(Class::Mask);
                    self.emit(Inst::code(PMOVB2M.2).def(mask, Width::K).read(low, Width::Z));
                    mask
                }
                _ => {
                    let high = self.reg(high);
                    let bit = self.lanes_of(0x0101_0101 << (level - 1), WHOLE);
                    self.tested(PTESTMB, high, bit)
                }
            })
            .collect();
        self.chosen((PERMT2B, PBLENDMB), base, low, &masks, 0)
    }

    /// Of `2 << masks.len()` vectors of a table from number `first` on, the entries that `low` and the masks say.
    fn chosen(&mut self, codes: (Codes, Codes), base: Vreg, low: Vreg, masks: &[Vreg], first: i32) -> Vreg {
        let (permute, blend) = codes;
        let d = self.vector(WHOLE);
        let Some((mask, masks)) = masks.split_last() else {
            // The first of both tables is overwritten.
            let at = |vector: i32| Mem::at(base, vector * WHOLE as i32);
            self.emit(Inst::code(Code::EVEX_Vmovdqu32_zmm_k1z_zmmm512).def(d, Width::Z).mem(at(first)));
            self.emit(Inst::code(permute.2).update(d, Width::Z).read(low, Width::Z).mem(at(first + 1)));
            return d;
        };
        let unset = self.chosen(codes, base, low, masks, first);
        let set = self.chosen(codes, base, low, masks, first + (2 << masks.len()));
        let inst = Inst::code(blend.2).def(d, Width::Z).read(unset, Width::Z).read(set, Width::Z);
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
        if let Some(base) = self.tables.get(&(self.current, id)) {
            return *base;
        }
        let base = self.gpr();
        self.tables.insert((self.current, id), base);
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
    fn entries(&mut self, base: Vreg, numbers: &[Vreg]) -> Vreg {
        let mut all = None;
        for (lane, &number) in (0..).zip(numbers) {
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
        all.unwrap_or_else(|| self.vector(16))
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
