//! Search for the grid entries nearest to given numbers, and for the scale with the least error.
//!
//! A grid entry gives the *places* (indices) of four or eight magnitudes. Signs are not always
//! independent: an even number of eight signs is negative, or all signs of an entry are equal. If
//! signs depend on each other, the search tries a few patterns of signs. For each pattern, the
//! search for the nearest entry is exact:
//!
//! ```text
//! // The cost of place p for element j, compared with the best place:
//! excess[j][p] = w (scale * number(p) - x)^2 - the least of these
//! an entry     = a lower and an upper half, each with a sum of excesses
//! ```
//!
//! If the best place of every element together form an entry, it is the nearest. Otherwise entries
//! are grouped by the lower half of their places. The search skips groups whose lower half alone
//! costs more than the best entry so far. It skips nearly all groups.

use std::sync::OnceLock;

use super::super::SUB;
use super::super::grids::{Grid, TABLES};
use super::numbers::Numbers;

/// Maximum number of different magnitudes of a grid.
const PLACES: usize = 8;
/// Maximum number of different lower, or upper, halves of entries.
const HALVES: usize = 256;
/// Index of the entry for patterns of places that are not an entry.
const NONE: u16 = u16::MAX;

/// First scale that is tried, as the ratio of the largest element to the grid's largest number.
const FIRST_RATIO: f32 = 1.6;
/// Ratio of each tried scale to the next.
const RATIO_STEP: f32 = 1.11;
/// Number of tried scales. Twice as many would reduce the error by a third of a percent.
const SCALE_COUNT: usize = 7;
/// Number of rounds. Each fits the scale to the entries, and then the entries to the scale.
const ROUNDS: usize = 3;
/// Number of elements that are candidates for a flipped sign, if the number of negative signs must
/// be even.
const FLIP_COUNT: usize = 3;

/// Best scale of the elements that share it.
#[derive(Clone, Copy, Default)]
pub(super) struct Fit {
    pub scale: f32,
    /// Weighted sum of the squares of the codes' numbers. If the codes stay and the scale changes
    /// by `x`, the squared error grows by `x²` times this sum.
    pub squares: f32,
}

/// Entries of a grid, grouped by the lower half of their places.
struct Lattice {
    /// Index of the entry with each pattern of places, or [`NONE`].
    index: Vec<u16>,
    /// Lower halves. Each has the index of its first upper half in `upper`.
    lower: Vec<(u8, usize)>,
    upper: Vec<u8>,
}

impl Lattice {
    fn for_grid(grid: &Grid) -> &'static Lattice {
        static ALL: [OnceLock<Lattice>; TABLES.len()] = [const { OnceLock::new() }; TABLES.len()];
        ALL[grid.table].get_or_init(|| {
            let mut index = vec![NONE; 1 << (grid.len * grid.bits)];
            let half = grid.len * grid.bits / 2;
            let mut entries: Vec<(u8, u8)> = Vec::new();
            for (number, places) in grid.entries().enumerate() {
                index[usize::from(places)] = number as u16;
                entries.push(((places & ((1 << half) - 1)) as u8, (places >> half) as u8));
            }
            entries.sort_unstable();
            let mut lower: Vec<(u8, usize)> = Vec::new();
            for (at, (low, _)) in entries.iter().enumerate() {
                if lower.last().is_none_or(|(last, _)| last != low) {
                    lower.push((*low, at));
                }
            }
            Lattice { index, lower, upper: entries.into_iter().map(|(_, high)| high).collect() }
        })
    }
}

/// Search for the nearest entries of a grid.
pub(super) struct Entries {
    grid: &'static Grid,
    lattice: &'static Lattice,
    /// Number that each place stands for: with a positive sign, then with a negative sign.
    numbers: [[f32; PLACES]; 2],
    /// The largest number of any place.
    most: f32,
    /// Number of neighbouring elements whose signs depend on each other.
    span: usize,
}

/// The nearest entry to some elements, as its places, and its error.
#[derive(Clone, Copy)]
struct Nearest {
    places: u16,
    lost: f32,
}

