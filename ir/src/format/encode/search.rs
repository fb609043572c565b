//! Search for the scales of a row's parts, each with its own `d`. Several parts are searched in
//! parallel.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::super::codec::{Minimum, Number};
use super::entries::{Entries, Fit};
use super::lanes::{Lanes, MOST_LANES, POSITIONS, Vector, flat, positions, total};
use super::{Encoder, MAX_ELEMENTS, MAX_GROUPS, ScaleRange};

/// Number of rounds. Each fits `d` and `dmin` to the codes, and then the codes to `d` and `dmin`.
const ROUNDS: usize = 2;

/// Parts of a row, one in each lane, and the results of the search.
pub(super) struct Parts<V: Vector> {
    /// Elements of the parts.
    x: Vec<Lanes<V>>,
    w: Vec<Lanes<V>>,
    /// Scales and minimums of groups, as integers in units of `d` and `minimum`. If the format has
    /// no integer scales, all are 1.
    pub scales: [Lanes<V>; MAX_GROUPS],
    pub minimums: [Lanes<V>; MAX_GROUPS],
    pub units: Units<V>,
    /// Additional data if codes are indices of a grid.
    pub grid: Option<GridParts<V>>,
}

/// Units of the integer scales and minimums, for the part in each lane.
#[derive(Clone, Copy)]
pub(super) struct Units<V: Vector> {
    pub d: Lanes<V>,
    /// Unit of integer minimums. If scales are not integers, the addend.
    pub minimum: Lanes<V>,
}

/// Data of parts whose codes are indices of a grid. The search for grid entries handles one part
/// after another.
pub(super) struct GridParts<V: Vector> {
    /// Number of parts, at most one for each lane.
    count: usize,
    /// Elements of the parts, part after part.
    x: Vec<f32>,
    w: Vec<f32>,
    /// Numbers that the nearest codes stand for, at the tried units.
    numbers: Vec<Lanes<V>>,
    codes: Vec<u8>,
    /// Group scales that gave `numbers`. NaN before the first trial.
    scales: [Lanes<V>; MAX_GROUPS],
    /// Nearest codes at the best units so far.
    best: Vec<u8>,
}

/// Scale of a group of elements, with numbers derived from it.
#[derive(Clone, Copy)]
struct Group<V: Vector> {
    scale: Lanes<V>,
    inverse: Lanes<V>,
    addend: Lanes<V>,
    /// Factor of the numbers of the group's codes. Element x is approximately
    /// `d * a - minimum * b`, where `a` is `unit` times the code's number.
    unit: Lanes<V>,
    b: Lanes<V>,
}

/// Squared error of the current codes, and the sums for a least-squares fit of
/// `x = d * a - minimum * b`.
struct Passed<V: Vector> {
    lost: Lanes<V>,
    aa: Lanes<V>,
    ab: Lanes<V>,
    bb: Lanes<V>,
    xa: Lanes<V>,
    xb: Lanes<V>,
}

/// Rounds numbers to f16.
#[inline(always)]
fn round_to_half<V: Vector>(x: Lanes<V>) -> Lanes<V> {
    let (mut all, mut halves) = (x.all(), [f16::ZERO; MOST_LANES]);
    halves.convert_from_f32_slice(&all);
    halves.convert_to_f32_slice(&mut all);
    Lanes::load(&all)
}

/// Returns the inverse of a scale, or 0 if the inverse overflows. This happens with subnormal
/// scales.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    let inverse = scale.recip();
    if inverse.is_finite() { inverse } else { 0.0 }
}

