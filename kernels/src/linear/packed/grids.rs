//! Reader of the codes of packed strips that store indices of a grid.
//!
//! On targets with instructions that permute the bytes of whole vectors, bytes of entries are
//! looked up for 64 indices at once. The codes of each group are then extracted at their first bits
//! from the bytes of a row. Eight bytes hold two rows:
//!
//! ```text
//! iq2_xxs, 16 rows x 32 columns: 64 indices -> 64 bytes of elements 0..4, 64 of elements 4..8 -> group g: bits of row's byte g / 2 -> places | signs
//! ```
//!
//! On other targets, an entry of 32 bits is looked up for each row's index of four or eight
//! columns. The bytes or nibbles of an entry are the codes of its columns. A dword has the low
//! bytes of four indices of a row. A second dword has the bits of these indices above the low byte.

use ixc_ir::format::grids::{Grid, HighBits, Index, SIGNS, Signs};
use ixc_ir::kernel::{Affine, KernelBuilder, Op, QUARTERS, Type, ValueId};

use super::super::file::{Shift, bits};
use super::strip::{ROWS, StripBlock, VECTOR};

/// Number of columns of a group. The index of a group, or of two groups, selects one entry.
const GROUP: usize = 4;

impl StripBlock {
    /// Returns vectors from which [`StripBlock::grid_pair`] extracts the codes of a sub-block.
    pub fn grid_vectors(&self, b: &mut KernelBuilder, grid: &Grid, sub: Affine) -> Vec<ValueId> {
        if self.part.permutes { self.looked_up(b, grid, sub) } else { self.numbers_and_signs(b, grid, sub) }
    }

    /// Returns the codes of groups `2 * pair` and `2 * pair + 1` of a sub-block.
    pub fn grid_pair(&self, b: &mut KernelBuilder, grid: &Grid, pair: i64, vectors: &[ValueId]) -> [ValueId; 2] {
        let pair = pair as usize;
        if !self.part.permutes {
            return self.entries(b, grid, pair, vectors);
        }
        let quants = self.part.quants();
        [0, 1].map(|half| {
            let group = 2 * pair + half;
            // Eight bytes hold a dword of each of two rows, or four alternating words. The closures
            // return the first bit of element `i` of row `row`.
            let (entries, first, row_bits) = match grid.len {
                GROUP => (vectors[pair], 32 * half, 16),
                _ => (vectors[half], 8 * pair, 32),
            };
            let places = take_bytes(b, entries, |row, i| row * row_bits + first + grid.bits * i);
            let signs = take_bytes(b, vectors[vectors.len() - 1], |row, i| {
                let bit = match grid.signs {
                    Signs::Common { first, apart } => first + apart * (group * GROUP / grid.len),
                    Signs::Bits { .. } | Signs::Words { .. } | Signs::AboveIndex => GROUP * group + i,
                };
                // The sign is moved to the bit above the magnitude's index.
                row * 32 + bit + 64 - grid.bits
            });
            let [mask, sign] = [(1 << grid.bits) - 1, 1 << grid.bits].map(|mask| b.splat_int(quants, mask));
            let (places, signs) = (b.same(Op::And, &[places, mask]), b.same(Op::And, &[signs, sign]));
            b.same(Op::Or, &[places, signs])
        })
    }

    /// Loads vector `vector` of the sub-block `sub`.
    fn grid_vector(&self, b: &mut KernelBuilder, sub: Affine, vector: usize) -> ValueId {
        b.load(self.part.quants(), self.buffer, self.quants(sub) + vector as i64 * VECTOR)
    }

