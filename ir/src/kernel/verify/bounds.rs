//! Proof that every access stays inside its buffer. It finds the minimum of affine expressions over
//! boxes of variables and dims.
//!
//! An affine expression has its minimum over a box at a corner. A variable runs over
//! `0..=limit - 1`. Its `limit`, a trip count or the bound of index values, is affine in dims. If
//! the variable's coefficient is negative, the proof replaces the variable by `limit - 1`,
//! otherwise by 0. The result is exact and affine in dims only. Dims also run over a box. For each
//! dim, the proof takes the end of its range that minimises the expression.
//!
//! An access of `bytes` at `offset` is proven if the minimums of `offset` and of
//! `size - offset - bytes` are not negative. For a tile, `bytes` is the distance from the start of
//! its first row to the end of its last row. Sizes and limits stay symbolic until all variables are
//! replaced. `32*%n - 32*(%n - 1) - 32` is therefore exactly 0, and not a difference of two
//! extremes.
//!
//! A loop body runs only if the trip counts of all enclosing loops are at least 1. The code after a
//! `load_index` runs only if the limit of the index is at least 1. These conditions narrow the box
//! of dims (`DimBox::narrow`). If the box is empty, the code never runs and needs no proof.
//!
//! ```text
//! where %n in 0..=9    buffer %x : read 32*%n
//! load f32x8 %x[0]                          rejected: %n may be 0
//! for %i in 0..%n { load f32x8 %x[0] }      proven: here %n is 1..=9
//! ```
//!
//! Addresses, sizes, limits and `index` values must be below 2^61 in magnitude ([`REACH_BITS`]) for
//! all dims of the box, even if the magnitudes of all terms are added. These values and their sums
//! then fit in 64 bits in any order of computation.
//!
//! The proof itself computes in 128 bits. It replaces up to 64 variables (2^6). For each, it
//! multiplies a coefficient (2^40) by the coefficients of a limit (2^40), each with a dim (2^31). A
//! limit has up to 64 dims (2^6). The proof adds such sums for an offset and for a size. The total
//! is 2^124, with room for the constants, which are smaller.
//!
//! The proof is one pass over the kernel. The time for an access is proportional to its number of
//! terms times the number of terms of the limits. The proof fails for a valid kernel only if it
//! would need a condition on two or more dims together (`for %i in 0..%n + %m`, `%x[0]`). No
//! generator makes such a kernel.

use super::{Problem, Site, VerifyError, what};
use crate::kernel::op::Memory;
use crate::kernel::*;

/// Exponent of 2 in the exclusive bound of all affine expressions of a verified kernel. Sums of
/// several such values still fit in 64 bits.
pub const REACH_BITS: u32 = 61;

/// Checks that the product of all factors in the module's derivation, times two, is in range.
const _: () = {
    let (coefficient, dim, terms) = (Affine::MAX_COEFFICIENT as i128, Dim::MAX as i128, super::MAX_TERMS as i128);
    assert!(Affine::MAX_CONSTANT <= Affine::MAX_COEFFICIENT && Affine::MAX_CONSTANT < 1 << REACH_BITS);
    assert!(i128::MAX / 4 > coefficient * coefficient * dim * terms * terms);
};

const LOADABLE: &str = "`read`, `read_write` or `scratch`";
const STORABLE: &str = "`write`, `read_write` or `scratch`";

/// Number of bytes of an index value, a `u32`.
const INDEX_BYTES: i64 = 4;

/// Proves all accesses of a kernel. The caller must have verified its structure.
///
/// # Errors
/// Returns the first access, size or trip count that cannot be proven.
pub fn prove(kernel: &Kernel) -> Result<(), VerifyError> {
    let ranges = kernel.dims.iter().map(|dim| (i128::from(dim.lo), i128::from(dim.hi))).collect();
    let dims = DimBox { ranges, empty: false };
    for (i, buffer) in kernel.buffers.iter().enumerate() {
        let at = |problem| VerifyError { site: Site::Buffer(i), problem };
        in_reach(dims.magnitude(&buffer.size)).map_err(at)?;
        if let BufferKind::Index { below } = &buffer.kind {
            dims.never_negative(below, "below").map_err(at)?;
        }
    }
    let mut prover = Prover { kernel, limits: vec![None; kernel.vars.len()], statements: 0 };
    prover.block(&kernel.body, dims)
}

struct Prover<'a> {
    kernel: &'a Kernel,
    /// Exclusive upper bound of each variable; `None` if the variable is not in scope.
    limits: Vec<Option<&'a Affine>>,
    statements: usize,
}

