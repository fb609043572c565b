//! Computation of scores of positions, and choice of the highest scores. All kernels with an index
//! share this code.

use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId, VarId};
use ixc_ir::plan::{ATTENTION_BLOCK, CHOSEN_BLOCK};

use super::{BLOCK, KEYS};
use crate::generator::generate::{GenerateError, check};

/// Choice of blocks of positions by one head of the index.
pub(crate) struct Blocks {
    /// Number of positions in all chosen blocks.
    pub top_k: u32,
    /// Number of positions of a block: a power of two times [`BLOCK`].
    pub every: u32,
    /// Number of blocks that are always chosen, up to and including the row's own block.
    pub local: u32,
}

impl Blocks {
    /// Returns the parameters unchanged. Fails if kernels cannot choose such blocks.
    pub fn check(self, name: &str) -> Result<Blocks, GenerateError> {
        let Blocks { top_k, every, local } = self;
        let is_block = every.is_power_of_two() && CHOSEN_BLOCK.contains(&every.into());
        let ok = is_block && top_k > 0 && top_k.is_multiple_of(every);
        let (least, most) = (CHOSEN_BLOCK.start(), CHOSEN_BLOCK.end());
        let limit = format!("a power of two from {least} to {most} that divides the number of chosen positions");
        check(name, "positions of a block", every.into(), ok, limit)?;
        let limit = format!("1 to {}, the number of chosen blocks", top_k / every);
        check(name, "local blocks", local.into(), (1..=top_k / every).contains(&local), limit)?;
        Ok(self)
    }

    /// Returns the number of cache blocks of [`BLOCK`] positions in a block of the index.
    fn runs(&self) -> i64 {
        i64::from(self.every / ATTENTION_BLOCK)
    }

    /// Returns the number of bytes for one score for each [`BLOCK`] positions, with padding before
    /// and after these scores. `blocks` is the number of scores.
    pub fn best_bytes(&self, blocks: Affine) -> Affine {
        blocks * 4 + 2 * (self.runs() - 1) * 4
    }
}

/// Returns the index of the last complete entry: the number of complete entries minus one.
pub(crate) fn last_entry(b: &mut KernelBuilder, whole: BufferId) -> ValueId {
    let (whole, one) = (b.load(Type::i32(1), whole, 0), b.splat_int(Type::i32(1), 1));
    b.same(Op::ISub, &[whole, one])
}

/// Scores of positions, runs or entries in memory, as integers.
pub(crate) struct BlockScores {
    pub lanes: u16,
    /// Scores of positions, as integers in the order of the floats. The lowest integer marks a
    /// position that does not exist.
    pub scores: BufferId,
    /// Number of blocks of [`BLOCK`] scores.
    pub blocks: Affine,
}

/// Scores of positions, from which the scores of blocks are computed.
pub(crate) struct PositionScores {
    /// Buffer with the scores. It may be the buffer for the blocks' scores.
    pub buffer: BufferId,
    /// Byte offset of the highest score of each cache block, in the buffer for the blocks' scores.
    pub best: Affine,
    /// Position of the row.
    pub own: ValueId,
}

/// Inputs from which scores are computed.
pub(crate) struct Index {
    /// Destination of the scores.
    pub scored: BlockScores,
    pub heads: i64,
    pub d: i64,
    pub q: BufferId,
    /// Weights of the heads. `None` for a single head, whose products are the scores.
    pub w: Option<BufferId>,
    pub keys: BufferId,
    /// Index of the first block.
    pub first: Affine,
}

impl std::ops::Deref for Index {
    type Target = BlockScores;

    fn deref(&self) -> &BlockScores {
        &self.scored
    }
}

/// Runs of positions that a row sees, up to and including the row's position.
pub(super) struct Runs {
    /// Number of whole runs.
    pub whole: ValueId,
    /// Number of positions up to and including the row's position.
    pub positions: ValueId,
    /// Number of positions of a run.
    pub length: i64,
}

impl BlockScores {
    /// Stores one bit for each of at most `positions` positions. The bit is set if the position is
    /// among the `top_k` best.
    pub fn choose(&self, b: &mut KernelBuilder, chosen: BufferId, top_k: u32, positions: u32) {
        let top_k = b.splat_int(Type::i32(1), top_k.into());
        let least = self.least(b, top_k);
        let end = self.end(b, top_k, least, positions);
        self.mark(b, chosen, least, end);
    }

