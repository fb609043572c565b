//! Reader of blocks in the layout of model files: codes, scales and floats of a row, at the bit
//! positions that the codec gives.

mod numbers;

use ixc_ir::format::digits::{BASE, Digits};
use ixc_ir::format::grids::{Grid, HighBits, Index, Signs};
use ixc_ir::format::packed::SUB;
use ixc_ir::format::{Codes, Format, Plane, Quants, ScaleBits, ScaleCodes, ScaleNumber, Scales, Spread, Values};
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

use crate::linear;
pub use numbers::{number_bits, numbers, whole};

/// Type of a vector with the codes of a sub-block.
pub const BYTES: Type = Type::i8(SUB as u16);
/// Number of elements of half a sub-block.
const HALF: usize = SUB / 2;

/// A block of a weight row in memory.
#[derive(Clone)]
pub struct Block {
    pub buffer: BufferId,
    pub offset: Affine,
    pub format: Format,
}

impl Block {
    fn codec(&self) -> &'static Quants {
        linear::quants(self.format)
    }

    /// Returns the offset of a field of the block.
    pub fn field(&self, name: &str) -> Affine {
        self.offset.clone() + self.format.field(name) as i64
    }

    /// Returns the float at index `at` of the block's field `name`, as f32.
    pub fn number(&self, b: &mut KernelBuilder, name: &str, at: i64) -> ValueId {
        let number = self.codec().number(name);
        numbers(b, number, 1, self.buffer, self.field(name) + at * number.bytes() as i64)
    }

    /// Returns the codes of a sub-block of 32 elements, each in one byte.
    pub fn codes(&self, b: &mut KernelBuilder, sub: i64) -> ValueId {
        let codec = self.codec();
        match (codec.codes, &codec.high) {
            (Codes::Grid(grid), _) => self.grid_codes(b, grid, sub),
            (Codes::Digits(digits), _) => self.digits(b, digits, sub),
            (Codes::Planes, None) => self.plane(b, &codec.low, sub, 0),
            (Codes::Planes, Some(high)) => {
                let low = self.plane(b, &codec.low, sub, 0);
                let high = self.plane(b, high, sub, codec.low.bits as i64);
                b.same(Op::Or, &[low, high])
            }
        }
    }

    /// Returns the codes of a sub-block that are base-3 digits. A run has at least two bytes, so
    /// both bytes of a 16-bit word contain the code at the same digit index.
    fn digits(&self, b: &mut KernelBuilder, all: &'static [Digits], sub: i64) -> ValueId {
        let halves = [0, 1].map(|half| {
            let first = (2 * sub as usize + half) * HALF;
            let (digits, byte, _) = Digits::place(all, first);
            let at = self.field(digits.field) + byte as i64;
            match digits.run {
                HALF.. => b.load(Type::i8(HALF as u16), self.buffer, at),
                // The same four bytes are loaded again, and shifted to their next digits.
                4 => {
                    let four = b.load_splat(Type::i32(HALF as u16 / 4), self.buffer, at);
                    b.bitcast(Type::i8(HALF as u16), four)
                }
                run => unreachable!("{}: no code for digits in runs of {run}", self.format),
            }
        });
        let words = Type::i16(BYTES.lanes / 2);
        let bytes = b.op(Op::Concat, BYTES, &halves);
        let bytes = b.bitcast(words, bytes);
        let powers = (0..BYTES.lanes).step_by(2).flat_map(|i| {
            let (_, _, n) = Digits::place(all, sub as usize * SUB + usize::from(i));
            u16::from(Digits::power(n)).to_le_bytes()
        });
        let powers = b.bytes(words, powers.collect());
        let (low, base) = (b.splat_int(words, 255), b.splat_int(words, BASE.into()));
        let even = b.same(Op::And, &[bytes, low]);
        let odd = b.shift(Op::ShrU, bytes, 8);
        let [even, odd] = [even, odd].map(|byte| {
            let byte = b.same(Op::IMul, &[byte, powers]);
            let byte = b.same(Op::And, &[byte, low]);
            let digit = b.same(Op::IMul, &[byte, base]);
            b.shift(Op::ShrU, digit, 8)
        });
        let odd = b.shift(Op::Shl, odd, 8);
        let both = b.same(Op::Or, &[even, odd]);
        b.bitcast(BYTES, both)
    }

    /// Returns the bits that a plane has of a sub-block's codes. They are shifted to bit `to` of
    /// each byte.
    fn plane(&self, b: &mut KernelBuilder, plane: &Plane, sub: i64, to: i64) -> ValueId {
        let (byte, from) = plane.place(sub as usize * SUB);
        let (at, from, width) = (self.field(plane.field) + byte as i64, from as i64, plane.bits as i64);
        let mask = ((1 << width) - 1) << to;
        let moved = |b: &mut KernelBuilder, bytes: ValueId, from: i64| {
            let shift = if from <= to { Shift::shift_left(to - from) } else { Shift::right(from - to) };
            bits(b, bytes, shift, mask)
        };
        match (plane.run, plane.bits) {
            (_, 8) => b.load(BYTES, self.buffer, at),
            (run, _) if run >= SUB => {
                let bytes = b.load(BYTES, self.buffer, at);
                moved(b, bytes, from)
            }
            // The two halves of the sub-block use different bits of the same bytes.
            (16, _) => {
                let bytes = b.load(Type::i8(16), self.buffer, at);
                let (low, high) = (moved(b, bytes, from), moved(b, bytes, from + width));
                b.op(Op::Concat, BYTES, &[low, high])
            }
            // The same eight bytes are loaded twice: their low bits come first, then their high
            // bits.
            (8, 4) => {
                let ty = Type::i8(16);
                let bytes = b.load(ty, self.buffer, at);
                let (low, high) = (moved(b, bytes, from), moved(b, bytes, from + width));
                let halves = [Op::UnpackLo, Op::UnpackHi].map(|op| b.op_imm(op, ty, &[low, high], 8));
                b.op(Op::Concat, BYTES, &halves)
            }
            // Each byte has the codes of four neighbouring elements. It is repeated four times, and
            // each lane keeps its own code.
            (1, 2) => {
                let eight = b.load(Type::i8(8), self.buffer, at);
                let both = b.op(Op::Concat, Type::i8(16), &[eight, eight]);
                let all = b.op(Op::Concat, BYTES, &[both, both]);
                let order = b.bytes(BYTES, (0..BYTES.lanes as u8).map(|i| i / 4).collect());
                let all = b.same(Op::ShuffleBytes, &[all, order]);
                let own = (0..4).map(|place| {
                    let bits = moved(b, all, from + width * place);
                    let own = (0..BYTES.lanes).map(|i| if i64::from(i % 4) == place { u8::MAX } else { 0 }).collect();
                    let own = b.bytes(BYTES, own);
                    b.same(Op::And, &[bits, own])
                });
                let own: Vec<ValueId> = own.collect();
                own[1..].iter().fold(own[0], |all, own| b.same(Op::Or, &[all, *own]))
            }
            (1, 1) => {
                let word = b.load_splat(Type::i32(BYTES.lanes / 4), self.buffer, at);
                let word = b.bitcast(BYTES, word);
                let top = each_bit(b, word, 1);
                moved(b, top, 7)
            }
            (run, bits) => unreachable!("{}: no code for planes of {bits} bits in runs of {run}", self.format),
        }
    }

    /// Returns the codes of a sub-block that is stored as indices of a grid.
    fn grid_codes(&self, b: &mut KernelBuilder, grid: &Grid, sub: i64) -> ValueId {
        let numbers = self.grid_indices(b, grid, sub);
        let mut entries = b.op_imm(Op::Lookup, b.ty(numbers), &[numbers], grid.table as i64);
        if let Some(signs) = self.common_signs(b, grid, sub) {
            entries = b.same(Op::Or, &[entries, signs]);
        }
        let places = match grid.len {
            4 => b.bitcast(BYTES, entries),
            _ => {
                // The four low nibbles of each entry come first, then the four high ones.
                let ty = Type::i8(BYTES.lanes / 2);
                let both = b.bitcast(ty, entries);
                let (low, high) = (bits(b, both, Shift::NONE, 15), bits(b, both, Shift::right(4), 15));
                let (first, second) =
                    (b.op_imm(Op::UnpackLo, ty, &[low, high], 4), b.op_imm(Op::UnpackHi, ty, &[low, high], 4));
                b.op(Op::Concat, BYTES, &[first, second])
            }
        };
        let to = grid.bits as i64;
        let signs = match grid.signs {
            Signs::Bits { field } => self.plane(b, &Plane::new(field, 1, 1), sub, to),
            Signs::Words { .. } | Signs::AboveIndex => {
                let signs = self.sevens(b, grid, sub);
                // The lowest byte of each dword has eight signs.
                let top = each_bit(b, signs, 4);
                bits(b, top, Shift::right(7 - to), 1 << to)
            }
            // The entries of such a grid contain the signs already.
            Signs::Common { .. } => return places,
        };
        b.same(Op::Or, &[places, signs])
    }

    /// Returns the grid indices of a sub-block, each in a dword.
    fn grid_indices(&self, b: &mut KernelBuilder, grid: &Grid, sub: i64) -> ValueId {
        let dwords = Type::i32(grid.each() as u16);
        match grid.index {
            Index::Bytes { field, stride, high } => {
                let at = self.field(field) + sub * stride as i64;
                let low = b.load(Type::i8(dwords.lanes), self.buffer, at);
                let low = b.op(Op::ExtendU, dwords, &[low]);
                let Some(high) = high else { return low };
                let word = self.high_bits(b, grid, high, sub);
                let above = each_to(b, word, 0, high.apart, high.width, 8);
                b.same(Op::Or, &[low, above])
            }
            Index::Words { field } => {
                let words = self.grid_words(b, grid, field, sub);
                let mask = b.splat_int(dwords, 511);
                b.same(Op::And, &[words, mask])
            }
        }
    }

    /// Returns the bits of a sub-block's indices above the low bytes, one dword for each index. The
    /// dwords still contain other bits.
    fn high_bits(&self, b: &mut KernelBuilder, grid: &Grid, high: HighBits, sub: i64) -> ValueId {
        let bytes = high.bytes as i64;
        let word = b.load(whole(high.bytes), self.buffer, self.field("high") + sub * bytes);
        let word = b.op(Op::ExtendU, Type::i32(1), &[word]);
        b.broadcast(grid.each() as u16, word)
    }

    /// Returns the sign that all elements of an index share, or `None` for grids without such
    /// signs.
    fn common_signs(&self, b: &mut KernelBuilder, grid: &Grid, sub: i64) -> Option<ValueId> {
        let (Signs::Common { first, apart }, Index::Bytes { high: Some(high), .. }) = (grid.signs, grid.index) else {
            return None;
        };
        let word = self.high_bits(b, grid, high, sub);
        let signs = each_to(b, word, first, apart, 1, 0);
        let every = (0..grid.len).fold(0u32, |every, i| every | 1 << (i * 32 / grid.len + grid.bits));
        let every = b.splat_int(b.ty(signs), i64::from(every as i32));
        Some(b.same(Op::IMul, &[signs, every]))
    }

    /// Returns the 16-bit words of a sub-block, each extended to a dword.
    fn grid_words(&self, b: &mut KernelBuilder, grid: &Grid, field: &str, sub: i64) -> ValueId {
        let at = self.field(field) + sub * grid.words_stride() as i64;
        let words = b.load(Type::i16(grid.each() as u16), self.buffer, at);
        b.op(Op::ExtendU, Type::i32(grid.each() as u16), &[words])
    }

    /// Returns the signs of every eight elements, in the lowest bytes of four dwords. These four
    /// dwords are then repeated. The block stores only seven of the eight signs.
    fn sevens(&self, b: &mut KernelBuilder, grid: &Grid, sub: i64) -> ValueId {
        let dwords = Type::i32(BYTES.lanes / 8);
        let seven = match (grid.signs, grid.index) {
            (Signs::Words { field, stride, at }, _) => {
                let at = self.field(field) + sub * stride as i64 + at as i64;
                let word = b.load_splat(dwords, self.buffer, at);
                // Each group of seven bits is shifted to the top of its dword, and then down.
                let up = b.bytes(dwords, (0..4).flat_map(|i| (1u32 << (25 - 7 * i)).to_le_bytes()).collect());
                let top = b.same(Op::IMul, &[word, up]);
                b.shift(Op::ShrU, top, 25)
            }
            (_, Index::Words { field }) => {
                let words = self.grid_words(b, grid, field, sub);
                b.shift(Op::ShrU, words, 9)
            }
            (Signs::Bits { .. } | Signs::AboveIndex | Signs::Common { .. }, _) => {
                unreachable!("{} has eight signs, or one", self.format)
            }
        };
        // The eighth sign is chosen so that an even number of signs is negative.
        let parity = [4, 2, 1].into_iter().fold(seven, |all, by| {
            let half = b.shift(Op::ShrU, all, by);
            b.same(Op::Xor, &[all, half])
        });
        let one = b.splat_int(dwords, 1);
        let parity = b.same(Op::And, &[parity, one]);
        let parity = b.shift(Op::Shl, parity, 7);
        let signs = b.same(Op::Or, &[seven, parity]);
        let signs = b.bitcast(Type::i8(BYTES.lanes / 2), signs);
        b.op(Op::Concat, BYTES, &[signs, signs])
    }

    /// Returns the integer scales of a block of 256 elements, in sixteen bytes. They depend on the
    /// format. Some formats have eight scales and then eight minimums, all below 64. Some have
    /// eight or sixteen signed scales. Others have sixteen scales of four bits, with minimums in
    /// the upper bits.
    pub fn scales(&self, b: &mut KernelBuilder) -> ValueId {
        let load = |b: &mut KernelBuilder| b.load(SCALES, self.buffer, self.field("scales"));
        match self.codec().scales {
            Scales::SixBits => {
                let packed = load(b);
                six_bits(b, packed)
            }
            Scales::Signed16 | Scales::Nibbles16 => load(b),
            Scales::Coded(scales) => {
                let codes = self.scale_codes(b, &scales);
                scale_numbers(b, &scales, codes)
            }
            Scales::None | Scales::Row | Scales::Multiples { .. } => {
                unreachable!("{} has no integer scales", self.format)
            }
        }
    }

    /// Returns the codes of the block's scales, in sixteen bytes.
    pub fn scale_codes(&self, b: &mut KernelBuilder, codes: &ScaleCodes) -> ValueId {
        let dense = Spread { each: 1, first: 0 };
        match &codes.bits {
            ScaleBits::Plane(plane) => self.small_plane(b, codes.columns, plane, dense, 0),
            ScaleBits::Spread(plane, spread) => self.small_plane(b, codes.columns, plane, *spread, 0),
            ScaleBits::Planes(low, high) => {
                let above = self.small_plane(b, codes.columns, high, dense, low.bits);
                let low = self.small_plane(b, codes.columns, low, dense, 0);
                b.same(Op::Or, &[low, above])
            }
            ScaleBits::Words { field, each, width, first } => {
                let at = self.field(field);
                let count = self.format.block_len() / codes.columns;
                self.in_words(b, at, count, *each, *width, *first)
            }
        }
    }

    /// Returns `count` codes that are stored in 16-bit words, as one byte each. A word has `each`
    /// codes, from bit `first` on.
    fn in_words(
        &self,
        b: &mut KernelBuilder,
        at: Affine,
        count: usize,
        each: usize,
        width: usize,
        first: usize,
    ) -> ValueId {
        let bytes = count.div_ceil(each) * 2;
        let mut words = b.load(Type::i8(bytes as u16), self.buffer, at);
        if bytes < usize::from(SCALES.lanes) {
            words = b.op(Op::Concat, SCALES, &[words, words]);
        }
        let eight = Type::i16(SCALES.lanes / 2);
        let halves = [0, 8].map(|from| {
            let number = |i: usize| (from + i).min(count - 1);
            let order = (0..8).flat_map(|i| [0, 1].map(|byte| (2 * (number(i) / each) + byte) as u8));
            let order = b.bytes(SCALES, order.collect());
            let own = b.same(Op::ShuffleBytes, &[words, order]);
            let own = b.bitcast(eight, own);
            // Each code is shifted to the top of its word, and then down.
            let up = (0..8).flat_map(|i| (1u16 << (16 - width - first - number(i) % each * width)).to_le_bytes());
            let up = b.bytes(eight, up.collect());
            let top = b.same(Op::IMul, &[own, up]);
            let codes = b.shift(Op::ShrU, top, 16 - width as i64);
            b.op(Op::NarrowS, Type::i8(8), &[codes])
        });
        b.op(Op::Concat, SCALES, &halves)
    }

    /// Returns the bits that a plane has of the codes of scales. Each code gets a byte, with its
    /// bits shifted to bit `to`. The byte of the block is copied for each code. Bytes with the same
    /// shift are shifted together, and a mask selects them.
    fn small_plane(&self, b: &mut KernelBuilder, columns: usize, plane: &Plane, spread: Spread, to: usize) -> ValueId {
        let lanes = usize::from(SCALES.lanes);
        let field = self.format.field(plane.field);
        let place = |i: usize| {
            let (byte, shift) = plane.place(spread.place(i));
            (field + byte, shift)
        };
        let places: Vec<(usize, usize)> = (0..self.format.block_len() / columns).map(place).collect();
        let mut all = None;
        // Sixteen bytes of the block are loaded at a time. The last load may overlap the one
        // before, because the block may end with the field.
        let mut rest = places.as_slice();
        let mut first = 0;
        while let Some(&(least, _)) = rest.first() {
            let from = least.min(self.format.block_bytes() - lanes);
            let inside = |(byte, _): &&(usize, usize)| (from..from + lanes).contains(byte);
            let count = if places.iter().all(|place| inside(&place)) {
                places.len()
            } else {
                rest.iter().take_while(inside).count()
            };
            let here = &places[first..first + count];
            let bytes = b.load(SCALES, self.buffer, self.offset.clone() + from as i64);
            let mut order = vec![0x80; lanes];
            (order[first..].iter_mut().zip(here)).for_each(|(to, (byte, _))| *to = (byte - from) as u8);
            let order = b.bytes(SCALES, order);
            let bytes = b.same(Op::ShuffleBytes, &[bytes, order]);
            let mut shifts: Vec<usize> = here.iter().map(|(_, shift)| *shift).collect();
            shifts.sort_unstable();
            shifts.dedup();
            for shift in shifts {
                let mut mask = vec![0; lanes];
                let own = |(_, other): &(usize, usize)| *other == shift;
                (mask[first..].iter_mut().zip(here).filter(|(_, place)| own(place)))
                    .for_each(|(to_mask, _)| *to_mask = (((1u16 << plane.bits) - 1) << to) as u8);
                let words = b.bitcast(Type::i16(SCALES.lanes / 2), bytes);
                let words = match shift.cmp(&to) {
                    std::cmp::Ordering::Less => b.shift(Op::Shl, words, (to - shift) as i64),
                    std::cmp::Ordering::Equal => words,
                    std::cmp::Ordering::Greater => b.shift(Op::ShrU, words, (shift - to) as i64),
                };
                let (moved, mask) = (b.bitcast(SCALES, words), b.bytes(SCALES, mask));
                let own = b.same(Op::And, &[moved, mask]);
                all = Some(match all {
                    Some(all) => b.same(Op::Or, &[all, own]),
                    None => own,
                });
            }
            rest = &rest[count..];
            first += count;
        }
        all.unwrap_or_else(|| b.splat_int(SCALES, 0))
    }
}