impl<'a> Prover<'a> {
    fn block(&mut self, statements: &'a [Stmt], mut dims: DimBox) -> Result<(), VerifyError> {
        for statement in statements {
            let site = Site::Statement { number: self.statements, what: what(statement) };
            let at = |problem| VerifyError { site, problem };
            self.statements += 1;
            match statement {
                Stmt::Inst(inst) => self.inst(inst, &dims).map_err(at)?,
                Stmt::LoadIndex { var, address } => {
                    self.index_access(address).and_then(|()| self.access(address, INDEX_BYTES, &dims)).map_err(at)?;
                    if let BufferKind::Index { below } = &self.kernel.buffers[address.buffer.index()].kind {
                        self.limits[var.index()] = Some(below);
                        dims.narrow(below);
                    }
                }
                Stmt::For(f) => {
                    dims.never_negative(&f.trip, "trip").map_err(at)?;
                    self.limits[f.var.index()] = Some(&f.trip);
                    let mut inside = dims.clone();
                    inside.narrow(&f.trip);
                    self.block(&f.body, inside)?;
                }
            }
        }
        Ok(())
    }

    fn inst(&self, inst: &Inst, dims: &DimBox) -> Result<(), Problem> {
        if let Some(affine) = &inst.index {
            self.reach(affine, dims)?;
        }
        let Some(address) = &inst.address else { return Ok(()) };
        let kind = &self.kernel.buffers[address.buffer.index()].kind;
        let (bytes, allowed, expected) = match inst.op.row().memory {
            Memory::Load => (inst.ty.bytes().into(), kind.may_load(), LOADABLE),
            Memory::LoadElement => (inst.ty.elem.bytes().into(), kind.may_load(), LOADABLE),
            Memory::Store => (inst.ty.bytes().into(), kind.may_store(), STORABLE),
            Memory::LoadRows => (self.rows(inst)?, kind.may_load(), LOADABLE),
            Memory::StoreRows => (self.rows(inst)?, kind.may_store(), STORABLE),
            // A prefetch accesses nothing, so any address that does not overflow is valid.
            Memory::Hint => return self.reach(&address.offset, dims),
            Memory::None | Memory::Index => return Ok(()),
        };
        if !allowed {
            return Err(self.forbidden(address, expected));
        }
        self.access(address, bytes, dims)
    }

    /// Returns the number of bytes from the start of a tile's first row to the end of its last row.
    fn rows(&self, inst: &Inst) -> Result<i64, Problem> {
        let stride = if let Imm::Int(stride) = inst.imm { stride } else { -1 };
        let extent = inst.ty.extent(stride).and_then(|extent| i64::try_from(extent).ok());
        // Unreachable: the type rule has rejected strides that are out of range.
        extent.ok_or_else(|| Problem::Types { expected: format!("a stride that is not negative, found {stride}") })
    }

    fn index_access(&self, address: &Address) -> Result<(), Problem> {
        if !matches!(self.kernel.buffers[address.buffer.index()].kind, BufferKind::Index { .. }) {
            return Err(self.forbidden(address, "`index`"));
        }
        // The caller checks values at multiples of 4. A value at another offset would overlap two
        // of them, and be unchecked itself.
        let mut numbers = address.offset.terms.iter().map(|(_, c)| *c).chain([address.offset.constant]);
        match numbers.find(|c| c % INDEX_BYTES != 0) {
            Some(found) => Err(Problem::IndexAlignment { found }),
            None => Ok(()),
        }
    }

    fn forbidden(&self, address: &Address, expected: &'static str) -> Problem {
        let buffer = &self.kernel.buffers[address.buffer.index()];
        Problem::Forbidden { buffer: buffer.name.clone(), kind: buffer.kind.keyword(), expected }
    }

    fn access(&self, address: &Address, bytes: i64, dims: &DimBox) -> Result<(), Problem> {
        if dims.empty {
            return Ok(());
        }
        self.reach(&address.offset, dims)?;
        let buffer = &self.kernel.buffers[address.buffer.index()];
        let least = self.least(&Wide::from_affine(&address.offset, dims), dims);
        if least < 0 {
            return Err(Problem::BeforeStart { buffer: buffer.name.clone(), least });
        }
        let mut room = Wide::from_affine(&buffer.size, dims);
        room.subtract(&address.offset);
        room.constant -= i128::from(bytes);
        let room = self.least(&room, dims);
        if room < 0 {
            return Err(Problem::AfterEnd { buffer: buffer.name.clone(), excess: -room });
        }
        Ok(())
    }

    /// Returns the minimum of an expression over all variables and dims.
    fn least(&self, affine: &Wide, dims: &DimBox) -> i128 {
        let mut over_dims = Wide { constant: affine.constant, dims: affine.dims.clone(), vars: Vec::new() };
        for &(var, c) in &affine.vars {
            if c < 0
                && let Some(limit) = self.limits[var.index()]
            {
                // The variable's coefficient is negative, so this adds `c * (limit - 1)`.
                over_dims.constant += c * (i128::from(limit.constant) - 1);
                for &(atom, by) in &limit.terms {
                    if let Atom::Dim(dim) = atom {
                        over_dims.dims[dim.index()] += c * i128::from(by);
                    }
                }
            }
        }
        dims.least(over_dims.constant, &over_dims.dims)
    }

