//! Vectors for the parallel encoding of several parts of a row. Each part has one lane.
//!
//! A part is the elements that share `d`. Each sum over a part waits for its last element, and the
//! next sum waits for this sum. The encoding of a single part would spend most of its time on these
//! latencies. Parallel parts hide them, and no sum is across lanes.
//!
//! Every operation is an IEEE 754 operation on each number, or a choice between two numbers.
//! Results thus have the same bits on vectors of every width.

use std::ops::{Add, Div, Mul, Sub};

/// Maximum number of lanes of a vector.
pub(super) const MOST_LANES: usize = 16;

/// A vector of f32 numbers, in an array or in a register of the processor.
///
/// Vectors that only some processors have may be created only in functions that are compiled for
/// these processors.
///
/// # Safety
/// The type must consist of [`Vector::COUNT`] numbers, and nothing else.
pub(super) unsafe trait Vector: Copy {
    /// Number of lanes.
    const COUNT: usize;

    /// Loads the first [`Vector::COUNT`] numbers.
    fn load(x: &[f32]) -> Self;
    /// Stores to the first [`Vector::COUNT`] numbers.
    fn store(self, out: &mut [f32]);
    fn splat(number: f32) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn sqrt(self) -> Self;
    /// Returns the absolute value in each lane.
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

/// A vector for any processor. The compiler uses only instructions that all processors have.
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

// SAFETY: the type is an array of `L` numbers.
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
    fn splat(number: f32) -> Any<L> {
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

    /// A vector in an AVX register.
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    pub struct Avx2(__m256);

    /// A vector in an AVX-512 register.
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    pub struct Avx512(__m512);

    macro_rules! vector {
        ($vector:ident $count:literal $load:ident $store:ident $of:ident $add:ident $sub:ident $mul:ident $div:ident $sqrt:ident $max:ident $min:ident
            size |$x:ident| $size:expr, greater |$a:ident, $b:ident, $then:ident, $otherwise:ident| $greater:expr, or_zero |$c:ident, $d:ident, $value:ident| $or_zero:expr) => {
            // SAFETY: the type is a register of `$count` numbers, and nothing else.
            unsafe impl Vector for $vector {
                const COUNT: usize = $count;

                #[inline(always)]
                fn load(x: &[f32]) -> Self {
                    let x = &x[..$count];
                    // SAFETY: only functions compiled for processors with such registers create a
                    // vector, and the slice has `$count` numbers.
                    unsafe { $vector($load(x.as_ptr())) }
                }

                #[inline(always)]
                fn store(self, out: &mut [f32]) {
                    let out = &mut out[..$count];
                    // SAFETY: `self` is a vector, so the processor has the instruction; the slice
                    // has `$count` numbers.
                    unsafe { $store(out.as_mut_ptr(), self.0) }
                }

                #[inline(always)]
                fn splat(number: f32) -> Self {
                    // SAFETY: only functions compiled for processors with such registers create a
                    // vector.
                    unsafe { $vector($of(number)) }
                }

                #[inline(always)]
                fn add(self, other: Self) -> Self {
                    // SAFETY: only functions compiled for processors with such registers create a
                    // vector.
                    unsafe { $vector($add(self.0, other.0)) }
                }

                #[inline(always)]
                fn sub(self, other: Self) -> Self {
                    // SAFETY: only functions compiled for processors with such registers create a
                    // vector.
                    unsafe { $vector($sub(self.0, other.0)) }
                }

                #[inline(always)]
                fn mul(self, other: Self) -> Self {
                    // SAFETY: only functions compiled for processors with such registers create a
                    // vector.
                    unsafe { $vector($mul(self.0, other.0)) }
                }

                #[inline(always)]
                fn div(self, other: Self) -> Self {
                    // SAFETY: only functions compiled for processors with such registers create a
                    // vector.
                    unsafe { $vector($div(self.0, other.0)) }
                }

                #[inline(always)]
                fn sqrt(self) -> Self {
                    // SAFETY: only functions compiled for processors with such registers create a
                    // vector.
                    unsafe { $vector($sqrt(self.0)) }
                }

                #[inline(always)]
                fn size(self) -> Self {
                    let $x = self.0;
                    // SAFETY: only functions compiled for processors with such registers create a
                    // vector.
                    unsafe { $vector($size) }
                }

                #[inline(always)]
                fn greatest(self, other: Self) -> Self {
                    // SAFETY: only functions compiled for processors with such registers create a
                    // vector.
                    unsafe { $vector($max(self.0, other.0)) }
                }

                #[inline(always)]
                fn least(self, other: Self) -> Self {
                    // SAFETY: only functions compiled for processors with such registers create a
                    // vector.
                    unsafe { $vector($min(self.0, other.0)) }
                }

                #[inline(always)]
                fn greater(self, other: Self, then: Self, otherwise: Self) -> Self {
                    let ($a, $b, $then, $otherwise) = (self.0, other.0, then.0, otherwise.0);
                    // SAFETY: only functions compiled for processors with such registers create a
                    // vector.
                    unsafe { $vector($greater) }
                }

                #[inline(always)]
                fn greater_or_zero(self, other: Self, then: Self) -> Self {
                    let ($c, $d, $value) = (self.0, other.0, then.0);
                    // SAFETY: only functions compiled for processors with such registers create a
                    // vector.
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

/// A vector with one number for each of several parts of a row. Each part has one lane.
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
    /// Returns one number in all lanes.
    #[inline(always)]
    pub fn splat(number: f32) -> Lanes<V> {
        Lanes(V::splat(number))
    }

    #[inline(always)]
    pub fn zero() -> Lanes<V> {
        Lanes::splat(0.0)
    }

    /// Loads one number for each lane.
    #[inline(always)]
    pub fn load(x: &[f32]) -> Lanes<V> {
        Lanes(V::load(x))
    }

    #[inline(always)]
    pub fn store(self, out: &mut [f32]) {
        self.0.store(out);
    }

    /// Returns the numbers of all lanes, followed by zeros if the vector has fewer than
    /// [`MOST_LANES`].
    #[inline(always)]
    pub fn all(self) -> [f32; MOST_LANES] {
        let mut all = [0.0; MOST_LANES];
        self.0.store(&mut all);
        all
    }

    /// Returns the number in lane `l`.
    #[inline(always)]
    pub fn of_lane(self, l: usize) -> f32 {
        self.all()[l]
    }

    /// Replaces the number in lane `l`.
    #[inline(always)]
    pub fn with(self, l: usize, x: f32) -> Lanes<V> {
        let mut all = self.all();
        all[l] = x;
        Lanes::load(&all)
    }

    /// Applies a function to the number of each lane, one lane after another.
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

    /// Returns the absolute value in each lane.
    #[inline(always)]
    pub fn size(self) -> Lanes<V> {
        Lanes(self.0.size())
    }

    /// Returns the number with the opposite sign in each lane.
    #[inline(always)]
    pub fn negative(self) -> Lanes<V> {
        Lanes::splat(-0.0) - self
    }

    /// Returns the larger of the two numbers in each lane. If one is NaN, returns the number of
    /// `others`.
    #[inline(always)]
    pub fn greatest(self, others: Lanes<V>) -> Lanes<V> {
        Lanes(self.0.greatest(others.0))
    }

    /// Returns the smaller of the two numbers in each lane. If one is NaN, returns the number of
    /// `others`.
    #[inline(always)]
    pub fn least(self, others: Lanes<V>) -> Lanes<V> {
        Lanes(self.0.least(others.0))
    }

    /// Returns `then` in lanes whose number is greater than that of `others`, else `otherwise`. NaN
    /// is never greater.
    #[inline(always)]
    pub fn greater(self, others: Lanes<V>, then: Lanes<V>, otherwise: Lanes<V>) -> Lanes<V> {
        Lanes(self.0.greater(others.0, then.0, otherwise.0))
    }

    /// Returns `then` in lanes whose number is greater than that of `others`, else 0.
    #[inline(always)]
    pub fn greater_or_zero(self, others: Lanes<V>, then: Lanes<V>) -> Lanes<V> {
        Lanes(self.0.greater_or_zero(others.0, then.0))
    }

    /// Returns `then` in lanes whose number is 0, else `otherwise`.
    #[inline(always)]
    pub fn nothing(self, then: Lanes<V>, otherwise: Lanes<V>) -> Lanes<V> {
        let not_above = self.size().greater(Lanes::zero(), otherwise, then);
        // The outer comparison ensures that NaN does not count as 0.
        self.greatest(Lanes::splat(f32::NEG_INFINITY)).greater(Lanes::splat(f32::NEG_INFINITY), not_above, otherwise)
    }

    /// Returns `then` in lanes whose number is finite, else `otherwise`.
    #[inline(always)]
    pub fn finite(self, then: Lanes<V>, otherwise: Lanes<V>) -> Lanes<V> {
        Lanes::splat(f32::INFINITY).greater(self.size(), then, otherwise)
    }
}

/// Returns the numbers of all lanes of all vectors as one slice.
#[inline(always)]
pub(super) fn flat<V: Vector>(all: &mut [Lanes<V>]) -> &mut [f32] {
    // SAFETY: a vector consists of `V::COUNT` numbers, and nothing else.
    unsafe { std::slice::from_raw_parts_mut(all.as_mut_ptr().cast(), all.len() * V::COUNT) }
}

/// Number of partial sums. Elements whose indices differ by a multiple of this number share a
/// partial sum. Sums are thus added in the order of vectors along the row with this many lanes.
pub(super) const POSITIONS: usize = 8;

/// Returns the total of the partial sums, separately for each lane.
#[inline(always)]
pub(super) fn total<V: Vector>(sums: [Lanes<V>; POSITIONS]) -> Lanes<V> {
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Returns elements in groups of [`POSITIONS`].
#[inline(always)]
pub(super) fn positions<V>(x: &[Lanes<V>]) -> &[[Lanes<V>; POSITIONS]] {
    let (positions, rest) = x.as_chunks();
    debug_assert!(rest.is_empty(), "groups have multiples of {POSITIONS} elements");
    positions
}