/// Returns the scales that the codes stand for.
pub fn scale_numbers(b: &mut KernelBuilder, scales: &ScaleCodes, codes: ValueId) -> ValueId {
    let ty = b.ty(codes);
    match scales.number {
        ScaleNumber::Less(zero) => {
            let zero = b.splat_int(ty, zero.into());
            b.same(Op::ISub, &[codes, zero])
        }
        ScaleNumber::Odd => {
            let (twice, one) = (b.iadd(codes, codes), b.splat_int(ty, 1));
            b.iadd(twice, one)
        }
    }
}

/// Type of a vector with the integer scales of a block.
const SCALES: Type = Type::i8(16);

/// Returns `width` bits of a dword in each lane, shifted to bit `to`. All lanes of `word` contain
/// the dword. The bits of the first lane begin at bit `first`, and those of each further lane
/// `apart` bits later.
fn each_to(b: &mut KernelBuilder, word: ValueId, first: usize, apart: usize, width: usize, to: usize) -> ValueId {
    let (ty, lanes) = (b.ty(word), usize::from(b.ty(word).lanes));
    let dwords = |of: &dyn Fn(usize) -> u32| (0..lanes).flat_map(|i| of(i).to_le_bytes()).collect();
    let at = |i: usize| first + apart * i;
    // A multiplication shifts the bits of each lane up, to the bit of the last lane or to bit `to`.
    // A right shift of all lanes then moves them down.
    let top = at(lanes - 1).max(to);
    let own = b.bytes(ty, dwords(&|i| ((1 << width) - 1) << at(i)));
    let up = b.bytes(ty, dwords(&|i| 1 << (top - at(i))));
    let own = b.same(Op::And, &[word, own]);
    let moved = b.same(Op::IMul, &[own, up]);
    if top > to { b.shift(Op::ShrU, moved, (top - to) as i64) } else { moved }
}