impl<V: Vector> Parts<V> {
    /// Returns an object for the parts of a format, without elements.
    pub fn new(encoder: &Encoder) -> Parts<V> {
        let none = vec![Lanes::zero(); encoder.columns];
        let grid = encoder.entries.as_ref().map(|_| GridParts {
            count: 0,
            x: vec![0.0; V::COUNT * encoder.columns],
            w: vec![0.0; V::COUNT * encoder.columns],
            numbers: none.clone(),
            codes: vec![0; V::COUNT * encoder.columns],
            scales: [Lanes::splat(f32::NAN); MAX_GROUPS],
            best: vec![0; V::COUNT * encoder.columns],
        });
        Parts {
            x: none.clone(),
            w: none,
            scales: [Lanes::splat(1.0); MAX_GROUPS],
            minimums: [Lanes::splat(1.0); MAX_GROUPS],
            units: Units { d: Lanes::zero(), minimum: Lanes::zero() },
            grid,
        }
    }

    /// Loads the elements of parts, at most one part for each lane, and computes their weights.
    /// Other lanes keep old contents, which are not used.
    #[inline(always)]
    fn take(&mut self, x: &[f32], importance: Option<&[f32]>) {
        let columns = self.x.len();
        transpose(x, &mut self.x);
        let mut squares = [Lanes::zero(); POSITIONS];
        for x in positions(&self.x) {
            for (sum, &x) in squares.iter_mut().zip(x) {
                *sum = *sum + x * x;
            }
        }
        let mean = total(squares) / Lanes::splat(columns as f32);
        let least = Lanes::splat(2.0) * mean;
        if let Some(importance) = importance {
            transpose(importance, &mut self.w);
        }
        let (zero, one) = (Lanes::zero(), Lanes::splat(1.0));
        let mut matter = zero;
        for (w, &x) in self.w.iter_mut().zip(&self.x) {
            let size = (least + x * x).sqrt();
            *w = if importance.is_some() { *w * size } else { size };
            // A NaN weight counts as nonzero.
            matter = w.nothing(matter, one);
        }
        // If all activations of a part's columns are zero, it has no weights, but its block still
        // needs a scale. All its weights then become 1.
        if matter.all()[..V::COUNT].contains(&0.0) {
            self.w.iter_mut().for_each(|w| *w = matter.greater(zero, *w, one));
        }
        if let Some(grid) = &mut self.grid {
            grid.count = x.len() / columns;
            grid.scales.fill(Lanes::splat(f32::NAN));
            grid.x[..x.len()].copy_from_slice(x);
            for (l, own) in grid.w.chunks_exact_mut(columns).take(grid.count).enumerate() {
                own.iter_mut().zip(&self.w).for_each(|(own, w)| *own = w.of_lane(l));
            }
        }
    }
}

/// Transposes parts into lanes: lane `l` of `out[column]` is the element of part `l` in that
/// column.
#[inline(always)]
fn transpose<V: Vector>(x: &[f32], out: &mut [Lanes<V>]) {
    let columns = out.len();
    let out = flat(out);
    for (l, x) in x.chunks_exact(columns).enumerate() {
        out[l..].iter_mut().step_by(V::COUNT).zip(x).for_each(|(out, x)| *out = *x);
    }
}

impl<V: Vector> GridParts<V> {
    /// Finds the nearest grid entries of all parts, at the scales of these groups.
    #[inline(always)]
    fn look(&mut self, encoder: &Encoder, entries: &Entries, groups: &[Group<V>]) {
        let (columns, group) = (encoder.columns, encoder.group);
        for l in 0..self.count {
            for (index, of_group) in groups.iter().enumerate() {
                // A part whose units did not change needs no new search, even if the units of other
                // parts did.
                let scale = of_group.scale.of_lane(l);
                if self.scales[index].of_lane(l) == scale {
                    continue;
                }
                let first = index * group;
                let own = l * columns + first..l * columns + first + group;
                let codes = entries.codes(scale, &self.x[own.clone()], &self.w[own.clone()]);
                self.codes[own].copy_from_slice(&codes);
                for (number, code) in self.numbers[first..][..group].iter_mut().zip(&codes) {
                    *number = number.with(l, encoder.numbers.of[usize::from(*code)]);
                }
            }
        }
        self.scales[..groups.len()].iter_mut().zip(groups).for_each(|(looked, group)| *looked = group.scale);
    }
}