impl Entries {
    pub fn for_grid(grid: &'static Grid, numbers: &Numbers) -> Entries {
        let mut of_places = [[0.0; PLACES]; 2];
        for (code, number) in numbers.of.iter().enumerate() {
            of_places[code >> grid.bits][code & ((1 << grid.bits) - 1)] = *number;
        }
        let most = numbers.of.iter().fold(0f32, |a, b| a.max(b.abs()));
        Entries { grid, lattice: Lattice::for_grid(grid), numbers: of_places, most, span: grid.span().max(grid.len) }
    }

    /// Returns the scale with the least sum of squared differences between `x` and its nearest
    /// entries. The weights of the squares are `w`.
    #[inline(always)]
    pub fn fit(&self, x: &[f32], w: &[f32]) -> Fit {
        let largest = x.iter().fold(0f32, |a, b| a.max(b.abs()));
        if largest == 0.0 || !largest.is_finite() {
            return Fit::default();
        }
        let mut group = Group::new(self, x, w, 1);
        let (mut best, mut most_gained) = (Fit::default(), 0.0);
        let mut scale = largest / (self.most * FIRST_RATIO);
        for _ in 0..SCALE_COUNT {
            group.take(scale);
            let (fit, gained) = group.fit();
            if gained > most_gained {
                (best, most_gained) = (fit, gained);
            }
            scale *= RATIO_STEP;
        }
        for _ in 0..ROUNDS {
            group.take(best.scale);
            let (fit, gained) = group.fit();
            if gained <= most_gained {
                break;
            }
            (best, most_gained) = (fit, gained);
        }
        best
    }

    /// Returns the nearest codes of elements that share this scale.
    #[inline(always)]
    pub fn codes(&self, scale: f32, x: &[f32], w: &[f32]) -> Vec<u8> {
        let mut group = Group::new(self, x, w, FLIP_COUNT);
        group.take(scale);
        group.codes[..x.len()].to_vec()
    }

    /// Writes a block's codes as indices and signs, as [`Grid::put_index`] does.
    pub fn write(&self, codes: &[u8], mut put: impl FnMut(&str, usize, u8)) {
        let Grid { len, bits, .. } = *self.grid;
        for (sub, codes) in codes.chunks_exact(SUB).enumerate() {
            for (number, codes) in codes.chunks_exact(len).enumerate() {
                let place = |code: &u8| u16::from(code & ((1 << bits) - 1));
                let places = codes.iter().rev().fold(0, |places, code| places << bits | place(code));
                let index = self.lattice.index[usize::from(places)];
                self.grid.put_index(sub, number, index.into(), &mut put);
            }
            for (eight, codes) in codes.chunks_exact(8).enumerate() {
                let signs = codes.iter().rev().fold(0, |signs, code| signs << 1 | code >> bits);
                self.grid.put_signs(sub, eight, signs, &mut put);
            }
        }
    }

    /// Returns the entry nearest to elements with these signs. The search begins with the entry
    /// `start`.
    #[inline(always)]
    fn nearest(&self, numbers: &[[f32; PLACES]; 2], x: &[f32], w: &[f32], signs: u32, start: u16) -> Nearest {
        match self.grid.bits {
            2 => self.nearest_of::<8, 2, 3>(numbers, x, w, signs, start),
            _ => self.nearest_of::<4, 3, 8>(numbers, x, w, signs, start),
        }
    }