/// Returns eight scales and eight minimums from the first twelve bytes of `packed`. The other bytes
/// are not used.
fn six_bits(b: &mut KernelBuilder, packed: ValueId) -> ValueId {
    let ty = b.ty(packed);
    // Dwords u0, u1 and u2 hold the twelve bytes. The low six bits of u0's bytes are scales 0-3,
    // and those of u1's bytes are minimums 0-3. Scales 4-7 are the low nibbles of u2, with the top
    // bits of u0 above them. Minimums 4-7 are the high nibbles of u2, with the top bits of u1 above
    // them.
    let dwords = |order: [Option<u8>; 4]| -> Vec<u8> {
        order.iter().flat_map(|d| (0..4u8).map(move |i| d.map_or(0x80, |d| 4 * d + i))).collect()
    };
    let masks = |m: [u8; 4]| -> Vec<u8> { m.iter().flat_map(|&m| [m; 4]).collect() };
    let order = b.bytes(ty, dwords([Some(0), Some(2), Some(1), Some(2)]));
    let body = b.same(Op::ShuffleBytes, &[packed, order]);
    let order = b.bytes(ty, dwords([None, Some(0), None, Some(1)]));
    let top = b.same(Op::ShuffleBytes, &[packed, order]);
    let low_mask = b.bytes(ty, masks([0x3f, 0x0f, 0x3f, 0]));
    let low = b.same(Op::And, &[body, low_mask]);
    let words = b.bitcast(Type::i16(8), body);
    let words = b.shift(Op::ShrU, words, 4);
    let high = b.bitcast(ty, words);
    let high_mask = b.bytes(ty, masks([0, 0, 0, 0x0f]));
    let high = b.same(Op::And, &[high, high_mask]);
    let words = b.bitcast(Type::i16(8), top);
    let words = b.shift(Op::ShrU, words, 2);
    let top = b.bitcast(ty, words);
    let top_mask = b.splat_int(ty, 0x30);
    let top = b.same(Op::And, &[top, top_mask]);
    let both = b.same(Op::Or, &[low, high]);
    b.same(Op::Or, &[both, top])
}

