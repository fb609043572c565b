//! Encoding: search for the blocks nearest to given numbers. It covers every format whose codec is
//! [`Quants`] without a scale for the whole row.
//!
//! ```text
//! 32 numbers x with weights w   ->   d and codes with the least sum of w (x - d * number)^2
//! ```
//!
//! The search follows ggml's quantisers, with the same code for every format:
//! - The encoder tries scales around the one that maps the extreme number to the extreme code.
//!   Trials are a tenth of the distance between two codes apart.
//! - Each scale gives codes. Least squares then give the best scale for these codes, and the best
//!   minimum if the format has one.
//! - If scales are integers, they are rounded. `d` and `dmin` are then fitted again to the codes of
//!   the whole block, and the better of the old and the new values is kept.
//! - If codes are indices of a grid, the search takes the nearest entries of the grid's table
//!   instead of each element's nearest code ([`entries`]).
//!
//! At the end, `d` of a grid block is raised until the decoded block has the norm of the original
//! numbers. The squared error would be least with a smaller norm, but the model's predictions
//! suffer from that. With `ixc eval --against` on a model with experts, this step reduces the mean
//! KL divergence:
//!
//! | format | before | after |
//! | --- | --- | --- |
//! | IQ1_S | 0.202 | 0.161 |
//! | IQ1_M | 0.159 | 0.137 |
//! | IQ2_S | 0.066 | 0.053 |
//! | IQ3_S | 0.0188 | 0.0187 |
//!
//! The weight of a number's error is `importance * sqrt(2 mean(x^2) + x^2)`. The importance is the
//! mean square of the activations of its column (an importance matrix), or 1. The term with `x^2`
//! gives large weights more influence; ggml found this formula by experiment.

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

/// Maximum number of elements of a block, and of groups of a block that have their own scales.
const MAX_ELEMENTS: usize = K_BLOCK;
const MAX_GROUPS: usize = K_BLOCK / 16;

impl Format {
    /// Returns all formats that [`Format::encode_row`] can write.
    pub fn encoded_formats() -> impl Iterator<Item = Format> {
        FORMATS.iter().map(|row| row.format).filter(|format| format.encodes())
    }

    /// Whether [`Format::encode_row`] can write this format: a format of files that its codec
    /// describes completely.
    pub fn encodes(self) -> bool {
        let whole = match self.codec() {
            Codec::Float(_) => true,
            Codec::Quants(quants) => quants.encodes(),
            Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => false,
        };
        whole && self.is_in_files() && self.is_weight()
    }

    /// Encodes a row of numbers. `importance` has one number for each column.
    ///
    /// # Panics
    /// The format cannot be [encoded](Format::encodes), the row is not whole blocks, or `out` has
    /// another length.
    pub fn encode_row(self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        assert!(self.encodes(), "{self} has no encoder");
        assert_eq!(Some(out.len() as u64), self.row_bytes(x.len() as u64), "{} numbers in {self}", x.len());
        assert!(
            importance.is_none_or(|importance| importance.len() == x.len()),
            "the importance does not match the columns"
        );
        match (self.codec(), self.quants()) {
            (Codec::Float(Float::F32), _) => floats(x, out, f32::to_le_bytes),
            (Codec::Float(Float::F16), _) => halves(x, out),
            (Codec::Float(Float::Bf16), _) => floats(x, out, |x| bf16::from_f32(x).to_le_bytes()),
            (_, Some(quants)) => Encoder::for_format(self, quants).row_by_widest(x, importance, out),
            (_, None) => unreachable!("checked above"),
        }
    }
}

fn floats<const N: usize>(x: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    let (out, _) = out.as_chunks_mut();
    out.iter_mut().zip(x).for_each(|(out, x)| *out = bytes(*x));
}

/// Converts numbers to f16. Each call converts up to 64 numbers, so that the processor's vector
/// instructions can be used.
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
    /// Returns the code of a scale. The scale must have a code.
    fn code(&self, scale: f32) -> u16 {
        match self.number {
            ScaleNumber::Less(zero) => (scale as i16 + i16::from(zero)) as u16,
            ScaleNumber::Odd => scale as u16 / 2,
        }
    }

    /// Returns the range of scales: the least, the largest, and the distance from one to the next.
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

