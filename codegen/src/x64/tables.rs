//! Selection of table lookups, and of `multishift`, the op that moves bits to bytes.
//!
//! Entry numbers that are in memory are loaded one by one. Entry numbers in a vector are extracted
//! eight bytes at a time. Storing the vector and loading single numbers would take 1.5 times as
//! long. On Zen 4, 16 entries take 18.6 cycles with stored numbers, 12.0 with extracted numbers,
//! and 11.0 with numbers in memory.
//!
//! ```text
//! | lookup_quarter
//!   256 entries, numbers in memory:
//!     for each lane movzx, [low + 4 lane + quarter]; vpinsrd entries, [table + 4 number]
//!   other numbers:
//!     vpshufb, vpunpcklbw: words by quarters; vmovq or vpextrq;
//!     movzx and shr four times; vpinsrd
//!   up to 512 entries that fit a word, AVX-512 BW:
//!     vpermt2w from each 64 entries, for two quarters at once; vpblendmw;
//!     vpunpckwd, vpsrlvw, vpand
//! lookup_byte, 512 entries, whole vectors, with permutations of bytes (VBMI):
//!     vpermt2b from each 128 entries by the low seven bits;
//!     vpblendmb by the eighth; vpblendmb by the ninth
//! ```

use iced_x86::Code;
use ixc_ir::format::grids::{BYTE_TABLES, TABLES};
use ixc_ir::kernel::{QUARTERS, Type, ValueId};
use ixc_targets::Feature;

use super::codes::{
    Codes, MULTISHIFT, PACKSSDW, PACKSSWB, PAND, PBLENDMB, PBLENDMW, PERMT2B, PERMT2W, PMOVB2M, POR, PSHUFB, PSLLQ,
    PSLLVQ, PSRLQ, PSRLVQ, PSRLVW, PSUBQ, PTESTMB, PTESTMW, PUNPCKHBW, PUNPCKHWD, PUNPCKLBW, PUNPCKLWD,
};
use super::locations::{Halves, Numbers, Read};
use super::machine::{Class, Inst, Mem, Rm, Vreg, Width};
use super::select::Selector;

/// Bytes of a whole vector, the unit of permutations.
const VECTOR_BYTES: u32 = 64;
/// Number of one-byte entries in two whole vectors.
const TWO: usize = 2 * VECTOR_BYTES as usize;

/// Number of entries that one byte can address.
const BYTE: usize = 256;

/// Max entries of a table that is looked up as words in whole vectors. On Intel, a permutation of
/// words in two vectors costs as much as three instructions. For larger tables, looking up entries
/// one by one is faster.
const MAX_WORDS: usize = 512;

