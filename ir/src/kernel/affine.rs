//! Affine expressions: `constant + sum(coefficient * atom)`. All addresses, sizes and trip counts
//! of kernels have this form.
//!
//! Terms are sorted by atom and have no zero coefficients, so equal expressions are equal values.

use serde::{Deserialize, Serialize};

use super::{DimId, VarId};

/// Variable part of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Atom {
    /// A run-time size of the kernel.
    Dim(DimId),
    /// A loop variable, or an index value that was checked when it was loaded.
    Var(VarId),
}

/// `constant + sum(coefficient * atom)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Affine {
    /// The constant part.
    pub constant: i64,
    /// Terms, sorted by atom. No coefficient is zero.
    pub terms: Vec<(Atom, i64)>,
}

impl Affine {
    /// Maximum magnitude of a coefficient in a verified kernel: a TiB. The distances between rows,
    /// strips and experts of any matrix are smaller. For example, an expert of 65536 rows of 65536
    /// floats has 2^34 bytes, and 32 rows of logits over a vocabulary of 2^24 have 2^31.
    ///
    /// The proof of bounds needs this limit: it multiplies a coefficient by the coefficients of its
    /// variable's limit ([`super::verify::bounds`]). Lowerings do not need it. They compute
    /// addresses in 64 bits, which is enough for all expressions that the proof accepts
    /// ([`super::verify::bounds::REACH_BITS`]). They load constants that do not fit an instruction
    /// into a register first.
    pub const MAX_COEFFICIENT: i64 = 1 << 40;
    /// Maximum magnitude of the constant part in a verified kernel. It equals the limit for
    /// coefficients.
    pub const MAX_CONSTANT: i64 = Affine::MAX_COEFFICIENT;

    /// Returns a constant expression.
    pub fn constant(constant: i64) -> Affine {
        Affine { constant, terms: Vec::new() }
    }

    /// Whether the expression contains only dims and a constant, and no variables.
    pub fn is_over_dims(&self) -> bool {
        self.terms.iter().all(|(atom, _)| matches!(atom, Atom::Dim(_)))
    }

    /// Returns the constant part if the expression has no terms, otherwise `None`.
    pub fn as_constant(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// Returns the coefficient of `atom`, or zero if it does not occur.
    pub fn coefficient(&self, atom: Atom) -> i64 {
        self.terms.iter().find(|(a, _)| *a == atom).map_or(0, |(_, c)| *c)
    }

    /// Computes the value of the expression. `value` returns the value of each atom.
    ///
    /// # Errors
    /// Returns `None` if the arithmetic overflows.
    pub fn evaluate(&self, mut value: impl FnMut(Atom) -> i64) -> Option<i64> {
        self.terms.iter().try_fold(self.constant, |sum, (atom, c)| sum.checked_add(c.checked_mul(value(*atom))?))
    }
}

impl From<i64> for Affine {
    fn from(constant: i64) -> Affine {
        Affine::constant(constant)
    }
}

impl From<VarId> for Affine {
    fn from(var: VarId) -> Affine {
        Affine { constant: 0, terms: vec![(Atom::Var(var), 1)] }
    }
}

impl From<DimId> for Affine {
    fn from(dim: DimId) -> Affine {
        Affine { constant: 0, terms: vec![(Atom::Dim(dim), 1)] }
    }
}

impl<T: Into<Affine>> std::ops::Add<T> for Affine {
    type Output = Affine;

    fn add(mut self, other: T) -> Affine {
        let other = other.into();
        self.constant += other.constant;
        for (atom, c) in other.terms {
            match self.terms.binary_search_by_key(&atom, |(a, _)| *a) {
                Ok(i) => self.terms[i].1 += c,
                Err(i) => self.terms.insert(i, (atom, c)),
            }
        }
        self.terms.retain(|(_, c)| *c != 0);
        self
    }
}

impl std::ops::Mul<i64> for Affine {
    type Output = Affine;

    fn mul(mut self, factor: i64) -> Affine {
        self.constant *= factor;
        for (_, c) in &mut self.terms {
            *c *= factor;
        }
        self.terms.retain(|(_, c)| *c != 0);
        self
    }
}

macro_rules! atom_arithmetic {
    ($($atom:ty)*) => {$(
        impl<T: Into<Affine>> std::ops::Add<T> for $atom {
            type Output = Affine;

            fn add(self, other: T) -> Affine {
                Affine::from(self) + other
            }
        }

        impl std::ops::Mul<i64> for $atom {
            type Output = Affine;

            fn mul(self, factor: i64) -> Affine {
                Affine::from(self) * factor
            }
        }
    )*};
}

atom_arithmetic! { VarId DimId }
