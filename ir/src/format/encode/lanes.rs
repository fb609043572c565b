//! Numbers side by side: one of each part of a row that is encoded at the same time.
//!
//! A part is what has a `d` of its own. What follows from a sum of its elements waits for the last of them, and the next sum for that: of one part alone
//! most of the time is waited, of several side by side nobody waits, and nothing is added up across a vector.
//!
//! Every operation is one of IEEE 754 on each number, or a choice between two: results have the same bits on vectors of all kinds.

use std::ops::{Add, Div, Mul, Sub};

/// The most numbers of a vector.
pub(super) const MOST_LANES: usize = 16;

/// A vector of a processor: as many numbers.
///
/// Vectors that not every processor has are made only in functions that are compiled for those that do.
///
/// # Safety
/// It is [`Vector::COUNT`] numbers, and nothing else.
pub(super) unsafe trait Vector: Copy {
    /// How many.
    const COUNT: usize;

    /// From the first [`Vector::COUNT`] numbers.
    fn load(x: &[f32]) -> Self;
    /// To the first [`Vector::COUNT`].
    fn store(self, out: &mut [f32]);
    fn of(number: f32) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn sqrt(self) -> Self;
    /// Without signs.
    fn size(self) -> Self;
    /// `if self > other { self } else { other }`
    fn greatest(self, other: Self) -> Self;
    /// `if self < other { self } else { other }`
    fn least(self, other: Self) -> Self;
    /// `if self > other { then } else { otherwise }`
    fn greater(self, other: Self, then: Self, otherwise: Self) -> Self;
    /// `if self > other { then } else { 0.0 }`
    fn greater_or_zero(self, other: Self, then: Self) -> Self;
}

/// A vector where nothing is known of the processor: of that the compiler makes what all have.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Any<const L: usize>([f32; L]);

impl<const L: usize> Any<L> {
    #[inline(always)]
    fn with(self, other: Any<L>, of: impl Fn(f32, f32) -> f32) -> Any<L> {
        let mut all = self.0;
        all.iter_mut().zip(other.0).for_each(|(a, b)| *a = of(*a, b));
        Any(all)
    }
}

// SAFETY: it is an array of them.
unsafe impl<const L: usize> Vector for Any<L> {
    const COUNT: usize = L;

    #[inline(always)]
    fn load(x: &[f32]) -> Any<L> {
        let mut all = [0.0; L];
        all.copy_from_slice(&x[..L]);
        Any(all)
    }

    #[inline(always)]
    fn store(self, out: &mut [f32]) {
        out[..L].copy_from_slice(&self.0);
    }

    #[inline(always)]
    fn of(number: f32) -> Any<L> {
        Any([number; L])
    }