    /// Stores one bit for each of at most `positions` positions. The bit is set if the position is
    /// in one of the best blocks. From the byte [`PositionScores::best`] on, the buffer of `self`
    /// must have room for [`Blocks::best_bytes`] bytes.
    pub fn choose_blocks(
        &self,
        b: &mut KernelBuilder,
        of: &Blocks,
        from: &PositionScores,
        chosen: BufferId,
        positions: u32,
    ) {
        self.share(b, from, of);
        let own = from.own;
        // In the row's own block, only positions up to and including the row's position are chosen.
        let scalar = Type::i32(1);
        let inside = b.splat_int(scalar, i64::from(of.every) - 1);
        let inside = b.same(Op::And, &[own, inside]);
        let before = b.splat_int(scalar, i64::from(of.top_k - of.every) + 1);
        let top_k = b.iadd(before, inside);
        let least = self.least(b, top_k);
        let end = self.end(b, top_k, least, positions);
        self.mark(b, chosen, least, end);
    }

    /// Stores a score for each position up to and including the row's position: that of its block.
    /// Positions of local blocks get the highest integer.
    fn share(&self, b: &mut KernelBuilder, from: &PositionScores, of: &Blocks) {
        let PositionScores { buffer: from, ref best, own } = *from;
        let (lanes, width, scalar) = (self.lanes, i64::from(self.lanes), Type::i32(1));
        let (ty, runs) = (Type::i32(lanes), of.runs());
        // Stores the highest score of every 32 positions. The padding before and after these scores
        // is the lowest integer.
        let lowest = b.splat_int(scalar, i32::MIN.into());
        for i in 0..runs - 1 {
            b.store(self.scores, best.clone() + i * 4, lowest);
            b.store(self.scores, best.clone() + self.blocks.clone() * 4 + (runs - 1 + i) * 4, lowest);
        }
        b.for_each("block", self.blocks.clone(), |b, block| {
            let mut highest = b.load(ty, from, block * (BLOCK * 4));
            for v in 1..self.vectors() {
                let score = b.load(ty, from, block * (BLOCK * 4) + v * width * 4);
                highest = b.same(Op::IMax, &[highest, score]);
            }
            let highest = if lanes == 1 { highest } else { b.op(Op::ReduceMax, scalar, &[highest]) };
            b.store(self.scores, best.clone() + (runs - 1) * 4 + block * 4, highest);
        });
        let number = |b: &mut KernelBuilder, value: i64| b.splat_int(scalar, value);
        // Index of the first local block, in units of 32 positions.
        let first = b.shift(Op::ShrS, own, of.every.trailing_zeros().into());
        let before = number(b, i64::from(of.local) - 1);
        let first = b.same(Op::ISub, &[first, before]);
        let length = number(b, runs);
        let first = b.same(Op::IMul, &[first, length]);
        b.for_each("block", self.blocks.clone(), |b, block| {
            let at = b.index(block);
            let (mask, outside) = (number(b, runs - 1), number(b, -runs));
            let phase = b.same(Op::And, &[at, mask]);
            let highest = b.for_carry("near", 2 * runs - 1, &[lowest], |b, near, carried| {
                // Position of this score among the `runs` scores of its block.
                let (place, back) = (b.index(near), number(b, runs - 1));
                let place = b.iadd(phase, place);
                let place = b.same(Op::ISub, &[place, back]);
                let place = b.same(Op::And, &[place, outside]);
                let none = number(b, 0);
                let is_own = b.same(Op::CmpEq, &[place, none]);
                let score = b.load(scalar, self.scores, best.clone() + block * 4 + near * 4);
                let score = b.op(Op::Select, scalar, &[is_own, score, carried[0]]);
                vec![b.same(Op::IMax, &[score, carried[0]])]
            });
            // The score of a NaN could be the highest integer, which is reserved for local blocks.
            let (all, below) = (number(b, i32::MAX.into()), number(b, i64::from(i32::MAX) - 1));
            let highest = b.same(Op::IMin, &[highest[0], below]);
            let is_other = b.same(Op::CmpGt, &[first, at]);
            let score = b.op(Op::Select, scalar, &[is_other, highest, all]);
            let (score, own, lowest) = (self.wide(b, score), self.wide(b, own), self.wide(b, lowest));
            for v in 0..self.vectors() {
                let position = self.positions(b, block * BLOCK + v * width);
                let after = b.same(Op::CmpGt, &[position, own]);
                let score = b.op(Op::Select, ty, &[after, lowest, score]);
                b.store(self.scores, block * (BLOCK * 4) + v * width * 4, score);
            }
        });
    }

