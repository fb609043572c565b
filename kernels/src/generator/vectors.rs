//! Loops over the vectors of a row: whole vectors first, then for the remainder vectors of half the
//! length each time, down to 1.

use ixc_ir::kernel::{Affine, KernelBuilder, Op, Type, ValueId};

/// Lower bound of the logits of all models.
pub(crate) const LOWEST: f32 = -3.0e38;

/// Emits `body` for every vector of a row of `n` elements: first in a loop over vectors of `lanes`
/// lanes. For the remainder, the number of lanes is halved each time, down to 1. `body` gets the
/// element offset and the number of lanes.
pub(crate) fn for_vectors(
    b: &mut KernelBuilder,
    lanes: u16,
    n: u32,
    mut body: impl FnMut(&mut KernelBuilder, Affine, u16),
) {
    let whole = n / u32::from(lanes);
    if whole > 0 {
        b.for_each("i", i64::from(whole), |b, i| body(b, i * i64::from(lanes), lanes));
    }
    for_rest(b, lanes, n, &mut body);
}

/// Emits `body` like [`for_vectors`], but with up to `most` whole vectors at a time. `body` gets
/// the element offset of the first vector, the number of lanes, and the number of vectors.
pub(crate) fn for_bundles(
    b: &mut KernelBuilder,
    lanes: u16,
    n: u32,
    most: u32,
    mut body: impl FnMut(&mut KernelBuilder, Affine, u16, u32),
) {
    let (vectors, length) = (n / u32::from(lanes), u32::from(lanes));
    let whole = vectors / most;
    if whole > 0 {
        b.for_each("i", i64::from(whole), |b, i| body(b, i * i64::from(length * most), lanes, most));
    }
    if vectors % most > 0 {
        body(b, Affine::constant(i64::from(whole * most * length)), lanes, vectors % most);
    }
    for_rest(b, lanes, n, &mut |b, at, lanes| body(b, at, lanes, 1));
}

/// Emits `body` for the elements after the last whole vector.
pub(crate) fn for_rest(
    b: &mut KernelBuilder,
    lanes: u16,
    n: u32,
    body: &mut impl FnMut(&mut KernelBuilder, Affine, u16),
) {
    let mut at = n / u32::from(lanes) * u32::from(lanes);
    let mut part = lanes / 2;
    while part > 0 {
        if n - at >= u32::from(part) {
            body(b, Affine::constant(i64::from(at)), part);
            at += u32::from(part);
        }
        part /= 2;
    }
}

/// Reduction of the elements of a row to a scalar, for [`fold_row`].
#[derive(Clone, Copy)]
pub(crate) struct Fold {
    /// Initial value of all lanes of the accumulators.
    pub(crate) start: f32,
    /// Op that reduces a vector to one lane.
    pub(crate) reduce: Op,
    /// Op that combines two accumulators lane by lane.
    pub(crate) combine: Op,
}

pub(crate) const SUM: Fold = Fold { start: 0.0, reduce: Op::ReduceAdd, combine: Op::Add };

/// Reduces a row of `n` elements to a scalar. `vector` returns the next accumulator, given the
/// previous one, an element offset and the number of lanes.
pub(crate) fn fold_row(
    b: &mut KernelBuilder,
    lanes: u16,
    n: u32,
    fold: Fold,
    mut vector: impl FnMut(&mut KernelBuilder, Affine, u16, ValueId) -> ValueId,
) -> ValueId {
    let Fold { start, reduce, combine } = fold;
    let whole = n / u32::from(lanes);
    let mut scalar = None;
    if whole > 0 {
        let init = b.splat_f32(lanes, start);
        let acc = b.for_carry("i", i64::from(whole), &[init], |b, i, acc| {
            vec![vector(b, i * i64::from(lanes), lanes, acc[0])]
        });
        scalar = Some(b.op(reduce, Type::f32(1), &acc));
    }
    for_rest(b, lanes, n, &mut |b, at, lanes| {
        let init = b.splat_f32(lanes, start);
        let acc = vector(b, at, lanes, init);
        let rest = b.op(reduce, Type::f32(1), &[acc]);
        scalar = Some(match scalar {
            Some(s) => b.op(combine, Type::f32(1), &[s, rest]),
            None => rest,
        });
    });
    scalar.unwrap_or_else(|| b.splat_f32(1, start))
}