    /// Checks that no partial sum of an expression overflows, in any order of computation.
    fn reach(&self, affine: &Affine, dims: &DimBox) -> Result<(), Problem> {
        if dims.empty {
            return Ok(());
        }
        let mut reach = i128::from(affine.constant).abs();
        for &(atom, c) in &affine.terms {
            let most = match atom {
                Atom::Dim(dim) => dims.ranges[dim.index()].1,
                Atom::Var(var) => self.limits[var.index()].map_or(0, |limit| dims.most(limit)),
            };
            reach += i128::from(c).abs() * most.max(0);
        }
        in_reach(reach)
    }
}

fn in_reach(reach: i128) -> Result<(), Problem> {
    if reach < 1 << REACH_BITS { Ok(()) } else { Err(Problem::Reach { reach }) }
}

/// An affine expression with 128-bit coefficients. The sums that the proof computes cannot
/// overflow; see the module's derivation.
struct Wide {
    constant: i128,
    /// Coefficient of each dim.
    dims: Vec<i128>,
    vars: Vec<(VarId, i128)>,
}

impl Wide {
    fn from_affine(affine: &Affine, dims: &DimBox) -> Wide {
        let mut wide = Wide { constant: 0, dims: vec![0; dims.ranges.len()], vars: Vec::new() };
        wide.add(affine, 1);
        wide
    }

    fn subtract(&mut self, affine: &Affine) {
        self.add(affine, -1);
    }

    /// Adds `sign * affine`. A variable must not occur in both expressions.
    fn add(&mut self, affine: &Affine, sign: i128) {
        self.constant += sign * i128::from(affine.constant);
        for &(atom, c) in &affine.terms {
            let c = sign * i128::from(c);
            match atom {
                Atom::Dim(dim) => self.dims[dim.index()] += c,
                Atom::Var(var) => self.vars.push((var, c)),
            }
        }
    }
}

/// Box of the dims with which a statement can run.
#[derive(Clone)]
struct DimBox {
    /// Range `lo..=hi` of each dim.
    ranges: Vec<(i128, i128)>,
    /// Whether the statement never runs. If so, the ranges have no meaning.
    empty: bool,
}

impl DimBox {
    fn least(&self, constant: i128, coefficients: &[i128]) -> i128 {
        let term = |(&c, &(lo, hi)): (&i128, &(i128, i128))| if c < 0 { c * hi } else { c * lo };
        constant + coefficients.iter().zip(&self.ranges).map(term).sum::<i128>()
    }

    /// Returns the maximum over the box of an expression in dims.
    fn most(&self, affine: &Affine) -> i128 {
        affine.terms.iter().fold(i128::from(affine.constant), |sum, &(atom, c)| sum + self.extreme(atom, c, true))
    }

    /// Returns the maximum over the box of the sum of the magnitudes of all terms.
    fn magnitude(&self, affine: &Affine) -> i128 {
        let term = |&(atom, c): &(Atom, i64)| self.extreme(atom, c.abs(), true);
        affine.terms.iter().map(term).sum::<i128>() + i128::from(affine.constant).abs()
    }

    /// Returns the maximum of `c * atom` over the box, or the minimum. Returns 0 for a variable.
    fn extreme(&self, atom: Atom, c: i64, most: bool) -> i128 {
        match atom {
            Atom::Dim(dim) => {
                let (lo, hi) = self.ranges[dim.index()];
                i128::from(c) * if (c > 0) == most { hi } else { lo }
            }
            Atom::Var(_) => 0,
        }
    }

    fn never_negative(&self, affine: &Affine, what: &'static str) -> Result<(), Problem> {
        if self.empty {
            return Ok(());
        }
        let terms = affine.terms.iter();
        let least = terms.fold(i128::from(affine.constant), |sum, &(atom, c)| sum + self.extreme(atom, c, false));
        if least < 0 {
            return Err(Problem::Negative { what, least });
        }
        in_reach(self.magnitude(affine))
    }

    /// Narrows the box to a box that contains all dims with `limit >= 1`. It narrows each dim in
    /// turn, with the other dims at the values that maximise `limit`.
    fn narrow(&mut self, limit: &Affine) {
        if self.empty {
            return;
        }
        for &(atom, c) in &limit.terms {
            let Atom::Dim(dim) = atom else { continue };
            // `c * dim >= 1 - (maximum of the other terms)`
            let need = 1 - (self.most(limit) - self.extreme(atom, c, true));
            let (lo, hi) = &mut self.ranges[dim.index()];
            let c = i128::from(c);
            if c > 0 {
                *lo = (*lo).max(need.div_euclid(c) + i128::from(need.rem_euclid(c) != 0));
            } else {
                // `dim <= need / c`, rounded down. Both signs are flipped, because `c` is negative.
                *hi = (*hi).min((-need).div_euclid(-c));
            }
            self.empty |= *lo > *hi;
        }
        self.empty |= limit.as_constant().is_some_and(|constant| constant < 1);
    }
}