    /// Returns the bits of the field `high` for the rows of a sub-block, one dword for each row.
    /// Returns `None` without the field.
    pub fn high_words(&self, b: &mut KernelBuilder, grid: &Grid, sub: Affine) -> Option<ValueId> {
        let high = grid.high()?;
        let (bytes, lanes) = (high.bytes as i64, self.part.lanes);
        let ty = if high.bytes == 1 { Type::i8(lanes) } else { Type::i16(lanes) };
        let at = self.offset.clone() + (self.format.field("high") as i64 + self.part.at(bytes)) + sub * (bytes * ROWS);
        let words = b.load(ty, self.buffer, at);
        Some(b.op(Op::ExtendU, self.part.dwords(), &[words]))
    }

    /// Returns the bytes of the looked-up entries, and then the signs. The bytes have the first and
    /// the second half of eight elements, or two groups as words.
    fn looked_up(&self, b: &mut KernelBuilder, grid: &Grid, sub: Affine) -> Vec<ValueId> {
        let quants = self.part.quants();
        let high = self.high_words(b, grid, sub.clone()).map(|high| b.bitcast(quants, high));
        let signs = match grid.signs {
            Signs::Common { .. } => None,
            Signs::Bits { .. } | Signs::Words { .. } | Signs::AboveIndex => {
                Some(self.grid_vector(b, sub.clone(), grid.index_vectors()))
            }
        };
        let mut all = Vec::new();
        for vector in 0..grid.index_vectors() {
            let low = self.grid_vector(b, sub.clone(), vector);
            let above = match (grid.index, high, signs) {
                (Index::Words { .. }, _, Some(signs)) => signs,
                (Index::Bytes { high: Some(bits), .. }, Some(high), _) => {
                    take_bytes(b, high, |row, i| row * 32 + (4 * vector + i) * bits.apart)
                }
                _ => low,
            };
            // For entries of four elements, the words of two rows are joined, because eight bytes
            // must hold entries of both.
            let [low, above] = match grid.len {
                GROUP => {
                    let order = |t: u8| 4 * (t / 4 % 2 * 2 + t % 2) + t / 8 * 2 + t / 2 % 2;
                    let order =
                        b.bytes(quants, (0..16).map(order).collect::<Vec<u8>>().repeat(quants.lanes as usize / 16));
                    [low, above].map(|bytes| b.same(Op::ShuffleBytes, &[bytes, order]))
                }
                _ => [low, above],
            };
            let entries =
                [0, 1].map(|byte| b.op_imm(Op::LookupByte, quants, &[low, above], (2 * grid.table + byte) as i64));
            match grid.len {
                GROUP => all.extend([Op::UnpackLo, Op::UnpackHi].map(|op| b.op_imm(op, quants, &entries, 1))),
                _ => all.extend(entries),
            }
        }
        let sevens = |b: &mut KernelBuilder, first: usize, apart: usize| {
            signs.map(|signs| {
                let seven = take_bytes(b, signs, |row, i| row * 32 + first + apart * i);
                b.op_imm(Op::LookupByte, quants, &[seven, seven], SIGNS as i64)
            })
        };
        all.extend(match grid.signs {
            Signs::Bits { .. } => signs,
            Signs::Words { .. } => sevens(b, 0, 7),
            Signs::AboveIndex => sevens(b, 1, 8),
            Signs::Common { .. } => high,
        });
        all
    }