/// Range of the integers that a scale can be.
#[derive(Clone, Copy)]
struct ScaleRange {
    least: f32,
    most: f32,
    step: f32,
}

impl ScaleRange {
    const fn between(least: f32, most: f32) -> ScaleRange {
        ScaleRange { least, most, step: 1.0 }
    }

    /// Returns the nearest integer in the range.
    #[inline(always)]
    fn near(&self, scale: f32) -> f32 {
        // With steps of 2, only odd integers are scales.
        let odd = self.step - 1.0;
        (((scale - odd) / self.step).round_ties_even() * self.step + odd).clamp(self.least, self.most)
    }
}

impl Quants {
    fn encodes(&self) -> bool {
        match self.scales {
            Scales::None | Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 | Scales::Coded(_) => true,
            // Scales of whole rows: `requantise` writes these formats.
            Scales::Row | Scales::Multiples { .. } => false,
        }
    }

    /// Returns the integers that a scale can be, or `None` if `d` is the scale.
    fn scale_range(&self) -> Option<ScaleRange> {
        match self.scales {
            Scales::None | Scales::Row => None,
            Scales::SixBits => Some(ScaleRange::between(0.0, 63.0)),
            Scales::Nibbles16 => Some(ScaleRange::between(0.0, 15.0)),
            Scales::Signed16 => Some(ScaleRange::between(-128.0, 127.0)),
            Scales::Coded(codes) => Some(codes.range()),
            Scales::Multiples { .. } => None,
        }
    }
}

/// Encoder for rows of a format, with tables that do not depend on the row.
struct Encoder {
    format: Format,
    quants: &'static Quants,
    /// Number of elements of a part (elements that share `d`), and of a group (elements that share
    /// an integer scale).
    columns: usize,
    group: usize,
    /// Integers that scales can be, or `None` if `d` is the scale.
    range: Option<ScaleRange>,
    numbers: Numbers,
    /// Entries of the grid, or `None` if codes are not indices of a grid.
    entries: Option<Entries>,
    layout: Layout,
}

impl Encoder {
    fn new(format: Format, quants: &'static Quants) -> Encoder {
        let numbers = Numbers::from_quants(quants);
        let entries = quants.grid().map(|grid| Entries::for_grid(grid, &numbers));
        let columns = format.d_columns();
        Encoder {
            format,
            quants,
            columns,
            group: quants.scale_group_len().unwrap_or(columns),
            range: quants.scale_range(),
            numbers,
            entries,
            layout: Layout::for_format(format, quants),
        }
    }

    /// Returns the encoder of a format, which is computed once and kept.
    fn for_format(format: Format, quants: &'static Quants) -> &'static Encoder {
        static ALL: LazyLock<Vec<OnceLock<Encoder>>> =
            LazyLock::new(|| FORMATS.iter().map(|_| OnceLock::new()).collect());
        ALL[format as usize].get_or_init(|| Encoder::new(format, quants))
    }

    /// Runs [`row`](Encoder::row), compiled for the widest vectors of this processor. All versions
    /// add and round in the same order, so their bytes are equal.
    fn row_by_widest(&self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                // SAFETY: the processor has both features.
                return unsafe { self.row_by_avx512(x, importance, out) };
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has the feature.
                return unsafe { self.row_by_avx2(x, importance, out) };
            }
        }
        // SSE registers hold four numbers. More lanes would only repeat the code.
        self.row::<Any<4>>(x, importance, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn row_by_avx512(&self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        // The last parts of the row use narrower vectors if wide ones would have many unused lanes.
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
        self.row_by_avx2(x_left, own_left, out_left);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn row_by_avx2(&self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        self.row::<Avx2>(x, importance, out);
    }

    /// Encodes the blocks of a row, with one part in each lane of a vector. All functions that it
    /// calls for each number are inlined, so that they are compiled for the same processor
    /// features.
    #[inline(always)]
    fn row<V: Vector>(&self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        let (length, bytes) = (self.format.block_len(), self.format.block_bytes());
        // Several parts of the same block are in separate lanes too.
        let blocks = V::COUNT * self.columns / length;
        let mut parts = Parts::<V>::new(self);
        let (mut numbers, mut codes) = ([0f32; MAX_ELEMENTS], [0u8; MAX_ELEMENTS]);
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