    #[inline(always)]
    fn nearest_of<const LEN: usize, const BITS: usize, const USED: usize>(
        &self,
        numbers: &[[f32; PLACES]; 2],
        x: &[f32],
        w: &[f32],
        signs: u32,
        start: u16,
    ) -> Nearest {
        let mut excess = [[0f32; PLACES]; LEN];
        let (mut base, mut best) = (0f32, 0u16);
        for j in 0..LEN {
            let numbers = &numbers[(signs >> j & 1) as usize];
            let (mut least, mut place) = (f32::INFINITY, 0);
            for p in 0..USED {
                let difference = numbers[p] - x[j];
                let lost = w[j] * difference * difference;
                excess[j][p] = lost;
                if lost < least {
                    (least, place) = (lost, p);
                }
            }
            excess[j][..USED].iter_mut().for_each(|lost| *lost -= least);
            base += least;
            best |= (place as u16) << (BITS * j);
        }
        if self.lattice.index[usize::from(best)] != NONE {
            return Nearest { places: best, lost: base };
        }
        let half = LEN * BITS / 2;
        let lower = sums::<BITS>(&excess[..LEN / 2]);
        let upper = sums::<BITS>(&excess[LEN / 2..]);
        best = start;
        let mut least = lower[usize::from(start) & ((1 << half) - 1)] + upper[usize::from(start >> half)];
        let all = &self.lattice.lower;
        for (i, &(low, first)) in all.iter().enumerate() {
            let of_low = lower[usize::from(low)];
            if of_low < least {
                let end = all.get(i + 1).map_or(self.lattice.upper.len(), |next| next.1);
                for &high in &self.lattice.upper[first..end] {
                    let lost = of_low + upper[usize::from(high)];
                    if lost < least {
                        (best, least) = (u16::from(low) | u16::from(high) << half, lost);
                    }
                }
            }
        }
        Nearest { places: best, lost: base + least }
    }
}

/// Returns, for each half entry, the sum of the excesses of its places.
#[inline(always)]
fn sums<const BITS: usize>(excess: &[[f32; PLACES]]) -> [f32; HALVES] {
    let mut sums = [0f32; HALVES];
    let mut count = 1;
    for excess in excess {
        for place in (0..1 << BITS).rev() {
            for i in 0..count {
                sums[place * count + i] = sums[i] + excess[place];
            }
        }
        count <<= BITS;
    }
    sums
}

/// Elements that share a scale, and their nearest entries.
struct Group<'g> {
    entries: &'g Entries,
    x: &'g [f32],
    w: &'g [f32],
    /// Patterns of signs to try for each span of elements. A pattern has a bit for each negative
    /// element.
    patterns: Vec<Vec<u32>>,
    codes: [u8; SUB],
    /// Nearest entries at the last tried scale, where the next search starts.
    starts: [u16; SUB / 4],
}