    /// Returns the low bytes of the indices, and then the same number of vectors with the bits of
    /// the indices above eight. The last vectors have the signs of even and of odd groups, moved to
    /// the bits above the magnitudes' indices. For grids with a common sign, the last vector has
    /// the words with these signs instead.
    fn numbers_and_signs(&self, b: &mut KernelBuilder, grid: &Grid, sub: Affine) -> Vec<ValueId> {
        let (quants, dwords) = (self.part.quants(), self.part.dwords());
        let vectors = grid.index_vectors();
        let mut all: Vec<ValueId> = (0..vectors).map(|vector| self.grid_vector(b, sub.clone(), vector)).collect();
        let high = self.high_words(b, grid, sub.clone());
        if let (Some(bits), Some(words)) = (grid.high(), high) {
            all.extend((0..vectors).map(|vector| bytes_above(b, bits, words, 4 * vector)));
        }
        if let Signs::Common { .. } = grid.signs {
            all.extend(high);
            return all;
        }
        let signs = self.grid_vector(b, sub, vectors);
        if high.is_none() {
            // The upper bytes of the words have the bits of the indices above eight. For indices
            // without such bits, the values of these vectors do not matter.
            all.push(signs);
            all.resize(2 * vectors, signs);
        }
        let signs = b.bitcast(dwords, signs);
        let eight = match grid.signs {
            Signs::Words { .. } => {
                // Each group of seven bits is moved to its own byte.
                let sevens = (0..4).map(|byte| {
                    let moved = b.shift(Op::Shl, signs, byte);
                    let own = b.splat_int(dwords, 0x7f << (8 * byte));
                    b.same(Op::And, &[moved, own])
                });
                let sevens: Vec<ValueId> = sevens.collect();
                let all = sevens[1..].iter().fold(sevens[0], |all, seven| b.same(Op::Or, &[all, *seven]));
                complete_signs(b, all, quants)
            }
            Signs::AboveIndex => {
                let signs = b.bitcast(quants, signs);
                let sevens = bits(b, signs, Shift::right(1), 0x7f);
                let sevens = b.bitcast(dwords, sevens);
                complete_signs(b, sevens, quants)
            }
            Signs::Bits { .. } | Signs::Common { .. } => signs,
        };
        let to = grid.bits as i64;
        for (op, by) in [(Op::Shl, to), (Op::ShrU, GROUP as i64 - to)] {
            let signs = b.shift(op, eight, by);
            all.push(b.bitcast(quants, signs));
        }
        all
    }

    /// Returns the codes of two groups of columns, by a look-up of whole entries.
    fn entries(&self, b: &mut KernelBuilder, grid: &Grid, pair: usize, vectors: &[ValueId]) -> [ValueId; 2] {
        let (quants, dwords) = (self.part.quants(), self.part.dwords());
        let entry = |b: &mut KernelBuilder, number: usize| {
            let [low, high] = [0, grid.index_vectors()].map(|from| vectors[from + number / 4]);
            b.op_imm(Op::LookupQuarter, dwords, &[low, high], QUARTERS * grid.table as i64 + number as i64 % QUARTERS)
        };
        let places = match grid.len {
            GROUP => [0, 1].map(|half| {
                let entries = entry(b, 2 * pair + half);
                b.bitcast(quants, entries)
            }),
            _ => {
                let mut entries = entry(b, pair);
                if let Signs::Common { first, apart } = grid.signs {
                    let words = vectors[vectors.len() - 1];
                    let top = b.shift(Op::Shl, words, 31 - (first + apart * pair) as i64);
                    let sign = b.shift(Op::ShrS, top, 31);
                    let every = i64::from(i32::from_le_bytes([0x11 << grid.bits; 4]));
                    let every = b.splat_int(dwords, every);
                    let sign = b.same(Op::And, &[sign, every]);
                    entries = b.same(Op::Or, &[entries, sign]);
                }
                let both = b.bitcast(quants, entries);
                [bits(b, both, Shift::NONE, 15), bits(b, both, Shift::right(4), 15)]
            }
        };
        if let Signs::Common { .. } = grid.signs {
            return places;
        }
        // The mask `own` keeps the sign bit of each element, which is at bit `grid.bits` or higher.
        // The minimum with bit `grid.bits` moves it there.
        let [own, sign] = [
            b.bytes(quants, (0..quants.lanes).map(|i| 1 << (grid.bits + usize::from(i) % 4)).collect()),
            b.splat_int(quants, 1 << grid.bits),
        ];
        let order = b.bytes(quants, (0..quants.lanes as u8).map(|i| i % 16 / 4 * 4 + pair as u8).collect());
        [0, 1].map(|half| {
            let signs = b.same(Op::ShuffleBytes, &[vectors[vectors.len() - 2 + half], order]);
            let signs = b.same(Op::And, &[signs, own]);
            let signs = b.same(Op::IMin, &[signs, sign]);
            b.same(Op::Or, &[places[half], signs])
        })
    }
}