impl Encoder {
    /// Finds the scales and minimums of the parts of a row. The weights of elements are computed
    /// from `x` and `importance`.
    #[inline(always)]
    pub(super) fn search<V: Vector>(&self, x: &[f32], importance: Option<&[f32]>, parts: &mut Parts<V>) {
        parts.take(x, importance);
        self.fit(parts);
        // If `d` is a power of two, the search tries both neighbours, and least squares cannot
        // improve it.
        let fits_more = self.quants.d != Number::HalfOfPower;
        let minimum = round_to_half(parts.units.minimum);
        let near = self.near(parts.units.d);
        let above = if fits_more { None } else { Some(near * Lanes::splat(2.0)) };
        let mut least_lost: Option<Lanes<V>> = None;
        for d in std::iter::once(near).chain(above) {
            let mut units = Units { d, minimum };
            for round in 0..=ROUNDS {
                let more = round < ROUNDS && fits_more;
                let passed = match (more, self.quants.minimum) {
                    (false, _) => self.pass_codes::<V, false, false>(parts, &units),
                    (true, Minimum::None) => self.pass_codes::<V, true, false>(parts, &units),
                    (true, Minimum::Half | Minimum::Scaled) => self.pass_codes::<V, true, true>(parts, &units),
                };
                self.keep(parts, &units, &passed, &mut least_lost);
                if !more {
                    break;
                }
                let next = self.fit_units(&passed, &units);
                // If the units of no part change, more rounds cannot reduce the error.
                if next.d.all() == units.d.all() && next.minimum.all() == units.minimum.all() {
                    break;
                }
                units = next;
            }
        }
        self.lengthen(parts);
    }

    /// Raises `d` of grid parts until the decoded numbers have the weighted norm of the original
    /// ones. With the scale of least error, the norm of a part with the relative error `e` is too
    /// small by a factor of `sqrt(1 - e)`. The coarsest grids lose 4 to 10 % of the norm, always
    /// downwards.
    #[inline(always)]
    fn lengthen<V: Vector>(&self, parts: &mut Parts<V>) {
        let Some(grid) = &parts.grid else { return };
        let mut d = parts.units.d;
        for l in 0..grid.count {
            let own = l * self.columns..(l + 1) * self.columns;
            let (mut wanted, mut found) = (0f32, 0f32);
            for (i, (at, code)) in own.clone().zip(&grid.best[own]).enumerate() {
                let (x, w) = (grid.x[at], grid.w[at]);
                let number = parts.scales[i / self.group].of_lane(l) * self.numbers.of[usize::from(*code)];
                wanted += w * x * x;
                found += w * number * number;
            }
            let longer = (wanted / found).sqrt();
            if longer.is_finite() && longer > d.of_lane(l) {
                d = d.with(l, longer);
            }
        }
        parts.units.d = self.near(d);
    }

    /// Keeps units that have a smaller error than the best units so far. A part with NaN elements
    /// has a NaN error with any units.
    #[inline(always)]
    fn keep<V: Vector>(
        &self,
        parts: &mut Parts<V>,
        units: &Units<V>,
        passed: &Passed<V>,
        least_lost: &mut Option<Lanes<V>>,
    ) {
        let lost = passed.lost;
        if let Some(grid) = &mut parts.grid {
            for l in 0..grid.count {
                if least_lost.is_none_or(|least| lost.of_lane(l) < least.of_lane(l)) {
                    let own = l * self.columns..(l + 1) * self.columns;
                    grid.best[own.clone()].copy_from_slice(&grid.codes[own]);
                }
            }
        }
        match least_lost {
            None => (parts.units, *least_lost) = (*units, Some(lost)),
            Some(least) => {
                let kept = &mut parts.units;
                kept.d = least.greater(lost, units.d, kept.d);
                kept.minimum = least.greater(lost, units.minimum, kept.minimum);
                *least = least.greater(lost, lost, *least);
            }
        }
    }

