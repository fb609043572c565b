//! Encoding: blocks of numbers in any format whose codec is [`Quants`] without a row's scale, as near to the numbers as a search for scales gets.
//!
//! ```text
//! 32 numbers, and how much each matters   ->   d and codes with the least sum of w (x - d * number)^2
//! ```
//!
//! The search follows what ggml's quantisers do, for every format the same: scales are tried around the one that the extreme number fits, a step of a tenth
//! of the distance of two codes each; of each the codes follow, and of these the best scale by least squares (and the best minimum, where there is one). Where
//! scales are integers themselves, they are rounded, `d` and `dmin` are fitted once more to what all codes of the block are then, and the better
//! of both is kept. Where codes are those of a grid, a table's nearest entries are looked for in place of each element's nearest code ([`entries`]),
//! and `d` is in the end as large as makes a block as long as its numbers: squares are least with blocks that are shorter, which predictions suffer from
//! (`ixc eval --against`, a model of experts: the mean divergence of IQ1_S falls from 0.202 to 0.161, of IQ1_M from 0.159 to 0.137, of IQ2_S from 0.066 to 0.053, of IQ3_S from 0.0188 to 0.0187).
//!
//! How much a number matters is `importance * sqrt(2 mean(x^2) + x^2)`, importance being the mean square of the activations that its column is
//! multiplied with (an importance matrix), or 1: large weights matter more than their square alone says, which ggml found by trying.

mod entries;
mod lanes;
mod numbers;
mod search;
mod write;

use std::sync::{LazyLock, OnceLock};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::codec::{Float, Quants, ScaleCodes, ScaleNumber, Scales};
use super::{Codec, FORMATS, Format, K_BLOCK};

use entries::Entries;
use lanes::{Any, Vector};
#[cfg(target_arch = "x86_64")]
use lanes::{Avx2, Avx512};
use numbers::Numbers;
use search::Parts;
use write::Layout;

/// Most elements of a block, and most groups of one that have scales of their own.
const MOST: usize = K_BLOCK;
const MOST_GROUPS: usize = K_BLOCK / 16;

impl Format {
    /// All that [`Format::encode_row`] makes.
    pub fn encoded() -> impl Iterator<Item = Format> {
        FORMATS.iter().map(|row| row.format).filter(|format| format.encodes())
    }

    /// Whether [`Format::encode_row`] makes it: a format of files whose codec says all about it.
    pub fn encodes(self) -> bool {
        let whole = match self.codec() {
            Codec::Float(_) => true,
            Codec::Quants(quants) => quants.encodes(),
            Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => false,
        };
        whole && self.is_in_files() && self.is_weight()
    }

    /// Writes a row of numbers; `importance` is of each column.
    ///
    /// # Panics
    /// Where the format is none of those that [encode](Format::encodes), the row is no whole blocks, or `out` has not its length.
    pub fn encode_row(self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        assert!(self.encodes(), "{self} is not made of numbers");
        assert_eq!(Some(out.len() as u64), self.row_bytes(x.len() as u64), "{} numbers in {self}", x.len());
        assert!(importance.is_none_or(|importance| importance.len() == x.len()), "importance of other columns");
        match (self.codec(), self.quants()) {
            (Codec::Float(Float::F32), _) => floats(x, out, f32::to_le_bytes),
            (Codec::Float(Float::F16), _) => halves(x, out),
            (Codec::Float(Float::Bf16), _) => floats(x, out, |x| bf16::from_f32(x).to_le_bytes()),
            (_, Some(quants)) => Encoder::of(self, quants).row_by_widest(x, importance, out),
            (_, None) => unreachable!("checked above"),
        }
    }
}

fn floats<const N: usize>(x: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    let (out, _) = out.as_chunks_mut();
    out.iter_mut().zip(x).for_each(|(out, x)| *out = bytes(*x));
}

/// All at once, since processors convert several together.
fn halves(x: &[f32], out: &mut [u8]) {
    let mut halves = [f16::ZERO; 64];
    for (out, x) in out.chunks_mut(2 * halves.len()).zip(x.chunks(halves.len())) {
        let halves = &mut halves[..x.len()];
        halves.convert_from_f32_slice(x);
        let (out, _) = out.as_chunks_mut();
        out.iter_mut().zip(halves).for_each(|(out, half)| *out = half.to_le_bytes());
    }
}

impl ScaleCodes {
    /// The code of a scale that there is.
    fn code(&self, scale: f32) -> u16 {
        match self.number {
            ScaleNumber::Less(zero) => (scale as i16 + i16::from(zero)) as u16,
            ScaleNumber::Odd => scale as u16 / 2,
        }
    }

    /// All scales: the least, the largest, and from one to the next.
    fn range(&self) -> ScaleRange {
        let codes = (1u32 << self.bits.width()) as f32;
        match self.number {
            ScaleNumber::Less(zero) => {
                ScaleRange { least: -f32::from(zero), most: codes - 1.0 - f32::from(zero), step: 1.0 }
            }
            ScaleNumber::Odd => ScaleRange { least: 1.0, most: 2.0 * codes - 1.0, step: 2.0 },
        }
    }
}