/// Expands each bit of four bytes to the top bit of a byte. The four bytes are `apart` bytes apart
/// in both halves of a vector. The lower bits of the result are undefined. Each byte is first
/// masked to its bit. Then the byte or its negative has the top bit set, unless the byte is 0.
fn each_bit(b: &mut KernelBuilder, four: ValueId, apart: u8) -> ValueId {
    let order = b.bytes(BYTES, (0..BYTES.lanes as u8).map(|i| i / 8 * apart).collect());
    let bytes = b.same(Op::ShuffleBytes, &[four, order]);
    let own = b.bytes(BYTES, (0..BYTES.lanes).map(|i| 1 << (i % 8)).collect());
    let (bit, zero) = (b.same(Op::And, &[bytes, own]), b.splat_int(BYTES, 0));
    let negative = b.same(Op::ISub, &[zero, bit]);
    b.same(Op::Or, &[bit, negative])
}

/// Converts codes to the bytes that kernels multiply: see [`Quants::byte`].
pub fn bytes(b: &mut KernelBuilder, codec: &Quants, codes: ValueId) -> ValueId {
    let ty = b.ty(codes);
    match codec.values {
        Values::Linear { .. } => codes,
        Values::Signed => {
            let top = b.splat_int(ty, -128);
            b.same(Op::Xor, &[codes, top])
        }
        Values::Codebook(table) => {
            let entries: Vec<u8> = (0..table.len() as u8).map(|code| codec.byte(code)).collect();
            let table = b.bytes(ty, entries.repeat(usize::from(ty.lanes) / table.len()));
            b.same(Op::ShuffleBytes, &[table, codes])
        }
    }
}