    /// Rounds to numbers that the storage of `d` can represent.
    #[inline(always)]
    fn near<V: Vector>(&self, d: Lanes<V>) -> Lanes<V> {
        match self.quants.d {
            Number::Half => round_to_half(d),
            Number::PartOfHalf { .. }
            | Number::TopsOfWords { .. }
            | Number::HalfOfPower
            | Number::HalfOfE4m3
            | Number::Single => d.map(|d| self.quants.d.near(d)),
        }
    }

    /// Finds the scales and minimums of groups, and their units. Each group is fitted alone. If
    /// scales are integers, they are then rounded to multiples of a unit.
    #[inline(always)]
    fn fit<V: Vector>(&self, parts: &mut Parts<V>) {
        let groups = self.columns / self.group;
        let [mut scales, mut minimums] = [[Lanes::<V>::zero(); MAX_GROUPS]; 2];
        match (&self.entries, &parts.grid) {
            (Some(entries), Some(grid)) => self.fit_entries(entries, grid, &mut parts.scales, &mut parts.units.d),
            (_, _) => {
                let each = parts.x.chunks_exact(self.group).zip(parts.w.chunks_exact(self.group)).enumerate();
                for (index, (x, w)) in each {
                    (scales[index], minimums[index]) = match self.quants.minimum {
                        Minimum::None => (self.numbers.fit(x, w), Lanes::zero()),
                        Minimum::Half => self.numbers.fit_with_minimum(x, w, false),
                        Minimum::Scaled => self.numbers.fit_with_minimum(x, w, true),
                    };
                }
                let Some(range) = self.range else {
                    parts.units = Units { d: scales[0], minimum: minimums[0] };
                    return;
                };
                let (mut extreme, mut lowest) = (Lanes::zero(), Lanes::zero());
                for (&scale, &minimum) in scales[..groups].iter().zip(&minimums) {
                    extreme = scale.size().greater(extreme.size(), scale, extreme);
                    lowest = minimum.least(lowest);
                }
                // The range of integers may have one whose negative is outside the range. The
                // extreme scale gets this integer.
                let d = extreme / Lanes::splat(range.of_extreme());
                let minimum = lowest.negative() / Lanes::splat(range.most);
                let of_minimums = ScaleRange::between(0.0, range.most);
                for index in 0..groups {
                    parts.scales[index] = range.nearest(scales[index], d);
                    parts.minimums[index] = of_minimums.nearest(minimums[index].negative(), minimum);
                }
                parts.units = Units { d, minimum };
            }
        }
    }

    /// Finds the scales of parts whose codes are indices of a grid, one part after another.
    #[inline(always)]
    fn fit_entries<V: Vector>(
        &self,
        entries: &Entries,
        grid: &GridParts<V>,
        scales: &mut [Lanes<V>],
        d: &mut Lanes<V>,
    ) {
        let all = grid.x.chunks_exact(self.columns).zip(grid.w.chunks_exact(self.columns));
        for (l, (x, w)) in all.take(grid.count).enumerate() {
            let mut fits = [Fit::default(); MAX_GROUPS];
            let groups = x.chunks_exact(self.group).zip(w.chunks_exact(self.group));
            // A loop, because a closure might not be inlined, and would then not use wide vectors.
            for (fit, (x, w)) in fits.iter_mut().zip(groups) {
                *fit = entries.fit(x, w);
            }
            let fits = &fits[..self.columns / self.group];
            let Some(range) = self.range else {
                *d = d.with(l, fits[0].scale);
                continue;
            };
            let extreme = fits.iter().fold(0f32, |a, b| if b.scale.abs() > a.abs() { b.scale } else { a });
            let own = unit(fits, range, extreme / range.of_extreme());
            *d = d.with(l, own);
            for (fit, scale) in fits.iter().zip(&mut *scales) {
                *scale = scale.with(l, range.near_in(fit.scale, own));
            }
        }
    }