    /// Returns the position of the row: the number of positions with a score, minus one.
    pub fn last(&self, b: &mut KernelBuilder, from: BufferId) -> ValueId {
        let lowest = self.number(b, i32::MIN.into());
        let seen = self.count_of(b, from, |b, score, _| b.same(Op::CmpGt, &[score, lowest]));
        let one = b.splat_int(Type::i32(1), 1);
        b.same(Op::ISub, &[seen, one])
    }

    /// Returns the number of vectors in a block of positions.
    fn vectors(&self) -> i64 {
        BLOCK / i64::from(self.lanes)
    }

    fn number(&self, b: &mut KernelBuilder, value: i64) -> ValueId {
        b.splat_int(Type::i32(self.lanes), value)
    }

    fn wide(&self, b: &mut KernelBuilder, x: ValueId) -> ValueId {
        if self.lanes == 1 { x } else { b.broadcast(self.lanes, x) }
    }

    /// Returns a vector of consecutive positions, from `first` on.
    fn positions(&self, b: &mut KernelBuilder, first: Affine) -> ValueId {
        let first = b.index(first);
        let first = self.wide(b, first);
        let lanes = b.op(Op::Iota, Type::i32(self.lanes), &[]);
        b.iadd(first, lanes)
    }
}

impl Index {
    /// Computes and stores the scores of all positions. Positions after the row's position get the
    /// lowest integer.
    pub fn scores(&self, b: &mut KernelBuilder, own: ValueId) {
        let (lanes, width) = (self.lanes, i64::from(self.lanes));
        let ty = Type::f32(lanes);
        // An iteration handles whole strips of keys, and enough heads to hide the latency of a
        // product.
        let vectors = (KEYS / width).max(2).min(self.vectors());
        let most = if lanes >= 16 { 8 } else { 4 };
        let together =
            [most, 4, 2, 1].into_iter().find(|n| self.heads % n == 0 && n * vectors <= 2 * most).unwrap_or(1);
        b.for_each("block", self.blocks.clone(), |b, block| {
            b.for_each("part", self.vectors() / vectors, |b, part| {
                let at = block * (BLOCK * self.d * 2) + part * (vectors * width * self.d * 2);
                let none = b.splat_f32(lanes, 0.0);
                let tiles = self.heads / together;
                let scores = b.for_carry("tile", tiles, &vec![none; vectors as usize], |b, tile, scores| {
                    let sums = self.products(b, tile, together, &at, vectors);
                    let mut scores = scores.to_vec();
                    for (h, sums) in sums.chunks(vectors as usize).enumerate() {
                        let Some(w) = self.w else {
                            scores.copy_from_slice(sums);
                            continue;
                        };
                        let w = b.load_splat(ty, w, tile * (together * 4) + h as i64 * 4);
                        for (score, &sum) in scores.iter_mut().zip(sums) {
                            let found = b.same(Op::Max, &[sum, none]);
                            *score = b.fma(found, w, *score);
                        }
                    }
                    scores
                });
                let own = self.wide(b, own);
                let (lowest, all) = (self.number(b, i32::MIN.into()), self.number(b, i32::MAX.into()));
                // The score of a NaN could otherwise be the lowest integer, which marks positions
                // that do not exist.
                let above = self.number(b, i64::from(i32::MIN) + 1);
                for (v, score) in scores.into_iter().enumerate() {
                    // All bits of a negative number except the sign are inverted, so that integers
                    // have the order of the floats.
                    let bits = b.bitcast(Type::i32(lanes), score);
                    let sign = b.shift(Op::ShrS, bits, 31);
                    let turn = b.same(Op::And, &[sign, all]);
                    let order = b.same(Op::Xor, &[bits, turn]);
                    let first = block * BLOCK + part * (vectors * width) + v as i64 * width;
                    let order = b.same(Op::IMax, &[order, above]);
                    let position = self.positions(b, self.first.clone() * BLOCK + first.clone());
                    let after = b.same(Op::CmpGt, &[position, own]);
                    let order = b.op(Op::Select, Type::i32(lanes), &[after, lowest, order]);
                    b.store(self.scores, first * 4, order);
                }
            });
        });
    }

