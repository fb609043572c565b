//! Writing of codes and scales into a format's blocks.

use super::super::Format;
use super::super::codec::{Codes, Minimum, Number, Plane, Quants, ScaleBits, Scales};
use super::super::digits::{self, Digits};
use super::lanes::Vector;
use super::search::Parts;
use super::{Encoder, MAX_GROUPS};

/// Byte offsets of a block's fields, looked up once for each format.
pub(super) struct Layout {
    d: usize,
    /// Offset of the addend `m`, or of `dmin`, the unit of minimums.
    minimum: Option<usize>,
    /// Offset of `s`, the sum of the numbers.
    sum: Option<usize>,
    /// Offset of the integer scales.
    scales: Option<usize>,
    planes: Vec<Bits>,
    /// Places of the bits of each scale that is stored as a code, the lowest bits first.
    scale_codes: Vec<Vec<ScaleCode>>,
    digits: Vec<DigitRun>,
}

/// Place of some bits of all codes of a block: a plane.
struct Bits {
    at: usize,
    plane: Plane,
    /// Number of bits of a code that are in earlier planes.
    below: usize,
}

/// Place of some bits of a scale's code: a byte of the block, and the bits in that byte. The bits
/// may continue in the next byte.
struct ScaleCode {
    at: usize,
    shift: usize,
    width: usize,
}

/// Bytes of base-3 digits.
struct DigitRun {
    at: usize,
    digits: &'static Digits,
}

impl Layout {
    pub fn for_format(format: Format, quants: &'static Quants) -> Layout {
        let field = |name: &str| format.field(name);
        let bits = |plane: &Plane, below| Bits { at: field(plane.field), plane: *plane, below };
        let (planes, digits) = match quants.codes {
            Codes::Planes => {
                let high = quants.high.as_ref().map(|high| bits(high, quants.low.bits));
                (std::iter::once(bits(&quants.low, 0)).chain(high).collect(), Vec::new())
            }
            Codes::Digits(all) => {
                let runs = all.iter().map(|digits| DigitRun { at: field(digits.field) + digits.at, digits });
                (Vec::new(), runs.collect())
            }
            Codes::Grid(_) => (Vec::new(), Vec::new()),
        };
        let scale_codes = |bits: &ScaleBits, columns: usize| {
            let parts = |i: usize| {
                let part = |(name, byte, shift, width)| ScaleCode { at: field(name) + byte, shift, width };
                bits.parts(i).map(part).collect()
            };
            (0..format.block_len() / columns).map(parts).collect()
        };
        Layout {
            d: field("d"),
            minimum: match quants.minimum {
                Minimum::None => None,
                Minimum::Half => Some(field("m")),
                Minimum::Scaled => Some(field("dmin")),
            },
            sum: format.has_field("s").then(|| field("s")),
            scales: match quants.scales {
                Scales::SixBits | Scales::Nibbles16 | Scales::Signed16 => Some(field("scales")),
                Scales::None | Scales::Coded(_) | Scales::Row | Scales::Multiples { .. } => None,
            },
            planes,
            scale_codes: match &quants.scales {
                Scales::Coded(codes) => scale_codes(&codes.bits, codes.columns),
                Scales::None
                | Scales::SixBits
                | Scales::Nibbles16
                | Scales::Signed16
                | Scales::Row
                | Scales::Multiples { .. } => Vec::new(),
            },
            digits,
        }
    }
}

impl Layout {
    /// Writes codes into the block's planes, whose bytes must be zero.
    #[inline(always)]
    pub fn put_codes(&self, codes: &[u8], block: &mut [u8]) {
        for bits in &self.planes {
            bits.put(codes, block);
        }
    }
}

/// Number of codes that are shifted together in one 64-bit word. A mask removes the bits that cross
/// into neighbouring codes.
const WORD: usize = 8;
/// The lowest bit of each byte, and thus of each code, in a word.
const EACH: u64 = 0x0101_0101_0101_0101;