    #[inline(always)]
    fn add(self, other: Any<L>) -> Any<L> {
        self.with(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Any<L>) -> Any<L> {
        self.with(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Any<L>) -> Any<L> {
        self.with(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Any<L>) -> Any<L> {
        self.with(other, |a, b| a / b)
    }

    #[inline(always)]
    fn sqrt(self) -> Any<L> {
        self.with(self, |a, _| a.sqrt())
    }

    #[inline(always)]
    fn size(self) -> Any<L> {
        self.with(self, |a, _| a.abs())
    }

    #[inline(always)]
    fn greatest(self, other: Any<L>) -> Any<L> {
        self.with(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn least(self, other: Any<L>) -> Any<L> {
        self.with(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn greater(self, other: Any<L>, then: Any<L>, otherwise: Any<L>) -> Any<L> {
        let mut all = otherwise.0;
        let lanes = all.iter_mut().zip(then.0).zip(self.0.into_iter().zip(other.0));
        lanes.for_each(|((out, then), (a, b))| *out = if a > b { then } else { *out });
        Any(all)
    }

    #[inline(always)]
    fn greater_or_zero(self, other: Any<L>, then: Any<L>) -> Any<L> {
        self.greater(other, then, Any([0.0; L]))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Vector;

    /// A vector of AVX.
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    pub struct Avx2(__m256);

    /// A vector of AVX-512.
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    pub struct Avx512(__m512);

    macro_rules! vector {
        ($vector:ident $count:literal $load:ident $store:ident $of:ident $add:ident $sub:ident $mul:ident $div:ident $sqrt:ident $max:ident $min:ident
            size |$x:ident| $size:expr, greater |$a:ident, $b:ident, $then:ident, $otherwise:ident| $greater:expr, or_zero |$c:ident, $d:ident, $value:ident| $or_zero:expr) => {
            // SAFETY: it is so many numbers.
            unsafe impl Vector for $vector {
                const COUNT: usize = $count;

                #[inline(always)]
                fn load(x: &[f32]) -> Self {
                    let x = &x[..$count];
                    // SAFETY: only who is compiled for the processors that have such vectors makes one, and the slice has as many numbers.
                    unsafe { $vector($load(x.as_ptr())) }
                }

                #[inline(always)]
                fn store(self, out: &mut [f32]) {
                    let out = &mut out[..$count];
                    // SAFETY: as of `load`.
                    unsafe { $store(out.as_mut_ptr(), self.0) }
                }

                #[inline(always)]
                fn of(number: f32) -> Self {
                    // SAFETY: only who is compiled for the processors that have such vectors makes one.
                    unsafe { $vector($of(number)) }
                }

                #[inline(always)]
                fn add(self, other: Self) -> Self {
                    // SAFETY: only who is compiled for the processors that have such vectors makes one.
                    unsafe { $vector($add(self.0, other.0)) }
                }

                #[inline(always)]
                fn sub(self, other: Self) -> Self {
                    // SAFETY: only who is compiled for the processors that have such vectors makes one.
                    unsafe { $vector($sub(self.0, other.0)) }
                }

                #[inline(always)]
                fn mul(self, other: Self) -> Self {
                    // SAFETY: only who is compiled for the processors that have such vectors makes one.
                    unsafe { $vector($mul(self.0, other.0)) }
                }

                #[inline(always)]
                fn div(self, other: Self) -> Self {
                    // SAFETY: only who is compiled for the processors that have such vectors makes one.
                    unsafe { $vector($div(self.0, other.0)) }
                }

                #[inline(always)]
                fn sqrt(self) -> Self {
                    // SAFETY: only who is compiled for the processors that have such vectors makes one.
                    unsafe { $vector($sqrt(self.0)) }
                }

                #[inline(always)]
                fn size(self) -> Self {
                    let $x = self.0;
                    // SAFETY: only who is compiled for the processors that have such vectors makes one.
                    unsafe { $vector($size) }
                }

                #[inline(always)]
                fn greatest(self, other: Self) -> Self {
                    // SAFETY: only who is compiled for the processors that have such vectors makes one.
                    unsafe { $vector($max(self.0, other.0)) }
                }

                #[inline(always)]
                fn least(self, other: Self) -> Self {
                    // SAFETY: only who is compiled for the processors that have such vectors makes one.
                    unsafe { $vector($min(self.0, other.0)) }
                }

                #[inline(always)]
                fn greater(self, other: Self, then: Self, otherwise: Self) -> Self {
                    let ($a, $b, $then, $otherwise) = (self.0, other.0, then.0, otherwise.0);
                    // SAFETY: only who is compiled for the processors that have such vectors makes one.
                    unsafe { $vector($greater) }
                }

                #[inline(always)]
                fn greater_or_zero(self, other: Self, then: Self) -> Self {
                    let ($c, $d, $value) = (self.0, other.0, then.0);
                    // SAFETY: only who is compiled for the processors that have such vectors makes one.
                    unsafe { $vector($or_zero) }
                }
            }
        };
    }

    vector! {
        Avx2 8 _mm256_loadu_ps _mm256_storeu_ps _mm256_set1_ps _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_div_ps _mm256_sqrt_ps
            _mm256_max_ps _mm256_min_ps
        size |x| _mm256_andnot_ps(_mm256_set1_ps(-0.0), x),
        greater |a, b, then, otherwise| _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps::<_CMP_GT_OQ>(a, b)),
        or_zero |a, b, then| _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, b), then)
    }

    vector! {
        Avx512 16 _mm512_loadu_ps _mm512_storeu_ps _mm512_set1_ps _mm512_add_ps _mm512_sub_ps _mm512_mul_ps _mm512_div_ps _mm512_sqrt_ps
            _mm512_max_ps _mm512_min_ps
        size |x| _mm512_abs_ps(x),
        greater |a, b, then, otherwise| _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), otherwise, then),
        or_zero |a, b, then| _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), then)
    }
}

/// A number of each of as many parts as a vector has.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Lanes<V>(V);

macro_rules! operations {
    ($($trait:ident $name:ident)*) => {$(
        impl<V: Vector> $trait for Lanes<V> {
            type Output = Lanes<V>;

            #[inline(always)]
            fn $name(self, other: Lanes<V>) -> Lanes<V> {
                Lanes(self.0.$name(other.0))
            }
        }
    )*};
}

operations! {
    Add add
    Sub sub
    Mul mul
    Div div
}

impl<V: Vector> Lanes<V> {
    /// The same number everywhere.
    #[inline(always)]
    pub fn of(number: f32) -> Lanes<V> {
        Lanes(V::of(number))
    }