    /// Returns the scale of group `index` with these units, and numbers derived from it.
    #[inline(always)]
    fn group<V: Vector>(&self, parts: &Parts<V>, units: &Units<V>, index: usize) -> Group<V> {
        let (unit, minimum) = (parts.scales[index], parts.minimums[index]);
        let (addend, b) = match self.quants.minimum {
            Minimum::None => (Lanes::zero(), Lanes::zero()),
            Minimum::Half => (units.minimum, Lanes::splat(-1.0)),
            Minimum::Scaled => (units.minimum.negative() * minimum, minimum),
        };
        let scale = units.d * unit;
        let inverse = Lanes::splat(1.0) / scale;
        Group { scale, inverse: inverse.finite(inverse, Lanes::zero()), addend, unit, b }
    }

    /// Returns the error of the nearest codes. With `FIT`, also computes the sums for the best
    /// scale. With `MINIMUM`, also computes the sums for the best minimum.
    #[inline(always)]
    fn pass_codes<V: Vector, const FIT: bool, const MINIMUM: bool>(
        &self,
        parts: &mut Parts<V>,
        units: &Units<V>,
    ) -> Passed<V> {
        let zero = Lanes::<V>::zero();
        let count = self.columns / self.group;
        let mut groups = [Group { scale: zero, inverse: zero, addend: zero, unit: zero, b: zero }; MAX_GROUPS];
        let groups = &mut groups[..count];
        for (index, group) in groups.iter_mut().enumerate() {
            *group = self.group(parts, units, index);
        }
        if let (Some(grid), Some(entries)) = (&mut parts.grid, &self.entries) {
            grid.look(self, entries, groups);
        }
        let numbers = parts.grid.as_ref().map(|grid| &grid.numbers[..]);
        let [mut lost, mut aa, mut ab, mut bb, mut xa, mut xb] = [[zero; POSITIONS]; 6];
        for position in 0..POSITIONS {
            let [mut of_lost, mut of_aa, mut of_ab, mut of_bb, mut of_xa, mut of_xb] = [zero; 6];
            for (index, group) in groups.iter().enumerate() {
                let own = index * self.group..(index + 1) * self.group;
                let numbers = numbers.map(|numbers| positions(&numbers[own.clone()]));
                let all = positions(&parts.x[own.clone()]).iter().zip(positions(&parts.w[own]));
                for (i, (x, w)) in all.enumerate() {
                    let (x, w) = (x[position], w[position]);
                    let number = match numbers {
                        None => self.numbers.near_lanes(x, group.addend, group.inverse),
                        Some(numbers) => numbers[i][position],
                    };
                    let difference = group.scale * number + group.addend - x;
                    of_lost = of_lost + w * difference * difference;
                    if FIT {
                        let (a, b) = (group.unit * number, group.b);
                        of_aa = of_aa + w * a * a;
                        of_xa = of_xa + w * x * a;
                        if MINIMUM {
                            of_ab = of_ab + w * a * b;
                            of_bb = of_bb + w * b * b;
                            of_xb = of_xb + w * x * b;
                        }
                    }
                }
            }
            (lost[position], aa[position], ab[position]) = (of_lost, of_aa, of_ab);
            (bb[position], xa[position], xb[position]) = (of_bb, of_xa, of_xb);
        }
        let [lost, aa, ab, bb, xa, xb] = [total(lost), total(aa), total(ab), total(bb), total(xa), total(xb)];
        Passed { lost, aa, ab, bb, xa, xb }
    }

    /// Returns the units with the least error for the codes that gave these sums. Keeps the current
    /// units if the least-squares equations have no solution.
    #[inline(always)]
    fn fit_units<V: Vector>(&self, sums: &Passed<V>, units: &Units<V>) -> Units<V> {
        let &Passed { aa, ab, bb, xa, xb, .. } = sums;
        let determinant = aa * bb - ab * ab;
        let mut minimum = (xa * ab - xb * aa) / determinant;
        if self.quants.minimum == Minimum::Scaled {
            minimum = minimum.greatest(Lanes::zero());
        }
        let (zero, least) = (Lanes::zero(), Lanes::splat(1e-6) * aa * bb);
        // Conditions are numbers here: `both` is 1 if the equations have a unique solution, and
        // `found` is 1 if both units are finite.
        let one = Lanes::splat(1.0);
        let both = bb.greater_or_zero(zero, determinant.greater_or_zero(least, one));
        let d = both.greater(zero, (xa + minimum * ab) / aa, xa / aa);
        let minimum = both.greater(zero, minimum, units.minimum);
        let found = d.finite(minimum.finite(one, zero), zero);
        let (near_d, near_minimum) = (self.near(d), round_to_half(minimum));
        Units { d: found.greater(zero, near_d, units.d), minimum: found.greater(zero, near_minimum, units.minimum) }
    }