impl Bits {
    /// Writes this plane's bits of all codes to the block, where they must be zero.
    #[inline(always)]
    fn put(&self, codes: &[u8], block: &mut [u8]) {
        let Plane { bits, run, .. } = self.plane;
        let out = &mut block[self.at..];
        let mask = EACH * ((1 << bits) - 1);
        let word = |codes: &[u8; WORD]| u64::from_le_bytes(*codes) >> self.below & mask;
        let (words, _) = codes.as_chunks();
        if run == 1 {
            // Codes of neighbouring elements share a byte. Each step joins twice as many codes as
            // the step before, at twice the distance.
            for (codes, out) in words.iter().zip(out.chunks_exact_mut(bits)) {
                let (mut word, mut width, mut apart) = (word(codes), bits, 8);
                while width < 8 {
                    word |= word >> (apart - width);
                    (width, apart) = (2 * width, 2 * apart);
                }
                out.iter_mut().enumerate().for_each(|(i, out)| *out = (word >> (i * apart)) as u8);
            }
            return;
        }
        let run = run / WORD;
        let (out, _) = out.as_chunks_mut::<WORD>();
        for (codes, out) in words.chunks_exact(run * 8 / bits).zip(out.chunks_exact_mut(run)) {
            for (i, out) in out.iter_mut().enumerate() {
                let places = codes[i..].iter().step_by(run).enumerate();
                *out = places.fold(0, |all, (place, codes)| all | word(codes) << (place * bits)).to_le_bytes();
            }
        }
    }
}

impl Encoder {
    /// Writes the codes and scales of a block, which must be zero. Its parts are those from lane
    /// `first` on. `numbers` are the numbers of the last part's codes.
    #[inline(always)]
    pub(super) fn write<V: Vector>(
        &self,
        parts: &Parts<V>,
        first: usize,
        codes: &[u8],
        numbers: &[f32],
        out: &mut [u8],
    ) {
        let layout = &self.layout;
        layout.put_codes(codes, out);
        if let Some(entries) = &self.entries {
            entries.write(codes, |field, byte, bits| out[self.format.field(field) + byte] |= bits);
        }
        if self.range.is_some() {
            self.write_scales(parts, first, out);
        }
        let mut rest = codes;
        for DigitRun { at, digits } in &layout.digits {
            let (own, others) = rest.split_at(digits.run * digits.each);
            digits::put(own, &mut out[*at..][..digits.run]);
            rest = others;
        }
        let units = &parts.units;
        if let Some(at) = layout.sum {
            // The terms are integers, so the order of addition does not matter.
            let sum: f32 = numbers.iter().sum();
            Number::Half.put(units.d.of_lane(first) * sum, &mut out[at..]);
        }
        for (i, d) in units.d.all()[first..].iter().take(codes.len() / self.columns).enumerate() {
            self.quants.d.put(*d, &mut out[layout.d + i * self.quants.d.bytes()..]);
        }
        if let Some(at) = layout.minimum {
            Number::Half.put(units.minimum.of_lane(first), &mut out[at..]);
        }
    }

    /// Writes integer scales and minimums of a block's groups.
    fn write_scales<V: Vector>(&self, parts: &Parts<V>, l: usize, out: &mut [u8]) {
        let groups = self.columns / self.group;
        let [mut scales, mut minimums] = [[0f32; MAX_GROUPS]; 2];
        for i in 0..groups {
            (scales[i], minimums[i]) = (parts.scales[i].of_lane(l), parts.minimums[i].of_lane(l));
        }
        let both = scales[..groups].iter().zip(&minimums).enumerate();
        let at = self.layout.scales.unwrap_or(0);
        match &self.quants.scales {
            Scales::None | Scales::Row | Scales::Multiples { .. } => {}
            Scales::Coded(all) => {
                for (scale, codes) in scales.iter().zip(&self.layout.scale_codes) {
                    let mut code = all.code(*scale);
                    for ScaleCode { at, shift, width } in codes {
                        let bits = (code & ((1 << width) - 1)) << shift;
                        let own = out[*at..].iter_mut().zip(bits.to_le_bytes());
                        own.for_each(|(byte, bits)| *byte |= bits);
                        code >>= width;
                    }
                }
            }
            Scales::SixBits => {
                for (i, (scale, minimum)) in both {
                    put_six_bits(&mut out[at..], i, *scale as u8, *minimum as u8);
                }
            }
            Scales::Nibbles16 => {
                both.for_each(|(i, (scale, minimum))| out[at + i] = *scale as u8 | ((*minimum as u8) << 4));
            }
            Scales::Signed16 => both.for_each(|(i, (scale, _))| out[at + i] = *scale as i8 as u8),
        }
    }
}

/// Writes a scale and a minimum in the layout that [`six_bits`](super::super::codec::six_bits)
/// reads.
fn put_six_bits(scales: &mut [u8], s: usize, scale: u8, minimum: u8) {
    if s < 4 {
        scales[s] |= scale;
        scales[s + 4] |= minimum;
    } else {
        scales[s + 4] = (scale & 15) | (minimum << 4);
        scales[s - 4] |= (scale >> 4) << 6;
        scales[s] |= (minimum >> 4) << 6;
    }
}