/// Returns four bytes for each row, in a dword. Their lowest bits are the bits from 8 on of the
/// indices `first` to `first + 3`. `words` has the field `high` of each row.
fn bytes_above(b: &mut KernelBuilder, bits: HighBits, words: ValueId, first: usize) -> ValueId {
    let dwords = b.ty(words);
    let quants = Type::i8(4 * dwords.lanes);
    let from = |i: usize| (bits.apart * (first + i)) as i64;
    if bits.width == 1 {
        let moved = b.shift(Op::ShrU, words, from(0));
        let moved = b.bitcast(quants, moved);
        let order = b.bytes(quants, (0..quants.lanes as u8).map(|i| i % 16 / 4 * 4).collect());
        let [own, one] = [
            b.bytes(quants, (0..quants.lanes).map(|i| 1 << (from(usize::from(i) % 4) - from(0))).collect()),
            b.splat_int(quants, 1),
        ];
        let all = b.same(Op::ShuffleBytes, &[moved, order]);
        let bit = b.same(Op::And, &[all, own]);
        return b.same(Op::IMin, &[bit, one]);
    }
    // The bits of each index are moved to its byte. Bits of other indices may be above them in the
    // byte, but do not overlap them.
    let up = |i: usize| 8 * i as i64 - from(i);
    let in_others = |i: usize, j: usize| {
        let begins = 8 * j as i64 - up(i);
        i != j && begins < 8 * bits.bytes as i64 && begins + bits.width as i64 > 0
    };
    let each = (0..4).map(|i| {
        let op = if up(i) < 0 { Op::ShrU } else { Op::Shl };
        let moved = b.shift(op, words, up(i).abs());
        if !(0..4).any(|j| in_others(i, j)) {
            return moved;
        }
        let own = b.splat_int(dwords, i64::from((((1u32 << bits.width) - 1) << (8 * i)) as i32));
        b.same(Op::And, &[moved, own])
    });
    let each: Vec<ValueId> = each.collect();
    let all = each[1..].iter().fold(each[0], |all, own| b.same(Op::Or, &[all, *own]));
    b.bitcast(quants, all)
}

/// Returns, for each of the two rows in every eight bytes of `a`, four bytes. Byte `i` of row `row`
/// begins at bit `from(row, i)`, modulo 64.
fn take_bytes(b: &mut KernelBuilder, a: ValueId, from: impl Fn(usize, usize) -> usize) -> ValueId {
    let ty = b.ty(a);
    let eight: Vec<u8> = (0..8).map(|byte| (from(byte / 4, byte % 4) % 64) as u8).collect();
    let from = b.bytes(ty, eight.repeat(usize::from(ty.lanes) / 8));
    b.op(Op::Multishift, ty, &[a, from])
}

/// Returns bytes of eight signs, with an even number of negative ones. The block stores seven of
/// them, in a nibble and the three bits above it.
fn complete_signs(b: &mut KernelBuilder, sevens: ValueId, quants: Type) -> ValueId {
    let dwords = b.ty(sevens);
    let sevens = b.bitcast(quants, sevens);
    let parts = [(Shift::NONE, 15, 0u8), (Shift::right(4), 7, 4)].map(|(shift, mask, to)| {
        let table = (0..16u8).map(|part| part << to | (part.count_ones() as u8 & 1) << 7).collect::<Vec<u8>>();
        let table = b.bytes(quants, table.repeat(usize::from(quants.lanes) / 16));
        let part = bits(b, sevens, shift, mask);
        b.same(Op::ShuffleBytes, &[table, part])
    });
    let eight = b.same(Op::Xor, &parts);
    b.bitcast(dwords, eight)
}