    #[inline(always)]
    pub fn zero() -> Lanes<V> {
        Lanes::of(0.0)
    }

    /// One for each lane.
    #[inline(always)]
    pub fn load(x: &[f32]) -> Lanes<V> {
        Lanes(V::load(x))
    }

    #[inline(always)]
    pub fn store(self, out: &mut [f32]) {
        self.0.store(out);
    }

    /// All, and behind them zeros where a vector has fewer.
    #[inline(always)]
    pub fn all(self) -> [f32; MOST_LANES] {
        let mut all = [0.0; MOST_LANES];
        self.0.store(&mut all);
        all
    }

    /// One of them.
    #[inline(always)]
    pub fn of_lane(self, l: usize) -> f32 {
        self.all()[l]
    }

    /// These with another in a lane.
    #[inline(always)]
    pub fn with(self, l: usize, x: f32) -> Lanes<V> {
        let mut all = self.all();
        all[l] = x;
        Lanes::load(&all)
    }

    /// One after the other.
    #[inline(always)]
    pub fn map(self, of: impl Fn(f32) -> f32) -> Lanes<V> {
        let mut all = self.all();
        all[..V::COUNT].iter_mut().for_each(|x| *x = of(*x));
        Lanes::load(&all)
    }

    #[inline(always)]
    pub fn sqrt(self) -> Lanes<V> {
        Lanes(self.0.sqrt())
    }

    /// Without signs.
    #[inline(always)]
    pub fn size(self) -> Lanes<V> {
        Lanes(self.0.size())
    }

    /// Of the other sign.
    #[inline(always)]
    pub fn negative(self) -> Lanes<V> {
        Lanes::of(-0.0) - self
    }

    /// These, where they are greater, or else the others: so where these are no numbers.
    #[inline(always)]
    pub fn greatest(self, others: Lanes<V>) -> Lanes<V> {
        Lanes(self.0.greatest(others.0))
    }

    /// These, where they are less, or else the others: so where these are no numbers.
    #[inline(always)]
    pub fn least(self, others: Lanes<V>) -> Lanes<V> {
        Lanes(self.0.least(others.0))
    }

    /// `then` where these are greater than `others`, else `otherwise`; what is no number is not greater.
    #[inline(always)]
    pub fn greater(self, others: Lanes<V>, then: Lanes<V>, otherwise: Lanes<V>) -> Lanes<V> {
        Lanes(self.0.greater(others.0, then.0, otherwise.0))
    }

    /// The same, otherwise 0.
    #[inline(always)]
    pub fn greater_or_zero(self, others: Lanes<V>, then: Lanes<V>) -> Lanes<V> {
        Lanes(self.0.greater_or_zero(others.0, then.0))
    }

    /// `then` where these are 0, else `otherwise`.
    #[inline(always)]
    pub fn nothing(self, then: Lanes<V>, otherwise: Lanes<V>) -> Lanes<V> {
        let not_above = self.size().greater(Lanes::zero(), otherwise, then);
        // What is no number is not 0 either.
        self.greatest(Lanes::of(f32::NEG_INFINITY)).greater(Lanes::of(f32::NEG_INFINITY), not_above, otherwise)
    }

    /// `then` where these are numbers that are not infinite, else `otherwise`.
    #[inline(always)]
    pub fn finite(self, then: Lanes<V>, otherwise: Lanes<V>) -> Lanes<V> {
        Lanes::of(f32::INFINITY).greater(self.size(), then, otherwise)
    }
}

/// All numbers of vectors, one after the other.
#[inline(always)]
pub(super) fn flat<V: Vector>(all: &mut [Lanes<V>]) -> &mut [f32] {
    // SAFETY: a vector is so many numbers, and nothing else.
    unsafe { std::slice::from_raw_parts_mut(all.as_mut_ptr().cast(), all.len() * V::COUNT) }
}

/// Elements of which sums are added up apart, those whose numbers are as many apart: the sums' order is that of vectors of as many elements.
pub(super) const POSITIONS: usize = 8;

/// The sum of what was added up position by position.
#[inline(always)]
pub(super) fn total<V: Vector>([a, b, c, d, e, f, g, h]: [Lanes<V>; POSITIONS]) -> Lanes<V> {
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Elements, [`POSITIONS`] after [`POSITIONS`].
#[inline(always)]
pub(super) fn positions<V>(x: &[Lanes<V>]) -> &[[Lanes<V>; POSITIONS]] {
    let (positions, rest) = x.as_chunks();
    debug_assert!(rest.is_empty(), "groups have multiples of {POSITIONS} elements");
    positions
}