    /// Writes codes of part `l`, and the numbers that they stand for, from the results of the
    /// search. `x` are the elements of the part.
    #[inline(always)]
    pub(super) fn codes<V: Vector>(
        &self,
        parts: &Parts<V>,
        l: usize,
        x: &[f32],
        numbers: &mut [f32; MAX_ELEMENTS],
        codes: &mut [u8],
    ) {
        let numbers = &mut numbers[..x.len()];
        if let Some(grid) = &parts.grid {
            codes.copy_from_slice(&grid.best[l * self.columns..][..self.columns]);
            let of = numbers.iter_mut().zip(codes);
            of.for_each(|(number, code)| *number = self.numbers.of[usize::from(*code)]);
            return;
        }
        let own = x.chunks_exact(self.group).zip(numbers.chunks_exact_mut(self.group)).enumerate();
        for (index, (x, numbers)) in own {
            let addend = match self.quants.minimum {
                Minimum::None => 0.0,
                Minimum::Half => parts.units.minimum.of_lane(l),
                Minimum::Scaled => -parts.units.minimum.of_lane(l) * parts.minimums[index].of_lane(l),
            };
            self.numbers.near::<V>(
                x,
                addend,
                inverse(parts.units.d.of_lane(l) * parts.scales[index].of_lane(l)),
                numbers,
            );
        }
        self.numbers.codes(numbers, codes);
    }
}

impl ScaleRange {
    /// Returns the integer for the scale with the largest magnitude: the least integer if it is
    /// negative, otherwise the largest.
    fn of_extreme(&self) -> f32 {
        if self.least < 0.0 { self.least } else { self.most }
    }

    /// Returns the integer in the range nearest to `value / unit`.
    #[inline(always)]
    fn near_in(&self, value: f32, unit: f32) -> f32 {
        if unit == 0.0 { self.near(0.0) } else { self.near(value / unit) }
    }

    /// Returns, in each lane, the integer in the range nearest to the value divided by its unit.
    #[inline(always)]
    fn nearest<V: Vector>(&self, values: Lanes<V>, units: Lanes<V>) -> Lanes<V> {
        let (mut all, units) = (values.all(), units.all());
        all[..V::COUNT].iter_mut().zip(units).for_each(|(value, unit)| *value = self.near_in(*value, unit));
        Lanes::load(&all)
    }
}

/// Returns the unit with which the rounding of scales to integers costs the least error. It tries
/// units that map the largest scale to each integer of the upper half of the range.
fn unit(fits: &[Fit], range: ScaleRange, first: f32) -> f32 {
    let (mut best, mut least_lost) = (first, f32::INFINITY);
    let largest = fits.iter().fold(0f32, |a, b| a.max(b.scale));
    let mut top = range.most + range.step;
    while 2.0 * top > range.most {
        let tried = largest / top;
        // The best unit for the integers that the tried unit gives.
        let (mut with_scale, mut squares) = (0f32, 0f32);
        for fit in fits {
            let integer = range.near(fit.scale / tried);
            with_scale += fit.squares * integer * fit.scale;
            squares += fit.squares * integer * integer;
        }
        let found = with_scale / squares;
        let lost = fits.iter().map(|fit| fit.squares * (range.near(fit.scale / found) * found - fit.scale).powi(2));
        let lost = lost.sum::<f32>();
        if lost < least_lost {
            (best, least_lost) = (found, lost);
        }
        top -= range.step / 2.0;
    }
    best
}
