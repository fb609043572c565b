//! Seeded mutations of inputs: of bits, numbers and lengths, with words of a dictionary, splices
//! and nesting.

use ixc_ir::random::Random;

/// Numbers at the limits of types and of common sizes.
const NUMBERS: [u64; 20] = [
    0,
    1,
    2,
    7,
    31,
    32,
    33,
    127,
    255,
    256,
    4096,
    65_535,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 61,
    1 << 63,
    u64::MAX,
];
/// Numbers as text that no integer type can hold.
const NUMBER_TEXTS: [&str; 8] = ["-1", "0.5", "1e300", "-1e-300", "1e999", "NaN", "00", "99999999999999999999"];
/// Max repetitions of a piece in one mutation, which nests or lengthens an input.
const MAX_REPETITIONS: usize = 2000;

/// Mutator for the inputs of one target.
#[derive(Clone, Copy, Debug)]
pub struct Mutator<'t> {
    /// Words of the language in which inputs are written.
    pub dictionary: &'t [&'t str],
    /// Max bytes of an input.
    pub max_bytes: usize,
}

impl Mutator<'_> {
    /// Returns a changed copy of `base`. Pieces of `other` may be copied into it.
    pub fn mutated(&self, base: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
        let mut bytes = base.to_vec();
        // One or two changes leave most of the input valid. More changes combine features.
        for _ in 0..1 << random.below(4) {
            self.change(&mut bytes, other, random);
        }
        bytes.truncate(self.max_bytes);
        bytes
    }

    fn change(&self, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        if bytes.is_empty() {
            bytes.extend_from_slice(other);
            bytes.push(random.bits() as u8);
        }
        let at = random.index(bytes.len());
        match random.below(16) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.bits() as u8,
            2 => bytes.insert(at, random.bits() as u8),
            3 => drop(bytes.drain(range(bytes.len(), at, random))),
            4 => {
                let piece = bytes[range(bytes.len(), at, random)].to_vec();
                insert(bytes, at, &piece);
            }
            5 => write_number(bytes, at, random),
            6 | 7 => change_number_text(bytes, at, random),
            8..=10 if !self.dictionary.is_empty() => {
                let word = random.pick(self.dictionary).as_bytes();
                match random.once_in(3) {
                    true => overwrite(bytes, at, word),
                    false => insert(bytes, at, word),
                }
            }
            11 if !other.is_empty() => {
                let from = random.index(other.len());
                let piece = &other[range(other.len(), from, random)];
                insert(bytes, at, piece);
            }
            12 if !other.is_empty() => {
                // The result is the beginning of one input and the end of another.
                bytes.truncate(at);
                bytes.extend_from_slice(&other[random.index(other.len())..]);
            }
            13 => {
                let piece = bytes[range(bytes.len(), at, random)].to_vec();
                let count = 1 + random.index(MAX_REPETITIONS).min(self.max_bytes / piece.len().max(1));
                insert(bytes, at, &piece.repeat(count));
            }
            14 => swap_lines(bytes, random),
            _ => bytes.truncate(at.max(1)),
        }
    }
}

/// Returns a range of bytes from `at` on: in most cases a short one, in few cases a long one.
fn range(length: usize, at: usize, random: &mut Random) -> std::ops::Range<usize> {
    let most = if random.once_in(8) { length - at } else { (length - at).min(24) };
    at..at + 1 + random.index(most.max(1)).min(length - at - 1)
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    drop(bytes.splice(at..at, piece.iter().copied()));
}

fn overwrite(bytes: &mut [u8], at: usize, piece: &[u8]) {
    let length = piece.len().min(bytes.len() - at);
    bytes[at..at + length].copy_from_slice(&piece[..length]);
}

/// Overwrites 2, 4 or 8 bytes with a number: a limit, or a sum of the present number and another
/// one.
fn write_number(bytes: &mut [u8], at: usize, random: &mut Random) {
    let width = random.pick(&[2, 4, 8]);
    let mut present = [0; 8];
    let found = &bytes[at..bytes.len().min(at + width)];
    present[..found.len()].copy_from_slice(found);
    let number = match random.once_in(2) {
        true => random.pick(&NUMBERS),
        false => u64::from_le_bytes(present).wrapping_add(random.below(9)).wrapping_sub(4),
    };
    overwrite(bytes, at, &number.to_le_bytes()[..width]);
}

/// Replaces the first decimal number in a text from `at` on.
fn change_number_text(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|offset| at + offset) else { return };
    let end =
        bytes[start..].iter().position(|byte| !byte.is_ascii_digit()).map_or(bytes.len(), |offset| start + offset);
    let present = std::str::from_utf8(&bytes[start..end]).ok().and_then(|digits| digits.parse::<u64>().ok());
    let new = match (random.below(4), present) {
        (0, _) => random.pick(&NUMBER_TEXTS).to_owned(),
        (1 | 2, Some(number)) => number.wrapping_add(random.below(5)).wrapping_sub(2).to_string(),
        _ => random.pick(&NUMBERS).to_string(),
    };
    drop(bytes.splice(start..end, new.into_bytes()));
}

/// Swaps two lines of a text.
fn swap_lines(bytes: &mut Vec<u8>, random: &mut Random) {
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let (a, b) = (random.index(lines.len()), random.index(lines.len()));
    lines.swap(a, b);
    *bytes = lines.concat();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_mutations() {
        let mutator = Mutator { dictionary: &["word"], max_bytes: 64 };
        let inputs = |seed: u64| {
            let mut random = Random::new(seed);
            (0..2000).map(|_| mutator.mutated(b"line 12\nsecond 7\n", b"other", &mut random)).collect::<Vec<_>>()
        };
        assert_eq!(inputs(3), inputs(3));
        assert_ne!(inputs(3), inputs(4));
        assert!(inputs(3).iter().all(|input| input.len() <= 64));
        assert!(inputs(3).iter().any(|input| input.windows(4).any(|word| word == b"word")));
    }

    #[test]
    fn empty_inputs_grow() {
        let mutator = Mutator { dictionary: &[], max_bytes: 8 };
        let mut random = Random::new(1);
        assert!((0..100).any(|_| !mutator.mutated(b"", b"", &mut random).is_empty()));
    }
}