    /// Returns the products of `together` heads with `vectors` vectors of positions, head by head.
    /// `tile` is the index of the group of heads. The keys begin at byte `at`.
    fn products(&self, b: &mut KernelBuilder, tile: VarId, together: i64, at: &Affine, vectors: i64) -> Vec<ValueId> {
        let (lanes, width) = (self.lanes, i64::from(self.lanes));
        let none = b.splat_f32(lanes, 0.0);
        b.for_carry("e", self.d, &vec![none; (together * vectors) as usize], |b, e, sums| {
            let key = |v: i64| {
                let (strip, lane) = (v * width / KEYS, v * width % KEYS);
                let at = at.clone() + e * (KEYS * 2) + (strip * KEYS * self.d * 2 + lane * 2);
                let k = b.load(Type::f16(lanes), self.keys, at);
                b.op(Op::F16ToF32, Type::f32(lanes), &[k])
            };
            let keys: Vec<ValueId> = (0..vectors).map(key).collect();
            let mut next = Vec::new();
            for (h, sums) in sums.chunks(vectors as usize).enumerate() {
                let at = tile * (together * self.d * 4) + h as i64 * (self.d * 4) + e * 4;
                let q = b.load_splat(Type::f32(lanes), self.q, at);
                next.extend(sums.iter().zip(&keys).map(|(&sum, &k)| b.fma(q, k, sum)));
            }
            next
        })
    }
}

impl BlockScores {
    /// Counts positions. `mask` gets the scores and the first position of a vector. It returns a
    /// mask whose lanes are all ones for positions that count.
    fn count(
        &self,
        b: &mut KernelBuilder,
        mask: impl FnMut(&mut KernelBuilder, ValueId, Affine) -> ValueId,
    ) -> ValueId {
        self.count_of(b, self.scores, mask)
    }

    /// Counts positions like [`BlockScores::count`], for scores in any buffer.
    fn count_of(
        &self,
        b: &mut KernelBuilder,
        scores: BufferId,
        mut mask: impl FnMut(&mut KernelBuilder, ValueId, Affine) -> ValueId,
    ) -> ValueId {
        let width = i64::from(self.lanes);
        let none = self.number(b, 0);
        let counts = b.for_carry("block", self.blocks.clone(), &[none], |b, block, counts| {
            let mut count = counts[0];
            for v in 0..self.vectors() {
                let first = block * BLOCK + v * width;
                let score = b.load(Type::i32(self.lanes), scores, first.clone() * 4);
                // A lane of all ones is -1, so the subtraction adds 1.
                let is = mask(b, score, first);
                count = b.same(Op::ISub, &[count, is]);
            }
            vec![count]
        });
        b.op(Op::ReduceAdd, Type::i32(1), &[counts[0]])
    }

    /// Returns the lowest chosen score. If there are fewer than `top_k` positions, returns the
    /// lowest score that a position can have.
    pub(super) fn least(&self, b: &mut KernelBuilder, top_k: ValueId) -> ValueId {
        let all = b.index(self.blocks.clone() * BLOCK);
        let most_below = b.same(Op::ISub, &[all, top_k]);
        let lowest = b.splat_int(Type::i32(1), i32::MIN.into());
        // The first iteration sets the sign bit, from the lowest integer to 0.
        let found = b.for_carry("bit", 32, &[lowest, lowest], |b, _, carried| {
            let [least, step] = [carried[0], carried[1]];
            let next = b.iadd(least, step);
            let wide = self.wide(b, next);
            let below = self.count(b, |b, score, _| b.same(Op::CmpGt, &[wide, score]));
            let too_high = b.same(Op::CmpGt, &[below, most_below]);
            let least = b.op(Op::Select, Type::i32(1), &[too_high, least, next]);
            vec![least, b.shift(Op::ShrU, step, 1)]
        });
        let one = b.splat_int(Type::i32(1), 1);
        let above = b.iadd(lowest, one);
        b.same(Op::IMax, &[found[0], above])
    }

    /// Returns the first position that is not chosen although it has the lowest chosen score. Of
    /// the positions with this score, those before it are chosen.
    pub(super) fn end(&self, b: &mut KernelBuilder, top_k: ValueId, least: ValueId, positions: u32) -> ValueId {
        let wide = self.wide(b, least);
        let above = self.count(b, |b, score, _| b.same(Op::CmpGt, &[score, wide]));
        let left = b.same(Op::ISub, &[top_k, above]);
        let bits = i64::from(32 - positions.next_multiple_of(ATTENTION_BLOCK).leading_zeros());
        let (none, step) = (b.splat_int(Type::i32(1), 0), b.splat_int(Type::i32(1), 1 << (bits - 1)));
        let found = b.for_carry("bit", bits, &[none, step], |b, _, carried| {
            let [end, step] = [carried[0], carried[1]];
            let next = b.iadd(end, step);
            let before = self.wide(b, next);
            let count = self.count(b, |b, score, first| {
                let equal = b.same(Op::CmpEq, &[score, wide]);
                let position = self.positions(b, first);
                let before = b.same(Op::CmpGt, &[before, position]);
                b.same(Op::And, &[equal, before])
            });
            let too_many = b.same(Op::CmpGt, &[count, left]);
            let end = b.op(Op::Select, Type::i32(1), &[too_many, end, next]);
            vec![end, b.shift(Op::ShrU, step, 1)]
        });
        found[0]
    }