impl Selector<'_> {
    /// Looks up entries of a table of 32-bit values.
    pub fn lookup(&mut self, a: ValueId, ty: Type, table: i64) -> Vreg {
        let (bytes, entries) = (ty.bytes().max(16), TABLES[table as usize]);
        let (_, mask) = self.constant((entries.len() as u32 - 1).to_le_bytes().repeat(bytes as usize / 4));
        let a = self.rm(a, Read::plain(bytes));
        let numbers = self.three(PAND, bytes, mask, a);
        let base = self.entries_at(entries.iter().copied());
        let parts = (0..bytes / 16)
            .map(|chunk| {
                let chunk = self.chunk(numbers, chunk, bytes);
                let numbers = [false, true].map(|upper| self.taken_out(chunk, upper, Code::Mov_r32_rm32, Width::R32));
                self.entries(base, &numbers.concat())
            })
            .collect();
        self.join_chunks(parts)
    }

    /// Looks up table entries. In each 32-bit lane, one byte of `low` is the low byte of the entry
    /// number, and the same byte of `high` is the high byte.
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
        let (bytes, lanes) = (ty.bytes().max(16), u32::from(ty.lanes).min(4));
        let words = match numbers {
            Numbers::Words(words, halves) => return self.widen_words(words[quarter as usize / 2], quarter % 2, halves),
            Numbers::Apart(words) => Ok(words[quarter as usize / 2]),
            Numbers::Memory(at) => Err(Mem { disp: at.disp + quarter as i32, ..at }),
        };
        let base = self.entries_at(entries.iter().copied());
        let parts = (0..bytes / 16)
            .map(|chunk| {
                let numbers = match words {
                    Ok(words) => {
                        let words = self.chunk(words, chunk, bytes);
                        self.taken_out(words, quarter % 2 == 1, Code::Movzx_r32_rm16, Width::R16)
                    }
                    Err(at) => (0..lanes).map(|lane| self.load_number(at, 16 * chunk + 4 * lane)).collect(),
                };
                self.entries(base, &numbers)
            })
            .collect();
        self.join_chunks(parts)
    }

    /// Loads the byte at an offset from an address as a number.
    fn load_number(&mut self, at: Mem, byte: u32) -> Vreg {
        let number = self.gpr();
        let mem = Mem { disp: at.disp + byte as i32, ..at };
        self.emit(Inst::code(Code::Movzx_r32_rm8).def(number, Width::R32).mem(mem));
        number
    }

    /// Prepares the entry numbers of all four quarters.
    fn numbers(&mut self, low: ValueId, high: ValueId, bytes: u32, entries: &[u32]) -> Numbers {
        let words = bytes == VECTOR_BYTES && self.f.target.has(Feature::Avx512bw) && entries.len() <= MAX_WORDS;
        if let (true, Some(halves)) = (words, Halves::from_entries(entries)) {
            return self.words(low, high, entries, halves);
        }
        if let Some((block, mem)) = self.origins.get(&low)
            && *block == self.current
            && entries.len() == BYTE
        {
            return Numbers::Memory(*mem);
        }
        let mask = (entries.len() as u16 - 1).to_le_bytes().repeat(bytes as usize / 2);
        let (_, mask) = self.constant(mask);
        let words = self.by_quarters(low, high, bytes, entries);
        Numbers::Apart(words.map(|words| self.three(PAND, bytes, words, Rm::Reg(mask))))
    }

    /// Computes the entry numbers as words, in the order of [`Numbers::Apart`]. The bits above a
    /// number are not cleared.
    fn by_quarters(&mut self, low: ValueId, high: ValueId, bytes: u32, entries: &[u32]) -> [Vreg; 2] {
        let order: Vec<u8> = (0..16).map(|i| i % 4 * 4 + i / 4).collect();
        let (_, order) = self.constant(order.repeat(bytes as usize / 16));
        let low = self.reg(low);
        let low = self.three(PSHUFB, bytes, low, Rm::Reg(order));
        // If a byte addresses all entries, the high byte is ignored.
        let high = if entries.len() == BYTE {
            low
        } else {
            let high = self.reg(high);
            self.three(PSHUFB, bytes, high, Rm::Reg(order))
        };
        [PUNPCKLBW, PUNPCKHBW].map(|codes| self.three(codes, bytes, low, Rm::Reg(high)))
    }

    /// Looks up packed entries for all quarters, in the order of [`Numbers::Apart`].
    fn words(&mut self, low: ValueId, high: ValueId, entries: &[u32], halves: Halves) -> Numbers {
        let base = self.table(entries.iter().flat_map(|&entry| halves.word(entry).to_le_bytes()).collect());
        let words = self.by_quarters(low, high, VECTOR_BYTES, entries).map(|numbers| {
            let levels = (entries.len() / VECTOR_BYTES as usize).trailing_zeros();
            let masks: Vec<Vreg> = (0..levels)
                .map(|level| {
                    let bit = self.lanes_of(0x0001_0001 << (VECTOR_BYTES.trailing_zeros() + level), VECTOR_BYTES);
                    self.test_bits(PTESTMW, numbers, bit)
                })
                .collect();
            self.select_vectors(PERMT2W, PBLENDMW, base, numbers, &masks, 0)
        });
        Numbers::Words(words, halves)
    }

    /// Unpacks packed entries to 32 bits: in every 16 bytes, the four lower words (`upper` is 0) or
    /// the four upper words.
    fn widen_words(&mut self, words: Vreg, upper: u32, halves: Halves) -> Vreg {
        let codes = if upper == 0 { PUNPCKLWD } else { PUNPCKHWD };
        let both = self.three(codes, VECTOR_BYTES, words, Rm::Reg(words));
        let by = self.lanes_of(halves.by << 16, VECTOR_BYTES);
        let moved = self.three(PSRLVW, VECTOR_BYTES, both, Rm::Reg(by));
        let own = self.lanes_of(u32::from(halves.own) << 16 | u32::from(halves.own), VECTOR_BYTES);
        self.three(PAND, VECTOR_BYTES, moved, Rm::Reg(own))
    }

    /// Returns the mask of lanes that have one of the bits in `bits` set.
    fn test_bits(&mut self, codes: Codes, lanes: Vreg, bits: Vreg) -> Vreg {
        let mask = self.f.vreg(Class::Mask);
        self.emit(Inst::code(codes.2).def(mask, Width::K).read(lanes, Width::Z).read(bits, Width::Z));
        mask
    }

    /// Extracts the numbers from the lower or upper eight bytes of a 16-byte chunk. Each number has
    /// the given width, and `code` widens it.
    fn taken_out(&mut self, chunk: Vreg, upper: bool, code: Code, width: Width) -> Vec<Vreg> {
        let rest = self.gpr();
        self.emit(match upper {
            false => Inst::code(Code::VEX_Vmovq_rm64_xmm).def(rest, Width::R64).read(chunk, Width::X),
            true => Inst::code(Code::VEX_Vpextrq_rm64_xmm_imm8).def(rest, Width::R64).read(chunk, Width::X).imm(1),
        });
        let bits = if width == Width::R16 { 16 } else { 32 };
        let mut numbers = Vec::new();
        for _ in 1..64 / bits {
            let number = self.gpr();
            self.emit(Inst::code(code).def(number, Width::R32).read(rest, width));
            self.emit(Inst::code(Code::Shr_rm64_imm8).update(rest, Width::R64).imm(bits));
            numbers.push(number);
        }
        numbers.push(rest);
        numbers
    }

    /// Looks up entries of a table of bytes. `low` and `high` have the bytes of the entry numbers.
    pub fn lookup_byte(&mut self, low: ValueId, high: ValueId, ty: Type, table: i64) -> Vreg {
        let entries = BYTE_TABLES[table as usize];
        if ty.bytes() == VECTOR_BYTES && self.f.target.has(Feature::Avx512vbmi) {
            return self.permute_bytes(low, high, entries);
        }
        // Looks up 32-bit entries and narrows them again. The entries are sign-extended, because
        // narrowing saturates.
        let bytes = ty.bytes().max(16);
        let (low, high) = (self.reg(low), self.reg(high));
        let mask = self.lanes_of((entries.len() as u32 - 1) * 0x0001_0001, bytes);
        let words = [PUNPCKLBW, PUNPCKHBW].map(|codes| {
            let words = self.three(codes, bytes, low, Rm::Reg(high));
            self.three(PAND, bytes, words, Rm::Reg(mask))
        });
        let base = self.entries_at(entries.iter().map(|&entry| i32::from(entry as i8) as u32));
        let parts = (0..bytes / 16)
            .map(|chunk| {
                let narrowed = words.map(|words| {
                    let words = self.chunk(words, chunk, bytes);
                    let [first, second] = [false, true].map(|upper| {
                        let numbers = self.taken_out(words, upper, Code::Movzx_r32_rm16, Width::R16);
                        self.entries(base, &numbers)
                    });
                    self.three(PACKSSDW, 16, first, Rm::Reg(second))
                });
                self.three(PACKSSWB, 16, narrowed[0], Rm::Reg(narrowed[1]))
            })
            .collect();
        self.join_chunks(parts)
    }

    /// Looks up entries of a table of bytes with permutations of whole vectors.
    fn permute_bytes(&mut self, low: ValueId, high: ValueId, entries: &[u8]) -> Vreg {
        let base = self.table(entries.to_vec());
        let low = self.reg(low);
        // The low seven bits choose among 128 entries. Each higher bit of a number chooses between
        // two parts of the table.
        let levels = (entries.len() / TWO).trailing_zeros();
        let masks: Vec<Vreg> = (0..levels)
            .map(|level| {
                if level == 0 {
                    let mask = self.f.vreg(Class::Mask);
                    self.emit(Inst::code(PMOVB2M.2).def(mask, Width::K).read(low, Width::Z));
                    return mask;
                }
                let high = self.reg(high);
                let bit = self.lanes_of(0x0101_0101 << (level - 1), VECTOR_BYTES);
                self.test_bits(PTESTMB, high, bit)
            })
            .collect();
        self.select_vectors(PERMT2B, PBLENDMB, base, low, &masks, 0)
    }

    /// Selects entries from `2 << masks.len()` vectors of a table, beginning with vector `first`.
    /// `low` selects among the entries of two vectors, and each mask selects between two such
    /// results.
    fn select_vectors(
        &mut self,
        permute: Codes,
        blend: Codes,
        base: Vreg,
        low: Vreg,
        masks: &[Vreg],
        first: i32,
    ) -> Vreg {
        let d = self.vector(VECTOR_BYTES);
        let Some((mask, masks)) = masks.split_last() else {
            // The permutation overwrites the first of the two vectors.
            let at = |vector: i32| Mem::at(base, vector * VECTOR_BYTES as i32);
            self.emit(Inst::code(Code::EVEX_Vmovdqu32_zmm_k1z_zmmm512).def(d, Width::Z).mem(at(first)));
            self.emit(Inst::code(permute.2).update(d, Width::Z).read(low, Width::Z).mem(at(first + 1)));
            return d;
        };
        let unset = self.select_vectors(permute, blend, base, low, masks, first);
        let set = self.select_vectors(permute, blend, base, low, masks, first + (2 << masks.len()));
        let inst = Inst::code(blend.2).def(d, Width::Z).read(unset, Width::Z).read(set, Width::Z);
        self.emit(inst.with_mask(*mask, false));
        d
    }

    /// Selects bits like `vpmultishiftqb`: byte `i` of `from` is a bit offset into the 64-bit lane
    /// of `a` that contains byte `i`. Byte `i` of the result is the 8 bits that begin at this
    /// offset, with wrap-around.
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

    /// Returns the base address of a table of 32-bit entries.
    fn entries_at(&mut self, entries: impl Iterator<Item = u32>) -> Vreg {
        self.table(entries.flat_map(u32::to_le_bytes).collect())
    }

    /// Returns the base address of a table in the pool.
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

    /// Returns chunk number `chunk` of a register of `bytes` bytes; a chunk has 16 bytes.
    fn chunk(&mut self, a: Vreg, chunk: u32, bytes: u32) -> Vreg {
        match (chunk, bytes) {
            (0, _) => a,
            (1, _) => self.upper_half(a, 32, false),
            (_, _) => self.upper_chunk(a, chunk.into(), false),
        }
    }

    /// Loads entries of 32 bits, one by one. The gather instruction is not faster: on AMD it is
    /// microcode, and on Intel the mitigations against data leaks make it slower.
    ///
    /// An alternative is to load 16 bytes at an entry and blend one lane of them into the result.
    /// This avoids the port for lane insertions, but is 2 to 10 % slower on a Zen 4, because every
    /// fifth load crosses a cache line.
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

    /// Joins chunks of 16 bytes to one vector. Their number is a power of two.
    fn join_chunks(&mut self, mut parts: Vec<Vreg>) -> Vreg {
        let mut bytes = 16;
        while parts.len() > 1 {
            let (code, width) = if bytes == 16 {
                (Code::VEX_Vinserti128_ymm_ymm_xmmm128_imm8, Width::Y)
            } else {
                (Code::EVEX_Vinserti32x8_zmm_k1z_zmm_ymmm256_imm8, Width::Z)
            };
            parts = (parts.chunks_exact(2))
                .map(|pair| {
                    let d = self.vector(2 * bytes);
                    let inst =
                        Inst::code(code).def(d, width).read(pair[0], width).read(pair[1], Width::from_bytes(bytes));
                    self.emit(inst.imm(1));
                    d
                })
                .collect();
            bytes *= 2;
        }
        parts[0]
    }
}