impl<'g> Group<'g> {
    fn new(entries: &'g Entries, x: &'g [f32], w: &'g [f32], flipped: usize) -> Group<'g> {
        let spans = x.chunks_exact(entries.span).zip(w.chunks_exact(entries.span));
        let patterns = spans.map(|(x, w)| entries.grid.patterns(x, w, flipped)).collect();
        let starts = [entries.grid.entries().next().unwrap_or(0); SUB / 4];
        Group { entries, x, w, patterns, codes: [0; SUB], starts }
    }

    /// Finds the nearest entries at this scale.
    #[inline(always)]
    fn take(&mut self, scale: f32) {
        let entries = self.entries;
        let Grid { len, bits, .. } = *entries.grid;
        let numbers = entries.numbers.map(|numbers| numbers.map(|number| scale * number));
        let each = entries.span / len;
        for (span, patterns) in self.patterns.iter().enumerate() {
            let first = span * entries.span;
            let starts = &mut self.starts[span * each..][..each];
            let (mut best, mut chosen, mut least) = ([0u16; SUB / 4], patterns[0], f32::INFINITY);
            for (number, &pattern) in patterns.iter().enumerate() {
                let (mut found, mut lost) = ([0u16; SUB / 4], 0f32);
                for (i, start) in starts.iter().enumerate() {
                    let at = first + i * len;
                    let (x, w) = (&self.x[at..][..len], &self.w[at..][..len]);
                    let nearest = entries.nearest(&numbers, x, w, pattern >> (i * len), *start);
                    found[i] = nearest.places;
                    lost += nearest.lost;
                }
                if lost < least || number == 0 {
                    (best, chosen, least) = (found, pattern, lost);
                }
            }
            starts.copy_from_slice(&best[..each]);
            for (i, code) in self.codes[first..][..entries.span].iter_mut().enumerate() {
                let place = best[i / len] >> (i % len * bits) & ((1 << bits) - 1);
                *code = place as u8 | ((chosen >> i & 1) as u8) << bits;
            }
        }
    }

    /// Returns the best scale for the current entries, and the squared error that it saves.
    #[inline(always)]
    fn fit(&self) -> (Fit, f32) {
        let (mut with_x, mut squares) = (0f32, 0f32);
        for ((&x, &w), &code) in self.x.iter().zip(self.w).zip(&self.codes) {
            let code = usize::from(code);
            let bits = self.entries.grid.bits;
            let number = self.entries.numbers[code >> bits][code & ((1 << bits) - 1)];
            with_x += w * x * number;
            squares += w * number * number;
        }
        // Scales are never negative.
        let gained = if with_x > 0.0 { with_x * with_x / squares } else { 0.0 };
        (Fit { scale: with_x / squares, squares }, gained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::FORMATS;
    use crate::random::Random;

    /// Compares with a search of every entry and every pattern of signs that the grid allows.
    #[test]
    fn the_nearest_entry_is_found() {
        let mut random = Random::new(7);
        let mut grids = 0;
        for quants in FORMATS.iter().filter(|row| row.rows == 1).filter_map(|row| row.format.quants()) {
            let Some(grid) = quants.grid() else { continue };
            grids += 1;
            let entries = Entries::for_grid(grid, &Numbers::from_quants(quants));
            for round in 0..40 {
                let x: Vec<f32> = (0..grid.len).map(|_| entries.most * random.signed()).collect();
                let w: Vec<f32> = (0..grid.len).map(|_| 1.01 + random.signed()).collect();
                let signs = random.bits() as u32 & ((1 << grid.len) - 1);
                let all: Vec<u16> = grid.entries().collect();
                let start = all[random.index(all.len())];
                let found = entries.nearest(&entries.numbers, &x, &w, signs, start);
                let lost = |places: u16| {
                    let of = |j: usize| {
                        let place = places >> (j * grid.bits) & ((1 << grid.bits) - 1);
                        entries.numbers[(signs >> j & 1) as usize][usize::from(place)]
                    };
                    (0..grid.len).map(|j| w[j] * (of(j) - x[j]) * (of(j) - x[j])).sum::<f32>()
                };
                let least = all.iter().map(|places| lost(*places)).fold(f32::INFINITY, f32::min);
                assert!(all.contains(&found.places), "{grid:?}");
                // The two sums add their terms in different orders.
                let near = |a: f32, b: f32| (a - b).abs() <= 1e-5 * least;
                assert!(near(lost(found.places), least) && near(found.lost, least), "{grid:?} {round}: {least}");
            }
        }
        assert_eq!(grids, 7);
    }

    /// Checks that the signs of the codes are a pattern that the grid can store.
    #[test]
    fn encoded_signs_are_representable() {
        let mut random = Random::new(8);
        for quants in FORMATS.iter().filter(|row| row.rows == 1).filter_map(|row| row.format.quants()) {
            let Some(grid) = quants.grid() else { continue };
            let entries = Entries::for_grid(grid, &Numbers::from_quants(quants));
            for _ in 0..20 {
                let x: Vec<f32> = (0..SUB).map(|_| random.signed()).collect();
                let codes = entries.codes(1.5 / entries.most, &x, &[1.0; SUB]);
                for (number, codes) in codes.chunks_exact(entries.span).enumerate() {
                    let negative = codes.iter().filter(|code| **code >> grid.bits == 1).count();
                    let of_x = x[number * entries.span..][..entries.span].iter().filter(|x| **x < 0.0).count();
                    match (grid.span(), grid.signs) {
                        (_, crate::format::grids::Signs::Common { .. }) => assert!(negative % entries.span == 0),
                        (1, _) => assert_eq!(negative, of_x),
                        (_, _) => assert!(negative % 2 == 0 && negative.abs_diff(of_x) <= 1),
                    }
                }
            }
        }
    }
}