    /// Stores a word of bits for each block of positions.
    fn mark(&self, b: &mut KernelBuilder, chosen: BufferId, least: ValueId, end: ValueId) {
        let (lanes, width) = (self.lanes, i64::from(self.lanes));
        let (least, end) = (self.wide(b, least), self.wide(b, end));
        b.for_each("block", self.blocks.clone(), |b, block| {
            let mut word = self.number(b, 0);
            for v in 0..self.vectors() {
                let first = block * BLOCK + v * width;
                let score = b.load(Type::i32(lanes), self.scores, first.clone() * 4);
                let above = b.same(Op::CmpGt, &[score, least]);
                let equal = b.same(Op::CmpEq, &[score, least]);
                let position = self.positions(b, first);
                let before = b.same(Op::CmpGt, &[end, position]);
                let equal = b.same(Op::And, &[equal, before]);
                let is = b.same(Op::Or, &[above, equal]);
                let bit = bits(b, lanes, v * width);
                let own = b.same(Op::And, &[is, bit]);
                word = b.same(Op::Or, &[word, own]);
            }
            // Lanes have different bits set, so their sum has all bits.
            let word = b.op(Op::ReduceAdd, Type::i32(1), &[word]);
            b.store(chosen, block * 4, word);
        });
    }

    /// Stores `words` words of bits, one for each block of positions. Set bits are those of chosen
    /// runs, and of positions after the last complete run up to the row's position.
    pub(super) fn mark_runs(
        &self,
        b: &mut KernelBuilder,
        chosen: BufferId,
        words: Affine,
        least: ValueId,
        end: ValueId,
        runs: &Runs,
    ) {
        let Runs { whole, positions: behind, length: every } = *runs;
        let (lanes, width, scalar) = (self.lanes, i64::from(self.lanes), Type::i32(1));
        let of_word = BLOCK / every;
        let length = b.splat_int(scalar, every);
        let whole = b.same(Op::IMul, &[whole, length]);
        let [whole, behind] = [whole, behind].map(|x| self.wide(b, x));
        b.for_each("word", words, |b, word| {
            let mut tail = self.number(b, 0);
            for v in 0..self.vectors() {
                let position = self.positions(b, word * BLOCK + v * width);
                let before_whole = b.same(Op::CmpGt, &[whole, position]);
                let before_behind = b.same(Op::CmpGt, &[behind, position]);
                let is = b.same(Op::Xor, &[before_whole, before_behind]);
                let is = b.same(Op::And, &[is, before_behind]);
                let bit = bits(b, lanes, v * width);
                let own = b.same(Op::And, &[is, bit]);
                tail = b.same(Op::Or, &[tail, own]);
            }
            let mut all = b.op(Op::ReduceAdd, scalar, &[tail]);
            let first = b.index(word * of_word);
            for run in 0..of_word {
                let score = b.load(scalar, self.scores, word * (of_word * 4) + run * 4);
                let above = b.same(Op::CmpGt, &[score, least]);
                let equal = b.same(Op::CmpEq, &[score, least]);
                let offset = b.splat_int(scalar, run);
                let number = b.iadd(first, offset);
                let before = b.same(Op::CmpGt, &[end, number]);
                let equal = b.same(Op::And, &[equal, before]);
                let is = b.same(Op::Or, &[above, equal]);
                let bits = ((1u64 << every) - 1) << (run * every);
                let bits = b.splat_int(scalar, i64::from(bits as u32 as i32));
                let own = b.same(Op::And, &[is, bits]);
                all = b.same(Op::Or, &[all, own]);
            }
            b.store(chosen, word * 4, all);
        });
    }
}

/// Returns the bit of each position of a vector, within the word of its block. The vector begins at
/// position `first` of the block.
fn bits(b: &mut KernelBuilder, lanes: u16, first: i64) -> ValueId {
    let bit = |lane: i64| (1u32 << (first + lane)).to_le_bytes();
    b.bytes(Type::i32(lanes), (0..i64::from(lanes)).flat_map(bit).collect())
}