/// A shift by a constant number of bits.
#[derive(Clone, Copy)]
pub struct Shift {
    /// Op of the shift, to the left or to the right.
    pub op: Op,
    /// Number of bits to shift by.
    pub by: i64,
}

impl Shift {
    /// No shift.
    pub const NONE: Shift = Shift::right(0);

    /// Returns a shift to the left.
    pub const fn shift_left(by: i64) -> Shift {
        Shift { op: Op::Shl, by }
    }

    /// Returns a shift to the right.
    pub const fn right(by: i64) -> Shift {
        Shift { op: Op::ShrU, by }
    }
}

/// Returns `(bytes >> by) & mask` for each byte. Shifts work on words, so the mask also drops bits
/// from the neighbouring byte.
pub fn bits(b: &mut KernelBuilder, bytes: ValueId, shift: Shift, mask: i64) -> ValueId {
    let lanes = b.ty(bytes).lanes;
    let shifted = match shift {
        Shift { by: 0, .. } => bytes,
        Shift { op, by } => {
            let words = b.bitcast(Type::i16(lanes / 2), bytes);
            let words = b.shift(op, words, by);
            b.bitcast(Type::i8(lanes), words)
        }
    };
    let mask = b.splat_int(Type::i8(lanes), i64::from(mask as u8 as i8));
    b.same(Op::And, &[shifted, mask])
}