/// The integers that a scale can be.
#[derive(Clone, Copy)]
struct ScaleRange {
    least: f32,
    most: f32,
    step: f32,
}

impl ScaleRange {
    const fn of(least: f32, most: f32) -> ScaleRange {
        ScaleRange { least, most, step: 1.0 }
    }

    /// The nearest.
    #[inline(always)]
    fn near(&self, scale: f32) -> f32 {
        // Of steps of 2 the odd ones.
        let odd = self.step - 1.0;
        (((scale - odd) / self.step).round_ties_even() * self.step + odd).clamp(self.least, self.most)
    }
}

impl Quants {
    fn encodes(&self) -> bool {
        match self.scales {
            Scales::None | Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 | Scales::Coded(_) => true,
            // Of rows, not of blocks: `requantise` makes them.
            Scales::Row | Scales::Multiples { .. } => false,
        }
    }

    /// The integers that a scale can be; `None` where `d` is the scale.
    fn scale_range(&self) -> Option<ScaleRange> {
        match self.scales {
            Scales::None | Scales::Row => None,
            Scales::SixBits => Some(ScaleRange::of(0.0, 63.0)),
            Scales::Nibbles16 => Some(ScaleRange::of(0.0, 15.0)),
            Scales::Signed16 => Some(ScaleRange::of(-128.0, 127.0)),
            Scales::Coded(codes) => Some(codes.range()),
            Scales::Multiples { .. } => None,
        }
    }
}

/// What encodes rows of a format: all that is the same for each.
struct Encoder {
    format: Format,
    quants: &'static Quants,
    /// Elements with a `d` of their own, which are a part of a row, and with a scale, or all of those.
    columns: usize,
    group: usize,
    /// The integers that scales are.
    range: Option<ScaleRange>,
    numbers: Numbers,
    /// Where codes are those of a grid.
    entries: Option<Entries>,
    layout: Layout,
}

impl Encoder {
    fn new(format: Format, quants: &'static Quants) -> Encoder {
        let numbers = Numbers::of(quants);
        let entries = quants.grid().map(|grid| Entries::of(grid, &numbers));
        let columns = format.d_columns();
        Encoder {
            format,
            quants,
            columns,
            group: quants.scaled().unwrap_or(columns),
            range: quants.scale_range(),
            numbers,
            entries,
            layout: Layout::of(format, quants),
        }
    }

    /// The format's, which is made once.
    fn of(format: Format, quants: &'static Quants) -> &'static Encoder {
        static ALL: LazyLock<Vec<OnceLock<Encoder>>> =
            LazyLock::new(|| FORMATS.iter().map(|_| OnceLock::new()).collect());
        ALL[format as usize].get_or_init(|| Encoder::new(format, quants))
    }

    /// [`row`](Encoder::row), compiled for vectors as wide as this processor's. No sum is contracted or put in another order: the bytes are the same.
    fn row_by_widest(&self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                // SAFETY: the processor has both.
                return unsafe { self.row_by_avx512(x, importance, out) };
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has it.
                return unsafe { self.row_by_avx2(x, importance, out) };
            }
        }
        self.row::<Any<8>>(x, importance, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn row_by_avx512(&self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        // What is left is narrow, or else lanes are idle.
        let left = x.len() / self.columns % Avx512::COUNT;
        let wide = if left > Avx2::COUNT { x.len() } else { x.len() - left * self.columns };
        let (x, x_left) = x.split_at(wide);
        let (own, own_left) = match importance {
            Some(importance) => {
                let (own, left) = importance.split_at(wide);
                (Some(own), Some(left))
            }
            None => (None, None),
        };
        let (out, out_left) = out.split_at_mut(wide / self.format.block_len() * self.format.block_bytes());
        self.row::<Avx512>(x, own, out);
        self.row::<Avx2>(x_left, own_left, out_left);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn row_by_avx2(&self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        self.row::<Avx2>(x, importance, out);
    }

    /// The blocks of a row, of which as many parts are side by side as a vector has numbers. What it calls for each number is inlined, so that it is compiled for the same vectors.
    #[inline(always)]
    fn row<V: Vector>(&self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        let (length, bytes) = (self.format.block_len(), self.format.block_bytes());
        // Parts of a block are side by side, too.
        let blocks = V::COUNT * self.columns / length;
        let mut parts = Parts::<V>::new(self);
        let (mut numbers, mut codes) = ([0f32; MOST], [0u8; MOST]);
        out.fill(0);
        for (index, out) in out.chunks_mut(blocks * bytes).enumerate() {
            let own = index * blocks * length..(index * blocks + out.len() / bytes) * length;
            let x = &x[own.clone()];
            self.search(x, importance.map(|all| &all[own]), &mut parts);
            let of_block = length / self.columns;
            for (block, (x, out)) in x.chunks_exact(length).zip(out.chunks_exact_mut(bytes)).enumerate() {
                for (part, x) in x.chunks_exact(self.columns).enumerate() {
                    let codes = &mut codes[part * self.columns..][..self.columns];
                    self.codes(&parts, block * of_block + part, x, &mut numbers, codes);
                }
                self.write(&parts, block * of_block, &codes[..length], &numbers[..self.columns], out);
            }
        }
    }
}

#[cfg(test)]
mod tests;
